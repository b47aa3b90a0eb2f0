/* Any tiktoken.model, and any text: it is refused with a reason, or fuzz_text.h holds.
 * Input: a byte (bit 0: the file comes as text, else as tokens behind those of single bytes; bit 1: with a
 * tokenizer_config.json), two bytes of length, the file or the tokens (length, bytes), the text. */
#include <sodium.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/json.h"
#include "tests/fuzz/fuzz_text.h"

#define MAX_FILE 131072

static const char config_text[] =
	"{\"tokenizer_class\":\"TikTokenTokenizer\",\"added_tokens_decoder\":{\"256\":{\"content\":\"[BOS]\","
	"\"special\":true},\"260\":{\"content\":\"<|t|>\",\"special\":false}}}";

static size_t add_line(char *file, size_t n, const uint8_t *bytes, size_t len, unsigned rank)
{
	char line[512];

	check(sodium_bin2base64(line, sizeof(line), bytes, len, sodium_base64_VARIANT_ORIGINAL) != NULL);
	n += (size_t)snprintf(file + n, MAX_FILE - n, "%s %u\n", line, rank);
	check(n < MAX_FILE);
	return n;
}

static size_t make_file(char *file, const uint8_t *data, size_t size)
{
	unsigned rank = 0;
	size_t n = 0;

	for (; rank < 256; rank++)
		n = add_line(file, n, &(const uint8_t){ (uint8_t)rank }, 1, rank);
	while (size >= 2 && n + 1024 < MAX_FILE) {
		const size_t len = data[0] < size - 1 ? data[0] : size - 1;

		n = add_line(file, n, data + 1, len, rank++);
		data += 1 + len;
		size -= 1 + len;
	}
	return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static char file[MAX_FILE];
	struct od_tokenizer *t;
	struct od_err err = { 0 };
	json_t *config = NULL;
	unsigned kind;
	size_t n, len;

	if (size < 3)
		return 0;
	kind = data[0];
	n = data[1] | (size_t)data[2] << 8;
	data += 3;
	size -= 3;
	n = n < size ? n : size;
	if ((kind & 2) != 0)
		check(od_json_parse(config_text, strlen(config_text), "fuzz", &config, &err) == OD_OK);
	len = (kind & 1) != 0 ? 0 : make_file(file, data, n);
	if (od_tokenizer_parse(&t, OD_TOKENIZER_TIKTOKEN, (kind & 1) != 0 ? (const char *)data : file,
			       (kind & 1) != 0 ? n : len, config, "fuzz", &err) != OD_OK)
		check(t == NULL && err.msg[0] != '\0');
	else
		fuzz_text(t, (const char *)data + n, size - n);
	od_tokenizer_free(t);
	json_decref(config);
	return 0;
}

/* Any tokenizer.model, and any text: it is refused with a reason, or fuzz_text.h holds.
 * Input: a byte (bit 0: the file comes as bytes, else as pieces; bit 1: byte fallback; bits 2 to 6: fields of the
 * normaliser and which tokenizer_config.json), two bytes of length, the file or the pieces, the text. A piece: type and
 * score (a byte each), length, bytes. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/json.h"
#include "tests/fuzz/fuzz_text.h"

#define MAX_FILE 65536

static const char *const configs[] = {
	"{\"legacy\":false,\"add_eos_token\":true,\"added_tokens_decoder\":{\"1\":{\"content\":\"<s>\",\"special\":true,\"rstrip\":true}}}",
	"{\"add_bos_token\":false,\"added_tokens_decoder\":{\"3\":{\"content\":\"<a>\",\"normalized\":true}}}",
	"{\"bos_token\":{\"content\":\"</s>\"},\"eos_token\":null,\"added_tokens_decoder\":{\"9\":{\"content\":\"a b\",\"lstrip\":true}}}",
};

struct file {
	uint8_t bytes[MAX_FILE];
	size_t n;
};

static void put(struct file *f, const void *bytes, size_t n)
{
	check(f->n + n <= MAX_FILE);
	memcpy(f->bytes + f->n, bytes, n);
	f->n += n;
}

static void put_piece(struct file *f, const void *text, uint8_t len, float score, uint8_t type)
{
	const uint8_t head[] = { 0x0a, (uint8_t)(len + 9), 0x0a, len }, middle = 0x15, tail[] = { 0x18, type };

	if (len > 100 || f->n + 128 > MAX_FILE - 128)
		return;
	put(f, head, sizeof(head));
	put(f, text, len);
	put(f, &middle, 1);
	put(f, &score, sizeof(score));
	put(f, tail, sizeof(tail));
}

/* The usual pieces, then those of the input. */
static void make_file(struct file *f, unsigned kind, const uint8_t *data, size_t size)
{
	const uint8_t trainer[] = { 0x12, 5, 0x18, 2, 0x98, 0x02, (kind >> 1) & 1 };
	const uint8_t normalizer[] = { 0x1a, 4, 0x18, (kind >> 2) & 1, 0x20, (kind >> 3) & 1 };
	char name[8];

	put_piece(f, "<unk>", 5, 0, 2);
	put_piece(f, "<s>", 3, 0, 3);
	put_piece(f, "</s>", 4, 0, 3);
	for (unsigned b = 0; b < 256 && (kind & 2) != 0; b++) {
		snprintf(name, sizeof(name), "<0x%02X>", b);
		put_piece(f, name, 6, 0, 6);
	}
	put_piece(f, "\xe2\x96\x81", 3, -100, 1);
	put_piece(f, "a", 1, -101, 1);
	put_piece(f, "b", 1, -102, 1);
	put_piece(f, "\n", 1, -103, 1);
	while (size >= 3) {
		const uint8_t len = (size_t)data[2] < size - 3 ? data[2] : (uint8_t)(size - 3);

		put_piece(f, data + 3, len, -(float)data[1], data[0] % 8);
		data += 3 + len;
		size -= 3 + (size_t)len;
	}
	put(f, trainer, sizeof(trainer));
	put(f, normalizer, sizeof(normalizer));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct file f;
	struct od_tokenizer *t;
	struct od_err err = { 0 };
	json_t *config = NULL;
	unsigned kind;
	size_t n;

	if (size < 3)
		return 0;
	kind = data[0];
	n = data[1] | (size_t)data[2] << 8;
	data += 3;
	size -= 3;
	n = n < size ? n : size;
	if (kind >> 4 > 0 && kind >> 4 <= sizeof(configs) / sizeof(configs[0]))
		check(od_json_parse(configs[(kind >> 4) - 1], strlen(configs[(kind >> 4) - 1]), "fuzz", &config,
				    &err) == OD_OK);
	f.n = 0;
	if ((kind & 1) != 0)
		put(&f, data, n < MAX_FILE ? n : MAX_FILE);
	else
		make_file(&f, kind, data, n);
	if (od_tokenizer_parse(&t, OD_TOKENIZER_SENTENCEPIECE, (const char *)f.bytes, f.n, config, "fuzz", &err) !=
	    OD_OK)
		check(t == NULL && err.msg[0] != '\0');
	else
		fuzz_text(t, (const char *)data + n, size - n);
	od_tokenizer_free(t);
	json_decref(config);
	return 0;
}

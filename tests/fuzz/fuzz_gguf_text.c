/* A GGUF file's tokeniser and chat templates, changed from headers of each kind: they are refused with a reason, within
 * a small multiple of the file's size of memory, or the files that are made of them are refused with a reason when they
 * are loaded, or fuzz_text.h holds.
 * Input: gguf_mix.h's, then the text; or "GGUF" and the rest of a file. */
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/pack/gguf/gguf_tokenizer.h"
#include "common/text/jinja/jinja.h"
#include "tests/fuzz/fuzz_text.h"
#include "tests/fuzz/gguf_bytes.h"
#include "tests/fuzz/gguf_mix.h"

#define TIMES 128 /* memory for a byte of the file: a token of a byte becomes an object of JSON */
#define MEMORY_BYTES ((size_t)1 << 20) /* more, for buffers and messages */

static void parse_template(const json_t *text)
{
	struct od_jinja *t;
	struct od_err err = { 0 };

	check(json_is_string(text));
	if (od_jinja_parse(&t, json_string_value(text), json_string_length(text), "fuzz", &err) != OD_OK)
		check(t == NULL && err.msg[0] != '\0');
	od_jinja_free(t);
}

static void parse_templates(const json_t *config)
{
	const json_t *templates = json_object_get(config, "chat_template");

	if (json_is_string(templates))
		parse_template(templates);
	for (size_t i = 0; i < json_array_size(templates); i++) {
		check(json_is_string(json_object_get(json_array_get(templates, i), "name")));
		parse_template(json_object_get(json_array_get(templates, i), "template"));
	}
}

static json_t *parsed(const struct od_strbuf *text)
{
	struct od_err err = { 0 };
	json_t *v;

	check(od_json_parse(od_strbuf_text(text), text->len, "fuzz", &v, &err) == OD_OK && json_is_object(v));
	return v;
}

static void use(const struct od_gguf_texts *texts, const char *text, size_t len)
{
	const bool is_json = strcmp(texts->name, "tokenizer.json") == 0;
	json_t *config = parsed(&texts->config), *generation = parsed(&texts->generation);
	struct od_tokenizer *t;
	struct od_err err = { 0 };
	const int rc =
		od_tokenizer_parse(&t, is_json ? OD_TOKENIZER_JSON : OD_TOKENIZER_SENTENCEPIECE,
				   od_strbuf_text(&texts->tokenizer), texts->tokenizer.len, config, "fuzz", &err);

	if (rc == OD_OK)
		fuzz_text(t, text, len);
	else
		check(t == NULL && err.msg[0] != '\0');
	od_tokenizer_free(t);
	parse_templates(config);
	check(json_is_array(json_object_get(generation, "eos_token_id")));
	json_decref(config);
	json_decref(generation);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct gguf_mix *mix;
	const bool bytes = size >= 4 && memcmp(data, "GGUF", 4) == 0;
	uint8_t *made = NULL;
	size_t len = size, file_bytes = size;
	struct od_err err = { 0 };
	struct od_gguf_texts texts = { 0 };
	struct od_gguf *g;
	int rc;

	if (mix == NULL)
		mix = gguf_mix_new("text_");
	if (!bytes)
		made = gguf_mix_make(mix, &data, &size, &len, &file_bytes);
	gguf_bytes_begin(file_bytes * TIMES + MEMORY_BYTES);
	rc = od_gguf_open(&g, gguf_bytes_file(bytes ? data : made, len, file_bytes), &err);
	if (rc == OD_OK)
		rc = od_gguf_texts(g, &texts, &err);
	if (rc != OD_OK)
		check(err.msg[0] != '\0' && rc != OD_ERR_NOMEM && err.code == rc);
	gguf_bytes_end();
	if (rc == OD_OK && texts.name != NULL)
		use(&texts, bytes ? "some text" : (const char *)data, bytes ? 9 : size);
	od_gguf_texts_fini(&texts);
	od_gguf_close(g);
	free(made);
	return 0;
}

/* A tokeniser's files made from GGUF metadata: ids are those of Hugging Face tokenizers, chat templates and end tokens
 * are the file's, and metadata that cannot be right is refused with the key. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/pack/gguf/gguf_tokenizer.h"
#include "common/text/tokenizer.h"
#include "tests/unit/gguf_metadata.h"
#include "tests/unit/temp_dir.h"

#define CASES "tests/golden/gguf_tokenizer/cases.json"

static json_t *all;
static struct od_err err;

/* A model's vocabulary of make_cases.py, as metadata. */
static json_t *metadata_of(const char *model, const char *pre)
{
	static const char *const lists[][2] = { { "tokens", "tokenizer.ggml.tokens" },
						{ "types", "tokenizer.ggml.token_type" },
						{ "scores", "tokenizer.ggml.scores" },
						{ "merges", "tokenizer.ggml.merges" } };
	const json_t *from = json_object_get(all, model);
	json_t *m = json_pack("{s:s, s:s}", "general.architecture", "llama", "tokenizer.ggml.model", model);

	for (size_t i = 0; i < 4; i++)
		if (json_object_get(from, lists[i][0]) != NULL)
			json_object_set_new(m, lists[i][1], json_deep_copy(json_object_get(from, lists[i][0])));
	if (strcmp(model, "gpt2") == 0)
		json_object_set_new(m, "tokenizer.ggml.pre", json_string(pre));
	json_object_set_new(m, "tokenizer.ggml.add_bos_token", json_boolean(strcmp(model, "gpt2") != 0));
	if (strcmp(model, "gemma4") == 0) {
		json_object_set_new(m, "tokenizer.ggml.bos_token_id", json_integer(2));
		json_object_set_new(m, "tokenizer.ggml.eos_token_id", json_integer(1));
		json_object_set_new(m, "tokenizer.ggml.add_space_prefix", json_false());
	}
	return m;
}

/* A copy of a good model's metadata with one key changed; value NULL: without it. */
static json_t *changed(const char *model, const char *key, json_t *value)
{
	json_t *m = metadata_of(model, "qwen2");

	if (value != NULL)
		json_object_set_new(m, key, value);
	else
		json_object_del(m, key);
	return m;
}

static int make_bytes(struct od_gguf_texts *out, const char *bytes, size_t len)
{
	struct od_gguf *g;
	int rc;

	memset(&err, 0, sizeof(err));
	assert_int_equal(od_file_write_atomic(temp_path("m.gguf"), bytes, len, &err), OD_OK);
	rc = od_gguf_open(&g, temp_path("m.gguf"), &err);
	if (rc != OD_OK)
		fail_msg("%s", err.msg);
	rc = od_gguf_texts(g, out, &err);
	od_gguf_close(g);
	return rc;
}

/* Takes the metadata. */
static int make(struct od_gguf_texts *out, json_t *metadata)
{
	struct od_strbuf b = { 0 };
	int rc;

	gguf_make(&b, metadata);
	assert_false(b.failed);
	rc = make_bytes(out, b.text, b.len);
	od_strbuf_fini(&b);
	json_decref(metadata);
	return rc;
}

static void must_make(struct od_gguf_texts *out, json_t *metadata)
{
	if (make(out, metadata) != OD_OK)
		fail_msg("%s", err.msg);
}

static json_t *parsed(const char *text, size_t len)
{
	json_t *v;

	if (od_json_parse(text, len, "made", &v, &err) != OD_OK)
		fail_msg("%s", err.msg);
	return v;
}

/* ---- Ids ---- */

static void expect_ids(const struct od_tokenizer *t, const char *name, size_t i, const json_t *text, const json_t *want)
{
	int32_t *ids;
	size_t n;

	if (od_tokenizer_encode(t, json_string_value(text), json_string_length(text),
				OD_ENCODE_PARSE_SPECIAL | OD_ENCODE_ADD_SPECIAL, &ids, &n, &err) != OD_OK)
		fail_msg("%s, text %zu: %s", name, i, err.msg);
	if (n != json_array_size(want))
		fail_msg("%s, text %zu \"%s\": expected %zu ids, found %zu", name, i, json_string_value(text),
			 json_array_size(want), n);
	for (size_t k = 0; k < n; k++)
		if (ids[k] != json_integer_value(json_array_get(want, k)))
			fail_msg("%s, text %zu \"%s\": id %zu: expected %lld, found %d", name, i,
				 json_string_value(text), k, (long long)json_integer_value(json_array_get(want, k)),
				 ids[k]);
	free(ids);
}

static void ids_are_those_of_tokenizers(void **state)
{
	static const char *const models[] = { "gpt2", "llama", "gemma4" };
	const json_t *texts = json_object_get(all, "texts");
	size_t n_models = 0;

	(void)state;
	for (size_t m = 0; m < 3; m++) {
		json_t *by_pre = json_object_get(json_object_get(all, models[m]), "ids"), *ids, *text;
		const char *pre;
		size_t i;

		json_object_foreach(by_pre, pre, ids)
		{
			struct od_gguf_texts made;
			struct od_tokenizer *t;

			must_make(&made, metadata_of(models[m], pre));
			if (od_tokenizer_parse(&t, OD_TOKENIZER_JSON, made.tokenizer.text, made.tokenizer.len, NULL,
					       pre, &err) != OD_OK)
				fail_msg("%s", err.msg);
			json_array_foreach(texts, i, text) expect_ids(t, pre, i, text, json_array_get(ids, i));
			od_tokenizer_free(t);
			od_gguf_texts_fini(&made);
			n_models++;
		}
	}
	assert_int_equal(n_models, 18);
}

/* ---- Templates and end tokens ---- */

static void templates_and_ends_are_the_files(void **state)
{
	static const char text[] = "{% for m in messages %}<|im_start|>\"\n\t{{ m }}<|im_end|>{% endfor %}";
	struct od_gguf_texts made;
	json_t *m = metadata_of("gpt2", "qwen2"), *config, *generation, *list;

	(void)state;
	json_object_set_new(m, "tokenizer.chat_template", json_string(text));
	json_object_set_new(m, "tokenizer.ggml.eos_token_id", json_integer(340));
	json_object_set_new(m, "tokenizer.ggml.bos_token_id", json_integer(340));
	must_make(&made, json_incref(m));
	config = parsed(made.config.text, made.config.len);
	generation = parsed(made.generation.text, made.generation.len);
	assert_string_equal(json_string_value(json_object_get(config, "chat_template")), text);
	assert_string_equal(json_string_value(json_object_get(config, "eos_token")), "<|endoftext|>");
	assert_true(json_is_false(json_object_get(config, "add_bos_token")));
	list = json_object_get(generation, "eos_token_id");
	assert_int_equal(json_array_size(list), 2); /* the template ends turns with <|im_end|> */
	assert_int_equal(json_integer_value(json_array_get(list, 0)), 340);
	assert_int_equal(json_integer_value(json_array_get(list, 1)), 342);
	json_decref(config);
	json_decref(generation);
	od_gguf_texts_fini(&made);

	json_object_set_new(m, "tokenizer.chat_templates", json_pack("[s]", "tool_use"));
	json_object_set_new(m, "tokenizer.chat_template.tool_use", json_string("tools"));
	json_object_set_new(m, "tokenizer.ggml.eot_token_id", json_integer(341));
	json_object_set_new(m, "tokenizer.ggml.eom_token_id", json_integer(343));
	must_make(&made, m);
	config = parsed(made.config.text, made.config.len);
	generation = parsed(made.generation.text, made.generation.len);
	list = json_object_get(config, "chat_template");
	assert_int_equal(json_array_size(list), 2);
	assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "name")), "default");
	assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "template")), text);
	assert_string_equal(json_string_value(json_object_get(json_array_get(list, 1), "name")), "tool_use");
	assert_string_equal(json_string_value(json_object_get(json_array_get(list, 1), "template")), "tools");
	assert_int_equal(json_array_size(json_object_get(generation, "eos_token_id")), 4);
	json_decref(config);
	json_decref(generation);
	od_gguf_texts_fini(&made);
}

static void expect_in(const struct od_strbuf *text, const char *says)
{
	if (strstr(od_strbuf_text(text), says) == NULL)
		fail_msg("expected %s in %s", says, od_strbuf_text(text));
}

/* Metadata do not say all that published tokenisers have. */
static void some_follows_from_names_and_sizes(void **state)
{
	static const char *const whole[] = { "glm4", "chatglm-bpe", "llama-bpe" };
	struct od_gguf_texts made;
	json_t *m, *tokens, *types;
	char name[24];

	(void)state;
	for (int i = 0; i < 2; i++) {
		m = changed("gpt2", "tokenizer.ggml.pre", i == 0 ? NULL : json_string("default"));
		json_object_set_new(m, "general.architecture", json_string("qwen3moe"));
		must_make(&made, m);
		expect_in(&made.tokenizer, "\"normalizer\":{\"type\":\"NFC\"}");
		expect_in(&made.tokenizer, "\\\\p{N}| ?");
		od_gguf_texts_fini(&made);
	}
	for (size_t i = 0; i < 3; i++) {
		must_make(&made, changed("gpt2", "tokenizer.ggml.pre", json_string(whole[i])));
		expect_in(&made.tokenizer, "\"ignore_merges\":true");
		od_gguf_texts_fini(&made);
	}
	m = changed("gpt2", "tokenizer.ggml.pre", json_string("minimax-m2"));
	must_make(&made, json_incref(m));
	expect_in(&made.tokenizer, "\"normalizer\":null");
	od_gguf_texts_fini(&made);
	tokens = json_object_get(m, "tokenizer.ggml.tokens");
	types = json_object_get(m, "tokenizer.ggml.token_type");
	for (size_t i = json_array_size(tokens); i < 200000; i++) {
		snprintf(name, sizeof(name), "[PAD%zu]", i);
		json_array_append_new(tokens, json_string(name));
		json_array_append_new(types, json_integer(5));
	}
	must_make(&made, m);
	expect_in(&made.tokenizer, "\"normalizer\":{\"type\":\"NFC\"}");
	od_gguf_texts_fini(&made);
	must_make(&made, changed("gemma4", "tokenizer.ggml.add_bos_token", json_false()));
	expect_in(&made.config, "\"add_bos_token\":true");
	od_gguf_texts_fini(&made);
}

static void generation_settings_come_along(void **state)
{
	struct od_gguf_texts made;
	json_t *m = metadata_of("gpt2", "gpt-2"), *found, *want;

	(void)state;
	json_object_set_new(m, "general.sampling.temp", json_real(0.6));
	json_object_set_new(m, "general.sampling.top_p", json_real(0.95));
	json_object_set_new(m, "general.sampling.top_k", json_integer(20));
	json_object_set_new(m, "general.sampling.penalty_repeat", json_real(1.05));
	json_object_set_new(m, "tokenizer.ggml.suppress_tokens", json_pack("[i, i]", 3, 9));
	json_object_set_new(m, "tokenizer.ggml.eos_token_id", json_integer(341));
	json_object_set_new(m, "tokenizer.ggml.eos_token_ids", json_pack("[i, i]", 341, 342)); /* Ollama's */
	must_make(&made, m);
	found = parsed(made.generation.text, made.generation.len);
	want = json_pack("{s:[i, i, i], s:f, s:f, s:f, s:i, s:b, s:[i, i]}", "eos_token_id", 341, 342, 340,
			 "temperature", 0.6, "top_p", 0.95, "repetition_penalty", 1.05, "top_k", 20, "do_sample", 1,
			 "suppress_tokens", 3, 9);
	assert_true(json_equal(found, want));
	json_decref(found);
	json_decref(want);
	od_gguf_texts_fini(&made);
}

static void a_model_may_have_none(void **state)
{
	static const char *const names[] = { "no_vocab", "none" };

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct od_gguf_texts made;

		must_make(&made, json_pack("{s:s, s:s}", "general.architecture", "qwen3moe", "tokenizer.ggml.model",
					   names[i]));
		assert_null(made.name);
		od_gguf_texts_fini(&made);
	}
}

/* ---- Refusals ---- */

static void expect_refused(json_t *metadata, int code, const char *says, const char *says_too)
{
	struct od_gguf_texts made;
	const int rc = make(&made, metadata);

	if (rc != code || strstr(err.msg, says) == NULL || strstr(err.msg, says_too) == NULL)
		fail_msg("expected %d with \"%s\" and \"%s\", found %d: %s", code, says, says_too, rc, err.msg);
	od_gguf_texts_fini(&made);
}

static json_t *with_item(const char *model, const char *key, size_t i, json_t *item)
{
	json_t *m = metadata_of(model, "qwen2");

	assert_int_equal(json_array_set_new(json_object_get(m, key), i, item), 0);
	return m;
}

static void wrong_metadata_is_refused(void **state)
{
	(void)state;
	expect_refused(changed("gpt2", "tokenizer.ggml.model", json_string("bert")), OD_ERR_UNSUPPORTED, "\"bert\"",
		       "gpt2, llama, gemma4");
	expect_refused(changed("gpt2", "tokenizer.ggml.pre", json_string("nobody")), OD_ERR_UNSUPPORTED, "\"nobody\"",
		       "deepseek-v3");
	expect_refused(changed("llama", "tokenizer.ggml.precompiled_charsmap", json_pack("[i]", 1)), OD_ERR_UNSUPPORTED,
		       "tokenizer.ggml.precompiled_charsmap", "expected none");
	expect_refused(changed("gpt2", "tokenizer.ggml.tokens", NULL), OD_ERR_MISSING, "tokenizer.ggml.tokens",
		       "array");
	expect_refused(changed("gpt2", "tokenizer.ggml.tokens", json_pack("[i]", 1)), OD_ERR_FORMAT,
		       "tokenizer.ggml.tokens", "string");
	expect_refused(changed("gpt2", "tokenizer.ggml.merges", NULL), OD_ERR_MISSING, "tokenizer.ggml.merges",
		       "array");
	expect_refused(changed("llama", "tokenizer.ggml.scores", NULL), OD_ERR_MISSING, "tokenizer.ggml.scores",
		       "array");
	expect_refused(changed("llama", "tokenizer.ggml.scores", json_pack("[f]", 1.0)), OD_ERR_FORMAT,
		       "tokenizer.ggml.scores", "414 tokens, found 1");
	expect_refused(changed("gpt2", "tokenizer.ggml.token_type", json_pack("[i]", 1)), OD_ERR_FORMAT,
		       "tokenizer.ggml.token_type", "347 tokens, found 1");
	expect_refused(with_item("gpt2", "tokenizer.ggml.token_type", 7, json_integer(9)), OD_ERR_UNSUPPORTED,
		       "token 7", "found 9");
	expect_refused(changed("gpt2", "tokenizer.ggml.eos_token_id", json_integer(347)), OD_ERR_RANGE,
		       "tokenizer.ggml.eos_token_id", "below 347, found 347");
	expect_refused(with_item("gpt2", "tokenizer.ggml.tokens", 9, json_string("a")), OD_ERR_FORMAT, "\"a\"",
		       "different tokens");
	expect_refused(with_item("gpt2", "tokenizer.ggml.merges", 3, json_string("q zz")), OD_ERR_FORMAT, "merge 3",
		       "\"q zz\"");
	expect_refused(with_item("gpt2", "tokenizer.ggml.merges", 3, json_string("t")), OD_ERR_FORMAT, "merge 3",
		       "\"t\"");
	expect_refused(changed("gpt2", "tokenizer.chat_templates", json_pack("[s]", "rag")), OD_ERR_MISSING,
		       "tokenizer.chat_template.rag", "string");
	expect_refused(changed("gpt2", "tokenizer.ggml.add_bos_token", json_integer(1)), OD_ERR_FORMAT,
		       "tokenizer.ggml.add_bos_token", "bool");
}

/* Replaces the first bytes that are `from`, which must be there. */
static void expect_bytes_refused(json_t *metadata, const char *from, const char *to, size_t len, const char *says)
{
	struct od_gguf_texts made;
	struct od_strbuf b = { 0 };
	char *at;

	gguf_make(&b, metadata);
	json_decref(metadata);
	at = memmem(b.text, b.len, from, len);
	assert_non_null(at);
	memcpy(at, to, len);
	assert_int_equal(make_bytes(&made, b.text, b.len), OD_ERR_FORMAT);
	if (strstr(err.msg, says) == NULL)
		fail_msg("expected \"%s\", found %s", says, err.msg);
	od_gguf_texts_fini(&made);
	od_strbuf_fini(&b);
}

static void bytes_that_are_no_text_are_refused(void **state)
{
	json_t *scores = with_item("llama", "tokenizer.ggml.scores", 300, json_real(-12345.0));
	const float score = -12345.0f;

	(void)state;
	expect_bytes_refused(metadata_of("gpt2", "qwen2"), "<think>", "<th\xffnk>", 7, "token 343");
	expect_bytes_refused(metadata_of("gpt2", "qwen2"), "<think>", "<th\0nk>", 7, "token 343");
	expect_bytes_refused(changed("gpt2", "tokenizer.chat_template", json_string("template!")), "template!",
			     "temp\xc3\x28te!", 9, "tokenizer.chat_template");
	expect_bytes_refused(scores, (const char *)&score, "\0\0\xc0\x7f", 4, "token 300");
}

/* ---- Files that are unusual but right ---- */

static void unusual_files_are_taken(void **state)
{
	struct od_gguf_texts made;
	struct od_tokenizer *t;
	json_t *m = changed("gpt2", "tokenizer.ggml.token_type", NULL);

	(void)state;
	json_object_set_new(m, "tokenizer.ggml.eos_token_id", json_integer(340)); /* then it is a control token */
	json_array_set_new(json_object_get(m, "tokenizer.ggml.tokens"), 346, json_string(""));
	must_make(&made, m);
	assert_int_equal(
		od_tokenizer_parse(&t, OD_TOKENIZER_JSON, made.tokenizer.text, made.tokenizer.len, NULL, "made", &err),
		OD_OK);
	assert_true(od_tokenizer_is_special(t, 340));
	assert_false(od_tokenizer_is_special(t, 341));
	od_tokenizer_free(t);
	od_gguf_texts_fini(&made);

	/* A hole in the ids in front of an added token. */
	m = with_item("gpt2", "tokenizer.ggml.token_type", 342, json_integer(5));
	json_array_set_new(json_object_get(m, "tokenizer.ggml.tokens"), 342, json_string("[PAD342]"));
	must_make(&made, m);
	assert_int_equal(
		od_tokenizer_parse(&t, OD_TOKENIZER_JSON, made.tokenizer.text, made.tokenizer.len, NULL, "made", &err),
		OD_OK);
	assert_int_equal(od_tokenizer_find(t, "[PAD342]"), -1);
	assert_int_equal(od_tokenizer_find(t, "<think>"), 343);
	od_tokenizer_free(t);
	od_gguf_texts_fini(&made);
}

/* So the converter calls it if a checkpoint has no tokenizer.model. In published tokenisers it is an added token. */
static void an_unknown_token_may_be_called_normal(void **state)
{
	struct od_gguf_texts made;
	struct od_tokenizer *t;
	json_t *text = json_string("<unk>"), *ids = json_pack("[i, i]", 1, 0);

	(void)state;
	must_make(&made, with_item("llama", "tokenizer.ggml.token_type", 0, json_integer(1)));
	assert_int_equal(
		od_tokenizer_parse(&t, OD_TOKENIZER_JSON, made.tokenizer.text, made.tokenizer.len, NULL, "made", &err),
		OD_OK);
	assert_true(od_tokenizer_is_special(t, 0));
	expect_ids(t, "llama", 0, text, ids);
	json_decref(text);
	json_decref(ids);
	od_tokenizer_free(t);
	od_gguf_texts_fini(&made);
}

static int set_up(void **state)
{
	if (od_json_load(CASES, 1u << 20, &all, &err) != OD_OK) {
		print_error("%s\n", err.msg);
		return -1;
	}
	return temp_dir_make(state);
}

static int tear_down(void **state)
{
	json_decref(all);
	return temp_dir_remove(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ids_are_those_of_tokenizers),
		cmocka_unit_test(templates_and_ends_are_the_files),
		cmocka_unit_test(wrong_metadata_is_refused),
		cmocka_unit_test(bytes_that_are_no_text_are_refused),
		cmocka_unit_test(unusual_files_are_taken),
		cmocka_unit_test(an_unknown_token_may_be_called_normal),
		cmocka_unit_test(a_model_may_have_none),
		cmocka_unit_test(some_follows_from_names_and_sizes),
		cmocka_unit_test(generation_settings_come_along),
	};

	return cmocka_run_group_tests_name("gguf_tokenizer", tests, set_up, tear_down);
}

/* Prompts that fill in the middle, as the models' own pages write them: tokenisers of tests/golden/tokenizer with the
 * tokens of each family. Users' text that looks like such a token stays text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/json.h"
#include "main-node/serve/api/fim_prompt.h"

#define MAX_TOKENS 8
#define MAX_IDS 512

/* Loads a tokeniser with these added tokens; special: whether they are. */
static struct od_tokenizer *load(const char *name, const char *const *token, bool special)
{
	char path[128];
	json_t *o, *added;
	struct od_tokenizer *t;
	struct od_err err;
	char *text;
	int id;

	snprintf(path, sizeof(path), "tests/golden/tokenizer/%s", name);
	assert_int_equal(od_tokenizer_load(&t, path, NULL), OD_OK);
	id = (int)od_tokenizer_vocab(t);
	od_tokenizer_free(t);
	o = json_load_file(path, 0, NULL);
	added = json_object_get(o, "added_tokens");
	assert_non_null(added);
	for (size_t i = 0; token[i] != NULL; i++)
		json_array_append_new(added, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", id++, "content",
						       token[i], "single_word", 0, "lstrip", 0, "rstrip", 0,
						       "normalized", 0, "special", special));
	text = json_dumps(o, 0);
	if (od_tokenizer_parse(&t, OD_TOKENIZER_JSON, text, strlen(text), NULL, name, &err) != OD_OK)
		fail_msg("%s", err.msg);
	free(text);
	json_decref(o);
	return t;
}

/* Expected ids: a token's name in braces, else a text; "^" is what stands before every text. */
static size_t by_hand(const struct od_tokenizer *t, const char *const *part, int32_t ids[MAX_IDS])
{
	size_t n = 0;

	for (; *part != NULL; part++) {
		const size_t len = strlen(*part);
		char name[64] = "";
		int32_t *piece;
		size_t n_piece;

		if (**part == '{') {
			memcpy(name, *part + 1, len - 2);
			ids[n] = od_tokenizer_find(t, name);
			assert_true(ids[n++] >= 0);
			continue;
		}
		assert_int_equal(od_tokenizer_encode(t, *part, strcmp(*part, "^") == 0 ? 0 : len,
						     strcmp(*part, "^") == 0 ? OD_ENCODE_ADD_SPECIAL : 0, &piece,
						     &n_piece, NULL),
				 OD_OK);
		assert_true(n + n_piece <= MAX_IDS);
		memcpy(ids + n, piece, n_piece * sizeof(*ids));
		n += n_piece;
		free(piece);
	}
	return n;
}

static void check(const struct od_tokenizer *t, const struct odm_fim_parts *parts, const char *const *expected)
{
	struct odm_fim *f;
	struct odm_fim_prompt p;
	struct odm_api_error e;
	int32_t ids[MAX_IDS];
	const size_t n = by_hand(t, expected, ids);

	if (odm_fim_new(&f, t, "suffix", &e) != OD_OK || odm_fim_make(&p, f, parts, &e) != OD_OK)
		fail_msg("%s", e.message);
	assert_int_equal(p.n, n);
	assert_memory_equal(p.ids, ids, n * sizeof(*ids));
	if (parts->prefix != NULL) {
		const char *const prefix[] = { parts->prefix, NULL };

		assert_int_equal(p.end - p.begin, by_hand(t, prefix, ids));
		assert_memory_equal(p.ids + p.begin, ids, (p.end - p.begin) * sizeof(*ids));
	}
	odm_fim_prompt_fini(&p);
	odm_fim_free(f);
}

static const char prefix[] = "def add(a, b):\n    return ", suffix[] = "\n\nprint(add(1, 2))\n";

static struct odm_fim_parts two(void)
{
	return (struct odm_fim_parts){
		.prefix = prefix, .prefix_len = strlen(prefix), .suffix = suffix, .suffix_len = strlen(suffix)
	};
}

static void each_family_has_its_order(void **state)
{
	static const struct {
		const char *file, *token[MAX_TOKENS], *expected[8];
		bool special;
	} family[] = {
		{ "tok_qwen3.json",
		  { "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>" },
		  { "^", "{<|fim_prefix|>}", prefix, "{<|fim_suffix|>}", suffix, "{<|fim_middle|>}" },
		  false },
		{ "tok_gpt2.json",
		  { "<fim_prefix>", "<fim_middle>", "<fim_suffix>" },
		  { "^", "{<fim_prefix>}", prefix, "{<fim_suffix>}", suffix, "{<fim_middle>}" },
		  false },
		{ "tok_deepseek_v3.json",
		  { "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>" },
		  { "^", "{<｜fim▁begin｜>}", prefix, "{<｜fim▁hole｜>}", suffix, "{<｜fim▁end｜>}" },
		  false },
		{ "tok_llama3.json",
		  { "<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>" },
		  { "^", "{<|code_prefix|>}", prefix, "{<|code_suffix|>}", suffix, "{<|code_middle|>}" },
		  true },
		{ "tok_mixtral.json",
		  { "▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>" },
		  { "^", "{▁<PRE>}", prefix, "{▁<SUF>}", suffix, "{▁<MID>}" },
		  true },
		{ "tok_mixtral.json",
		  { "[PREFIX]", "[MIDDLE]", "[SUFFIX]" },
		  { "^", "{[SUFFIX]}", suffix, "{[PREFIX]}", prefix },
		  true },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(family) / sizeof(family[0]); i++) {
		struct od_tokenizer *t = load(family[i].file, family[i].token, family[i].special);
		const struct odm_fim_parts parts = two();

		check(t, &parts, family[i].expected);
		od_tokenizer_free(t);
	}
}

static const char *const qwen[] = {
	"<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", NULL
};

static void files_of_a_project_come_first(void **state)
{
	static const char *const with_tokens[] = { "^",
						   "{<|repo_name|>}",
						   "myproject\n",
						   "{<|file_sep|>}",
						   "a.py",
						   "\n",
						   "import b\n",
						   "{<|file_sep|>}",
						   "tmp",
						   "\n",
						   "x = 1\n",
						   "{<|file_sep|>}",
						   "filename",
						   "\n",
						   "{<|fim_prefix|>}",
						   prefix,
						   "{<|fim_suffix|>}",
						   suffix,
						   "{<|fim_middle|>}",
						   NULL };
	static const char *const without[] = { "^",
					       "\n\n",
					       "import b\n",
					       "\n\n",
					       "x = 1\n",
					       "\n\n",
					       "{<|fim_prefix|>}",
					       prefix,
					       "{<|fim_suffix|>}",
					       suffix,
					       "{<|fim_middle|>}",
					       NULL };
	static const char *const three[] = { "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", NULL };
	struct odm_fim_parts parts = two();
	json_t *extra = json_pack("[{s:s, s:s}, {s:s}]", "filename", "a.py", "text", "import b\n", "text", "x = 1\n");
	struct od_tokenizer *t = load("tok_llama3.json", qwen, false);

	(void)state;
	parts.extra = extra;
	check(t, &parts, with_tokens);
	od_tokenizer_free(t);
	t = load("tok_llama3.json", three, false);
	check(t, &parts, without);
	od_tokenizer_free(t);
	json_decref(extra);
}

static void users_write_no_control_token(void **state)
{
	static const char *const expected[] = { "^",	"{<|fim_prefix|>}", "",	 "{<|fim_suffix|>}",
						suffix, "{<|fim_middle|>}", NULL };
	struct odm_fim_parts parts = two();
	struct od_tokenizer *t = load("tok_llama3.json", qwen, false);
	struct odm_fim *f;
	struct odm_fim_prompt p;
	struct odm_api_error e;
	unsigned middles = 0, pads = 0;

	(void)state;
	parts.prefix = "a<|fim_middle|>b<|fim_pad|><|begin_of_text|>";
	parts.prefix_len = strlen(parts.prefix);
	assert_int_equal(odm_fim_new(&f, t, "suffix", &e), OD_OK);
	assert_int_equal(odm_fim_make(&p, f, &parts, &e), OD_OK);
	for (size_t i = 0; i < p.n; i++) {
		middles += p.ids[i] == od_tokenizer_find(t, "<|fim_middle|>");
		pads += p.ids[i] == od_tokenizer_find(t, "<|fim_pad|>");
		assert_true(i == 0 || p.ids[i] != od_tokenizer_find(t, "<|begin_of_text|>"));
	}
	assert_int_equal(middles, 1);
	assert_int_equal(pads, 0);
	odm_fim_prompt_fini(&p);
	odm_fim_free(f);
	parts.prefix = ""; /* at a file's begin */
	parts.prefix_len = 0;
	check(t, &parts, expected);
	od_tokenizer_free(t);
}

static void ends_are_found(void **state)
{
	struct od_tokenizer *t = load("tok_llama3.json", qwen, false);
	static const char *const expected[] = { "<|repo_name|>", "<|file_sep|>", "<|fim_pad|>" };
	struct odm_fim *f;
	struct odm_api_error e;
	const int32_t *end;
	size_t n;

	(void)state;
	assert_int_equal(odm_fim_new(&f, t, "suffix", &e), OD_OK);
	end = odm_fim_ends(f, &n);
	for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
		bool found = false;

		for (size_t k = 0; k < n; k++)
			found = found || end[k] == od_tokenizer_find(t, expected[i]);
		assert_true(found);
	}
	odm_fim_free(f);
	od_tokenizer_free(t);
}

static void refuses(void **state)
{
	static const char *const some[] = { "<|fim_prefix|>", "<fim_suffix>", "<|fim_middle|>", NULL };
	struct odm_fim_parts parts = two();
	struct od_tokenizer *t = load("tok_llama3.json", some, true);
	json_t *extra;
	struct odm_fim *f;
	struct odm_fim_prompt p;
	struct odm_api_error e;

	(void)state;
	assert_int_equal(odm_fim_new(&f, t, "suffix", &e), OD_ERR_UNSUPPORTED);
	assert_null(f);
	assert_true(e.status == 400 && strcmp(e.param, "suffix") == 0 && strstr(e.message, "<|fim_prefix|>") != NULL);
	od_tokenizer_free(t);
	assert_int_equal(odm_fim_new(&f, NULL, "suffix", &e), OD_ERR_UNSUPPORTED);
	t = load("tok_llama3.json", qwen, false);
	assert_int_equal(odm_fim_new(&f, t, "suffix", &e), OD_OK);
	extra = json_pack("[{s:s}, {s:i}]", "text", "a", "text", 3);
	parts.extra = extra;
	assert_int_equal(odm_fim_make(&p, f, &parts, &e), OD_ERR_FORMAT);
	assert_string_equal(e.param, "input_extra[1].text");
	assert_null(p.ids);
	json_decref(extra);
	extra = json_pack("[{s:s, s:i}]", "text", "a", "filename", 3);
	parts.extra = extra;
	assert_int_equal(odm_fim_make(&p, f, &parts, &e), OD_ERR_FORMAT);
	assert_string_equal(e.param, "input_extra[0].filename");
	json_decref(extra);
	odm_fim_free(f);
	od_tokenizer_free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_family_has_its_order),
		cmocka_unit_test(files_of_a_project_come_first),
		cmocka_unit_test(users_write_no_control_token),
		cmocka_unit_test(ends_are_found),
		cmocka_unit_test(refuses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

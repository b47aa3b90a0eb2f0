/* Normalisers and pre-tokenisers on characters of every kind against Hugging Face tokenizers
 * (tests/golden/tokenizer/make_unicode.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/json.h"
#include "common/text/tok_internal.h"
#include "common/text/tok_unicode.h"

static void check_normalizer(const json_t *step, const json_t *text, const json_t *want)
{
	struct tok_norms norms = { 0 };
	struct tok_buf out = { 0 };
	struct od_err err;
	bool dropped;

	assert_int_equal(tok_norms_parse(&norms, step, "test", &err), OD_OK);
	assert_int_equal(tok_norms_run(&norms, json_string_value(text), json_string_length(text), true, &out, NULL,
				       &dropped, &err),
			 OD_OK);
	if (out.len != json_string_length(want) || memcmp(out.data, json_string_value(want), out.len) != 0)
		fail_msg("%s: \"%s\" is something else", json_string_value(json_object_get(step, "type")),
			 json_string_value(text));
	tok_buf_fini(&out);
	tok_norms_fini(&norms);
}

static void check_pre_tokenizer(const json_t *step, const json_t *text, const json_t *want)
{
	struct tok_pres pres = { 0 };
	struct tok_pieces pieces = { 0 };
	struct od_err err;
	bool same;

	assert_int_equal(tok_pres_parse(&pres, step, "test", &err), OD_OK);
	assert_int_equal(tok_pieces_add(&pieces, json_string_value(text), json_string_length(text), -1, true), OD_OK);
	assert_int_equal(tok_pres_run(&pres, &pieces, &err), OD_OK);
	same = pieces.n == json_array_size(want);
	for (size_t i = 0; same && i < pieces.n; i++) {
		const json_t *w = json_array_get(want, i);

		same = pieces.v[i].len == json_string_length(w) &&
		       memcmp(pieces.text.data + pieces.v[i].at, json_string_value(w), pieces.v[i].len) == 0;
	}
	if (!same)
		fail_msg("%s: \"%s\" is cut otherwise", json_string_value(json_object_get(step, "type")),
			 json_string_value(text));
	tok_pieces_fini(&pieces);
	tok_pres_fini(&pres);
}

static void every_kind(void **state)
{
	json_t *golden = json_load_file("tests/golden/tokenizer/unicode.json", JSON_ALLOW_NUL, NULL), *entry, *text;
	size_t i, k, n = 0;

	(void)state;
	tok_classes_init();
	json_array_foreach(json_object_get(golden, "parts"), i, entry)
	{
		const json_t *made = json_object_get(entry, "made"), *step = json_object_get(entry, "normalizer");

		json_array_foreach(json_object_get(golden, "texts"), k, text)
		{
			if (step != NULL)
				check_normalizer(step, text, json_array_get(made, k));
			else
				check_pre_tokenizer(json_object_get(entry, "pre_tokenizer"), text,
						    json_array_get(made, k));
			n++;
		}
	}
	assert_int_equal(n, 580);
	json_decref(golden);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_kind),
	};

	return cmocka_run_group_tests_name("tok_unicode", tests, NULL, NULL);
}

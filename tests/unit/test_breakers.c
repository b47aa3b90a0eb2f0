/* The tokens of DRY's breakers against those that Hugging Face tokenizers gives (tests/golden/tokenizer). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/base/json.h"
#include "common/text/breakers.h"

#define FOLDER "tests/golden/tokenizer/"
#define MAX_TEXTS 8

static void check_case(const json_t *c, uint32_t vocab)
{
	const json_t *texts = json_object_get(c, "texts"), *want = json_object_get(c, "breakers");
	const char *text[MAX_TEXTS];
	struct od_tokenizer *t;
	char path[200];
	int32_t *found;
	size_t n;

	assert_in_range(json_array_size(texts), 1, MAX_TEXTS);
	for (size_t i = 0; i < json_array_size(texts); i++)
		text[i] = json_string_value(json_array_get(texts, i));
	snprintf(path, sizeof(path), FOLDER "%s.json", json_string_value(json_object_get(c, "tokenizer")));
	assert_int_equal(od_tokenizer_load(&t, path, NULL), OD_OK);
	assert_int_equal(od_breakers_find(&found, &n, t, vocab, text, json_array_size(texts), NULL), OD_OK);
	if (vocab == UINT32_MAX) {
		assert_int_equal(n, json_array_size(want));
		for (size_t i = 0; i < n; i++)
			assert_int_equal(found[i], json_integer_value(json_array_get(want, i)));
	} else { /* none has a token from there on */
		assert_true(n <= json_array_size(want));
		for (size_t i = 0; i < n; i += 1 + (size_t)found[i])
			for (size_t k = i + 1; k <= i + (size_t)found[i]; k++)
				assert_in_range(found[k], 0, vocab - 1);
	}
	free(found);
	od_tokenizer_free(t);
}

static void against_golden(void **state)
{
	json_t *root, *cases, *c;
	struct od_err err;
	size_t i;

	(void)state;
	assert_int_equal(od_json_load(FOLDER "breakers.json", 1 << 20, &root, &err), OD_OK);
	assert_int_equal(od_json_arr(root, "cases", &cases, "golden", &err), OD_OK);
	assert_true(json_array_size(cases) >= 18);
	json_array_foreach(cases, i, c)
	{
		check_case(c, UINT32_MAX);
		if (json_array_size(json_object_get(c, "breakers")) > 0)
			check_case(c, 100);
	}
	json_decref(root);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(against_golden),
	};

	return cmocka_run_group_tests_name("breakers", tests, NULL, NULL);
}

/* The memory of calls: what it gives back, and what it forgets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "main-node/serve/api/call_memory.h"

/* Expected: NULL: nothing. */
static void assert_got(struct odm_call_memory *m, const char *id, const char *input, const char *expected)
{
	json_t *v = json_loads(input, 0, NULL);
	char *got;

	assert_non_null(v);
	got = odm_call_memory_get(m, id, v);
	if (expected == NULL)
		assert_null(got);
	else
		assert_string_equal(got != NULL ? got : "(nothing)", expected);
	free(got);
	json_decref(v);
}

static void test_values(void **state)
{
	static const char text[] =
		"{ \"b\":1.50,\"a\": [1.0, 2, \"\\u00e9\", null, true],  \"c\":{\"d\": 12345678901234567890}}";
	struct odm_call_memory *m = odm_call_memory_new(100, 1000);

	(void)state;
	odm_call_memory_put(m, "x", text);
	assert_got(m, "x", "{\"b\":1.5,\"a\":[1,2.0,\"\u00e9\",null,true],\"c\":{\"d\":12345678901234567890.0}}", text);
	assert_got(m, "x", "{\"a\":[1,2,\"\u00e9\",null,true],\"b\":1.5,\"c\":{\"d\":12345678901234567890.0}}", text);
	assert_got(m, "y", "{}", NULL);
	assert_got(m, "x", "{}", NULL);
	assert_got(m, "x", "{\"b\":1.6,\"a\":[1,2,\"\u00e9\",null,true],\"c\":{\"d\":12345678901234567890.0}}", NULL);
	assert_got(m, "x", "{\"b\":1.5,\"a\":[1,2,\"\u00e9\",null,false],\"c\":{\"d\":12345678901234567890.0}}", NULL);
	assert_got(m, "x", "{\"b\":1.5,\"a\":[1,2,\"\u00e9\",null],\"c\":{\"d\":12345678901234567890.0}}", NULL);
	assert_got(m, "x", "{\"b\":1.5,\"a\":[1,2,\"\u00e9\",null,true],\"c\":{\"e\":12345678901234567890.0}}", NULL);
	assert_got(NULL, "x", "{}", NULL);
	odm_call_memory_free(m);
	odm_call_memory_free(NULL);
}

static void test_nothing_hidden_comes_back(void **state)
{
	struct odm_call_memory *m = odm_call_memory_new(100, 1000);

	(void)state;
	odm_call_memory_put(m, "x", "{\"a\":\"do harm\",\"a\":1}");
	odm_call_memory_put(m, "y", "{\"n\":12345678901234567890,\"a\":{\"b\":0,\"b\":1}}");
	assert_got(m, "x", "{\"a\":1}", NULL);
	assert_got(m, "y", "{\"n\":12345678901234567890.0,\"a\":{\"b\":1}}", NULL);
	odm_call_memory_free(m);
}

static void test_the_newest_of_an_id(void **state)
{
	struct odm_call_memory *m = odm_call_memory_new(100, 1000);

	(void)state;
	odm_call_memory_put(m, "x", "{ }");
	odm_call_memory_put(m, "y", "{  }");
	odm_call_memory_put(m, "x", "{   }");
	assert_got(m, "x", "{}", "{   }");
	assert_got(m, "y", "{}", "{  }");
	odm_call_memory_free(m);
}

/* Puts n calls; how many of them are remembered, which must be the newest. */
static size_t put_many(struct odm_call_memory *m, int n)
{
	size_t kept = 0;
	char id[16];

	for (int i = 0; i < n; i++) {
		snprintf(id, sizeof(id), "id %04d", i);
		odm_call_memory_put(m, id, "{}");
	}
	for (int i = 0; i < n; i++) {
		json_t *empty = json_object();
		char *got;

		snprintf(id, sizeof(id), "id %04d", i);
		got = odm_call_memory_get(m, id, empty);
		assert_true(got != NULL || kept == 0);
		kept += got != NULL;
		free(got);
		json_decref(empty);
	}
	return kept;
}

static void test_the_oldest_go_first(void **state)
{
	struct odm_call_memory *few = odm_call_memory_new(10, 1000), *small = odm_call_memory_new(1000, 95);

	(void)state;
	assert_int_equal(put_many(few, 9), 9);
	assert_int_equal(put_many(few, 1000), 10);
	assert_int_equal(put_many(small, 1000), 10); /* 9 bytes each */
	odm_call_memory_put(small, "id 0999", "{        }"); /* 8 more: one must go */
	assert_got(small, "id 0990", "{}", NULL);
	assert_got(small, "id 0991", "{}", "{}");
	assert_got(small, "id 0999", "{}", "{        }");
	odm_call_memory_put(
		small, "big",
		"{                                                                                            }");
	assert_got(small, "big", "{}", NULL);
	assert_got(small, "id 0999", "{}", NULL);
	assert_int_equal(put_many(small, 1000), 10);
	odm_call_memory_free(few);
	odm_call_memory_free(small);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_nothing_hidden_comes_back),
		cmocka_unit_test(test_the_newest_of_an_id),
		cmocka_unit_test(test_the_oldest_go_first),
	};

	return cmocka_run_group_tests_name("call memory", tests, NULL, NULL);
}

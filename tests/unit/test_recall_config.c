/* The lists of od-bench recall, and the refusals of wrong ones. */
#include "tests/bench/live/recall_config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const char *const colours[] = { "red", "green", "blue-64", NULL };

static void assert_says(const struct od_err *err, const char *words)
{
	if (strstr(err->msg, words) == NULL)
		fail_msg("expected \"%s\" in: %s", words, err->msg);
}

static void lists_of_names(void **state)
{
	int out[OD_LIST_MAX];
	struct od_err err;
	size_t n;

	(void)state;
	assert_int_equal(od_list_choices("colour", "blue-64,red", colours, out, &n, &err), OD_OK);
	assert_int_equal(n, 2);
	assert_int_equal(out[0], 2);
	assert_int_equal(out[1], 0);
	assert_int_equal(od_list_choices("colour", "green", colours, out, &n, &err), OD_OK);
	assert_int_equal(n, 1);
	assert_int_equal(od_list_choices("colour", "green,mauve", colours, out, &n, &err), OD_ERR_ARG);
	assert_int_equal(n, 0);
	assert_says(&err, "--colour: found \"mauve\"");
	assert_says(&err, "red, green, blue-64");
	assert_int_equal(od_list_choices("colour", "red,", colours, out, &n, &err), OD_ERR_ARG);
	assert_says(&err, "found \"\"");
	assert_int_equal(od_list_choices("colour", "", colours, out, &n, &err), OD_ERR_ARG);
	assert_int_equal(od_list_choices("colour", "red,red", colours, out, &n, &err), OD_ERR_ARG);
	assert_says(&err, "\"red\" is listed twice");
	assert_int_equal(od_list_choices("colour", "Red", colours, out, &n, &err), OD_ERR_ARG);
}

static void lists_of_numbers(void **state)
{
	static char longest[5000], many[2 * OD_LIST_MAX + 2];
	uint64_t out[OD_LIST_MAX];
	struct od_err err;
	size_t n;

	(void)state;
	assert_int_equal(od_list_numbers("most", "16,1,4", 1, 16, out, &n, &err), OD_OK);
	assert_int_equal(n, 3);
	assert_int_equal(out[0], 16);
	assert_int_equal(out[1], 1);
	assert_int_equal(out[2], 4);
	assert_int_equal(od_list_numbers("most", "1,17", 1, 16, out, &n, &err), OD_ERR_ARG);
	assert_says(&err, "--most");
	assert_says(&err, "17");
	assert_int_equal(od_list_numbers("most", "1,,2", 1, 16, out, &n, &err), OD_ERR_ARG);
	for (size_t i = 0; i < OD_LIST_MAX; i++)
		memcpy(many + 2 * i, "1,", 2);
	many[2 * OD_LIST_MAX - 1] = '\0';
	assert_int_equal(od_list_numbers("most", many, 1, 16, out, &n, &err), OD_OK);
	assert_int_equal(n, OD_LIST_MAX);
	memcpy(many + 2 * OD_LIST_MAX - 1, ",1", 3);
	assert_int_equal(od_list_numbers("most", many, 1, 16, out, &n, &err), OD_ERR_ARG);
	assert_says(&err, "at most 32");
	memset(longest, '1', sizeof(longest) - 1);
	assert_int_equal(od_list_numbers("most", longest, 1, 16, out, &n, &err), OD_ERR_ARG);
	assert_says(&err, "less than 4096");
}

static void lists_of_alignments(void **state)
{
	static const char *const bad[] = { "T1",      "T1KV1",	    "T_KV1",
					   "T1_KV",   "t1_KV1",	    "T1_KV1x",
					   "T-1_KV1", "T1_KV1,",    "T1_KV1000001",
					   "T 1_KV1", "T1_KV1_KV2", "T11111111111111111111111111_KV1",
					   "" };
	struct recall_align out[OD_LIST_MAX];
	char many[OD_LIST_MAX * 12] = "";
	struct od_err err;
	size_t n;

	(void)state;
	assert_int_equal(recall_parse_align("align", "T1_KV16,T0_KV0", out, &n, &err), OD_OK);
	assert_int_equal(n, 2);
	assert_int_equal(out[0].token, 1);
	assert_int_equal(out[0].kv, 16);
	assert_int_equal(out[1].token, 0);
	assert_int_equal(out[1].kv, 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(recall_parse_align("align", bad[i], out, &n, &err), OD_ERR_ARG);
		assert_says(&err, "T<i>_KV<j>");
	}
	assert_int_equal(recall_parse_align("align", "T1_KV1,T2_KV2,T1_KV1", out, &n, &err), OD_ERR_ARG);
	assert_says(&err, "\"T1_KV1\" is listed twice");
	for (int i = 0; i <= OD_LIST_MAX; i++)
		snprintf(many + strlen(many), sizeof(many) - strlen(many), "%sT%d_KV1", i > 0 ? "," : "", i);
	assert_int_equal(recall_parse_align("align", many, out, &n, &err), OD_ERR_ARG);
	assert_says(&err, "at most 32");
}

static void configurations_stand_once(void **state)
{
	static struct recall_configs c;
	const struct od_shadow_choice int8 = { OD_PRECISION_INT8, OD_PRECISION_INT8, OD_ACT_F32, OD_FORM_PLAIN };
	const struct od_shadow_choice mixed = { OD_PRECISION_INT8, OD_PRECISION_BF16, OD_ACT_F32, OD_FORM_PLAIN };
	const struct recall_align a = { 1, 4 };
	struct od_err err;

	(void)state;
	assert_int_equal(recall_add_shadow(&c, &int8, a, &err), OD_OK);
	assert_int_equal(recall_add_predictor(&c, "next-gate", &err), OD_OK);
	assert_int_equal(recall_add_shadow(&c, &int8, a, &err), OD_OK);
	assert_int_equal(recall_add_shadow(&c, &mixed, a, &err), OD_OK);
	assert_int_equal(c.n, 3);
	assert_string_equal(c.config[0].name, "int8 T1_KV4");
	assert_int_equal(recall_find(&c, "next-gate"), 1);
	assert_int_equal(recall_find(&c, "int8+bf16 T1_KV4"), 2);
	assert_int_equal(recall_find(&c, "int8+bf16 T1_KV1"), -1);
	assert_int_equal(recall_find_shadow(&c, "int8+bf16", a), 2);
	assert_int_equal(recall_find_shadow(&c, "nf4", a), -1);
	assert_string_equal(c.config[1].group, "rivals");
	assert_string_equal(c.config[2].group, "int8+bf16");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lists_of_names),
		cmocka_unit_test(lists_of_numbers),
		cmocka_unit_test(lists_of_alignments),
		cmocka_unit_test(configurations_stand_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Expected text is written by hand; JSON is read back with jansson. */
#include "tests/bench/report/bench_table.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The cmocka of Debian 12 compares float only. */
#define assert_close(found, expected, within) assert_true(fabs((found) - (expected)) <= (within))

static const struct od_column columns[] = {
	{ "task", "task", 0 },
	{ "tokens", "tokens", 0 },
	{ "recall", "recall", 3 },
};

static struct od_report *make(void)
{
	struct od_report *r;
	struct od_table *t;

	assert_int_equal(od_report_new(&r, "Recall", NULL), 0);
	od_report_fact(r, "read_gbps_median", "bandwidth", OD_REAL(41.26), 1, "GB/s");
	od_report_fact(r, "n", "n", OD_INT(-3), 0, NULL);
	od_report_fact(r, "lost", "lost", OD_REAL(NAN), 1, NULL);
	t = od_report_table(r, "tasks", "by task", columns, 3);
	od_table_row(t, (struct od_cell[]){ OD_TEXT("märchen"), OD_INT(1024), OD_REAL(0.98765) });
	od_table_row(t, (struct od_cell[]){ OD_TEXT("a \"b\""), OD_INT(7), OD_NONE });
	od_report_fact(r, "size_bytes", "size", OD_BYTES(3u << 19), 0, NULL);
	od_report_fact(r, "unseen", NULL, OD_INT(77), 0, NULL);
	od_report_fact(r, "note", "note", OD_TEXT("kept"), 0, NULL);
	t = od_report_detail(r, "every_task", columns, 3);
	od_table_row(t, (struct od_cell[]){ OD_TEXT("hidden"), OD_INT(1025), OD_REAL(0.5) });
	return r;
}

static char *print(bool json)
{
	struct od_report *r = make();
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);

	assert_non_null(f);
	assert_int_equal(od_report_print(r, f, json, NULL), 0);
	fclose(f);
	od_report_free(r);
	return text;
}

static void text_lines_up(void **state)
{
	char *text = print(false);

	(void)state;
	assert_string_equal(text, "Recall\n"
				  "  bandwidth  41.3 GB/s\n"
				  "  n          -3\n"
				  "  lost       -\n"
				  "\n"
				  "by task\n"
				  "  task     tokens  recall\n"
				  "  -----------------------\n"
				  "  märchen    1024   0.988\n"
				  "  a \"b\"         7       -\n"
				  "\n"
				  "  size  1.5 MiB\n"
				  "  note  kept\n");
	free(text);
}

static void json_has_the_same_figures(void **state)
{
	char *text = print(true);
	json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL), *tasks, *first, *second;

	(void)state;
	assert_non_null(root);
	assert_int_equal(json_object_size(root), 8);
	assert_close(json_real_value(json_object_get(root, "read_gbps_median")), 41.26, 1e-12);
	assert_int_equal(json_integer_value(json_object_get(root, "n")), -3);
	assert_true(json_is_null(json_object_get(root, "lost")));
	assert_int_equal(json_integer_value(json_object_get(root, "size_bytes")), 1572864);
	assert_string_equal(json_string_value(json_object_get(root, "note")), "kept");
	assert_int_equal(json_integer_value(json_object_get(root, "unseen")), 77);
	first = json_array_get(json_object_get(root, "every_task"), 0);
	assert_int_equal(json_integer_value(json_object_get(first, "tokens")), 1025);
	tasks = json_object_get(root, "tasks");
	assert_int_equal(json_array_size(tasks), 2);
	first = json_array_get(tasks, 0);
	second = json_array_get(tasks, 1);
	assert_string_equal(json_string_value(json_object_get(first, "task")), "märchen");
	assert_int_equal(json_integer_value(json_object_get(first, "tokens")), 1024);
	assert_close(json_real_value(json_object_get(first, "recall")), 0.98765, 1e-12);
	assert_string_equal(json_string_value(json_object_get(second, "task")), "a \"b\"");
	assert_true(json_is_null(json_object_get(second, "recall")));
	json_decref(root);
	free(text);
}

static void a_full_disk_is_an_error(void **state)
{
	struct od_report *r = make();
	struct od_err err = { 0 };
	FILE *f = fopen("/dev/full", "w");

	(void)state;
	assert_non_null(f);
	setvbuf(f, NULL, _IONBF, 0);
	assert_int_equal(od_report_print(r, f, false, &err), OD_ERR_IO);
	assert_non_null(strstr(err.msg, "Recall"));
	assert_int_equal(od_report_print(r, f, true, &err), OD_ERR_IO);
	fclose(f);
	od_report_free(r);
}

static void a_path_need_not_be_utf8(void **state)
{
	struct od_report *r;
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);

	(void)state;
	assert_int_equal(od_report_new(&r, "paths", NULL), 0);
	od_report_fact(r, "path", "path", OD_TEXT("/tmp/\xff_x"), 0, NULL);
	assert_int_equal(od_report_print(r, f, true, NULL), 0);
	fclose(f);
	assert_non_null(strstr(text, "\"path\": \"/tmp/?_x\""));
	od_report_free(r);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(text_lines_up),
		cmocka_unit_test(json_has_the_same_figures),
		cmocka_unit_test(a_full_disk_is_an_error),
		cmocka_unit_test(a_path_need_not_be_utf8),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

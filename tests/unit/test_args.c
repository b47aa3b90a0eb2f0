/* Command lines: what counts as a number and as a size (by hand, in whole numbers), and who gets which word. */
#include "common/base/args.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void whole_numbers(void **state)
{
	static const struct {
		const char *text;
		uint64_t min, max, want;
		int rc;
		const char *reason;
	} t[] = {
		{ "0", 0, UINT64_MAX, 0, OD_OK, NULL },
		{ "007", 0, UINT64_MAX, 7, OD_OK, NULL },
		{ "18446744073709551615", 0, UINT64_MAX, UINT64_MAX, OD_OK, NULL },
		{ "18446744073709551616", 0, UINT64_MAX, 0, OD_ERR_ARG,
		  "expected 0 to 18446744073709551615, found 18446744073709551616" },
		{ "99999999999999999999999999", 3, 9, 0, OD_ERR_ARG,
		  "expected 3 to 9, found 99999999999999999999999999" },
		{ "3", 3, 9, 3, OD_OK, NULL },
		{ "9", 3, 9, 9, OD_OK, NULL },
		{ "2", 3, 9, 0, OD_ERR_ARG, "expected 3 to 9, found 2" },
		{ "10", 3, 9, 0, OD_ERR_ARG, "expected 3 to 9, found 10" },
		{ "", 0, 9, 0, OD_ERR_ARG, "expected a whole number, found \"\"" },
		{ "-1", 0, UINT64_MAX, 0, OD_ERR_ARG, "expected a whole number, found \"-1\"" },
		{ "+1", 0, 9, 0, OD_ERR_ARG, "expected a whole number, found \"+1\"" },
		{ " 1", 0, 9, 0, OD_ERR_ARG, "expected a whole number, found \" 1\"" },
		{ "1 ", 0, 9, 0, OD_ERR_ARG, "expected a whole number, found \"1 \"" },
		{ "1e3", 0, 9999, 0, OD_ERR_ARG, "expected a whole number, found \"1e3\"" },
		{ "0x10", 0, 99, 0, OD_ERR_ARG, "expected a whole number, found \"0x10\"" },
		{ "1.0", 0, 9, 0, OD_ERR_ARG, "expected a whole number, found \"1.0\"" },
		{ "nan", 0, 9, 0, OD_ERR_ARG, "expected a whole number, found \"nan\"" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct od_err err = { 0 };
		uint64_t v = 77;

		assert_int_equal(od_parse_u64(t[i].text, t[i].min, t[i].max, &v, &err), t[i].rc);
		assert_int_equal(v, t[i].want);
		if (t[i].reason != NULL)
			assert_string_equal(err.msg, t[i].reason);
	}
}

static void reals(void **state)
{
	static const struct {
		const char *text;
		double max, want;
		const char *reason;
	} t[] = {
		{ "1.5", 2, 1.5, NULL },
		{ "-1e-3", 0, -0.001, NULL },
		{ "3", 2, 0, "expected -1 to 2, found 3" },
		{ "-2", 0, 0, "expected -1 or more, found -2" },
		{ "1,5", 0, 0, "expected a number, found \"1,5\"" },
		{ "", 0, 0, "expected a number, found \"\"" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct od_err err = { 0 };
		double v = 77;

		assert_int_equal(od_parse_real(t[i].text, -1, t[i].max, &v, &err),
				 t[i].reason != NULL ? OD_ERR_ARG : OD_OK);
		assert_true(v == t[i].want);
		if (t[i].reason != NULL)
			assert_string_equal(err.msg, t[i].reason);
	}
}

static void sizes(void **state)
{
	static const struct {
		const char *text;
		uint64_t want;
	} t[] = {
		{ "0", 0 },
		{ "1", 1 },
		{ "12B", 12 },
		{ "900MiB", 943718400 },
		{ "900M", 943718400 },
		{ "500MB", 500000000 },
		{ "500mb", 500000000 },
		{ "3k", 3072 },
		{ "3KiB", 3072 },
		{ "3KB", 3000 },
		{ "1G", 1073741824 },
		{ "1gib", 1073741824 },
		{ "2GB", 2000000000 },
		{ "1.5GiB", 1610612736 },
		{ "2T", 2199023255552 },
		{ "2TiB", 2199023255552 },
		{ "1.25TB", 1250000000000 },
		{ "1.001KB", 1001 }, /* 1000.99... in floating point */
		{ "0.1KiB", 102 }, /* 102.4 */
		{ "1.5000000000000000000000000K", 1536 },
		{ "1.9999999999999999999999K", 2047 }, /* parts of a byte never round up */
		{ "9007199254740993", 9007199254740993 }, /* 2^53 + 1 */
		{ "8796093022209K", 9007199254742016 }, /* (2^43 + 1) * 2^10 */
		{ "9223372036854775807", INT64_MAX },
		{ "8388607TiB", 9223370937343148032 },
		{ "8388607.999999999999999999TiB", INT64_MAX },
	};
	static const char *const bad[] = { "",	    " 1",  "1 ",  "-1",	 "+1",	 "1 MiB", "0x10",   "1e3",
					   "1e3K",  ".5G", "1.",  "1.G", "1.5",	 "1.5B",  "1.5.5G", "1X",
					   "1MiBs", "MiB", "nan", "inf", "1,5G", "1ki",	  "K1" };
	static const char *const too_large[] = {
		"9223372036854775808",		 "18446744073709551616",     "8388608T",
		"18014398509481984K" /* 2^64 */, "99999999999999999999999G", "9223372036854775807.9KB"
	};
	struct od_err err;
	uint64_t v;

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		v = 77;
		if (od_parse_size(t[i].text, &v, &err) != OD_OK)
			fail_msg("%s", err.msg);
		assert_int_equal(v, t[i].want);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		v = 77;
		if (od_parse_size(bad[i], &v, &err) != OD_ERR_ARG)
			fail_msg("\"%s\" was taken for %llu", bad[i], (unsigned long long)v);
		assert_int_equal(v, 0);
		assert_non_null(strstr(err.msg, "expected a size such as 900MiB or 1.5G, found \""));
	}
	for (size_t i = 0; i < sizeof(too_large) / sizeof(too_large[0]); i++) {
		v = 77;
		assert_int_equal(od_parse_size(too_large[i], &v, &err), OD_ERR_ARG);
		assert_int_equal(v, 0);
		assert_non_null(strstr(err.msg, "expected a size below 8388608TiB, found \""));
	}
}

static void bytes_for_people(void **state)
{
	static const struct {
		uint64_t bytes;
		const char *want;
	} t[] = {
		{ 0, "0 B" },
		{ 1023, "1023 B" },
		{ 1024, "1.0 KiB" },
		{ 1536, "1.5 KiB" },
		{ 1048524, "1023.9 KiB" },
		{ 1048525, "1.0 MiB" },
		{ 1048575, "1.0 MiB" },
		{ 943718400, "900.0 MiB" },
		{ 1099511627776, "1.0 TiB" },
		{ UINT64_MAX, "16384.0 PiB" },
	};
	char buf[32];

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
		assert_string_equal(od_format_bytes(t[i].bytes, buf, sizeof(buf)), t[i].want);
	assert_string_equal(od_format_bytes(943718400, buf, 4), "900");
}

static const char *const colours[] = { "red", "green", NULL };

struct values {
	bool flag, help;
	const char *text;
	struct od_arg_list list;
	uint64_t number, free_number, size;
	double real, free_real;
	int colour;
	const char *positional[2];
	size_t n_positional;
	struct od_err err;
};

static int parse(struct values *v, int argc, const char *const *argv)
{
	const struct od_arg table[] = {
		{ .kind = OD_ARG_TITLE, .help = "title" },
		{ "flag", OD_ARG_FLAG, &v->flag, NULL, "h", 0, 0, NULL },
		{ "text", OD_ARG_STRING, &v->text, "TEXT", "h", 0, 0, NULL },
		{ "list", OD_ARG_LIST, &v->list, "TEXT", "h", 0, 0, NULL },
		{ "number", OD_ARG_UINT, &v->number, "N", "h", 2, 20, NULL },
		{ "free-number", OD_ARG_UINT, &v->free_number, "N", "h", 0, 0, NULL },
		{ "real", OD_ARG_REAL, &v->real, "X", "h", -0.5, 1.5, NULL },
		{ "free-real", OD_ARG_REAL, &v->free_real, "X", "h", -2, 0, NULL },
		{ "size", OD_ARG_SIZE, &v->size, "SIZE", "h", 0, 0, NULL },
		{ "colour", OD_ARG_CHOICE, &v->colour, "C", "h", 0, 0, colours },
		{ "help", OD_ARG_FLAG, &v->help, NULL, "h", 0, 0, NULL },
	};

	*v = (struct values){ .text = "before", .number = 5, .real = 0.25, .colour = 1, .n_positional = 9 };
	return od_args_parse(table, sizeof(table) / sizeof(table[0]), argc, (char **)argv, v->positional, 2,
			     &v->n_positional, &v->err);
}

#define PARSE(v, ...) \
	parse(v, (int)(sizeof((const char *[]){ "prog", __VA_ARGS__ }) / sizeof(char *)), \
	      (const char *[]){ "prog", __VA_ARGS__ })

static void nothing_given(void **state)
{
	const char *prog[] = { "prog" };
	struct values v;

	(void)state;
	assert_int_equal(parse(&v, 1, prog), OD_OK);
	assert_false(v.flag);
	assert_string_equal(v.text, "before");
	assert_int_equal(v.number, 5);
	assert_true(v.real == 0.25);
	assert_int_equal(v.colour, 1);
	assert_int_equal(v.n_positional, 0);
	assert_int_equal(parse(&v, 0, prog), OD_OK); /* execve can do that */
}

static void both_ways_of_giving_a_value(void **state)
{
	struct values v;

	(void)state;
	assert_int_equal(PARSE(&v, "--text", "a b", "--number=20", "--real", "-0.5", "--size=2K", "--colour", "red",
			       "--flag", "--free-number", "18446744073709551615", "--free-real=1e300"),
			 OD_OK);
	assert_string_equal(v.text, "a b");
	assert_int_equal(v.number, 20);
	assert_true(v.real == -0.5);
	assert_int_equal(v.size, 2048);
	assert_int_equal(v.colour, 0);
	assert_true(v.flag);
	assert_true(v.free_number == UINT64_MAX);
	assert_true(v.free_real == 1e300);
	assert_false(v.help);

	assert_int_equal(PARSE(&v, "--text=a=b=", "--list=1", "--list", "2", "--list="), OD_OK);
	assert_string_equal(v.text, "a=b=");
	assert_int_equal(v.list.n, 3);
	assert_string_equal(v.list.value[0], "1");
	assert_string_equal(v.list.value[1], "2");
	assert_string_equal(v.list.value[2], "");

	assert_int_equal(PARSE(&v, "--text=", "--number", "3", "--number", "4"), OD_OK);
	assert_string_equal(v.text, "");
	assert_int_equal(v.number, 4); /* the last counts */

	assert_int_equal(PARSE(&v, "--text", "--flag"), OD_OK); /* a value is taken as it comes */
	assert_string_equal(v.text, "--flag");
	assert_false(v.flag);

	assert_int_equal(PARSE(&v, "-h"), OD_OK);
	assert_true(v.help);
}

static void words_that_are_no_options(void **state)
{
	struct values v;

	(void)state;
	assert_int_equal(PARSE(&v, "one", "--flag", "-"), OD_OK);
	assert_int_equal(v.n_positional, 2);
	assert_string_equal(v.positional[0], "one");
	assert_string_equal(v.positional[1], "-");
	assert_true(v.flag);

	assert_int_equal(PARSE(&v, "--", "--flag", "--"), OD_OK);
	assert_int_equal(v.n_positional, 2);
	assert_string_equal(v.positional[0], "--flag");
	assert_string_equal(v.positional[1], "--");
	assert_false(v.flag);

	assert_int_equal(PARSE(&v, "--text", "--", "x"), OD_OK); /* here it is a value */
	assert_string_equal(v.text, "--");
	assert_int_equal(v.n_positional, 1);

	assert_int_equal(PARSE(&v, ""), OD_OK);
	assert_int_equal(v.n_positional, 1);

	assert_int_equal(PARSE(&v, "1", "2", "3"), OD_ERR_ARG);
	assert_string_equal(v.err.msg, "unexpected argument \"3\"; see --help");
}

static void refusals(void **state)
{
	static const struct {
		const char *a, *b, *reason;
	} t[] = {
		{ "--nope", NULL, "unknown option --nope; see --help" },
		{ "--numbe", "3", "unknown option --numbe; see --help" },
		{ "--number3", NULL, "unknown option --number3; see --help" },
		{ "--title", NULL, "unknown option --title; see --help" },
		{ "--=x", NULL, "unknown option --=x; see --help" },
		{ "---flag", NULL, "unknown option ---flag; see --help" },
		{ "-flag", NULL, "unknown option -flag; see --help" },
		{ "-help", NULL, "unknown option -help; see --help" },
		{ "-h=1", NULL, "unknown option -h=1; see --help" },
		{ "-1", NULL, "unknown option -1; see --help" },
		{ "--flag=1", NULL, "--flag takes no value" },
		{ "--flag=", NULL, "--flag takes no value" },
		{ "--text", NULL, "--text needs a value: TEXT" },
		{ "--number", "1", "--number: expected 2 to 20, found 1" },
		{ "--number=21", NULL, "--number: expected 2 to 20, found 21" },
		{ "--number=", NULL, "--number: expected a whole number, found \"\"" },
		{ "--free-number", "18446744073709551616",
		  "--free-number: expected 0 to 18446744073709551615, found 18446744073709551616" },
		{ "--real", "1.6", "--real: expected -0.5 to 1.5, found 1.6" },
		{ "--real", "-0.6", "--real: expected -0.5 to 1.5, found -0.6" },
		{ "--free-real", "-3", "--free-real: expected -2 or more, found -3" },
		{ "--real", "nan", "--real: expected a number, found \"nan\"" },
		{ "--real", "inf", "--real: expected a number, found \"inf\"" },
		{ "--free-real", "1e999", "--free-real: expected a number, found \"1e999\"" },
		{ "--real", "0x1", "--real: expected a number, found \"0x1\"" },
		{ "--real", " 1", "--real: expected a number, found \" 1\"" },
		{ "--real", "1x", "--real: expected a number, found \"1x\"" },
		{ "--real=", NULL, "--real: expected a number, found \"\"" },
		{ "--size", "much", "--size: expected a size such as 900MiB or 1.5G, found \"much\"" },
		{ "--colour", "blue", "--colour: expected one of red, green, found \"blue\"" },
		{ "--colour", "re", "--colour: expected one of red, green, found \"re\"" },
	};
	struct values v;

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		const char *argv[] = { "prog", t[i].a, t[i].b };

		assert_int_equal(parse(&v, t[i].b != NULL ? 3 : 2, argv), OD_ERR_ARG);
		assert_string_equal(v.err.msg, t[i].reason);
		assert_int_equal(v.err.code, OD_ERR_ARG);
		assert_true(v.real == 0.25);
		assert_int_equal(v.colour, 1);
	}
}

static void no_reason_wanted(void **state)
{
	uint64_t number;
	size_t n;
	const struct od_arg table[] = { { "number", OD_ARG_UINT, &number, "N", "h", 0, 0, NULL } };
	char *argv[] = { "prog", "--number=x" };

	(void)state;
	assert_int_equal(od_args_parse(table, 1, 2, argv, NULL, 0, &n, NULL), OD_ERR_ARG);
}

static void a_list_is_bounded(void **state)
{
	const char *argv[2 + OD_ARG_LIST_MAX] = { "prog" };
	struct values v;

	(void)state;
	for (int i = 1; i < 2 + OD_ARG_LIST_MAX; i++)
		argv[i] = "--list=x";
	assert_int_equal(parse(&v, 1 + OD_ARG_LIST_MAX, argv), OD_OK);
	assert_int_equal(v.list.n, OD_ARG_LIST_MAX);
	assert_int_equal(parse(&v, 2 + OD_ARG_LIST_MAX, argv), OD_ERR_ARG);
	assert_string_equal(v.err.msg, "--list: given more than 64 times");
}

static void help_text_is_wrapped(void **state)
{
	static const char full[] = "aaaa bbbb cccc dddd eeee ffff gggg hhhh iiii jjjj kkkk llll mmmm nnnnn";
	static const char words[] = "aaaa bbbb cccc dddd eeee ffff gggg hhhh iiii jjjj kkkk llll mmmm nnnn oooo pppp";
	const struct od_arg table[] = {
		{ .kind = OD_ARG_TITLE, .help = "Part" },
		{ "short", OD_ARG_STRING, NULL, "X", words, 0, 0, NULL },
		{ "an-option-with-a-long-name", OD_ARG_UINT, NULL, "N", "text", 0, 0, NULL },
		{ "flag", OD_ARG_FLAG, NULL, NULL, "two words", 0, 0, NULL },
		{ .kind = OD_ARG_TITLE, .help = "Other part" },
		{ "full", OD_ARG_FLAG, NULL, NULL, full, 0, 0, NULL },
	};
	char *text;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	(void)state;
	od_args_help(f, table, sizeof(table) / sizeof(table[0]));
	fclose(f);
	/* 31 + 13 * 5 + 4 is 100 behind nnnn: the line is full. One n more goes to the next. */
	assert_string_equal(
		text, "\nPart:\n"
		      "  --short X                    aaaa bbbb cccc dddd eeee ffff gggg hhhh iiii jjjj kkkk llll "
		      "mmmm nnnn\n"
		      "                               oooo pppp\n"
		      "  --an-option-with-a-long-name N\n"
		      "                               text\n"
		      "  --flag                       two words\n"
		      "Other part:\n"
		      "  --full                       aaaa bbbb cccc dddd eeee ffff gggg hhhh iiii jjjj kkkk llll "
		      "mmmm\n"
		      "                               nnnnn\n");
	free(text);
}

/* deploy/help_pages.py reads these. */
static void help_as_rows(void **state)
{
	static const char *const choices[] = { "red", "blue", NULL };
	const struct od_arg table[] = {
		{ .kind = OD_ARG_TITLE, .help = "Part" },
		{ "file", OD_ARG_STRING, NULL, "FILE", "a file", 0, 0, NULL },
		{ "colour", OD_ARG_CHOICE, NULL, "NAME", "one of two", 0, 0, choices },
		{ "flag", OD_ARG_FLAG, NULL, NULL, "two words", 0, 0, NULL },
	};
	char *text;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	(void)state;
	setenv("OD_HELP_ROWS", "1", 1);
	od_args_help(f, table, sizeof(table) / sizeof(table[0]));
	unsetenv("OD_HELP_ROWS");
	fclose(f);
	assert_string_equal(text, "\t\t\t\tPart\n"
				  "\tfile\tFILE\t\ta file\n"
				  "\tcolour\tNAME\tred blue\tone of two\n"
				  "\tflag\t\t\ttwo words\n");
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(whole_numbers),
		cmocka_unit_test(reals),
		cmocka_unit_test(sizes),
		cmocka_unit_test(bytes_for_people),
		cmocka_unit_test(nothing_given),
		cmocka_unit_test(both_ways_of_giving_a_value),
		cmocka_unit_test(words_that_are_no_options),
		cmocka_unit_test(refusals),
		cmocka_unit_test(no_reason_wanted),
		cmocka_unit_test(a_list_is_bounded),
		cmocka_unit_test(help_text_is_wrapped),
		cmocka_unit_test(help_as_rows),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

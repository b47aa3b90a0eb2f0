/* Patterns against Python's re (tests/golden/grammar/regex.json), as texts and within strings of JSON; refusals. */
#include "common/grammar/regex.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#define GOLDEN "tests/golden/grammar/regex.json"

static bool matches(struct od_re_pool *p, uint32_t re, const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		re = od_re_step(p, re, (uint8_t)text[i]);
	return od_re_nullable(p, re);
}

static uint32_t compile(struct od_re_pool *p, const char *pattern, size_t len, enum od_writing w, bool search)
{
	struct od_err err = { 0 };
	uint32_t re;

	if (od_regex_compile(p, pattern, len, w, search, &re, &err) != OD_OK)
		fail_msg("%s: %s", pattern, err.msg);
	return re;
}

/* Where readers of patterns differ, a text must match for all of them (regex.h), and Python's ASCII is one: so texts
 * beyond it may be rejected by \W and the like. */
static bool may_reject(const char *pattern, const char *text, size_t len)
{
	const bool opposite = strstr(pattern, "\\W") != NULL || strstr(pattern, "\\D") != NULL ||
			      strstr(pattern, "\\S") != NULL || strstr(pattern, "[^\\") != NULL;

	for (size_t i = 0; opposite && i < len; i++)
		if ((uint8_t)text[i] >= 0x80 || (text[i] >= 0x1c && text[i] <= 0x1f))
			return true;
	return opposite && memmem(text, len, "\\u001", 5) != NULL;
}

static unsigned n_cases, n_rejected;

static unsigned compare(const json_t *c, const json_t *texts, enum od_writing w, bool search)
{
	const json_t *pattern = json_object_get(c, "pattern");
	const char *want = json_string_value(json_object_get(c, search ? "search" : "full"));
	unsigned wrong = 0;
	struct od_re_pool *p;
	uint32_t re;

	assert_int_equal(od_re_pool_new(&p, NULL), OD_OK);
	re = compile(p, json_string_value(pattern), json_string_length(pattern), w, search);
	for (size_t i = 0; i < json_array_size(texts); i++) {
		const json_t *text = json_array_get(texts, i);
		const bool got = matches(p, re, json_string_value(text), json_string_length(text));

		n_cases++;
		if (got == (want[i] == '1'))
			continue;
		if (!got && may_reject(json_string_value(pattern), json_string_value(text), json_string_length(text))) {
			n_rejected++;
			continue;
		}
		print_error("%s %s: expected %c for \"%s\"%s\n", search ? "search" : "match",
			    json_string_value(pattern), want[i], json_string_value(text),
			    w == OD_WRITE_JSON ? " in JSON" : "");
		wrong++;
	}
	assert_int_equal(od_re_check(p, NULL), OD_OK);
	od_re_pool_free(p);
	return wrong;
}

static void they_match_what_python_matches(void **state)
{
	json_t *groups = json_load_file(GOLDEN, JSON_ALLOW_NUL, NULL);
	unsigned wrong = 0;

	(void)state;
	assert_non_null(groups);
	for (size_t g = 0; g < json_array_size(groups); g++) {
		const json_t *group = json_array_get(groups, g), *cases = json_object_get(group, "cases");

		for (size_t i = 0; i < 4 * json_array_size(cases); i++)
			wrong += compare(json_array_get(cases, i / 4), json_object_get(group, i & 1 ? "json" : "texts"),
					 i & 1 ? OD_WRITE_JSON : OD_WRITE_PLAIN, i & 2);
	}
	json_decref(groups);
	assert_int_equal(wrong, 0);
	assert_true(n_cases > 60000 && n_rejected < n_cases / 100);
}

/* Python refuses these, or has no way to write them. */
static void they_match_as_ecma_says(void **state)
{
	static const struct {
		const char *pattern, *matched, *other;
	} cases[] = {
		{ "[a-\\d]", "a", "b" },
		{ "[a-\\d]", "-", "c" },
		{ "[a-\\d]", "7", ":" },
		{ "[\\d-x]", "5", "w" },
		{ "[\\d-x]", "-", "6x" },
		{ "[]a]", "", "a]" },
		{ "[^]a]", "xa]", "a" },
		{ "\\cJ", "\n", "J" },
		{ "(?<name>a)", "a", "name" },
		{ "a{2", "a{2", "aa" },
		{ "a{,}", "a{,}", "a" },
		{ "\\S", "a", "\xc2\xa0" },
		{ "\\W", "-", "\xc3\xa9" },
		{ "[^\\w]", "-", "\xc3\xa9" },
		{ "\\D", "\xc3\xa9", "\xd9\xa1" },
		{ "[\\w\\W]", "\xc3\xa9", "" },
		{ "[\\D\\d]", "\xd9\xa1", "" },
		{ "[\\S\\s]", "\xc2\xa0", "" },
		{ "[^\\d\\s]", "\xc3\xa9", "\xc2\xa0" },
		{ "\\u{61}", "a", "u" },
		{ "(?P<n>a)", "a", "n" },
		{ "\\d", "1", "\xd9\xa1" },
		{ "[\\u{1f600}]", "\xf0\x9f\x98\x80", "u" },
		{ "\\S", "\xc3\xa9", "\xc2\x85" },
		/* bytes that are no UTF-8: half of a surrogate pair, too long, above U+10FFFF */
		{ "[^]+", "\xed\x9f\xbf\xee\x80\x80", "\xed\xa0\x80" },
		{ "[^]", "\x7f", "\xc1\xbf" },
		{ "[^]", "\xe0\xa0\x80", "\xe0\x9f\xbf" },
		{ "[^]", "\xf4\x8f\xbf\xbf", "\xf4\x90\x80\x80" },
		{ "[^a]", "\xf0\x90\x80\x80", "\xf0\x8f\xbf\xbf" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *pattern = cases[i].pattern;
		struct od_re_pool *p;
		uint32_t re;

		assert_int_equal(od_re_pool_new(&p, NULL), OD_OK);
		re = compile(p, pattern, strlen(pattern), OD_WRITE_PLAIN, false);
		if (cases[i].matched[0] != '\0' && !matches(p, re, cases[i].matched, strlen(cases[i].matched)))
			fail_msg("%s does not match \"%s\"", pattern, cases[i].matched);
		if (matches(p, re, cases[i].other, strlen(cases[i].other)))
			fail_msg("%s matches \"%s\"", pattern, cases[i].other);
		od_re_pool_free(p);
	}
}

/* In JSON each character has one spelling. */
static void strings_have_one_spelling(void **state)
{
	struct od_re_pool *p;
	uint32_t any, a, control, search;

	(void)state;
	assert_int_equal(od_re_pool_new(&p, NULL), OD_OK);
	any = compile(p, "[^]", 3, OD_WRITE_JSON, false);
	a = compile(p, "a", 1, OD_WRITE_JSON, false);
	control = compile(p, "\\x1f", 4, OD_WRITE_JSON, false);
	search = compile(p, "b", 1, OD_WRITE_JSON, true);
	assert_true(matches(p, any, "\\n", 2) && !matches(p, any, "\\u000a", 6) && !matches(p, any, "\n", 1));
	assert_true(matches(p, any, "/", 1) && !matches(p, any, "\\/", 2));
	assert_true(matches(p, a, "a", 1) && !matches(p, a, "\\u0061", 6));
	assert_true(matches(p, control, "\\u001f", 6) && matches(p, control, "\\u001F", 6));
	assert_true(!matches(p, any, "\"", 1) && !matches(p, any, "\\", 1));
	assert_true(matches(p, search, "\\\"b", 3) && !matches(p, search, "\\b", 2) && !matches(p, search, "\"b", 2));
	od_re_pool_free(p);
}

static void refuse(const char *pattern, size_t len, int code, const char *why)
{
	struct od_err err = { 0 };
	struct od_re_pool *p;
	uint32_t re = 99;
	int rc;

	assert_int_equal(od_re_pool_new(&p, NULL), OD_OK);
	rc = od_regex_compile(p, pattern, len, OD_WRITE_PLAIN, true, &re, &err);
	if (rc != code || strstr(err.msg, why) == NULL)
		fail_msg("%.200s: %d, %s", pattern, rc, err.msg);
	od_re_pool_free(p);
}

static void others_are_refused_by_name(void **state)
{
	static const struct {
		const char *pattern;
		int code;
		const char *why;
	} cases[] = {
		{ "(a)\\1", OD_ERR_UNSUPPORTED, "a back reference is not supported here; at character 5" },
		{ "(?<n>a)\\k<n>", OD_ERR_UNSUPPORTED, "a back reference" },
		{ "(?<=a)b", OD_ERR_UNSUPPORTED, "a look-behind" },
		{ "(?<!a)b", OD_ERR_UNSUPPORTED, "a look-behind" },
		{ "\\bword", OD_ERR_UNSUPPORTED, "a word boundary" },
		{ "a\\B", OD_ERR_UNSUPPORTED, "a word boundary" },
		{ "\\p{L}", OD_ERR_UNSUPPORTED, "\\p (Unicode properties)" },
		{ "[\\P{L}]", OD_ERR_UNSUPPORTED, "\\p (Unicode properties)" },
		{ "(?i)a", OD_ERR_UNSUPPORTED, "flags and special groups" },
		{ "(?>a)", OD_ERR_UNSUPPORTED, "flags and special groups" },
		{ "[[:alpha:]]", OD_ERR_UNSUPPORTED, "[: :]" },
		{ "a*+", OD_ERR_UNSUPPORTED, "a possessive repetition" },
		{ "(?=a)b", OD_ERR_UNSUPPORTED, "a look-ahead without ^ before it" },
		{ "a(?=b)", OD_ERR_UNSUPPORTED, "a look-ahead that is not at the start" },
		{ "^(?=a)|b", OD_ERR_UNSUPPORTED, "a look-ahead that is not at the start" },
		{ "(^(?=a)b)", OD_ERR_UNSUPPORTED, "a look-ahead that is not at the start" },
		{ "^(?=(?=a))b", OD_ERR_UNSUPPORTED, "a look-ahead that is not at the start" },
		{ "(^a)*", OD_ERR_UNSUPPORTED, "within a repetition" },
		{ "(a$){2}", OD_ERR_UNSUPPORTED, "within a repetition" },
		{ "(a", OD_ERR_FORMAT, "a group is not closed; at character 2" },
		{ "(?<name", OD_ERR_FORMAT, "a group is not closed; at character 7" },
		{ "a)", OD_ERR_FORMAT, "a bracket that was not opened at character 1" },
		{ "[a", OD_ERR_FORMAT, "the pattern ends too early at character 2" },
		{ "a\\", OD_ERR_FORMAT, "the pattern ends too early at character 2" },
		{ "*a", OD_ERR_FORMAT, "nothing to repeat at character 0" },
		{ "a|+", OD_ERR_FORMAT, "nothing to repeat at character 2" },
		{ "[b-a]", OD_ERR_FORMAT, "a range whose end is before its start" },
		{ "a{3,2}", OD_ERR_FORMAT, "a repetition whose maximum is below its minimum" },
		{ "a{100001}", OD_ERR_RANGE, "a repetition of more than 100000 times" },
		{ "a{4294967297}", OD_ERR_RANGE, "a repetition of more than 100000 times" },
		{ "\\xag", OD_ERR_FORMAT, "an unknown or broken escape" },
		{ "\\u12", OD_ERR_FORMAT, "an unknown or broken escape" },
		{ "\\u{110000}", OD_ERR_FORMAT, "an unknown or broken escape" },
		{ "\\ud83dx\\ude00[", OD_ERR_FORMAT, "the pattern ends too early" },
		{ "\\y", OD_ERR_FORMAT, "an unknown or broken escape" },
		{ "\xff", OD_ERR_FORMAT, "invalid UTF-8 at character 0" },
		{ "a\xed\xa0\x80", OD_ERR_FORMAT, "invalid UTF-8 at character 1" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		refuse(cases[i].pattern, strlen(cases[i].pattern), cases[i].code, cases[i].why);
}

/* n times what, then end. */
static char *many(const char *what, size_t n, const char *end)
{
	char *text = malloc(n * strlen(what) + strlen(end) + 1);

	assert_non_null(text);
	for (size_t i = 0; i < n; i++)
		memcpy(text + i * strlen(what), what, strlen(what));
	memcpy(text + n * strlen(what), end, strlen(end) + 1);
	return text;
}

static void large_ones_need_no_large_stack_or_time(void **state)
{
	static const char *const ends[] = { "", "$", "|^", "(^|$)" };
	char *text, *brackets, *close;
	struct od_re_pool *p;
	uint32_t re;

	(void)state;
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		assert_int_equal(od_re_pool_new(&p, NULL), OD_OK);
		text = many("ab", 32000, ends[i]);
		re = compile(p, text, strlen(text), OD_WRITE_PLAIN, false);
		assert_true(matches(p, re, text, 64000));
		assert_false(matches(p, re, text, 63999));
		free(text);
		od_re_pool_free(p);
	}
	text = many("a", OD_MAX_PATTERN_BYTES + 1, "");
	refuse(text, OD_MAX_PATTERN_BYTES + 1, OD_ERR_RANGE, "it has 65537 bytes; expected at most 65536");
	free(text);
	text = many("(", 32000, "");
	refuse(text, 32000, OD_ERR_RANGE, "it is nested too deep");
	free(text);
	text = many("a?", 300, "");
	assert_int_equal(od_re_pool_new(&p, NULL), OD_OK);
	(void)compile(p, text, 600, OD_WRITE_PLAIN, true);
	free(text);
	/* anchors deep in groups: nothing, or all letters */
	close = many("))", 90, "");
	brackets = many("(^|x(", 90, "$");
	text = many(brackets, 1, close);
	re = compile(p, text, strlen(text), OD_WRITE_PLAIN, false);
	free(text);
	text = many("x", 90, "");
	assert_true(matches(p, re, "", 0) && matches(p, re, text, 90));
	assert_false(matches(p, re, text, 1) || matches(p, re, text, 89));
	free(text);
	free(brackets);
	free(close);
	od_re_pool_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(they_match_what_python_matches),
		cmocka_unit_test(they_match_as_ecma_says),
		cmocka_unit_test(strings_have_one_spelling),
		cmocka_unit_test(others_are_refused_by_name),
		cmocka_unit_test(large_ones_need_no_large_stack_or_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

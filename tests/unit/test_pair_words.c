/* The list of words, drawing them, and reading them as people type them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/pair/pair_words.h"

#define GOOD "abacus jumbo yacht zebra zodiac above"

static char (*list)[OD_PAIR_WORD_CHARS + 2]; /* [OD_PAIR_LIST], from the file */

static int read_list(void **state)
{
	FILE *f = fopen("common/pair/words.txt", "r");
	char line[512];
	size_t n = 0;

	(void)state;
	list = calloc(OD_PAIR_LIST, sizeof(*list));
	while (f != NULL && list != NULL && fgets(line, sizeof(line), f) != NULL) {
		if (line[0] == '#')
			continue;
		line[strcspn(line, "\n")] = '\0';
		if (n == OD_PAIR_LIST || strlen(line) > OD_PAIR_WORD_CHARS)
			return -1;
		memcpy(list[n++], line, strlen(line) + 1);
	}
	if (f != NULL)
		fclose(f);
	return n == OD_PAIR_LIST ? 0 : -1;
}

/* One letter changed, left out or added. */
static bool are_near(const char *a, const char *b)
{
	size_t n = strlen(a), m = strlen(b), same = 0, end = 0;

	if (n > m + 1 || m > n + 1)
		return false;
	while (same < n && a[same] == b[same])
		same++;
	while (end < n && end < m && a[n - 1 - end] == b[m - 1 - end])
		end++;
	return same + end + 1 >= (n > m ? n : m);
}

static void words_are_plain_and_far_apart(void **state)
{
	(void)state;
	assert_true(are_near("form", "farm") && are_near("form", "for") && are_near("or", "for") && are_near("a", "a"));
	assert_false(are_near("form", "from") || are_near("form", "fort") == false || are_near("form", "to"));
	for (size_t i = 0; i < OD_PAIR_LIST; i++) {
		assert_true(strlen(list[i]) >= 3 && strspn(list[i], "abcdefghijklmnopqrstuvwxyz") == strlen(list[i]));
		assert_true(od_pair_words_has(list[i]));
		assert_true(i == 0 || strcmp(list[i - 1], list[i]) < 0);
		for (size_t j = 0; j < i; j++) {
			if (are_near(list[i], list[j]))
				fail_msg("%s and %s", list[i], list[j]);
		}
	}
	assert_false(od_pair_words_has("") || od_pair_words_has("abacu") || od_pair_words_has("zzz"));
}

static void drawn_words_are_read_back(void **state)
{
	char text[OD_PAIR_TEXT], again[OD_PAIR_TEXT], last[OD_PAIR_TEXT] = "";
	char *args[] = { text };
	struct od_err err;
	const char *rest;

	(void)state;
	for (int i = 0; i < 100; i++) {
		assert_int_equal(od_pair_words_draw(text, &err), OD_OK);
		assert_int_equal(od_pair_words_read(again, &rest, args, 1, &err), OD_OK);
		assert_string_equal(text, again);
		assert_null(rest);
		assert_string_not_equal(text, last);
		memcpy(last, text, sizeof(last));
	}
}

struct typed_case {
	char *args[9];
	const char *rest; /* NULL: none */
	const char *says; /* the error's; NULL: GOOD is read */
};

static void forgiving(void **state)
{
	static const struct typed_case cases[] = {
		{ { "abacus", "jumbo", "yacht", "zebra", "zodiac", "above" }, NULL, NULL },
		{ { "ABACUS", "Jumbo", "yacht", "zEBRA", "zodiac", "above" }, NULL, NULL },
		{ { GOOD }, NULL, NULL },
		{ { "  abacus \t jumbo  yacht zebra\nzodiac above " }, NULL, NULL },
		{ { "abacus-jumbo-yacht-zebra-zodiac-above" }, NULL, NULL },
		{ { "abacus-jumbo", "-yacht-", "-", "zebra zodiac", "", "above" }, NULL, NULL },
		{ { GOOD, "10.0.0.1" }, "10.0.0.1", NULL },
		{ { GOOD " 10.0.0.1" }, "10.0.0.1", NULL },
		{ { "abacus", "jumbo", "yacht", "zebra", "zodiac", "above", "my-main" }, "my-main", NULL },
		{ { GOOD, "fe80::1%eth0" }, "fe80::1%eth0", NULL },
		{ { "abacus", "jumbo", "yaht", "zebra" },
		  NULL,
		  "word 3, \"yaht\", is not one of the list; nearest: \"yacht\"" },
		{ { "abacus jumbo yacht Zebr" }, NULL, "word 4, \"Zebr\", is not one of the list; nearest: \"zebra\"" },
		{ { "abacus", "\x1b[2J" }, NULL, "expected 6 words in front of main's address, found 1" },
		{ { "abacus", "\x1b[J" }, NULL, "word 2, \"?[J\", is not" },
		{ { "abacus jumbo yacht" }, NULL, "expected the 6 words that od-main pair shows, found 3" },
		{ { "abacus jumbo", "10.0.0.1" }, NULL, "expected 6 words in front of main's address, found 2" },
		{ { NULL }, NULL, "found 0" },
		{ { GOOD, "main", "other" }, NULL, "expected nothing behind main's address, found \"other\"" },
		{ { GOOD "-above" }, NULL, "expected 6 words, found more: \"above\"" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct typed_case *c = &cases[i];
		char text[OD_PAIR_TEXT];
		struct od_err err = { 0 };
		const char *rest;
		size_t n = 0;
		int rc;

		while (c->args[n] != NULL)
			n++;
		rc = od_pair_words_read(text, &rest, (char **)c->args, n, &err);
		if ((rc == OD_OK) != (c->says == NULL) || (rc != OD_OK && strstr(err.msg, c->says) == NULL))
			fail_msg("case %zu: %d %s", i, rc, err.msg);
		assert_string_equal(text, rc == OD_OK ? GOOD : "");
		if (rc == OD_OK && c->rest != NULL)
			assert_string_equal(rest, c->rest);
		else if (rc == OD_OK)
			assert_null(rest);
	}
}

/* No argument is read past its end. */
static void long_arguments(void **state)
{
	static char blob[100000];
	char text[OD_PAIR_TEXT], *args[] = { blob };
	struct od_err err;
	const char *rest;

	(void)state;
	memset(blob, 'x', sizeof(blob) - 1);
	assert_int_equal(od_pair_words_read(text, &rest, args, 1, &err), OD_ERR_ARG);
	memset(blob, '-', sizeof(blob) - 1);
	assert_int_equal(od_pair_words_read(text, &rest, args, 1, &err), OD_ERR_ARG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(words_are_plain_and_far_apart),
		cmocka_unit_test(drawn_words_are_read_back),
		cmocka_unit_test(forgiving),
		cmocka_unit_test(long_arguments),
	};
	int bad = cmocka_run_group_tests(tests, read_list, NULL);

	free(list);
	return bad;
}

/* The names that a step's logs, traces and RUNs carry, and when they change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "main-node/step/step_requests.h"

/* A step of these texts: numbers from `first` on. */
static struct odm_step step_of(struct odm_part *part, const char *const *name, size_t n, uint64_t first)
{
	for (size_t i = 0; i < n; i++)
		part[i] = (struct odm_part){ .sequence = first + i, .request = name[i] };
	return (struct odm_step){ .part = part, .n_parts = n };
}

static void names_are_joined_once(void **state)
{
	static const char *const name[] = { "a", "b", "a", NULL, "a", "", "bb" };
	struct odm_part part[7];
	struct odm_step s = step_of(part, name, 7, 1);
	char buf[16];

	(void)state;
	assert_string_equal(odm_join_requests(&s, buf, sizeof(buf)), "a,b,bb");
	assert_string_equal(odm_join_requests(&s, buf, 7), "a,b,bb");
	assert_string_equal(odm_join_requests(&s, buf, 6), "a,b"); /* whole names only */
	assert_string_equal(odm_join_requests(&s, buf, 1), "");
	s.n_parts = 0;
	assert_string_equal(odm_join_requests(&s, buf, sizeof(buf)), "");
}

static void the_very_first_text_is_named(void **state)
{
	static const char *const name[] = { "r" };
	struct odm_part part[1];

	(void)state;
	for (uint64_t first = 0; first < 100; first++) {
		struct odm_step_requests r = { 0 };
		const struct odm_step s = step_of(part, name, 1, first);

		odm_step_requests_follow(&r, &s);
		assert_int_equal(r.version, 1);
	}
}

/* One text of every number, from the first on, is seen to come and to go. */
static void versions_follow_the_texts(void **state)
{
	struct odm_step_requests r = { 0 };
	struct odm_part part[3];
	uint64_t version = 0;

	(void)state;
	for (uint64_t i = 1; i < 2000; i++) {
		char text[3][8];
		const char *name[3] = { text[0], text[1], text[2] };
		const size_t n = 1 + i % 3;
		struct odm_step s;

		for (size_t j = 0; j < 3; j++)
			snprintf(text[j], sizeof(text[j]), "r%u", (unsigned)(i + j));
		s = step_of(part, name, n, i);
		odm_step_requests_follow(&r, &s);
		assert_int_equal(r.version, ++version);
		assert_int_equal(strncmp(r.text, text[0], strlen(text[0])), 0);
		odm_step_requests_follow(&r, &s);
		assert_int_equal(r.version, version);
	}
}

static void texts_without_names_cost_nothing(void **state)
{
	static const char *const none[] = { NULL, NULL }, *const one[] = { "r", NULL };
	struct odm_step_requests r = { 0 };
	struct odm_part part[2];
	struct odm_step s = step_of(part, none, 2, 1);

	(void)state;
	odm_step_requests_follow(&r, &s);
	assert_true(r.version == 0 && r.text[0] == '\0');
	s = step_of(part, one, 2, 2);
	odm_step_requests_follow(&r, &s);
	assert_int_equal(r.version, 1);
	assert_string_equal(r.text, "r");
	s = step_of(part, none, 2, 4);
	odm_step_requests_follow(&r, &s);
	assert_int_equal(r.version, 2);
	assert_string_equal(r.text, "-"); /* the name before it is over */
	s = step_of(part, none, 1, 6);
	odm_step_requests_follow(&r, &s);
	assert_int_equal(r.version, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_are_joined_once),
		cmocka_unit_test(the_very_first_text_is_named),
		cmocka_unit_test(versions_follow_the_texts),
		cmocka_unit_test(texts_without_names_cost_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

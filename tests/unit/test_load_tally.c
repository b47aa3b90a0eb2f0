/* What a worker loaded between two PINGs. */
#include "main-node/cluster/load_tally.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void pong(struct odm_load_tally *t, uint64_t ping, uint64_t begun, uint64_t extra)
{
	const struct odm_load_counts c = { .begun = begun, .extra = extra };

	odm_load_tally_pong(t, ping, &c);
}

static void assert_between(const struct odm_load_tally *t, uint64_t begun, uint64_t extra)
{
	const struct odm_load_counts c = odm_load_tally_between(t);

	assert_int_equal(c.begun, begun);
	assert_int_equal(c.extra, extra);
}

static void the_pongs_that_answer_count(void **state)
{
	struct odm_load_tally t = { 0 };

	(void)state;
	assert_false(odm_load_tally_waits(&t));
	assert_between(&t, 0, 0);
	pong(&t, 4, 10, 3);
	assert_between(&t, 0, 0); /* nothing has begun */
	odm_load_tally_begin(&t, 6);
	assert_true(odm_load_tally_waits(&t));
	pong(&t, 5, 11, 4); /* of a heartbeat before */
	assert_true(odm_load_tally_waits(&t));
	pong(&t, 6, 20, 5);
	assert_false(odm_load_tally_waits(&t));
	pong(&t, 7, 25, 6);
	assert_between(&t, 5, 1); /* so far */
	odm_load_tally_end(&t, 9);
	assert_true(odm_load_tally_waits(&t));
	pong(&t, 8, 30, 7);
	pong(&t, 9, 31, 8);
	assert_false(odm_load_tally_waits(&t));
	pong(&t, 10, 50, 20); /* the next text's */
	assert_between(&t, 11, 3);
	odm_load_tally_begin(&t, 12);
	assert_between(&t, 0, 0);
	pong(&t, 13, 60, 21); /* a later one says no less */
	pong(&t, 14, 61, 21);
	assert_between(&t, 1, 0);
}

static void a_worker_that_comes_back_counts_on(void **state)
{
	struct odm_load_tally t = { 0 };

	(void)state;
	odm_load_tally_begin(&t, 3);
	pong(&t, 3, 100, 10);
	pong(&t, 4, 120, 15);
	odm_load_tally_session(&t); /* another process */
	assert_true(odm_load_tally_waits(&t));
	assert_between(&t, 20, 5);
	pong(&t, 1, 2, 1); /* from before us, or a first load: not ours to know */
	pong(&t, 2, 9, 2);
	odm_load_tally_end(&t, 3);
	pong(&t, 3, 10, 4);
	assert_between(&t, 20 + 8, 5 + 3);
}

/* Lost before the text, or back in its middle: what it loaded for an earlier text is no part of this one. */
static void a_worker_that_is_not_there_counts_nothing(void **state)
{
	struct odm_load_tally t = { 0 };

	(void)state;
	odm_load_tally_begin(&t, 1);
	pong(&t, 1, 100, 10);
	odm_load_tally_end(&t, 2);
	pong(&t, 2, 120, 15);
	assert_between(&t, 20, 5);
	odm_load_tally_begin(&t, 0);
	assert_false(odm_load_tally_waits(&t));
	assert_between(&t, 0, 0);
	pong(&t, 3, 130, 16); /* on its way when it was lost */
	assert_between(&t, 0, 0);
	odm_load_tally_session(&t);
	pong(&t, 1, 4, 1);
	pong(&t, 2, 9, 3);
	assert_between(&t, 5, 2);
}

static void counters_that_fall_are_ignored(void **state)
{
	struct odm_load_tally t = { 0 };

	(void)state;
	odm_load_tally_begin(&t, 1);
	pong(&t, 1, 100, 10);
	odm_load_tally_end(&t, 2);
	pong(&t, 2, 5, 1);
	assert_between(&t, 0, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_pongs_that_answer_count),
		cmocka_unit_test(a_worker_that_comes_back_counts_on),
		cmocka_unit_test(a_worker_that_is_not_there_counts_nothing),
		cmocka_unit_test(counters_that_fall_are_ignored),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

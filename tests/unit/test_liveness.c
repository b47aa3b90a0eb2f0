/* Liveness over times that the test makes up; the limits are design section 7's: 1.5 s and 3 s, looked at every 250
 * ms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/net/liveness.h"

#define MS OD_NS_PER_MS
#define T0 (1234567ull * OD_NS_PER_S)

static void test_silence(void **state)
{
	struct od_liveness l;
	uint64_t t;

	(void)state;
	od_liveness_start(&l, T0);
	for (t = 250; t <= 1500; t += 250)
		assert_int_equal(od_liveness_check(&l, T0 + t * MS), OD_ALIVE);
	assert_int_equal(od_liveness_check(&l, T0 + 1500 * MS + 1), OD_SILENT);
	od_liveness_heard(&l, T0 + 1600 * MS);
	assert_int_equal(od_liveness_check(&l, T0 + 1750 * MS), OD_ALIVE);
	for (t = 2000; t <= 3000; t += 250)
		assert_int_equal(od_liveness_check(&l, T0 + t * MS), OD_ALIVE);
	assert_int_equal(od_liveness_check(&l, T0 + 3100 * MS), OD_ALIVE);
	assert_int_equal(od_liveness_check(&l, T0 + 3100 * MS + 1), OD_SILENT);
}

/* Checks and pongs every 250 ms from time `from` up to and with `to` (ms): progress stands at `progress`. */
static enum od_verdict beat(struct od_liveness *l, unsigned from, unsigned to, uint64_t progress, bool busy)
{
	enum od_verdict v = OD_ALIVE;

	for (unsigned t = from; t <= to && v == OD_ALIVE; t += 250) {
		od_liveness_pong(l, T0 + t * MS, progress, busy);
		v = od_liveness_check(l, T0 + t * MS);
	}
	return v;
}

static void test_stuck(void **state)
{
	struct od_liveness l;

	(void)state;
	od_liveness_start(&l, T0);
	assert_int_equal(beat(&l, 250, 10000, 7, false), OD_ALIVE); /* nothing to do: 10 s without progress are fine */
	assert_int_equal(beat(&l, 10250, 13000, 7, true), OD_ALIVE); /* work since 10.25 s at the latest */
	assert_int_equal(beat(&l, 13250, 13250, 7, true), OD_STUCK); /* idle was last seen at 10 s */
	od_liveness_start(&l, T0);
	assert_int_equal(beat(&l, 250, 2750, 1, true), OD_ALIVE);
	assert_int_equal(beat(&l, 3000, 5750, 2, true), OD_ALIVE); /* one tick of progress in time */
	assert_int_equal(beat(&l, 6000, 6000, 2, true), OD_ALIVE);
	assert_int_equal(beat(&l, 6250, 6250, 2, true), OD_STUCK);
	assert_int_equal(beat(&l, 6500, 6500, 3, true), OD_ALIVE);
}

/* A daemon that hangs is first stuck; one that is killed is silent, whatever it was doing. */
static void test_silence_comes_first(void **state)
{
	struct od_liveness l;

	(void)state;
	od_liveness_start(&l, T0);
	assert_int_equal(beat(&l, 250, 2500, 0, true), OD_ALIVE);
	for (unsigned t = 2750; t <= 3000; t += 250)
		assert_int_equal(od_liveness_check(&l, T0 + t * MS), OD_ALIVE);
	for (unsigned t = 3250; t <= 4000; t += 250)
		assert_int_equal(od_liveness_check(&l, T0 + t * MS), OD_STUCK);
	assert_int_equal(od_liveness_check(&l, T0 + 4250 * MS), OD_SILENT);
}

/* A caller that was away for more than 750 ms gives that time back. */
static void test_absence(void **state)
{
	struct od_liveness l;
	uint64_t day = 86400000;

	(void)state;
	od_liveness_start(&l, T0);
	od_liveness_pong(&l, T0 + 200 * MS, 0, true);
	assert_int_equal(od_liveness_check(&l, T0 + 250 * MS), OD_ALIVE);
	/* Suspended for a day: the peer had 50 ms of silence before, and has them still. */
	assert_int_equal(od_liveness_check(&l, T0 + (day + 250) * MS), OD_ALIVE);
	for (unsigned t = 500; t <= 1500; t += 250)
		assert_int_equal(od_liveness_check(&l, T0 + (day + t) * MS), OD_ALIVE);
	assert_int_equal(od_liveness_check(&l, T0 + (day + 1700) * MS), OD_ALIVE);
	assert_int_equal(od_liveness_check(&l, T0 + (day + 1700) * MS + 1), OD_SILENT);
	/* A stuck one likewise: no progress since 0, all but the day counts. */
	od_liveness_pong(&l, T0 + (day + 1701) * MS, 0, true);
	assert_int_equal(od_liveness_check(&l, T0 + (day + 2250) * MS), OD_ALIVE);
	od_liveness_pong(&l, T0 + (day + 2400) * MS, 0, true);
	assert_int_equal(od_liveness_check(&l, T0 + (day + 3000) * MS), OD_ALIVE);
	assert_int_equal(od_liveness_check(&l, T0 + (day + 3000) * MS + 1), OD_STUCK);

	/* 750 ms are no absence: three of them in a row are silence. */
	od_liveness_start(&l, T0);
	assert_int_equal(od_liveness_check(&l, T0 + 750 * MS), OD_ALIVE);
	assert_int_equal(od_liveness_check(&l, T0 + 1500 * MS), OD_ALIVE);
	assert_int_equal(od_liveness_check(&l, T0 + 2250 * MS), OD_SILENT);
	/* One that is heard while away is not heard in the future. */
	od_liveness_start(&l, T0);
	od_liveness_heard(&l, T0 + 5000 * MS);
	assert_int_equal(od_liveness_check(&l, T0 + 5001 * MS), OD_ALIVE);
	assert_true(l.heard_ns <= T0 + 5001 * MS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_silence),
		cmocka_unit_test(test_stuck),
		cmocka_unit_test(test_silence_comes_first),
		cmocka_unit_test(test_absence),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

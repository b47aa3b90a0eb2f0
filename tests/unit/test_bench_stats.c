/* Expected values: numpy.percentile, and binomial tails summed as fractions in Python. */
#include "tests/bench/report/bench_stats.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* The cmocka of Debian 12 compares float only. */
#define assert_close(found, expected, within) assert_true(fabs((found) - (expected)) <= (within))

static void percentiles_as_numpy(void **state)
{
	double x[] = { 3.5, -1.25, 8, 2, 2, 7.75, 0.5, 11, 4, -6.5, 9 };
	struct od_stats s;

	(void)state;
	od_stats_of(x, 11, &s);
	assert_int_equal(s.n, 11);
	assert_close(s.min, -6.5, 0);
	assert_close(s.p10, -1.25, 0);
	assert_close(s.median, 3.5, 0);
	assert_close(s.p90, 9.0, 0);
	assert_close(s.max, 11.0, 0);
	assert_close(s.mean, 3.6363636363636362, 1e-15);
	assert_close(od_stats_percentile(x, 11, 0.33), 2.0, 0); /* x is sorted now */
	assert_close(od_stats_percentile(x, 11, 0.25), 1.25, 1e-12);
	assert_close(od_stats_percentile(x, 11, 1.0), 11.0, 0);
}

static void median_of_an_even_number(void **state)
{
	double x[] = { 40, 10, 30, 21 };
	struct od_stats s;

	(void)state;
	od_stats_of(x, 4, &s);
	assert_close(s.median, 25.5, 0);
}

/* The samples are 1..n in a scrambled order, so a value is its own rank. */
static void check_interval(size_t n, size_t stride, double low)
{
	static double x[5000];
	struct od_stats s;

	for (size_t i = 0; i < n; i++)
		x[i] = (double)(i * stride % n + 1);
	od_stats_of(x, n, &s);
	assert_close(s.ci_low, low, 0);
	assert_close(s.ci_high, (double)n + 1 - low, 0);
}

static void interval_is_the_binomial_one(void **state)
{
	(void)state;
	check_interval(6, 5, 1);
	check_interval(9, 4, 2);
	check_interval(10, 3, 2);
	check_interval(20, 7, 6);
	check_interval(50, 7, 18);
	check_interval(99, 7, 40);
	check_interval(1000, 7, 469);
	/* Beyond 1000 the normal limit, one rank wider than the exact 470 and 2431. */
	check_interval(1001, 8, 469);
	check_interval(5000, 7, 2430);
}

static void few_samples_give_the_whole_range(void **state)
{
	double five[] = { 5, 3, 1, 2, 4 }, one[] = { 7 };
	struct od_stats s;

	(void)state;
	od_stats_of(five, 5, &s);
	assert_close(s.ci_low, 1, 0);
	assert_close(s.ci_high, 5, 0);
	od_stats_of(one, 1, &s);
	assert_close(s.median, 7, 0);
	assert_close(s.p90, 7, 0);
	assert_close(s.ci_low, 7, 0);
}

static void no_samples_are_nan(void **state)
{
	struct od_stats s;

	(void)state;
	od_stats_of(NULL, 0, &s);
	assert_int_equal(s.n, 0);
	assert_true(isnan(s.median) && isnan(s.min) && isnan(s.ci_high) && isnan(s.mean));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(percentiles_as_numpy),		cmocka_unit_test(median_of_an_even_number),
		cmocka_unit_test(interval_is_the_binomial_one), cmocka_unit_test(few_samples_give_the_whole_range),
		cmocka_unit_test(no_samples_are_nan),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Intervals of od-bench recall: expected values are worked out in Python as fractions from the formulas of the header;
 * quantiles of t by integrating its density. Counts by hand. */
#include "tests/bench/live/recall_stats.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define assert_close(found, expected, within) assert_true(fabs((found) - (expected)) <= (within))

static void assert_interval(struct recall_interval i, double value, double low, double high)
{
	assert_close(i.value, value, 1e-12);
	assert_close(i.low, low, 2e-5); /* t has four digits */
	assert_close(i.high, high, 2e-5);
}

static void quantiles_of_t(void **state)
{
	(void)state;
	assert_true(isnan(recall_t975(0)));
	assert_close(recall_t975(1), 12.706205, 1e-4);
	assert_close(recall_t975(3), 3.182446, 1e-4);
	assert_close(recall_t975(10), 2.228139, 1e-4);
	assert_close(recall_t975(11), 2.200985, 2e-4);
	assert_close(recall_t975(19), 2.093024, 1e-4);
	assert_close(recall_t975(99), 1.984217, 1e-5);
	assert_close(recall_t975(100000000), 1.959964, 1e-6);
}

static const struct od_recall_cell first[] = { { 20, 19 }, { 24, 20 }, { 16, 16 }, { 30, 27 } };
static const struct od_recall_cell second[] = { { 20, 17 }, { 22, 20 }, { 16, 15 }, { 30, 29 } };

static void a_ratio_over_prompts(void **state)
{
	static const struct od_recall_cell gap[] = { { 20, 19 }, { 24, 20 }, { 0, 0 }, { 30, 27 } };
	static const struct od_recall_cell all[] = { { 20, 20 }, { 30, 29 } };
	double mean, sd;

	(void)state;
	assert_interval(recall_ratio(first, 4), 0.9111111111111111, 0.8092531056792268, 1);
	assert_interval(recall_ratio(gap, 4), 0.8918918918918919, 0.7608752403535188, 1);
	assert_close(recall_ratio(all, 2).high, 1, 0); /* no share is above 1 */
	recall_spread(first, 4, &mean, &sd);
	assert_close(mean, 0.9208333333333334, 1e-12);
	assert_close(sd, 0.0712000312109794, 1e-12);
}

static void a_difference_is_paired(void **state)
{
	static const struct od_recall_cell none[4] = { { 20, 17 } };
	struct recall_interval i = recall_difference(first, first, 4);

	(void)state;
	assert_interval(recall_difference(first, second, 4), -0.009343434343434343, -0.150151160063687,
			0.1314642913768183);
	assert_true(i.value == 0 && i.low == 0 && i.high == 0);
	i = recall_difference(first, none, 4); /* one prompt has uses in both */
	assert_close(i.value, 19.0 / 20 - 17.0 / 20, 1e-12);
	assert_true(isnan(i.low) && isnan(i.high));
}

static void nothing_is_not_a_number(void **state)
{
	static const struct od_recall_cell none[2];
	double mean, sd;

	(void)state;
	assert_true(isnan(recall_ratio(none, 2).value) && isnan(recall_difference(none, none, 2).value));
	recall_spread(none, 2, &mean, &sd);
	assert_true(isnan(mean) && isnan(sd));
	recall_spread(first, 1, &mean, &sd);
	assert_close(mean, 0.95, 1e-12);
	assert_true(isnan(sd));
}

static void margins_fall_into_buckets(void **state)
{
	(void)state;
	assert_int_equal(recall_margin_bucket(0), 0);
	assert_int_equal(recall_margin_bucket(0.000999), 0);
	assert_int_equal(recall_margin_bucket(0.001), 1);
	assert_int_equal(recall_margin_bucket(0.05), 4);
	assert_int_equal(recall_margin_bucket(0.6), RECALL_MARGINS - 1);
	assert_int_equal(recall_margin_bucket(1), RECALL_MARGINS - 1);
}

static void assert_cell(struct od_recall_cell c, uint64_t uses, uint64_t recalled)
{
	assert_int_equal(c.uses, uses);
	assert_int_equal(c.recalled, recalled);
}

static void rows_are_counted(void **state)
{
	static const uint16_t predicted[] = { 3, 1 }, used[] = { 1, 7 };
	struct recall_row row = { .layer = 1,
				  .token = 4,
				  .margin = 0.002,
				  .predicted = predicted,
				  .n_predicted = 2,
				  .used = used,
				  .n_used = 2 };
	struct recall_counts c, sum;

	(void)state;
	assert_int_equal(recall_counts_init(&c, 2, 8, NULL), OD_OK);
	assert_int_equal(recall_counts_init(&sum, 2, 8, NULL), OD_OK);
	recall_counts_row(&c, &row);
	recall_counts_lead(&c, 2, &row);
	recall_counts_lead(&c, 1000, &row);
	row.n_predicted = 0;
	recall_counts_row(&c, &row);
	c.steps = 3;
	c.wrong_guesses = 1;
	recall_counts_merge(&sum, &c);
	recall_counts_merge(&sum, &c);
	assert_cell(sum.recall.all, 4, 2);
	assert_cell(sum.recall.layer[1], 4, 2);
	assert_cell(sum.recall.token[4], 4, 2);
	assert_cell(sum.rank[0], 2, 2); /* the first choice, 1, was predicted */
	assert_cell(sum.rank[1], 2, 0);
	assert_cell(sum.margin[1], 4, 2);
	assert_cell(sum.margin[0], 0, 0);
	assert_cell(sum.lead[2], 4, 2);
	assert_cell(sum.lead[sum.n_leads - 1], 4, 2);
	assert_int_equal(sum.missing_rows, 2);
	assert_int_equal(sum.expert_uses, 8);
	assert_int_equal(sum.steps, 6);
	assert_int_equal(sum.wrong_guesses, 2);
	recall_counts_fini(&c);
	recall_counts_fini(&sum);
	recall_counts_fini(&sum);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(quantiles_of_t),
		cmocka_unit_test(a_ratio_over_prompts),
		cmocka_unit_test(a_difference_is_paired),
		cmocka_unit_test(nothing_is_not_a_number),
		cmocka_unit_test(margins_fall_into_buckets),
		cmocka_unit_test(rows_are_counted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

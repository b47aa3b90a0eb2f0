/* Times of workers: samples are played here with a clock of their own, against the times that they were made of. */
#include "main-node/cluster/worker_times.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/clock.h"

#define MS OD_NS_PER_MS
#define EXPERT_BYTES 1000000.0

static uint64_t now = 1000 * OD_NS_PER_S;

/* RUNs of layers with two experts of one row, which are loaded. */
static void play(struct odm_worker_times *t, unsigned runs, double load_ns, double run_ns)
{
	for (unsigned i = 0; i < runs; i++) {
		const struct odm_layer_report r = { .n_experts = 2,
						    .n_pairs = 2,
						    .n_loads = 2,
						    .compute_ns = 2 * run_ns,
						    .load_ns = 2 * load_ns,
						    .loaded_bytes = (uint64_t)(2 * EXPERT_BYTES) };

		now += 10 * MS;
		odm_times_add(t, &r, now);
	}
}

static double load_of(const struct odm_worker_times *t)
{
	return odm_time_median(&t->of[ODM_TIME_LOAD]) * EXPERT_BYTES;
}

static void a_worker_is_known_after_a_few_layers(void **state)
{
	struct odm_worker_times t = { 0 };

	(void)state;
	assert_true(load_of(&t) == 0);
	play(&t, 3, 8.0 * MS, 1.0 * MS);
	assert_false(odm_time_known(&t.of[ODM_TIME_RUN]));
	play(&t, 1, 8.0 * MS, 1.0 * MS);
	assert_true(odm_time_known(&t.of[ODM_TIME_RUN]));
	assert_float_equal(load_of(&t), 8.0 * MS, 1);
	assert_float_equal(odm_time_median(&t.of[ODM_TIME_RUN]), 1.0 * MS, 1);
}

static void four_times_slower_shows_after_four_layers_and_so_does_recovery(void **state)
{
	struct odm_worker_times t = { 0 };

	(void)state;
	play(&t, 1000, 8.0 * MS, 1.0 * MS);
	play(&t, 4, 32.0 * MS, 4.0 * MS);
	assert_float_equal(load_of(&t), 32.0 * MS, 1);
	assert_float_equal(odm_time_median(&t.of[ODM_TIME_RUN]), 4.0 * MS, 1);
	play(&t, 4, 8.0 * MS, 1.0 * MS);
	assert_float_equal(load_of(&t), 8.0 * MS, 1);
}

static void outliers_count_for_nothing(void **state)
{
	struct odm_worker_times t = { 0 };

	(void)state;
	for (int i = 0; i < 100; i++) {
		play(&t, 4, 8.0 * MS, 1.0 * MS);
		play(&t, 1, 800.0 * MS, 500.0 * MS);
		play(&t, 1, 0.01 * MS, 0.01 * MS);
		assert_float_equal(load_of(&t), 8.0 * MS, 1);
		assert_float_equal(odm_time_median(&t.of[ODM_TIME_RUN]), 1.0 * MS, 1);
		assert_true(odm_time_spread(&t.of[ODM_TIME_RUN]) < 0.1 * MS);
	}
}

/* An expert's weights are read once: 2 ms up to 20 rows, then 0.1 ms a row. */
static void rows_and_weights_are_told_apart(void **state)
{
	static const uint32_t rows[] = { 1, 60, 3, 200, 12, 128, 2, 256, 16, 90 };
	struct odm_worker_times t = { 0 };
	struct odm_expert_times e;

	(void)state;
	for (unsigned i = 0; i < 100; i++) {
		const uint32_t n = rows[i % (sizeof(rows) / sizeof(rows[0]))];
		const double ns = n < 20 ? 2.0 * MS : n * 0.1 * MS;

		odm_times_add(&t, &(struct odm_layer_report){ .n_experts = 1, .n_pairs = n, .compute_ns = ns }, now);
	}
	e = (struct odm_expert_times){ .run = odm_time_median(&t.of[ODM_TIME_RUN]),
				       .row = odm_time_median(&t.of[ODM_TIME_ROW]) };
	for (uint32_t n = 1; n < 300; n++)
		assert_float_equal(odm_expert_run_ns(&e, n), n < 20 ? 2.0 * MS : n * 0.1 * MS, 1000);
	assert_true(load_of(&t) == 0); /* nothing was loaded */
}

/* A device that takes 3 ms whatever the rows: what a row seems to take depends on how many there were. */
static void rows_that_cost_nothing_make_no_difference(void **state)
{
	struct odm_worker_times t = { 0 };

	(void)state;
	assert_true(odm_times_rows_bind(&t));
	for (uint32_t n = 1; n < 64; n++)
		odm_times_add(&t, &(struct odm_layer_report){ .n_experts = 1, .n_pairs = n, .compute_ns = 3.0 * MS },
			      now);
	assert_true(odm_time_known(&t.of[ODM_TIME_ROW]));
	assert_false(odm_times_rows_bind(&t));
	/* It is slowed to a quarter while it only has RUNs with many rows. */
	for (uint32_t i = 0; i < 4; i++)
		odm_times_add(&t, &(struct odm_layer_report){ .n_experts = 1, .n_pairs = 64, .compute_ns = 12.0 * MS },
			      now);
	assert_true(odm_times_rows_bind(&t));
	for (uint32_t i = 0; i < 4; i++)
		odm_times_add(&t, &(struct odm_layer_report){ .n_experts = 1, .n_pairs = 64, .compute_ns = 3.0 * MS },
			      now);
	assert_false(odm_times_rows_bind(&t));
}

static double estimate(const struct odm_worker_times *t, uint32_t n_workers)
{
	return odm_time_estimate(&t->of[ODM_TIME_LOAD], 8.0 * MS / EXPERT_BYTES, EXPERT_BYTES, n_workers, now) *
	       EXPERT_BYTES;
}

/* It gets work as soon as it is estimated at less than 10 ms. Its trials take 30 ms more than work elsewhere does. */
static double share_of_trials(uint32_t n_workers, double seconds)
{
	struct odm_worker_times t = { 0 };
	const uint64_t begin = now;
	double lost_ns = 0;

	play(&t, 20, 38.0 * MS, 1.0 * MS);
	while ((double)(now - begin) < seconds * 1e9) {
		now += 5 * MS;
		if (estimate(&t, n_workers) > 10.0 * MS)
			continue;
		play(&t, 1, 38.0 * MS, 1.0 * MS);
		lost_ns += 30.0 * MS;
	}
	return lost_ns / (double)(now - begin);
}

static void one_without_work_is_tried_now_and_then(void **state)
{
	(void)state;
	assert_in_range(10000 * share_of_trials(2, 60), 50, 210); /* at most 2% */
	assert_in_range(10000 * share_of_trials(5, 300), 10, 55); /* each of four such workers */
}

static void one_that_has_recovered_gets_work_again(void **state)
{
	struct odm_worker_times t = { 0 };

	(void)state;
	play(&t, 20, 40.0 * MS, 1.0 * MS);
	assert_float_equal(estimate(&t, 2), 40.0 * MS, 1);
	now += 2 * OD_NS_PER_S;
	assert_float_equal(estimate(&t, 2), 8.0 * MS, 1);
	play(&t, 1, 8.0 * MS, 1.0 * MS); /* the first trial goes well: so more follow at once */
	assert_true(estimate(&t, 2) < 9.0 * MS);
	play(&t, 3, 8.0 * MS, 1.0 * MS);
	now += MS;
	assert_float_equal(estimate(&t, 2), 8.0 * MS, 0.1 * MS);
	play(&t, 4, 40.0 * MS, 1.0 * MS);
	assert_float_equal(estimate(&t, 2), 40.0 * MS, 1);
}

static void a_late_answer_counts_before_it_comes(void **state)
{
	struct odm_worker_times t = { 0 };

	(void)state;
	play(&t, 20, 8.0 * MS, 1.0 * MS);
	odm_times_late(&t, 10, 90.0 * MS, EXPERT_BYTES, now);
	assert_float_equal(load_of(&t), 80.0 * MS, 1);
	t = (struct odm_worker_times){ 0 };
	odm_times_late(&t, 10, 90.0 * MS, EXPERT_BYTES, now);
	assert_float_equal(odm_time_median(&t.of[ODM_TIME_RUN]), 90.0 * MS, 1);
}

/* A cached expert, which should take a millisecond, takes a second. That says nothing about loads of minutes, after
 * which the worker would be tried in hours. */
static void late_answers_take_no_longer_than_they_have_taken(void **state)
{
	struct odm_worker_times t = { 0 };

	(void)state;
	play(&t, 20, 50.0 * MS, 1.0 * MS);
	odm_times_late(&t, 1000, 1000.0 * MS, EXPERT_BYTES, now);
	assert_float_equal(odm_time_median(&t.of[ODM_TIME_RUN]), 1000.0 * MS, 1);
	assert_float_equal(load_of(&t), 1000.0 * MS, 1);
	odm_times_late(&t, 10, 1.0 * MS, EXPERT_BYTES, now); /* nor does it seem quicker */
	assert_float_equal(load_of(&t), 1000.0 * MS, 1);
	assert_float_equal(odm_time_median(&t.of[ODM_TIME_RUN]), 1000.0 * MS, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_worker_is_known_after_a_few_layers),
		cmocka_unit_test(four_times_slower_shows_after_four_layers_and_so_does_recovery),
		cmocka_unit_test(outliers_count_for_nothing),
		cmocka_unit_test(rows_and_weights_are_told_apart),
		cmocka_unit_test(rows_that_cost_nothing_make_no_difference),
		cmocka_unit_test(one_without_work_is_tried_now_and_then),
		cmocka_unit_test(one_that_has_recovered_gets_work_again),
		cmocka_unit_test(a_late_answer_counts_before_it_comes),
		cmocka_unit_test(late_answers_take_no_longer_than_they_have_taken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

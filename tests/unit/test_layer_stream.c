/* Experts loaded ahead: by hand at each bound; the mean beside all layers of the last steps; and against a disk that is
 * fast, slow, or in between. */
#include "main-node/predict/layer_stream.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/random.h"

#define N_MOE 5
#define EXPERTS 100
#define MS 1000000u

/* As many layers of this kind that only they count. */
static void route(struct odm_layer_stream *s, size_t n_chosen)
{
	for (int i = 0; i < 1000; i++)
		odm_layer_stream_routed(s, N_MOE, EXPERTS, n_chosen);
}

/* Bounds are wider for what goes on. */
static void it_begins_and_ends(void **state)
{
	struct odm_layer_stream s = { 0 };

	(void)state;
	assert_false(odm_layer_stream_next(&s)); /* nothing is known */
	route(&s, 59);
	assert_false(odm_layer_stream_next(&s) || odm_layer_stream_pays(0.59));
	route(&s, 61);
	assert_true(odm_layer_stream_next(&s) && odm_layer_stream_pays(0.61));
	route(&s, 51);
	assert_true(odm_layer_stream_next(&s));
	route(&s, 49);
	assert_false(odm_layer_stream_next(&s));
	route(&s, 59);
	assert_false(odm_layer_stream_next(&s));
}

/* At first the mean of all layers, and of no more than the last steps when rows become fewer. */
static void means_follow(void **state)
{
	struct odm_layer_stream s = { 0 };
	double sum = 0;
	uint64_t seed = 3;

	(void)state;
	for (int i = 1; i <= 4 * N_MOE; i++) {
		const size_t n = random_below(&seed, EXPERTS);

		sum += (double)n / EXPERTS;
		odm_layer_stream_routed(&s, N_MOE, EXPERTS, n);
		assert_true(fabs(s.chosen - sum / i) < 1e-9);
	}
	route(&s, 90);
	for (int i = 0; i < 10 * N_MOE; i++)
		odm_layer_stream_routed(&s, N_MOE, EXPERTS, 2);
	assert_true(s.chosen < 0.12);
}

/* A step computes for 10 ms and waits for half of the reads that were not ahead. Missing experts are used with
 * probabilities that are spread evenly from 0 to 1; to read all of them takes all_ms. Returns the time that the last
 * of many steps took. */
static double settle(struct odm_layer_stream *s, double all_ms)
{
	double step_ms = 0;

	route(s, 80);
	for (int i = 0; i < 400; i++) {
		double ahead, waited, reads;

		assert_true(odm_layer_stream_next(s));
		ahead = 1 - s->least;
		waited = s->least * s->least / 2;
		reads = (ahead + waited) * all_ms;
		step_ms = fmax(10 + waited * all_ms / 2, reads);
		odm_layer_stream_ended(s, (uint64_t)(step_ms * MS), (uint64_t)((step_ms - 10) * MS),
				       (uint64_t)(reads * MS));
	}
	return step_ms;
}

static void it_follows_the_disk(void **state)
{
	struct odm_layer_stream s = { 0 };

	(void)state;
	assert_true(settle(&s, 9) < 10.01 && s.least < 0.06); /* all of it is loaded while others are computed */
	for (double all_ms = 12; all_ms < 40; all_ms += 4) {
		const double is = settle(&s, all_ms);
		double best = INFINITY;

		for (double least = 0; least <= 1; least += 0.001)
			best = fmin(best,
				    fmax(10 + least * least / 4 * all_ms, (1 - least + least * least / 2) * all_ms));
		assert_true(is < 1.07 * best);
	}
	(void)settle(&s, 1000); /* nothing helps */
	assert_true(s.least > 0.9 && s.least <= 1);
	assert_true(settle(&s, 9) < 10 / 0.979); /* until waits are hardly more than 2 % */
}

/* Other steps leave it as it is. */
static void it_stays_where_nothing_waits(void **state)
{
	struct odm_layer_stream s = { .least = 0.5 };

	(void)state;
	route(&s, 80);
	assert_true(odm_layer_stream_next(&s));
	for (int i = 0; i < 100; i++)
		odm_layer_stream_ended(&s, 10 * MS, MS / 10, 10 * MS);
	assert_true(s.least == 0.5);
	route(&s, 10);
	assert_false(odm_layer_stream_next(&s));
	for (int i = 0; i < 100; i++)
		odm_layer_stream_ended(&s, 10 * MS, 5 * MS, 5 * MS);
	assert_true(s.least == 0.5);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(it_begins_and_ends), cmocka_unit_test(means_follow),
					    cmocka_unit_test(it_follows_the_disk),
					    cmocka_unit_test(it_stays_where_nothing_waits) };

	return cmocka_run_group_tests_name("layer_stream", tests, NULL, NULL);
}

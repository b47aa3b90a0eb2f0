/* Whole layers ahead: by hand at each bound, and the means beside all layers of the last steps. */
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
#define MISSING 20

/* As many layers of this kind that only they count. */
static void route(struct odm_layer_stream *s, size_t n_chosen, size_t n_missing_chosen)
{
	const struct odm_layer_choice c = {
		.n = EXPERTS, .n_chosen = n_chosen, .n_missing = MISSING, .n_missing_chosen = n_missing_chosen
	};

	for (int i = 0; i < 1000; i++)
		odm_layer_stream_routed(s, N_MOE, &c);
}

static bool begins(size_t n_chosen, size_t n_missing_chosen, double rho)
{
	struct odm_layer_stream s = { 0 };

	route(&s, n_chosen, n_missing_chosen);
	return odm_layer_stream_next(&s, rho);
}

static void it_begins(void **state)
{
	(void)state;
	assert_true(begins(61, 5, 1.19)); /* reads are fast enough */
	assert_false(begins(61, 5, 1.21));
	assert_false(begins(59, 5, 0.1)); /* few rows */
	assert_true(begins(61, 16, 9)); /* nearly all of it has to be read anyway */
	assert_false(begins(61, 14, 9));
	assert_false(begins(59, 20, 9));
	assert_true(begins(61, 16, INFINITY)); /* no rate is known */
	assert_false(begins(61, 14, INFINITY));
}

/* Bounds are wider for what goes on. */
static void it_ends(void **state)
{
	struct odm_layer_stream s = { 0 };

	(void)state;
	route(&s, 61, 5);
	assert_true(odm_layer_stream_next(&s, 1));
	assert_true(odm_layer_stream_next(&s, 1.29));
	assert_false(odm_layer_stream_next(&s, 1.31));
	assert_false(odm_layer_stream_next(&s, 1.29));
	assert_true(odm_layer_stream_next(&s, 1));
	route(&s, 51, 5);
	assert_true(odm_layer_stream_next(&s, 1));
	route(&s, 49, 5);
	assert_false(odm_layer_stream_next(&s, 1));
	route(&s, 61, 16);
	assert_true(odm_layer_stream_next(&s, 9));
	route(&s, 61, 14);
	assert_true(odm_layer_stream_next(&s, 9));
	route(&s, 61, 12);
	assert_false(odm_layer_stream_next(&s, 9));
}

static void nothing_is_missing(void **state)
{
	const struct odm_layer_choice c = { .n = EXPERTS, .n_chosen = EXPERTS };
	struct odm_layer_stream s = { 0 };

	(void)state;
	assert_false(odm_layer_stream_next(&s, 0));
	odm_layer_stream_routed(&s, N_MOE, &c);
	assert_false(odm_layer_stream_next(&s, 0));
}

/* At first the mean of all layers, and of no more than the last steps when rows become fewer. */
static void means_follow(void **state)
{
	struct odm_layer_stream s = { 0 };
	double sum = 0, missing_sum = 0;
	uint64_t seed = 3;

	(void)state;
	for (int i = 1; i <= 4 * N_MOE; i++) {
		const struct odm_layer_choice c = { .n = EXPERTS,
						    .n_chosen = random_below(&seed, EXPERTS),
						    .n_missing = MISSING,
						    .n_missing_chosen = random_below(&seed, MISSING) };

		sum += (double)c.n_chosen / EXPERTS;
		missing_sum += (double)c.n_missing_chosen / MISSING;
		odm_layer_stream_routed(&s, N_MOE, &c);
		assert_true(fabs(s.chosen - sum / i) < 1e-9 && fabs(s.missing_chosen - missing_sum / i) < 1e-9);
	}
	route(&s, 90, 18);
	for (int i = 0; i < 10 * N_MOE; i++) {
		const struct odm_layer_choice few = { .n = EXPERTS, .n_chosen = 2, .n_missing = MISSING };

		odm_layer_stream_routed(&s, N_MOE, &few);
	}
	assert_true(s.chosen < 0.12 && s.missing_chosen < 0.1);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(it_begins), cmocka_unit_test(it_ends),
					    cmocka_unit_test(nothing_is_missing), cmocka_unit_test(means_follow) };

	return cmocka_run_group_tests_name("layer_stream", tests, NULL, NULL);
}

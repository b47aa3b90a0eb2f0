/* Whether main's own predictor pays: the faster way is found, however the first steps were, and found again when it
 * becomes the other one. */
#include "main-node/predict/predict_trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/random.h"

/* Steps that predict, of n, when a step takes ns[ahead] and a tenth more or less. */
static size_t run(struct odm_predict_trial *t, size_t n, const uint64_t ns[2], uint64_t *seed)
{
	size_t ahead = 0;

	for (size_t i = 0; i < n; i++) {
		const bool a = odm_predict_trial_next(t);
		const size_t rows = 1 + random_below(seed, 4);

		ahead += a;
		/* every tenth step is given up */
		odm_predict_trial_ended(t, i % 10 == 9 ? 0 : rows * (ns[a] * 9 / 10 + random_below(seed, ns[a] / 5)),
					rows);
	}
	return ahead;
}

static void the_faster_way_is_used(void **state)
{
	static const uint64_t cold[2] = { 900000, 900000 }, pays[2] = { 1300, 1000 }, costs[2] = { 1000, 1300 };
	uint64_t seed = 3;

	(void)state;
	for (int round = 0; round < 20; round++) {
		struct odm_predict_trial t = { 0 };
		size_t ahead;

		(void)run(&t, 32, cold, &seed); /* an empty cache */
		(void)run(&t, 4 * 32, round % 2 ? pays : costs, &seed);
		ahead = run(&t, 3200, round % 2 ? pays : costs, &seed);
		assert_true(round % 2 ? ahead > 2900 : ahead < 300);
		(void)run(&t, 8000, round % 2 ? costs : pays, &seed);
		ahead = run(&t, 3200, round % 2 ? costs : pays, &seed);
		assert_true(round % 2 ? ahead < 300 : ahead > 2900);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_faster_way_is_used),
	};

	return cmocka_run_group_tests_name("predict_trial", tests, NULL, NULL);
}

/* Random experts: the draws of SplitMix64 as Python computes them, and no expert favoured. */
#include "tests/bench/live/random_predictor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* From a Python SplitMix64 (checked: seed 1234567 gives 6457827717110365317, 3203168211198807973):
 * state = mix(step) ^ mix(layer << 32); the k first different mix(state++) mod n. */
static void same_as_the_reference(void **state)
{
	static const struct {
		uint64_t step;
		uint32_t layer, n, k;
		uint16_t want[10];
	} t[] = {
		{ 0, 0, 8, 2, { 7, 1 } },
		{ 0, 1, 8, 2, { 0, 1 } },
		{ 1, 0, 8, 2, { 4, 3 } },
		{ 7, 31, 8, 8, { 0, 3, 4, 5, 2, 1, 6, 7 } },
		{ 123456789012345, 25, 64, 6, { 19, 13, 2, 37, 21, 46 } },
		{ UINT64_MAX, UINT32_MAX, 512, 10, { 497, 285, 437, 403, 377, 151, 465, 407, 511, 125 } },
		{ 5, 3, 300, 4, { 155, 71, 124, 123 } },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		uint16_t expert[11];

		memset(expert, 0xee, sizeof(expert));
		od_predict_random(t[i].step, t[i].layer, t[i].n, t[i].k, expert);
		assert_memory_equal(expert, t[i].want, t[i].k * sizeof(expert[0]));
		assert_int_equal(expert[t[i].k], 0xeeee);
	}
}

static void different_and_in_range(void **state)
{
	static const uint32_t sizes[][2] = {
		{ 1, 1 }, { 2, 1 }, { 2, 2 }, { 3, 2 }, { 60, 4 }, { 64, 64 }, { 512, 10 }
	};

	(void)state;
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		for (uint64_t step = 0; step < 50; step++) {
			uint16_t expert[64];
			bool seen[512] = { false };

			od_predict_random(step, (uint32_t)step % 7, sizes[s][0], sizes[s][1], expert);
			for (uint32_t i = 0; i < sizes[s][1]; i++) {
				assert_true(expert[i] < sizes[s][0]);
				assert_false(seen[expert[i]]);
				seen[expert[i]] = true;
			}
		}
	}
}

/* 4 of 16, 4000 times: each expert 1000 times, give or take; Python counts 964 to 1031. */
static void no_expert_is_favoured(void **state)
{
	uint32_t count[16] = { 0 };

	(void)state;
	for (uint64_t step = 0; step < 1000; step++) {
		for (uint32_t layer = 0; layer < 4; layer++) {
			uint16_t expert[4];

			od_predict_random(step, layer, 16, 4, expert);
			for (int i = 0; i < 4; i++)
				count[expert[i]]++;
		}
	}
	for (int i = 0; i < 16; i++)
		assert_in_range(count[i], 964, 1031);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_as_the_reference),
		cmocka_unit_test(different_and_in_range),
		cmocka_unit_test(no_expert_is_favoured),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

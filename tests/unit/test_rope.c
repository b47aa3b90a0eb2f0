/* Frequencies of rotary embeddings against double precision (rope_table.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "common/model/rope.h"
#include "tests/unit/rope_table.h"

#define N_CASES (sizeof(rope_table) / sizeof(rope_table[0]))

static struct od_rope rope_of(size_t i)
{
	return (struct od_rope){ .dims = rope_table[i].dims,
				 .theta = rope_table[i].theta,
				 .magnitude = 1,
				 .factor = rope_table[i].factor,
				 .beta_fast = rope_table[i].beta_fast,
				 .beta_slow = rope_table[i].beta_slow,
				 .original_ctx = rope_table[i].original_ctx,
				 .between = rope_table[i].between };
}

/* Each step is rounded to f32, a handful of times. */
static void test_frequencies(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_CASES; i++) {
		const struct od_rope rope = rope_of(i);
		float found[65];

		found[rope.dims / 2] = 77;
		od_rope_frequencies(&rope, false, found);
		assert_true(found[rope.dims / 2] == 77);
		for (size_t k = 0; k < rope.dims / 2; k++) {
			double want = rope_table[i].freq[k];

			if (!(fabs((double)found[k] - want) <= 4e-7 * want))
				fail_msg("case %zu, pair %zu: expected %.9g, found %.9g", i, k, want, (double)found[k]);
		}
	}
}

/* The table is not all of one kind: some pairs keep their frequency, some are divided, some lie between. */
static void test_table(void **state)
{
	(void)state;
	for (size_t i = 3; i < N_CASES; i++) {
		const struct od_rope rope = rope_of(i), plain = { .dims = rope.dims, .theta = rope.theta };
		unsigned same = 0, divided = 0, between = 0;
		float freq[64];

		od_rope_frequencies(&plain, false, freq);
		for (size_t k = 0; k < rope.dims / 2; k++) {
			double ratio = (double)freq[k] / rope_table[i].freq[k];

			if (ratio < 1 + 1e-6)
				same++;
			else if (ratio > rope.factor * (1 - 1e-6))
				divided++;
			else
				between++;
		}
		assert_true(same > 0);
		assert_int_equal(divided > 0, rope.factor > 1);
		assert_int_equal(between > 0, rope.factor > 1 && rope.original_ctx > 6);
	}
}

/* A plain frequency is rounded as Hugging Face has it: the exponent, the power, then its reciprocal. */
static void test_rounding(void **state)
{
	const struct od_rope rope = { .dims = 10, .theta = 10000 };
	float freq[5];

	(void)state;
	od_rope_frequencies(&rope, false, freq);
	assert_true(freq[0] == 1);
	/* 2/10, 4/10 ... are no f32s: 10000^0.2f and so on, by 40 digits of the f32 exponents. */
	assert_true(freq[1] == 1.0f / 6.30957365f);
	assert_true(freq[2] == 1.0f / 39.8107185f);
	assert_true(freq[3] == 1.0f / 251.188705f);
	assert_true(freq[4] == 1.0f / 1584.89331f);
}

/* Long RoPE: the factors of a short and of a long text, here as large as in Phi-3.5-MoE, by 20 digits. */
static void test_long(void **state)
{
	const struct od_rope rope = { .dims = 8,
				      .theta = 10000,
				      .magnitude = 1.25f,
				      .short_ctx = 4096,
				      .long_magnitude = 1.5f,
				      .pair_factor = { { 1, 1.05f, 1.5f, 2.75f }, { 1.0625f, 4, 30.5f, 64 } } };
	static const double want[2][4] = { { 1, 0.095238093, 0.0066666667, 0.00036363636 },
					   { 0.94117647, 0.025, 0.00032786885, 0.000015625 } };

	(void)state;
	for (int set = 0; set < 2; set++) {
		float found[5] = { 0, 0, 0, 0, 77 };

		od_rope_frequencies(&rope, set == 1, found);
		assert_true(found[4] == 77);
		for (int i = 0; i < 4; i++)
			assert_true(fabs((double)found[i] - want[set][i]) <= 4e-7 * want[set][i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_frequencies),
		cmocka_unit_test(test_table),
		cmocka_unit_test(test_rounding),
		cmocka_unit_test(test_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

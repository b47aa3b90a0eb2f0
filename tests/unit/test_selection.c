/* Maximum-entropy selection, against enumeration of all sets, against sums in the numbers of the definition, and
 * against Monte Carlo with a fixed seed. */
#include "tests/bench/sim/selection.h"
#include "tests/unit/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define MOST 128

static uint64_t seed;

static double uniform(void)
{
	return (double)(random_u64(&seed) >> 11) * 0x1p-53;
}

/* Inclusion probabilities by their definition: every set of k, weighed by its product of odds. */
static void by_enumeration(const double *q, uint32_t n, uint32_t k, double *f)
{
	double all = 0;

	memset(f, 0, n * sizeof(*f));
	for (uint32_t set = 0; set < 1u << n; set++) {
		double p = 1;

		if (__builtin_popcount(set) != (int)k)
			continue;
		for (uint32_t i = 0; i < n; i++)
			p *= set >> i & 1 ? q[i] : 1 - q[i];
		all += p;
		for (uint32_t i = 0; i < n; i++)
			f[i] += set >> i & 1 ? p : 0;
	}
	for (uint32_t i = 0; i < n; i++)
		f[i] /= all;
}

/* Does so for many experts: each one is drawn together with k - 1 of the others. */
static void by_counting(const double *q, uint32_t n, uint32_t k, double *f)
{
	double hits[MOST + 1];

	for (uint32_t one = 0; one < n; one++) {
		memset(hits, 0, sizeof(hits));
		hits[0] = 1;
		for (uint32_t i = 0; i < n; i++) {
			if (i == one)
				continue;
			for (uint32_t h = k; h > 0; h--)
				hits[h] = hits[h] * (1 - q[i]) + hits[h - 1] * q[i];
			hits[0] *= 1 - q[i];
		}
		f[one] = q[one] * hits[k - 1] / (q[one] * hits[k - 1] + (1 - q[one]) * hits[k]);
	}
}

/* f of the given spread, its sum k; some are exactly 0 or 1, or nearly. */
static void random_f(double *f, uint32_t n, uint32_t k, double spread)
{
	for (uint32_t i = 0; i < n; i++)
		f[i] = exp(spread * (uniform() - 0.5));
	if (n > 3 && spread > 20) {
		f[0] = k < n ? 0 : 1;
		f[1] = 1e-9;
		if (k > 2) {
			f[2] = 1;
			f[3] = 1 - 1e-8;
		}
	}
	sim_selection_scale(f, n, k);
}

static void fit_meets_what_it_is_given(void **state)
{
	static const double spreads[] = { 0.1, 2, 6, 12, 24 };

	(void)state;
	seed = 2;
	for (int round = 0; round < 1000; round++) {
		uint32_t n = 1 + (uint32_t)(uniform() * 10), k = 1 + (uint32_t)(uniform() * n);
		double f[10], q[10], got[10];

		random_f(f, n, k, spreads[round % 5]);
		assert_int_equal(sim_selection_fit(f, n, k, q, NULL), OD_OK);
		by_enumeration(q, n, k, got);
		for (uint32_t i = 0; i < n; i++)
			assert_true(fabs(f[i] - got[i]) < 1e-8);
	}
}

/* As many experts as there are anywhere, from hardly ever to nearly always: no number leaves the range of a double. */
static void large_and_skewed(void **state)
{
	static const uint32_t shapes[][2] = { { 128, 8 }, { 128, 1 }, { 128, 64 }, { 128, 127 }, { 64, 6 }, { 60, 4 } };

	(void)state;
	seed = 3;
	for (int round = 0; round < 60; round++) {
		uint32_t n = shapes[round % 6][0], k = shapes[round % 6][1];
		double f[MOST], q[MOST], got[MOST], hits[MOST + 1];

		random_f(f, n, k, 5.0 * (round / 6));
		assert_int_equal(sim_selection_fit(f, n, k, q, NULL), OD_OK);
		by_counting(q, n, k, got);
		for (uint32_t i = 0; i < n; i++)
			assert_true(fabs(f[i] - got[i]) < 1e-8);
		sim_selection_hits(q, n, k, hits);
		assert_true(hits[k] > 1e-3);
	}
}

/* Among all distributions with these inclusion probabilities it is the one that weighs sets by a product of weights:
 * for four experts and pairs there is one number left to choose, and entropy is greatest where the fit has it. */
static void entropy_is_greatest(void **state)
{
	static const double f[] = { 0.8, 0.6, 0.4, 0.2 };
	double q[4], p[6], all = 0;
	static const uint32_t pair[6][2] = { { 0, 1 }, { 0, 2 }, { 0, 3 }, { 1, 2 }, { 1, 3 }, { 2, 3 } };
	/* Moves that leave every f as it is: 01 and 23 against 02 and 13, and so on. */
	static const double move[2][6] = { { 1, -1, 0, 0, -1, 1 }, { 1, 0, -1, -1, 0, 1 } };

	(void)state;
	assert_int_equal(sim_selection_fit(f, 4, 2, q, NULL), OD_OK);
	for (int s = 0; s < 6; s++) {
		p[s] = q[pair[s][0]] / (1 - q[pair[s][0]]) * q[pair[s][1]] / (1 - q[pair[s][1]]);
		all += p[s];
	}
	for (int m = 0; m < 2; m++) {
		double slope = 0;

		for (int s = 0; s < 6; s++)
			slope -= move[m][s] * log(p[s] / all);
		assert_true(fabs(slope) < 1e-9);
	}
}

static void hits_agree_with_monte_carlo(void **state)
{
	enum { N = 128, K = 8, DRAWS = 40000 };
	static const uint32_t from[] = { 0, 4, 20, 60, 128 };
	double f[N], q[N], share[4][K + 1] = { { 0 } };
	uint32_t n_draws = 0;

	(void)state;
	seed = 4;
	for (uint32_t i = 0; i < N; i++)
		f[i] = 1.0 / (i + 1);
	sim_selection_scale(f, N, K);
	assert_int_equal(sim_selection_fit(f, N, K, q, NULL), OD_OK);
	while (n_draws < DRAWS) {
		uint32_t hits[4] = { 0 };

		for (uint32_t block = 0; block < 4; block++) {
			for (uint32_t i = from[block]; i < from[block + 1]; i++)
				hits[block] += uniform() < q[i];
		}
		if (hits[0] + hits[1] + hits[2] + hits[3] != K)
			continue;
		n_draws++;
		for (uint32_t block = 0; block < 4; block++)
			share[block][hits[block]] += 1.0 / DRAWS;
	}
	for (uint32_t block = 0; block < 4; block++) {
		double in[K + 1], out[K + 1], rest[N], all[K + 1];
		uint32_t n = from[block + 1] - from[block];

		/* This block has h, all the others the rest of K. */
		memcpy(rest, q, from[block] * sizeof(*q));
		memcpy(rest + from[block], q + from[block + 1], (N - from[block + 1]) * sizeof(*q));
		sim_selection_hits(q + from[block], n, K, in);
		sim_selection_hits(rest, N - n, K, out);
		sim_selection_hits(q, N, K, all);
		for (uint32_t h = 0; h <= K; h++) {
			double p = in[h] * out[K - h] / all[K], sigma = sqrt(p * (1 - p) / DRAWS);

			assert_true(fabs(share[block][h] - p) < 5 * sigma + 1e-4);
		}
	}
}

static void nonsense_is_refused(void **state)
{
	static const double over[] = { 1.5, 0.5 }, nan_f[] = { NAN, 1 }, sum[] = { 0.5, 0.6 }, good[] = { 0.5, 0.5 };
	double q[2];
	struct od_err err;

	(void)state;
	assert_int_equal(sim_selection_fit(over, 2, 2, q, &err), OD_ERR_RANGE);
	assert_non_null(strstr(err.msg, "1.5"));
	assert_int_equal(sim_selection_fit(nan_f, 2, 1, q, &err), OD_ERR_RANGE);
	assert_int_equal(sim_selection_fit(sum, 2, 1, q, &err), OD_ERR_RANGE);
	assert_int_equal(sim_selection_fit(good, 2, 0, q, &err), OD_ERR_RANGE);
	assert_int_equal(sim_selection_fit(good, 2, 3, q, &err), OD_ERR_RANGE);
	assert_int_equal(sim_selection_fit(good, 2, 1, q, &err), OD_OK);
}

static void scaling(void **state)
{
	double f[] = { 6, 1, 1 }, none[] = { 0, 0, 2 };

	(void)state;
	sim_selection_scale(f, 3, 2); /* 1.5 would be too much of the first */
	assert_true(f[0] == 1 && fabs(f[1] - 0.5) < 1e-15 && fabs(f[2] - 0.5) < 1e-15);
	sim_selection_scale(none, 3, 1);
	assert_true(none[0] == 0 && none[2] == 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fit_meets_what_it_is_given), cmocka_unit_test(large_and_skewed),
		cmocka_unit_test(entropy_is_greatest),	      cmocka_unit_test(hits_agree_with_monte_carlo),
		cmocka_unit_test(nonsense_is_refused),	      cmocka_unit_test(scaling),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Log probabilities against their definition in long double, with everything sorted. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/model/logprobs.h"
#include "tests/unit/random.h"

#define MAX_VOCAB 3000u
#define MAX_TOP 20u

static uint64_t seed = 4;
static float logits[MAX_VOCAB];

static long double log_sum_by_hand(uint32_t n)
{
	long double best = logits[0], sum = 0;

	for (uint32_t i = 1; i < n; i++)
		best = fmaxl(best, logits[i]);
	for (uint32_t i = 0; i < n; i++)
		sum += expl(logits[i] - best);
	return best + logl(sum);
}

static int better_first(const void *a, const void *b)
{
	const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

	return logits[x] != logits[y] ? (logits[x] > logits[y] ? -1 : 1) : x < y ? -1 : 1;
}

/* The n_any best and worst tokens together. */
static void check_any(uint32_t n, const int32_t *order, size_t n_any, struct od_logprob known, long double sum)
{
	const double best = od_logprobs_any(logits, order, n_any, known),
		     worst = od_logprobs_any(logits, order + n - n_any, n_any, known);
	long double p[2] = { 0 };

	for (size_t i = 0; i < n_any; i++) {
		p[0] += expl(logits[order[i]] - sum);
		p[1] += expl(logits[order[n - 1 - i]] - sum);
	}
	assert_true(n_any > 0 ? fabsl(best - logl(p[0])) <= 1e-12L * (1 + fabsl(sum)) : best == -INFINITY);
	assert_true(n_any > 0 ? fabsl(worst - logl(p[1])) <= 1e-12L * (1 + fabsl(sum)) : worst == -INFINITY);
}

static void check(uint32_t n)
{
	static int32_t order[MAX_VOCAB];
	const long double sum = log_sum_by_hand(n);

	for (uint32_t i = 0; i < n; i++)
		order[i] = (int32_t)i;
	qsort(order, n, sizeof(order[0]), better_first);
	for (size_t top = 0; top <= MAX_TOP && top <= n; top++) {
		const int32_t token = (int32_t)random_below(&seed, n);
		struct od_logprob found[MAX_TOP + 1];
		double own;

		found[top].token = -7;
		own = od_logprobs(logits, n, token, found, top);
		assert_true(fabsl(own - (logits[token] - sum)) <= 1e-13L * (1 + fabsl(sum)));
		for (size_t i = 0; i < top; i++) {
			assert_int_equal(found[i].token, order[i]);
			assert_true(fabsl(found[i].logprob - (logits[order[i]] - sum)) <= 1e-13L * (1 + fabsl(sum)));
			assert_true(found[i].token != token || found[i].logprob == own);
		}
		assert_int_equal(found[top].token, -7);
		assert_int_equal(order[od_logprobs_rank(logits, n, token) - 1], token);
		check_any(n, order, top, (struct od_logprob){ token, own }, sum);
	}
}

static void against_definition(void **state)
{
	static const uint32_t size[] = { 1, 2, 19, 20, 21, 255, 256, 257, 1000, MAX_VOCAB };

	(void)state;
	for (unsigned c = 0; c < 200; c++) {
		const uint32_t n = size[c % 10];
		const double spread = c % 4 == 0 ? 0.001 : c % 4 == 1 ? 3 : c % 4 == 2 ? 20 : 900;

		for (uint32_t i = 0; i < n; i++) {
			logits[i] = (float)(spread * ((double)random_below(&seed, 2000001) / 1e6 - 1));
			if (c % 3 == 0) /* many are equal */
				logits[i] = roundf(logits[i]);
		}
		check(n);
	}
}

/* Probabilities that are known without a calculation. */
static void known_ones(void **state)
{
	struct od_logprob top[2];

	(void)state;
	for (uint32_t i = 0; i < 8; i++)
		logits[i] = 3;
	assert_true(fabs(od_logprobs(logits, 8, 5, top, 2) + log(8)) < 1e-15);
	assert_true(top[0].token == 0 && top[1].token == 1);
	logits[3] = 1e30f;
	assert_true(od_logprobs(logits, 8, 3, top, 1) == 0);
	assert_true(top[0].token == 3 && top[0].logprob == 0);
	assert_true(od_logprobs(logits, 8, 1, NULL, 0) == (double)3.0f - (double)1e30f);
	assert_true(od_logprobs(logits, 1, 0, top, 1) == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(against_definition), cmocka_unit_test(known_ones) };

	return cmocka_run_group_tests_name("logprobs", tests, NULL, NULL);
}

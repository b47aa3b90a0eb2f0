/* The testbed's wrong predictions: noise on the router's logits, as quantized shadows have it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "shadow-node/publish.h"
#include "tests/unit/random.h"

#define TOP_K 2u
#define N 8u
#define ROWS 20000u

struct ods_sink __real_ods_publisher_sink(struct ods_publisher *p);
struct ods_sink __wrap_ods_publisher_sink(struct ods_publisher *p);

/* The last prediction that was published. */
static struct {
	uint16_t expert[N];
	float probability[N];
	size_t n;
} seen;

static void publish(void *arg, uint32_t m, const struct od_prediction *p, size_t n)
{
	(void)arg;
	assert_int_equal(n, 1);
	assert_int_equal(p->m, m);
	assert_int_equal(p->n, N);
	memcpy(seen.expert, p->expert, sizeof(seen.expert));
	memcpy(seen.probability, p->probability, sizeof(seen.probability));
	seen.n = p->n;
}

struct ods_sink __real_ods_publisher_sink(struct ods_publisher *p)
{
	(void)p;
	return (struct ods_sink){ .predict = publish };
}

static struct ods_sink sink_of(const char *words)
{
	assert_int_equal(setenv("OD_WRONG", words, 1), 0);
	return __wrap_ods_publisher_sink(NULL);
}

/* Experts 7, 6, ... 0; each logit below the one before by up to 1. */
static struct od_prediction row_of(uint32_t position, uint16_t *expert, float *probability)
{
	uint64_t seed = position + 1;
	double logit = 0, sum = 0;

	for (size_t i = 0; i < N; i++) {
		expert[i] = (uint16_t)(N - 1 - i);
		probability[i] = (float)exp(logit);
		sum += probability[i];
		logit -= (double)(1 + random_below(&seed, 1000)) * 1e-3;
	}
	for (size_t i = 0; i < N; i++)
		probability[i] /= (float)sum;
	return (struct od_prediction){
		.sequence = 3, .position = position, .m = 5, .n = N, .expert = expert, .probability = probability
	};
}

static size_t place_of(uint16_t expert)
{
	size_t i = 0;

	while (i < N && seen.expert[i] != expert)
		i++;
	return i;
}

static void without_noise_it_changes_nothing(void **state)
{
	const struct ods_sink sink = sink_of("0 1");
	uint16_t expert[N];
	float probability[N];
	const struct od_prediction p = row_of(1, expert, probability);

	(void)state;
	sink.predict(NULL, p.m, &p, 1);
	assert_memory_equal(seen.expert, expert, sizeof(expert));
	assert_memory_equal(seen.probability, probability, sizeof(probability));
}

/* Logits that lie x apart change places with probability erfc(x / 2 s) / 2 if the noise of each has deviation s. The
 * second and the third lie x apart, x uniform from 0 to 1: s / sqrt(pi) of the rows, 0.0282 with s = 0.05. The first
 * and the third, and the second and the fourth, add s^2 / 2 each, less where both happen: up to 0.0307 in all. */
static void mistakes_are_runners_up_at_small_margins(void **state)
{
	const struct ods_sink sink = sink_of("0.05 7");
	unsigned wrong = 0, next = 0;
	double margins = 0;

	(void)state;
	for (uint32_t row = 0; row < ROWS; row++) {
		uint16_t expert[N], again[N];
		float probability[N];
		double sum = 0;
		const struct od_prediction p = row_of(row, expert, probability);

		sink.predict(NULL, p.m, &p, 1);
		memcpy(again, seen.expert, sizeof(again));
		sink.predict(NULL, p.m, &p, 1);
		assert_memory_equal(seen.expert, again, sizeof(again)); /* by the row and the seed alone */
		for (size_t i = 0; i < N; i++) {
			assert_true(place_of(expert[i]) < N);
			assert_true(i == 0 || seen.probability[i] <= seen.probability[i - 1]);
			sum += seen.probability[i];
		}
		assert_float_equal(sum, 1, 1e-4);
		for (size_t i = 0; i < TOP_K; i++) {
			if (place_of(expert[i]) < TOP_K)
				continue;
			wrong++;
			next += place_of(expert[i]) == TOP_K;
			margins += log(probability[TOP_K - 1] / probability[TOP_K]);
		}
	}
	assert_in_range(wrong, ROWS * 0.027, ROWS * 0.032);
	assert_true(next >= 0.97 * wrong);
	assert_true(margins / wrong < 0.1); /* all rows': 0.5 */
}

/* Case 5 of OD-MoE's Fig. 8: any order is as likely as any other. */
static void much_noise_is_chance(void **state)
{
	const struct ods_sink sink = sink_of("1000 1");
	unsigned right = 0;

	(void)state;
	for (uint32_t row = 0; row < ROWS; row++) {
		uint16_t expert[N];
		float probability[N];
		const struct od_prediction p = row_of(row, expert, probability);

		sink.predict(NULL, p.m, &p, 1);
		for (size_t i = 0; i < TOP_K; i++)
			right += place_of(expert[i]) < TOP_K;
	}
	assert_in_range(right, TOP_K * ROWS * 0.24, TOP_K * ROWS * 0.26);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_noise_it_changes_nothing),
		cmocka_unit_test(mistakes_are_runners_up_at_small_margins),
		cmocka_unit_test(much_noise_is_chance),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

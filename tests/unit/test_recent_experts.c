/* Recent experts of texts: those whose last use is newest are raised, by the mean range of the logarithms of scores so
 * far; the best are raised in any case. Against times of last use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "common/predict/recent_experts.h"
#include "tests/unit/tiny_model.h"

#define N 24 /* experts */
#define K 3
#define LAYERS 2
#define TEXTS 3

static struct od_recent_experts *new_recent(const struct od_config *c)
{
	struct od_recent_experts *r;
	struct od_err err;

	assert_int_equal(od_recent_experts_new(&r, c, TEXTS, &err), OD_OK);
	return r;
}

static int draw(uint64_t of, uint64_t i, int limit)
{
	const int x = tiny_draw(11, of, i, limit);

	return x < 0 ? -x : x;
}

static void draw_scores(uint64_t row, float *score)
{
	for (uint32_t e = 0; e < N; e++)
		score[e] = expf((float)draw(1, row * N + e, 1 << 16) / (float)(1 << 13) - 9);
}

/* Distinct experts, the best first. */
static void draw_route(uint64_t row, uint16_t *expert)
{
	for (uint32_t i = 0; i < K; i++) {
		bool again = true;

		for (uint64_t t = 0; again; t++) {
			expert[i] = (uint16_t)(draw(2, (row * K + i) * 64 + t, 1 << 20) % N);
			again = false;
			for (uint32_t j = 0; j < i; j++)
				again = again || expert[j] == expert[i];
		}
	}
}

static void check_raised(const struct od_cache_prior *prior, const double *used, double mean, const float *before,
			 const float *after)
{
	for (uint32_t e = 0; e < N; e++) {
		uint32_t newer = 0, better = 0;
		bool raised;

		for (uint32_t i = 0; i < N; i++) {
			newer += used[i] > used[e];
			better += before[i] > before[e];
		}
		raised = (used[e] >= 0 && newer < prior->recent) || better < prior->keep;
		assert_true(fabs(log((double)after[e] / (double)before[e]) -
				 (raised ? (double)prior->lambda * mean : 0)) < 1e-4);
	}
}

static void check_prior(struct od_cache_prior prior)
{
	struct od_config c = { .n_moe = LAYERS, .n_experts = N, .top_k = K, .prior = prior };
	struct od_recent_experts *r = new_recent(&c);
	double used[TEXTS][LAYERS][N], mean[LAYERS] = { 0 };

	for (uint32_t t = 0; t < TEXTS; t++)
		for (uint32_t m = 0; m < LAYERS; m++)
			for (uint32_t e = 0; e < N; e++)
				used[t][m][e] = -1;
	for (uint64_t row = 0; row < 200; row++) {
		const uint32_t t = (uint32_t)draw(3, row, 1 << 20) % TEXTS, m = (uint32_t)row % LAYERS;
		float score[N], raised[N], most = 0, least = INFINITY;
		uint16_t expert[K];

		draw_scores(row, score);
		memcpy(raised, score, sizeof(score));
		for (uint32_t e = 0; e < N; e++) {
			most = fmaxf(most, score[e]);
			least = fminf(least, score[e]);
		}
		mean[m] += (log((double)most / (double)least) - mean[m]) / (double)(row / LAYERS + 1);
		od_recent_experts_raise(r, 100 + t, m, raised);
		check_raised(&prior, used[t][m], mean[m], score, raised);
		draw_route(row, expert);
		od_recent_experts_routed(r, 100 + t, m, expert);
		for (uint32_t i = 0; i < K; i++)
			used[t][m][expert[i]] = (double)row + i / 16.0;
	}
	od_recent_experts_free(r);
}

static void test_priors(void **state)
{
	(void)state;
	check_prior((struct od_cache_prior){ 12, 2, 0.2f });
	check_prior((struct od_cache_prior){ 2, 0, 0.5f });
	check_prior((struct od_cache_prior){ N, K, 1 });
	check_prior((struct od_cache_prior){ 1, 1, 0 });
}

/* A text that ends leaves nothing to the next one; of more texts than were said nothing is known. */
static void test_ends(void **state)
{
	const struct od_config c = { .n_moe = 1, .n_experts = N, .top_k = K, .prior = { 8, 0, 0.5f } };
	struct od_recent_experts *r = new_recent(&c);
	const uint16_t expert[K] = { 3, 4, 5 };
	float score[N], raised[N];

	(void)state;
	draw_scores(0, score);
	for (uint64_t text = 1; text <= TEXTS + 1; text++)
		od_recent_experts_routed(r, text, 0, expert);
	memcpy(raised, score, sizeof(score));
	od_recent_experts_raise(r, TEXTS + 1, 0, raised);
	assert_memory_equal(raised, score, sizeof(score));
	od_recent_experts_raise(r, 1, 0, raised);
	assert_true(raised[3] > score[3] && raised[6] == score[6]);
	od_recent_experts_end(r, 1);
	memcpy(raised, score, sizeof(score));
	od_recent_experts_raise(r, TEXTS + 2, 0, raised);
	assert_memory_equal(raised, score, sizeof(score));
	od_recent_experts_free(r);
}

/* Probabilities of 0, outside the best groups, have no logarithm. */
static void test_groups(void **state)
{
	const struct od_config c = { .n_moe = 1, .n_experts = 4, .top_k = 1, .prior = { 2, 0, 0.5f } };
	struct od_recent_experts *r = new_recent(&c);
	const uint16_t expert[1] = { 1 };
	float score[] = { 0, 0.2f, 0.8f, 0 }, none[4] = { 0 };

	(void)state;
	od_recent_experts_routed(r, 1, 0, expert);
	od_recent_experts_raise(r, 1, 0, score);
	assert_true(score[0] == 0 && score[3] == 0 && score[2] == 0.8f);
	assert_true(fabs((double)score[1] - 0.2 * exp(0.5 * log(4))) < 1e-5);
	od_recent_experts_raise(r, 1, 0, none);
	assert_true(none[1] == 0);
	od_recent_experts_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_priors), cmocka_unit_test(test_ends),
					    cmocka_unit_test(test_groups) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}

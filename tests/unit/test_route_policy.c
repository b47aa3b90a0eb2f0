/* Counts of od-bench routing, beside the same by brute force. */
#include "common/compute/rank.h"
#include "tests/bench/live/route_policy.h"
#include "tests/unit/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define EXPERTS 12u
#define ROWS 40u
#define K 3u

static uint64_t seed;

struct text {
	uint16_t expert[ROWS][K];
	float weight[ROWS][K];
};

static void draw_text(struct text *t)
{
	for (uint32_t p = 0; p < ROWS; p++)
		for (uint32_t i = 0; i < K; i++) {
			do {
				t->expert[p][i] = (uint16_t)(random_below(&seed, EXPERTS) *
							     random_below(&seed, EXPERTS) / EXPERTS);
			} while (od_is_among(t->expert[p], i, t->expert[p][i]));
			t->weight[p][i] = (float)(1 + random_below(&seed, 1000)) / 1000 + (float)i * 1e-4f;
		}
}

/* When the expert was used last before row p: by row, and in a row the smaller weight is later. -1: not yet. */
static double last_use(const struct text *t, uint32_t p, uint16_t expert)
{
	for (uint32_t q = p; q-- > 0;)
		for (uint32_t i = 0; i < K; i++)
			if (t->expert[q][i] == expert)
				return q + 1 - (double)t->weight[q][i] / 10;
	return -1;
}

/* Is it one of the `room` that were used last? */
static bool is_cached(const struct text *t, uint32_t p, uint16_t expert, uint32_t room)
{
	const double own = last_use(t, p, expert);
	uint32_t n_later = 0;

	for (uint16_t e = 0; e < EXPERTS; e++)
		n_later += last_use(t, p, e) > own;
	return own >= 0 && n_later < room;
}

static void misses_and_stays_are_those_of_last_uses(void **state)
{
	(void)state;
	for (uint32_t room = 1; room <= EXPERTS; room++) {
		struct route_cache c = { .room = room };
		struct text t;
		uint64_t n_misses = 0, n_stays = 0;

		draw_text(&t);
		for (uint32_t p = 0; p < ROWS; p++) {
			for (uint32_t i = 0; i < K; i++)
				n_misses += !is_cached(&t, p, t.expert[p][i], room);
			for (uint16_t e = 0; e < EXPERTS; e++)
				n_stays += is_cached(&t, p + 1, e, room);
			route_used(&c, t.expert[p], t.weight[p], K, K);
		}
		assert_int_equal(c.count.n_misses, n_misses);
		assert_int_equal(c.count.n_came, n_misses);
		assert_int_equal(c.count.stay_rows, n_stays);
		assert_int_equal(c.count.n_rows, ROWS);
		assert_int_equal(c.count.n_uses, ROWS * K);
		assert_true(n_misses > 0 && n_misses < ROWS * K);
	}
}

static void full_caches_begin_with_other_experts(void **state)
{
	struct route_cache a = { .room = 5 }, b = { .room = 5 };

	(void)state;
	route_fill(&a, EXPERTS, 1);
	route_fill(&b, EXPERTS, 2);
	assert_int_equal(a.n, 5);
	assert_int_equal(a.count.n_came, 5);
	for (uint32_t i = 0; i < a.n; i++)
		assert_true(a.expert[i] < EXPERTS && !od_is_among(a.expert, i, a.expert[i]));
	assert_memory_not_equal(a.expert, b.expert, 5 * sizeof(a.expert[0]));
}

/* Rows whose experts have no weight use none. */
static void the_oracle_knows_the_future(void **state)
{
	static const uint16_t used[] = { 0, 1, 2, 0, OD_NO_EXPERT, 1, 3, 0, 2 }, twice[] = { 0, 1, 2, 2, 1, 2, 0 };
	struct od_err err;
	uint64_t n;

	(void)state;
	/* Room for two: 0 and 1 come, 2 does not, because it is used last, 0 and 1 hit, 3 and 2 miss. */
	assert_int_equal(route_oracle_misses(used, sizeof(used) / sizeof(used[0]), 4, 2, &n, &err), OD_OK);
	assert_int_equal(n, 5);
	assert_int_equal(route_oracle_misses(used, sizeof(used) / sizeof(used[0]), 4, 4, &n, &err), OD_OK);
	assert_int_equal(n, 4);
	/* Here 2 replaces 0. */
	assert_int_equal(route_oracle_misses(twice, sizeof(twice) / sizeof(twice[0]), 3, 2, &n, &err), OD_OK);
	assert_int_equal(n, 4);
	assert_int_equal(route_oracle_misses(used, 0, 4, 4, &n, &err), OD_OK);
	assert_int_equal(n, 0);
}

/* Probabilities from the best to the worst: 5, 4, 3, 2, 1, 0. */
static void ways_prefer_what_is_cached(void **state)
{
	static const float p[] = { 0.02f, 0.04f, 0.09f, 0.15f, 0.3f, 0.4f };
	static const struct {
		struct route_policy policy;
		uint16_t expert[3];
		uint32_t n_weighted;
	} cases[] = {
		{ { ROUTE_ROUTER, 0, 1 }, { 5, 4, 3 }, 3 },
		{ { ROUTE_PRUNE, 2, 1 }, { 5, 4, 3 }, 2 },
		{ { ROUTE_MAX_RANK, 4, 1 }, { 5, 2, 4 }, 3 }, /* 1, of rank 5, is not among the first four */
		{ { ROUTE_MAX_RANK, 5, 1 }, { 5, 2, 1 }, 3 },
		{ { ROUTE_MAX_RANK, 6, 3 }, { 5, 4, 3 }, 3 }, /* all are kept */
		{ { ROUTE_CUMULATIVE, 0.9, 1 }, { 5, 2, 4 }, 3 }, /* four have 0.94 together */
		{ { ROUTE_CUMULATIVE, 0.95, 1 }, { 5, 2, 1 }, 3 },
		{ { ROUTE_CACHE_PRIOR, 0.3, 1 }, { 5, 4, 2 }, 3 }, /* the range is 3.00: 2 gains 0.9, 3 has 0.51 more */
		{ { ROUTE_CACHE_PRIOR, 0.5, 1 }, { 5, 2, 4 }, 3 },
		{ { ROUTE_CACHE_PRIOR, 1, 1 }, { 5, 2, 1 }, 3 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct route_cache c = { .expert = { 1, 2 }, .n = 2, .room = 2 };
		uint16_t expert[3];

		assert_int_equal(route_choose(&cases[i].policy, &c, p, 6, 3, 7, expert), cases[i].n_weighted);
		assert_memory_equal(expert, cases[i].expert, sizeof(expert));
	}
	for (uint64_t row = 0; row < 20; row++) {
		struct route_cache c = { .room = 2 };
		uint16_t expert[3];

		assert_int_equal(route_choose(&(struct route_policy){ ROUTE_SWAP, 1, 1 }, &c, p, 6, 3, row, expert), 3);
		assert_true(expert[0] == 5 && expert[1] < 3 && expert[2] == 3);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(misses_and_stays_are_those_of_last_uses),
		cmocka_unit_test(full_caches_begin_with_other_experts),
		cmocka_unit_test(the_oracle_knows_the_future),
		cmocka_unit_test(ways_prefer_what_is_cached),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

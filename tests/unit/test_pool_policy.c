/* Rank dispatch, against the same rules written out plainly (scans where the code has lists). */
#include "tests/bench/sim/pool_policy.h"
#include "tests/bench/sim/rank_list.h"
#include "tests/unit/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 3u
#define EXPERTS 6u
#define ALL (LAYERS * EXPERTS)

static uint64_t seed;

static uint32_t below(uint32_t n)
{
	return (uint32_t)random_below(&seed, n);
}

/* The lower of two draws: some experts are used more than others. */
static uint32_t skewed(uint32_t n)
{
	uint32_t a = below(n), b = below(n);

	return a < b ? a : b;
}

static struct sim_cache *new_cache(const struct sim_cache_opts *o)
{
	struct sim_cache *c;

	assert_int_equal(sim_cache_new(&c, o, NULL), OD_OK);
	return c;
}

static uint32_t rank_by_counting(const uint64_t *count, const uint64_t *used, uint32_t layer, uint32_t expert)
{
	uint32_t rank = 0, id = layer * EXPERTS + expert;

	for (uint32_t e = layer * EXPERTS; e < (layer + 1) * EXPERTS; e++) {
		if (e != id && (count[e] > count[id] || (count[e] == count[id] && used[e] > used[id])))
			rank++;
	}
	return rank;
}

/* The rules over plain arrays. */
struct plain_rank {
	struct sim_cache_opts opt;
	enum sim_cache_state where[ALL];
	uint64_t count[ALL], used[ALL];
	uint32_t demoted; /* how often one that had to go found another pool */
};

static uint32_t rank_in(const struct plain_rank *p, uint32_t id)
{
	return rank_by_counting(p->count, p->used, id / EXPERTS, id % EXPERTS);
}

/* An expert that is nowhere finds its place among the pools allowed. */
static void put_in_pool(struct plain_rank *p, uint32_t id, const bool allowed[SIM_CACHE_STATES])
{
	const uint32_t layer = id / EXPERTS, rank = rank_in(p, id);
	uint32_t end = 0;

	for (unsigned s = 0; s < SIM_CACHE_STATES; s++) {
		uint32_t capacity = sim_cache_plan_capacity(&p->opt.plan, layer, s), n = 0, least = ALL;
		bool next[SIM_CACHE_STATES] = { false };

		end += capacity;
		for (uint32_t e = layer * EXPERTS; e < (layer + 1) * EXPERTS; e++) {
			if (p->where[e] != s)
				continue;
			n++;
			if (least == ALL || rank_in(p, e) > rank_in(p, least))
				least = e;
		}
		if (!allowed[s] || capacity == 0 || rank >= end || (n == capacity && rank_in(p, least) < rank))
			continue;
		if (n == capacity) {
			p->where[least] = SIM_CACHE_NONE;
			next[SIM_CACHE_S] = next[SIM_CACHE_E] =
				s == SIM_CACHE_C || (s == SIM_CACHE_F && p->opt.full_is_stored);
			put_in_pool(p, least, next);
			p->demoted += p->where[least] != SIM_CACHE_NONE;
		}
		p->where[id] = s;
		return;
	}
}

static void rank_dispatch(void **state)
{
	static const bool all[SIM_CACHE_STATES] = { true, true, true, true };
	uint32_t seen[SIM_CACHE_STATES + 1] = { 0 }, demoted = 0;

	(void)state;
	seed = 4;
	for (int round = 0; round < 80; round++) {
		struct plain_rank p = { .opt = { .n_moe = LAYERS,
						 .n_experts = EXPERTS,
						 .full_is_stored = round % 8 < 4,
						 .plan = { .n_moe = LAYERS } } };
		enum sim_cache_state told[ALL];
		struct sim_cache *c;

		for (unsigned s = 0; s < SIM_CACHE_STATES; s++)
			p.opt.plan.experts[s] = below(5);
		c = new_cache(&p.opt);
		for (uint32_t i = 0; i < ALL; i++)
			p.where[i] = told[i] = SIM_CACHE_NONE;
		for (uint64_t now = 1; now < 500; now++) {
			uint32_t layer = below(LAYERS), expert = skewed(EXPERTS), id = layer * EXPERTS + expert;
			struct sim_cache_changes ch;

			p.count[id]++;
			p.used[id] = now;
			p.where[id] = SIM_CACHE_NONE;
			put_in_pool(&p, id, all);
			seen[p.where[id]]++;
			ch = sim_cache_use(c, layer, expert);
			assert_true(ch.n > 0 && ch.change[ch.n - 1].layer == layer &&
				    ch.change[ch.n - 1].expert == expert);
			for (size_t i = 0; i < ch.n; i++)
				told[ch.change[i].layer * EXPERTS + ch.change[i].expert] = ch.change[i].state;
			assert_memory_equal(told, p.where, sizeof(told));
			for (uint32_t i = 0; i < ALL; i++)
				assert_int_equal(sim_cache_look(c, i / EXPERTS, i % EXPERTS), p.where[i]);
		}
		demoted += p.demoted;
		sim_cache_free(c);
	}
	for (unsigned s = 0; s <= SIM_CACHE_STATES; s++)
		assert_true(seen[s] > 100);
	assert_true(demoted > 100);
}

static void stats_count_ranks_before_the_use(void **state)
{
	static const uint16_t first[] = { 3, 1 }, second[] = { 1, 0 }, third[] = { 1 };
	struct sim_rank_stats p;
	double f[4];

	(void)state;
	assert_int_equal(sim_rank_stats_init(&p, 2, 4, NULL), OD_OK);
	assert_true(sim_rank_stats_k(&p) == 1);
	sim_rank_stats_inclusion(&p, f);
	assert_true(f[0] == 0.25 && f[3] == 0.25);
	sim_rank_stats_visit(&p, 0, first, 2); /* ranks 3 and 1; then the order is 1 3 0 2 */
	sim_rank_stats_visit(&p, 0, second, 2); /* ranks 0 and 2; then 1 0 3 2: 0 was used later than 3 */
	sim_rank_stats_visit(&p, 0, first, 0);
	sim_rank_stats_visit(&p, 1, third, 1); /* rank 1 of another layer */
	sim_rank_stats_visit(&p, 0, first, 2); /* ranks 2 and 0 */
	sim_rank_stats_inclusion(&p, f);
	assert_true(f[0] == 0.5 && f[1] == 0.5 && f[2] == 0.5 && f[3] == 0.25);
	assert_true(sim_rank_stats_k(&p) == 7.0 / 4);
	assert_int_equal(sim_rank_at(&p.list, 0, 0), 1);
	assert_int_equal(sim_rank_at(&p.list, 0, 1), 3);
	assert_int_equal(sim_rank_of(&p.list, 1, 1), 0);
	sim_rank_stats_fini(&p);
}

static void nonsense_is_refused(void **state)
{
	struct sim_cache_opts rank = { .n_moe = 2, .n_experts = 2 }; /* its plan has none */
	struct sim_cache *c;

	(void)state;
	assert_int_equal(sim_cache_new(&c, &rank, NULL), OD_ERR_RANGE);
	assert_null(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rank_dispatch),
		cmocka_unit_test(stats_count_ranks_before_the_use),
		cmocka_unit_test(nonsense_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

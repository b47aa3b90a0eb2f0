/* Rules of caches that od-bench compares with: LRU, LFU, FIFO and Marking against the same written out plainly,
 * Belady's against the fewest loads that any decisions could have led to. */
#include "common/residency/expert_cache.h"
#include "tests/bench/sim/cache_rule.h"
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

static struct sim_cache *new_cache(enum cache_rule rule, uint32_t capacity, uint64_t chance)
{
	const struct sim_cache_opts o = { .n_moe = LAYERS,
					  .n_experts = EXPERTS,
					  .state = SIM_CACHE_C,
					  .budget_bytes = 10 * capacity + 9,
					  .expert_bytes = 10 };
	struct sim_cache *c;

	assert_int_equal(cache_rule_new(&c, rule, &o, chance, NULL), OD_OK);
	return c;
}

/* The changes name those that leave, then the expert itself, and sim_cache_look agrees. */
static void check_changes(const struct sim_cache *c, struct sim_cache_changes ch, uint32_t layer, uint32_t expert,
			  uint32_t gone, enum sim_cache_state state)
{
	assert_int_equal(ch.n, gone == ALL ? 1 : 2);
	if (gone != ALL) {
		assert_int_equal(ch.change[0].layer * EXPERTS + ch.change[0].expert, gone);
		assert_int_equal(ch.change[0].state, SIM_CACHE_NONE);
		assert_int_equal(sim_cache_look(c, gone / EXPERTS, gone % EXPERTS), SIM_CACHE_NONE);
	}
	assert_int_equal(ch.change[ch.n - 1].layer, layer);
	assert_int_equal(ch.change[ch.n - 1].expert, expert);
	assert_int_equal(ch.change[ch.n - 1].state, state);
	assert_int_equal(sim_cache_look(c, layer, expert), state);
}

struct plain_queue {
	uint32_t capacity, n;
	bool kept[ALL];
	uint64_t used[ALL], count[ALL];
};

/* Is a to go before b? */
static bool goes_first(const struct plain_queue *p, enum cache_rule policy, uint32_t a, uint32_t b)
{
	if (policy == CACHE_LFU && p->count[a] != p->count[b])
		return p->count[a] < p->count[b];
	return p->used[a] < p->used[b];
}

/* Returns the expert that is evicted; ALL: none is. */
static uint32_t plain_use(struct plain_queue *p, enum cache_rule policy, uint32_t id, uint64_t now)
{
	uint32_t out = ALL;

	p->count[id]++;
	p->used[id] = now;
	if (p->kept[id] || p->capacity == 0)
		return ALL;
	for (uint32_t i = 0; p->n == p->capacity && i < ALL; i++) {
		if (p->kept[i] && (out == ALL || goes_first(p, policy, i, out)))
			out = i;
	}
	if (out != ALL)
		p->kept[out] = false;
	else
		p->n++;
	p->kept[id] = true;
	return out;
}

static void queues(void **state)
{
	static const enum cache_rule policies[] = { CACHE_LRU, CACHE_LFU };

	(void)state;
	seed = 1;
	for (uint32_t capacity = 0; capacity <= ALL; capacity++) {
		for (size_t i = 0; i < 2; i++) {
			struct sim_cache *c = new_cache(policies[i], capacity, 0);
			struct plain_queue p = { .capacity = capacity };

			for (uint64_t now = 1; now < 1000; now++) {
				uint32_t id = skewed(ALL), layer = id / EXPERTS, gone;

				gone = plain_use(&p, policies[i], id, now);
				check_changes(c, sim_cache_use(c, layer, id % EXPERTS), layer, id % EXPERTS, gone,
					      capacity > 0 ? SIM_CACHE_C : SIM_CACHE_NONE);
			}
			sim_cache_free(c);
		}
	}
}

/* The first to come goes first, however often it is used. */
static void fifo(void **state)
{
	(void)state;
	seed = 1;
	for (uint32_t capacity = 0; capacity <= ALL; capacity++) {
		struct sim_cache *c = new_cache(CACHE_FIFO, capacity, 0);
		uint64_t came[ALL] = { 0 }; /* 0: not kept */
		uint32_t n = 0;

		for (uint64_t now = 1; now < 1000; now++) {
			uint32_t id = skewed(ALL), gone = ALL;

			if (came[id] == 0 && capacity > 0) {
				for (uint32_t i = 0; n == capacity && i < ALL; i++)
					gone = came[i] != 0 && (gone == ALL || came[i] < came[gone]) ? i : gone;
				if (gone != ALL)
					came[gone] = 0;
				n += gone == ALL;
				came[id] = now;
			}
			check_changes(c, sim_cache_use(c, id / EXPERTS, id % EXPERTS), id / EXPERTS, id % EXPERTS, gone,
				      capacity > 0 ? SIM_CACHE_C : SIM_CACHE_NONE);
		}
		sim_cache_free(c);
	}
}

static void marking(void **state)
{
	uint32_t drawn[ALL] = { 0 }, differ = 0;

	(void)state;
	seed = 2;
	for (uint32_t capacity = 0; capacity <= ALL; capacity++) {
		struct sim_cache *c = new_cache(CACHE_MARKING, capacity, 7),
				 *twin = new_cache(CACHE_MARKING, capacity, 7);
		struct sim_cache *other = new_cache(CACHE_MARKING, capacity, 8);
		bool marked[ALL] = { false };
		uint32_t n = 0;

		for (int i = 0; i < 1000; i++) {
			uint32_t id = skewed(ALL), layer = id / EXPERTS, expert = id % EXPERTS, free_marks = 0,
				 gone = ALL;
			bool was = sim_cache_look(c, layer, expert) != SIM_CACHE_NONE;
			struct sim_cache_changes ch, same;

			for (uint32_t k = 0; k < ALL; k++)
				free_marks +=
					sim_cache_look(c, k / EXPERTS, k % EXPERTS) != SIM_CACHE_NONE && !marked[k];
			if (!was && n == capacity && free_marks == 0)
				memset(marked, 0, sizeof(marked)); /* a new phase */
			ch = sim_cache_use(c, layer, expert);
			if (ch.n > 1) {
				gone = ch.change[0].layer * EXPERTS + ch.change[0].expert;
				assert_false(marked[gone]);
				drawn[gone]++;
			}
			assert_true((ch.n > 1) == (!was && n == capacity && capacity > 0));
			check_changes(c, ch, layer, expert, gone, capacity > 0 ? SIM_CACHE_C : SIM_CACHE_NONE);
			n += !was && n < capacity;
			marked[id] = capacity > 0;
			same = sim_cache_use(twin, layer, expert);
			assert_int_equal(same.n, ch.n);
			assert_memory_equal(same.change, ch.change, ch.n * sizeof(*ch.change));
			same = sim_cache_use(other, layer, expert);
			differ += same.n != ch.n || memcmp(same.change, ch.change, ch.n * sizeof(*ch.change)) != 0;
		}
		sim_cache_free(c);
		sim_cache_free(twin);
		sim_cache_free(other);
	}
	assert_true(differ > 100);
	for (uint32_t k = 0; k < ALL; k++)
		assert_true(drawn[k] > 0);
}

/* The fewest loads from use `at` on with the kept set as given: every choice is tried. */
static uint32_t fewest(const uint32_t *use, uint32_t n, uint32_t at, uint32_t kept, uint32_t capacity)
{
	uint32_t best, id;

	if (at == n)
		return 0;
	id = use[at];
	if (kept >> id & 1)
		return fewest(use, n, at + 1, kept, capacity);
	best = fewest(use, n, at + 1, kept, capacity); /* not kept */
	if ((uint32_t)__builtin_popcount(kept) < capacity) {
		uint32_t with = fewest(use, n, at + 1, kept | 1u << id, capacity);

		return 1 + (with < best ? with : best);
	}
	for (uint32_t out = 0; out < 6; out++) {
		uint32_t with =
			kept >> out & 1 ? fewest(use, n, at + 1, (kept ^ 1u << out) | 1u << id, capacity) : best;

		best = with < best ? with : best;
	}
	return 1 + best;
}

static void belady_loads_least(void **state)
{
	enum { USES = 13 };

	(void)state;
	seed = 3;
	for (int round = 0; round < 40; round++) {
		uint32_t use[USES], capacity = 1 + round % 3, loads = 0;
		const struct sim_cache_opts o = {
			.n_moe = 1, .n_experts = 6, .expert_bytes = 1, .budget_bytes = capacity
		};
		struct sim_cache *c;

		assert_int_equal(cache_rule_new(&c, CACHE_BELADY, &o, 0, NULL), OD_OK);
		for (uint32_t i = 0; i < USES; i++)
			use[i] = skewed(6);
		for (uint32_t i = 0; i < USES; i++) {
			uint64_t next = CACHE_NEVER;

			for (uint32_t k = USES - 1; k > i; k--)
				next = use[k] == use[i] ? k : next;
			loads += sim_cache_look(c, 0, use[i]) == SIM_CACHE_NONE;
			cache_rule_foretell(c, next);
			sim_cache_use(c, 0, use[i]);
		}
		assert_int_equal(loads, fewest(use, USES, 0, 0, capacity));
		sim_cache_free(c);
	}
}

static void nonsense_is_refused(void **state)
{
	const struct sim_cache_opts nothing = { .n_moe = LAYERS, .n_experts = EXPERTS };
	struct sim_cache *c;

	(void)state;
	assert_int_equal(cache_rule_new(&c, CACHE_FIFO, &nothing, 0, NULL), OD_ERR_RANGE);
	assert_null(c);
}

/* The rule of the daemons is theirs. */
static void lrfu(void **state)
{
	static const uint64_t bytes[LAYERS] = { 10, 10, 10 };
	const struct od_share whole = { 1, 0, 1 };

	(void)state;
	seed = 5;
	for (uint32_t capacity = 0; capacity <= ALL; capacity += 3) {
		struct sim_cache *c = new_cache(CACHE_LRFU, capacity, 0);
		struct od_expert_cache *own;

		assert_int_equal(od_expert_cache_new(&own, LAYERS, EXPERTS, bytes, 10 * capacity + 9, NULL), OD_OK);
		(void)od_expert_cache_place(own, &whole);
		for (uint64_t step = 1; step < 200; step++) {
			cache_rule_step(c, step);
			for (int i = 0; i < 3; i++) {
				const uint32_t id = skewed(ALL);

				(void)sim_cache_use(c, id / EXPERTS, id % EXPERTS);
				(void)od_expert_cache_use(own, step, id / EXPERTS, id % EXPERTS);
			}
			for (uint32_t id = 0; id < ALL; id++)
				assert_int_equal(sim_cache_look(c, id / EXPERTS, id % EXPERTS) != SIM_CACHE_NONE,
						 od_expert_cache_keeps(own, id / EXPERTS, id % EXPERTS));
		}
		od_expert_cache_free(own);
		sim_cache_free(c);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(queues),
		cmocka_unit_test(lrfu),
		cmocka_unit_test(fifo),
		cmocka_unit_test(marking),
		cmocka_unit_test(belady_loads_least),
		cmocka_unit_test(nonsense_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Cache policies, against the same rules written out plainly (scans where the code has heaps and lists). */
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

static struct od_cache *new_cache(const struct od_cache_opts *o)
{
	struct od_cache *c;

	assert_int_equal(od_cache_new(&c, o, NULL), OD_OK);
	return c;
}

static struct od_cache_opts of_one_state(enum od_cache_policy policy, uint32_t capacity)
{
	return (struct od_cache_opts){ .policy = policy,
				       .n_moe = LAYERS,
				       .n_experts = EXPERTS,
				       .state = OD_CACHE_C,
				       .budget_bytes = 10 * capacity + 9,
				       .expert_bytes = 10 };
}

/* The changes name those that leave, then the expert itself, and od_cache_look agrees. */
static void check_changes(const struct od_cache *c, struct od_cache_changes ch, uint32_t layer, uint32_t expert,
			  uint32_t gone, enum od_cache_state state)
{
	assert_int_equal(ch.n, gone == ALL ? 1 : 2);
	if (gone != ALL) {
		assert_int_equal(ch.change[0].layer * EXPERTS + ch.change[0].expert, gone);
		assert_int_equal(ch.change[0].state, OD_CACHE_NONE);
		assert_int_equal(od_cache_look(c, gone / EXPERTS, gone % EXPERTS), OD_CACHE_NONE);
	}
	assert_int_equal(ch.change[ch.n - 1].layer, layer);
	assert_int_equal(ch.change[ch.n - 1].expert, expert);
	assert_int_equal(ch.change[ch.n - 1].state, state);
	assert_int_equal(od_cache_look(c, layer, expert), state);
}

struct pool_policy_plain {
	uint32_t capacity, n; /* where all experts have the same size */
	uint64_t budget, bytes; /* where they have not */
	bool kept[ALL];
	uint64_t used[ALL], count[ALL];
};

/* Is a to go before b? */
static bool goes_first(const struct pool_policy_plain *p, enum od_cache_policy policy, uint32_t a, uint32_t b)
{
	if (policy == OD_CACHE_LFU && p->count[a] != p->count[b])
		return p->count[a] < p->count[b];
	return p->used[a] < p->used[b];
}

/* Returns who goes; ALL: nobody. */
static uint32_t plain_use(struct pool_policy_plain *p, enum od_cache_policy policy, uint32_t id, uint64_t now)
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

static const uint64_t layer_bytes[] = { 10, 25, 17, 40 };
_Static_assert(sizeof(layer_bytes) / sizeof(layer_bytes[0]) >= LAYERS, "a size for each layer");

/* Until `more` bytes fit; marks those that go in out. */
static void plain_fit(struct pool_policy_plain *p, enum od_cache_policy policy, uint64_t more, bool out[ALL])
{
	memset(out, 0, ALL * sizeof(*out));
	while (p->bytes + more > p->budget && p->bytes > 0) {
		uint32_t worst = ALL;

		for (uint32_t i = 0; i < ALL; i++)
			if (p->kept[i] && (worst == ALL || goes_first(p, policy, i, worst)))
				worst = i;
		p->kept[worst] = false;
		out[worst] = true;
		p->bytes -= layer_bytes[worst / EXPERTS];
	}
}

static void check_evicted(struct od_cache_changes ch, const bool out[ALL])
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < ALL; i++)
		n += out[i];
	assert_int_equal(ch.n, n);
	for (size_t i = 0; i < ch.n; i++) {
		assert_true(out[ch.change[i].layer * EXPERTS + ch.change[i].expert]);
		assert_int_equal(ch.change[i].state, OD_CACHE_NONE);
	}
}

/* Marks in out those that go. False: the expert itself does not fit. */
static bool plain_use_bytes(struct pool_policy_plain *p, enum od_cache_policy policy, uint32_t id, uint64_t now,
			    bool out[ALL])
{
	memset(out, 0, ALL * sizeof(*out));
	p->count[id]++;
	p->used[id] = now;
	if (p->kept[id])
		return true;
	if (layer_bytes[id / EXPERTS] > p->budget)
		return false;
	plain_fit(p, policy, layer_bytes[id / EXPERTS], out);
	p->kept[id] = true;
	p->bytes += layer_bytes[id / EXPERTS];
	return true;
}

static void queues_of_several_sizes(void **state)
{
	static const enum od_cache_policy policies[] = { OD_CACHE_LRU, OD_CACHE_LFU };
	size_t n_several = 0;
	bool out[ALL];

	(void)state;
	seed = 7;
	for (uint64_t budget = 0; budget <= 400; budget += 13) {
		for (size_t i = 0; i < 2; i++) {
			struct od_cache_opts o = { .policy = policies[i],
						   .n_moe = LAYERS,
						   .n_experts = EXPERTS,
						   .state = OD_CACHE_F,
						   .budget_bytes = budget,
						   .layer_bytes = layer_bytes };
			struct od_cache *c = new_cache(&o);
			struct pool_policy_plain p = { .budget = budget };

			for (uint64_t now = 1; now < 1000; now++) {
				uint32_t id = skewed(ALL), layer = id / EXPERTS;

				if (now % 100 == 0) { /* another budget */
					p.budget = below((uint32_t)budget + 1);
					plain_fit(&p, policies[i], 0, out);
					check_evicted(od_cache_set_budget(c, p.budget), out);
				}
				bool fits = plain_use_bytes(&p, policies[i], id, now, out);
				struct od_cache_changes ch = od_cache_use(c, layer, id % EXPERTS);
				uint32_t n = 0;

				assert_int_equal(ch.change[ch.n - 1].state, fits ? OD_CACHE_F : OD_CACHE_NONE);
				for (size_t j = 0; j + 1 < ch.n; j++)
					assert_true(out[ch.change[j].layer * EXPERTS + ch.change[j].expert]);
				for (uint32_t j = 0; j < ALL; j++) {
					n += out[j];
					assert_int_equal(od_cache_look(c, j / EXPERTS, j % EXPERTS),
							 p.kept[j] ? OD_CACHE_F : OD_CACHE_NONE);
				}
				assert_int_equal(ch.n, n + 1);
				n_several += n > 1;
			}
			od_cache_free(c);
		}
	}
	assert_true(n_several > 100);
}

static void queues(void **state)
{
	static const enum od_cache_policy policies[] = { OD_CACHE_LRU, OD_CACHE_LFU };

	(void)state;
	seed = 1;
	for (uint32_t capacity = 0; capacity <= ALL; capacity++) {
		for (size_t i = 0; i < 2; i++) {
			struct od_cache_opts o = of_one_state(policies[i], capacity);
			struct od_cache *c = new_cache(&o);
			struct pool_policy_plain p = { .capacity = capacity };

			for (uint64_t now = 1; now < 1000; now++) {
				uint32_t id = skewed(ALL), layer = id / EXPERTS, gone;

				if (p.kept[id] && below(20) == 0) { /* it could not be kept after all */
					od_cache_forget(c, layer, id % EXPERTS);
					p.kept[id] = false;
					p.n--;
				}
				gone = plain_use(&p, policies[i], id, now);
				check_changes(c, od_cache_use(c, layer, id % EXPERTS), layer, id % EXPERTS, gone,
					      capacity > 0 ? OD_CACHE_C : OD_CACHE_NONE);
			}
			od_cache_free(c);
		}
	}
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
	struct od_cache_opts opt;
	enum od_cache_state where[ALL];
	uint64_t count[ALL], used[ALL];
	uint32_t demoted; /* how often one that had to go found another pool */
};

static uint32_t rank_in(const struct plain_rank *p, uint32_t id)
{
	return rank_by_counting(p->count, p->used, id / EXPERTS, id % EXPERTS);
}

/* An expert that is nowhere finds its place among the pools allowed. */
static void put_in_pool(struct plain_rank *p, uint32_t id, const bool allowed[OD_CACHE_STATES])
{
	const uint32_t layer = id / EXPERTS, rank = rank_in(p, id);
	uint32_t end = 0;

	for (unsigned s = 0; s < OD_CACHE_STATES; s++) {
		uint32_t capacity = od_cache_plan_capacity(&p->opt.plan, layer, s), n = 0, least = ALL;
		bool next[OD_CACHE_STATES] = { false };

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
			p->where[least] = OD_CACHE_NONE;
			next[OD_CACHE_S] = next[OD_CACHE_E] =
				s == OD_CACHE_C || (s == OD_CACHE_F && p->opt.full_is_stored);
			put_in_pool(p, least, next);
			p->demoted += p->where[least] != OD_CACHE_NONE;
		}
		p->where[id] = s;
		return;
	}
}

static void rank_dispatch(void **state)
{
	static const bool all[OD_CACHE_STATES] = { true, true, true, true };
	uint32_t seen[OD_CACHE_STATES + 1] = { 0 }, demoted = 0;

	(void)state;
	seed = 4;
	for (int round = 0; round < 80; round++) {
		struct plain_rank p = { .opt = { .policy = OD_CACHE_RANK,
						 .n_moe = LAYERS,
						 .n_experts = EXPERTS,
						 .full_is_stored = round % 8 < 4,
						 .plan = { .n_moe = LAYERS } } };
		enum od_cache_state told[ALL];
		struct od_cache *c;

		for (unsigned s = 0; s < OD_CACHE_STATES; s++)
			p.opt.plan.experts[s] = below(5);
		c = new_cache(&p.opt);
		for (uint32_t i = 0; i < ALL; i++)
			p.where[i] = told[i] = OD_CACHE_NONE;
		for (uint64_t now = 1; now < 500; now++) {
			uint32_t layer = below(LAYERS), expert = skewed(EXPERTS), id = layer * EXPERTS + expert;
			struct od_cache_changes ch;

			p.count[id]++;
			p.used[id] = now;
			p.where[id] = OD_CACHE_NONE;
			put_in_pool(&p, id, all);
			seen[p.where[id]]++;
			ch = od_cache_use(c, layer, expert);
			assert_true(ch.n > 0 && ch.change[ch.n - 1].layer == layer &&
				    ch.change[ch.n - 1].expert == expert);
			for (size_t i = 0; i < ch.n; i++)
				told[ch.change[i].layer * EXPERTS + ch.change[i].expert] = ch.change[i].state;
			assert_memory_equal(told, p.where, sizeof(told));
			for (uint32_t i = 0; i < ALL; i++)
				assert_int_equal(od_cache_look(c, i / EXPERTS, i % EXPERTS), p.where[i]);
			if (p.where[id] != OD_CACHE_NONE && below(30) == 0) {
				od_cache_forget(c, layer, expert);
				p.where[id] = told[id] = OD_CACHE_NONE;
			}
		}
		demoted += p.demoted;
		od_cache_free(c);
	}
	for (unsigned s = 0; s <= OD_CACHE_STATES; s++)
		assert_true(seen[s] > 100);
	assert_true(demoted > 100);
}

static void a_smaller_plan_takes_effect_at_once(void **state)
{
	struct od_cache_opts o = { .policy = OD_CACHE_RANK,
				   .n_moe = 1,
				   .n_experts = EXPERTS,
				   .plan = { .n_moe = 1, .experts = { 2, 0, 3, 0 } } };
	const struct od_cache_plan less = { .n_moe = 1, .experts = { 1, 2, 1, 0 } };
	struct od_cache *c = new_cache(&o);
	struct od_cache_changes ch;

	(void)state;
	for (uint32_t e = 0; e < 5; e++) { /* expert 0 most often */
		for (uint32_t i = e; i < 5; i++)
			od_cache_use(c, 0, e);
	}
	for (uint32_t e = 0; e < 5; e++)
		assert_int_equal(od_cache_look(c, 0, e), e < 2 ? OD_CACHE_F : OD_CACHE_S);
	ch = od_cache_set_plan(c, &less);
	assert_int_equal(ch.n, 3);
	assert_int_equal(ch.change[0].expert, 1);
	assert_int_equal(ch.change[1].expert, 4);
	assert_int_equal(ch.change[2].expert, 3);
	for (uint32_t e = 0; e < 5; e++)
		assert_int_equal(od_cache_look(c, 0, e), e == 0 ? OD_CACHE_F : e == 2 ? OD_CACHE_S : OD_CACHE_NONE);
	od_cache_use(c, 0, 3); /* as often as expert 2, and later: rank 2, which is pool C's now */
	assert_int_equal(od_cache_look(c, 0, 3), OD_CACHE_C);
	od_cache_free(c);
}

static void stats_count_ranks_before_the_use(void **state)
{
	static const uint16_t first[] = { 3, 1 }, second[] = { 1, 0 }, third[] = { 1 };
	struct od_rank_stats p;
	double f[4];

	(void)state;
	assert_int_equal(od_rank_stats_init(&p, 2, 4, NULL), OD_OK);
	assert_true(od_rank_stats_k(&p) == 1);
	od_rank_stats_inclusion(&p, f);
	assert_true(f[0] == 0.25 && f[3] == 0.25);
	od_rank_stats_visit(&p, 0, first, 2); /* ranks 3 and 1; then the order is 1 3 0 2 */
	od_rank_stats_visit(&p, 0, second, 2); /* ranks 0 and 2; then 1 0 3 2: 0 was used later than 3 */
	od_rank_stats_visit(&p, 0, first, 0);
	od_rank_stats_visit(&p, 1, third, 1); /* rank 1 of another layer */
	od_rank_stats_visit(&p, 0, first, 2); /* ranks 2 and 0 */
	od_rank_stats_inclusion(&p, f);
	assert_true(f[0] == 0.5 && f[1] == 0.5 && f[2] == 0.5 && f[3] == 0.25);
	assert_true(od_rank_stats_k(&p) == 7.0 / 4);
	assert_int_equal(od_rank_at(&p.list, 0, 0), 1);
	assert_int_equal(od_rank_at(&p.list, 0, 1), 3);
	assert_int_equal(od_rank_of(&p.list, 1, 1), 0);
	od_rank_stats_fini(&p);
}

static void nonsense_is_refused(void **state)
{
	struct od_cache_opts o = of_one_state(OD_CACHE_LRU, 3),
			     rank = { .policy = OD_CACHE_RANK, .n_moe = 2, .n_experts = 2 };
	struct od_cache *c;

	(void)state;
	o.expert_bytes = 0;
	assert_int_equal(od_cache_new(&c, &o, NULL), OD_ERR_RANGE);
	assert_null(c);
	assert_int_equal(od_cache_new(&c, &rank, NULL), OD_ERR_RANGE);
	rank.n_moe = 0;
	assert_int_equal(od_cache_new(&c, &rank, NULL), OD_ERR_RANGE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(queues),
		cmocka_unit_test(queues_of_several_sizes),
		cmocka_unit_test(rank_dispatch),
		cmocka_unit_test(a_smaller_plan_takes_effect_at_once),
		cmocka_unit_test(stats_count_ranks_before_the_use),
		cmocka_unit_test(nonsense_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

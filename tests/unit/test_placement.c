/* Groups and dealing, against the rules of the design worked out by hand and by brute force. */
#include "main-node/cluster/placement.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/alike_workers.h"

static void group_counts(void **state)
{
	/* workers, asked, top-k -> groups: M = max(1, floor(N / min(asked or k, N))) */
	static const uint32_t want[][4] = {
		{ 1, 0, 2, 1 }, { 2, 0, 2, 1 }, { 3, 0, 2, 1 }, { 4, 0, 2, 2 },	 { 5, 0, 2, 2 },
		{ 8, 0, 2, 4 }, { 8, 1, 2, 8 }, { 8, 3, 2, 2 }, { 3, 9, 2, 1 },	 { 8, 0, 8, 1 },
		{ 0, 0, 2, 0 }, { 7, 2, 8, 3 }, { 1, 3, 4, 1 }, { 10, 4, 2, 2 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++)
		assert_int_equal(odm_groups_make(want[i][0], want[i][1], want[i][2], 32).n_groups, want[i][3]);
}

static void every_worker_in_one_group(void **state)
{
	(void)state;
	for (uint32_t n = 1; n < 20; n++) {
		for (uint32_t asked = 1; asked < 6; asked++) {
			struct odm_groups g = odm_groups_make(n, asked, 2, 12);
			uint32_t seen[20] = { 0 };

			for (uint32_t group = 0; group < g.n_groups; group++) {
				assert_true(odm_group_size(&g, group) > 0);
				for (uint32_t i = 0; i < odm_group_size(&g, group); i++) {
					uint32_t w = odm_group_worker(&g, group, i);

					assert_int_equal(w % g.n_groups, group);
					assert_true(w < n);
					seen[w]++;
				}
			}
			for (uint32_t w = 0; w < n; w++)
				assert_int_equal(seen[w], 1);
		}
	}
}

/* With more than one group, no two layers in a row meet the same one, the step's boundary included. */
static void neighbours_meet_different_groups(void **state)
{
	(void)state;
	for (uint32_t layers = 2; layers < 40; layers++) {
		for (uint32_t n = 2; n < 17; n++) {
			struct odm_groups g = odm_groups_make(n, 1, 2, layers);
			uint32_t last = UINT32_MAX;

			for (uint64_t step = 1; step < 6; step++) {
				for (uint32_t m = 0; m < layers; m++) {
					uint32_t group = odm_group_of_layer(&g, step, m);

					assert_true(group < g.n_groups);
					assert_int_not_equal(group, last);
					last = group;
				}
			}
		}
	}
}

static void layer_m_is_served_by_group_m_mod_M(void **state)
{
	struct odm_groups g = odm_groups_make(8, 2, 2, 32); /* 4 groups, 32 mod 4 is 0: no rotation */

	(void)state;
	for (uint64_t step = 0; step < 9; step++) {
		for (uint32_t m = 0; m < 32; m++)
			assert_int_equal(odm_group_of_layer(&g, step, m), m % 4);
	}
}

static uint32_t keep_table(void *arg, uint16_t expert)
{
	return ((const uint32_t *)arg)[expert];
}

static void deal_round_robin(void **state)
{
	struct odm_groups g = odm_groups_make(5, 2, 2, 12); /* groups {0,2,4} and {1,3} */
	const uint16_t expert[] = { 1, 4, 6 };
	uint32_t worker[3], scratch[ODM_DEAL_SCRATCH(3, 5)];

	(void)state;
	g.times = alike_workers(5);
	odm_deal(&g, 3, 0, expert, NULL, 3, NULL, NULL, worker, scratch);
	assert_memory_equal(worker, ((uint32_t[]){ 0, 2, 4 }), sizeof(worker));
	odm_deal(&g, 3, 1, expert, NULL, 3, NULL, NULL, worker, scratch);
	assert_memory_equal(worker, ((uint32_t[]){ 1, 3, 0 }),
			    sizeof(worker)); /* one load each, outside the group too */
}

/* Three workers, two experts a layer: each works. */
static void a_large_group_takes_turns(void **state)
{
	struct odm_groups g = odm_groups_make(3, 2, 2, 12);
	const uint16_t expert[] = { 3, 5 };
	uint32_t worker[2], scratch[ODM_DEAL_SCRATCH(2, 3)], used[3] = { 0 };

	(void)state;
	g.times = alike_workers(3);
	for (uint32_t m = 0; m < 12; m++) {
		odm_deal(&g, 1, m, expert, NULL, 2, NULL, NULL, worker, scratch);
		assert_int_not_equal(worker[0], worker[1]);
		used[worker[0]]++;
		used[worker[1]]++;
	}
	for (int w = 0; w < 3; w++)
		assert_int_equal(used[w], 8);
}

static void deal_keeps_what_is_loading(void **state)
{
	struct odm_groups g = odm_groups_make(4, 2, 2, 12); /* {0,2}, {1,3} */
	const uint32_t keep[] = { ODM_NOBODY, ODM_NOBODY, 0, 3, 77 };
	const uint16_t a[] = { 1, 2 }, b[] = { 1, 3, 4 };
	uint32_t worker[3], scratch[ODM_DEAL_SCRATCH(3, 4)];

	(void)state;
	g.times = alike_workers(4);
	odm_deal(&g, 1, 0, a, NULL, 2, keep_table, (void *)keep, worker, scratch);
	assert_int_equal(worker[1], 0); /* stays */
	assert_int_equal(worker[0], 2); /* goes to the free one */
	odm_deal(&g, 1, 0, b, NULL, 3, keep_table, (void *)keep, worker, scratch);
	assert_int_equal(worker[1], 3); /* even outside the group */
	assert_int_equal(worker[0], 0);
	assert_int_equal(worker[2], 2); /* a worker that is not there any more is nobody */
}

/* Owners of each expert: a bit for each worker, the same in all layers. */
static void has_table(void *arg, uint32_t worker, uint32_t m, const uint16_t *expert, size_t n, uint8_t *cost)
{
	(void)m;
	for (size_t i = 0; i < n; i++)
		cost[i] = (((const uint32_t *)arg)[expert[i]] >> worker & 1) != 0 ? ODM_COST_LOAD : ODM_COST_LACKS;
}

static void experts_go_to_those_who_have_them(void **state)
{
	struct odm_groups g = odm_groups_make(4, 2, 2, 12); /* {0,2}, {1,3} */
	uint32_t has[] = { 0x4, 0x5, 0xa, 0x0, 0xf }, worker[5], scratch[ODM_DEAL_SCRATCH(5, 4)];
	const uint16_t expert[] = { 0, 1, 2, 3, 4 };

	(void)state;
	g.few = 5;
	g.cost = has_table;
	g.cost_arg = has;
	g.times = alike_workers(4);
	odm_deal(&g, 1, 0, expert, NULL, 5, NULL, NULL, worker, scratch);
	assert_int_equal(worker[0], 2); /* the one of the group that has it */
	assert_int_equal(worker[1], 0); /* both have: the one with less */
	assert_int_equal(worker[2], 1); /* none of the group has it: any that has */
	assert_int_equal(worker[3], 3); /* no worker has it: any */
	assert_int_equal(worker[4], 0);
	g.few = 4; /* many */
	odm_deal(&g, 1, 0, expert, NULL, 5, NULL, NULL, worker, scratch);
	assert_memory_equal(worker, ((uint32_t[]){ 2, 0, 3, 1, 0 }), sizeof(worker));
}

/* By worker and expert. */
struct cost_table {
	uint8_t cost[6][8];
};

static void cost_table(void *arg, uint32_t worker, uint32_t m, const uint16_t *expert, size_t n, uint8_t *cost)
{
	(void)m;
	for (size_t i = 0; i < n; i++)
		cost[i] = ((const struct cost_table *)arg)->cost[worker][expert[i]];
}

/* Nothing is cached: all go home, unless two have the same; then one is loaded where it is ready first. */
static void experts_go_home(void **state)
{
	struct odm_groups g = odm_groups_make(4, 4, 2, 12);
	uint32_t worker[2], scratch[ODM_DEAL_SCRATCH(2, 4)], homes[2];
	unsigned same = 0, apart = 0;

	(void)state;
	g.homes = true;
	g.n_experts = 8;
	g.times = alike_workers(4);
	for (uint32_t m = 0; m < 12; m++) {
		for (uint16_t e = 0; e < 7; e++) {
			const uint16_t expert[] = { e, (uint16_t)(e + 1) };

			odm_deal(&g, m, m, expert, NULL, 2, NULL, NULL, worker, scratch);
			homes[0] = odm_home(&g, m, expert[0]);
			homes[1] = odm_home(&g, m, expert[1]);
			if (homes[0] != homes[1])
				assert_memory_equal(worker, homes, sizeof(homes));
			else
				assert_true(worker[0] == homes[0] || worker[1] == homes[1]);
			same += homes[0] == homes[1];
			apart += homes[0] == homes[1] && worker[0] != worker[1];
		}
	}
	assert_true(same > 10 && apart > same / 2);
}

/* An expert runs where it is cached, though two runs there take longer than one: a load takes longer still. */
static void cached_experts_stay_where_they_are(void **state)
{
	struct odm_groups g = odm_groups_make(4, 4, 2, 12);
	const uint16_t expert[] = { 1, 3, 5 };
	struct cost_table t;
	uint32_t worker[3], scratch[ODM_DEAL_SCRATCH(3, 4)];

	(void)state;
	memset(&t, ODM_COST_LOAD, sizeof(t));
	g.homes = true;
	g.n_experts = 8;
	g.few = 3;
	g.cost = cost_table;
	g.cost_arg = &t;
	g.times = alike_workers(4);
	t.cost[0][1] = t.cost[0][3] = t.cost[0][5] = 0;
	odm_deal(&g, 1, 0, expert, NULL, 3, NULL, NULL, worker, scratch);
	assert_true(worker[0] == 0 && worker[1] == 0 && worker[2] == 0);
}

static void groups_that_stand_still(void **state)
{
	struct odm_groups g = odm_groups_make(4, 1, 2, 13); /* 13 mod 4 is 1: they would rotate */

	(void)state;
	assert_int_not_equal(odm_group_of_layer(&g, 1, 0), odm_group_of_layer(&g, 2, 0));
	g.still = true;
	for (uint64_t step = 0; step < 5; step++) {
		for (uint32_t m = 0; m < 13; m++)
			assert_int_equal(odm_group_of_layer(&g, step, m), m % 4);
	}
}

/* Experts that a worker keeps, the same in all layers: a row of workers for each expert. */
static void kept_table(void *arg, uint32_t worker, uint32_t m, const uint16_t *expert, size_t n, uint8_t *cost)
{
	(void)m;
	for (size_t i = 0; i < n; i++)
		cost[i] = (((const bool(*)[4])arg)[expert[i]])[worker] ? 0 : ODM_COST_LOAD;
}

static void a_prompt_goes_to_who_keeps_its_experts(void **state)
{
	bool kept[8][4] = { 0 };
	struct odm_groups g = odm_groups_make(4, 2, 2, 12);
	const uint16_t expert[] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	const uint32_t keep[] = { ODM_NOBODY, 3, ODM_NOBODY, ODM_NOBODY, ODM_NOBODY, ODM_NOBODY, ODM_NOBODY, 99 };
	const uint32_t rows[] = { 64, 64, 64, 64, 64, 64, 64, 64 }; /* they run half as long as they load */
	uint32_t worker[8], scratch[ODM_DEAL_SCRATCH(8, 4)], n[4] = { 0 };

	(void)state;
	g.cost = kept_table;
	g.cost_arg = kept;
	g.times = alike_workers(4);
	odm_deal(&g, 1, 5, expert, NULL, 8, NULL, NULL, worker, scratch); /* nothing is kept: e mod N */
	assert_memory_equal(worker, ((uint32_t[]){ 0, 1, 2, 3, 0, 1, 2, 3 }), sizeof(worker));
	kept[0][0] = kept[1][0] = kept[2][2] = kept[3][2] = true;
	odm_deal(&g, 1, 5, expert, NULL, 8, NULL, NULL, worker, scratch); /* no worker has to load two */
	assert_memory_equal(worker, ((uint32_t[]){ 0, 0, 2, 2, 0, 1, 2, 3 }), sizeof(worker));
	odm_deal(&g, 1, 5, expert, NULL, 8, keep_table, (void *)keep, worker, scratch);
	assert_int_equal(worker[1], 3); /* on its way there, to a worker with less to do */
	assert_int_equal(worker[0], 0);

	for (int e = 0; e < 8; e++) /* a worker that keeps everything does not run everything */
		kept[e][1] = true;
	odm_deal(&g, 1, 5, expert, rows, 8, NULL, NULL, worker, scratch);
	for (int e = 0; e < 8; e++)
		n[worker[e]]++;
	assert_in_range(n[1], 2, 5);
	for (int w = 0; w < 4; w++)
		assert_true(n[w] > 0);
}

/* The second half of a step's rows finds the first one's experts where they are, however its own rows are spread. */
static void halves_of_a_prompt_load_an_expert_once(void **state)
{
	struct odm_groups g = odm_groups_make(4, 2, 2, 12);
	const uint16_t expert[] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	const uint32_t keep[] = { 1, 1, 1, 1, 1, 1, ODM_NOBODY, 7 }; /* worker 7 is no longer there */
	const uint32_t rows[] = { 640, 640, 640, 64, 64, 64, 64, 64 };
	uint32_t worker[8], scratch[ODM_DEAL_SCRATCH(8, 4)], moved = 0;

	(void)state;
	g.times = alike_workers(4);
	odm_deal(&g, 1, 5, expert, rows, 8, keep_table, (void *)keep, worker, scratch);
	for (int e = 0; e < 6; e++)
		moved += worker[e] != 1;
	assert_true(moved > 0);
	g.second = true;
	odm_deal(&g, 1, 5, expert, rows, 8, keep_table, (void *)keep, worker, scratch);
	for (int e = 0; e < 6; e++)
		assert_int_equal(worker[e], 1);
	assert_true(worker[6] != 1 && worker[7] != 1 && worker[7] < 4);
}

/* When a worker is through with its loads, and with all. */
struct simple_end {
	uint32_t path, load;
};

static struct simple_end end_with(struct simple_end e, uint8_t cost)
{
	const uint32_t units = cost == ODM_COST_LACKS ? ODM_COST_LOAD : cost;

	e.path += units;
	e.load = (units > 0 && e.path > e.load ? e.path : e.load) + ALIKE_RUN;
	return e;
}

/* The expert that costs w least, the first of equal ones; n: there is none. */
static size_t cheapest_of(const struct odm_groups *g, uint32_t w, uint32_t m, const uint16_t *expert, size_t n,
			  const uint32_t *worker)
{
	uint8_t least = ODM_COST_LACKS;
	size_t best = n;

	for (size_t i = 0; i < n; i++) {
		uint8_t cost = odm_worker_cost(g, w, m, expert[i]);
		bool anybody = false;

		for (uint32_t other = 0; other < g->n_workers; other++)
			anybody = anybody || odm_worker_has(g, other, m, expert[i]);
		cost = anybody ? cost : ODM_COST_LOAD;
		if (worker[i] == ODM_NOBODY && cost < least) {
			least = cost;
			best = i;
		}
	}
	return best;
}

/* Deals by the rule, word by word: looks at all workers for every expert that is dealt. No homes. */
static void deal_word_by_word(const struct odm_groups *g, uint64_t step, uint32_t m, const uint16_t *expert, size_t n,
			      const uint32_t *keep, uint32_t *worker)
{
	const uint32_t group = odm_group_of_layer(g, step, m), size = odm_group_size(g, group), begin = m / g->n_groups;
	struct simple_end end[9] = { 0 };

	for (size_t i = 0; i < n; i++) {
		worker[i] = keep[expert[i]];
		if (worker[i] != ODM_NOBODY)
			end[worker[i]] = end_with(end[worker[i]], odm_worker_cost(g, worker[i], m, expert[i]));
	}
	for (;;) {
		uint32_t best = ODM_NOBODY;
		struct simple_end best_end = { 0 };
		size_t best_i = n;

		for (uint32_t j = 0; j < size + g->n_workers; j++) { /* the group by turns, then all */
			const uint32_t w = j < size ? odm_group_worker(g, group, (begin + j) % size) : j - size;
			const size_t i = cheapest_of(g, w, m, expert, n, worker);
			struct simple_end e;

			if (i == n)
				continue;
			e = end_with(end[w], odm_worker_cost(g, w, m, expert[i]));
			if (best != ODM_NOBODY && (e.load > best_end.load || (e.load == best_end.load && i >= best_i)))
				continue;
			best = w;
			best_end = e;
			best_i = i;
		}
		if (best == ODM_NOBODY)
			return;
		worker[best_i] = best;
		end[best] = best_end;
	}
}

static void each_goes_where_the_rule_says(void **state)
{
	static const uint8_t costs[] = { 0, 8, 48, ODM_COST_LOAD, ODM_COST_LOAD, ODM_COST_LACKS };
	uint64_t seed = 7;

	(void)state;
	for (int round = 0; round < 2000; round++) {
		uint32_t random[64], keep[8], worker[8], expected[8], scratch[ODM_DEAL_SCRATCH(8, 6)];
		struct odm_groups g;
		struct cost_table t;
		uint16_t expert[8];
		uint64_t step, m;
		size_t n = 0;

		for (int i = 0; i < 64; i++) {
			seed = seed * 6364136223846793005ull + 1442695040888963407ull;
			random[i] = (uint32_t)(seed >> 40);
		}
		g = odm_groups_make(1 + random[0] % 6, random[1] % 4, 2, 13);
		g.few = 8;
		g.still = random[3] % 2 == 0;
		g.times = alike_workers(g.n_workers);
		g.cost = random[4] % 4 == 0 ? NULL : cost_table;
		g.cost_arg = &t;
		step = random[5] % 9;
		m = random[6] % 13;
		for (int i = 0; i < 6 * 8; i++)
			t.cost[i / 8][i % 8] = costs[random[8 + i] % 6];
		for (uint16_t e = 0; e < 8; e++) {
			keep[e] = random[56 + e] % 4 == 0 ? random[56 + e] / 4 % g.n_workers : ODM_NOBODY;
			if (random[56 + e] / 100 % 3 != 0)
				expert[n++] = e;
		}
		odm_deal(&g, step, (uint32_t)m, expert, NULL, n, keep_table, keep, worker, scratch);
		deal_word_by_word(&g, step, (uint32_t)m, expert, n, keep, expected);
		assert_memory_equal(worker, expected, n * sizeof(*worker));
	}
}

static size_t n_costs;

static void count_costs(void *arg, uint32_t worker, uint32_t m, const uint16_t *expert, size_t n, uint8_t *cost)
{
	(void)arg;
	for (size_t i = 0; i < n; i++) {
		n_costs++;
		cost[i] = (worker + m + expert[i]) % 3 == 0 ? 0 : ODM_COST_LOAD;
	}
}

/* Eight times the experts, twelve times the work at most; of few, and of many. */
static void work_grows_with_the_number_of_experts(void **state)
{
	static const uint32_t few[] = { UINT32_MAX, 1 };
	static uint32_t scratch[ODM_DEAL_SCRATCH(256, 16)];
	uint32_t worker[256];
	uint16_t expert[256];

	(void)state;
	for (uint16_t e = 0; e < 256; e++)
		expert[e] = e;
	for (int i = 0; i < 4; i++) {
		struct odm_groups g = odm_groups_make(16, 8, 8, 12);
		size_t of_32;

		g.cost = count_costs;
		g.homes = g.still = i % 2 == 0;
		g.n_experts = 256;
		g.times = alike_workers(16);
		g.few = few[i / 2];
		n_costs = 0;
		odm_deal(&g, 1, 1, expert, NULL, 32, NULL, NULL, worker, scratch);
		of_32 = n_costs;
		n_costs = 0;
		odm_deal(&g, 1, 1, expert, NULL, 256, NULL, NULL, worker, scratch);
		assert_true(of_32 >= 32 && of_32 <= 32 * 16);
		assert_true(n_costs >= 256 && n_costs <= 12 * of_32);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(group_counts),
		cmocka_unit_test(every_worker_in_one_group),
		cmocka_unit_test(neighbours_meet_different_groups),
		cmocka_unit_test(layer_m_is_served_by_group_m_mod_M),
		cmocka_unit_test(deal_round_robin),
		cmocka_unit_test(a_large_group_takes_turns),
		cmocka_unit_test(deal_keeps_what_is_loading),
		cmocka_unit_test(experts_go_to_those_who_have_them),
		cmocka_unit_test(experts_go_home),
		cmocka_unit_test(cached_experts_stay_where_they_are),
		cmocka_unit_test(each_goes_where_the_rule_says),
		cmocka_unit_test(work_grows_with_the_number_of_experts),
		cmocka_unit_test(groups_that_stand_still),
		cmocka_unit_test(a_prompt_goes_to_who_keeps_its_experts),
		cmocka_unit_test(halves_of_a_prompt_load_an_expert_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Groups and dealing, against the rules of the design worked out by hand and by brute force. */
#include "main-node/cluster/placement.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

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
	const uint16_t expert[] = { 1, 4, 6, 7 };
	uint32_t worker[4], scratch[ODM_DEAL_SCRATCH(4, 5)];

	(void)state;
	odm_deal(&g, 3, 0, expert, NULL, 4, NULL, NULL, worker, scratch);
	assert_memory_equal(worker, ((uint32_t[]){ 0, 2, 4, 0 }), sizeof(worker));
	odm_deal(&g, 3, 1, expert, NULL, 4, NULL, NULL, worker, scratch);
	assert_memory_equal(worker, ((uint32_t[]){ 1, 3, 1, 3 }), sizeof(worker));
}

/* Three workers, two experts a layer: nobody is left out. */
static void a_large_group_takes_turns(void **state)
{
	struct odm_groups g = odm_groups_make(3, 2, 2, 12);
	const uint16_t expert[] = { 3, 5 };
	uint32_t worker[2], scratch[ODM_DEAL_SCRATCH(2, 3)], used[3] = { 0 };

	(void)state;
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
	odm_deal(&g, 1, 0, expert, NULL, 5, NULL, NULL, worker, scratch);
	assert_int_equal(worker[0], 2); /* the one of the group that has it */
	assert_int_equal(worker[1], 0); /* both have: the one with less */
	assert_int_equal(worker[2], 1); /* none of the group has it: any that has */
	assert_true(worker[3] == 0 || worker[3] == 2); /* no worker has it: the group */
	assert_true(worker[4] == 0 || worker[4] == 2);
	assert_int_equal(odm_worker_of_many(&g, 0, 4), 0);
	assert_int_equal(odm_worker_of_many(&g, 0, 2), 3); /* 2 lacks it: the next that has it */
	assert_int_equal(odm_worker_of_many(&g, 0, 0), 2);
	assert_int_equal(odm_worker_of_many(&g, 0, 3), 3); /* no worker has it: its first choice */
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

static void cached_experts_stay_where_they_are(void **state)
{
	struct odm_groups g = odm_groups_make(4, 2, 2, 12); /* {0,2}, {1,3} */
	const uint16_t a[] = { 1, 2 }, b[] = { 2, 4 }, c[] = { 1, 3, 5 };
	struct cost_table t;
	uint32_t worker[3], scratch[ODM_DEAL_SCRATCH(3, 4)];

	(void)state;
	for (int i = 0; i < 6 * 8; i++)
		t.cost[i / 8][i % 8] = ODM_COST_LOAD;
	g.homes = g.still = true;
	g.cost = cost_table;
	g.cost_arg = &t;
	for (uint32_t m = 0; m < 12; m += 2) { /* nothing is kept: the same everywhere, by number */
		odm_deal(&g, m, m, a, NULL, 2, NULL, NULL, worker, scratch);
		assert_true(worker[0] == 2 && worker[1] == 0);
		odm_deal(&g, m, m, b, NULL, 2, NULL, NULL, worker, scratch);
		assert_true(worker[0] == 0 && worker[1] == 2); /* not at home: that one has something to do */
	}
	t.cost[0][4] = 0;
	odm_deal(&g, 1, 0, b, NULL, 2, NULL, NULL, worker, scratch);
	assert_true(worker[0] == 2 && worker[1] == 0); /* resident experts go first */
	t.cost[0][2] = ODM_COST_LOAD / 2;
	odm_deal(&g, 1, 0, b, NULL, 2, NULL, NULL, worker, scratch);
	assert_true(worker[0] == 0 && worker[1] == 0);
	t.cost[0][1] = t.cost[0][3] = t.cost[0][5] = 0;
	odm_deal(&g, 1, 0, c, NULL, 3, NULL, NULL, worker, scratch);
	assert_true(worker[0] == 0 && worker[1] == 0 && worker[2] == 0); /* running is cheap */
}

/* Cost of an expert on a worker to whom it may be dealt: one of the group {1, 3, 5} that has it, and when none of these
 * keeps any of it, one that does; else the first of the others that has it, else any of the group; ODM_COST_LACKS: it
 * may not. */
static uint32_t cost_of(const struct cost_table *t, uint32_t worker, uint16_t expert)
{
	uint32_t first = ODM_NOBODY;
	bool group = false, kept = false;

	for (uint32_t w = 0; w < 6; w++) {
		const bool has = t->cost[w][expert] != ODM_COST_LACKS;

		group = group || (has && w % 2 == 1);
		kept = kept || (t->cost[w][expert] < ODM_COST_LOAD && w % 2 == 1);
		if (has && first == ODM_NOBODY)
			first = w;
	}
	if (group && worker % 2 == 0)
		return !kept && t->cost[worker][expert] < ODM_COST_LOAD ? t->cost[worker][expert] : ODM_COST_LACKS;
	if (group)
		return t->cost[worker][expert];
	if (first != ODM_NOBODY)
		return worker == first ? t->cost[worker][expert] : ODM_COST_LACKS;
	return worker % 2 == 1 ? ODM_COST_LOAD : ODM_COST_LACKS;
}

/* There is an order in which each was the best choice when it was made. */
static void check_deal(const struct cost_table *t, const uint16_t *expert, const uint32_t *worker)
{
	uint32_t sum[6] = { 0 };
	bool done[5] = { false };

	for (int n = 0; n < 5; n++) {
		uint32_t least = UINT32_MAX;
		int next = -1;

		for (int i = 0; i < 5 * 6; i++) {
			const uint32_t cost = cost_of(t, (uint32_t)i % 6, expert[i / 6]);

			if (!done[i / 6] && cost != ODM_COST_LACKS && sum[i % 6] + cost < least)
				least = sum[i % 6] + cost;
		}
		for (int i = 0; i < 5 && next < 0; i++) {
			const uint32_t cost = cost_of(t, worker[i], expert[i]);

			if (!done[i] && cost != ODM_COST_LACKS && sum[worker[i]] + cost == least)
				next = i;
		}
		assert_true(next >= 0);
		done[next] = true;
		sum[worker[next]] += ODM_COST_RUN + cost_of(t, worker[next], expert[next]);
	}
}

/* By brute force: every time the expert and the worker that are ready first. */
static void it_is_dealt_to_whom_it_costs_least(void **state)
{
	static const uint8_t costs[] = { 0, 8, 16, 48, ODM_COST_LOAD, ODM_COST_LACKS };
	const uint16_t expert[] = { 0, 2, 3, 6, 7 };
	uint64_t seed = 1;

	(void)state;
	for (int round = 0; round < 500; round++) {
		struct odm_groups g = odm_groups_make(6, 3, 2, 12); /* {0,2,4}, {1,3,5} */
		uint32_t worker[5], scratch[ODM_DEAL_SCRATCH(5, 6)];
		struct cost_table t;

		for (int i = 0; i < 6 * 8; i++) {
			seed = seed * 6364136223846793005ull + 1442695040888963407ull;
			t.cost[i / 8][i % 8] = costs[(seed >> 40) % 6];
		}
		g.homes = g.still = true;
		g.cost = cost_table;
		g.cost_arg = &t;
		odm_deal(&g, 1, 1, expert, NULL, 5, NULL, NULL, worker, scratch);
		check_deal(&t, expert, worker);
	}
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
	uint32_t worker[8], scratch[ODM_DEAL_SCRATCH(8, 4)], n[4] = { 0 };

	(void)state;
	g.cost = kept_table;
	g.cost_arg = kept;
	g.homes = true;
	odm_deal(&g, 1, 5, expert, NULL, 8, NULL, NULL, worker, scratch); /* nothing is kept: homes */
	assert_memory_equal(worker, ((uint32_t[]){ 0, 1, 2, 3, 0, 1, 2, 3 }), sizeof(worker));
	kept[0][0] = kept[1][0] = kept[2][2] = kept[3][2] = true;
	odm_deal(&g, 1, 5, expert, NULL, 8, NULL, NULL, worker, scratch); /* no worker has to load two */
	assert_memory_equal(worker, ((uint32_t[]){ 0, 0, 2, 2, 1, 3, 2, 0 }), sizeof(worker));
	odm_deal(&g, 1, 5, expert, NULL, 8, keep_table, (void *)keep, worker, scratch);
	assert_int_equal(worker[1], 3); /* on its way there */
	assert_int_equal(worker[0], 0);
	g.homes = false; /* no caches: it does not matter who has what else to do */
	odm_deal(&g, 1, 5, expert, NULL, 8, NULL, NULL, worker, scratch);
	assert_memory_equal(worker, ((uint32_t[]){ 0, 1, 2, 3, 0, 1, 2, 3 }), sizeof(worker));
	odm_deal(&g, 1, 5, expert, NULL, 8, keep_table, (void *)keep, worker, scratch);
	assert_memory_equal(worker, ((uint32_t[]){ 0, 3, 2, 3, 0, 1, 2, 3 }), sizeof(worker));

	g.homes = true; /* a worker that keeps everything does not run everything */
	for (int e = 0; e < 8; e++)
		kept[e][1] = true;
	odm_deal(&g, 1, 5, expert, NULL, 8, NULL, NULL, worker, scratch);
	for (int e = 0; e < 8; e++)
		n[worker[e]]++;
	assert_in_range(n[1], 2, 5);
	for (int w = 0; w < 4; w++)
		assert_true(n[w] > 0);
}

/* Deals by the rule, word by word: looks at all pairs for every expert that is dealt. */
static void deal_word_by_word(const struct odm_groups *g, uint64_t step, uint32_t m, const uint16_t *expert, size_t n,
			      const uint32_t *keep, uint32_t *worker)
{
	const uint32_t group = odm_group_of_layer(g, step, m), size = odm_group_size(g, group);
	uint32_t load[9] = { 0 };

	for (size_t i = 0; i < n; i++) {
		worker[i] = keep[expert[i]];
		if (worker[i] != ODM_NOBODY) {
			const uint8_t cost = odm_worker_cost(g, worker[i], m, expert[i]);

			load[worker[i]] += ODM_COST_RUN + (cost == ODM_COST_LACKS ? ODM_COST_LOAD : cost);
		}
	}
	for (;;) {
		uint32_t best = ODM_NOBODY, best_load = UINT32_MAX;
		size_t best_i = 0;

		for (size_t i = 0; i < n; i++) {
			const uint32_t begin = g->homes ? expert[i] : m / g->n_groups;
			uint32_t anybody = ODM_NOBODY;
			bool has = false, kept = false;

			if (worker[i] != ODM_NOBODY)
				continue;
			for (uint32_t w = g->n_workers; w-- > 0;) {
				const uint8_t cost = odm_worker_cost(g, w, m, expert[i]);

				anybody = cost != ODM_COST_LACKS ? w : anybody;
				has = has || (cost != ODM_COST_LACKS && w % g->n_groups == group);
				kept = kept || (cost < ODM_COST_LOAD && w % g->n_groups == group);
			}
			for (uint32_t j = 0; j < size + g->n_workers; j++) { /* the group by turns, then all */
				const uint32_t w = j < size ? odm_group_worker(g, group, (begin + j) % size) : j - size;
				const uint8_t cost = odm_worker_cost(g, w, m, expert[i]);
				const bool may = anybody == ODM_NOBODY ? j < size :
						 !has		       ? w == anybody :
						 j < size	       ? cost != ODM_COST_LACKS :
									 g->homes && !kept && cost < ODM_COST_LOAD;
				const uint32_t sum =
					load[w] + ODM_COST_RUN + (cost == ODM_COST_LACKS ? ODM_COST_LOAD : cost);

				if (may && sum < best_load) {
					best = w;
					best_load = sum;
					best_i = i;
				}
			}
		}
		if (best == ODM_NOBODY)
			return;
		worker[best_i] = best;
		load[best] = best_load;
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
		g.homes = random[2] % 2 == 0;
		g.still = random[3] % 2 == 0;
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

/* Eight times the experts, twelve times the work at most; over the group, and over all. */
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
		cmocka_unit_test(cached_experts_stay_where_they_are),
		cmocka_unit_test(it_is_dealt_to_whom_it_costs_least),
		cmocka_unit_test(each_goes_where_the_rule_says),
		cmocka_unit_test(work_grows_with_the_number_of_experts),
		cmocka_unit_test(groups_that_stand_still),
		cmocka_unit_test(a_prompt_goes_to_who_keeps_its_experts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

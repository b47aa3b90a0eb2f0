/* Dealing between workers that are not alike: against the best of all assignments, which are tried one by one. */
#include "main-node/cluster/deal_homes.h"
#include "main-node/cluster/placement.h"
#include "main-node/cluster/want_target.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define MS 1e6
#define MAX_WORKERS 4
#define MAX_EXPERTS 8
#define MANY 1000000000000ull

static uint64_t seed;

static uint32_t rng(uint32_t below)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(seed >> 33) % below;
}

/* A layer, and the workers that share it. */
struct unequal_case {
	struct odm_groups g;
	struct odm_deal_times times[MAX_WORKERS];
	bool cached[MAX_WORKERS][MAX_EXPERTS], lacks[MAX_WORKERS][MAX_EXPERTS];
	uint16_t expert[MAX_EXPERTS];
	uint32_t rows[MAX_EXPERTS];
	size_t n;
};

static void cost_of_case(void *arg, uint32_t worker, uint32_t m, const uint16_t *expert, size_t n, uint8_t *cost)
{
	const struct unequal_case *c = arg;

	(void)m;
	for (size_t i = 0; i < n; i++)
		cost[i] = c->lacks[worker][expert[i]]  ? ODM_COST_LACKS :
			  c->cached[worker][expert[i]] ? 0 :
							 ODM_COST_LOAD;
}

static struct odm_deal_times worker_of_speed(uint32_t id, double load_ms, double run_ms)
{
	return (struct odm_deal_times){
		.id = id, .expert = { .load = load_ms * MS, .run = run_ms * MS, .row = run_ms * MS / 8 }
	};
}

/* Up to four workers that differ by up to eight times. few: experts have a row each. */
static void make_case(struct unequal_case *c, bool few)
{
	const uint32_t n_workers = 1 + rng(MAX_WORKERS);

	*c = (struct unequal_case){ .g = odm_groups_make(n_workers, n_workers, few ? 4 : 2, 12) };
	c->g.times = c->times;
	c->g.n_groups = 1;
	c->n = few ? 1 + rng(5) : 5 + rng(4);
	c->g.few = few ? 8 : 4;
	for (uint32_t w = 0; w < n_workers; w++) {
		c->times[w] = worker_of_speed(w, 4 * (1 + rng(8)), 1 + rng(8));
		c->times[w].link = rng(3) * MS;
		c->times[w].row_link = rng(2) * 0.1 * MS;
		c->times[w].slots = rng(3);
		c->times[w].begin = rng(3) == 0 ? rng(20) * MS : 0;
	}
	for (size_t i = 0; i < c->n; i++) {
		c->expert[i] = (uint16_t)i;
		c->rows[i] = few ? 1 : 1 + rng(rng(4) == 0 ? 200 : 20);
	}
}

/* When the last worker is through, with experts in this order on each. */
static double end_of(const struct unequal_case *c, const uint32_t *worker, const uint32_t *order)
{
	double end = 0;

	for (uint32_t w = 0; w < c->g.n_workers; w++) {
		const struct odm_deal_times *t = &c->times[w];
		double loaded = t->begin, through = t->link;
		double ran[MAX_EXPERTS]; /* when each that was loaded has run */
		uint32_t n = 0;
		bool used = false;

		for (size_t j = 0; j < c->n; j++) {
			const size_t i = order != NULL ? order[j] : j;

			if (worker[i] != w)
				continue;
			if (!c->cached[w][c->expert[i]]) {
				if (t->slots > 0 && n >= t->slots && ran[n - t->slots] > loaded)
					loaded = ran[n - t->slots];
				loaded += t->expert.load;
				through = loaded > through ? loaded : through;
			}
			through += odm_expert_run_ns(&t->expert, c->rows[i]) + c->rows[i] * t->row_link;
			if (!c->cached[w][c->expert[i]])
				ran[n++] = through;
			used = true;
		}
		end = used && through > end ? through : end;
	}
	return end;
}

/* Experts with most rows first, as they are dealt. */
static void sort_rows(const struct unequal_case *c, uint32_t *order)
{
	for (uint32_t i = 0; i < c->n; i++) {
		uint32_t at = i;

		for (; at > 0 && c->rows[order[at - 1]] < c->rows[i]; at--)
			order[at] = order[at - 1];
		order[at] = i;
	}
}

static double best_of(const struct unequal_case *c, const uint32_t *order)
{
	uint32_t worker[MAX_EXPERTS] = { 0 };
	double best = end_of(c, worker, order);

	for (size_t i = 0; i < c->n;) {
		double end;

		if (++worker[i] == c->g.n_workers) {
			worker[i++] = 0;
			continue;
		}
		i = 0;
		end = end_of(c, worker, order);
		best = end < best ? end : best;
	}
	return best;
}

static double deal_case(struct unequal_case *c, const uint32_t *order)
{
	uint32_t worker[MAX_EXPERTS], scratch[ODM_DEAL_SCRATCH(MAX_EXPERTS, MAX_WORKERS)];

	odm_deal(&c->g, 1, 1, c->expert, c->rows, c->n, NULL, NULL, worker, scratch);
	for (size_t i = 0; i < c->n; i++)
		assert_true(worker[i] < c->g.n_workers && !c->lacks[worker[i]][c->expert[i]]);
	return end_of(c, worker, order);
}

/* Experts of a token are alike, so the greedy way is the best one. */
static void a_tokens_experts_are_dealt_as_well_as_can_be(void **state)
{
	(void)state;
	seed = 1;
	for (int round = 0; round < 2000; round++) {
		struct unequal_case c;

		make_case(&c, true);
		assert_true(deal_case(&c, NULL) <= best_of(&c, NULL) * 1.0001 + 1000);
	}
}

/* Experts of a prompt go to the first worker that is through, those with most rows first: within 2 n / (n + 1) of the
 * best for n workers (Gonzalez, Ibarra and Sahni, SIAM J. Comput. 6(1), 1977), and mostly much closer. */
static void a_prompts_experts_are_dealt_nearly_as_well(void **state)
{
	double sum = 0;

	(void)state;
	seed = 2;
	for (int round = 0; round < 400; round++) {
		uint32_t order[MAX_EXPERTS] = { 0 };
		struct unequal_case c;
		double ratio;

		make_case(&c, false);
		sort_rows(&c, order);
		ratio = deal_case(&c, order) / best_of(&c, order);
		assert_true(ratio <= 2.0 * c.g.n_workers / (c.g.n_workers + 1) + 0.001);
		sum += ratio / 400;
	}
	assert_true(sum < 1.03);
}

/* With caches no order is always best; it is never worse than the best worker alone. */
static void cached_experts_are_dealt_nearly_as_well(void **state)
{
	double sum = 0;

	(void)state;
	seed = 3;
	for (int round = 0; round < 2000; round++) {
		struct unequal_case c;
		double ratio;

		make_case(&c, true);
		c.g.cost = cost_of_case;
		c.g.cost_arg = &c;
		for (uint32_t w = 0; w < c.g.n_workers; w++)
			for (size_t i = 0; i < c.n; i++)
				c.cached[w][i] = rng(2) == 0;
		for (uint32_t w = 0; w < c.g.n_workers; w++)
			c.times[w].begin = 0;
		/* resident ones come first at a worker, as it orders its loads */
		ratio = deal_case(&c, NULL) / best_of(&c, NULL);
		assert_true(ratio < 2);
		sum += ratio / 2000;
	}
	assert_true(sum < 1.1);
}

/* One of four times the speed has loads four times as fast; a fifth worker that only delays gets nothing. */
static void each_gets_what_it_does_in_the_same_time(void **state)
{
	uint32_t rows[64], worker[64], scratch[ODM_DEAL_SCRATCH(64, 4)], n[4] = { 0 };
	struct odm_deal_times times[] = { worker_of_speed(7, 4, 1), worker_of_speed(5, 8, 2), worker_of_speed(2, 16, 4),
					  worker_of_speed(3, 2000, 500) };
	struct odm_groups g = odm_groups_make(4, 0, 2, 12);
	uint16_t expert[64];

	(void)state;
	g.n_groups = 1;
	g.times = times;
	for (uint16_t i = 0; i < 64; i++) {
		expert[i] = i;
		rows[i] = 2;
	}
	odm_deal(&g, 1, 1, expert, rows, 64, NULL, NULL, worker, scratch);
	for (int i = 0; i < 64; i++)
		n[worker[i]]++;
	assert_in_range(n[0], 35, 39); /* 4/7 of 64 is 36.6 */
	assert_in_range(n[1], 17, 20);
	assert_in_range(n[2], 8, 10);
	assert_int_equal(n[3], 0);
}

/* It holds what others do not: slow as it is, it gets that. */
static void only_those_who_have_an_expert_get_it(void **state)
{
	(void)state;
	seed = 4;
	for (int round = 0; round < 1000; round++) {
		struct unequal_case c;

		make_case(&c, round % 2 == 0);
		c.g.cost = cost_of_case;
		c.g.cost_arg = &c;
		for (size_t i = 0; i < c.n; i++) {
			const uint32_t holder = rng(c.g.n_workers);

			for (uint32_t w = 0; w < c.g.n_workers; w++)
				c.lacks[w][i] = w != holder && rng(2) == 0;
		}
		deal_case(&c, NULL); /* it looks */
	}
}

/* Sets homes to these shares, in the order of the workers. */
static void share_out(struct odm_deal_times *times, const double *share, uint32_t n)
{
	double from = 0;

	for (uint32_t w = 0; w < n; w++) {
		times[w].home = share[w];
		times[w].homes_from = from;
		from += share[w];
	}
}

/* A layer's experts are shared as evenly as whole experts allow, and few move when shares change. */
static void homes_are_shared_by_weight_and_few_move(void **state)
{
	static const double before[] = { 0.1, 0.2, 0.7 }, after[] = { 0.12, 0.2, 0.68 };
	static uint32_t home[100][30];
	struct odm_deal_times times[3] = { { .id = 3 }, { .id = 9 }, { .id = 4 } };
	struct odm_groups g = odm_groups_make(3, 0, 2, 100);
	uint32_t all[3] = { 0 }, moved = 0;

	(void)state;
	g.times = times;
	g.n_experts = 30;
	share_out(times, before, 3);
	for (uint32_t m = 0; m < 100; m++) {
		uint32_t n[3] = { 0 };

		for (uint16_t e = 0; e < 30; e++)
			n[home[m][e] = odm_home(&g, m, e)]++;
		for (int w = 0; w < 3; w++) {
			assert_true(n[w] > before[w] * 30 - 1 && n[w] < before[w] * 30 + 1);
			all[w] += n[w];
		}
	}
	for (int w = 0; w < 3; w++)
		assert_true(all[w] > before[w] * 3000 - 30 && all[w] < before[w] * 3000 + 30);
	share_out(times, after, 3);
	for (uint32_t m = 0; m < 100; m++)
		for (uint16_t e = 0; e < 30; e++)
			moved += odm_home(&g, m, e) != home[m][e];
	assert_in_range(moved, 90, 150); /* two borders move by 2% */
	times[1].home = 0; /* it is lost: until shares are set again, those before it have its experts */
	for (uint32_t m = 0; m < 100; m++)
		for (uint16_t e = 0; e < 30; e++)
			assert_int_not_equal(odm_home(&g, m, e), 1);
}

/* As many experts as workers that are alike: each has one of each layer. */
static void each_has_one_of_each_layer(void **state)
{
	static const double share[] = { 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125 };
	struct odm_deal_times times[8] = { 0 };
	struct odm_groups g = odm_groups_make(8, 0, 2, 100);

	(void)state;
	g.times = times;
	g.n_experts = 8;
	share_out(times, share, 8);
	for (uint32_t m = 0; m < 100; m++) {
		uint32_t seen = 0;

		for (uint16_t e = 0; e < 8; e++)
			seen |= 1u << odm_home(&g, m, e);
		assert_int_equal(seen, 0xff);
	}
}

static void shares_fill_the_caches(void **state)
{
	/* 320 experts are drawn, 40 +- 6 of a share of 40: so the small caches are home of fewer. */
	struct odm_home_share e[] = { { { 10, 1, 1 }, 0.125, 0 },
				      { { 10, 1, 1 }, 0.125, 0 },
				      { { 10, 1, 1 }, 0.9, 0 } };
	/* Equal speeds, caches 1 : 1 : 8 that hold everything together: nothing is loaded. */
	struct odm_home_share a[] = { { { 10, 1, 1 }, 0.1, 0 }, { { 10, 1, 1 }, 0.1, 0 }, { { 10, 1, 1 }, 0.8, 0 } };
	/* The large one is slow: others are full, it takes the rest. */
	struct odm_home_share b[] = { { { 10, 1, 1 }, 0.3, 0 }, { { 10, 2, 1 }, 0.3, 0 }, { { 10, 9, 1 }, 0.9, 0 } };
	/* Caches hold more than there is: by speed. */
	struct odm_home_share c[] = { { { 10, 1, 1 }, 1, 0 }, { { 10, 3, 1 }, 1, 0 } };
	/* And less: half is kept, half is loaded, 12 + 12 ms against 6. */
	struct odm_home_share d[] = { { { 10, 2, 1 }, 0.25, 0 }, { { 5, 1, 1 }, 0.25, 0 } };

	(void)state;
	odm_share_homes(a, 3, MANY);
	assert_true(a[0].share <= 0.1 + 1e-5 && a[1].share <= 0.1 + 1e-9);
	assert_float_equal(a[2].share, 0.8, 1e-5);
	odm_share_homes(b, 3, MANY);
	assert_float_equal(b[0].share, 0.3, 1e-5);
	assert_float_equal(b[1].share, 0.3, 1e-5);
	assert_float_equal(b[2].share, 0.4, 1e-5);
	odm_share_homes(c, 2, MANY);
	assert_float_equal(c[0].share, 0.75, 1e-5);
	odm_share_homes(d, 2, MANY);
	odm_share_homes(e, 3, 320);
	assert_true(e[0].share * 320 <= 31 && e[0].share * 320 >= 29 && e[2].share * 320 <= 264);
	assert_float_equal(d[0].share, 0.25 + 0.5 / 3, 1e-5);
	assert_float_equal(d[1].share, 0.25 + 1.0 / 3, 1e-5);
}

/* Times out of 10,000 that an expert is loaded at home, where it takes load_ms; elsewhere it is 10, and 1 to run. */
static uint32_t times_at_home(double load_ms)
{
	struct odm_deal_times homes[] = { worker_of_speed(1, 10, 1), worker_of_speed(2, load_ms, 1) };
	struct odm_groups g = odm_groups_make(2, 1, 1, 1);
	uint32_t scratch[ODM_DEAL_SCRATCH(1, 2)], worker, n = 0;
	const uint16_t expert = 0;

	homes[1].home = 1;
	g.n_groups = 1;
	g.times = homes;
	g.n_experts = 1;
	g.homes = true;
	for (uint64_t step = 0; step < 10000; step++) {
		odm_deal(&g, step, 0, &expert, NULL, 1, NULL, NULL, &worker, scratch);
		n += worker;
	}
	return n;
}

/* On average that takes 3% of the time, or less. */
static void homes_are_filled_for_a_small_share_of_the_time(void **state)
{
	(void)state;
	assert_int_equal(times_at_home(9), 10000);
	assert_int_equal(times_at_home(10.2), 10000);
	assert_in_range(times_at_home(10 + 0.06 * 11), 4800, 5200);
	assert_in_range(times_at_home(10 + 0.3 * 11), 900, 1100);
	assert_in_range(times_at_home(10 + 3 * 11), 70, 130);
}

/* A WANT of a layer: the worker of its one expert. */
static uint32_t want_one(struct odm_want_target *p, const struct odm_groups *g, const uint32_t *slots, uint32_t m,
			 double now)
{
	p->want.step = 1;
	p->want.m = m;
	p->want.n = p->want.n_predicted = 1;
	p->want.n_before = 0;
	p->want.expert[0] = (uint16_t)m;
	p->want.worker[0] = ODM_NOBODY;
	odm_want_target_choose(p, g, slots, (uint64_t)now);
	return p->want.worker[0];
}

/* Loads of 10, 20 and 40 ms are ordered far ahead: each worker gets its share of 4 : 2 : 1. */
static void loads_ahead_are_shared_by_read_rates(void **state)
{
	const struct odm_deal_times times[] = { worker_of_speed(1, 10, 0.1), worker_of_speed(2, 20, 0.1),
						worker_of_speed(3, 40, 0.1) };
	static const uint32_t slots[] = { 64, 64, 64 };
	struct odm_groups g = odm_groups_make(3, 1, 1, 70);
	struct odm_want_target p;
	struct od_err err;
	uint32_t n[3] = { 0 };

	(void)state;
	g.n_groups = 1;
	g.times = times;
	assert_int_equal(odm_want_target_init(&p, 70, 4, &err), OD_OK);
	for (uint32_t m = 0; m < 70; m++)
		n[want_one(&p, &g, slots, m, 1000)]++;
	assert_in_range(n[0], 39, 41);
	assert_in_range(n[1], 19, 21);
	assert_in_range(n[2], 9, 11);
	odm_want_target_fini(&p);
}

/* With one slot a worker cannot load while it waits to run, however quick it is: layers take 10 ms, and the quick one
 * has loaded in 1 ms. */
static void one_slot_is_one_load_at_a_time(void **state)
{
	struct odm_deal_times times[] = { worker_of_speed(1, 1, 0.1), worker_of_speed(2, 9, 0.1) };
	static const uint32_t one[] = { 1, 1 }, many[] = { 8, 1 };
	struct odm_groups g = odm_groups_make(2, 1, 1, 70);
	struct odm_want_target p;
	struct od_err err;
	uint32_t n[2] = { 0 };

	(void)state;
	g.n_groups = 1;
	g.times = times;
	times[0].slots = times[1].slots = 1;
	assert_int_equal(odm_want_target_init(&p, 70, 3, &err), OD_OK);
	odm_backlog_reached(&p.backlog, 1, 0, 70, 0, (uint64_t)(100 * MS));
	for (uint32_t m = 1; m < 21; m++) {
		odm_backlog_reached(&p.backlog, 1, m, 70, 0, (uint64_t)((100 + 10 * m) * MS));
		n[want_one(&p, &g, one, m + 2, (100 + 10 * m) * MS)]++;
	}
	assert_in_range(n[0], 8, 12); /* they take turns */
	n[0] = n[1] = 0;
	times[0].slots = 8;
	times[1].expert.run = 1 * MS; /* both have loaded in time, but it runs longer */
	for (uint32_t m = 21; m < 41; m++) {
		odm_backlog_reached(&p.backlog, 1, m, 70, 0, (uint64_t)((100 + 10 * m) * MS));
		n[want_one(&p, &g, many, m + 2, (100 + 10 * m) * MS)]++;
	}
	assert_in_range(n[0], 18, 20);
	odm_want_target_fini(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_tokens_experts_are_dealt_as_well_as_can_be),
		cmocka_unit_test(a_prompts_experts_are_dealt_nearly_as_well),
		cmocka_unit_test(cached_experts_are_dealt_nearly_as_well),
		cmocka_unit_test(each_gets_what_it_does_in_the_same_time),
		cmocka_unit_test(only_those_who_have_an_expert_get_it),
		cmocka_unit_test(homes_are_shared_by_weight_and_few_move),
		cmocka_unit_test(each_has_one_of_each_layer),
		cmocka_unit_test(shares_fill_the_caches),
		cmocka_unit_test(homes_are_filled_for_a_small_share_of_the_time),
		cmocka_unit_test(loads_ahead_are_shared_by_read_rates),
		cmocka_unit_test(one_slot_is_one_load_at_a_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

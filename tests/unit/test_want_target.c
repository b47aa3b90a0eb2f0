/* Where WANTs go: the prediction as dealt, hedges where there is room. */
#include "main-node/cluster/want_target.h"
#include "main-node/predict/prediction_wants.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/alike_workers.h"

#define EXPERTS 16
#define WORKERS 8

static const uint32_t two_slots[WORKERS] = { 2, 2, 2, 2, 2, 2, 2, 2 };

static struct odm_want_target *make(struct odm_want_target *p)
{
	struct od_err err;

	assert_int_equal(odm_want_target_init(p, EXPERTS, WORKERS, &err), OD_OK);
	return p;
}

/* Nothing on its way yet. */
static void want(struct odm_want_target *p, uint64_t step, uint32_t m, size_t n_predicted, size_t n,
		 const uint16_t *expert)
{
	p->want.step = step;
	p->want.m = m;
	p->want.n_predicted = n_predicted;
	p->want.n = n;
	memcpy(p->want.expert, expert, n * sizeof(*expert));
	for (size_t i = 0; i < n; i++)
		p->want.worker[i] = ODM_NOBODY;
}

static void the_prediction_is_dealt_like_the_work(void **state)
{
	struct odm_groups g = odm_groups_make(WORKERS, 0, 2, 12);
	struct odm_want_target p;
	uint32_t worker[2], scratch[ODM_DEAL_SCRATCH(2, WORKERS)];

	(void)state;
	g.times = alike_workers(WORKERS);
	make(&p);
	for (uint32_t m = 0; m < 12; m++) {
		want(&p, 1, m, 2, 2, (const uint16_t[]){ 9, 4 }); /* by rank */
		odm_deal(&g, 1, m, (const uint16_t[]){ 4, 9 }, NULL, 2, NULL, NULL, worker, scratch);
		odm_want_target_choose(&p, &g, two_slots, 0);
		assert_int_equal(p.want.n, 2);
		assert_int_equal(p.want.worker[0], worker[1]);
		assert_int_equal(p.want.worker[1], worker[0]);
	}
	odm_want_target_fini(&p);
}

static void a_hedge_goes_where_the_last_predicted_expert_is(void **state)
{
	struct odm_groups g = odm_groups_make(WORKERS, 0, 2, 12);
	struct odm_want_target p;

	(void)state;
	g.times = alike_workers(WORKERS);
	make(&p);
	want(&p, 1, 3, 2, 4, (const uint16_t[]){ 9, 4, 5, 6 });
	odm_want_target_choose(&p, &g, two_slots, 0);
	assert_int_equal(p.want.n, 4);
	assert_int_equal(p.want.worker[2], p.want.worker[1]);
	assert_int_equal(p.want.worker[3], p.want.worker[0]); /* there is no room at that one any more */
	odm_want_target_fini(&p);
}

static void a_member_without_work_comes_first(void **state)
{
	struct odm_groups g = odm_groups_make(WORKERS, 4, 2, 12); /* 2 groups of 4 */
	struct odm_want_target p;

	(void)state;
	g.times = alike_workers(WORKERS);
	make(&p);
	want(&p, 1, 1, 2, 4, (const uint16_t[]){ 1, 2, 3, 4 });
	odm_want_target_choose(&p, &g, two_slots, 0);
	assert_int_equal(p.want.n, 4);
	for (size_t i = 0; i < 4; i++) {
		assert_int_equal(p.want.worker[i] % g.n_groups, 1);
		for (size_t j = 0; j < i; j++)
			assert_true(p.want.worker[i] != p.want.worker[j]);
	}
	odm_want_target_fini(&p);
}

static void without_room_there_is_no_hedge(void **state)
{
	static const uint32_t one_slot[WORKERS] = { 1, 1, 1, 1, 1, 1, 1, 1 },
			      some[WORKERS] = { 1, 2, 1, 1, 1, 1, 1, 1 };
	struct odm_groups g = odm_groups_make(2, 0, 2, 12);
	struct odm_want_target p;

	(void)state;
	g.times = alike_workers(2);
	make(&p);
	want(&p, 1, 0, 2, 4, (const uint16_t[]){ 1, 2, 3, 4 });
	odm_want_target_choose(&p, &g, one_slot, 0);
	assert_int_equal(p.want.n, 2);
	want(&p, 1, 0, 2, 4, (const uint16_t[]){ 1, 2, 3, 4 });
	odm_want_target_choose(&p, &g, some, 0);
	assert_int_equal(p.want.n, 3);
	assert_int_equal(p.want.worker[2], 1);
	odm_want_target_fini(&p);
}

/* Loads on their way stay, whether they become hedges or predictions; a hedge gives way to predictions. */
static void what_is_on_its_way_stays(void **state)
{
	struct odm_groups g = odm_groups_make(WORKERS, 0, 2, 12);
	struct odm_want_target p;
	uint32_t of_1, of_2, of_3;

	(void)state;
	g.times = alike_workers(WORKERS);
	make(&p);
	want(&p, 1, 2, 2, 3, (const uint16_t[]){ 1, 2, 3 });
	odm_want_target_choose(&p, &g, two_slots, 0);
	of_1 = p.want.worker[0];
	of_2 = p.want.worker[1];
	of_3 = p.want.worker[2];
	want(&p, 1, 2, 2, 3, (const uint16_t[]){ 1, 3, 2 }); /* corrected */
	p.want.worker[0] = of_1;
	p.want.worker[1] = of_3;
	p.want.worker[2] = of_2;
	odm_want_target_choose(&p, &g, two_slots, 0);
	assert_int_equal(p.want.n, 3);
	assert_int_equal(p.want.worker[0], of_1);
	assert_int_equal(p.want.worker[1], of_3);
	assert_int_equal(p.want.worker[2], of_2);
	/* A hedge too, wherever it is: not where it would go now. */
	want(&p, 1, 2, 2, 3, (const uint16_t[]){ 1, 2, 4 });
	p.want.worker[0] = of_1;
	p.want.worker[1] = of_2;
	p.want.worker[2] = of_1;
	odm_want_target_choose(&p, &g, two_slots, 0);
	assert_int_equal(p.want.worker[2], of_1);
	/* A worker that has left is nobody's. */
	want(&p, 1, 2, 2, 3, (const uint16_t[]){ 1, 3, 2 });
	p.want.worker[2] = WORKERS + 5;
	odm_want_target_choose(&p, &g, two_slots, 0);
	for (size_t i = 0; i < p.want.n; i++)
		assert_true(p.want.worker[i] < WORKERS);
	odm_want_target_fini(&p);
}

static void many_experts_lie_over_all_workers(void **state)
{
	struct odm_groups g = odm_groups_make(WORKERS, 0, 2, 12);
	struct odm_want_target p;
	uint16_t all[EXPERTS];

	(void)state;
	g.times = alike_workers(WORKERS);
	make(&p);
	for (uint16_t i = 0; i < EXPERTS; i++)
		all[i] = i;
	want(&p, 1, 2, EXPERTS, EXPERTS, all);
	odm_want_target_choose(&p, &g, two_slots, 0);
	assert_int_equal(p.want.n, EXPERTS);
	for (uint16_t i = 0; i < EXPERTS; i++)
		assert_int_equal(p.want.worker[i], i % WORKERS);
	odm_want_target_fini(&p);
}

/* Its experts in order of rank, of one list or the other. */
static size_t list_of(uint32_t worker, const uint16_t *expert, const uint32_t *at, size_t n, uint16_t *out)
{
	size_t found = 0;

	for (size_t i = 0; i < n; i++)
		if (at[i] == worker)
			out[found++] = expert[i];
	return found;
}

/* Random layers, placed and placed again with a few experts more, fewer, or in another order. */
/* As main announces them: a layer's experts one layer before, and again when its RUNs are dealt; some are not needed
 * then. */
static void a_prompts_layers_are_dealt_each_for_itself(void **state)
{
	struct odm_groups g = odm_groups_make(WORKERS, 0, 2, 40);
	uint16_t expert[WORKERS];
	struct odm_want_target p;

	(void)state;
	g.times = alike_workers(WORKERS);
	make(&p);
	p.want.prompt = true;
	for (uint16_t e = 0; e < WORKERS; e++)
		expert[e] = e;
	for (uint32_t m = 0; m < 40; m++) {
		uint32_t n_of[WORKERS] = { 0 };
		size_t n = WORKERS - m % 3;

		want(&p, 1, m, WORKERS, WORKERS, expert);
		p.want.rows = 4;
		odm_want_target_choose(&p, &g, two_slots, 0);
		for (size_t i = 0; i < WORKERS; i++)
			n_of[p.want.worker[i]]++;
		for (uint32_t w = 0; w < WORKERS; w++)
			assert_int_equal(n_of[w], 1);
		want(&p, 1, m, n, n, expert);
		p.want.rows = 0;
		for (size_t i = 1; i < n; i++) /* the first one's is not known */
			p.want.worker[i] = (uint32_t)(m + i * i) % WORKERS;
		odm_want_target_choose(&p, &g, two_slots, 0);
		assert_true(p.want.worker[0] < WORKERS);
		for (size_t i = 1; i < n; i++)
			assert_int_equal(p.want.worker[i], (m + i * i) % WORKERS);
	}
	odm_want_target_fini(&p);
}

static void who_must_hear_of_it(void **state)
{
	struct odm_groups g = odm_groups_make(WORKERS, 0, 2, 12);
	struct odm_want_target p;
	uint64_t seed = 1;
	unsigned changed = 0, same = 0, gone = 0;

	(void)state;
	g.times = alike_workers(WORKERS);
	make(&p);
	for (uint32_t turn = 0; turn < 3000; turn++) {
		struct odm_want *w = &p.want;
		uint16_t all[EXPERTS];
		size_t n;

		if (turn % 4 == 0)
			w->n_before = 0;
		for (uint16_t i = 0; i < EXPERTS; i++) {
			const uint16_t other = (uint16_t)((seed = seed * 6364136223846793005u + 1) >> 33) % (i + 1u);

			all[i] = all[other];
			all[other] = i;
		}
		n = (seed >> 40) % 7;
		/* The version before had mostly the same experts, in that order or another. */
		if (turn % 4 != 0 && (seed >> 50) % 3 > 0) {
			n = w->n_before;
			memcpy(all, w->expert_before, n * sizeof(*all));
			if (n > 1 && (seed >> 55) % 2 > 0) {
				all[0] = w->expert_before[n - 1];
				all[n - 1] = w->expert_before[0];
			}
		}
		want(&p, 1, turn / 4 % 12, n < 2 ? n : n - 1, n, all);
		for (size_t i = 0; i < n; i++)
			for (size_t j = 0; j < w->n_before; j++)
				w->worker[i] = w->expert_before[j] == all[i] ? w->worker_before[j] : w->worker[i];
		odm_want_target_choose(&p, &g, two_slots, 0);
		for (uint32_t at = 0; at < WORKERS; at++) {
			uint16_t now[EXPERTS], before[EXPERTS];
			const size_t a = list_of(at, w->expert, w->worker, w->n, now);
			const size_t b = list_of(at, w->expert_before, w->worker_before, w->n_before, before);
			const bool differs = a != b || memcmp(now, before, a * sizeof(*now)) != 0;

			assert_int_equal(p.list.begin[at + 1] - p.list.begin[at], a);
			assert_memory_equal(p.list.expert + p.list.begin[at], now, a * sizeof(*now));
			assert_int_equal(odm_want_changed(&p, at), differs);
			assert_int_equal(odm_want_concerns(&p, at), a + b > 0);
			changed += differs;
			same += !differs && a > 0;
			gone += a == 0 && b > 0;
		}
		w->n_before = w->n;
		memcpy(w->expert_before, w->expert, w->n * sizeof(*w->expert));
		memcpy(w->worker_before, w->worker, w->n * sizeof(*w->worker));
		if (turn % 7 == 0 && w->n > 0)
			w->worker_before[0] = turn % 2 > 0 ? ODM_NOBODY : WORKERS; /* it has left */
	}
	assert_true(changed > 1000 && same > 1000 && gone > 100);
	odm_want_target_fini(&p);
}

/* Half of the workers get nothing from now on: they must hear that what they had is void. */
static void who_is_passed_over_hears_of_it(void **state)
{
	struct odm_groups g = odm_groups_make(WORKERS / 2, 0, 2, 12);
	struct odm_want_target p;

	(void)state;
	g.times = alike_workers(WORKERS);
	make(&p);
	want(&p, 1, 3, 2, 2, (const uint16_t[]){ 9, 4 });
	p.want.n_before = 2;
	memcpy(p.want.expert_before, p.want.expert, 2 * sizeof(*p.want.expert));
	p.want.worker[0] = p.want.worker_before[0] = WORKERS - 1;
	p.want.worker[1] = p.want.worker_before[1] = 0;
	odm_want_target_choose(&p, &g, two_slots, 0);
	assert_true(p.want.worker[0] < WORKERS / 2);
	assert_true(odm_want_changed(&p, WORKERS - 1) && odm_want_concerns(&p, WORKERS - 1));
	assert_int_equal(p.list.begin[WORKERS], p.list.begin[WORKERS - 1]); /* an empty list */
	odm_want_target_fini(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_prediction_is_dealt_like_the_work),
		cmocka_unit_test(a_hedge_goes_where_the_last_predicted_expert_is),
		cmocka_unit_test(a_member_without_work_comes_first),
		cmocka_unit_test(without_room_there_is_no_hedge),
		cmocka_unit_test(what_is_on_its_way_stays),
		cmocka_unit_test(many_experts_lie_over_all_workers),
		cmocka_unit_test(a_prompts_layers_are_dealt_each_for_itself),
		cmocka_unit_test(who_must_hear_of_it),
		cmocka_unit_test(who_is_passed_over_hears_of_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

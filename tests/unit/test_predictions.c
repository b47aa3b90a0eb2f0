/* The table of predictions: what becomes a WANT, what counts as recalled, late or void. By hand, mostly with one
 * sequence whose positions are the steps' numbers; test_prediction_table.c has many, in any order. */
#include "main-node/cluster/placement.h"
#include "main-node/predict/prediction_wants.h"
#include "main-node/predict/predictions.h"
#include "main-node/step/timeline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 3
#define EXPERTS 8
#define TOP_K 2

static uint64_t step_counters[OD_N_COUNTERS];

static struct odm_predictions *make_with(double hedge)
{
	const struct odm_predictions_opts o = { .n_moe = LAYERS,
						.n_experts = EXPERTS,
						.top_k = TOP_K,
						.max_sequences = 2,
						.max_rows = 4,
						.max_draft = 3,
						.max_tokens = 10,
						.hedge = hedge };
	struct odm_predictions *p;
	struct od_err err;

	memset(step_counters, 0, sizeof(step_counters));
	assert_int_equal(odm_predictions_new(&p, &o, &err), OD_OK);
	return p;
}

static struct odm_predictions *make(void)
{
	return make_with(0);
}

static bool predict(struct odm_predictions *p, uint64_t step, uint32_t m, int32_t token, uint16_t a, uint16_t b)
{
	const uint16_t expert[] = { a, b };
	const struct od_prediction pred = {
		.sequence = 1, .position = (uint32_t)step, .m = m, .token = token, .expert = expert, .n = 2
	};

	return odm_predictions_add(p, &pred);
}

static void resolve(struct odm_predictions *p, uint64_t step, uint32_t m, uint16_t a, uint16_t b)
{
	odm_predictions_resolve(p, step, m, (const uint16_t[]){ a, b });
	odm_predictions_learn(p, step, m, NULL, step_counters);
}

/* index: which generated token it is. */
static void begin(struct odm_predictions *p, uint64_t step, int32_t token, uint32_t index)
{
	const struct odm_predicted_row row = {
		.sequence = 1, .position = (uint32_t)step, .prompt_tokens = (uint32_t)step - index, .token = token
	};

	odm_predictions_begin(p, step, step + 1, &row, 1, true);
}

struct predictions_counted {
	uint64_t c[OD_N_COUNTERS];
	struct odm_spread first_ns;
};

/* Counts sequence 1, and the steps since the last time. */
static struct predictions_counted counted(struct odm_predictions *p, struct od_recall *r)
{
	struct predictions_counted x = { 0 };

	odm_predictions_take(p, 1, x.c, &x.first_ns, r);
	od_counters_add(x.c, step_counters);
	memset(step_counters, 0, sizeof(step_counters));
	return x;
}

static struct od_recall take(struct odm_predictions *p, struct predictions_counted *x)
{
	struct od_recall r;
	struct od_err err;

	assert_int_equal(od_recall_init(&r, LAYERS, 10, &err), OD_OK);
	*x = counted(p, &r);
	assert_int_equal(x->c[OD_C_PREDICTED_USES], r.all.uses);
	assert_int_equal(x->c[OD_C_RECALLED_USES], r.all.recalled);
	assert_int_equal(x->c[OD_C_LATE_PREDICTIONS], r.rows.late);
	assert_int_equal(x->c[OD_C_MISSING_PREDICTIONS], r.rows.seen - r.rows.in_time - r.rows.late);
	return r;
}

struct predictions_want {
	struct odm_want w;
	uint8_t rank[EXPERTS];
	uint16_t expert[EXPERTS], expert_before[EXPERTS];
	uint32_t worker[EXPERTS], worker_before[EXPERTS];
};

static bool take_want(struct odm_predictions *p, struct predictions_want *w)
{
	w->w.expert = w->expert;
	w->w.worker = w->worker;
	w->w.rank = w->rank;
	w->w.expert_before = w->expert_before;
	w->w.worker_before = w->worker_before;
	return odm_predictions_take_want(p, &w->w);
}

static bool send_want(struct odm_predictions *p, struct predictions_want *w, uint32_t a, uint32_t b)
{
	w->worker[0] = a;
	w->worker[1] = b;
	return odm_predictions_placed(p, &w->w);
}

static void a_prediction_becomes_a_want(void **state)
{
	struct odm_predictions *p = make();
	struct predictions_want w;

	(void)state;
	begin(p, 4, 41, 0);
	assert_false(take_want(p, &w));
	assert_true(predict(p, 5, 1, 42, 6, 3)); /* before the step begins: the shadow is ahead */
	assert_true(take_want(p, &w));
	assert_int_equal(w.w.step, 5);
	assert_int_equal(w.w.m, 1);
	assert_int_equal(w.w.version, 1);
	assert_int_equal(w.w.n, 2);
	assert_int_equal(w.expert[0], 6); /* in order of rank, not of id */
	assert_int_equal(w.expert[1], 3);
	assert_int_equal(w.worker[0], ODM_NOBODY);
	assert_int_equal(w.w.n_before, 0);
	assert_int_equal(w.w.epoch, 0);
	w.w.epoch = 77;
	send_want(p, &w, 7, 9);
	assert_false(take_want(p, &w));
	assert_int_equal(odm_predictions_where(p, 5, 1, 3), 9);
	assert_int_equal(odm_predictions_where(p, 5, 1, 0), ODM_NOBODY);
	/* A correction keeps what stays where it is, under a newer version. */
	assert_true(predict(p, 5, 1, 43, 3, 0));
	assert_true(take_want(p, &w));
	assert_int_equal(w.w.version, 2);
	assert_int_equal(w.expert[0], 3);
	assert_int_equal(w.worker[0], 9);
	assert_int_equal(w.worker[1], ODM_NOBODY);
	assert_int_equal(w.w.n_before, 2);
	assert_int_equal(w.w.epoch, 77);
	assert_memory_equal(w.expert_before, ((const uint16_t[]){ 6, 3 }), 2 * sizeof(uint16_t));
	assert_memory_equal(w.worker_before, ((const uint32_t[]){ 7, 9 }), 2 * sizeof(uint32_t));
	odm_predictions_free(p);
}

static void oldest_step_and_lowest_layer_first(void **state)
{
	struct odm_predictions *p = make();
	struct predictions_want w;

	(void)state;
	begin(p, 8, 1, 0);
	predict(p, 9, 0, 1, 0, 1);
	predict(p, 8, 2, 1, 0, 1);
	predict(p, 8, 1, 1, 0, 1);
	assert_true(take_want(p, &w) && w.w.step == 8 && w.w.m == 1);
	assert_true(take_want(p, &w) && w.w.step == 8 && w.w.m == 2);
	assert_true(take_want(p, &w) && w.w.step == 9 && w.w.m == 0);
	assert_false(take_want(p, &w));
	odm_predictions_free(p);
}

static void recall_counts_uses(void **state)
{
	struct odm_predictions *p = make();
	struct od_recall r;
	struct predictions_counted times;

	(void)state;
	begin(p, 1, 42, 4);
	predict(p, 1, 0, 42, 1, 2);
	predict(p, 1, 1, 42, 1, 2);
	resolve(p, 1, 0, 2, 1); /* both */
	resolve(p, 1, 1, 2, 5); /* one */
	resolve(p, 1, 2, 2, 5); /* never predicted */
	r = take(p, &times);
	assert_int_equal(r.all.uses, 4);
	assert_int_equal(r.all.recalled, 3);
	assert_int_equal(r.layer[0].recalled, 2);
	assert_int_equal(r.layer[1].recalled, 1);
	assert_int_equal(r.token[4].uses, 4);
	assert_int_equal(r.rows.in_time, 2);
	assert_int_equal(r.rows.late, 0);
	assert_int_equal(r.rows.seen, 3);
	od_recall_fini(&r);
	predict(p, 1, 2, 42, 2, 5); /* after the figures were taken: nobody's any more */
	r = take(p, &times);
	assert_int_equal(r.rows.seen, 0);
	assert_int_equal(r.all.uses, 0);
	assert_int_equal(r.rows.late, 0);
	od_recall_fini(&r);
	odm_predictions_free(p);
}

static void late_is_counted_apart_and_wants_nothing(void **state)
{
	struct odm_predictions *p = make();
	struct od_recall r;
	struct predictions_want w;
	struct predictions_counted times;

	(void)state;
	begin(p, 1, 42, 0);
	resolve(p, 1, 0, 4, 5);
	assert_false(predict(p, 1, 0, 42, 4, 5));
	assert_false(predict(p, 1, 0, 42, 4, 5)); /* doubled: counted once */
	assert_false(take_want(p, &w));
	r = take(p, &times);
	assert_int_equal(r.rows.late, 1);
	assert_int_equal(r.rows.in_time, 0);
	assert_int_equal(r.all.recalled, 2);
	od_recall_fini(&r);
	odm_predictions_free(p);
}

static void another_token_is_discarded(void **state)
{
	struct odm_predictions *p = make();
	struct od_recall r;
	struct predictions_counted times;

	(void)state;
	begin(p, 1, 6, 0);
	predict(p, 2, 0, 7, 1, 2); /* ahead, on a token that main does not choose */
	predict(p, 2, 1, 8, 1, 2); /* on the one that it does */
	begin(p, 2, 8, 1);
	assert_int_equal(odm_predictions_voided(p).token, 1);
	assert_false(predict(p, 2, 2, 7, 1, 2));
	resolve(p, 2, 0, 1, 2);
	resolve(p, 2, 1, 1, 2);
	resolve(p, 2, 2, 1, 2);
	r = take(p, &times);
	assert_int_equal(r.all.uses, 2); /* layer 1 only */
	assert_int_equal(r.layer[1].recalled, 2);
	od_recall_fini(&r);
	odm_predictions_free(p);
}

static bool say(struct odm_predictions *p, bool stand_in, uint16_t a, uint16_t b)
{
	static const float probability[] = { 0.5f, 0.3f };
	const uint16_t expert[] = { a, b };
	const struct od_prediction pred = { .sequence = 1,
					    .position = 1,
					    .token = 42,
					    .expert = expert,
					    .probability = probability,
					    .n = 2,
					    .stand_in = stand_in };

	return odm_predictions_add(p, &pred);
}

/* Main's own predictor beside a silent shadow; what it wanted is forgotten when the shadow speaks. */
static void a_stand_in_gives_way(void **state)
{
	for (int hedge = 0; hedge < 2; hedge++) {
		struct odm_predictions *p = make_with(hedge);
		struct od_recall r;
		struct predictions_want w;
		struct predictions_counted times;

		(void)state;
		begin(p, 1, 42, 0);
		assert_true(say(p, true, 1, 2));
		assert_true(say(p, true, 1, 3)); /* a newer one of its own */
		assert_true(take_want(p, &w) && w.w.n == 2 && w.expert[1] == 3);
		assert_true(say(p, false, 4, 5));
		assert_true(take_want(p, &w) && w.w.version == 2 && w.w.n == 2 && w.expert[0] == 4);
		assert_false(say(p, true, 6, 7));
		assert_false(say(p, false, 4, 5)); /* a repetition: no worker needs to hear of it */
		assert_false(take_want(p, &w));
		assert_true(say(p, false, 5, 4)); /* another order is news */
		assert_true(take_want(p, &w) && w.expert[0] == 5);
		resolve(p, 1, 0, 4, 6);
		r = take(p, &times);
		assert_int_equal(r.all.uses, 2);
		assert_int_equal(r.all.recalled, 1);
		assert_int_equal(times.c[OD_C_LEAD_ROUTERS], 1);
		od_recall_fini(&r);
		odm_predictions_free(p);
	}
}

/* It is counted apart, and says nothing of how good and how early the shadow is: that was late here. */
static void a_stand_in_counts(void **state)
{
	struct odm_predictions *p = make();
	struct predictions_counted f;
	struct od_recall r;
	struct od_err err;

	(void)state;
	begin(p, 1, 42, 0);
	assert_true(say(p, true, 1, 2));
	resolve(p, 1, 0, 2, 3);
	assert_false(say(p, false, 2, 3));
	assert_false(say(p, true, 4, 5)); /* late, too, but nobody's prediction */
	assert_int_equal(od_recall_init(&r, LAYERS, 10, &err), OD_OK);
	f = counted(p, &r);
	assert_int_equal(f.c[OD_C_STOOD_IN_USES], 2);
	assert_int_equal(f.c[OD_C_STOOD_IN_RECALLED], 1);
	assert_int_equal(r.rows.in_time, 0);
	assert_int_equal(r.rows.late, 1);
	assert_int_equal(r.all.uses, 2);
	assert_int_equal(r.all.recalled, 2);
	assert_int_equal(f.c[OD_C_LEAD_ROUTERS], 0);
	od_recall_fini(&r);
	odm_predictions_free(p);
}

/* The token was left to the shadow: what it assumed is right, whatever it was. */
static void any_token_will_do(void **state)
{
	struct odm_predictions *p = make();
	struct predictions_counted times;
	struct od_recall r;

	(void)state;
	begin(p, 1, 6, 0);
	predict(p, 2, 0, 7, 1, 2);
	begin(p, 2, -1, 1);
	predict(p, 2, 1, 8, 1, 2);
	resolve(p, 2, 0, 1, 2);
	resolve(p, 2, 1, 1, 2);
	r = take(p, &times);
	assert_int_equal(r.rows.in_time, 2);
	assert_int_equal(r.all.recalled, 4);
	od_recall_fini(&r);
	begin(p, 3, 0, 2); /* 0 is a token like any other */
	assert_false(predict(p, 3, 0, 8, 1, 2));
	odm_predictions_free(p);
}

/* How far ahead the shadow is. Times are only as sure as their order. */
static void leads(void **state)
{
	struct odm_predictions *p = make();
	struct predictions_counted times;
	struct od_recall r;

	(void)state;
	begin(p, 1, 7, 0);
	predict(p, 2, 0, 7, 1, 2); /* ahead of the step */
	begin(p, 2, 7, 0);
	predict(p, 2, 1, 7, 1, 2);
	resolve(p, 2, 0, 1, 2); /* one layer ahead */
	resolve(p, 2, 1, 1, 2); /* none */
	resolve(p, 2, 2, 1, 2); /* behind */
	predict(p, 2, 2, 7, 1, 2);
	r = take(p, &times);
	od_recall_fini(&r);
	assert_int_equal(times.c[OD_C_FIRST_PREDICTIONS], 1);
	assert_true(times.first_ns.min <= 0 && times.first_ns.min == times.first_ns.max);
	assert_int_equal(times.c[OD_C_LEAD_SUM], 1);
	assert_int_equal(times.c[OD_C_LEAD_ROUTERS], 2);

	predict(p, 3, 2, 8, 1, 2); /* for another token: no lead, and not the first */
	begin(p, 3, 7, 1);
	predict(p, 3, 0, 7, 1, 2);
	resolve(p, 3, 0, 1, 2);
	begin(p, 4, 7, 2); /* nothing at all */
	resolve(p, 4, 0, 1, 2);
	predict(p, 5, 0, 9, 1, 2);
	begin(p, 5, 9, 3);
	predict(p, 6, 0, 9, 1, 2);
	begin(p, 6, 9, 4);
	r = take(p, &times);
	od_recall_fini(&r);
	assert_int_equal(times.c[OD_C_FIRST_PREDICTIONS], 3);
	assert_true(times.first_ns.min <= 0 && times.first_ns.median <= 0 && times.first_ns.max >= 0);
	assert_int_equal(times.c[OD_C_LEAD_SUM], 0);
	assert_int_equal(times.c[OD_C_LEAD_ROUTERS], 1);
	r = take(p, &times);
	od_recall_fini(&r);
	assert_int_equal(times.c[OD_C_FIRST_PREDICTIONS] + times.c[OD_C_LEAD_ROUTERS], 0);
	odm_predictions_free(p);
}

/* The shadow predicts (position, 0) with token 42: experts 0 to 7 in this order, the second and third so close. */
static bool predict_close(struct odm_predictions *p, uint64_t position, float third)
{
	static const uint16_t expert[] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	const float probability[] = { 0.4f, 0.2f, third, 0.01f, 0.01f, 0.01f, 0.01f, 0.01f };
	const struct od_prediction pred = { .sequence = 1,
					    .position = (uint32_t)position,
					    .token = 42,
					    .expert = expert,
					    .probability = probability,
					    .n = EXPERTS };

	return odm_predictions_add(p, &pred);
}

/* Some steps whose router differs a little from what was said: the noise is known then, and budget saved. */
static uint64_t teach(struct odm_predictions *p)
{
	static const float truth[] = { 0.4f, 0.21f, 0.19f, 0.01f, 0.01f, 0.01f, 0.01f, 0.01f };
	struct predictions_want w;

	for (uint64_t step = 1; step <= 60; step++) {
		begin(p, step, 42, 0);
		predict_close(p, step, 0.1f);
		assert_true(take_want(p, &w));
		send_want(p, &w, 1, 2);
		odm_predictions_resolve(p, step, 0, (const uint16_t[]){ 0, 1 });
		odm_predictions_learn(p, step, 0, truth, NULL);
	}
	return 61;
}

static void hedges_come_behind_the_prediction(void **state)
{
	struct odm_predictions *p = make_with(0.5);
	struct predictions_counted f;
	struct predictions_want w;
	uint64_t step;

	(void)state;
	step = teach(p);
	f = counted(p, NULL);
	assert_int_equal(f.c[OD_C_LEAD_ROUTERS], 60);
	begin(p, step, 42, 0);
	assert_true(predict_close(p, step, 0.199f));
	assert_true(take_want(p, &w));
	assert_int_equal(w.w.n_predicted, 2);
	assert_true(w.w.n >= 3);
	assert_int_equal(w.expert[2], 2);
	assert_memory_equal(w.rank, ((const uint8_t[]){ 0, 1, TOP_K }), 3);
	for (size_t i = 0; i < w.w.n; i++)
		w.worker[i] = (uint32_t)i;
	odm_predictions_placed(p, &w.w);
	resolve(p, step, 0, 0, 2); /* the hedge is needed, the second of the prediction is not */
	assert_int_equal(odm_predictions_ordered(p, step, 0, 2), 2);
	f = counted(p, NULL);
	assert_int_equal(f.c[OD_C_HEDGED], w.w.n - 2);
	assert_int_equal(f.c[OD_C_HEDGE_USES], 1);
	assert_int_equal(f.c[OD_C_WASTED_WANTS], w.w.n - 2);
	odm_predictions_free(p);
}

/* Two rows: what both want comes once, the hedges of any row behind the prediction of every row. */
static void hedges_of_rows_are_merged(void **state)
{
	struct odm_predictions *p = make_with(0.5);
	struct odm_predicted_row rows[] = { { .sequence = 1, .token = 42 }, { .sequence = 1, .token = 42 } };
	struct predictions_want w;
	uint64_t step;

	(void)state;
	step = teach(p);
	rows[0].position = (uint32_t)step;
	rows[1].position = (uint32_t)step + 1;
	odm_predictions_begin(p, step, step + 1, rows, 2, true);
	assert_true(predict_close(p, step, 0.199f));
	assert_true(predict(p, step + 1, 0, 42, 2, 7));
	assert_true(take_want(p, &w));
	assert_int_equal(w.w.n_predicted, 4);
	assert_memory_equal(w.expert, ((const uint16_t[]){ 0, 1, 2, 7 }), 4 * sizeof(uint16_t));
	assert_memory_equal(w.rank, ((const uint8_t[]){ 0, 1, 0, 1 }), 4);
	for (size_t i = 4; i < w.w.n; i++) {
		assert_true(w.expert[i] != 0 && w.expert[i] != 1 && w.expert[i] != 2 && w.expert[i] != 7);
		assert_int_equal(w.rank[i], TOP_K);
	}
	odm_predictions_free(p);
}

/* A WANT that is sent when the router has already chosen does not count as ordered in time. */
static void a_want_sent_too_late_was_not_ordered(void **state)
{
	struct odm_predictions *p = make();
	struct predictions_want w, late;

	(void)state;
	begin(p, 1, 42, 0);
	predict(p, 1, 0, 42, 4, 5);
	predict(p, 1, 1, 42, 4, 5);
	assert_true(take_want(p, &w));
	assert_true(send_want(p, &w, 7, 9));
	assert_true(take_want(p, &late) && late.w.m == 1);
	resolve(p, 1, 0, 4, 3);
	resolve(p, 1, 1, 4, 5);
	assert_false(send_want(p, &late, 7, 9)); /* no CLOSE was sent for it, so its sender must send one */
	assert_int_equal(odm_predictions_ordered(p, 1, 0, 4), 7);
	assert_int_equal(odm_predictions_ordered(p, 1, 0, 3), ODM_NOBODY);
	assert_int_equal(odm_predictions_ordered(p, 1, 1, 4), ODM_NOBODY);
	assert_int_equal(odm_predictions_where(p, 1, 1, 4), 7); /* it must be closed there all the same */
	assert_int_equal(odm_predictions_ordered(p, 99, 0, 4), ODM_NOBODY);
	odm_predictions_free(p);
}

/* Experts that were wanted for one token are not kept for another. */
static void another_guess_keeps_nothing(void **state)
{
	const uint16_t expert[] = { 6, 7 };
	const float probability[] = { 0.6f, 0.2f };
	const struct od_prediction other = {
		.sequence = 1, .position = 2, .token = 41, .expert = expert, .probability = probability, .n = 2
	};
	struct odm_predictions *p = make_with(1);
	struct predictions_want w;

	(void)state;
	begin(p, 1, 5, 0);
	assert_true(odm_predictions_add(p, &other));
	assert_true(take_want(p, &w));
	assert_true(predict_close(p, 2, 0.1f)); /* experts 0 and 1 with token 42 */
	assert_int_equal(odm_predictions_voided(p).replaced, 1);
	assert_true(take_want(p, &w));
	assert_int_equal(w.w.n, 2);
	assert_int_equal(w.expert[1], 1);
	odm_predictions_free(p);
}

/* Experts that were wanted for a token that was not chosen count as wasted, with those of the one that was. */
static void a_wrong_token_is_paid_for(void **state)
{
	struct odm_predictions *p = make();
	struct predictions_want w;

	(void)state;
	begin(p, 1, 40, 0);
	predict(p, 2, 0, 41, 6, 7);
	assert_true(take_want(p, &w));
	send_want(p, &w, 1, 2);
	begin(p, 2, 42, 1);
	assert_true(predict(p, 2, 0, 42, 6, 3));
	assert_true(take_want(p, &w));
	send_want(p, &w, 1, 2);
	resolve(p, 2, 0, 6, 4);
	assert_int_equal(counted(p, NULL).c[OD_C_WASTED_WANTS], 2); /* 7 and 3 */
	odm_predictions_free(p);
}

/* A sequence with invalid predictions does not disturb the others. */
static void what_has_no_cell_is_refused(void **state)
{
	const uint16_t expert[] = { 0, 1 };
	struct od_prediction pred = { .sequence = 1, .position = 7, .token = 42, .expert = expert, .n = 2 };
	struct odm_predictions *p = make();
	struct predictions_counted times;
	struct od_recall r;
	struct predictions_want w;

	(void)state;
	assert_false(odm_predictions_add(p, &pred)); /* no step, no sequence */
	begin(p, 7, 42, 0);
	for (uint32_t i = 0; i < 4; i++) {
		pred.position = (const uint32_t[]){ 0, 6, 9, UINT32_MAX }[i];
		assert_false(odm_predictions_add(p, &pred)); /* before the step, and behind the next one */
	}
	pred.position = 7;
	for (uint32_t i = 0; i < 3; i++) {
		pred.sequence = (const uint64_t[]){ 0, 2, UINT64_MAX }[i];
		assert_false(odm_predictions_add(p, &pred));
	}
	assert_false(take_want(p, &w));
	pred.sequence = 1;
	assert_true(odm_predictions_add(p, &pred));
	/* a step without rows: nothing is behind it, and no next one is known */
	odm_predictions_begin(p, 8, 0, NULL, 0, true);
	pred.position = 8;
	assert_false(odm_predictions_add(p, &pred));
	begin(p, 9, 42, 2);
	odm_predictions_begin(p, 10, 0, &(struct odm_predicted_row){ .sequence = 1, .position = 10, .token = 1 }, 1,
			      true);
	pred.position = 11;
	assert_false(odm_predictions_add(p, &pred));
	r = take(p, &times);
	od_recall_fini(&r);
	odm_predictions_free(p);
}

/* Between the router's word and the counting of it, when RUNs are sent, a prediction is late. */
static void late_before_it_is_counted(void **state)
{
	struct odm_predictions *p = make();
	struct predictions_counted times;
	struct od_recall r;
	struct predictions_want w;

	(void)state;
	begin(p, 1, 42, 0);
	predict(p, 1, 1, 42, 4, 5);
	for (uint32_t m = 0; m < 2; m++)
		odm_predictions_resolve(p, 1, m, (const uint16_t[]){ 4, 5 });
	assert_false(predict(p, 1, 0, 42, 4, 6));
	assert_false(predict(p, 1, 0, 42, 6, 7)); /* doubled: counted once */
	assert_false(predict(p, 1, 1, 42, 6, 7)); /* it has one in time */
	assert_false(take_want(p, &w));
	for (uint32_t m = 0; m < 2; m++) {
		odm_predictions_learn(p, 1, m, NULL, NULL);
		odm_predictions_learn(p, 1, m, NULL, NULL); /* no more than once */
	}
	odm_predictions_learn(p, 1, 2, NULL, NULL); /* nor before the router has spoken */
	r = take(p, &times);
	assert_int_equal(r.rows.seen, 2);
	assert_int_equal(r.rows.late, 1);
	assert_int_equal(r.rows.in_time, 1);
	assert_int_equal(r.layer[0].recalled, 1);
	assert_int_equal(r.layer[1].recalled, 2);
	assert_int_equal(times.c[OD_C_LEAD_ROUTERS], 1);
	od_recall_fini(&r);
	odm_predictions_free(p);
}

/* A layer whose prediction came before its step, one with both rows' in the step, and one whose came too late. */
static void a_record_has_what_came_in_time(void **state)
{
	const struct odm_predicted_row row[] = {
		{ .sequence = 1, .position = 2, .prompt_tokens = 1, .token = 42 },
		{ .sequence = 2, .position = 9, .prompt_tokens = 9, .token = 43 },
	};
	const struct od_prediction other = {
		.sequence = 2, .position = 9, .m = 1, .token = 43, .expert = (const uint16_t[]){ 6, 7 }, .n = 2
	};
	struct odm_predictions *p = make();
	struct odm_timeline_prediction said[LAYERS];
	struct odm_timeline_step record = { .prediction = said, .most_predictions = LAYERS };
	const struct odm_step step = { .step = 2, .record = &record }, unrecorded = { .step = 2 };
	uint64_t before_ns, after_ns;

	(void)state;
	begin(p, 1, 41, 0);
	predict(p, 2, 0, 42, 0, 1); /* ahead */
	before_ns = od_now_ns();
	odm_predictions_begin(p, 2, 3, row, 2, true);
	predict(p, 2, 1, 42, 4, 5);
	odm_predictions_add(p, &other);
	after_ns = od_now_ns();
	for (uint32_t m = 0; m < LAYERS; m++) {
		odm_predictions_resolve(p, 2, m, (const uint16_t[]){ 1, 4, 2, 3 });
		odm_predictions_learn(p, 2, m, NULL, NULL);
		if (m == 2)
			predict(p, 2, m, 42, 1, 4); /* too late */
		odm_predictions_record(p, &unrecorded, m);
		odm_predictions_record(p, &step, m);
	}
	assert_int_equal(record.n_predictions, 2);
	assert_int_equal(said[0].m, 0);
	assert_int_equal(said[0].right, 1);
	assert_int_equal(said[0].wrong, 1);
	assert_true(said[0].came_ns <= before_ns);
	assert_int_equal(said[1].m, 1);
	assert_int_equal(said[1].right, 1);
	assert_int_equal(said[1].wrong, 3);
	assert_true(said[1].came_ns >= before_ns && said[1].came_ns <= after_ns);
	odm_predictions_free(p);
}

/* The step that begins has another number than it was to have: what is predicted for it goes out under its own. */
static void another_number(void **state)
{
	struct odm_predictions *p = make();
	struct predictions_want w;

	(void)state;
	begin(p, 4, 1, 0);
	predict(p, 5, 1, 42, 3, 4);
	predict(p, 5, 2, 42, 5, 6);
	assert_true(take_want(p, &w) && w.w.step == 5 && w.w.m == 1);
	send_want(p, &w, 7, 9);
	odm_predictions_begin(p, 50, 51, &(struct odm_predicted_row){ .sequence = 1, .position = 5, .token = 42 }, 1,
			      true);
	for (uint32_t m = 1; m < 3; m++) {
		assert_true(take_want(p, &w) && w.w.step == 50 && w.w.m == m);
		assert_int_equal(w.w.version, 1);
		assert_int_equal(w.w.n_before, 0);
		assert_int_equal(w.worker[0], ODM_NOBODY);
		assert_int_equal(w.expert[0], 1 + 2 * m);
	}
	assert_false(take_want(p, &w));
	assert_int_equal(odm_predictions_where(p, 5, 1, 3), ODM_NOBODY);
	odm_predictions_free(p);
}

static size_t silent(struct odm_predictions *p, uint64_t step, bool *a, bool *b)
{
	bool is[2];
	size_t n = odm_predictions_shadow_silent(p, step, is, 2);

	*a = is[0];
	*b = is[1];
	return n;
}

/* Steps of two sequences, whose position in step s is s. */
static void begin_two(struct odm_predictions *p, uint64_t step, int32_t token)
{
	const struct odm_predicted_row row[] = { { .sequence = 1, .position = (uint32_t)step, .token = token },
						 { .sequence = 2, .position = (uint32_t)step, .token = token } };

	odm_predictions_begin(p, step, step + 1, row, 2, true);
}

static void silence_is_a_sequences(void **state)
{
	struct odm_predictions *p = make();
	bool a, b;

	(void)state;
	assert_int_equal(silent(p, 0, &a, &b), 0);
	for (uint64_t step = 1; step < 3; step++) {
		begin_two(p, step, 42);
		assert_int_equal(silent(p, step, &a, &b), 0); /* it may be on its way */
	}
	predict(p, 2, 0, 42, 1, 2); /* sequence 1 */
	odm_predictions_begin(p, 100, 0, NULL, 0, false); /* a prompt between */
	assert_int_equal(silent(p, 100, &a, &b), 0);
	begin_two(p, 3, 42);
	assert_true(silent(p, 3, &a, &b) == 1 && !a && b);
	assert_int_equal(silent(p, 2, &a, &b), 0); /* not the step under way */
	predict(p, 4, 0, 41, 1, 2); /* ahead, and wrong: it is alive */
	begin_two(p, 4, 42);
	begin_two(p, 5, 42);
	begin_two(p, 6, 42);
	assert_true(silent(p, 6, &a, &b) == 1 && !a && b);
	predict(p, 6, 0, 41, 1, 2); /* a token that was not chosen: it does not know where main is */
	say(p, true, 1, 2);
	begin_two(p, 7, 42);
	assert_true(silent(p, 7, &a, &b) == 2 && a && b);
	predict(p, 7, 2, 42, 1, 2);
	assert_true(silent(p, 7, &a, &b) == 1 && !a && b);
	odm_predictions_free(p);
}

static void says(struct odm_predictions *p, uint64_t sequence, uint32_t position, uint32_t m, int32_t token, uint16_t a,
		 uint16_t b, bool want)
{
	const uint16_t expert[] = { a, b };
	const struct od_prediction pred = {
		.sequence = sequence, .position = position, .m = m, .token = token, .expert = expert, .n = 2
	};

	assert_int_equal(odm_predictions_add(p, &pred), want);
}

static void expect_want(struct odm_predictions *p, uint64_t step, uint32_t m, size_t n, const uint16_t *expert)
{
	struct predictions_want w;

	assert_true(take_want(p, &w));
	assert_int_equal(w.w.step, step);
	assert_int_equal(w.w.m, m);
	assert_int_equal(w.w.n, n);
	assert_memory_equal(w.expert, expert, n * sizeof(*expert));
	for (size_t i = 0; i < n; i++)
		w.worker[i] = w.expert[i] % 3;
	odm_predictions_placed(p, &w.w);
}

/* One ends and another joins: what is predicted for the third stands. */
static void joining_and_ending_void_nothing_else(void **state)
{
	struct odm_predictions *p = make();
	struct odm_predicted_row row[] = { { .sequence = 2, .position = 6, .token = 8 },
					   { .sequence = 9, .position = 3, .token = 8 } };
	struct odm_voided v;
	struct predictions_want w;

	(void)state;
	begin_two(p, 5, 7);
	says(p, 2, 6, 0, 8, 3, 4, true);
	says(p, 1, 6, 0, 8, 4, 5, true);
	says(p, 1, 6, 2, 8, 0, 5, true);
	expect_want(p, 6, 0, 3, (const uint16_t[]){ 4, 3, 5 }); /* in the order of this step's rows */
	expect_want(p, 6, 2, 2, (const uint16_t[]){ 0, 5 });
	assert_true(odm_predictions_close(p, 1));
	assert_false(odm_predictions_close(p, 1));
	assert_false(odm_predictions_close(p, 77));
	says(p, 1, 6, 1, 8, 0, 5, false); /* it is over */
	expect_want(p, 6, 0, 2, (const uint16_t[]){ 3, 4 });
	expect_want(p, 6, 2, 0, NULL); /* whoever heard of it must hear that it is void */
	assert_false(take_want(p, &w));
	odm_predictions_begin(p, 6, 7, row, 2, true);
	assert_false(take_want(p, &w));
	says(p, 9, 3, 0, 8, 6, 3, true);
	expect_want(p, 6, 0, 3, (const uint16_t[]){ 3, 6, 4 });
	v = odm_predictions_voided(p);
	assert_true(v.ended == 2 && v.token == 0 && v.position == 0 && v.replaced == 0);
	odm_predictions_free(p);
}

/* A draft: main keeps some rows of it, and the next step begins where the shadow has guessed, before it, or behind. */
static void a_draft_may_end_anywhere(void **state)
{
	for (uint32_t kept = 1; kept <= 3; kept++) {
		struct odm_predicted_row row[4] = { { .sequence = 1, .token = 5 },
						    { .sequence = 1, .position = 1, .token = 5 },
						    { .sequence = 1, .position = 2, .token = 5 } };
		struct odm_predictions *p = make();
		const bool meets = kept > 1; /* two rows: positions kept, kept + 1; the guess is for 3 */
		struct odm_voided v;
		struct predictions_counted f;
		struct predictions_want w;

		(void)state;
		odm_predictions_begin(p, 1, 2, row, 3, true);
		says(p, 1, 3, 1, 6, 1, 2, true);
		expect_want(p, 2, 1, 2, (const uint16_t[]){ 1, 2 });
		for (uint32_t i = 0; i < 2; i++)
			row[i] = (struct odm_predicted_row){ .sequence = 1, .position = kept + i, .token = 6 };
		odm_predictions_begin(p, 2, 3, row, 2, true);
		v = odm_predictions_voided(p);
		assert_true(v.position == !meets && v.token + v.ended + v.replaced == 0);
		if (!meets)
			expect_want(p, 2, 1, 0, NULL);
		assert_false(take_want(p, &w));
		says(p, 1, kept, 1, 6, 3, 4, true);
		says(p, 1, kept + 1, 1, 6, 5, 6, true);
		if (kept == 2)
			expect_want(p, 2, 1, 4, (const uint16_t[]){ 3, 4, 5, 6 });
		odm_predictions_resolve(p, 2, 1, (const uint16_t[]){ 3, 4, 5, 6 });
		odm_predictions_learn(p, 2, 1, NULL, NULL);
		f = counted(p, NULL);
		assert_int_equal(f.c[OD_C_RECALLED_USES], 4);
		assert_int_equal(f.c[OD_C_LEAD_ROUTERS], 1); /* one a sequence, however many rows it has */
		odm_predictions_free(p);
	}
}

/* Figures are a sequence's; they are kept when it is over, as long as there is room. */
static void every_sequence_has_its_own_figures(void **state)
{
	struct odm_predictions *p = make();
	struct odm_spread first;

	(void)state;
	begin_two(p, 1, 42);
	says(p, 1, 1, 0, 42, 1, 2, true);
	says(p, 2, 1, 0, 42, 3, 4, true);
	says(p, 2, 1, 2, 42, 3, 4, true);
	odm_predictions_resolve(p, 1, 0, (const uint16_t[]){ 1, 2, 3, 5 });
	odm_predictions_learn(p, 1, 0, NULL, NULL);
	for (uint64_t sequence = 1; sequence <= 2; sequence++) {
		uint64_t c[OD_N_COUNTERS] = { 0 };

		odm_predictions_close(p, sequence);
		odm_predictions_take(p, sequence, c, &first, NULL);
		assert_int_equal(c[OD_C_PREDICTED_USES], 2);
		assert_int_equal(c[OD_C_RECALLED_USES], sequence == 1 ? 2 : 1);
		assert_int_equal(c[OD_C_FIRST_PREDICTIONS], 1);
		assert_int_equal(c[OD_C_LEAD_SUM], sequence == 1 ? 0 : 2);
		odm_predictions_take(p, sequence, c, &first, NULL); /* it is forgotten by now */
		assert_int_equal(c[OD_C_PREDICTED_USES], 2);
	}
	/* Two places: 3 and 4 take them, 5 the one of 3, which was closed first, 44 that of 4, and 6 finds none. */
	for (uint64_t sequence = 3; sequence <= 6; sequence++) {
		const struct odm_predicted_row row = { .sequence = sequence, .token = 42 };
		uint64_t c[OD_N_COUNTERS] = { 0 };

		odm_predictions_begin(p, sequence, 0, &row, 1, true);
		says(p, sequence, 0, 0, 42, 1, 2, sequence < 6);
		resolve(p, sequence, 0, 1, 2);
		if (sequence < 5)
			odm_predictions_close(p, sequence);
		if (sequence == 5) {
			odm_predictions_take(p, 3, c, &first, NULL);
			assert_int_equal(c[OD_C_RECALLED_USES], 0);
			odm_predictions_begin(p, 50, 0, &(struct odm_predicted_row){ .sequence = 44, .token = 1 }, 1,
					      true);
		}
	}
	odm_predictions_free(p);
}

static void prefill_requires_without_scoring(void **state)
{
	struct odm_predictions *p = make();
	const uint16_t all[] = { 0, 1, 2, 5 };
	struct od_recall r;
	struct predictions_want w;
	struct predictions_counted times;

	(void)state;
	odm_predictions_require(p, 3, 2, all, NULL, 4); /* it has not begun */
	odm_predictions_begin(p, 3, 0, NULL, 0, false);
	odm_predictions_require(p, 3, 2, all, NULL, 4);
	assert_true(take_want(p, &w));
	assert_true(w.w.m == 2 && w.w.n == 4);
	assert_memory_equal(w.expert, all, sizeof(all));
	assert_false(take_want(p, &w));
	odm_predictions_resolve(p, 3, 2, all);
	odm_predictions_learn(p, 3, 2, NULL, NULL);
	r = take(p, &times);
	od_recall_fini(&r);
	/* It stays while decode steps run between its layers. */
	for (uint64_t step = 10; step < 16; step++) {
		begin(p, step, 42, (uint32_t)step - 10);
		predict(p, step, 0, 42, 4, 6);
		resolve(p, step, 0, 4, 6);
	}
	predict(p, 15, 1, 42, 4, 6);
	odm_predictions_require_all(p, 3, 1, 5);
	assert_true(take_want(p, &w) && w.w.step == 3 && w.w.n == EXPERTS);
	send_want(p, &w, 5, 6);
	assert_true(take_want(p, &w) && w.w.step == 15 && w.w.n == 2);
	assert_false(take_want(p, &w));
	assert_int_equal(odm_predictions_where(p, 3, 1, 1), 6);
	odm_predictions_begin(p, 17, 0, NULL, 0, false);
	assert_int_equal(odm_predictions_where(p, 3, 1, 1), ODM_NOBODY);
	odm_predictions_require_all(p, 3, 1, 5);
	assert_false(take_want(p, &w));
	r = take(p, &times);
	assert_int_equal(r.all.recalled, 12);
	assert_int_equal(r.token[5].recalled, 2);
	od_recall_fini(&r);
	odm_predictions_free(p);
}

/* Rows of a prompt go elsewhere than WANTs have said: the next WANTs say so to both workers. */
static void experts_of_a_prompt_that_move_are_wanted_anew(void **state)
{
	struct odm_predictions *p = make();
	const uint16_t all[] = { 0, 1, 2, 5 };
	const uint32_t dealt[] = { 5, 6, 7, 6 };
	struct predictions_want w;

	(void)state;
	odm_predictions_begin(p, 3, 0, NULL, 0, false);
	odm_predictions_require(p, 3, 2, all, NULL, 4);
	assert_true(take_want(p, &w));
	send_want(p, &w, 5, 6);
	odm_predictions_require(p, 3, 2, all, dealt, 4);
	assert_int_equal(odm_predictions_where(p, 3, 2, 2), 7);
	assert_true(take_want(p, &w));
	assert_int_equal(w.w.n, 4);
	assert_int_equal(w.w.n_before, 4);
	assert_memory_equal(w.w.worker, dealt, sizeof(dealt));
	assert_memory_equal(w.w.worker_before, ((uint32_t[]){ 5, 6, ODM_NOBODY, ODM_NOBODY }), sizeof(dealt));
	odm_predictions_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_prediction_becomes_a_want),
		cmocka_unit_test(oldest_step_and_lowest_layer_first),
		cmocka_unit_test(recall_counts_uses),
		cmocka_unit_test(late_is_counted_apart_and_wants_nothing),
		cmocka_unit_test(late_before_it_is_counted),
		cmocka_unit_test(a_record_has_what_came_in_time),
		cmocka_unit_test(another_token_is_discarded),
		cmocka_unit_test(any_token_will_do),
		cmocka_unit_test(leads),
		cmocka_unit_test(a_stand_in_gives_way),
		cmocka_unit_test(a_stand_in_counts),
		cmocka_unit_test(hedges_come_behind_the_prediction),
		cmocka_unit_test(hedges_of_rows_are_merged),
		cmocka_unit_test(a_want_sent_too_late_was_not_ordered),
		cmocka_unit_test(another_guess_keeps_nothing),
		cmocka_unit_test(a_wrong_token_is_paid_for),
		cmocka_unit_test(what_has_no_cell_is_refused),
		cmocka_unit_test(another_number),
		cmocka_unit_test(silence_is_a_sequences),
		cmocka_unit_test(joining_and_ending_void_nothing_else),
		cmocka_unit_test(a_draft_may_end_anywhere),
		cmocka_unit_test(every_sequence_has_its_own_figures),
		cmocka_unit_test(prefill_requires_without_scoring),
		cmocka_unit_test(experts_of_a_prompt_that_move_are_wanted_anew),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

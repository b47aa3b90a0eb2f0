/* The table of predictions when the shadow runs several rows ahead and main verifies drafts, by hand: sequence 1, and
 * the number of a step is the position of its first row. test_draft_table.c has many sequences, in any order. */
#include "main-node/predict/prediction_drafts.h"
#include "main-node/predict/prediction_wants.h"
#include "main-node/predict/predictions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 3
#define EXPERTS 12
#define TOP_K 2
#define MOST 4 /* rows of a sequence in a step */

static struct odm_predictions *make(void)
{
	const struct odm_predictions_opts o = { .n_moe = LAYERS,
						.n_experts = EXPERTS,
						.top_k = TOP_K,
						.max_sequences = 2,
						.max_rows = MOST,
						.max_draft = MOST - 1,
						.max_tokens = 8 };
	struct odm_predictions *p;
	struct od_err err;

	assert_int_equal(odm_predictions_new(&p, &o, &err), OD_OK);
	return p;
}

/* Token 10 + position, experts `first` and `first` + 1, margin position / 4. */
static struct od_prediction of(uint32_t position, uint32_t m, uint16_t first)
{
	static uint16_t expert[TOP_K];

	expert[0] = first;
	expert[1] = first + 1;
	return (struct od_prediction){ .sequence = 1,
				       .position = position,
				       .m = m,
				       .token = 10 + (int32_t)position,
				       .margin = (float)position / 4,
				       .expert = expert,
				       .n = TOP_K };
}

static void predict(struct odm_predictions *p, uint32_t position, uint32_t m, uint16_t first, bool want)
{
	const struct od_prediction x = of(position, m, first);

	assert_int_equal(odm_predictions_add(p, &x), want);
}

static void predict_other(struct odm_predictions *p, uint32_t position, uint32_t m, uint16_t first, bool want)
{
	struct od_prediction x = of(position, m, first);

	x.token = 99;
	assert_int_equal(odm_predictions_add(p, &x), want);
}

/* Rows [position, position + n) with the tokens of predict(). */
static void begin(struct odm_predictions *p, uint32_t position, uint32_t n, uint32_t ahead)
{
	struct odm_predicted_row row[MOST];

	for (uint32_t i = 0; i < n; i++)
		row[i] = (struct odm_predicted_row){ .sequence = 1,
						     .position = position + i,
						     .token = 10 + (int32_t)(position + i),
						     .ahead = i == 0 ? ahead : 77 };
	odm_predictions_begin(p, position, position + n, row, n, true);
}

/* The next WANT: of which step and layer, and the first ones of its pairs of experts; they may come in any order. */
static void expect_want(struct odm_predictions *p, uint64_t step, uint32_t m, size_t n, const uint16_t *first)
{
	uint16_t expert[EXPERTS], before[EXPERTS];
	uint32_t worker[EXPERTS], worker_before[EXPERTS];
	struct odm_want w = {
		.expert = expert, .worker = worker, .expert_before = before, .worker_before = worker_before
	};
	unsigned have = 0, want = 0;

	assert_true(odm_predictions_take_want(p, &w));
	for (size_t i = 0; i < w.n; i++) {
		have |= 1u << expert[i];
		worker[i] = 1;
	}
	for (size_t i = 0; i < n; i++)
		want |= 3u << first[i];
	assert_int_equal(w.step, step);
	assert_int_equal(w.m, m);
	assert_int_equal(have, want);
	assert_int_equal(w.n, (size_t)__builtin_popcount(want));
	odm_predictions_placed(p, &w);
}

static void expect_no_want(struct odm_predictions *p)
{
	uint16_t expert[EXPERTS], before[EXPERTS];
	uint32_t worker[EXPERTS], worker_before[EXPERTS];
	struct odm_want w = {
		.expert = expert, .worker = worker, .expert_before = before, .worker_before = worker_before
	};

	assert_false(odm_predictions_take_want(p, &w));
}

#define FIRST(...) \
	sizeof((const uint16_t[]){ __VA_ARGS__ }) / sizeof(uint16_t), (const uint16_t[]) \
	{ \
		__VA_ARGS__ \
	}

static void rows_become_wants_when_their_step_comes(void **state)
{
	struct odm_predictions *p = make();

	(void)state;
	begin(p, 4, 1, 2);
	predict(p, 5, 1, 0, true);
	predict(p, 6, 1, 2, true);
	predict(p, 7, 1, 4, false); /* not expected in the next step */
	predict(p, 8, 1, 6, false);
	expect_want(p, 5, 1, FIRST(0, 2));
	predict(p, 6, 1, 2, false); /* nothing new */
	predict(p, 7, 1, 4, false);
	expect_no_want(p);
	begin(p, 5, 2, 1);
	expect_want(p, 7, 1, FIRST(4));
	expect_no_want(p);
	begin(p, 7, 1, 1);
	expect_want(p, 8, 1, FIRST(6));
	begin(p, 8, 1, 1);
	predict(p, 8, 1, 8, true); /* a correction */
	expect_want(p, 8, 1, FIRST(8));
	expect_no_want(p);
	odm_predictions_free(p);
}

static void fewer_rows_than_expected(void **state)
{
	struct odm_predictions *p = make();
	struct odm_voided v;

	(void)state;
	begin(p, 4, 1, 3);
	for (uint32_t i = 0; i < 3; i++)
		predict(p, 5 + i, 0, (uint16_t)(2 * i), true);
	predict(p, 6, 2, 8, true);
	expect_want(p, 5, 0, FIRST(0, 2, 4));
	expect_want(p, 5, 2, FIRST(8));
	begin(p, 5, 1, 2);
	expect_want(p, 5, 0, FIRST(0)); /* the others belong to the next step now */
	expect_want(p, 5, 2, 0, NULL);
	expect_want(p, 6, 0, FIRST(2, 4));
	expect_want(p, 6, 2, FIRST(8));
	expect_no_want(p);
	v = odm_predictions_voided(p);
	assert_true(v.token + v.position + v.ended + v.replaced == 0);
	odm_predictions_free(p);
}

static void more_rows_than_expected(void **state)
{
	struct odm_predictions *p = make();

	(void)state;
	begin(p, 4, 1, 2);
	for (uint32_t i = 0; i < 4; i++)
		predict(p, 5 + i, i == 3 ? 1 : 0, (uint16_t)(2 * i), i < 2);
	expect_want(p, 5, 0, FIRST(0, 2));
	begin(p, 5, 4, 2);
	expect_want(p, 5, 0, FIRST(0, 2, 4));
	expect_want(p, 5, 1, FIRST(6));
	expect_no_want(p);
	odm_predictions_free(p);
}

static void a_gap_is_refused(void **state)
{
	struct odm_predictions *p = make();
	struct od_prediction stand_in;

	(void)state;
	begin(p, 4, 1, 4);
	predict(p, 6, 0, 2, false);
	predict(p, 5, 2, 0, true); /* any layer will do */
	predict(p, 7, 0, 4, false);
	predict(p, 6, 0, 2, true);
	predict(p, 7, 0, 4, true);
	predict(p, 8, 0, 6, true);
	predict(p, 9, 0, 8, false); /* further than a step reaches */
	expect_want(p, 5, 0, FIRST(2, 4, 6));
	expect_want(p, 5, 2, FIRST(0));
	assert_int_equal(odm_predictions_voided(p).unknown, 3);
	begin(p, 5, 1, 4);
	predict(p, 9, 0, 8, true);
	predict(p, 4, 0, 0, false); /* late */
	assert_int_equal(odm_predictions_voided(p).unknown, 3);
	predict(p, 3, 0, 0, false); /* before the first step */
	assert_int_equal(odm_predictions_voided(p).unknown, 4);
	odm_predictions_free(p);

	p = make();
	begin(p, 4, 1, 4);
	stand_in = of(5, 0, 0);
	stand_in.stand_in = true;
	assert_true(odm_predictions_add(p, &stand_in));
	predict(p, 6, 0, 2, false); /* it assumes what the shadow said of 5 */
	predict(p, 5, 1, 0, true);
	stand_in.position = 6;
	assert_false(odm_predictions_add(p, &stand_in)); /* main's own predictor does not run ahead */
	assert_int_equal(odm_predictions_voided(p).unknown, 1); /* the shadow's */
	predict(p, 6, 0, 2, true);
	odm_predictions_free(p);

	p = make(); /* one row ahead is one row ahead, but what an earlier step allowed may be under way */
	begin(p, 4, 1, 1);
	predict(p, 5, 0, 0, true);
	predict(p, 6, 0, 2, false);
	begin(p, 5, 1, 2);
	predict(p, 6, 0, 2, true);
	begin(p, 6, 1, 1);
	predict(p, 7, 0, 4, true);
	predict(p, 8, 0, 6, false); /* kept, for a later step */
	predict(p, 10, 0, 8, false);
	begin(p, 7, 1, 1);
	expect_want(p, 7, 0, FIRST(4));
	expect_want(p, 8, 0, FIRST(6));
	odm_predictions_free(p);
}

/* Experts of the next WANT, in their order. */
static void expect_order(struct odm_predictions *p, uint64_t step, size_t n, const uint16_t *want)
{
	uint16_t expert[EXPERTS], before[EXPERTS];
	uint32_t worker[EXPERTS] = { 0 }, worker_before[EXPERTS];
	struct odm_want w = {
		.expert = expert, .worker = worker, .expert_before = before, .worker_before = worker_before
	};

	assert_true(odm_predictions_take_want(p, &w));
	assert_int_equal(w.step, step);
	assert_int_equal(w.n, n);
	assert_memory_equal(expert, want, n * sizeof(*want));
	odm_predictions_placed(p, &w);
}

#define ORDER(...) FIRST(__VA_ARGS__)

/* All that the sequences' first rows need, then what their second rows need; a step that begins changes nothing. */
static void certain_rows_come_first(void **state)
{
	struct odm_predicted_row row[] = { { .sequence = 1, .position = 4, .token = 14, .ahead = 2 },
					   { .sequence = 2, .position = 7, .token = 17, .ahead = 2 } };
	struct odm_predicted_row then[] = { { .sequence = 1, .position = 5, .token = 15, .ahead = 2 },
					    { .sequence = 1, .position = 6, .token = 16 },
					    { .sequence = 2, .position = 8, .token = 18, .ahead = 2 },
					    { .sequence = 2, .position = 9, .token = 19 } };
	struct odm_predictions *p = make();
	struct od_prediction x;

	(void)state;
	odm_predictions_begin(p, 1, 2, row, 2, true);
	predict(p, 5, 0, 0, true);
	predict(p, 6, 0, 2, true);
	for (uint32_t i = 0; i < 2; i++) {
		x = of(8 + i, 0, (uint16_t)(i == 0 ? 4 : 6));
		x.sequence = 2;
		assert_true(odm_predictions_add(p, &x));
	}
	expect_order(p, 2, ORDER(0, 4, 1, 5, 2, 6, 3, 7));
	odm_predictions_begin(p, 2, 3, then, 4, true);
	expect_no_want(p);
	predict(p, 6, 0, 8, true);
	expect_order(p, 2, ORDER(0, 4, 1, 5, 8, 6, 9, 7));
	odm_predictions_free(p);
}

/* A token of margin 0 is right with probability 1/2, of margin 1 with 2/3 and of margin 3 with 4/5. */
static void begin_with(struct odm_predictions *p, uint32_t position, uint32_t n, double least)
{
	struct odm_predicted_row row[MOST];

	for (uint32_t i = 0; i < n; i++)
		row[i] = (struct odm_predicted_row){ .sequence = 1,
						     .position = position + i,
						     .token = 10 + (int32_t)(position + i),
						     .ahead = MOST,
						     .outlook = { .right = { 0, 1 }, .least = least } };
	odm_predictions_begin(p, position, position + n, row, n, true);
}

static void predict_sure(struct odm_predictions *p, uint32_t position, uint32_t m, uint16_t first, float margin,
			 bool want)
{
	struct od_prediction x = of(position, m, first);

	x.margin = margin;
	assert_int_equal(odm_predictions_add(p, &x), want);
}

static void unlikely_rows_are_not_wanted(void **state)
{
	struct odm_predictions *p = make();

	(void)state;
	begin_with(p, 4, 1, 0.3);
	predict_sure(p, 5, 0, 0, 0, true); /* 1/2 */
	predict_sure(p, 6, 0, 2, 1, true); /* 1/3 */
	predict_sure(p, 6, 1, 2, 1, true);
	predict_sure(p, 7, 0, 4, 3, false); /* 4/15 */
	predict_sure(p, 8, 0, 6, 3, false);
	expect_want(p, 5, 0, FIRST(0, 2));
	expect_want(p, 5, 1, FIRST(2));
	/* Another margin: 4/5, 8/15, 32/75, 128/375; and back. */
	predict_sure(p, 5, 2, 0, 3, true);
	expect_want(p, 5, 0, FIRST(0, 2, 4, 6));
	expect_want(p, 5, 2, FIRST(0));
	predict_sure(p, 5, 2, 0, 0, true);
	expect_want(p, 5, 0, FIRST(0, 2));
	predict_sure(p, 5, 2, 0, 0, false);
	expect_no_want(p);
	/* They are kept, and wanted when they are rows of a step. In the next step what is behind needs the second
	 * row's token, too: 2/3 of 4/5. */
	begin_with(p, 5, 2, 0.5);
	expect_want(p, 7, 0, FIRST(4));
	predict_sure(p, 8, 1, 6, 3, false); /* 32/75 */
	expect_no_want(p);
	begin_with(p, 7, 2, 0);
	expect_want(p, 7, 0, FIRST(4, 6));
	expect_want(p, 7, 1, FIRST(6));
	expect_no_want(p);
	odm_predictions_free(p);
}

/* The first row is wanted in any case. Once main has chosen a token itself, what follows depends on that one no
 * longer. */
static void the_first_row_is_wanted(void **state)
{
	struct odm_predictions *p = make();

	(void)state;
	begin_with(p, 4, 1, 0.9);
	predict_sure(p, 5, 0, 0, 0, true);
	predict_sure(p, 6, 0, 2, 0, false);
	predict_sure(p, 7, 0, 4, 0, false);
	expect_want(p, 5, 0, FIRST(0));
	begin_with(p, 5, 3, 0.6);
	expect_want(p, 5, 0, FIRST(0, 2, 4));
	predict_sure(p, 8, 0, 6, 3, true); /* 1/5 */
	expect_want(p, 8, 0, FIRST(6));
	assert_true(odm_predictions_truncate(p, 1, 6));
	expect_want(p, 8, 0, 0, NULL);
	predict_sure(p, 6, 0, 6, 3, true);
	predict_sure(p, 7, 0, 8, 3, true); /* 16/25 */
	expect_want(p, 8, 0, FIRST(6, 8));
	odm_predictions_free(p);
}

/* The shadow has changed its mind: what it drew after that token is void. */
static void another_token_voids_what_is_behind(void **state)
{
	struct odm_predictions *p = make();
	struct odm_voided v;

	(void)state;
	begin(p, 4, 1, 3);
	for (uint32_t m = 0; m < 2; m++)
		for (uint32_t i = 0; i < 4; i++)
			predict(p, 5 + i, m, (uint16_t)(2 * i), i < 3);
	expect_want(p, 5, 0, FIRST(0, 2, 4));
	expect_want(p, 5, 1, FIRST(0, 2, 4));
	predict_other(p, 6, 0, 8, true);
	assert_int_equal(odm_predictions_voided(p).replaced, 6); /* two layers of positions 6, 7 and 8 */
	expect_want(p, 5, 0, FIRST(0, 8));
	expect_want(p, 5, 1, FIRST(0));
	predict(p, 8, 0, 6, false);
	predict(p, 7, 0, 4, true);
	expect_want(p, 5, 0, FIRST(0, 8, 4));
	/* At the next position main will say which token is right: each layer keeps what it has. */
	predict_other(p, 5, 0, 2, true);
	assert_int_equal(odm_predictions_voided(p).replaced, 9);
	expect_want(p, 5, 0, FIRST(2));
	expect_no_want(p);
	begin(p, 5, 1, 3);
	v = odm_predictions_voided(p);
	assert_true(v.token == 1 && v.replaced == 9 && v.position == 0 && v.ended == 0);
	predict(p, 5, 2, 4, true);
	expect_want(p, 5, 2, FIRST(4));
	predict(p, 5, 1, 0, false); /* it stands */
	odm_predictions_free(p);
}

static void mains_token_voids_what_is_behind(void **state)
{
	struct odm_predictions *p = make();
	struct odm_predicted_row row[] = { { .sequence = 1, .position = 5, .token = 15, .ahead = 2 },
					   { .sequence = 1, .position = 6, .token = 1 },
					   { .sequence = 1, .position = 7, .token = 17 } };

	(void)state;
	begin(p, 4, 1, 2);
	for (uint32_t i = 0; i < 4; i++)
		predict(p, 5 + i, 0, (uint16_t)(2 * i), i < 2);
	expect_want(p, 5, 0, FIRST(0, 2));
	odm_predictions_begin(p, 5, 8, row, 3, true);
	assert_int_equal(odm_predictions_voided(p).token, 3);
	expect_no_want(p); /* predictions for the right token will follow */
	predict(p, 9, 0, 0, false);
	predict(p, 7, 0, 8, true);
	expect_want(p, 5, 0, FIRST(0, 8));
	predict(p, 8, 0, 0, true);
	expect_want(p, 8, 0, FIRST(0));
	odm_predictions_free(p);
}

/* A sequence that ends or sits out voids all that was predicted ahead, and takes back what was wanted for it. */
static void all_rows_ahead_are_voided(void **state)
{
	const struct odm_predicted_row other = { .sequence = 2, .token = 1, .ahead = 1 };

	(void)state;
	for (int ends = 0; ends < 2; ends++) {
		struct odm_predictions *p = make();

		begin(p, 4, 1, 2);
		for (uint32_t i = 0; i < 3; i++)
			predict(p, 5 + i, 0, (uint16_t)(2 * i), i < 2);
		expect_want(p, 5, 0, FIRST(0, 2));
		if (ends) {
			assert_true(odm_predictions_close(p, 1));
			assert_int_equal(odm_predictions_voided(p).ended, 3);
		} else {
			odm_predictions_begin(p, 5, 6, &other, 1, true);
			assert_int_equal(odm_predictions_voided(p).position, 3);
		}
		expect_want(p, 5, 0, 0, NULL);
		expect_no_want(p);
		predict(p, 5, 0, 0, false);
		odm_predictions_free(p);
	}
}

static size_t draft(struct odm_predictions *p, uint32_t position, int32_t token, size_t max)
{
	int32_t out[MOST] = { 0 };
	float margin[MOST] = { 0 };
	size_t n = odm_predictions_draft(p, 1, position, token, out, margin, max);

	for (size_t i = 0; i < n; i++) {
		assert_int_equal(out[i], 11 + position + i);
		assert_true(margin[i] == (float)(position + 1 + i) / 4);
	}
	return n;
}

static void the_chain_is_a_draft(void **state)
{
	struct odm_predictions *p = make();
	struct od_prediction x;

	(void)state;
	assert_int_equal(draft(p, 5, 15, MOST), 0);
	begin(p, 4, 1, 2);
	assert_int_equal(draft(p, 5, 15, MOST), 0);
	x = of(5, 0, 0);
	x.stand_in = true;
	assert_true(odm_predictions_add(p, &x));
	assert_int_equal(draft(p, 5, 15, MOST), 0);
	for (uint32_t i = 0; i < 4; i++) {
		predict(p, 5 + i, 1, 0, i < 2);
		assert_int_equal(draft(p, 5, 15, MOST), i);
	}
	assert_int_equal(draft(p, 5, 15, 2), 2);
	assert_int_equal(draft(p, 5, 15, 0), 0);
	assert_int_equal(draft(p, 5, 14, MOST), 0); /* another token */
	assert_int_equal(draft(p, 6, 16, MOST), 2);
	assert_int_equal(draft(p, 8, 18, MOST), 0);
	assert_int_equal(draft(p, 4, 14, MOST), 0); /* the row of the step */
	assert_int_equal(draft(p, 4, 0, MOST), 0);
	assert_int_equal(odm_predictions_draft(p, 2, 5, 15, &x.token, &x.margin, 1), 0);
	predict_other(p, 7, 2, 0, false);
	assert_int_equal(draft(p, 5, 15, 1), 1);
	assert_int_equal(odm_predictions_draft(p, 1, 6, 16, &x.token, &x.margin, 1), 1);
	assert_int_equal(x.token, 99);
	assert_int_equal(draft(p, 7, 17, MOST), 0);
	begin(p, 5, 2, 2);
	assert_int_equal(draft(p, 7, 99, MOST), 0);
	predict(p, 7, 0, 0, true); /* 99 was wrong */
	predict(p, 8, 0, 0, true);
	assert_int_equal(draft(p, 7, 17, MOST), 1);
	odm_predictions_free(p);
}

static void what_a_draft_needs(void **state)
{
	struct odm_predictions *p = make();
	uint32_t n[4];

	(void)state;
	begin(p, 4, 1, 4);
	predict(p, 5, 0, 0, true); /* 0 1 */
	predict(p, 5, 1, 0, true); /* 0 1 */
	predict(p, 5, 2, 5, true); /* 5 6 */
	predict(p, 6, 0, 1, true); /* 1 2 */
	predict(p, 6, 1, 0, true); /* 0 1 */
	predict(p, 7, 1, 1, true); /* 1 2 */
	odm_predictions_union(p, 1, 5, 4, n);
	assert_int_equal(n[0], 6);
	assert_int_equal(n[1], 6 + 1 + 0 + 2);
	assert_int_equal(n[2], 9 + 2 + 1 + 2);
	assert_int_equal(n[3], 14 + 6);
	odm_predictions_union(p, 1, 6, 2, n);
	assert_true(n[0] == 6 && n[1] == 6 + 2 + 1 + 2);
	predict(p, 4, 0, 0, true);
	odm_predictions_union(p, 1, 4, 2, n); /* a row of the step is not ahead */
	assert_true(n[0] == 6 && n[1] == 12);
	odm_predictions_union(p, 7, 5, 2, n); /* nothing is known of it */
	assert_true(n[0] == 6 && n[1] == 12);
	odm_predictions_free(p);
}

/* A shadow that is far ahead has nothing to say for a while, and main's own predictor need not stand in for it. */
static void far_ahead_is_not_silent(void **state)
{
	struct odm_predictions *p = make();
	bool silent;

	(void)state;
	begin(p, 4, 1, 4);
	for (uint32_t i = 0; i < 4; i++)
		predict(p, 5 + i, 0, 0, true);
	for (uint32_t position = 5; position < 11; position++) {
		begin(p, position, 1, 4);
		assert_int_equal(odm_predictions_shadow_silent(p, position, &silent, 1), 0);
	}
	begin(p, 11, 1, 4);
	assert_int_equal(odm_predictions_shadow_silent(p, 11, &silent, 1), 1);
	odm_predictions_free(p);
}

static void resolve(struct odm_predictions *p, uint64_t step, uint32_t m, const uint16_t *used)
{
	odm_predictions_resolve(p, step, m, used);
	odm_predictions_learn(p, step, m, NULL, NULL);
}

static void expect_counts(struct odm_predictions *p, const uint64_t *want)
{
	static const enum od_counter of_draft[] = {
		OD_C_PREDICTED_USES,	  OD_C_RECALLED_USES, OD_C_LATE_PREDICTIONS,
		OD_C_MISSING_PREDICTIONS, OD_C_UNDONE_USES,   OD_C_UNDONE_RECALLED
	};
	uint64_t c[OD_N_COUNTERS] = { 0 };
	struct odm_spread first;

	odm_predictions_take(p, 1, c, &first, NULL);
	for (size_t i = 0; i < sizeof(of_draft) / sizeof(*of_draft); i++)
		assert_int_equal(c[of_draft[i]], want[i]);
}

#define COUNTS(...) ((const uint64_t[]){ __VA_ARGS__ })

static void undone_rows_are_counted_apart(void **state)
{
	static const uint16_t used[] = { 0, 1, 2, 9, 4, 5 };
	const struct odm_predicted_row next = { .sequence = 1, .position = 5, .token = 99, .ahead = 1 };
	struct odm_predictions *p = make();

	(void)state;
	begin(p, 4, 3, 2);
	predict(p, 4, 0, 0, true); /* both */
	predict(p, 5, 0, 2, true); /* one of two */
	predict(p, 6, 0, 4, true); /* both */
	resolve(p, 4, 0, used);
	resolve(p, 4, 1, used); /* without predictions */
	predict(p, 5, 1, 2, false); /* late: 1 */
	predict(p, 6, 1, 3, false); /* late: 1 */
	predict(p, 7, 0, 0, true);
	predict(p, 8, 0, 2, true);
	predict(p, 9, 0, 4, false);
	expect_want(p, 7, 0, FIRST(0, 2));
	assert_true(odm_predictions_truncate(p, 1, 5));
	expect_want(p, 7, 0, 0, NULL);
	assert_int_equal(odm_predictions_voided(p).token, 3); /* only what was ahead */
	assert_false(odm_predictions_truncate(p, 1, 5));
	assert_false(odm_predictions_truncate(p, 2, 5));
	predict(p, 6, 2, 0, false); /* gone */
	predict_other(p, 5, 2, 0, true); /* this is what the next step's first row is now */
	expect_want(p, 7, 2, FIRST(0));
	odm_predictions_begin(p, 7, 8, &next, 1, true);
	expect_no_want(p);
	predict(p, 4, 1, 0, false); /* late, both */
	resolve(p, 7, 1, used);
	resolve(p, 7, 2, used);
	/* Row 4: two of two in time, two of two late; the new row 5: two of two, and one missing. */
	expect_counts(p, COUNTS(6, 6, 1, 1, 8, 5));
	odm_predictions_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows_become_wants_when_their_step_comes),
		cmocka_unit_test(fewer_rows_than_expected),
		cmocka_unit_test(more_rows_than_expected),
		cmocka_unit_test(a_gap_is_refused),
		cmocka_unit_test(certain_rows_come_first),
		cmocka_unit_test(unlikely_rows_are_not_wanted),
		cmocka_unit_test(the_first_row_is_wanted),
		cmocka_unit_test(another_token_voids_what_is_behind),
		cmocka_unit_test(mains_token_voids_what_is_behind),
		cmocka_unit_test(all_rows_ahead_are_voided),
		cmocka_unit_test(the_chain_is_a_draft),
		cmocka_unit_test(what_a_draft_needs),
		cmocka_unit_test(far_ahead_is_not_silent),
		cmocka_unit_test(undone_rows_are_counted_apart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

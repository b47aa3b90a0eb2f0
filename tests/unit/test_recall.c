/* Recall (OD-MoE Eq. 2 and 3): an example by hand, and random rows against counting with bit sets. */
#include "common/predict/recall.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct od_recall make(uint32_t layers, uint32_t tokens)
{
	struct od_recall r;

	assert_int_equal(od_recall_init(&r, layers, tokens, NULL), OD_OK);
	return r;
}

static void assert_cell(struct od_recall_cell c, uint64_t uses, uint64_t recalled)
{
	assert_int_equal(c.uses, uses);
	assert_int_equal(c.recalled, recalled);
}

static void by_hand(void **state)
{
	static const uint16_t p[] = { 3, 1 }, u[] = { 1, 3 }, v[] = { 1, 7 }, w[] = { 5, 65535 };
	struct od_recall r = make(2, 3);

	(void)state;
	assert_true(od_recall_rate(&r.all) == 0); /* nothing was used */
	od_recall_add(&r, 0, 0, p, 2, u, 2, false); /* both, in another order */
	od_recall_add(&r, 1, 0, p, 2, v, 2, true); /* one of two */
	od_recall_add(&r, 1, 1, p, 2, w, 2, false); /* none */
	od_recall_add(&r, 0, 1, p, 0, u, 2, false); /* nothing predicted */
	od_recall_add(&r, 0, 7, p, 1, u, 2, false); /* a token behind the last */
	od_recall_add(&r, 0, 2, p, 2, u, 0, true); /* nothing used */
	assert_cell(r.all, 10, 4);
	assert_cell(r.layer[0], 6, 3);
	assert_cell(r.layer[1], 4, 1);
	assert_cell(r.token[0], 4, 3);
	assert_cell(r.token[1], 4, 0);
	assert_cell(r.token[2], 2, 1);
	assert_int_equal(r.rows.late, 2);
	assert_int_equal(r.rows.in_time, 4);
	assert_true(od_recall_rate(&r.all) == 0.4);
	assert_int_equal(r.layer_rows[0].late, 1);
	assert_int_equal(r.layer_rows[0].in_time, 3);
	assert_int_equal(r.layer_rows[1].late, 1);
	assert_int_equal(r.layer_rows[1].in_time, 1);
	for (int i = 0; i < 7; i++) /* two of layer 1 were never predicted */
		od_recall_see(&r, i < 4 ? 1 : 0);
	assert_int_equal(od_recall_missing(&r.layer_rows[1]), 2);
	assert_int_equal(od_recall_missing(&r.layer_rows[0]), 0); /* its router has not routed a row yet */
	assert_int_equal(r.rows.seen, 7);
	assert_int_equal(od_recall_missing(&r.rows), 1);
	assert_true(od_recall_rate(&r.layer[1]) == 0.25);

	od_recall_reset(&r);
	assert_cell(r.all, 0, 0);
	for (int i = 0; i < 2; i++)
		assert_cell(r.layer[i], 0, 0);
	for (int i = 0; i < 3; i++)
		assert_cell(r.token[i], 0, 0);
	assert_int_equal(r.rows.late + r.rows.in_time + r.rows.seen, 0);
	assert_int_equal(r.layer_rows[1].late + r.layer_rows[0].in_time + r.layer_rows[1].seen, 0);
	assert_int_equal(r.n_moe, 2);
	assert_int_equal(r.n_tokens, 3);
	od_recall_fini(&r);
	assert_null(r.layer);
}

static uint32_t next(uint32_t *seed)
{
	*seed = *seed * 1664525u + 1013904223u;
	return *seed >> 8;
}

/* Different experts below 16, and their bit set. */
static size_t draw(uint32_t *seed, uint16_t *expert, uint32_t *set)
{
	size_t n = 0, want = next(seed) % 9;

	*set = 0;
	while (n < want) {
		uint16_t e = (uint16_t)(next(seed) % 16);

		if ((*set >> e & 1) == 0)
			expert[n++] = e;
		*set |= 1u << e;
	}
	return n;
}

static void against_bit_sets(void **state)
{
	enum { LAYERS = 5, TOKENS = 7, SPLITS = 3, ROWS = 4000 };
	struct od_recall split[SPLITS], all = make(LAYERS, TOKENS);
	uint64_t uses[LAYERS][TOKENS] = { 0 }, hits[LAYERS][TOKENS] = { 0 }, late_rows = 0, n_hits = 0;
	uint32_t seed = 1;

	(void)state;
	for (int i = 0; i < SPLITS; i++)
		split[i] = make(LAYERS, TOKENS);
	for (int i = 0; i < ROWS; i++) {
		uint32_t layer = next(&seed) % LAYERS, token = next(&seed) % (TOKENS + 3), p_set, u_set;
		uint32_t index = token < TOKENS ? token : TOKENS - 1;
		uint16_t p[16], u[16];
		size_t n_p = draw(&seed, p, &p_set), n_u = draw(&seed, u, &u_set);
		bool late = next(&seed) % 4 == 0;

		od_recall_add(&split[next(&seed) % SPLITS], layer, token, p, n_p, u, n_u, late);
		uses[layer][index] += n_u;
		hits[layer][index] += (uint64_t)__builtin_popcount(p_set & u_set);
		n_hits += (uint64_t)__builtin_popcount(p_set & u_set);
		late_rows += late;
	}
	for (int i = 0; i < SPLITS; i++) {
		od_recall_merge(&all, &split[i]);
		od_recall_fini(&split[i]);
	}
	for (int l = 0; l < LAYERS; l++) {
		uint64_t u = 0, h = 0;

		for (int t = 0; t < TOKENS; t++) {
			u += uses[l][t];
			h += hits[l][t];
		}
		assert_cell(all.layer[l], u, h);
	}
	for (int t = 0; t < TOKENS; t++) {
		uint64_t u = 0, h = 0;

		for (int l = 0; l < LAYERS; l++) {
			u += uses[l][t];
			h += hits[l][t];
		}
		assert_cell(all.token[t], u, h);
	}
	assert_int_equal(all.all.recalled, n_hits);
	assert_true(n_hits > 0 && n_hits < all.all.uses);
	assert_int_equal(all.rows.late, late_rows);
	assert_int_equal(all.rows.in_time, ROWS - late_rows);
	od_recall_fini(&all);
}

static void merge_of_other_sizes(void **state)
{
	static const uint16_t e[] = { 1, 2 };
	struct od_recall small = make(2, 2), large = make(4, 3);

	(void)state;
	for (uint32_t l = 0; l < 4; l++)
		od_recall_add(&large, l, l % 3, e, 1, e, 2, false);
	od_recall_see(&large, 3);
	od_recall_merge(&small, &large);
	assert_int_equal(small.layer_rows[0].in_time, 1);
	assert_int_equal(small.layer_rows[1].in_time, 3);
	assert_int_equal(small.layer_rows[1].seen, 1);
	assert_int_equal(small.rows.seen, 1);
	assert_cell(small.all, 8, 4);
	assert_cell(small.layer[0], 2, 1);
	assert_cell(small.layer[1], 6, 3);
	assert_cell(small.token[0], 4, 2); /* tokens 0, 1, 2, 0 */
	assert_cell(small.token[1], 4, 2);
	od_recall_merge(&large, &small);
	assert_cell(large.all, 16, 8);
	assert_cell(large.layer[1], 8, 4);
	assert_cell(large.layer[3], 2, 1);
	/* Counts that came by a merge go on to the next, and are forgotten like others. */
	od_recall_reset(&large);
	od_recall_merge(&large, &small);
	assert_cell(large.token[0], 4, 2);
	assert_cell(large.token[1], 4, 2);
	od_recall_reset(&small);
	od_recall_merge(&large, &small);
	assert_cell(large.token[1], 4, 2);
	od_recall_reset(&large);
	for (uint32_t t = 0; t < 3; t++)
		assert_cell(large.token[t], 0, 0);
	od_recall_fini(&small);
	od_recall_fini(&large);
}

static void nothing_to_count_in(void **state)
{
	struct od_recall r;
	struct od_err err;

	(void)state;
	assert_int_equal(od_recall_init(&r, 0, 5, &err), OD_ERR_RANGE);
	assert_null(r.layer);
	assert_int_equal(r.n_tokens, 0);
	assert_int_equal(od_recall_init(&r, 5, 0, &err), OD_ERR_RANGE);
	assert_string_equal(err.msg, "recall of 5 layers and 0 tokens");
	od_recall_fini(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(by_hand),
		cmocka_unit_test(against_bit_sets),
		cmocka_unit_test(merge_of_other_sizes),
		cmocka_unit_test(nothing_to_count_in),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Rows that the shadow may rely on: by hand, and against a slow model of the same rules under random messages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shadow-node/align_apply.h"

#define LAYERS 3u
#define CTX 70u /* more than a page */
#define MAX_ASK 7u

static struct ods_align *make(void)
{
	struct ods_align *a;
	struct od_err err;

	assert_int_equal(ods_align_new(&a, LAYERS, CTX, MAX_ASK, &err), OD_OK);
	assert_true(ods_align_reserve(a, CTX));
	return a;
}

/* A STEP with rows [begin, begin + n); keep: the shadow ran ahead with the same tokens. */
static void step(struct ods_align *a, uint32_t begin, uint32_t n, uint32_t n_due, bool keep)
{
	ods_align_truncate(a, keep ? begin + n : begin);
	ods_align_step(a, begin + n, n_due);
}

static bool complete(struct ods_align *a, uint32_t position)
{
	return ods_align_missing(a, position) == position;
}

static void give(struct ods_align *a, uint32_t layer, uint32_t begin, uint32_t n, uint64_t now)
{
	const struct ods_range r = { layer, begin, n };

	ods_align_true(a, &r, now);
}

static void assert_asks(struct ods_align *a, uint32_t position, uint64_t now, uint32_t layer, uint32_t begin,
			uint32_t n)
{
	struct ods_range r;

	assert_true(ods_align_ask(a, position, now, &r));
	assert_int_equal(r.layer, layer);
	assert_int_equal(r.begin, begin);
	assert_int_equal(r.n, n);
}

static void assert_asks_nothing(struct ods_align *a, uint32_t position, uint64_t now)
{
	struct ods_range r;

	assert_false(ods_align_ask(a, position, now, &r));
}

/* A prompt is asked for layer by layer, in pieces, until what is asked for comes to two of the longest. */
static void test_prompt(void **state)
{
	struct ods_align *a = make();

	(void)state;
	step(a, 10, 1, 1, false);
	assert_false(complete(a, 10));
	assert_true(complete(a, 0));
	assert_true(ods_align_ready(a, 0, 0));
	assert_asks(a, 10, 5, 0, 0, 7);
	assert_asks(a, 10, 6, 0, 7, 3);
	assert_asks(a, 10, 6, 1, 0, 7);
	assert_asks_nothing(a, 10, 7);
	assert_int_equal(ods_align_asked(a), 7 + 3 + 7);
	give(a, 0, 7, 3, 8); /* answers in any order */
	assert_false(ods_align_ready(a, 0, 10));
	assert_asks_nothing(a, 10, 9); /* two of the longest are out */
	give(a, 0, 0, 7, 10);
	assert_true(ods_align_ready(a, 0, 10));
	assert_false(ods_align_ready(a, 1, 10));
	assert_asks(a, 10, 10, 1, 7, 3);
	give(a, 1, 0, 10, 11); /* overlaps two ranges, and more than each */
	assert_int_equal(ods_align_asked(a), 0);
	assert_asks(a, 10, 12, 2, 0, 7);
	give(a, 2, 0, 7, 13);
	assert_asks(a, 10, 14, 2, 7, 3);
	give(a, 2, 7, 3, 15);
	assert_true(complete(a, 10));
	assert_asks_nothing(a, 10, 16);
	assert_int_equal(ods_align_asked(a), 0);
	ods_align_free(a);
}

static void test_lost_answer(void **state)
{
	struct ods_align *a = make();

	(void)state;
	step(a, 9, 1, 0, false);
	assert_true(ods_align_deadline(a) == UINT64_MAX);
	assert_asks(a, 9, 100, 0, 0, 7);
	assert_asks(a, 9, 200, 0, 7, 2);
	assert_true(ods_align_deadline(a) == 200 + ODS_ASK_AGAIN_NS);
	give(a, 0, 0, 3, 300); /* part of an answer is a sign of life */
	assert_int_equal(ods_align_asked(a), 9);
	assert_true(ods_align_deadline(a) == 300 + ODS_ASK_AGAIN_NS);
	give(a, 1, 0, 3, 400); /* an unrequested range does not count as asked */
	assert_true(ods_align_deadline(a) == 300 + ODS_ASK_AGAIN_NS);
	ods_align_expire(a, 299 + ODS_ASK_AGAIN_NS);
	assert_int_equal(ods_align_asked(a), 9);
	ods_align_expire(a, 300 + ODS_ASK_AGAIN_NS);
	assert_int_equal(ods_align_asked(a), 0);
	assert_asks(a, 9, 5 * ODS_ASK_AGAIN_NS, 0, 3, 6);
	ods_align_free(a);
}

/* A repeated row answers no request. */
static void test_doubled_row(void **state)
{
	const struct ods_range rows = { 1, 4, 3 }, last = { 1, 6, 1 }, other = { 2, 4, 3 };
	struct ods_align *a = make();

	(void)state;
	step(a, 6, 1, 3, false);
	assert_true(ods_align_expects(a, &rows, false));
	assert_true(ods_align_expects(a, &last, false));
	give(a, 1, 6, 1, 1);
	assert_false(ods_align_expects(a, &last, false));
	assert_true(ods_align_expects(a, &rows, false)); /* the others are still due */
	give(a, 1, 4, 3, 2);
	assert_false(ods_align_expects(a, &rows, false));
	assert_true(ods_align_expects(a, &other, false));
	ods_align_free(a);
}

/* Run-ahead: the own row of the step before does not do where the true one is due. */
static void test_due_row(void **state)
{
	struct ods_align *a = make();

	(void)state;
	step(a, 0, 1, 1, false);
	for (uint32_t l = 0; l < LAYERS; l++) {
		assert_false(ods_align_held(a, l, 1));
		ods_align_own(a, l, 0);
		assert_false(ods_align_ready(a, l, 1));
		assert_true(ods_align_held(a, l, 1)); /* a draft does with it */
	}
	assert_true(complete(a, 1)); /* nothing to ask for */
	assert_asks_nothing(a, 1, 0);
	give(a, 0, 0, 1, 1);
	assert_true(ods_align_is_true(a, 0, 0));
	assert_true(ods_align_ready(a, 0, 1));
	assert_false(ods_align_ready(a, 1, 1));
	ods_align_own(a, 0, 0); /* comes too late to count */
	assert_true(ods_align_is_true(a, 0, 0));
	ods_align_own(a, 0, 1); /* ahead, layer 0 */

	/* The next STEP confirms; layer 2's row was lost, layer 1's came. */
	give(a, 1, 0, 1, 2);
	ods_align_settle(a, LAYERS, CTX);
	step(a, 1, 1, 1, true);
	assert_true(ods_align_ready(a, 1, 1));
	assert_false(ods_align_ready(a, 2, 1));
	assert_false(complete(a, 1));
	assert_asks(a, 1, 3, 2, 0, 1);
	give(a, 2, 0, 1, 4);
	assert_true(complete(a, 1));
	assert_false(ods_align_ready(a, 0, 2)); /* own, and due now */
	give(a, 0, 1, 1, 5);
	assert_true(ods_align_ready(a, 0, 2));
	ods_align_free(a);
}

/* Alignment every four steps: the step goes by the own rows, what comes behind it waits for all of main's. */
static void test_due_rows_before(void **state)
{
	struct ods_align *a = make();

	(void)state;
	step(a, 4, 1, 0, false);
	for (uint32_t l = 0; l < LAYERS; l++) {
		give(a, l, 0, 4, 0);
		for (uint32_t p = 4; p < 7; p++)
			ods_align_own(a, l, p);
	}
	ods_align_settle(a, LAYERS, CTX);
	step(a, 7, 1, 4, false);
	assert_true(ods_align_ready(a, 0, 7));
	ods_align_own(a, 0, 7);
	assert_false(ods_align_ready(a, 0, 8));
	assert_true(complete(a, 8));
	give(a, 0, 4, 3, 1); /* in pieces */
	assert_false(ods_align_ready(a, 0, 8));
	give(a, 0, 7, 1, 2);
	assert_true(ods_align_ready(a, 0, 8));
	assert_false(ods_align_ready(a, 1, 8));
	/* Lost rows of it are asked for, own or not. */
	give(a, 1, 4, 4, 3);
	ods_align_settle(a, LAYERS, CTX);
	step(a, 8, 1, 0, false);
	assert_asks(a, 8, 4, 2, 4, 4);
	/* After a restart there are no own rows: the step waits for what is due before it. */
	ods_align_truncate(a, 4);
	ods_align_settle(a, LAYERS, CTX);
	step(a, 7, 1, 4, false);
	assert_true(complete(a, 7));
	assert_false(ods_align_ready(a, 1, 7));
	give(a, 1, 4, 3, 5);
	assert_true(ods_align_ready(a, 1, 7));
	ods_align_free(a);
}

/* Without state the own rows do. */
static void test_own_rows(void **state)
{
	struct ods_align *a = make();

	(void)state;
	step(a, 0, 2, 0, false);
	for (uint32_t l = 0; l < LAYERS; l++) {
		ods_align_own(a, l, 0);
		ods_align_own(a, l, 1);
	}
	assert_true(ods_align_ready(a, 2, 2));
	assert_true(complete(a, 2));
	step(a, 1, 1, 0, false); /* repeats the position */
	assert_true(ods_align_ready(a, 2, 1));
	assert_false(ods_align_ready(a, 2, 2));
	ods_align_own(a, 0, 1);
	step(a, 2, 1, 0, false); /* replaces a step that was given up in layer 1 */
	assert_asks(a, 2, 0, 1, 1, 1);
	ods_align_free(a);
}

/* A layer with fixed state: it holds what has run, and none of its rows are due, asked for or main's. */
static void test_fixed_state(void **state)
{
	const struct ods_range row = { 1, 2, 1 };
	struct ods_align *a = make();

	(void)state;
	ods_align_set_fixed(a, 1);
	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t p = 0; p < 3; p++)
			ods_align_own(a, l, p);
	assert_int_equal(ods_align_missing(a, 3), 0); /* nothing has been committed */
	assert_int_equal(ods_align_missing_in(a, 0, 3), 3);
	ods_align_run(a, 3);
	assert_true(complete(a, 3));
	assert_int_equal(ods_align_missing(a, 5), 3);
	ods_align_step(a, 3, 1); /* its last row is due */
	assert_false(ods_align_expects(a, &row, false));
	assert_true(ods_align_ready(a, 1, 3));
	assert_false(ods_align_ready(a, 0, 4));
	ods_align_own(a, 0, 3);
	/* lost: the shadow's own one stays, or the row would have to run again */
	ods_align_settle(a, UINT32_MAX, UINT32_MAX);
	assert_true(complete(a, 3));
	ods_align_truncate(a, 2);
	assert_int_equal(ods_align_missing_in(a, 1, 9), 2);
	ods_align_run(a, 1); /* there is no state nearer */
	assert_int_equal(ods_align_missing(a, 2), 1);
	assert_int_equal(ods_align_missing_in(a, 2, 9), 2);
	ods_align_clear(a);
	assert_int_equal(ods_align_missing_in(a, 1, 9), 0);
	for (struct ods_range r; ods_align_ask(a, 9, 0, &r);)
		assert_int_not_equal(r.layer, 1);
	ods_align_free(a);
}

/* A layer that uses rows of another one: it never waits, and none of its rows are due, asked for or main's. */
static void test_layer_without_rows(void **state)
{
	const struct ods_range row = { 1, 2, 1 };
	struct ods_align *a = make();

	(void)state;
	ods_align_set_empty(a, 1);
	for (uint32_t p = 0; p < 3; p++)
		for (uint32_t l = 0; l < LAYERS; l++)
			if (l != 1)
				ods_align_own(a, l, p);
	assert_true(complete(a, 3));
	ods_align_step(a, 3, 1); /* its last row is due */
	assert_false(ods_align_expects(a, &row, false));
	assert_true(ods_align_ready(a, 1, 4));
	assert_false(ods_align_ready(a, 0, 4));
	ods_align_own(a, 1, 3);
	assert_false(ods_align_is_true(a, 1, 2));
	ods_align_settle(a, UINT32_MAX, UINT32_MAX); /* the other layers' own rows go */
	assert_int_equal(ods_align_missing_in(a, 1, 9), 9);
	assert_int_equal(ods_align_missing(a, 9), 2);
	ods_align_clear(a);
	assert_int_equal(ods_align_missing_in(a, 1, 9), 9);
	assert_int_equal(ods_align_missing(a, 9), 0);
	for (struct ods_range r; ods_align_ask(a, 9, 0, &r);)
		assert_int_not_equal(r.layer, 1);
	ods_align_free(a);
}

/* A STEP that was not foreseen voids what stands at its position, a confirmed one keeps it. */
static void test_step_takes_back(void **state)
{
	struct ods_align *a = make();

	(void)state;
	for (uint32_t l = 0; l < LAYERS; l++)
		give(a, l, 0, 20, 0);
	ods_align_own(a, 0, 20);
	step(a, 20, 1, 0, true);
	assert_true(ods_align_ready(a, 0, 21));
	step(a, 20, 1, 0, false);
	assert_false(ods_align_ready(a, 0, 21));
	assert_true(ods_align_ready(a, 0, 20));
	step(a, 15, 1, 0, false);
	assert_false(ods_align_is_true(a, 1, 15));
	assert_true(ods_align_is_true(a, 1, 14));
	assert_false(complete(a, 16));
	ods_align_free(a);
}

static void test_truncate(void **state)
{
	struct ods_align *a = make();

	(void)state;
	step(a, 14, 1, 0, false);
	assert_asks(a, 14, 0, 0, 0, 7);
	assert_asks(a, 14, 0, 0, 7, 7);
	ods_align_truncate(a, 10); /* the second range cannot be answered any more */
	assert_int_equal(ods_align_asked(a), 7);
	assert_asks(a, 10, 0, 0, 7, 3);
	give(a, 0, 0, 10, 1);
	ods_align_truncate(a, 4);
	assert_true(ods_align_ready(a, 0, 4));
	assert_false(ods_align_ready(a, 0, 5));
	ods_align_truncate(a, CTX);
	ods_align_truncate(a, UINT32_MAX);
	assert_true(ods_align_ready(a, 0, 4));
	ods_align_truncate(a, 0);
	assert_false(ods_align_ready(a, 0, 1));
	ods_align_free(a);
}

/* Rows that do not arrive before a STATE of a later layer are lost: they are asked for at once. */
static void test_lost_on_the_way(void **state)
{
	struct ods_align *a = make();

	(void)state;
	for (uint32_t l = 0; l < LAYERS; l++)
		give(a, l, 0, 5, 0);
	step(a, 5, 1, 1, false);
	for (uint32_t l = 0; l < LAYERS; l++)
		ods_align_own(a, l, 5);
	give(a, 1, 5, 1, 1); /* layer 0's row is lost */
	assert_int_equal(ods_align_missing_in(a, 0, 6), 6);
	ods_align_settle(a, 1, 6);
	assert_int_equal(ods_align_missing_in(a, 0, 6), 5);
	assert_int_equal(ods_align_missing_in(a, 2, 6), 6); /* still due */
	assert_false(ods_align_ready(a, 2, 6));
	assert_asks(a, 6, 2, 0, 5, 1);
	give(a, 2, 5, 1, 3);
	assert_true(ods_align_ready(a, 2, 6));
	/* Rows that are not computed here yet stay due: the true row can be had. */
	give(a, 0, 5, 1, 4);
	step(a, 6, 1, 1, false);
	ods_align_settle(a, LAYERS, 6);
	ods_align_own(a, 0, 6);
	assert_false(ods_align_ready(a, 0, 7));
	ods_align_settle(a, LAYERS, 7);
	assert_int_equal(ods_align_missing_in(a, 0, 7), 6);
	ods_align_free(a);
}

/* ---- Shared pages ---- */

static struct ods_align *make_bare(void)
{
	struct ods_align *a;
	struct od_err err;

	assert_int_equal(ods_align_new(&a, LAYERS, CTX, 64, &err), OD_OK);
	return a;
}

/* Two texts that begin alike: a row that comes for one is there for both, and is asked for once. */
static void test_shared(void **state)
{
	const struct ods_range first = { 0, 0, 64 };
	struct ods_align *a = make_bare(), *b = make_bare();

	(void)state;
	assert_true(ods_align_reserve(a, 66));
	ods_align_share(b, a, 1);
	assert_true(ods_align_reserve(b, 70));
	step(a, 65, 1, 1, false);
	step(b, 69, 1, 1, false);
	assert_asks(a, 65, 1, 0, 0, 64);
	assert_asks(b, 69, 2, 0, 64, 5); /* not what a has asked for */
	assert_asks(b, 69, 2, 1, 0, 64);
	assert_asks(a, 65, 3, 0, 64, 1); /* not what b has asked for */
	assert_true(ods_align_expects(a, &first, true));
	assert_false(ods_align_expects(b, &first, true));
	give(a, 0, 0, 64, 4);
	assert_true(ods_align_is_true(b, 0, 63));
	assert_false(ods_align_is_true(b, 0, 64)); /* belongs to the next page, which is its own */
	assert_true(ods_align_ready(b, 0, 64));
	give(b, 1, 0, 64, 5);
	assert_true(ods_align_ready(a, 1, 64));
	ods_align_own(a, 2, 7);
	assert_int_equal(ods_align_missing_in(b, 2, 8), 0);
	give(a, 2, 0, 7, 6);
	assert_int_equal(ods_align_missing_in(b, 2, 69), 8);
	ods_align_free(a);
	assert_true(ods_align_ready(b, 1, 64));
	ods_align_free(b);
}

/* Rows that are due to one sequence are not for the other to wait for, nor to ask for: its own row will do, and without
 * it the row lacks. */
static void test_shared_due(void **state)
{
	struct ods_align *a = make_bare(), *b = make_bare();

	(void)state;
	assert_true(ods_align_reserve(a, 64));
	ods_align_share(b, a, 1);
	for (uint32_t l = 0; l < LAYERS; l++)
		give(a, l, 0, 62, 0);
	ods_align_own(a, 0, 62);
	ods_align_step(a, 63, 1);
	assert_false(ods_align_ready(a, 0, 63));
	assert_true(ods_align_ready(b, 0, 63));
	assert_int_equal(ods_align_missing_in(a, 1, 63), 63);
	assert_int_equal(ods_align_missing_in(b, 1, 63), 62);
	assert_asks_nothing(b, 63, 1);
	ods_align_settle(a, LAYERS, 63);
	assert_asks(b, 63, 1, 1, 62, 1);
	ods_align_free(a);
	ods_align_free(b);
}

/* A question of a sequence that ends, or of one that gets no answer, is open again to the other. */
static void test_shared_questions(void **state)
{
	struct ods_align *a = make_bare(), *b = make_bare();

	(void)state;
	assert_true(ods_align_reserve(a, 64));
	ods_align_share(b, a, 1);
	assert_asks(a, 64, 1, 0, 0, 64);
	assert_asks(a, 64, 2, 1, 0, 64);
	assert_asks(b, 64, 3, 2, 0, 64);
	assert_asks_nothing(b, 64, 3);
	ods_align_expire(a, 2 + ODS_ASK_AGAIN_NS);
	assert_asks(b, 64, 4, 0, 0, 64);
	ods_align_free(b);
	assert_asks(a, 64, 5, 0, 0, 64);
	assert_asks(a, 64, 5, 1, 0, 64);
	give(a, 0, 0, 64, 6);
	assert_asks(a, 64, 6, 2, 0, 64);
	ods_align_free(a);
}

/* A sequence that goes on differently leaves the page to the others. */
static void test_parted(void **state)
{
	struct ods_align *a = make_bare(), *b = make_bare();

	(void)state;
	assert_true(ods_align_reserve(a, 70));
	ods_align_share(b, a, 1);
	for (uint32_t l = 0; l < LAYERS; l++)
		give(a, l, 0, 66, 0);
	assert_true(ods_align_shared(a, 63));
	assert_false(ods_align_shared(a, 64));
	assert_true(ods_align_shared(b, 0));
	ods_align_unshare(b, 0);
	assert_false(ods_align_shared(a, 0));
	assert_true(ods_align_reserve(b, 70));
	ods_align_truncate(b, 10);
	assert_int_equal(ods_align_missing(b, 10), 0);
	assert_int_equal(ods_align_missing(a, 66), 66);
	ods_align_free(a);
	ods_align_free(b);
}

/* Nothing is asked for that there is no memory for. */
static void test_reserved(void **state)
{
	struct ods_align *a = make_bare();

	(void)state;
	assert_asks_nothing(a, 70, 1);
	assert_int_equal(ods_align_missing(a, 70), 0);
	assert_false(ods_align_is_true(a, 0, 69));
	assert_true(ods_align_reserve(a, 1));
	assert_asks(a, 70, 1, 0, 0, 64);
	give(a, 0, 0, 64, 2);
	assert_asks(a, 70, 3, 1, 0, 64);
	assert_false(ods_align_ready(a, 0, 65));
	ods_align_free(a);
}

/* ---- Against a slow model ---- */

struct cell {
	bool own, true_row, due;
};

struct slow {
	struct cell c[LAYERS][CTX];
	uint32_t due_begin, due_end;
	struct ods_range asked[ODS_MAX_ASKED];
	size_t n_asked;
	uint64_t heard;
};

static uint64_t seed;

static uint32_t draw(uint32_t n) /* 0 .. n-1 */
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(seed >> 33) % n;
}

static bool missing(const struct cell *c)
{
	return !c->own && !c->true_row && !c->due;
}

static bool settled(const struct cell *c)
{
	return c->true_row || (c->own && !c->due);
}

static bool slow_is_asked(const struct slow *s, uint32_t l, uint32_t p)
{
	for (size_t i = 0; i < s->n_asked; i++)
		if (s->asked[i].layer == l && p >= s->asked[i].begin && p < s->asked[i].begin + s->asked[i].n)
			return true;
	return false;
}

static void slow_remove(struct slow *s, size_t i)
{
	memmove(&s->asked[i], &s->asked[i + 1], (s->n_asked - i - 1) * sizeof(s->asked[0]));
	s->n_asked--;
}

static void slow_truncate(struct slow *s, uint32_t length)
{
	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t p = length; p < CTX; p++)
			s->c[l][p] = (struct cell){ 0 };
	if (s->due_end > length)
		s->due_end = length;
	for (size_t i = s->n_asked; i-- > 0;)
		if (length < CTX && s->asked[i].begin + s->asked[i].n > length)
			slow_remove(s, i);
}

static void slow_settle(struct slow *s, uint32_t n_layers, uint32_t limit)
{
	for (uint32_t l = 0; l < n_layers; l++)
		for (uint32_t p = 0; p < limit; p++)
			if (s->c[l][p].due)
				s->c[l][p] = (struct cell){ 0 };
	if (n_layers == LAYERS && limit > s->due_begin)
		s->due_begin = limit;
	if (s->due_begin >= s->due_end)
		s->due_end = 0;
}

static void slow_step(struct slow *s, uint32_t begin, uint32_t n, uint32_t n_due, bool keep)
{
	slow_truncate(s, keep ? begin + n : begin);
	s->due_begin = begin + n - n_due;
	s->due_end = begin + n;
	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t p = s->due_begin; p < s->due_end; p++)
			s->c[l][p].due = !s->c[l][p].true_row;
}

static void slow_true(struct slow *s, const struct ods_range *r, uint64_t now)
{
	for (uint32_t p = r->begin; p < r->begin + r->n; p++)
		s->c[r->layer][p] = (struct cell){ .true_row = true };
	for (size_t i = s->n_asked; i-- > 0;) {
		const struct ods_range *q = &s->asked[i];
		bool hit = false, lacks = false;

		for (uint32_t p = q->begin; p < q->begin + q->n && q->layer == r->layer; p++) {
			hit |= p >= r->begin && p < r->begin + r->n;
			lacks |= missing(&s->c[q->layer][p]);
		}
		if (hit)
			s->heard = now;
		if (hit && !lacks)
			slow_remove(s, i);
	}
}

static uint64_t slow_asked(const struct slow *s)
{
	uint64_t n = 0;

	for (size_t i = 0; i < s->n_asked; i++)
		n += s->asked[i].n;
	return n;
}

/* The expected answer of ods_align_ask. */
static bool slow_ask(struct slow *s, uint32_t position, uint64_t now, struct ods_range *r)
{
	if (s->n_asked == ODS_MAX_ASKED || slow_asked(s) >= ODS_FULL_RANGES * MAX_ASK)
		return false;
	for (uint32_t l = 0; l < LAYERS; l++) {
		for (uint32_t p = 0; p < position; p++) {
			if (!missing(&s->c[l][p]) || slow_is_asked(s, l, p))
				continue;
			*r = (struct ods_range){ l, p, 0 };
			while (r->n < MAX_ASK && p + r->n < position && missing(&s->c[l][p + r->n]) &&
			       !slow_is_asked(s, l, p + r->n))
				r->n++;
			s->asked[s->n_asked++] = *r;
			s->heard = now;
			return true;
		}
	}
	return false;
}

static bool slow_expects(const struct slow *s, const struct ods_range *r, bool asked)
{
	bool due = false;

	for (uint32_t p = r->begin; p < r->begin + r->n && p < CTX; p++)
		due |= s->c[r->layer][p].due;
	if (!asked)
		return due && r->begin >= s->due_begin && r->begin + r->n <= s->due_end;
	for (size_t i = 0; i < s->n_asked; i++)
		if (s->asked[i].layer == r->layer && r->begin >= s->asked[i].begin &&
		    r->begin + r->n <= s->asked[i].begin + s->asked[i].n)
			return true;
	return false;
}

static uint32_t first_missing(const struct slow *s, uint32_t begin, uint32_t end, uint32_t limit)
{
	for (uint32_t p = 0; p < limit; p++)
		for (uint32_t l = begin; l < end; l++)
			if (missing(&s->c[l][p]))
				return p;
	return limit;
}

static void compare(const struct slow *s, struct ods_align *a)
{
	bool all = true, asked = draw(2);
	struct ods_range r = { draw(LAYERS), draw(CTX), 1 + draw(4) };

	assert_int_equal(ods_align_expects(a, &r, asked), slow_expects(s, &r, asked));
	for (uint32_t i = 0; i < 4; i++) { /* a few at random: asking moves the bounds inside */
		uint32_t l = draw(LAYERS), p = draw(CTX);
		bool ready = true, held = true;

		for (uint32_t q = 0; q < p; q++) {
			ready &= settled(&s->c[l][q]) || (p < s->due_end && s->c[l][q].own);
			held &= s->c[l][q].true_row || s->c[l][q].own;
		}
		assert_int_equal(ods_align_held(a, l, p), held);
		assert_int_equal(ods_align_ready(a, l, p), ready);
		assert_int_equal(ods_align_is_true(a, l, p), s->c[l][p].true_row);
	}
	if (draw(3) == 0) {
		uint32_t p = draw(CTX + 1);

		for (uint32_t l = 0; l < LAYERS; l++)
			for (uint32_t q = 0; q < p; q++)
				all &= !missing(&s->c[l][q]);
		assert_int_equal(complete(a, p), all);
		assert_int_equal(ods_align_missing(a, p), first_missing(s, 0, LAYERS, p));
		assert_int_equal(ods_align_missing_in(a, r.layer, p), first_missing(s, r.layer, r.layer + 1, p));
	}
	assert_int_equal(ods_align_asked(a), slow_asked(s));
	assert_true(ods_align_deadline(a) == (s->n_asked > 0 ? s->heard + ODS_ASK_AGAIN_NS : UINT64_MAX));
}

static void one_message(struct slow *s, struct ods_align *a, uint64_t now, unsigned *asks)
{
	struct ods_range r = { draw(LAYERS), draw(CTX), 1 }, found, expected;
	uint32_t n_due;
	bool keep = draw(2), asked;

	switch (draw(12)) {
	case 0:
		ods_align_settle(a, LAYERS, CTX);
		slow_settle(s, LAYERS, CTX);
		r.n = 1 + draw(2);
		r.begin = draw(CTX - 1);
		n_due = draw(2) == 0 ? 0 : r.n + draw(r.begin + 1);
		step(a, r.begin, r.n, n_due, keep);
		slow_step(s, r.begin, r.n, n_due, keep);
		break;
	case 1:
		if (draw(4) == 0) {
			ods_align_truncate(a, r.begin);
			slow_truncate(s, r.begin);
		}
		break;
	case 2:
	case 3:
		r.n = 1 + draw(CTX - r.begin);
		ods_align_true(a, &r, now);
		slow_true(s, &r, now);
		break;
	case 4:
	case 5: /* an answer, whole or in part */
		if (s->n_asked > 0) {
			r = s->asked[draw((uint32_t)s->n_asked)];
			if (draw(3) == 0)
				r.n = 1 + draw(r.n);
			ods_align_true(a, &r, now);
			slow_true(s, &r, now);
		}
		break;
	case 6:
	case 7:
		ods_align_own(a, r.layer, r.begin);
		s->c[r.layer][r.begin].own |= !s->c[r.layer][r.begin].true_row;
		break;
	case 8:
		ods_align_expire(a, now);
		if (s->n_asked > 0 && now >= s->heard + ODS_ASK_AGAIN_NS)
			s->n_asked = 0;
		break;
	case 9: /* main is past some layers */
		n_due = draw(LAYERS + 1);
		ods_align_settle(a, n_due, r.begin);
		slow_settle(s, n_due, r.begin);
		break;
	default:
		asked = slow_ask(s, r.begin, now, &expected);
		assert_int_equal(ods_align_ask(a, r.begin, now, &found), asked);
		*asks += asked;
		if (asked)
			assert_memory_equal(&found, &expected, sizeof(found));
	}
}

static void test_random_messages(void **state)
{
	unsigned asks = 0;

	(void)state;
	for (uint64_t round = 1; round <= 300; round++) {
		struct ods_align *a = make();
		struct slow s = { 0 };
		uint64_t now = 1;

		seed = round;
		for (int i = 0; i < 300; i++) {
			now += draw((uint32_t)(ODS_ASK_AGAIN_NS / 8));
			one_message(&s, a, now, &asks);
			compare(&s, a);
		}
		ods_align_free(a);
	}
	assert_true(asks > 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_prompt),		cmocka_unit_test(test_lost_answer),
		cmocka_unit_test(test_doubled_row),	cmocka_unit_test(test_due_row),
		cmocka_unit_test(test_due_rows_before), cmocka_unit_test(test_own_rows),
		cmocka_unit_test(test_fixed_state),	cmocka_unit_test(test_layer_without_rows),
		cmocka_unit_test(test_step_takes_back), cmocka_unit_test(test_truncate),
		cmocka_unit_test(test_lost_on_the_way), cmocka_unit_test(test_shared),
		cmocka_unit_test(test_shared_due),	cmocka_unit_test(test_shared_questions),
		cmocka_unit_test(test_parted),		cmocka_unit_test(test_reserved),
		cmocka_unit_test(test_random_messages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The gate passes predicted experts that are worth a load: by hand, and beside a plain model of the rule. */
#include "main-node/predict/want_gate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/random.h"

#define LAYERS 3
#define EXPERTS 8
#define TOP_K 2
#define HEDGE TOP_K /* the class of hedges */

static struct odm_want_gate gate;
static uint64_t step;

struct gate_want {
	struct odm_want w;
	uint16_t expert[EXPERTS];
	uint8_t rank[EXPERTS];
	bool kept[EXPERTS];
};

static void add(struct gate_want *x, uint16_t expert, uint8_t rank, bool kept)
{
	x->expert[x->w.n] = expert;
	x->rank[x->w.n] = rank;
	x->kept[x->w.n++] = kept;
	x->w.n_predicted += rank < TOP_K;
}

static void filter(struct gate_want *x, uint64_t at_step, uint32_t m)
{
	x->w.expert = x->expert;
	x->w.rank = x->rank;
	x->w.step = at_step;
	x->w.m = m;
	odm_want_gate_filter(&gate, &x->w, x->kept);
}

static void chosen(uint64_t at_step, uint32_t m, uint16_t expert)
{
	odm_want_gate_routed(&gate, at_step, m, &expert, 1);
}

/* One prediction of expert 0, and the router chooses that or expert 7. True: the WANT passed. */
static bool one_case(uint8_t rank, bool kept, bool right)
{
	struct gate_want x = { 0 };

	add(&x, 0, rank, kept);
	filter(&x, ++step, 1);
	chosen(step, 1, right ? 0 : 7);
	return x.w.n == 1;
}

static size_t cases(size_t n, uint8_t rank, bool kept, bool right)
{
	size_t n_passed = 0;

	for (size_t i = 0; i < n; i++)
		n_passed += one_case(rank, kept, right);
	return n_passed;
}

/* A prediction that no router follows, so it is not counted. */
static bool passes(uint8_t rank)
{
	struct gate_want x = { 0 };

	add(&x, 0, rank, false);
	filter(&x, ++step, 0);
	return x.w.n == 1;
}

static void few_cases_do_not_pass(void **state)
{
	(void)state;
	assert_int_equal(cases(16, 0, false, true), 0);
	assert_int_equal(cases(10, 0, false, true), 10);
}

static void each_rank_learns_alone(void **state)
{
	(void)state;
	cases(20, 0, false, true);
	cases(20, 1, false, false);
	assert_true(passes(0));
	assert_false(passes(1));
	assert_false(passes(HEDGE));
	cases(70, 1, false, true); /* 70 of 90 */
	assert_true(passes(1));
	cases(7, 1, false, false); /* 70 of 97 */
	assert_false(passes(1));
	assert_true(passes(0));
	assert_false(passes(HEDGE));
}

/* They pass from the start, and nothing is learnt of them. */
static void kept_experts_pass(void **state)
{
	(void)state;
	assert_int_equal(cases(40, 0, true, false), 40);
	assert_int_equal(cases(40, 0, true, true), 40);
	assert_false(passes(0));
	cases(20, 0, false, true);
	cases(500, 0, true, false);
	assert_true(passes(0));
}

/* The mean of 128 wrong cases is 0, and each right one brings it nearer to 1 by a 128th: 0.75 is reached after
 * ln(1 / 4) / ln(127 / 128) = 176.7 of them. Wrong ones then take it back. */
static void it_follows_what_changes(void **state)
{
	(void)state;
	cases(1000, 0, false, false);
	assert_int_equal(cases(177, 0, false, true), 0);
	assert_int_equal(cases(100, 0, false, true), 100);
	/* 1 - (127 / 128)^277 = 0.886; after n wrong ones 0.886 (127 / 128)^n: below 0.75 when n = 22 */
	assert_int_equal(cases(22, 0, false, false), 22);
	assert_false(passes(0));
}

/* An expert that is not worth a load is taken out, also when the hedges are better than the prediction. */
static void hedges_are_a_class_of_their_own(void **state)
{
	struct gate_want x = { 0 };

	(void)state;
	cases(20, HEDGE, false, true);
	cases(20, 0, false, true);
	cases(20, 1, false, false);
	add(&x, 5, 0, false);
	add(&x, 4, 1, false);
	add(&x, 3, 1, true);
	add(&x, 2, HEDGE, false);
	add(&x, 1, HEDGE, true);
	filter(&x, ++step, 0);
	assert_int_equal(x.w.n, 4);
	assert_int_equal(x.w.n_predicted, 2);
	assert_memory_equal(x.expert, ((const uint16_t[]){ 5, 3, 2, 1 }), 4 * sizeof(uint16_t));
	assert_memory_equal(x.rank, ((const uint8_t[]){ 0, 1, HEDGE, HEDGE }), 4);
}

/* Two rows have a first expert each; a use by any row counts, and once. */
static void several_rows(void **state)
{
	(void)state;
	for (int i = 0; i < 10; i++) {
		struct gate_want x = { 0 };

		add(&x, 2, 0, false);
		add(&x, 5, 0, false);
		add(&x, 3, 1, false);
		add(&x, 6, 1, false);
		filter(&x, ++step, 2);
		assert_int_equal(x.w.n, i < 8 ? 0 : 2); /* after 16 cases; rank 1 is right in half of them */
		odm_want_gate_routed(&gate, step, 2, (const uint16_t[]){ 5, 3, 2, 5 }, 4);
		odm_want_gate_routed(&gate, step, 2, (const uint16_t[]){ 7, 7, 7, 7 }, 4); /* it has been counted */
	}
	assert_int_equal(gate.rank[0].n_cases, 20);
	assert_int_equal(gate.rank[1].n_cases, 20);
	assert_false(passes(1));
}

static void prompts_pass(void **state)
{
	struct gate_want x = { .w.prompt = true };

	(void)state;
	add(&x, 4, 9, false); /* ranks are not set */
	add(&x, 2, 0, false);
	filter(&x, ++step, 0);
	assert_int_equal(x.w.n, 2);
	assert_int_equal(x.w.n_predicted, 1);
	chosen(step, 0, 2);
	assert_int_equal(gate.rank[0].n_cases, 0);
}

/* The last WANTs of a layer and step count; those of the next step wait for its router. */
static void steps_and_versions(void **state)
{
	struct gate_want x = { 0 }, next = { 0 }, later = { 0 }, none = { 0 };

	(void)state;
	add(&x, 1, 0, false);
	add(&x, 2, 1, false);
	filter(&x, 10, 1);
	add(&next, 3, 1, false);
	filter(&next, 12, 1);
	filter(&none, 10, 1); /* the prediction is void */
	chosen(10, 1, 1);
	assert_int_equal(gate.rank[0].n_cases, 0);
	assert_int_equal(gate.rank[1].n_cases, 0);
	x.w.n = x.w.n_predicted = 0;
	add(&x, 3, 0, false); /* a newer version */
	filter(&x, 12, 1);
	chosen(12, 0, 3); /* another layer */
	assert_int_equal(gate.rank[0].n_cases, 0);
	chosen(12, 1, 3);
	assert_int_equal(gate.rank[0].n_cases, 1);
	assert_int_equal(gate.rank[1].n_cases, 0);
	/* Each layer has its own. */
	for (uint32_t m = 0; m < LAYERS; m++) {
		struct gate_want of = { 0 };

		add(&of, (uint16_t)m, HEDGE, false);
		filter(&of, 13, m);
	}
	for (uint32_t m = 0; m < LAYERS; m++)
		chosen(13, m, (uint16_t)m);
	assert_int_equal(gate.rank[HEDGE].n_cases, LAYERS);
	assert_true(gate.rank[HEDGE].precision > 0.99);
	/* A step that was given up makes room for a later one. */
	for (uint64_t s = 20; s < 24; s++) {
		later.w.n = later.w.n_predicted = 0;
		add(&later, 6, 1, false);
		filter(&later, s, 1);
	}
	for (uint64_t s = 20; s < 24; s++)
		chosen(s, 1, 6);
	assert_int_equal(gate.rank[1].n_cases, 2);
}

/* ---- Beside a plain model ---- */

static double precision[TOP_K + 1];
static unsigned n_cases[TOP_K + 1];

static void model_counts(uint8_t rank, bool right)
{
	n_cases[rank] += n_cases[rank] < 128;
	precision[rank] += ((right ? 1 : 0) - precision[rank]) / n_cases[rank];
}

/* The right ones in the order of the choice, then the wrong ones. */
static void model_learns(const struct gate_want *x, const uint16_t choice[2])
{
	for (size_t c = 0; c < 2; c++)
		for (size_t k = 0; k < x->w.n; k++)
			if (!x->kept[k] && x->expert[k] == choice[c] && (c == 0 || choice[0] != choice[1]))
				model_counts(x->rank[k], true);
	for (size_t k = 0; k < x->w.n; k++)
		if (!x->kept[k] && x->expert[k] != choice[0] && x->expert[k] != choice[1])
			model_counts(x->rank[k], false);
}

static void make_want(struct gate_want *x, uint64_t *seed)
{
	memset(x, 0, sizeof(*x));
	for (uint16_t e = 0; e < EXPERTS; e++)
		if (random_below(seed, 2) == 0)
			add(x, e, (uint8_t)random_below(seed, TOP_K + 1), random_below(seed, 3) == 0);
}

/* For a while the router follows the predictions of rank 0, then those of rank 1, then the hedges. */
static void choose(uint16_t choice[2], const struct gate_want *x, uint8_t rank, uint64_t *seed)
{
	size_t n = 0;

	choice[0] = (uint16_t)random_below(seed, EXPERTS);
	choice[1] = (uint16_t)random_below(seed, EXPERTS);
	for (size_t k = 0; k < x->w.n && n < 2; k++)
		if (x->rank[k] == rank)
			choice[n++] = x->expert[k];
}

static void as_the_rule_says(void **state)
{
	unsigned n_passed = 0, n_held = 0;
	uint64_t seed = 7;

	(void)state;
	for (unsigned i = 0; i < 6000; i++) {
		const uint32_t m = (uint32_t)random_below(&seed, LAYERS);
		struct gate_want all, x;
		uint16_t choice[2];
		size_t n = 0;

		make_want(&all, &seed);
		x = all;
		filter(&x, ++step, m);
		for (size_t k = 0; k < all.w.n; k++) {
			const uint8_t rank = all.rank[k];

			if (!all.kept[k] && (n_cases[rank] < 16 || precision[rank] < 0.75)) {
				n_held++;
				continue;
			}
			n_passed++;
			assert_true(n < x.w.n);
			assert_int_equal(x.expert[n], all.expert[k]);
			assert_int_equal(x.rank[n++], rank);
		}
		assert_int_equal(x.w.n, n);
		choose(choice, &all, (uint8_t)(i / 1000 % (TOP_K + 1)), &seed);
		odm_want_gate_routed(&gate, step, m, choice, 2);
		model_learns(&all, choice);
	}
	assert_true(n_passed > 1000 && n_held > 1000);
}

static int setup(void **state)
{
	const struct od_config c = { .n_moe = LAYERS, .n_experts = EXPERTS, .top_k = TOP_K };
	struct od_err err;

	(void)state;
	step = 0;
	return odm_want_gate_init(&gate, &c, &err);
}

static int teardown(void **state)
{
	(void)state;
	odm_want_gate_fini(&gate);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(few_cases_do_not_pass, setup, teardown),
		cmocka_unit_test_setup_teardown(each_rank_learns_alone, setup, teardown),
		cmocka_unit_test_setup_teardown(kept_experts_pass, setup, teardown),
		cmocka_unit_test_setup_teardown(it_follows_what_changes, setup, teardown),
		cmocka_unit_test_setup_teardown(hedges_are_a_class_of_their_own, setup, teardown),
		cmocka_unit_test_setup_teardown(several_rows, setup, teardown),
		cmocka_unit_test_setup_teardown(prompts_pass, setup, teardown),
		cmocka_unit_test_setup_teardown(steps_and_versions, setup, teardown),
		cmocka_unit_test_setup_teardown(as_the_rule_says, setup, teardown),
	};

	return cmocka_run_group_tests_name("want_gate", tests, NULL, NULL);
}

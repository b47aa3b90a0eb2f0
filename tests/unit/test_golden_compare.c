/* One prompt of three tokens and three generated ones, top-3 of eight experts, two layers with experts (the second
 * and the fourth of five); each case changes what we found (or the reference's margins) and says by hand what must be
 * told. */
#include "tests/conform/golden_compare.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N_MOE 2
#define TOP_K 3
#define VOCAB 4
#define PROMPT 3
#define TOKENS 3
#define POSITIONS 5

struct golden_compare_fixture {
	int32_t prompt[PROMPT], greedy[TOKENS], found[TOKENS];
	double token_margin[TOKENS], route_margin[POSITIONS * N_MOE];
	uint16_t route[POSITIONS * N_MOE * TOP_K];
	float route_weight[POSITIONS * N_MOE * TOP_K];
	uint32_t layer[N_MOE];
	struct golden_tolerance tolerance;
	char path[2];
	struct golden g;
	struct golden_entry e;
	struct golden_run run;
	struct golden_verdict v;
};

static const float weights[TOP_K] = { 0.5f, 0.3f, 0.2f };

static void route_of(const struct golden_compare_fixture *f, size_t position, uint32_t m, uint16_t *out)
{
	memcpy(out, f->route + (position * N_MOE + m) * TOP_K, TOP_K * sizeof(*out));
}

/* The largest of the three prompt rows are 1, 1.625 and 2.875 in magnitude, of the tokens' 2.875, 4.125 and 5.375. */
static void put_row(struct golden_compare_fixture *f, struct golden_worst *worst, size_t position, uint32_t id,
		    float change)
{
	float expected[VOCAB], found[VOCAB];

	for (uint32_t i = 0; i < VOCAB; i++)
		found[i] = expected[i] = (float)(position * 10 + i) / 8 - 1;
	if (position == 2)
		found[0] = expected[0] = -2.875f; /* a magnitude counts, not a value */
	found[id] += change;
	golden_run_logits(&f->run, worst, expected, found);
}

static void put_logits(struct golden_compare_fixture *f, size_t position, uint32_t id, float change)
{
	put_row(f, &f->run.worst[position], position, id, change);
}

static void put_decode_logits(struct golden_compare_fixture *f, size_t token, uint32_t id, float change)
{
	put_row(f, &f->run.decode_worst[token], PROMPT - 1 + token, id, change);
}

static void begin(struct golden_compare_fixture *f)
{
	*f = (struct golden_compare_fixture){ .prompt = { 1, 2, 3 },
					      .greedy = { 3, 1, 2 },
					      .layer = { 1, 3 },
					      .path = "x",
					      .tolerance = { .absolute = 1e-4, .relative = -1 } };
	for (size_t i = 0; i < TOKENS; i++)
		f->token_margin[i] = 0.5 + (double)i;
	for (size_t i = 0; i < POSITIONS * N_MOE; i++) {
		f->route_margin[i] = 0.01 * (double)(i + 1);
		for (size_t r = 0; r < TOP_K; r++)
			f->route[i * TOP_K + r] = (uint16_t)((i * 3 + r * 2) % 8);
		memcpy(f->route_weight + i * TOP_K, weights, sizeof(weights));
	}
	f->g = (struct golden){
		.n_moe = N_MOE, .layer = f->layer, .top_k = TOP_K, .vocab = VOCAB, .entry = &f->e, .n_entries = 1
	};
	f->e = (struct golden_entry){ .prompt = f->prompt,
				      .n_prompt = PROMPT,
				      .greedy = f->greedy,
				      .n_greedy = TOKENS,
				      .token_margin = f->token_margin,
				      .n_positions = POSITIONS,
				      .route = f->route,
				      .route_margin = f->route_margin,
				      .route_weight = f->route_weight,
				      .logits_path = f->path,
				      .decode_logits_path = f->path };
	assert_int_equal(golden_run_init(&f->run, &f->g, &f->e, NULL), 0);
	for (size_t p = 0; p < POSITIONS; p++) {
		for (uint32_t m = 0; m < N_MOE; m++)
			golden_run_route(&f->run, p, m, f->route + (p * N_MOE + m) * TOP_K, weights);
		if (p < PROMPT)
			put_logits(f, p, (uint32_t)p, 1e-6f * (float)(p + 1));
	}
	for (size_t i = 0; i < TOKENS; i++)
		put_decode_logits(f, i, 0, 1e-6f);
	memcpy(f->found, f->greedy, sizeof(f->found));
	f->run.tokens = f->found;
	f->run.n_tokens = TOKENS;
	f->run.finish = "length";
}

static void end(struct golden_compare_fixture *f, enum golden_result result, const char *difference)
{
	golden_verdict_init(&f->v);
	golden_compare(&f->run, &f->tolerance, &f->v);
	if (f->v.result != result || strstr(f->v.difference, difference) == NULL ||
	    (*difference == '\0' && f->v.difference[0] != '\0'))
		fail_msg("expected %s \"%s\", found %s \"%s\"", golden_result_names[result], difference,
			 golden_result_names[f->v.result], f->v.difference);
	golden_run_fini(&f->run);
}

static void equal_conforms(void **state)
{
	struct golden_compare_fixture f;

	(void)state;
	begin(&f);
	end(&f, GOLDEN_CONFORMS, "");
	assert_int_equal(f.v.n_tokens, 3);
	assert_int_equal(f.v.n_rank_ties, 0);
	assert_true(f.v.max_logit_error > 2.5e-6 && f.v.max_logit_error < 3.5e-6);
}

static void another_expert(void **state)
{
	uint16_t experts[TOP_K] = { 6, 0, 1 }; /* position 1, layer 1 is 6, 0, 2 */
	struct golden_compare_fixture f;

	(void)state;
	begin(&f);
	golden_run_route(&f.run, 1, 0, experts, weights);
	end(&f, GOLDEN_FAILS,
	    "prefill position 1, layer 1: expected experts 6,0,2, found 6,0,1; the reference's "
	    "margin is 0.03");
	assert_int_equal(f.v.n_tokens, 0);
	begin(&f);
	golden_run_route(&f.run, 1, 0, experts, weights);
	f.route_margin[2] = 1e-05; /* exactly the limit is no tie */
	end(&f, GOLDEN_FAILS, "prefill position 1, layer 1");
	begin(&f);
	golden_run_route(&f.run, 1, 0, experts, weights);
	f.route_margin[2] = 0.9e-05;
	f.found[0] = 0; /* after a tie nothing counts */
	put_logits(&f, 1, 0, 5);
	end(&f, GOLDEN_TIE, "prefill position 1, layer 1");
	assert_true(f.v.max_logit_error < 2e-6); /* position 0's alone */
}

static void another_expert_in_decode(void **state)
{
	uint16_t experts[TOP_K];
	struct golden_compare_fixture f;

	(void)state;
	begin(&f);
	route_of(&f, 4, 1, experts); /* 27 % 8, ... is 3, 5, 7 */
	experts[0] = 0;
	golden_run_route(&f.run, 4, 1, experts, weights);
	end(&f, GOLDEN_FAILS,
	    "decode step 1 (position 4), layer 3: expected experts 3,5,7, found 0,5,7; the "
	    "reference's margin is 0.1");
	assert_int_equal(f.v.n_tokens, 2);
}

static void the_same_in_another_order(void **state)
{
	static const uint16_t turned[TOP_K] = { 0, 2, 6 }; /* position 1, layer 1 is 6, 0, 2 */
	static const float near_weights[TOP_K] = { 0.333336f, 0.333333f, 0.333331f };
	static const float far_weights[TOP_K] = { 0.34f, 0.333333f, 0.33333f };
	struct golden_compare_fixture f;

	(void)state;
	begin(&f);
	f.e.route_weight = NULL;
	golden_run_route(&f.run, 1, 0, turned, near_weights);
	end(&f, GOLDEN_CONFORMS, "");
	assert_int_equal(f.v.n_rank_ties, 1);
	assert_non_null(strstr(f.v.rank_tie, "prefill position 1, layer 1: expected experts 6,0,2, found 0,2,6"));
	assert_int_equal(f.v.n_tokens, 3);
	/* 6 fell behind 0 and 2; 0 is far ahead of it. A small margin to the fourth excuses no order. */
	begin(&f);
	f.e.route_weight = NULL;
	f.route_margin[2] = 0;
	golden_run_route(&f.run, 1, 0, turned, far_weights);
	end(&f, GOLDEN_FAILS,
	    "found 0,2,6: the same in another order, but our weights of those that changed places "
	    "differ by 0.00667");
	/* The first two change places and are close; the third is far away but stays. */
	begin(&f);
	f.e.route_weight = NULL;
	golden_run_route(&f.run, 1, 0, (const uint16_t[]){ 0, 6, 2 }, (const float[]){ 0.4f, 0.399995f, 0.2f });
	end(&f, GOLDEN_CONFORMS, "");
	assert_int_equal(f.v.n_rank_ties, 1);
}

static void another_token(void **state)
{
	struct golden_compare_fixture f;

	(void)state;
	begin(&f);
	f.found[1] = 0;
	end(&f, GOLDEN_FAILS, "token 1: expected id 1, found 0; the reference's margin is 1.5");
	assert_int_equal(f.v.n_tokens, 1);
	begin(&f);
	f.found[1] = 0;
	f.token_margin[1] = 0.00099;
	end(&f, GOLDEN_TIE, "token 1: expected id 1, found 0");
	begin(&f);
	f.found[1] = 0;
	f.token_margin[1] = 0.001;
	end(&f, GOLDEN_FAILS, "token 1: expected id 1, found 0");
}

static void logits_off(void **state)
{
	struct golden_compare_fixture f;

	(void)state;
	begin(&f);
	put_logits(&f, 2, 3, 2e-4f);
	end(&f, GOLDEN_FAILS, "logits of prompt position 2: vocabulary index 3: expected 1.875, found 1.87520");
	begin(&f);
	put_logits(&f, 2, 3, NAN);
	end(&f, GOLDEN_FAILS, "vocabulary index 3: expected 1.875, found nan");
	begin(&f);
	put_logits(&f, 2, 3, 2e-4f);
	f.e.logits_path = NULL;
	golden_run_fini(&f.run);
	/* Without a file there is nothing to compare, and nothing was seen either: the routes must be missed. */
	assert_int_equal(golden_run_init(&f.run, &f.g, &f.e, NULL), 0);
	assert_null(f.run.worst);
	end(&f, GOLDEN_FAILS, "prefill position 0, layer 1: expected experts 0,2,4, found 65535,65535,65535");
	assert_true(isnan(f.v.max_logit_error));
}

/* Row 0 is the prompt's last, seen before its token; the others are those of decode. */
static void decode_logits_off(void **state)
{
	struct golden_compare_fixture f;

	(void)state;
	begin(&f);
	f.found[0] = 0; /* an effect, not the cause */
	put_decode_logits(&f, 0, 3, 2e-4f);
	end(&f, GOLDEN_FAILS, "logits of token 0: vocabulary index 3: expected 1.875, found 1.8752");
	assert_int_equal(f.v.n_tokens, 0);
	begin(&f);
	put_decode_logits(&f, 2, 1, -2e-4f);
	end(&f, GOLDEN_FAILS, "logits of token 2: vocabulary index 1: expected 4.125, found 4.1248");
	assert_int_equal(f.v.n_tokens, 2);
}

static void a_row_that_never_came(void **state)
{
	struct golden_compare_fixture f;

	(void)state;
	begin(&f);
	f.tolerance.absolute = INFINITY;
	f.run.decode_worst[1] = (struct golden_worst){ .error = INFINITY, .expected = NAN, .found = NAN };
	end(&f, GOLDEN_FAILS, "logits of token 1: vocabulary index 0: expected nan, found nan, a difference of inf");
}

static void router_weights(void **state)
{
	/* Position 1, m 0 is 6, 0, 2 with 0.5, 0.3, 0.2. */
	static const uint16_t turned[TOP_K] = { 6, 2, 0 };
	struct golden_compare_fixture f;

	(void)state;
	begin(&f);
	f.route_weight[2 * TOP_K + 1] = 0.3f + 4e-5f; /* 8e-5 of the largest */
	end(&f, GOLDEN_CONFORMS, "");
	assert_true(f.v.max_weight_error > 7e-5 && f.v.max_weight_error < 9e-5);
	begin(&f);
	f.route_weight[2 * TOP_K + 1] = 0.3f + 6e-5f;
	end(&f, GOLDEN_FAILS,
	    "prefill position 1, layer 1: router weight of expert 0: expected 0.30006, found 0.3, a "
	    "difference of 0.00012 of the row's largest; the tolerance is 0.0001");
	begin(&f);
	f.route_weight[2 * TOP_K + 1] = 0.3f + 6e-5f;
	f.tolerance.relative = 1e-3;
	end(&f, GOLDEN_CONFORMS, "");
	begin(&f);
	golden_run_route(&f.run, 4, 1, f.route + 9 * TOP_K, (const float[]){ 0.5f, NAN, 0.2f });
	end(&f, GOLDEN_FAILS,
	    "decode step 1 (position 4), layer 3: router weight of expert 5: expected 0.3, found nan");
	/* In another order they are still held to their own experts. */
	begin(&f);
	f.route_weight[2 * TOP_K + 1] = f.route_weight[2 * TOP_K + 2] = 0.25f;
	golden_run_route(&f.run, 1, 0, turned, (const float[]){ 0.5f, 0.250004f, 0.249996f });
	end(&f, GOLDEN_CONFORMS, "");
	assert_int_equal(f.v.n_rank_ties, 1);
	begin(&f);
	golden_run_route(&f.run, 1, 0, turned, (const float[]){ 0.5f, 0.250004f, 0.249996f });
	end(&f, GOLDEN_FAILS, "router weight of expert 0: expected 0.3, found 0.249996");
	/* Where the reference gives none, any will do. */
	begin(&f);
	f.e.route_weight = NULL;
	golden_run_route(&f.run, 1, 0, f.route + 2 * TOP_K, (const float[]){ 0.6f, 0.3f, 0.1f });
	end(&f, GOLDEN_CONFORMS, "");
	assert_true(isnan(f.v.max_weight_error));
}

/* Prompt row 2 has magnitudes up to 2.875. */
static void tolerances(void **state)
{
	static const struct {
		double file, absolute, relative;
		float change;
		enum golden_result result;
		const char *says;
	} cases[] = {
		{ 0, -1, -1, 1.9e-4f, GOLDEN_CONFORMS, "" }, /* the file says nothing: 2e-4, whatever the size */
		{ 0, -1, -1, 2.1e-4f, GOLDEN_FAILS, "the tolerance is 0.0002" },
		{ 1e-4, -1, -1, 2.8e-4f, GOLDEN_CONFORMS, "" },
		{ 1e-4, -1, -1, 2.95e-4f, GOLDEN_FAILS, "the tolerance is 0.000287" },
		{ 1e-5, -1, -1, 3.5e-5f, GOLDEN_FAILS, "the tolerance is 2.88e-05" },
		{ 1e-5, 1e-3, -1, 9e-4f, GOLDEN_CONFORMS, "" }, /* the user's word, not the file's */
		{ 1e-4, 0, -1, 1e-6f, GOLDEN_FAILS, "the tolerance is 0" },
		{ 0, -1, 1e-3, 2.8e-3f, GOLDEN_CONFORMS, "" },
		{ 0, 1e-3, 1e-3, 2e-3f, GOLDEN_FAILS, "the tolerance is 0.001" }, /* both must hold */
		{ 0, 1, 1e-3, 3e-3f, GOLDEN_FAILS, "the tolerance is 0.00287" },
	};
	struct golden_compare_fixture f;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		begin(&f);
		for (size_t p = 0; p < PROMPT; p++) {
			put_logits(&f, p, 0, 0);
			put_decode_logits(&f, p, 0, 0);
		}
		f.e.logit_tolerance = cases[i].file;
		f.tolerance = (struct golden_tolerance){ cases[i].absolute, cases[i].relative };
		put_logits(&f, 2, 3, cases[i].change);
		end(&f, cases[i].result, cases[i].says);
	}
	/* A logit that is not a number makes no room for others. */
	begin(&f);
	f.e.logit_tolerance = 1e-4;
	f.tolerance.absolute = -1;
	golden_run_logits(&f.run, &f.run.worst[0], (const float[VOCAB]){ INFINITY, 1, 2, -4 },
			  (const float[VOCAB]){ INFINITY, 1, 2.001f, -4 });
	end(&f, GOLDEN_FAILS,
	    "vocabulary index 2: expected 2, found 2.00099993, a difference of 0.001; the tolerance is "
	    "0.0004");
}

/* A later position's difference, seen first while the prompt runs layer by layer, is not the first one. */
static void the_cause_comes_first(void **state)
{
	uint16_t experts[TOP_K];
	struct golden_compare_fixture f;

	(void)state;
	begin(&f);
	route_of(&f, 2, 0, experts);
	experts[2] = 7;
	golden_run_route(&f.run, 2, 0, experts, weights);
	route_of(&f, 1, 1, experts);
	experts[2] = 4;
	golden_run_route(&f.run, 1, 1, experts, weights);
	f.found[0] = 0;
	end(&f, GOLDEN_FAILS, "prefill position 1, layer 3");
	begin(&f);
	route_of(&f, 2, 0, experts);
	experts[2] = 7;
	golden_run_route(&f.run, 2, 0, experts, weights);
	put_logits(&f, 1, 0, 1);
	end(&f, GOLDEN_FAILS, "logits of prompt position 1");
	begin(&f);
	put_logits(&f, 2, 0, 1);
	f.found[0] = 0;
	end(&f, GOLDEN_FAILS, "logits of prompt position 2");
	begin(&f);
	route_of(&f, 3, 0, experts);
	experts[0] = 0;
	golden_run_route(&f.run, 3, 0, experts, weights);
	f.found[0] = 0;
	end(&f, GOLDEN_FAILS, "token 0:");
}

static void the_end_of_the_text(void **state)
{
	struct golden_compare_fixture f;

	(void)state;
	begin(&f);
	f.run.n_tokens = 2; /* so the last position was never passed through the model */
	f.run.finish = "eos";
	memset(f.run.expert + 4 * N_MOE * TOP_K, 0xff, N_MOE * TOP_K * sizeof(*f.run.expert));
	end(&f, GOLDEN_FAILS, "token 2: expected id 2, found the end of the text after 2 tokens (eos)");
	begin(&f);
	f.e.ends_at_eos = true;
	end(&f, GOLDEN_FAILS, "token 2: the reference ended its text with id 2, ours goes on (length)");
	begin(&f);
	f.e.ends_at_eos = f.run.stopped_at_eos = true;
	end(&f, GOLDEN_CONFORMS, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equal_conforms),
		cmocka_unit_test(another_expert),
		cmocka_unit_test(another_expert_in_decode),
		cmocka_unit_test(the_same_in_another_order),
		cmocka_unit_test(another_token),
		cmocka_unit_test(logits_off),
		cmocka_unit_test(decode_logits_off),
		cmocka_unit_test(a_row_that_never_came),
		cmocka_unit_test(router_weights),
		cmocka_unit_test(tolerances),
		cmocka_unit_test(the_cause_comes_first),
		cmocka_unit_test(the_end_of_the_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

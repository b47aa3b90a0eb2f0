/* Experts that are wanted for a row: hedges against a brute-force reading of the rule, learnt noise against the noise
 * that was put in, and the budget over long streams. */
#include "common/predict/want_policy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 3
#define EXPERTS 8
#define TOP_K 2

/* ---- A world of rows whose truth is known ---- */

static uint64_t seed;

static double uniform(void) /* in (0, 1) */
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return ((double)(seed >> 11) + 0.5) / 9007199254740992.0;
}

static double gauss(void)
{
	return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

static void softmax(const double *logit, float *p)
{
	double sum = 0;

	for (int i = 0; i < EXPERTS; i++)
		sum += exp(logit[i]);
	for (int i = 0; i < EXPERTS; i++)
		p[i] = (float)(exp(logit[i]) / sum);
}

static void rank(const double *logit, uint16_t *expert)
{
	for (uint16_t i = 0; i < EXPERTS; i++) {
		int at = i;

		for (; at > 0 && logit[expert[at - 1]] < logit[i]; at--)
			expert[at] = expert[at - 1];
		expert[at] = i;
	}
}

/* truth: main's router. The shadow sees it with noise. */
struct world_row {
	double truth[EXPERTS], shadow[EXPERTS];
	float probability[EXPERTS], said[EXPERTS];
	uint16_t used[EXPERTS], ranked[EXPERTS];
};

static void shadow_sees(struct world_row *r, double noise)
{
	float all[EXPERTS];

	for (int i = 0; i < EXPERTS; i++)
		r->shadow[i] = r->truth[i] + noise * gauss();
	rank(r->shadow, r->ranked);
	softmax(r->shadow, all);
	for (int i = 0; i < EXPERTS; i++)
		r->said[i] = all[r->ranked[i]];
}

static void make_row(struct world_row *r, double noise)
{
	for (int i = 0; i < EXPERTS; i++)
		r->truth[i] = gauss();
	softmax(r->truth, r->probability);
	rank(r->truth, r->used);
	shadow_sees(r, noise);
}

static struct od_candidates candidates_of(const struct world_row *r)
{
	const struct od_prediction p = { .n = EXPERTS, .expert = r->ranked, .probability = r->said };
	struct od_candidates c;

	od_candidates_set(&c, &p);
	return c;
}

static struct od_want_policy *make(double hedge)
{
	struct od_want_policy *p;
	struct od_err err;

	assert_int_equal(od_want_policy_new(&p, hedge, LAYERS, TOP_K, &err), OD_OK);
	return p;
}

static bool has(const uint16_t *list, size_t n, uint16_t expert)
{
	for (size_t i = 0; i < n; i++) {
		if (list[i] == expert)
			return true;
	}
	return false;
}

struct want_policy_sums {
	double uses, hits, in_vain, hedges;
};

/* Rows through the policy as main drives it. */
static struct want_policy_sums stream(struct od_want_policy *p, uint32_t m, size_t rows, double noise)
{
	struct want_policy_sums s = { 0 };

	for (size_t i = 0; i < rows; i++) {
		struct od_wanted w = { 0 };
		struct od_candidates c;
		struct world_row r;
		size_t hits = 0;

		make_row(&r, noise);
		c = candidates_of(&r);
		od_want_decide(p, m, &c, &w);
		assert_int_equal(w.n_predicted, TOP_K);
		for (size_t j = 0; j < TOP_K; j++)
			hits += has(w.expert, w.n, r.used[j]);
		s.hedges += w.n - w.n_predicted;
		s.uses += TOP_K;
		s.hits += (double)hits;
		s.in_vain += (double)(w.n - hits);
		od_want_spent(p, TOP_K, w.n - hits);
		od_want_learn(p, m, &c, r.probability, &w);
		assert_int_equal(w.n, 0);
	}
	return s;
}

/* ---- The tests ---- */

static void without_a_budget_it_is_the_prediction(void **state)
{
	struct od_want_policy *p = make(0);

	(void)state;
	seed = 1;
	for (int i = 0; i < 500; i++) {
		struct od_wanted w = { 0 };
		struct od_candidates c;
		struct world_row r;

		make_row(&r, 0.5);
		c = candidates_of(&r);
		od_want_decide(p, 0, &c, &w);
		assert_int_equal(w.n, TOP_K);
		assert_memory_equal(w.expert, r.ranked, TOP_K * sizeof(*w.expert));
		od_want_spent(p, TOP_K, 1);
		od_want_learn(p, 0, &c, r.probability, &w);
	}
	od_want_policy_free(p);
}

static void noise_is_learnt_for_each_layer(void **state)
{
	struct od_want_policy *p = make(0.1);
	const double noise[] = { 0.02, 0.3 };

	(void)state;
	seed = 2;
	assert_true(od_want_sigma(p, 0) == 0); /* not yet */
	for (uint32_t m = 0; m < 2; m++)
		stream(p, m, 3000, noise[m]);
	for (uint32_t m = 0; m < 2; m++) {
		/* About the mean of 8: 7/8 of the variance is left. */
		double expected = noise[m] * sqrt(7.0 / 8.0), got = od_want_sigma(p, m);

		assert_true(fabs(got / expected - 1) < 0.03);
	}
	assert_true(od_want_sigma(p, 2) == 0);
	od_want_policy_free(p);
}

/* Hedges follow from the threshold alone, the likeliest first. */
static void hedges_are_those_below_the_threshold(void **state)
{
	struct od_want_policy *p = make(0.4);
	size_t some = 0;

	(void)state;
	seed = 4;
	stream(p, 1, 1000, 0.3);
	for (int i = 0; i < 2000; i++) {
		const double limit = od_want_threshold(p) * od_want_sigma(p, 1);
		struct od_wanted w = { 0 };
		struct od_candidates c;
		struct world_row r;
		size_t n = TOP_K;

		make_row(&r, 0.3);
		c = candidates_of(&r);
		od_want_decide(p, 1, &c, &w);
		for (size_t j = TOP_K; j < EXPERTS && n < TOP_K + OD_MAX_HEDGES; j++) {
			const double gap = log((double)r.said[TOP_K - 1]) - log((double)r.said[j]);

			if (fabs(gap - limit) < 1e-5)
				n = w.n; /* either is right */
			else
				n += gap < limit;
		}
		assert_int_equal(w.n, n);
		assert_memory_equal(w.expert, r.ranked, n * sizeof(*w.expert));
		some += n > TOP_K;
		od_want_learn(p, 1, &c, r.probability, &w);
	}
	assert_true(some > 200 && some < 1900);
	od_want_policy_free(p);
}

static void hedging_holds_its_budget(void **state)
{
	static const double budget[] = { 0.02, 0.1, 0.3, 1.0 }, noise[] = { 0.01, 0.1 };

	(void)state;
	seed = 5;
	for (size_t n = 0; n < 2; n++) {
		double served = 0;

		for (size_t b = 0; b < 4; b++) {
			struct od_want_policy *p = make(budget[b]);
			struct want_policy_sums s = stream(p, 0, 20000, noise[n]);

			/* Wrong predictions cost what they cost; never more than the budget and what may be spent
			 * ahead. */
			if (s.in_vain > s.uses * budget[b] + 64 && s.hedges > 0.02 * s.uses)
				fail_msg("budget %g, noise %g: %g of %g in vain", budget[b], noise[n], s.in_vain,
					 s.uses);
			if (budget[b] >= 0.1)
				assert_true(s.in_vain > 0.9 * s.uses * budget[b]); /* and it is used */
			assert_true(s.hits / s.uses >= served);
			served = s.hits / s.uses;
			od_want_policy_free(p);
		}
		assert_true(served > 0.9999);
	}
}

/* Predictions so wrong that they cost more than the budget: then nothing is left for hedges. */
static void a_spent_budget_hedges_nothing(void **state)
{
	struct od_want_policy *p = make(0.05);
	struct want_policy_sums s;

	(void)state;
	seed = 6;
	stream(p, 0, 3000, 1.0);
	s = stream(p, 0, 2000, 1.0);
	assert_true(s.in_vain > 0.2 * s.uses);
	assert_true(s.hedges == 0);
	od_want_policy_free(p);
}

/* One that was given up costs nothing. */
static void hedges_given_up_are_free(void **state)
{
	struct od_want_policy *p = make(1);
	size_t hedges = 0;

	(void)state;
	seed = 7;
	stream(p, 0, 500, 0.2);
	for (int i = 0; i < 2000; i++) {
		struct od_wanted w = { 0 };
		struct od_candidates c;
		struct world_row r;

		make_row(&r, 0.2);
		c = candidates_of(&r);
		od_want_decide(p, 0, &c, &w);
		hedges += w.n - w.n_predicted;
		od_want_give_up(p, &w);
		assert_int_equal(w.n, 0);
	}
	assert_true(hedges > 1000); /* more than could be set aside for at a time */
	od_want_policy_free(p);
}

/* Without probabilities there are no hedges, and nothing is learnt; nor of a row that nobody predicted. */
static void no_probabilities_no_hedges(void **state)
{
	const uint16_t expert[] = { 5, 3, 1 };
	const struct od_prediction unsure = { .n = 3, .expert = expert };
	struct od_want_policy *p = make(1);
	struct od_candidates c = { 0 };
	struct od_wanted w = { 0 };
	struct world_row r;

	(void)state;
	seed = 10;
	stream(p, 0, 500, 0.2);
	od_want_decide(p, 0, &c, &w);
	assert_int_equal(w.n, 0);
	od_candidates_set(&c, &unsure);
	for (int i = 0; i < 100; i++) {
		od_want_decide(p, 0, &c, &w); /* a layer whose noise is known */
		assert_int_equal(w.n, TOP_K);
		assert_int_equal(w.n_predicted, TOP_K);
		assert_memory_equal(w.expert, expert, TOP_K * sizeof(*w.expert));
		make_row(&r, 0.2);
		od_want_learn(p, 1, &c, r.probability, &w);
	}
	assert_true(od_want_sigma(p, 1) == 0);
	od_want_policy_free(p);
}

/* A prediction that changes keeps what may be loaded already, behind what is wanted now. */
static void what_is_under_way_stays(void **state)
{
	struct od_want_policy *p = make(0.2);
	size_t kept = 0;

	(void)state;
	seed = 8;
	stream(p, 0, 1000, 0.4);
	for (int i = 0; i < 500; i++) {
		struct od_wanted w = { 0 }, before, first = { 0 }, fresh;
		struct od_candidates c;
		struct world_row r;

		make_row(&r, 0.4);
		c = candidates_of(&r);
		od_want_decide(p, 0, &c, &w);
		before = w;
		shadow_sees(&r, 0.4);
		c = candidates_of(&r);
		od_want_decide(p, 0, &c, &first); /* as if it were the row's first prediction */
		fresh = first;
		od_want_give_up(p, &first);
		od_want_decide(p, 0, &c, &w);
		assert_memory_equal(w.expert, fresh.expert, fresh.n * sizeof(*w.expert));
		for (size_t j = 0; j < before.n; j++)
			assert_true(has(w.expert, w.n, before.expert[j]) || w.n == TOP_K + OD_MAX_HEDGES);
		kept += w.n - fresh.n;
		od_want_give_up(p, &w);
	}
	assert_true(kept > 50);
	od_want_policy_free(p);
}

static void nonsense_does_no_lasting_harm(void **state)
{
	static const float bad[] = { NAN, INFINITY, -1, 0, 3e38f, -INFINITY, 1, NAN };
	struct od_want_policy *p = make(0.1);
	struct world_row r;

	(void)state;
	seed = 9;
	make_row(&r, 0.1);
	for (int i = 0; i < 50; i++) {
		struct od_candidates c;
		struct od_wanted w = { 0 };

		memcpy(r.said, bad, sizeof(bad));
		c = candidates_of(&r);
		od_want_decide(p, 0, &c, &w);
		assert_true(w.n >= TOP_K);
		od_want_learn(p, 0, &c, bad, &w);
	}
	assert_true(isfinite(od_want_sigma(p, 0)));
	od_want_policy_free(p);
}

/* Sixteen rows that waste sixteen times as much are as one: the threshold goes the same way, in the same steps. */
static void many_rows_are_as_one(void **state)
{
	struct od_want_policy *one, *many;
	struct od_err err;

	(void)state;
	seed = 7;
	assert_int_equal(od_want_policy_new(&one, 0.5, LAYERS, TOP_K, &err), OD_OK);
	assert_int_equal(od_want_policy_new(&many, 0.5, LAYERS, TOP_K, &err), OD_OK);
	for (int i = 0; i < 2000; i++) {
		const size_t wasted = (size_t)(uniform() * (i < 1000 ? 2 : 4));

		od_want_spent(one, TOP_K, wasted);
		od_want_spent(many, 16 * TOP_K, 16 * wasted);
		assert_true(od_want_threshold(one) == od_want_threshold(many));
	}
	od_want_policy_free(one);
	od_want_policy_free(many);
}

/* How many hedges rows at a layer get before the first of them is settled. */
static size_t hedges_at_once(size_t rows)
{
	const uint16_t expert[EXPERTS] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	const float alike[EXPERTS] = { 0.125f, 0.125f, 0.125f, 0.125f, 0.125f, 0.125f, 0.125f, 0.125f };
	const struct od_prediction said = { .n = EXPERTS, .expert = expert, .probability = alike };
	struct od_candidates c = { 0 };
	struct od_wanted none = { 0 };
	struct od_want_policy *p;
	struct od_err err;
	struct world_row r;
	size_t n = 0;

	seed = 8;
	assert_int_equal(od_want_policy_new(&p, 0.5, LAYERS, TOP_K, &err), OD_OK);
	od_candidates_set(&c, &said);
	for (int i = 0; i < 100; i++) {
		make_row(&r, 1);
		od_want_learn(p, 0, &c, r.probability, &none);
	}
	for (int i = 0; i < 100; i++)
		od_want_spent(p, rows * TOP_K, 0);
	for (int i = 0; i < 10000; i++) {
		struct od_wanted w = { 0 };

		od_want_decide(p, 0, &c, &w);
		n += w.n - w.n_predicted;
	}
	od_want_policy_free(p);
	return n;
}

static void many_rows_have_a_budget_each(void **state)
{
	(void)state;
	assert_true(hedges_at_once(1) > 50);
	assert_int_equal(hedges_at_once(16), 16 * hedges_at_once(1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_a_budget_it_is_the_prediction),
		cmocka_unit_test(noise_is_learnt_for_each_layer),
		cmocka_unit_test(hedges_are_those_below_the_threshold),
		cmocka_unit_test(hedging_holds_its_budget),
		cmocka_unit_test(a_spent_budget_hedges_nothing),
		cmocka_unit_test(hedges_given_up_are_free),
		cmocka_unit_test(no_probabilities_no_hedges),
		cmocka_unit_test(what_is_under_way_stays),
		cmocka_unit_test(many_rows_are_as_one),
		cmocka_unit_test(many_rows_have_a_budget_each),
		cmocka_unit_test(nonsense_does_no_lasting_harm),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

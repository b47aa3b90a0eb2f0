/* The sampler against distributions and draws that numpy made by definition (tests/golden/sampler). */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/json.h"
#include "common/model/sampler.h"

#define MAX_VOCAB 400

static double real(const json_t *obj, const char *key)
{
	return json_number_value(json_object_get(obj, key));
}

static void read_case(const json_t *c, struct od_sampler_opts *o, float *logits, double *p, uint32_t *n)
{
	const json_t *opts = json_object_get(c, "options"), *l = json_object_get(c, "logits");

	od_sampler_defaults(o);
	o->temperature = real(opts, "temperature");
	o->top_k = (uint32_t)real(opts, "top_k");
	o->top_p = real(opts, "top_p");
	o->min_p = real(opts, "min_p");
	o->repetition_penalty = real(opts, "repetition_penalty");
	o->repetition_window = (uint32_t)real(opts, "repetition_window");
	o->seed = (uint64_t)json_integer_value(json_object_get(c, "seed"));
	*n = (uint32_t)json_array_size(l);
	assert_in_range(*n, 2, MAX_VOCAB);
	for (uint32_t i = 0; i < *n; i++) {
		logits[i] = (float)json_number_value(json_array_get(l, i));
		p[i] = json_number_value(json_array_get(json_object_get(c, "probabilities"), i));
	}
}

static struct od_sampler *start(const struct od_sampler_opts *o, uint32_t n, const json_t *recent)
{
	struct od_sampler *s;
	struct od_err err;
	json_t *t;
	size_t i;

	assert_int_equal(od_sampler_new(&s, o, n, &err), OD_OK);
	json_array_foreach(recent, i, t) {
		int32_t ids[2] = {(int32_t)json_integer_value(t),
				  i % 2 == 0 ? -5 : (int32_t)n}; /* the second is ignored */

		assert_int_equal(od_sampler_accept(s, ids, 2), OD_OK);
	}
	return s;
}

static int32_t sample(struct od_sampler *s, const float *logits, uint32_t n)
{
	float copy[MAX_VOCAB];

	memcpy(copy, logits, n * sizeof(*copy));
	return od_sampler_sample(s, copy, NULL);
}

/* Counts of 20000 draws: chi-square with up to 26 degrees of freedom stays below 60 (p = 0.0002), and what has
 * probability zero never comes. The seed is fixed, so this cannot fail by chance. */
static void check_counts(struct od_sampler *s, const float *logits, const double *p, uint32_t n)
{
	unsigned count[MAX_VOCAB] = {0}, draws = 20000;
	double chi = 0;

	for (unsigned i = 0; i < draws; i++)
		count[sample(s, logits, n)]++;
	for (uint32_t i = 0; i < n; i++) {
		double want = p[i] * draws;

		if (p[i] == 0)
			assert_int_equal(count[i], 0);
		else
			chi += (count[i] - want) * (count[i] - want) / want;
	}
	assert_true(chi < 60);
}

static void against_numpy(void **state)
{
	struct od_err err;
	json_t *root, *cases, *c, *want;
	size_t i, k;

	(void)state;
	assert_int_equal(od_json_load("tests/golden/sampler/sampler.json", 1 << 20, &root, &err), OD_OK);
	assert_int_equal(od_json_arr(root, "cases", &cases, "golden", &err), OD_OK);
	assert_true(json_array_size(cases) >= 15);
	json_array_foreach(cases, i, c) {
		struct od_sampler_opts o;
		struct od_sampler *s;
		float logits[MAX_VOCAB];
		double p[MAX_VOCAB];
		uint32_t n;

		read_case(c, &o, logits, p, &n);
		s = start(&o, n, json_object_get(c, "recent"));
		json_array_foreach(json_object_get(c, "tokens"), k, want)
			assert_int_equal(sample(s, logits, n), json_integer_value(want));
		check_counts(s, logits, p, n);
		od_sampler_free(s);
	}
	json_decref(root);
}

static void greedy_and_odd_logits(void **state)
{
	struct od_sampler_opts o;
	struct od_sampler *s;
	struct od_err err;
	float tie[] = {1, 7, 7, -2}, nan[] = {NAN, -3, NAN, -2}, none[] = {-INFINITY, NAN, -INFINITY},
	      inf[] = {3, INFINITY, 1, INFINITY};

	(void)state;
	od_sampler_defaults(&o);
	for (int hot = 0; hot < 2; hot++) {
		o.temperature = hot;
		o.top_k = hot; /* 1: the same as greedy */
		assert_int_equal(od_sampler_new(&s, &o, 4, &err), OD_OK);
		assert_int_equal(sample(s, tie, 4), 1);
		assert_int_equal(sample(s, nan, 4), 3);
		assert_int_equal(sample(s, inf, 4), 1);
		od_sampler_free(s);
		assert_int_equal(od_sampler_new(&s, &o, 3, &err), OD_OK);
		assert_int_equal(sample(s, none, 3), 0);
		od_sampler_free(s);
	}
}

/* What greedy chooses, looked for one by one: NaN never, an infinity as the largest number, of equals the first. */
static int32_t best_by_hand(const float *logits, uint32_t n)
{
	int32_t best = 0;
	float high = -INFINITY;

	for (uint32_t i = 0; i < n; i++) {
		const float x = fminf(logits[i], FLT_MAX);

		if (isnan(logits[i]) || x <= high)
			continue;
		high = x;
		best = (int32_t)i;
	}
	return best;
}

static void greedy_everywhere(void **state)
{
	static const float odd[] = { NAN, INFINITY, -INFINITY, FLT_MAX, 9 };
	struct od_sampler_opts o;
	struct od_err err;
	unsigned after[3] = { 0 }; /* best ones in the first block of 64, in another, behind the last */
	float logits[MAX_VOCAB];

	(void)state;
	od_sampler_defaults(&o);
	for (uint32_t n = 1; n <= MAX_VOCAB; n += n < 140 ? 1 : 97) {
		struct od_sampler *s;

		assert_int_equal(od_sampler_new(&s, &o, n, &err), OD_OK);
		for (uint32_t round = 0; round < 40; round++) {
			int32_t best;

			for (uint32_t i = 0; i < n; i++)
				logits[i] = (float)((i * 2654435761u + round * 40503u) >> 9 & 15); /* many are equal */
			assert_true(od_logits_finite(logits, n));
			for (uint32_t i = 0; i < round % 4; i++)
				logits[(i * 977 + round * 131) % n] = odd[(round + i) % 5];
			best = best_by_hand(logits, n);
			assert_int_equal(sample(s, logits, n), best);
			after[best < 64 ? 0 : (uint32_t)best < n / 64 * 64 ? 1 : 2]++;
		}
		for (uint32_t i = 0; i < n; i += 1 + n / 70) {
			for (uint32_t j = 0; j < n; j++)
				logits[j] = (float)j;
			logits[i] = odd[i % 3];
			assert_false(od_logits_finite(logits, n));
		}
		od_sampler_free(s);
	}
	assert_true(after[0] > 100 && after[1] > 100 && after[2] > 100);
}

/* A vocabulary of a real model's size: top-k and top-p leave exactly the best. */
static void large_vocabulary(void **state)
{
	enum { N = 40000 };
	static float logits[N], copy[N];
	struct od_sampler_opts o;
	struct od_sampler *s;
	struct od_err err;

	(void)state;
	for (uint32_t i = 0; i < N; i++)
		logits[i] = (float)((i * 7919u) % N) * 0.001f; /* a permutation: the best is N - 1 thousandths */
	od_sampler_defaults(&o);
	o.temperature = 2;
	o.top_k = 50;
	for (int nucleus = 0; nucleus < 2; nucleus++) {
		assert_int_equal(od_sampler_new(&s, &o, N, &err), OD_OK);
		for (int i = 0; i < 200; i++) {
			int32_t t;

			memcpy(copy, logits, sizeof(copy));
			t = od_sampler_sample(s, copy, NULL);
			assert_in_range(t, 0, N - 1);
			/* exp(-rank / 2000): the first 40 or so hold 2 percent of all. */
			assert_true((uint32_t)t * 7919u % N >= N - 50);
		}
		od_sampler_free(s);
		o.top_k = 0;
		o.top_p = 0.02;
	}
}

static void reproducible(void **state)
{
	struct od_sampler_opts o;
	struct od_sampler *a, *b, *c;
	struct od_err err;
	float logits[32];
	int differ = 0;

	(void)state;
	for (int i = 0; i < 32; i++)
		logits[i] = sinf((float)i);
	od_sampler_defaults(&o);
	o.temperature = 1;
	o.seed = 5;
	assert_int_equal(od_sampler_new(&a, &o, 32, &err), OD_OK);
	assert_int_equal(od_sampler_new(&b, &o, 32, &err), OD_OK);
	o.seed = 6;
	assert_int_equal(od_sampler_new(&c, &o, 32, &err), OD_OK);
	for (int i = 0; i < 100; i++) {
		int32_t t = sample(a, logits, 32);

		assert_int_equal(t, sample(b, logits, 32));
		differ += t != sample(c, logits, 32);
	}
	assert_true(differ > 50);
	od_sampler_free(a);
	od_sampler_free(b);
	od_sampler_free(c);
}

/* Any token of a text again, in any order: as the sampler chose it that went through the text once. */
static void any_place_again(void **state)
{
	enum { N = 32, TOKENS = 60, PROMPT = 5 };
	struct od_sampler *once, *again;
	struct od_sampler_opts o;
	struct od_err err;
	float logits[TOKENS][N];
	int32_t text[TOKENS];

	(void)state;
	for (int setting = 0; setting < 6; setting++) {
		od_sampler_defaults(&o);
		o.temperature = setting % 3 == 2 ? 0 : 1.2;
		o.repetition_penalty = setting % 3 > 0 ? 1.8 : 1;
		o.repetition_window = setting < 3 ? 0 : 7;
		o.seed = 77;
		assert_int_equal(od_sampler_new(&once, &o, N, &err), OD_OK);
		assert_int_equal(od_sampler_new(&again, &o, N, &err), OD_OK);
		for (int i = 0; i < TOKENS; i++) {
			for (int k = 0; k < N; k++)
				logits[i][k] = sinf((float)(i * N + k));
			text[i] = i < PROMPT ? i : sample(once, logits[i], N);
			assert_int_equal(od_sampler_accept(once, &text[i], 1), OD_OK);
		}
		for (int round = 0; round < 400; round++) {
			int i = PROMPT + (round * 37) % (TOKENS - PROMPT);

			assert_int_equal(od_sampler_replay(again, text, (size_t)i, (uint64_t)(i - PROMPT)), OD_OK);
			assert_int_equal(sample(again, logits[i], N), text[i]);
		}
		od_sampler_free(once);
		od_sampler_free(again);
	}
}

static void refuses(void **state)
{
	struct od_sampler_opts good, o;
	struct od_sampler *s;
	struct od_err err;

	(void)state;
	od_sampler_defaults(&good);
	assert_int_equal(od_sampler_check(&good, &err), OD_OK);
#define REFUSED(field, value) \
	do { \
		o = good; \
		o.field = value; \
		assert_int_equal(od_sampler_check(&o, &err), OD_ERR_ARG); \
		assert_non_null(strstr(err.msg, #field)); \
	} while (0)
	REFUSED(temperature, -0.1);
	REFUSED(temperature, (double)NAN);
	REFUSED(temperature, (double)INFINITY);
	REFUSED(top_p, 1.01);
	REFUSED(min_p, -1);
	REFUSED(repetition_penalty, 0);
	REFUSED(repetition_window, UINT32_MAX);
	assert_int_equal(od_sampler_new(&s, &good, 0, &err), OD_ERR_ARG);
	assert_null(s);
	o = good;
	o.top_p = 2;
	assert_int_equal(od_sampler_new(&s, &o, 8, &err), OD_ERR_ARG);
	od_sampler_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(against_numpy), cmocka_unit_test(greedy_and_odd_logits),
		cmocka_unit_test(greedy_everywhere), cmocka_unit_test(large_vocabulary), cmocka_unit_test(reproducible), cmocka_unit_test(any_place_again),
		cmocka_unit_test(refuses),
	};

	return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}

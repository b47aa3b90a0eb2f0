/* The sampler against distributions, draws and margins that numpy made by definition or llama.cpp by its own samplers
 * (tests/golden/sampler); greedy choice, penalties, biases and refusals; and that a seed says it all. */
#include <float.h>

#include "common/base/json.h"
#include "tests/unit/sampler_util.h"

#define MAX_BIAS 8
#define MAX_BREAKERS 32
#define MAX_COUNTED 27u /* tokens */

static double real(const json_t *obj, const char *key)
{
	return json_number_value(json_object_get(obj, key));
}

/* The options that only llama.json has. */
static void read_llama(const json_t *c, struct od_sampler_opts *o, int32_t breakers[MAX_BREAKERS])
{
	const json_t *opts = json_object_get(c, "options"), *b = json_object_get(c, "breakers");

	if (!od_json_has(opts, "typical_p"))
		return;
	o->typical_p = real(opts, "typical_p");
	o->top_n_sigma = real(opts, "top_n_sigma");
	o->xtc_probability = real(opts, "xtc_probability");
	o->xtc_threshold = real(opts, "xtc_threshold");
	o->dynatemp_range = real(opts, "dynatemp_range");
	o->dynatemp_exponent = real(opts, "dynatemp_exponent");
	o->dry.multiplier = real(opts, "dry_multiplier");
	o->dry.base = real(opts, "dry_base");
	o->dry.allowed_length = (uint32_t)real(opts, "dry_allowed_length");
	o->dry.window = (uint32_t)real(opts, "dry_penalty_last_n");
	o->dry.breakers = breakers;
	o->dry.n_breakers = json_array_size(b);
	assert_in_range(o->dry.n_breakers, 0, MAX_BREAKERS);
	for (size_t i = 0; i < o->dry.n_breakers; i++)
		breakers[i] = (int32_t)json_integer_value(json_array_get(b, i));
}

static void read_case(const json_t *c, struct od_sampler_opts *o, struct od_logit_bias bias[MAX_BIAS], float *logits,
		      double *p, uint32_t *n)
{
	const json_t *opts = json_object_get(c, "options"), *l = json_object_get(c, "logits");

	od_sampler_defaults(o);
	o->temperature = real(opts, "temperature");
	o->top_k = (uint32_t)real(opts, "top_k");
	o->top_p = real(opts, "top_p");
	o->min_p = real(opts, "min_p");
	if (od_json_has(opts, "repetition_penalty"))
		o->repetition_penalty = real(opts, "repetition_penalty");
	o->repetition_window = (uint32_t)real(opts, "repetition_window");
	o->frequency_penalty = real(opts, "frequency_penalty"); /* 0 if it is not there */
	o->presence_penalty = real(opts, "presence_penalty");
	o->n_logit_bias = json_array_size(json_object_get(opts, "logit_bias"));
	assert_in_range(o->n_logit_bias, 0, MAX_BIAS);
	for (size_t i = 0; i < o->n_logit_bias; i++) {
		const json_t *b = json_array_get(json_object_get(opts, "logit_bias"), i);

		bias[i].token = (int32_t)json_integer_value(json_array_get(b, 0));
		bias[i].bias = (float)json_number_value(json_array_get(b, 1));
	}
	o->logit_bias = bias;
	o->seed = (uint64_t)json_integer_value(json_object_get(c, "seed"));
	*n = (uint32_t)json_array_size(l);
	assert_in_range(*n, 2, MAX_VOCAB);
	for (uint32_t i = 0; i < *n; i++) {
		logits[i] =
			json_is_null(json_array_get(l, i)) ? -INFINITY : (float)json_number_value(json_array_get(l, i));
		p[i] = json_number_value(json_array_get(json_object_get(c, "probabilities"), i));
	}
}

static struct od_sampler *start(const struct od_sampler_opts *o, uint32_t n, const json_t *recent, size_t prompt)
{
	struct od_sampler *s;
	json_t *t;
	size_t i;

	s = open_sampler(o, n);
	json_array_foreach(recent, i, t)
	{
		int32_t ids[2] = { (int32_t)json_integer_value(t),
				   i % 2 == 0 ? -5 : (int32_t)n }; /* the second is ignored */

		assert_int_equal(i < prompt ? od_sampler_prompt(s, ids, 2) : od_sampler_accept(s, ids, 2), OD_OK);
	}
	return s;
}

/* Counts of 20000 draws: chi-square with up to 26 degrees of freedom stays below 60 (p = 0.0002), and what has
 * probability zero never comes. The seed is fixed, so this cannot fail by chance. */
static void check_counts(struct od_sampler *s, const float *logits, const double *p, uint32_t n)
{
	unsigned count[MAX_VOCAB] = { 0 }, draws = 20000;
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

static void against_golden(const char *path, size_t n_cases)
{
	struct od_err err;
	json_t *root, *cases, *c, *want, *margins;
	size_t i, k;

	assert_int_equal(od_json_load(path, 1 << 20, &root, &err), OD_OK);
	assert_int_equal(od_json_arr(root, "cases", &cases, "golden", &err), OD_OK);
	assert_true(json_array_size(cases) >= n_cases);
	json_array_foreach(cases, i, c)
	{
		struct od_sampler_opts o;
		struct od_logit_bias bias[MAX_BIAS];
		int32_t breakers[MAX_BREAKERS];
		struct od_sampler *s;
		float logits[MAX_VOCAB];
		double p[MAX_VOCAB];
		uint32_t n;

		read_case(c, &o, bias, logits, p, &n);
		read_llama(c, &o, breakers);
		s = start(&o, n, json_object_get(c, "recent"), (size_t)real(c, "prompt"));
		memset(bias, 0x55, sizeof(bias)); /* the sampler has its own */
		memset(breakers, 0x55, sizeof(breakers));
		margins = json_object_get(c, "margins");
		assert_int_equal(json_array_size(margins), 40);
		json_array_foreach(json_object_get(c, "tokens"), k, want)
		{
			const json_t *m = json_array_get(margins, k);
			float margin;

			if (sample_with(s, logits, n, &margin) != json_integer_value(want))
				fail_msg("%s, case %zu, draw %zu: another token", path, i, k);
			check_margin(margin, json_is_null(m) ? (double)INFINITY : json_number_value(m));
		}
		if (n <= MAX_COUNTED)
			check_counts(s, logits, p, n);
		od_sampler_free(s);
	}
	json_decref(root);
}

static void against_numpy(void **state)
{
	(void)state;
	against_golden("tests/golden/sampler/sampler.json", 27);
}

static void against_llama(void **state)
{
	(void)state;
	against_golden("tests/golden/sampler/llama.json", 60);
}

static void greedy_and_odd_logits(void **state)
{
	struct od_sampler_opts o;
	struct od_sampler *s;
	float margin, tie[] = { 1, 7, 7, -2 }, nan[] = { NAN, -3, NAN, -2 }, none[] = { -INFINITY, NAN, -INFINITY },
		      inf[] = { 3, INFINITY, 1, INFINITY };

	(void)state;
	od_sampler_defaults(&o);
	for (int hot = 0; hot < 2; hot++) {
		o.temperature = hot;
		o.top_k = hot; /* 1: the same as greedy */
		s = open_sampler(&o, 4);
		assert_int_equal(sample(s, tie, 4), 1);
		assert_int_equal(sample(s, nan, 4), 3);
		assert_int_equal(sample_with(s, inf, 4, &margin), 1);
		check_margin(margin, hot ? (double)INFINITY : 0);
		od_sampler_free(s);
		s = open_sampler(&o, 3);
		assert_int_equal(sample_with(s, none, 3, &margin), 0);
		check_margin(margin, 0);
		od_sampler_free(s);
	}
}

/* Nearly all that is possible, which is less than all tokens. */
static void impossible_tokens(void **state)
{
	const float logits[] = { -INFINITY, 3, -INFINITY, 3, -FLT_MAX };
	struct od_sampler_opts o;
	struct od_sampler *s;

	(void)state;
	od_sampler_defaults(&o);
	o.temperature = 1;
	o.top_p = 1 - 1e-12;
	s = open_sampler(&o, 5);
	for (int i = 0; i < 100; i++)
		assert_int_equal(sample(s, logits, 5) % 2, 1);
	od_sampler_free(s);
}

/* A penalty below 1 raises a logit, but not to infinity. */
static void penalty_of_a_huge_logit(void **state)
{
	const float logits[] = { 0, 2e38f, 0 };
	const int32_t seen = 1;
	struct od_sampler_opts o;
	struct od_sampler *s;
	float margin;

	(void)state;
	od_sampler_defaults(&o);
	o.repetition_penalty = 0.5;
	for (int hot = 0; hot < 2; hot++) {
		o.temperature = hot;
		s = open_sampler(&o, 3);
		assert_int_equal(od_sampler_prompt(s, &seen, 1), OD_OK);
		assert_int_equal(sample_with(s, logits, 3, &margin), 1);
		od_sampler_free(s);
	}
}

/* top-k alone leaves k tokens, however little they weigh. */
static void second_of_two_is_light(void **state)
{
	const float logits[] = { 0, -40, -50 };
	struct od_sampler_opts o;
	struct od_sampler *s;
	float margin;

	(void)state;
	od_sampler_defaults(&o);
	o.temperature = 1;
	o.top_k = 2;
	s = open_sampler(&o, 3);
	for (int i = 0; i < 100; i++) {
		assert_int_equal(sample_with(s, logits, 3, &margin), 0);
		assert_true(margin < INFINITY);
	}
	od_sampler_free(s);
}

/* The greedy choice, looked for one by one: never NaN; an infinity counts as the largest number; the first of
 * equals. */
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

/* The best logit less the highest other one; 0 if nothing is possible. */
static double greedy_margin_by_hand(const float *logits, uint32_t n, uint32_t best)
{
	double second = -INFINITY;

	if (isnan(logits[best]) || logits[best] == -INFINITY)
		return 0;
	for (uint32_t i = 0; i < n; i++)
		if (i != best && !isnan(logits[i]))
			second = fmax(second, fminf(logits[i], FLT_MAX));
	return fminf(logits[best], FLT_MAX) - second;
}

static void greedy_everywhere(void **state)
{
	static const float odd[] = { NAN, INFINITY, -INFINITY, FLT_MAX, 9 };
	struct od_sampler_opts o;
	unsigned after[3] = { 0 }; /* best ones in the first block of 64, in another, behind the last */
	float logits[MAX_VOCAB];

	(void)state;
	od_sampler_defaults(&o);
	for (uint32_t n = 1; n <= MAX_VOCAB; n += n < 140 ? 1 : 97) {
		struct od_sampler *s;

		s = open_sampler(&o, n);
		for (uint32_t round = 0; round < 40; round++) {
			int32_t best;
			float margin;

			for (uint32_t i = 0; i < n; i++)
				logits[i] = (float)((i * 2654435761u + round * 40503u) >> 9 & 15); /* many are equal */
			assert_true(od_logits_finite(logits, n));
			for (uint32_t i = 0; i < round % 4; i++)
				logits[(i * 977 + round * 131) % n] = odd[(round + i) % 5];
			best = best_by_hand(logits, n);
			assert_int_equal(sample(s, logits, n), best);
			assert_int_equal(sample_with(s, logits, n, &margin), best);
			check_margin(margin, greedy_margin_by_hand(logits, n, (uint32_t)best));
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

	(void)state;
	for (uint32_t i = 0; i < N; i++)
		logits[i] = (float)((i * 7919u) % N) * 0.001f; /* a permutation: the best is N - 1 thousandths */
	od_sampler_defaults(&o);
	o.temperature = 2;
	o.top_k = 50;
	for (int nucleus = 0; nucleus < 2; nucleus++) {
		s = open_sampler(&o, N);
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
	float logits[32];
	int differ = 0;

	(void)state;
	for (int i = 0; i < 32; i++)
		logits[i] = sinf((float)i);
	od_sampler_defaults(&o);
	o.temperature = 1;
	o.seed = 5;
	a = open_sampler(&o, 32);
	b = open_sampler(&o, 32);
	o.seed = 6;
	c = open_sampler(&o, 32);
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
	const int32_t late[] = { 3, 9, 20 };
	struct od_sampler *once, *again;
	struct od_sampler_opts o;
	float logits[TOKENS][N], margin[TOKENS], found;
	int32_t text[TOKENS];

	(void)state;
	for (int setting = 0; setting < 16; setting++) {
		od_sampler_defaults(&o);
		o.temperature = setting % 3 == 2 ? 0 : 1.2;
		o.repetition_penalty = setting % 3 > 0 ? 1.8 : 1;
		o.repetition_window = setting < 3 ? 0 : 7;
		o.frequency_penalty = setting == 6 || setting >= 8 ? 0.4 : 0;
		o.presence_penalty = setting >= 7 ? -0.6 : 0;
		if (setting >= 10) {
			o.dry.multiplier = setting % 2 == 0 ? 0.8 : 0;
			o.dry.window = 64;
			o.dry.allowed_length = 1;
			o.xtc_probability = setting >= 12 ? 0.4 : 0;
			o.xtc_threshold = 0.05;
			o.typical_p = setting == 14 ? 0.8 : 1;
			o.dynatemp_range = setting == 15 ? 0.7 : 0;
			o.top_n_sigma = setting == 13 ? 1.5 : -1;
			o.late = late;
			o.n_late = 3;
			o.min_draws = setting == 11 ? 10 : 0;
		}
		o.seed = 77;
		once = open_sampler(&o, N);
		again = open_sampler(&o, N);
		for (int i = 0; i < TOKENS; i++) {
			for (int k = 0; k < N; k++)
				/* without a choice it counts, too */
				logits[i][k] = i == 20 ? -INFINITY : sinf((float)(i * N + k)) * 3;
			text[i] = i < PROMPT ? i : sample_with(once, logits[i], N, &margin[i]);
			assert_int_equal(i < PROMPT ? od_sampler_prompt(once, &text[i], 1) :
						      od_sampler_accept(once, &text[i], 1),
					 OD_OK);
		}
		for (int round = 0; round < 400; round++) {
			int i = PROMPT + (round * 37) % (TOKENS - PROMPT);

			if (round % 3 == 0) /* as if after so many tokens: the number of draws costs nothing */
				assert_int_equal(od_sampler_replay(again, text, 1, UINT64_MAX - (uint64_t)round),
						 OD_OK);
			assert_int_equal(od_sampler_replay(again, text, (size_t)i, (uint64_t)(i - PROMPT)), OD_OK);
			assert_int_equal(sample_with(again, logits[i], N, &found), text[i]);
			assert_true(found == margin[i]);
		}
		od_sampler_free(once);
		od_sampler_free(again);
	}
}

/* Each penalty alone changes what is chosen, and chosen tokens only. */
static void only_chosen_tokens_are_penalised(void **state)
{
	const float logits[] = { 0, 5, 4.9f, 3 };
	const int32_t best = 1, second = 2;

	(void)state;
	for (int presence = 0; presence < 2; presence++) {
		struct od_sampler_opts o;
		struct od_sampler *s;

		od_sampler_defaults(&o);
		if (presence)
			o.presence_penalty = 0.2;
		else
			o.frequency_penalty = 0.2;
		assert_true(od_sampler_looks_back(&o));
		s = open_sampler(&o, 4);
		assert_int_equal(od_sampler_prompt(s, &best, 1), OD_OK);
		assert_int_equal(sample(s, logits, 4), 1);
		assert_int_equal(od_sampler_accept(s, &best, 1), OD_OK);
		assert_int_equal(sample(s, logits, 4), 2);
		assert_int_equal(od_sampler_accept(s, &second, 1), OD_OK);
		assert_int_equal(sample(s, logits, 4), 1); /* both once: as without */
		assert_int_equal(od_sampler_accept(s, &best, 1), OD_OK);
		assert_int_equal(sample(s, logits, 4), presence ? 1 : 2);
		od_sampler_free(s);
	}
}

static void refuses_biases(void **state)
{
	static struct od_logit_bias b[OD_MAX_LOGIT_BIAS + 1];
	struct od_sampler_opts o;
	struct od_sampler *s;
	struct od_err err;

	(void)state;
	od_sampler_defaults(&o);
	for (size_t i = 0; i < OD_MAX_LOGIT_BIAS + 1; i++)
		b[i] = (struct od_logit_bias){ (int32_t)i, i % 2 == 0 ? 100.0f : -100.0f };
	o.logit_bias = b;
	o.n_logit_bias = OD_MAX_LOGIT_BIAS;
	assert_false(od_sampler_looks_back(&o));
	s = open_sampler(&o, OD_MAX_LOGIT_BIAS);
	od_sampler_free(s);
	assert_int_equal(od_sampler_new(&s, &o, OD_MAX_LOGIT_BIAS - 1, &err), OD_ERR_ARG);
	assert_non_null(strstr(err.msg, "1023"));
	o.n_logit_bias++;
	assert_int_equal(od_sampler_check(&o, &err), OD_ERR_ARG);
	assert_non_null(strstr(err.msg, "1025"));
	o.n_logit_bias = 3;
	b[1].token = -1;
	assert_int_equal(od_sampler_new(&s, &o, 8, &err), OD_ERR_ARG);
	assert_non_null(strstr(err.msg, "-1"));
	b[1].token = 2;
	assert_int_equal(od_sampler_new(&s, &o, 8, &err), OD_ERR_ARG);
	assert_non_null(strstr(err.msg, "twice"));
	b[1].token = 1;
	for (int i = 0; i < 4; i++) {
		const float bad[] = { 100.5f, -101, NAN, INFINITY };

		b[1].bias = bad[i];
		assert_int_equal(od_sampler_check(&o, &err), OD_ERR_ARG);
		assert_non_null(strstr(err.msg, "logit_bias"));
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
	REFUSED(frequency_penalty, 2.01);
	REFUSED(frequency_penalty, (double)NAN);
	REFUSED(presence_penalty, -2.01);
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
		cmocka_unit_test(against_numpy),
		cmocka_unit_test(against_llama),
		cmocka_unit_test(greedy_and_odd_logits),
		cmocka_unit_test(impossible_tokens),
		cmocka_unit_test(penalty_of_a_huge_logit),
		cmocka_unit_test(second_of_two_is_light),
		cmocka_unit_test(greedy_everywhere),
		cmocka_unit_test(large_vocabulary),
		cmocka_unit_test(reproducible),
		cmocka_unit_test(any_place_again),
		cmocka_unit_test(only_chosen_tokens_are_penalised),
		cmocka_unit_test(refuses_biases),
		cmocka_unit_test(refuses),
	};

	return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}

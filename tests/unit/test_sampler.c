/* The sampler against distributions, draws and margins that numpy made by definition (tests/golden/sampler), and against what
 * libm and sorting make of larger vocabularies. */
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
#include "tests/unit/random.h"

#define MAX_VOCAB 400
#define MAX_BIAS 8

static double real(const json_t *obj, const char *key)
{
	return json_number_value(json_object_get(obj, key));
}

static void read_case(const json_t *c, struct od_sampler_opts *o, struct od_logit_bias bias[MAX_BIAS], float *logits, double *p,
		      uint32_t *n)
{
	const json_t *opts = json_object_get(c, "options"), *l = json_object_get(c, "logits");

	od_sampler_defaults(o);
	o->temperature = real(opts, "temperature");
	o->top_k = (uint32_t)real(opts, "top_k");
	o->top_p = real(opts, "top_p");
	o->min_p = real(opts, "min_p");
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
		logits[i] = (float)json_number_value(json_array_get(l, i));
		p[i] = json_number_value(json_array_get(json_object_get(c, "probabilities"), i));
	}
}

static struct od_sampler *start(const struct od_sampler_opts *o, uint32_t n, const json_t *recent, size_t prompt)
{
	struct od_sampler *s;
	struct od_err err;
	json_t *t;
	size_t i;

	assert_int_equal(od_sampler_new(&s, o, n, &err), OD_OK);
	json_array_foreach(recent, i, t) {
		int32_t ids[2] = {(int32_t)json_integer_value(t),
				  i % 2 == 0 ? -5 : (int32_t)n}; /* the second is ignored */

		assert_int_equal(i < prompt ? od_sampler_prompt(s, ids, 2) : od_sampler_accept(s, ids, 2), OD_OK);
	}
	return s;
}

static int32_t sample_with(struct od_sampler *s, const float *logits, uint32_t n, float *margin)
{
	float copy[MAX_VOCAB];

	assert_true(n <= MAX_VOCAB);
	memcpy(copy, logits, n * sizeof(*copy));
	return od_sampler_sample(s, copy, margin);
}

static int32_t sample(struct od_sampler *s, const float *logits, uint32_t n)
{
	return sample_with(s, logits, n, NULL);
}

/* want is the reference's; infinite: no other candidate. */
static void check_margin(float margin, double want)
{
	if (want == (double)INFINITY)
		assert_true(margin == INFINITY);
	else
		assert_true(fabs(margin - want) <= 1e-6 * fabs(want) + 1e-9);
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
	json_t *root, *cases, *c, *want, *margins;
	size_t i, k;

	(void)state;
	assert_int_equal(od_json_load("tests/golden/sampler/sampler.json", 1 << 20, &root, &err), OD_OK);
	assert_int_equal(od_json_arr(root, "cases", &cases, "golden", &err), OD_OK);
	assert_true(json_array_size(cases) >= 27);
	json_array_foreach(cases, i, c) {
		struct od_sampler_opts o;
		struct od_logit_bias bias[MAX_BIAS];
		struct od_sampler *s;
		float logits[MAX_VOCAB];
		double p[MAX_VOCAB];
		uint32_t n;

		read_case(c, &o, bias, logits, p, &n);
		s = start(&o, n, json_object_get(c, "recent"), (size_t)real(c, "prompt"));
		memset(bias, 0x55, sizeof(bias)); /* the sampler has its own */
		margins = json_object_get(c, "margins");
		assert_int_equal(json_array_size(margins), 40);
		json_array_foreach(json_object_get(c, "tokens"), k, want) {
			const json_t *m = json_array_get(margins, k);
			float margin;

			assert_int_equal(sample_with(s, logits, n, &margin), json_integer_value(want));
			check_margin(margin, json_is_null(m) ? (double)INFINITY : json_number_value(m));
		}
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
	float margin, tie[] = {1, 7, 7, -2}, nan[] = {NAN, -3, NAN, -2}, none[] = {-INFINITY, NAN, -INFINITY},
	      inf[] = {3, INFINITY, 1, INFINITY};

	(void)state;
	od_sampler_defaults(&o);
	for (int hot = 0; hot < 2; hot++) {
		o.temperature = hot;
		o.top_k = hot; /* 1: the same as greedy */
		assert_int_equal(od_sampler_new(&s, &o, 4, &err), OD_OK);
		assert_int_equal(sample(s, tie, 4), 1);
		assert_int_equal(sample(s, nan, 4), 3);
		assert_int_equal(sample_with(s, inf, 4, &margin), 1);
		check_margin(margin, hot ? (double)INFINITY : 0);
		od_sampler_free(s);
		assert_int_equal(od_sampler_new(&s, &o, 3, &err), OD_OK);
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
	struct od_err err;

	(void)state;
	od_sampler_defaults(&o);
	o.temperature = 1;
	o.top_p = 1 - 1e-12;
	assert_int_equal(od_sampler_new(&s, &o, 5, &err), OD_OK);
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
	struct od_err err;
	float margin;

	(void)state;
	od_sampler_defaults(&o);
	o.repetition_penalty = 0.5;
	for (int hot = 0; hot < 2; hot++) {
		o.temperature = hot;
		assert_int_equal(od_sampler_new(&s, &o, 3, &err), OD_OK);
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
	struct od_err err;
	float margin;

	(void)state;
	od_sampler_defaults(&o);
	o.temperature = 1;
	o.top_k = 2;
	assert_int_equal(od_sampler_new(&s, &o, 3, &err), OD_OK);
	for (int i = 0; i < 100; i++) {
		assert_int_equal(sample_with(s, logits, 3, &margin), 0);
		assert_true(margin < INFINITY);
	}
	od_sampler_free(s);
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

/* ---- The draw, as it is defined: everything sorted, libm, no shortcut ---- */

struct by_hand {
	int32_t token;
	double margin;
};

static double gauss(uint64_t *seed)
{
	const double a = ((double)(random_u64(seed) >> 12) + 0.5) * 0x1p-52, b = (double)(random_u64(seed) >> 12) * 0x1p-52;

	return sqrt(-2 * log(a)) * cos(2 * M_PI * b);
}

/* Number i, from 0, of the splitmix64 stream whose first state is `first`. */
static uint64_t number_of_stream(uint64_t first, uint64_t i)
{
	uint64_t state = first + (i - 1) * 0x9e3779b97f4a7c15u;

	return random_u64(&state);
}

static double uniform_by_hand(uint64_t seed, uint64_t draw, int32_t id)
{
	const uint64_t stream = number_of_stream(number_of_stream(seed, 1), draw);

	return ((double)(number_of_stream(stream, (uint64_t)id) >> 12) + 0.5) * 0x1p-52;
}

struct place {
	float logit;
	int32_t id;
};

static int better_first(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	return x->logit != y->logit ? (x->logit > y->logit ? -1 : 1) : x->id < y->id ? -1 : 1;
}

/* A weight below exp(-700) is none. */
static double weight_by_hand(const struct od_sampler_opts *o, float logit, float best)
{
	const double x = ((double)logit - best) / o->temperature;

	return x > -700 ? exp(x) : 0;
}

/* Logits are finite or minus infinity, and there is no penalty. Behind a filter, weights that no longer change the sum of the
 * better ones are left out, with top-p 1 too. */
static struct by_hand draw_by_hand(const struct od_sampler_opts *o, const float *logits, uint32_t n, uint64_t draw)
{
	const uint32_t k = o->top_k > 0 && o->top_k < n ? o->top_k : n;
	struct place *place = calloc(n, sizeof(*place));
	double total = 0, before = 0, first = INFINITY, second = INFINITY;
	struct by_hand h = { .token = -1 };

	for (uint32_t i = 0; i < n; i++)
		place[i] = (struct place){ logits[i], (int32_t)i };
	qsort(place, n, sizeof(*place), better_first);
	for (uint32_t i = 0; i < k; i++)
		total += weight_by_hand(o, place[i].logit, place[0].logit);
	for (uint32_t i = 0; i < k && (i == 0 || o->top_p == 1 || before < o->top_p * total); i++) {
		const double p = weight_by_hand(o, place[i].logit, place[0].logit);
		double arrival;

		before += p;
		if (p < o->min_p || p == 0)
			continue;
		arrival = -log(uniform_by_hand(o->seed, draw, place[i].id)) / p;
		if (arrival < first) {
			second = first;
			first = arrival;
			h.token = place[i].id;
		} else if (arrival < second) {
			second = arrival;
		}
	}
	h.margin = second < (double)INFINITY ? o->temperature * (log(second) - log(first)) : (double)INFINITY;
	free(place);
	return h;
}

static void check_draws(const struct od_sampler_opts *o, const float *logits, uint32_t n, unsigned draws)
{
	static float copy[32000];
	struct od_sampler *s, *without;
	struct od_err err;

	assert_int_equal(od_sampler_new(&s, o, n, &err), OD_OK);
	assert_int_equal(od_sampler_new(&without, o, n, &err), OD_OK);
	for (unsigned i = 0; i < draws; i++) {
		const struct by_hand h = draw_by_hand(o, logits, n, i);
		float margin;

		memcpy(copy, logits, n * sizeof(*copy));
		assert_int_equal(od_sampler_sample(s, copy, &margin), h.token);
		check_margin(margin, h.margin);
		memcpy(copy, logits, n * sizeof(*copy));
		assert_int_equal(od_sampler_sample(without, copy, NULL), h.token);
	}
	od_sampler_free(s);
	od_sampler_free(without);
}

/* All temperatures and filters, vocabularies up to a real model's size, equal logits and impossible tokens. */
static void against_definition(void **state)
{
	static const double temperature[] = { 5e-324, 1e-300, 0.01, 0.3, 0.8, 1.2, 30, 1000 };
	static const uint32_t size[] = { 1, 2, 31, 32, 33, 64, 100, 1000, 32000 };
	static float logits[32000];
	uint64_t seed = 3;

	(void)state;
	for (unsigned c = 0; c < 8 * 9 * 5; c++) {
		const uint32_t n = size[c / 8 % 9];
		const double spread = c % 7 == 0 ? 0 : c % 7;
		struct od_sampler_opts o;

		od_sampler_defaults(&o);
		o.temperature = temperature[c % 8];
		o.seed = random_u64(&seed);
		switch (c / 72) {
		case 1: o.top_k = n / 3 + 1; break;
		case 2: o.top_p = 0.8; break;
		case 3: o.min_p = 0.03; break;
		case 4: o.top_k = n / 2 + 1; o.top_p = 0.97; o.min_p = 0.1; break;
		}
		for (uint32_t i = 0; i < n; i++) {
			logits[i] = (float)(spread * gauss(&seed));
			if (c % 3 == 0) /* many are equal */
				logits[i] = roundf(logits[i]);
			if (c % 5 == 0 && random_below(&seed, 3) == 0 && i > 0)
				logits[i] = -INFINITY;
		}
		check_draws(&o, logits, n, n > 1000 ? 3 : 20);
	}
}

/* Two cells of a row or column of a 16 by 16 table are equally likely if successive draws, or the first draws of successive
 * seeds, have nothing to do with each other: 255 degrees of freedom, and 346 is 4 standard deviations above that. */
static void draws_are_independent(void **state)
{
	enum { N = 16, PAIRS = 25600 };
	const float logits[N] = { 0 };
	struct od_sampler_opts o;
	struct od_sampler *s;
	struct od_err err;

	(void)state;
	od_sampler_defaults(&o);
	o.temperature = 1;
	for (int by_seed = 0; by_seed < 2; by_seed++) {
		unsigned count[N][N] = { 0 };
		double chi = 0;
		int32_t last = -1;

		o.seed = 0;
		assert_int_equal(od_sampler_new(&s, &o, N, &err), OD_OK);
		for (unsigned i = 0; i <= PAIRS; i++) {
			int32_t t;

			if (by_seed) {
				od_sampler_free(s);
				o.seed = i;
				assert_int_equal(od_sampler_new(&s, &o, N, &err), OD_OK);
			}
			t = sample(s, logits, N);
			if (last >= 0)
				count[last][t]++;
			last = t;
		}
		for (int i = 0; i < N * N; i++)
			chi += pow(count[i / N][i % N] - PAIRS / (double)(N * N), 2) / (PAIRS / (double)(N * N));
		assert_true(chi < 346);
		od_sampler_free(s);
	}
}

/* Token i falls into bin i * bins / n, or i % bins: chi-square with 63 degrees of freedom; 108 is 4 standard deviations above. */
static void large_distribution(void **state)
{
	enum { N = 4000, BINS = 64, DRAWS = 20000 };
	static float logits[N], copy[N];
	double share[2][BINS] = { { 0 } }, total = 0;
	unsigned count[2][BINS] = { { 0 } };
	struct od_sampler_opts o;
	struct od_sampler *s;
	struct od_err err;
	uint64_t seed = 8;

	(void)state;
	od_sampler_defaults(&o);
	o.temperature = 1.1;
	o.seed = 21;
	for (uint32_t i = 0; i < N; i++) {
		const double p = exp((logits[i] = (float)gauss(&seed)) / o.temperature);

		share[0][i * BINS / N] += p;
		share[1][i % BINS] += p;
		total += p;
	}
	assert_int_equal(od_sampler_new(&s, &o, N, &err), OD_OK);
	for (int i = 0; i < DRAWS; i++) {
		uint32_t t;

		memcpy(copy, logits, sizeof(copy));
		t = (uint32_t)od_sampler_sample(s, copy, NULL);
		count[0][t * BINS / N]++;
		count[1][t % BINS]++;
	}
	od_sampler_free(s);
	for (int way = 0; way < 2; way++) {
		double chi = 0;

		for (int i = 0; i < BINS; i++) {
			const double want = share[way][i] / total * DRAWS;

			chi += (count[way][i] - want) * (count[way][i] - want) / want;
		}
		assert_true(chi < 108);
	}
}

/* A token's number is the same whatever else is possible: who wins among more also wins among fewer. */
static void fewer_candidates(void **state)
{
	enum { N = 300 };
	float logits[N], some[N];
	struct od_sampler_opts o;
	struct od_err err;
	struct od_sampler *all, *few, *narrow;
	uint64_t seed = 5;
	unsigned kept = 0, kept_narrow = 0;

	(void)state;
	od_sampler_defaults(&o);
	o.temperature = 0.9;
	assert_int_equal(od_sampler_new(&all, &o, N, &err), OD_OK);
	assert_int_equal(od_sampler_new(&narrow, &o, N, &err), OD_OK);
	o.top_k = 5;
	assert_int_equal(od_sampler_new(&few, &o, N, &err), OD_OK);
	for (int i = 0; i < 500; i++) {
		int32_t chosen, among_few, among_some;
		unsigned higher = 0;

		for (int k = 0; k < N; k++) {
			logits[k] = (float)(2 * gauss(&seed));
			some[k] = random_below(&seed, 2) == 0 ? -INFINITY : logits[k];
		}
		chosen = sample(all, logits, N);
		among_few = sample(few, logits, N);
		among_some = sample(narrow, some, N);
		for (int k = 0; k < N; k++)
			higher += logits[k] > logits[chosen];
		if (higher < 5) {
			assert_int_equal(among_few, chosen);
			kept++;
		}
		if (some[chosen] > -INFINITY) {
			assert_int_equal(among_some, chosen);
			kept_narrow++;
		}
	}
	assert_true(kept > 100 && kept < 400 && kept_narrow > 100 && kept_narrow < 400);
	od_sampler_free(all);
	od_sampler_free(few);
	od_sampler_free(narrow);
}

/* ---- Two models that differ by noise ---- */

struct odds {
	double p, q;
};

static int by_ratio(const void *a, const void *b)
{
	const struct odds *x = a, *y = b;

	return x->q * y->p > y->q * x->p ? -1 : x->q * y->p < y->q * x->p;
}

/* How probably two races with the same numbers have the same winner, sum over i of 1 / sum over j of max(p_j/p_i, q_j/q_i): i
 * wins both if its number lets it arrive before each other one's later ratio. *least: (1 - d) / (1 + d), d the total variation
 * distance: whatever the distributions are, it is at least that. */
static double agreement(struct odds *v, uint32_t n, double *least)
{
	double before = 0, behind = 0, sum = 0, distance = 0;

	qsort(v, n, sizeof(*v), by_ratio);
	for (uint32_t i = 0; i < n; i++) {
		behind += v[i].p;
		distance += fabs(v[i].p - v[i].q) / 2;
	}
	for (uint32_t i = 0; i < n; i++) { /* those before i have a higher ratio q / p */
		sum += 1 / (before / v[i].q + behind / v[i].p);
		before += v[i].q;
		behind -= v[i].p;
	}
	*least = (1 - distance) / (1 + distance);
	return sum;
}

static void odds_of(struct odds *v, const float *a, const float *b, uint32_t n, double temperature)
{
	double p = 0, q = 0;

	for (uint32_t i = 0; i < n; i++) {
		v[i] = (struct odds){ exp(a[i] / temperature), exp(b[i] / temperature) };
		p += v[i].p;
		q += v[i].q;
	}
	for (uint32_t i = 0; i < n; i++)
		v[i] = (struct odds){ v[i].p / p, v[i].q / q };
}

/* A model and its noisy copy choose the same token as often as theory says, and so more often than the bound that holds
 * for the race alone. One number for all tokens would agree in about half of these draws at 0.7, in a fifth at 1.2. */
static void noisy_models_agree(void **state)
{
	enum { N = 32000, MODELS = 60, EACH = 10 };
	static float a[N], b[N], copy[N];
	static struct odds odds[N];
	uint64_t seed = 9;

	(void)state;
	for (int hot = 0; hot < 2; hot++) {
		struct od_sampler *sa, *sb;
		struct od_sampler_opts o;
		struct od_err err;
		double expected = 0, least = 0, variance = 0, p, bound;
		unsigned same = 0;

		od_sampler_defaults(&o);
		o.temperature = hot ? 1.2 : 0.7;
		o.seed = 31;
		assert_int_equal(od_sampler_new(&sa, &o, N, &err), OD_OK);
		assert_int_equal(od_sampler_new(&sb, &o, N, &err), OD_OK);
		for (int m = 0; m < MODELS; m++) {
			for (uint32_t i = 0; i < N; i++) {
				a[i] = (float)(3 * gauss(&seed));
				b[i] = a[i] + (float)(0.3 * gauss(&seed));
			}
			odds_of(odds, a, b, N, o.temperature);
			p = agreement(odds, N, &bound);
			expected += EACH * p;
			variance += EACH * p * (1 - p);
			least += EACH * bound;
			for (int i = 0; i < EACH; i++) {
				int32_t t;

				memcpy(copy, a, sizeof(copy));
				t = od_sampler_sample(sa, copy, NULL);
				memcpy(copy, b, sizeof(copy));
				same += od_sampler_sample(sb, copy, NULL) == t;
			}
		}
		assert_true(fabs(same - expected) < 4 * sqrt(variance));
		assert_true(same > least);
		od_sampler_free(sa);
		od_sampler_free(sb);
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
	float logits[TOKENS][N], margin[TOKENS], found;
	int32_t text[TOKENS];

	(void)state;
	for (int setting = 0; setting < 10; setting++) {
		od_sampler_defaults(&o);
		o.temperature = setting % 3 == 2 ? 0 : 1.2;
		o.repetition_penalty = setting % 3 > 0 ? 1.8 : 1;
		o.repetition_window = setting < 3 ? 0 : 7;
		o.frequency_penalty = setting == 6 || setting >= 8 ? 0.4 : 0;
		o.presence_penalty = setting >= 7 ? -0.6 : 0;
		o.seed = 77;
		assert_int_equal(od_sampler_new(&once, &o, N, &err), OD_OK);
		assert_int_equal(od_sampler_new(&again, &o, N, &err), OD_OK);
		for (int i = 0; i < TOKENS; i++) {
			for (int k = 0; k < N; k++)
				logits[i][k] = i == 20 ? -INFINITY : sinf((float)(i * N + k)); /* without a choice it counts, too */
			text[i] = i < PROMPT ? i : sample_with(once, logits[i], N, &margin[i]);
			assert_int_equal(i < PROMPT ? od_sampler_prompt(once, &text[i], 1) : od_sampler_accept(once, &text[i], 1),
					 OD_OK);
		}
		for (int round = 0; round < 400; round++) {
			int i = PROMPT + (round * 37) % (TOKENS - PROMPT);

			if (round % 3 == 0) /* as if after so many tokens: the number of draws costs nothing */
				assert_int_equal(od_sampler_replay(again, text, 1, UINT64_MAX - (uint64_t)round), OD_OK);
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
	struct od_err err;

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
		assert_int_equal(od_sampler_new(&s, &o, 4, &err), OD_OK);
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
	assert_int_equal(od_sampler_new(&s, &o, OD_MAX_LOGIT_BIAS, &err), OD_OK);
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
		cmocka_unit_test(against_numpy), cmocka_unit_test(greedy_and_odd_logits), cmocka_unit_test(impossible_tokens),
		cmocka_unit_test(penalty_of_a_huge_logit), cmocka_unit_test(second_of_two_is_light),
		cmocka_unit_test(greedy_everywhere), cmocka_unit_test(large_vocabulary), cmocka_unit_test(against_definition),
		cmocka_unit_test(draws_are_independent), cmocka_unit_test(large_distribution), cmocka_unit_test(fewer_candidates),
		cmocka_unit_test(noisy_models_agree), cmocka_unit_test(reproducible), cmocka_unit_test(any_place_again),
		cmocka_unit_test(only_chosen_tokens_are_penalised), cmocka_unit_test(refuses_biases), cmocka_unit_test(refuses),
	};

	return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}

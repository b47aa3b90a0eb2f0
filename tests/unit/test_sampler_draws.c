/* The sampler's draws against their definition - everything sorted, libm, no shortcut - and what must hold of very
 * many. */
#include <stdlib.h>

#include "tests/unit/random.h"
#include "tests/unit/sampler_util.h"

struct by_hand {
	int32_t token;
	double margin;
};

static double gauss(uint64_t *seed)
{
	const double a = ((double)(random_u64(seed) >> 12) + 0.5) * 0x1p-52,
		     b = (double)(random_u64(seed) >> 12) * 0x1p-52;

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

struct sampler_draws_entry {
	float logit;
	int32_t id;
};

static int better_first(const void *a, const void *b)
{
	const struct sampler_draws_entry *x = a, *y = b;

	return x->logit != y->logit ? (x->logit > y->logit ? -1 : 1) : x->id < y->id ? -1 : 1;
}

/* A weight below exp(-700) is none. */
static double weight_by_hand(const struct od_sampler_opts *o, float logit, float best)
{
	const double x = ((double)logit - best) / o->temperature;

	return x > -700 ? exp(x) : 0;
}

/* Logits are finite or minus infinity, and there is no penalty. Behind a filter, weights that no longer change the sum
 * of the better ones are left out, with top-p 1 too. */
static struct by_hand draw_by_hand(const struct od_sampler_opts *o, const float *logits, uint32_t n, uint64_t draw)
{
	const uint32_t k = o->top_k > 0 && o->top_k < n ? o->top_k : n;
	struct sampler_draws_entry *entry = calloc(n, sizeof(*entry));
	double total = 0, before = 0, first = INFINITY, second = INFINITY;
	struct by_hand h = { .token = -1 };

	for (uint32_t i = 0; i < n; i++)
		entry[i] = (struct sampler_draws_entry){ logits[i], (int32_t)i };
	qsort(entry, n, sizeof(*entry), better_first);
	for (uint32_t i = 0; i < k; i++)
		total += weight_by_hand(o, entry[i].logit, entry[0].logit);
	for (uint32_t i = 0; i < k && (i == 0 || o->top_p == 1 || before < o->top_p * total); i++) {
		const double p = weight_by_hand(o, entry[i].logit, entry[0].logit);
		double arrival;

		before += p;
		if (p < o->min_p || p == 0)
			continue;
		arrival = -log(uniform_by_hand(o->seed, draw, entry[i].id)) / p;
		if (arrival < first) {
			second = first;
			first = arrival;
			h.token = entry[i].id;
		} else if (arrival < second) {
			second = arrival;
		}
	}
	h.margin = second < (double)INFINITY ? o->temperature * (log(second) - log(first)) : (double)INFINITY;
	free(entry);
	return h;
}

static void check_draws(const struct od_sampler_opts *o, const float *logits, uint32_t n, unsigned draws)
{
	static float copy[32000];
	struct od_sampler *s, *without;

	s = open_sampler(o, n);
	without = open_sampler(o, n);
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
		case 4:
			o.top_k = n / 2 + 1;
			o.top_p = 0.97;
			o.min_p = 0.1;
			break;
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

/* Two cells of a row or column of a 16 by 16 table are equally likely if successive draws, or the first draws of
 * successive seeds, have nothing to do with each other: 255 degrees of freedom, and 346 is 4 standard deviations above
 * that. */
static void draws_are_independent(void **state)
{
	enum { N = 16, PAIRS = 25600 };
	const float logits[N] = { 0 };
	struct od_sampler_opts o;
	struct od_sampler *s;

	(void)state;
	od_sampler_defaults(&o);
	o.temperature = 1;
	for (int by_seed = 0; by_seed < 2; by_seed++) {
		unsigned count[N][N] = { 0 };
		double chi = 0;
		int32_t last = -1;

		o.seed = 0;
		s = open_sampler(&o, N);
		for (unsigned i = 0; i <= PAIRS; i++) {
			int32_t t;

			if (by_seed) {
				od_sampler_free(s);
				o.seed = i;
				s = open_sampler(&o, N);
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

/* Token i falls into bin i * bins / n, or i % bins: chi-square with 63 degrees of freedom; 108 is 4 standard deviations
 * above. */
static void large_distribution(void **state)
{
	enum { N = 4000, BINS = 64, DRAWS = 20000 };
	static float logits[N], copy[N];
	double share[2][BINS] = { { 0 } }, total = 0;
	unsigned count[2][BINS] = { { 0 } };
	struct od_sampler_opts o;
	struct od_sampler *s;
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
	s = open_sampler(&o, N);
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
	struct od_sampler *all, *few, *narrow;
	uint64_t seed = 5;
	unsigned kept = 0, kept_narrow = 0;

	(void)state;
	od_sampler_defaults(&o);
	o.temperature = 0.9;
	all = open_sampler(&o, N);
	narrow = open_sampler(&o, N);
	o.top_k = 5;
	few = open_sampler(&o, N);
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

/* How probably two races with the same numbers have the same winner, sum over i of 1 / sum over j of max(p_j/p_i,
 * q_j/q_i): i wins both if its number lets it arrive before each other one's later ratio. *least: (1 - d) / (1 + d), d
 * the total variation distance: whatever the distributions are, it is at least that. */
static double agreement(struct odds *v, uint32_t n, double *least)
{
	double before = 0, behind = 0, sum = 0, distance = 0;

	qsort(v, n, sizeof(*v), by_ratio);
	for (uint32_t i = 0; i < n; i++) {
		behind += v[i].p;
		distance += fabs(v[i].p - v[i].q) / 2;
	}
	for (uint32_t i = 0; i < n; i++) { /* tokens before i have a higher ratio q / p */
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
		double expected = 0, least = 0, variance = 0, p, bound;
		unsigned same = 0;

		od_sampler_defaults(&o);
		o.temperature = hot ? 1.2 : 0.7;
		o.seed = 31;
		sa = open_sampler(&o, N);
		sb = open_sampler(&o, N);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(against_definition), cmocka_unit_test(draws_are_independent),
		cmocka_unit_test(large_distribution), cmocka_unit_test(fewer_candidates),
		cmocka_unit_test(noisy_models_agree),
	};

	return cmocka_run_group_tests_name("sampler_draws", tests, NULL, NULL);
}

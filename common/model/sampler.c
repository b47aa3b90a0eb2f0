#include "common/model/sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WINDOW (1u << 24) /* bounds the ring of recent tokens */
#define WEIGHED 256u	      /* logits at a time */

struct candidate {
	double p; /* exp of the distance to the best, over temperature */
	float logit;
	int32_t id;
};

struct od_sampler {
	struct od_sampler_opts o;
	uint32_t vocab;
	uint64_t rng[4];
	uint64_t draws;	 /* numbers taken from it so far */
	uint32_t *seen;	 /* [vocab]: how often a token stands in the window */
	int32_t *ring;	 /* [repetition_window], NULL without a window */
	uint32_t n_ring, at; /* filled places, the oldest one */
	struct candidate *cand; /* [vocab]; a heap while we choose, best first in the end */
};

void od_sampler_defaults(struct od_sampler_opts *o)
{
	*o = (struct od_sampler_opts){.top_p = 1, .repetition_penalty = 1};
}

static int in_range(const char *name, double v, double min, double max, struct od_err *err)
{
	if (v >= min && v <= max) /* NaN fails */
		return OD_OK;
	return od_fail(err, OD_ERR_ARG, "sampling: %s: expected %g to %g, found %g", name, min, max, v);
}

int od_sampler_check(const struct od_sampler_opts *o, struct od_err *err)
{
	int rc = in_range("temperature", o->temperature, 0, 1000, err);

	if (rc == OD_OK)
		rc = in_range("top_p", o->top_p, 0, 1, err);
	if (rc == OD_OK)
		rc = in_range("min_p", o->min_p, 0, 1, err);
	if (rc == OD_OK)
		rc = in_range("repetition_penalty", o->repetition_penalty, 0.01, 100, err);
	if (rc == OD_OK)
		rc = in_range("repetition_window", o->repetition_window, 0, MAX_WINDOW, err);
	return rc;
}

/* ---- random numbers: xoshiro256++ (Blackman and Vigna 2019), seeded by splitmix64 ---- */

static void seed_rng(uint64_t rng[4], uint64_t seed)
{
	for (int i = 0; i < 4; i++) {
		uint64_t z = seed += 0x9e3779b97f4a7c15u;

		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
		z = (z ^ z >> 27) * 0x94d049bb133111ebu;
		rng[i] = z ^ z >> 31;
	}
}

static uint64_t rotl(uint64_t v, int n)
{
	return v << n | v >> (64 - n);
}

/* In [0, 1), 53 bits. */
static double draw(struct od_sampler *sampler)
{
	uint64_t *s = sampler->rng;
	uint64_t out = rotl(s[0] + s[3], 23) + s[0], t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = rotl(s[3], 45);
	sampler->draws++;
	return (double)(out >> 11) * 0x1p-53;
}

/* exp for x <= 0 from additions and multiplications only: a C library chooses its own by CPU, and the last bit
 * decides tokens when a draw falls on an edge. Good to 1e-15. */
static inline double exp_same_everywhere(double x)
{
	static const double ln2_hi = 0x1.62e42fefa0000p-1, ln2_lo = 0x1.cf79abc9e3b3ap-40;
	/* 1 / i!; the next term is below 2^-52. */
	static const double c[] = {1, 1, 1 / 2., 1 / 6., 1 / 24., 1 / 120., 1 / 720., 1 / 5040., 1 / 40320.,
				   1 / 362880., 1 / 3628800., 1 / 39916800., 1 / 479001600.};
	const double y = x > -700 ? x : 0; /* else smaller than anything a sum of probabilities notices; -inf */
	const int32_t n = (int32_t)(y * 0x1.71547652b82fep+0 - 0.5); /* towards zero, so the nearest */
	const double r = (y - (double)n * ln2_hi) - (double)n * ln2_lo; /* |r| <= ln2 / 2 */
	const uint64_t bits = (uint64_t)(uint32_t)(n + 1023) << 52;
	double sum = 0, scale;

	/* No branches: then a loop over many becomes vectors. */
	for (int i = (int)(sizeof(c) / sizeof(c[0])) - 1; i >= 0; i--)
		sum = c[i] + sum * r;
	memcpy(&scale, &bits, sizeof(scale));
	sum *= scale;
	return x > -700 ? sum : 0;
}

/* ---- life ---- */

int od_sampler_new(struct od_sampler **out, const struct od_sampler_opts *o, uint32_t vocab, struct od_err *err)
{
	struct od_sampler *s;
	int rc;

	*out = NULL;
	rc = od_sampler_check(o, err);
	if (rc != OD_OK)
		return rc;
	if (vocab == 0 || vocab > INT32_MAX)
		return od_fail(err, OD_ERR_ARG, "sampling: expected a vocabulary of 1 to %d tokens, found %u",
			       INT32_MAX, vocab);
	s = calloc(1, sizeof(*s));
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "sampler");
	s->o = *o;
	s->vocab = vocab;
	seed_rng(s->rng, o->seed);
	s->seen = calloc(vocab, sizeof(*s->seen));
	s->cand = calloc(vocab, sizeof(*s->cand));
	if (o->repetition_window > 0)
		s->ring = calloc(o->repetition_window, sizeof(*s->ring));
	if (s->seen == NULL || s->cand == NULL || (o->repetition_window > 0 && s->ring == NULL)) {
		od_sampler_free(s);
		return od_fail(err, OD_ERR_NOMEM, "sampler for %u tokens", vocab);
	}
	*out = s;
	return OD_OK;
}

void od_sampler_free(struct od_sampler *s)
{
	if (s == NULL)
		return;
	free(s->seen);
	free(s->ring);
	free(s->cand);
	free(s);
}

int od_sampler_accept(struct od_sampler *s, const int32_t *ids, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (ids[i] < 0 || (uint32_t)ids[i] >= s->vocab)
			continue;
		if (s->ring == NULL) {
			s->seen[ids[i]] = 1;
			continue;
		}
		if (s->n_ring == s->o.repetition_window)
			s->seen[s->ring[s->at]]--; /* the oldest leaves */
		else
			s->n_ring++;
		s->ring[s->at] = ids[i];
		s->seen[ids[i]]++;
		s->at = (s->at + 1) % s->o.repetition_window;
	}
	return OD_OK;
}

int od_sampler_replay(struct od_sampler *s, const int32_t *ids, size_t n, uint64_t draws)
{
	if (draws < s->draws) {
		seed_rng(s->rng, s->o.seed);
		s->draws = 0;
	}
	while (s->draws < draws)
		draw(s);
	if (s->o.repetition_penalty == 1) /* the history is not used */
		return OD_OK;
	memset(s->seen, 0, s->vocab * sizeof(*s->seen));
	s->n_ring = s->at = 0;
	return od_sampler_accept(s, ids, n);
}

/* ---- choosing ---- */

bool od_logits_finite(const float *logits, uint32_t vocab)
{
	int bad = 0;

	for (uint32_t i = 0; i < vocab; i++)
		bad |= logits[i] - logits[i] != 0; /* infinity less itself is NaN, and NaN is not 0 */
	return !bad;
}

/* NaN becomes minus infinity, infinity the largest number, so that differences exist. */
static void clean(struct od_sampler *s, float *logits)
{
	const double penalty = s->o.repetition_penalty;

	for (uint32_t i = 0; i < s->vocab; i++) {
		const float x = logits[i] > FLT_MAX ? FLT_MAX : logits[i];

		logits[i] = x >= -INFINITY ? x : -INFINITY;
	}
	for (uint32_t i = 0; penalty != 1 && i < s->vocab; i++)
		if (s->seen[i] > 0)
			logits[i] = (float)(logits[i] > 0 ? logits[i] / penalty : logits[i] * penalty);
}

static uint32_t better_one(const float *logits, uint32_t begin, uint32_t end, uint32_t best)
{
	for (uint32_t i = begin; i < end; i++)
		if (logits[i] > logits[best])
			best = i;
	return best;
}

static int32_t best_of(const float *logits, uint32_t n)
{
	const uint32_t block = 64; /* compared at once by a loop that compilers make vectors of */
	uint32_t best = 0, i = 0;

	for (; n - i >= block; i += block) {
		const float high = logits[best];
		int higher = 0;

		for (uint32_t j = 0; j < block; j++)
			higher |= logits[i + j] > high;
		if (higher)
			best = better_one(logits, i, i + block, best);
	}
	return (int32_t)better_one(logits, i, n, best);
}

/* Of the best token it is 1. */
static void weights_of(double *p, const float *logits, uint32_t n, double best, double temperature)
{
	for (uint32_t i = 0; i < n; i++)
		p[i] = exp_same_everywhere(((double)logits[i] - best) / temperature);
}

static bool better(const struct candidate *a, const struct candidate *b)
{
	return a->logit != b->logit ? a->logit > b->logit : a->id < b->id;
}

static void sift_down(struct candidate *heap, size_t n, size_t i)
{
	struct candidate c = heap[i];
	size_t child;

	while ((child = 2 * i + 1) < n) {
		if (child + 1 < n && better(&heap[child + 1], &heap[child]))
			child++;
		if (!better(&heap[child], &c))
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = c;
}

static void make_heap(struct candidate *c, size_t n)
{
	for (size_t i = n / 2; i-- > 0;)
		sift_down(c, n, i);
}

/* The best of the heap c[0..n) changes places with its last element. */
static void pop(struct candidate *c, size_t n)
{
	struct candidate top = c[0];

	c[0] = c[n - 1];
	sift_down(c, n - 1, 0);
	c[n - 1] = top;
}

/* Both leave what they keep at the end of cand, the best last, and sort nothing else. total: of all weights.
 * A token stays while those before it weigh less than top_p of all. */
static size_t keep_top_p(struct od_sampler *s, double total)
{
	size_t n = s->vocab, kept = 0;
	double sum = 0;

	make_heap(s->cand, n);
	while (kept < n && (kept == 0 || sum < s->o.top_p * total)) {
		pop(s->cand, n - kept++);
		sum += s->cand[n - kept].p;
	}
	return kept;
}

static size_t keep_top_k(struct od_sampler *s, double best)
{
	size_t n = s->vocab, kept = 0;
	double total = 0, sum = 0;

	make_heap(s->cand, n);
	while (kept < s->o.top_k) {
		struct candidate *c = &s->cand[n - 1 - kept];

		pop(s->cand, n - kept++);
		weights_of(&c->p, &c->logit, 1, best, s->o.temperature);
		total += c->p;
	}
	for (kept = 0; kept < s->o.top_k && (kept == 0 || sum < s->o.top_p * total); kept++)
		sum += s->cand[n - 1 - kept].p;
	return kept;
}

/* Candidates of weight p[0..n) (best last when sorted); one number decides. */
static int32_t pick(struct od_sampler *s, const struct candidate *c, size_t n)
{
	double sum = 0, at, floor = s->o.min_p; /* the best one's weight is 1 */
	int32_t last = c[n - 1].id;

	for (size_t i = n; i-- > 0;)
		if (c[i].p >= floor)
			sum += c[i].p;
	at = draw(s) * sum;
	for (size_t i = n; i-- > 0;) {
		if (c[i].p < floor || c[i].p == 0)
			continue;
		last = c[i].id;
		at -= c[i].p;
		if (at < 0)
			break;
	}
	return last; /* rounding may leave at above zero: then the last one it could be */
}

/* All tokens as candidates; returns the sum of their weights. */
static double weigh(struct od_sampler *s, const float *logits, double best)
{
	double total = 0, p[WEIGHED];

	for (uint32_t at = 0, n; at < s->vocab; at += n) {
		n = s->vocab - at < WEIGHED ? s->vocab - at : WEIGHED;
		weights_of(p, logits + at, n, best, s->o.temperature);
		for (uint32_t i = 0; i < n; i++) {
			s->cand[at + i] = (struct candidate){ p[i], logits[at + i], (int32_t)(at + i) };
			total += p[i];
		}
	}
	return total;
}

int32_t od_sampler_sample(struct od_sampler *s, float *logits, float *margin)
{
	bool few = s->o.top_k > 0 && s->o.top_k < s->vocab; /* then only they need an exp */
	double total = 0, best;
	size_t n = s->vocab;
	int32_t first;

	if (margin != NULL)
		*margin = 0;
	clean(s, logits);
	first = best_of(logits, s->vocab);
	if (s->o.temperature == 0 || !(logits[first] >= -FLT_MAX)) /* greedy, or nothing is possible */
		return first;
	best = logits[first];
	if (!few)
		total = weigh(s, logits, best);
	for (uint32_t i = 0; few && i < s->vocab; i++)
		s->cand[i] = (struct candidate){ 0, logits[i], (int32_t)i };
	if (few)
		n = keep_top_k(s, best);
	else if (s->o.top_p < 1)
		n = keep_top_p(s, total);
	return pick(s, s->cand + s->vocab - n, n);
}

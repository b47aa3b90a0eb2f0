#include "common/model/sampler.h"

#include "common/base/same_math.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WINDOW (1u << 24) /* bounds the ring of recent tokens */
#define WEIGHED 256u	      /* logits at a time */
#define RACED 32u	      /* tokens that enter a race, or do not, together */

struct candidate {
	double p; /* exp of the distance to the best, over temperature */
	float logit;
	int32_t id;
};

struct od_sampler {
	struct od_sampler_opts o;
	uint32_t vocab;
	uint64_t draws;	 /* tokens chosen so far */
	uint32_t *seen;	 /* [vocab]: how often a token stands in the window */
	uint32_t *drawn; /* [vocab]: how often a token was chosen; NULL without penalties for that */
	struct od_logit_bias *bias; /* [o.n_logit_bias] */
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
	if (rc == OD_OK)
		rc = in_range("frequency_penalty", o->frequency_penalty, -OD_MAX_PENALTY, OD_MAX_PENALTY, err);
	if (rc == OD_OK)
		rc = in_range("presence_penalty", o->presence_penalty, -OD_MAX_PENALTY, OD_MAX_PENALTY, err);
	if (rc == OD_OK && o->n_logit_bias > OD_MAX_LOGIT_BIAS)
		rc = od_fail(err, OD_ERR_ARG, "sampling: logit_bias: expected at most %u tokens, found %zu", OD_MAX_LOGIT_BIAS,
			     o->n_logit_bias);
	for (size_t i = 0; rc == OD_OK && i < o->n_logit_bias; i++)
		rc = in_range("logit_bias", (double)o->logit_bias[i].bias, -OD_MAX_BIAS, OD_MAX_BIAS, err);
	return rc;
}

static bool counts_drawn(const struct od_sampler_opts *o)
{
	return o->frequency_penalty != 0 || o->presence_penalty != 0;
}

bool od_sampler_looks_back(const struct od_sampler_opts *o)
{
	return o->repetition_penalty != 1 || counts_drawn(o);
}

/* ---- random numbers: those of splitmix64 (Steele, Lea and Flood 2014), which computes the i-th of a stream directly ---- */

#define STREAM_STEP 0x9e3779b97f4a7c15u

static inline uint64_t mix(uint64_t z)
{
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* Each draw has a stream of its own: its numbers depend only on the seed, the draw and the token. */
static uint64_t stream_of(uint64_t seed, uint64_t draw)
{
	return mix(mix(seed + STREAM_STEP) + draw * STREAM_STEP);
}

/* The number of a token: an odd multiple of 2^-53, so neither 0 nor 1. */
static inline double uniform(uint64_t stream, uint32_t id)
{
	/* 52 random bits as the fraction of a number from 1 to 2: vectors cannot convert 64-bit integers. Then minus 1 plus 2^-53,
	 * which is exact. */
	const uint64_t bits = 0x3ff0000000000000u | mix(stream + id * STREAM_STEP) >> 12;
	double one_to_two;

	memcpy(&one_to_two, &bits, sizeof(one_to_two));
	return one_to_two - 0x1.fffffffffffffp-1;
}

/* ---- life ---- */

static int copy_bias(struct od_sampler *s, struct od_err *err)
{
	const size_t n = s->o.n_logit_bias;

	if (n == 0)
		return OD_OK;
	s->bias = calloc(n, sizeof(*s->bias));
	if (s->bias == NULL)
		return od_fail(err, OD_ERR_NOMEM, "sampler with %zu biases", n);
	memcpy(s->bias, s->o.logit_bias, n * sizeof(*s->bias));
	for (size_t i = 0; i < n; i++) {
		const int32_t token = s->bias[i].token;

		if (token < 0 || (uint32_t)token >= s->vocab)
			return od_fail(err, OD_ERR_ARG, "sampling: logit_bias: expected tokens of 0 to %u, found %d", s->vocab - 1,
				       token);
		if (s->seen[token]++ > 0)
			return od_fail(err, OD_ERR_ARG, "sampling: logit_bias: token %d is there twice", token);
	}
	for (size_t i = 0; i < n; i++)
		s->seen[s->bias[i].token] = 0;
	return OD_OK;
}

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
	s->seen = calloc(vocab, sizeof(*s->seen));
	s->cand = calloc(vocab, sizeof(*s->cand));
	if (o->repetition_window > 0)
		s->ring = calloc(o->repetition_window, sizeof(*s->ring));
	if (counts_drawn(o))
		s->drawn = calloc(vocab, sizeof(*s->drawn));
	if (s->seen == NULL || s->cand == NULL || (o->repetition_window > 0 && s->ring == NULL) ||
	    (counts_drawn(o) && s->drawn == NULL))
		rc = od_fail(err, OD_ERR_NOMEM, "sampler for %u tokens", vocab);
	if (rc == OD_OK)
		rc = copy_bias(s, err);
	if (rc != OD_OK) {
		od_sampler_free(s);
		return rc;
	}
	*out = s;
	return OD_OK;
}

void od_sampler_free(struct od_sampler *s)
{
	if (s == NULL)
		return;
	free(s->seen);
	free(s->drawn);
	free(s->bias);
	free(s->ring);
	free(s->cand);
	free(s);
}

int od_sampler_prompt(struct od_sampler *s, const int32_t *ids, size_t n)
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

int od_sampler_accept(struct od_sampler *s, const int32_t *ids, size_t n)
{
	for (size_t i = 0; s->drawn != NULL && i < n; i++)
		if (ids[i] >= 0 && (uint32_t)ids[i] < s->vocab)
			s->drawn[ids[i]]++;
	return od_sampler_prompt(s, ids, n);
}

int od_sampler_replay(struct od_sampler *s, const int32_t *ids, size_t n, uint64_t draws)
{
	const size_t prompt = draws < n ? n - (size_t)draws : 0;
	int rc;

	s->draws = draws;
	if (!od_sampler_looks_back(&s->o)) /* the history is not used */
		return OD_OK;
	memset(s->seen, 0, s->vocab * sizeof(*s->seen));
	if (s->drawn != NULL)
		memset(s->drawn, 0, s->vocab * sizeof(*s->drawn));
	s->n_ring = s->at = 0;
	rc = od_sampler_prompt(s, ids, prompt);
	return rc != OD_OK ? rc : od_sampler_accept(s, ids + prompt, n - prompt);
}

/* ---- choosing ---- */

bool od_logits_finite(const float *logits, uint32_t vocab)
{
	int bad = 0;

	for (uint32_t i = 0; i < vocab; i++)
		bad |= logits[i] - logits[i] != 0; /* infinity less itself is NaN, and NaN is not 0 */
	return !bad;
}

/* As vLLM and OpenAI have it: in f32, and one after the other. */
static void penalise_drawn(const struct od_sampler *s, float *logits)
{
	const float frequency = (float)s->o.frequency_penalty, presence = (float)s->o.presence_penalty;

	for (uint32_t i = 0; i < s->vocab; i++) {
		if (s->drawn[i] == 0)
			continue;
		logits[i] -= frequency * (float)s->drawn[i];
		logits[i] -= presence;
	}
}

/* Bias and penalties. Before them NaN becomes minus infinity, infinity the largest number, so that differences exist. */
static void prepare(struct od_sampler *s, float *logits)
{
	const double penalty = s->o.repetition_penalty;

	for (uint32_t i = 0; i < s->vocab; i++) {
		const float x = logits[i] > FLT_MAX ? FLT_MAX : logits[i];

		logits[i] = x >= -INFINITY ? x : -INFINITY;
	}
	for (size_t i = 0; i < s->o.n_logit_bias; i++)
		logits[s->bias[i].token] += s->bias[i].bias;
	for (uint32_t i = 0; penalty != 1 && i < s->vocab; i++)
		if (s->seen[i] > 0)
			logits[i] = (float)(logits[i] > 0 ? logits[i] / penalty : logits[i] * penalty);
	if (s->drawn != NULL)
		penalise_drawn(s, logits);
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
		p[i] = od_exp_same(((double)logits[i] - best) / temperature);
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

/* ---- the draw ---- */

/* An exponential race: a candidate of weight p with the random number u arrives at the time -log(u) / p. The first is chosen;
 * that gives each a probability in proportion to its weight. Every candidate has its own u. So two samplers with the same seed
 * whose logits differ a little mostly choose the same token: they disagree with a probability of at most twice the total
 * variation distance of their distributions, however many tokens are likely. (One number through summed weights disagrees
 * more: a small change of many weights moves all the edges behind them.) */
struct race {
	uint64_t stream;
	double first, second; /* times */
	double open;	      /* the second time, plus more than rounding can take away: a later candidate changes nothing */
	int32_t id;	      /* of the first */
};

static void enter(struct race *r, int32_t id, double p)
{
	const double u = uniform(r->stream, (uint32_t)id);
	double arrival;

	if (1 - u > r->open * p) /* -log(u) > 1 - u */
		return;
	arrival = -od_log_same(u) / p;
	if (arrival < r->first || (arrival == r->first && id < r->id)) {
		r->second = r->first;
		r->first = arrival;
		r->id = id;
	} else if (arrival < r->second) {
		r->second = arrival;
	}
	r->open = r->second * (1 + 1e-9);
}

/* Whether one of the tokens [begin, end) could arrive before the second. Almost always false, and cheaper than exp and log:
 * with d = (best - logit) / temperature its time is at least (1 - u) * (1 + d/8 + (d/8)^2 / 2)^8. scale: 1/8 over temperature. */
static bool may_arrive(const struct race *r, const float *logits, uint32_t begin, uint32_t end, double best, double scale)
{
	int any = 0;

	for (uint32_t i = begin; i < end; i++) {
		const double x = (best - logits[i]) * scale;
		double least = 1 + x * (1 + x * 0.5);

		least *= least;
		least *= least;
		least *= least;
		any |= (1 - uniform(r->stream, i)) * least < r->open;
	}
	return any;
}

/* How much higher the second's logit would have to be for a tie. */
static float lead(const struct race *r, double temperature)
{
	if (!(r->second < INFINITY))
		return INFINITY;
	return (float)(temperature * (od_log_same(r->second) - od_log_same(r->first)));
}

/* All tokens, where neither top-k nor top-p leaves any out. */
static void race_all(const struct od_sampler *s, struct race *r, const float *logits, double best)
{
	/* An infinite scale would make the best token's distance NaN. A smaller one only loosens the bound. */
	const double scale = s->o.temperature > 1e-290 ? 0.125 / s->o.temperature : 1e289;
	double p[RACED];

	for (uint32_t at = 0, n; at < s->vocab; at += n) {
		n = s->vocab - at < RACED ? s->vocab - at : RACED;
		if (!may_arrive(r, logits, at, at + n, best, scale))
			continue;
		weights_of(p, logits + at, n, best, s->o.temperature);
		for (uint32_t i = 0; i < n; i++)
			if (p[i] >= s->o.min_p && p[i] > 0) /* the best one's is 1 */
				enter(r, (int32_t)(at + i), p[i]);
	}
}

/* Those that top-k and top-p leave. */
static void race_few(struct od_sampler *s, struct race *r, const float *logits, double best)
{
	bool few = s->o.top_k > 0 && s->o.top_k < s->vocab; /* then only they need an exp */
	double total = few ? 0 : weigh(s, logits, best);
	size_t n;

	for (uint32_t i = 0; few && i < s->vocab; i++)
		s->cand[i] = (struct candidate){ 0, logits[i], (int32_t)i };
	n = few ? keep_top_k(s, best) : keep_top_p(s, total);
	for (size_t i = s->vocab - n; i < s->vocab; i++)
		if (s->cand[i].p >= s->o.min_p && s->cand[i].p > 0)
			enter(r, s->cand[i].id, s->cand[i].p);
}

int32_t od_sampler_sample(struct od_sampler *s, float *logits, float *margin)
{
	struct race r = { stream_of(s->o.seed, s->draws++), INFINITY, INFINITY, INFINITY, INT32_MAX };
	int32_t first;
	float best;

	if (margin != NULL)
		*margin = 0;
	prepare(s, logits);
	first = best_of(logits, s->vocab);
	best = logits[first];
	if (!(best >= -FLT_MAX)) /* nothing is possible */
		return first;
	if (s->o.temperature == 0) {
		if (margin != NULL) {
			logits[first] = -INFINITY;
			*margin = best - logits[best_of(logits, s->vocab)];
		}
		return first;
	}
	if (s->o.top_p < 1 || (s->o.top_k > 0 && s->o.top_k < s->vocab))
		race_few(s, &r, logits, best);
	else
		race_all(s, &r, logits, best);
	if (margin != NULL)
		*margin = lead(&r, s->o.temperature);
	return r.id;
}

#include "common/model/sampler.h"

#include "common/base/same_math.h"
#include "common/model/candidates.h"
#include "common/model/sampler_random.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WINDOW (1u << 24) /* bounds the ring of recent tokens */
#define COMPARED 64u /* logits of which the highest is known */
#define WEIGHED 256u /* logits weighed at a time */
#define RACED 32u /* tokens that enter a race, or do not, together */
#define XTC_NUMBER UINT32_MAX /* XTC's random number is that of this id, which is no token's */

struct od_sampler {
	struct od_sampler_opts o;
	uint32_t vocab;
	uint64_t draws; /* tokens chosen so far */
	uint32_t *seen; /* [vocab]: how often a token stands in the window */
	uint32_t *drawn; /* [vocab]: how often a token was chosen; NULL without penalties for that */
	struct od_logit_bias *bias; /* [o.n_logit_bias] */
	int32_t *late; /* [o.n_late] */
	int32_t *ring; /* [repetition_window], NULL without a window */
	uint32_t n_ring, at; /* filled entries, the oldest one */
	float *high; /* highest of each COMPARED logits */
	struct od_candidate *cand; /* [vocab]; what the filters may keep */
	struct od_dry *dry; /* NULL: off */
};

void od_sampler_defaults(struct od_sampler_opts *o)
{
	*o = (struct od_sampler_opts){ .top_p = 1,
				       .typical_p = 1,
				       .top_n_sigma = -1,
				       .xtc_threshold = 0.1,
				       .dynatemp_exponent = 1,
				       .repetition_penalty = 1 };
	od_dry_defaults(&o->dry);
}

static int in_range(const char *name, double v, double min, double max, struct od_err *err)
{
	if (v >= min && v <= max) /* NaN fails */
		return OD_OK;
	return od_fail(err, OD_ERR_ARG, "sampling: %s: expected %g to %g, found %g", name, min, max, v);
}

/* The samplers of llama.cpp. */
static int check_llama(const struct od_sampler_opts *o, struct od_err *err)
{
	int rc = in_range("typical_p", o->typical_p, 0, 1, err);

	if (rc == OD_OK)
		rc = in_range("top_n_sigma", o->top_n_sigma, -1, OD_MAX_SIGMA, err);
	if (rc == OD_OK)
		rc = in_range("xtc_probability", o->xtc_probability, 0, 1, err);
	if (rc == OD_OK)
		rc = in_range("xtc_threshold", o->xtc_threshold, 0, 1, err);
	if (rc == OD_OK)
		rc = in_range("dynatemp_range", o->dynatemp_range, 0, OD_MAX_DYNATEMP_RANGE, err);
	if (rc == OD_OK)
		rc = in_range("dynatemp_exponent", o->dynatemp_exponent, 0, OD_MAX_DYNATEMP_EXPONENT, err);
	return rc == OD_OK ? od_dry_check(&o->dry, err) : rc;
}

int od_sampler_check(const struct od_sampler_opts *o, struct od_err *err)
{
	int rc = in_range("temperature", o->temperature, 0, 1000, err);
	size_t n = 0;

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
	if (rc == OD_OK)
		rc = check_llama(o, err);
	if (rc == OD_OK && o->n_late > OD_MAX_LATE)
		rc = od_fail(err, OD_ERR_ARG, "sampling: late: expected at most %u tokens, found %zu", OD_MAX_LATE,
			     o->n_late);
	for (size_t i = 0; rc == OD_OK && i < o->n_logit_bias; i++) {
		if (o->logit_bias[i].bias == -INFINITY)
			continue;
		rc = in_range("logit_bias", (double)o->logit_bias[i].bias, -OD_MAX_BIAS, OD_MAX_BIAS, err);
		n++;
	}
	if (rc == OD_OK && n > OD_MAX_LOGIT_BIAS)
		rc = od_fail(err, OD_ERR_ARG, "sampling: logit_bias: expected at most %u tokens, found %zu",
			     OD_MAX_LOGIT_BIAS, n);
	return rc;
}

static bool counts_drawn(const struct od_sampler_opts *o)
{
	return o->frequency_penalty != 0 || o->presence_penalty != 0;
}

bool od_sampler_looks_back(const struct od_sampler_opts *o)
{
	return o->repetition_penalty != 1 || counts_drawn(o) || od_dry_is_on(&o->dry);
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
			return od_fail(err, OD_ERR_ARG, "sampling: logit_bias: expected tokens of 0 to %u, found %d",
				       s->vocab - 1, token);
		if (s->seen[token]++ > 0)
			return od_fail(err, OD_ERR_ARG, "sampling: logit_bias: token %d is there twice", token);
	}
	for (size_t i = 0; i < n; i++)
		s->seen[s->bias[i].token] = 0;
	return OD_OK;
}

static int copy_late(struct od_sampler *s, struct od_err *err)
{
	if (s->o.n_late == 0)
		return OD_OK;
	s->late = calloc(s->o.n_late, sizeof(*s->late));
	if (s->late == NULL)
		return od_fail(err, OD_ERR_NOMEM, "sampler with %zu late tokens", s->o.n_late);
	memcpy(s->late, s->o.late, s->o.n_late * sizeof(*s->late));
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
	s->high = calloc((vocab + COMPARED - 1) / COMPARED, sizeof(*s->high));
	if (o->repetition_window > 0)
		s->ring = calloc(o->repetition_window, sizeof(*s->ring));
	if (counts_drawn(o))
		s->drawn = calloc(vocab, sizeof(*s->drawn));
	if (s->seen == NULL || s->cand == NULL || s->high == NULL || (o->repetition_window > 0 && s->ring == NULL) ||
	    (counts_drawn(o) && s->drawn == NULL))
		rc = od_fail(err, OD_ERR_NOMEM, "sampler for %u tokens", vocab);
	if (rc == OD_OK)
		rc = copy_bias(s, err);
	if (rc == OD_OK)
		rc = copy_late(s, err);
	if (rc == OD_OK && od_dry_is_on(&o->dry))
		rc = od_dry_new(&s->dry, &o->dry, vocab, err);
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
	free(s->late);
	free(s->ring);
	free(s->cand);
	free(s->high);
	od_dry_free(s->dry);
	free(s);
}

int od_sampler_prompt(struct od_sampler *s, const int32_t *ids, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (ids[i] < 0 || (uint32_t)ids[i] >= s->vocab)
			continue;
		if (s->dry != NULL)
			od_dry_add(s->dry, ids[i]);
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
	if (s->drawn != NULL)
		for (size_t i = 0; i < n; i++)
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
	if (s->dry != NULL)
		od_dry_clear(s->dry);
	rc = od_sampler_prompt(s, ids, prompt);
	return rc != OD_OK ? rc : od_sampler_accept(s, ids + prompt, n - prompt);
}

/* ---- choosing ---- */

OD_VECTORS bool od_logits_finite(const float *logits, uint32_t vocab)
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

/* *n: how many there are. */
OD_VECTORS static double sum_of_finite(const float *logits, uint32_t vocab, uint32_t *n)
{
	double sum = 0;

	*n = 0;
	for (uint32_t i = 0; i < vocab; i++) {
		const bool finite = logits[i] >= -FLT_MAX;

		sum += finite ? (double)logits[i] : 0;
		*n += finite;
	}
	return sum;
}

OD_VECTORS static double squares_of_finite(const float *logits, uint32_t vocab, double mean)
{
	double sum = 0;

	for (uint32_t i = 0; i < vocab; i++) {
		const double x = logits[i] >= -FLT_MAX ? (double)logits[i] - mean : 0;

		sum += x * x;
	}
	return sum;
}

/* Logits further than n standard deviations below the highest become impossible. (Tang et al. 2024, "Top-n-sigma: Not
 * All Logits Are You Need"; not counting what is impossible already.) */
static void keep_top_sigma(const struct od_sampler *s, float *logits)
{
	uint32_t n;
	const double sum = sum_of_finite(logits, s->vocab, &n);
	double deviation, high = -INFINITY;

	if (n < 2)
		return;
	deviation = sqrt(squares_of_finite(logits, s->vocab, sum / n) / n);
	for (uint32_t i = 0; i < s->vocab; i++)
		high = (double)logits[i] > high ? (double)logits[i] : high;
	for (uint32_t i = 0; i < s->vocab; i++)
		if ((double)logits[i] < high - s->o.top_n_sigma * deviation)
			logits[i] = -INFINITY;
}

/* Bias, penalties and top-n-sigma. Before them NaN becomes minus infinity, infinity the largest number, so that
 * differences exist. */
OD_VECTORS static void prepare(struct od_sampler *s, float *logits)
{
	const double penalty = s->o.repetition_penalty;

	for (uint32_t i = 0; i < s->vocab; i++) {
		const float x = logits[i] > FLT_MAX ? FLT_MAX : logits[i];

		logits[i] = x >= -INFINITY ? x : -INFINITY;
	}
	for (size_t i = 0; i < s->o.n_logit_bias; i++)
		logits[s->bias[i].token] += s->bias[i].bias;
	if (penalty != 1)
		for (uint32_t i = 0; i < s->vocab; i++) {
			const double x = logits[i] > 0 ? logits[i] / penalty : logits[i] * penalty;

			if (s->seen[i] > 0)
				logits[i] = (float)(x > (double)FLT_MAX ? (double)FLT_MAX : x);
		}
	if (s->drawn != NULL)
		penalise_drawn(s, logits);
	if (s->dry != NULL)
		od_dry_penalise(s->dry, logits);
	for (size_t i = 0; s->draws < s->o.min_draws && i < s->o.n_late; i++)
		if (s->late[i] >= 0 && (uint32_t)s->late[i] < s->vocab)
			logits[s->late[i]] = -INFINITY;
	if (s->o.top_n_sigma > 0)
		keep_top_sigma(s, logits);
}

/* As whole numbers floats have the same order, and compilers make vectors of a loop over those. Its own inverse. */
static inline int32_t ordered(int32_t bits)
{
	return bits ^ (bits >> 31 & INT32_MAX);
}

/* n is at least 1, and no logit is NaN. */
static inline float highest_of(const float *logits, uint32_t n)
{
	int32_t highest = INT32_MIN;
	float high;

	for (uint32_t i = 0; i < n; i++) {
		int32_t bits;

		memcpy(&bits, logits + i, sizeof(bits));
		bits = ordered(bits);
		highest = bits > highest ? bits : highest;
	}
	highest = ordered(highest);
	memcpy(&high, &highest, sizeof(high));
	return high;
}

/* Writes the highest of each COMPARED logits in turn; the last group may be smaller. */
OD_VECTORS static void highest_of_each(float *high, const float *logits, uint32_t n)
{
	for (; n >= COMPARED; n -= COMPARED, logits += COMPARED)
		*high++ = highest_of(logits, COMPARED);
	if (n > 0)
		*high = highest_of(logits, n);
}

/* The first of the highest. */
static int32_t best_of(const struct od_sampler *s, const float *logits)
{
	const uint32_t blocks = (s->vocab + COMPARED - 1) / COMPARED;
	uint32_t best = 0;

	highest_of_each(s->high, logits, s->vocab);
	for (uint32_t b = 1; b < blocks; b++)
		best = s->high[b] > s->high[best] ? b : best;
	best *= COMPARED;
	while (logits[best] != s->high[best / COMPARED])
		best++;
	return (int32_t)best;
}

/* Tokens of at least this logit become candidates, in order; returns how many. s->high is that of the logits. */
static size_t gather(struct od_sampler *s, const float *logits, float least)
{
	size_t n = 0;

	for (uint32_t at = 0; at < s->vocab; at += COMPARED) {
		if (s->high[at / COMPARED] < least)
			continue;
		for (uint32_t i = at; i < at + COMPARED && i < s->vocab; i++)
			if (logits[i] >= least)
				s->cand[n++] = (struct od_candidate){ 0, logits[i], (int32_t)i };
	}
	return n;
}

/* The sum of all weights. */
OD_VECTORS static double weight_of_all(const float *logits, uint32_t n, double best, double temperature)
{
	double sum[8] = { 0 }, p[WEIGHED]; /* eight sums: additions wait for each other */

	for (uint32_t at = 0, some; at < n; at += some) {
		some = n - at < WEIGHED ? n - at : WEIGHED;
		od_weights(p, logits + at, some, best, temperature);
		for (uint32_t i = some; i % 8 != 0; i++)
			p[i] = 0;
		for (uint32_t i = 0; i < some; i += 8)
			for (uint32_t j = 0; j < 8; j++)
				sum[j] += p[i + j];
	}
	return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

/* top_p of 1 keeps all, whatever rounding says. */
static size_t keep_top_p(const struct od_sampler *s, size_t n, double total)
{
	const double enough = s->o.top_p * total;

	return s->o.top_p < 1 ? od_candidates_keep(s->cand, n, enough > 0 ? enough : DBL_MIN) : n;
}

#define MOST_BELOW 700 /* times the temperature: what is further below weighs nothing */

/* Gathers the tokens within 4, 8, 16 ... temperatures of the best, until they weigh enough, with a margin for
 * rounding. */
static size_t top_p(struct od_sampler *s, const float *logits, double best, double temperature)
{
	const double total = weight_of_all(logits, s->vocab, best, temperature),
		     enough = s->o.top_p * total * (1 + 1e-9);
	double sum;
	size_t n;
	int below = 4; /* times the temperature */

	do {
		n = gather(s, logits, below < MOST_BELOW ? (float)(best - below * temperature) : -INFINITY);
		sum = od_candidates_weigh(s->cand, n, best, temperature);
		below *= 2;
	} while (sum < enough && n < s->vocab);
	return keep_top_p(s, n, total);
}

/* At least k tokens have it: the k best blocks of COMPARED have one each. */
static float logit_of_k(struct od_sampler *s, size_t k)
{
	const size_t blocks = (s->vocab + COMPARED - 1) / COMPARED;
	float least = INFINITY;

	if (k > blocks)
		return -INFINITY;
	for (size_t b = 0; b < blocks; b++)
		s->cand[b] = (struct od_candidate){ 1, s->high[b], (int32_t)b };
	(void)od_candidates_keep(s->cand, blocks, (double)k);
	for (size_t i = 0; i < k; i++)
		least = s->cand[i].logit < least ? s->cand[i].logit : least;
	return least;
}

static bool has_top_k(const struct od_sampler *s)
{
	return s->o.top_k > 0 && s->o.top_k < s->vocab;
}

static size_t best_k(struct od_sampler *s, const float *logits)
{
	const size_t k = s->o.top_k, n = gather(s, logits, logit_of_k(s, k));

	for (size_t i = 0; i < n; i++)
		s->cand[i].p = 1;
	(void)od_candidates_keep(s->cand, n, (double)k);
	return k;
}

static size_t top_k(struct od_sampler *s, const float *logits, double best)
{
	const size_t k = best_k(s, logits);

	return keep_top_p(s, k, od_candidates_weigh(s->cand, k, best, s->o.temperature));
}

/* ---- the draw ---- */

/* An exponential race: a candidate of weight p with the random number u arrives at the time -log(u) / p. The first is
 * chosen; that gives each a probability in proportion to its weight. Every candidate has its own u. So two samplers
 * with the same seed whose logits differ a little mostly choose the same token: they disagree with a probability of at
 * most twice the total variation distance of their distributions, however many tokens are likely. (One number through
 * summed weights disagrees more: a small change of many weights moves all the edges behind them.) */
struct race {
	uint64_t stream;
	double best, scale; /* the highest logit; 1/8 over temperature */
	double min_p; /* tokens of less weight do not take part */
	double first, second; /* times */
	/* the second time, plus more than rounding can take away: a later candidate changes nothing */
	double open;
	int32_t id; /* token that arrives first */
};

static void enter(struct race *r, int32_t id, double p)
{
	const double u = od_uniform(r->stream, (uint32_t)id);
	double arrival;

	if (p < r->min_p || p == 0) /* the best one's is 1 */
		return;
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

/* A token's time is at least this times (1 - u), which is cheaper than exp and log: with d = (best - logit) /
 * temperature it is (1 + d/8 + (d/8)^2 / 2)^8, at most one over its weight. */
static inline double least_time(const struct race *r, float logit)
{
	const double x = (r->best - (double)logit) * r->scale;
	double least = 1 + x * (1 + x * 0.5);

	least *= least;
	least *= least;
	return least * least;
}

/* Whether one of the tokens [begin, end) could arrive before the second. Almost always false. */
OD_VECTORS static bool may_arrive(const struct race *r, const float *logits, uint32_t begin, uint32_t end)
{
	int any = 0;

	for (uint32_t i = begin; i < end; i++)
		any |= (1 - od_uniform(r->stream, i)) * least_time(r, logits[i]) < r->open;
	return any;
}

/* Tests RACED tokens at once, and says yes too often: it takes the highest of their logits and the highest of their
 * numbers. 31 bits of a number are enough, because 1 - u is more than the bits that are cut. */
static inline bool one_may_arrive(const struct race *r, const float *logits, uint32_t begin)
{
	const double least = least_time(r, highest_of(logits + begin, RACED));
	uint64_t z = r->stream + begin * OD_STREAM_STEP;
	uint32_t most = 0;

	for (uint32_t i = 0; i < RACED; i++, z += OD_STREAM_STEP) {
		const uint32_t bits = (uint32_t)(od_mix_high(z) >> 33);

		most = bits > most ? bits : most;
	}
	return !((INT32_MAX - most) * least >= r->open * 0x1p31 || least * r->min_p > 1 + 1e-9);
}

/* Skips groups of RACED tokens of which none can arrive; stops at another one, or where fewer are left. */
OD_VECTORS static uint32_t next_to_race(const struct race *r, const float *logits, uint32_t begin, uint32_t end)
{
	while (end - begin >= RACED && !one_may_arrive(r, logits, begin))
		begin += RACED;
	return begin;
}

/* How much higher the second's logit would have to be for a tie. */
static float lead(const struct race *r, double temperature)
{
	if (!(r->second < INFINITY))
		return INFINITY;
	return (float)(temperature * (od_log_same(r->second) - od_log_same(r->first)));
}

/* All tokens, where neither top-k nor top-p leaves any out. */
static void race_all(const struct od_sampler *s, struct race *r, const float *logits)
{
	double p[RACED];

	for (uint32_t at = 0, n; at < s->vocab; at += n) {
		at = next_to_race(r, logits, at, s->vocab);
		n = s->vocab - at < RACED ? s->vocab - at : RACED;
		if (!may_arrive(r, logits, at, at + n))
			continue;
		od_weights(p, logits + at, n, r->best, s->o.temperature);
		for (uint32_t i = 0; i < n; i++)
			enter(r, (int32_t)(at + i), p[i]);
	}
}

/* Races the tokens that top-k and top-p leave. */
static void race_few(struct od_sampler *s, struct race *r, const float *logits)
{
	const size_t n = has_top_k(s) ? top_k(s, logits, r->best) : top_p(s, logits, r->best, s->o.temperature);

	for (size_t i = 0; i < n; i++)
		enter(r, s->cand[i].id, s->cand[i].p);
}

/* ---- the order of llama.cpp ---- */

static bool xtc_is_on(const struct od_sampler *s)
{
	return s->o.xtc_probability > 0 && s->o.xtc_threshold <= 0.5; /* two tokens of more than that do not exist */
}

/* True: the temperature comes last in this draw. Without a filter that looks at it, its place does not matter. */
static bool has_late_temperature(const struct od_sampler *s, bool xtc)
{
	return xtc || s->o.typical_p < 1 || s->o.dynatemp_range > 0 ||
	       (xtc_is_on(s) && (s->o.top_p < 1 || s->o.min_p > 0));
}

/* Leaves out tokens of minus infinity. Few exist where top-k or top-p took what they could get. */
static size_t keep_possible(struct od_candidate *c, size_t n)
{
	size_t kept = 0;

	for (size_t i = 0; i < n; i++)
		if (c[i].logit >= -FLT_MAX)
			c[kept++] = c[i];
	return kept;
}

/* Top-k, typical, top-p and min-p, in this order, of weights at temperature 1; returns how many are left. */
static size_t filter(struct od_sampler *s, const float *logits, double best)
{
	const struct od_sampler_opts *o = &s->o;
	const bool typical = o->typical_p < 1;
	double least = -(double)FLT_MAX, sum = 0;
	size_t n;

	if (!has_top_k(s) && !typical && o->top_p < 1)
		return od_candidates_min_p(s->cand, keep_possible(s->cand, top_p(s, logits, best, 1)), o->min_p);
	if (!typical && o->min_p > 0) /* min-p may keep no more */
		least = best + od_log_same(o->min_p) - 1;
	n = has_top_k(s) ? keep_possible(s->cand, best_k(s, logits)) :
			   gather(s, logits, least > -(double)FLT_MAX ? (float)least : -FLT_MAX);
	od_candidates_weigh(s->cand, n, best, 1);
	if (typical)
		n = od_candidates_typical(s->cand, n, o->typical_p, logits);
	for (size_t i = 0; i < n; i++)
		sum += s->cand[i].p;
	return od_candidates_min_p(s->cand, keep_top_p(s, n, sum), o->min_p);
}

/* Between temperature - range and temperature + range, by how uniform the candidates are. best: their highest logit. */
static double temperature_of(struct od_sampler *s, size_t n, double best)
{
	const double t = s->o.temperature, range = s->o.dynatemp_range, low = t > range ? t - range : 0;
	double part;

	if (range == 0)
		return t;
	od_candidates_weigh(s->cand, n, best, 1);
	part = od_candidates_entropy(s->cand, n);
	if (part > 0)
		part = od_exp_same(s->o.dynatemp_exponent * od_log_same(part));
	else
		part = s->o.dynatemp_exponent > 0 ? 0 : 1;
	return low + (t + range - low) * part;
}

static int32_t best_of_few(const struct od_sampler *s, size_t n, float *margin)
{
	const struct od_candidate *best = od_candidates_best(s->cand, n);
	float second = -INFINITY;

	for (size_t i = 0; i < n; i++)
		if (&s->cand[i] != best && s->cand[i].logit > second)
			second = s->cand[i].logit;
	*margin = best->logit - second;
	return best->id;
}

static int32_t draw_by_llama_order(struct od_sampler *s, struct race *r, const float *logits, bool xtc, float *margin)
{
	size_t n = filter(s, logits, r->best);
	double best, temperature;

	if (xtc)
		n = od_candidates_xtc(s->cand, n, s->o.xtc_threshold);
	best = (double)od_candidates_best(s->cand, n)->logit; /* it may be far below the best of all */
	temperature = temperature_of(s, n, best);
	if (temperature == 0)
		return best_of_few(s, n, margin);
	od_candidates_weigh(s->cand, n, best, temperature);
	r->min_p = 0;
	for (size_t i = 0; i < n; i++)
		enter(r, s->cand[i].id, s->cand[i].p);
	*margin = lead(r, temperature);
	return r->id;
}

int32_t od_sampler_sample(struct od_sampler *s, float *logits, float *margin)
{
	struct race r = { .stream = od_stream_of(s->o.seed, s->draws),
			  .min_p = s->o.min_p,
			  .first = INFINITY,
			  .second = INFINITY,
			  .open = INFINITY,
			  .id = INT32_MAX };
	const bool xtc = xtc_is_on(s) && od_uniform(r.stream, XTC_NUMBER) <= s->o.xtc_probability;
	float best, unused;
	int32_t first;

	margin = margin != NULL ? margin : &unused;
	*margin = 0;
	prepare(s, logits);
	s->draws++;
	first = best_of(s, logits);
	best = logits[first];
	if (!(best >= -FLT_MAX)) /* nothing is possible */
		return first;
	r.best = best;
	if (has_late_temperature(s, xtc))
		return draw_by_llama_order(s, &r, logits, xtc, margin);
	if (s->o.temperature == 0) {
		if (margin != &unused) {
			logits[first] = -INFINITY;
			*margin = best - logits[best_of(s, logits)];
		}
		return first;
	}
	/* An infinite scale would make the best token's distance NaN. A smaller one only loosens the bound. */
	r.scale = s->o.temperature > 1e-290 ? 0.125 / s->o.temperature : 1e289;
	if (s->o.top_p < 1 || has_top_k(s))
		race_few(s, &r, logits);
	else
		race_all(s, &r, logits);
	*margin = lead(&r, s->o.temperature);
	return r.id;
}

#include "common/model/candidates.h"

#include "common/base/same_math.h"
#include "common/model/sampler_random.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

#define WEIGHED 256u /* logits weighed at a time */

OD_VECTORS void od_weights(double *p, const float *logits, uint32_t n, double best, double temperature)
{
	for (uint32_t i = 0; i < n; i++)
		p[i] = od_exp_same(((double)logits[i] - best) / temperature);
}

double od_candidates_weigh(struct od_candidate *c, size_t n, double best, double temperature)
{
	double sum = 0, p[WEIGHED];
	float logits[WEIGHED];

	for (size_t at = 0, some; at < n; at += some) {
		some = n - at < WEIGHED ? n - at : WEIGHED;
		for (size_t i = 0; i < some; i++)
			logits[i] = c[at + i].logit;
		od_weights(p, logits, (uint32_t)some, best, temperature);
		for (size_t i = 0; i < some; i++)
			sum += c[at + i].p = p[i];
	}
	return sum;
}

static bool better(const struct od_candidate *a, const struct od_candidate *b)
{
	return a->logit != b->logit ? a->logit > b->logit : a->id < b->id;
}

static void swap(struct od_candidate *a, struct od_candidate *b)
{
	const struct od_candidate c = *a;

	*a = *b;
	*b = c;
}

/* One of c [n] goes between those that are better and the others; returns its rank. *weight: of the better ones. */
static size_t divide(struct od_candidate *c, size_t n, double *weight)
{
	struct od_candidate *last = &c[n - 1];
	size_t at = 0;

	swap(&c[od_mix(n) % n],
	     last); /* a fixed index (the first, the middle) is a bad pivot where things are sorted */
	*weight = 0;
	for (size_t i = 0; i + 1 < n; i++) {
		if (!better(&c[i], last))
			continue;
		*weight += c[i].p;
		swap(&c[i], &c[at++]);
	}
	swap(&c[at], last);
	return at;
}

/* Sorts nothing that it need not (quickselect: Hoare 1961). */
size_t od_candidates_keep(struct od_candidate *c, size_t n, double enough)
{
	size_t kept = 0;
	double sum = 0, weight;

	while (kept < n) {
		const size_t at = kept + divide(c + kept, n - kept, &weight);

		if (sum + weight < enough) {
			sum += weight + c[at].p;
			kept = at + 1;
		} else {
			n = at;
		}
	}
	return kept;
}

const struct od_candidate *od_candidates_best(const struct od_candidate *c, size_t n)
{
	const struct od_candidate *best = c;

	for (size_t i = 1; i < n; i++)
		best = better(&c[i], best) ? &c[i] : best;
	return best;
}

/* The sum of the weights, and the mean distance of logits to `best`: a surprise is log(sum) less the distance. */
static double sum_and_mean(const struct od_candidate *c, size_t n, double best, double *mean)
{
	double sum = 0;

	*mean = 0;
	for (size_t i = 0; i < n; i++) {
		sum += c[i].p;
		*mean += c[i].p * ((double)c[i].logit - best);
	}
	*mean /= sum;
	return sum;
}

size_t od_candidates_typical(struct od_candidate *c, size_t n, double typical_p, const float *logits)
{
	const double best = (double)od_candidates_best(c, n)->logit;
	double mean, sum = sum_and_mean(c, n, best, &mean);
	size_t kept;

	/* For the time of the selection the best is the one that is nearest to the mean. */
	for (size_t i = 0; i < n; i++)
		c[i].logit = -(float)fabs((double)c[i].logit - best - mean);
	/* It takes the one that exceeds typical_p. */
	kept = od_candidates_keep(c, n, nextafter(typical_p * sum, INFINITY));
	for (size_t i = 0; i < n; i++)
		c[i].logit = logits[c[i].id];
	return kept;
}

size_t od_candidates_min_p(struct od_candidate *c, size_t n, double min_p)
{
	double most = 0;
	size_t kept = 0;

	for (size_t i = 0; i < n; i++)
		most = c[i].p > most ? c[i].p : most;
	for (size_t i = 0; i < n; i++)
		if (c[i].p >= min_p * most)
			c[kept++] = c[i];
	return kept;
}

size_t od_candidates_xtc(struct od_candidate *c, size_t n, double threshold)
{
	const struct od_candidate *last = NULL;
	double sum = 0;
	size_t kept = 0;
	int32_t id;

	for (size_t i = 0; i < n; i++)
		sum += c[i].p;
	for (size_t i = 0; i < n; i++)
		if (c[i].p >= threshold * sum)
			last = last == NULL || better(last, &c[i]) ? &c[i] : last;
	if (last == NULL)
		return n;
	id = last->id;
	for (size_t i = 0; i < n; i++)
		if (c[i].p < threshold * sum || c[i].id == id)
			c[kept++] = c[i];
	return kept;
}

double od_candidates_entropy(const struct od_candidate *c, size_t n)
{
	double mean, sum, entropy;

	if (n < 2)
		return 0;
	sum = sum_and_mean(c, n, (double)od_candidates_best(c, n)->logit, &mean);
	entropy = (od_log_same(sum) - mean) / od_log_same((double)n);
	return entropy < 0 ? 0 : entropy > 1 ? 1 : entropy;
}

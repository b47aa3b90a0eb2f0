#include "common/compute/cpu/cpu_route.h"

#include "common/compute/cpu/cpu_scalar.h"
#include "common/compute/rank.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* A softmax without bias: what decides is a probability already. */
static bool by_probability(const struct od_op_route *o)
{
	return o->router.score == OD_SCORE_SOFTMAX && !o->router.bias;
}

/* Score of a group: its best expert's, or the sum of its two best. */
static float group_score(const float *decides, size_t size, bool two)
{
	uint16_t best[2];

	od_rank(decides, size, best, two && size > 1 ? 2 : 1);
	return two && size > 1 ? decides[best[0]] + decides[best[1]] : decides[best[0]];
}

/* No expert outside of the best groups will be chosen; groups of the n_kept experts are among them. Returns the gap
 * between the worst group that stays and the best that leaves; 1 if it is less, because kept experts decided. */
static float keep_groups(float *decides, const struct od_op_route *o, const uint16_t *kept, size_t n_kept)
{
	const size_t n_groups = o->router.n_groups, top = o->router.top_groups, size = o->n_experts / n_groups;
	const float out = by_probability(o) ? 0 : -INFINITY;
	float score[OD_MAX_GROUPS], best[OD_MAX_GROUPS], least = INFINITY;
	uint16_t order[OD_MAX_GROUPS];

	for (size_t g = 0; g < n_groups; g++)
		best[g] = score[g] = group_score(decides + g * size, size, o->router.group_two);
	for (size_t i = 0; i < n_kept; i++)
		best[kept[i] / size] = INFINITY;
	od_rank(best, n_groups, order, n_groups);
	for (size_t i = 0; i < top; i++)
		least = fminf(least, score[order[i]]);
	for (size_t i = top; i < n_groups; i++)
		for (size_t e = 0; e < size; e++)
			decides[order[i] * size + e] = out;
	return top < n_groups && least >= score[order[top]] ? least - score[order[top]] : 1;
}

/* best [k, and the next, if there is one, for the margin]: first the n_kept that stand there, then the best of the
 * others. Returns the margin. */
static float decide(const struct od_op_route *o, float *decides, uint16_t *best, size_t n_kept)
{
	const size_t n = o->n_experts, k = o->top_k, want = k < n ? k + 1 : k;
	const bool groups = o->router.n_groups > 0 && o->router.score != OD_SCORE_MIXER;
	const float of_groups = groups ? keep_groups(decides, o, best, n_kept) : 1;
	uint16_t ranked[OD_MAX_CHOICE + 1];
	float gap = 1;

	od_rank(decides, n, ranked, want);
	for (size_t i = 0, at = n_kept; at < want; i++)
		if (!od_is_among(best, n_kept, ranked[i]))
			best[at++] = ranked[i];
	if (want > k)
		gap = decides[best[k - 1]] - decides[best[k]];
	return fminf(gap < of_groups ? gap : of_groups, 1);
}

/* decides [n_experts]: logits, which become what experts are chosen by. score: what weights are made of. */
static void score_experts(const struct od_backend *be, const struct od_op_route *o, const float *bias, float *decides,
			  float *score)
{
	const size_t n = o->n_experts;

	switch (o->router.score) {
	case OD_SCORE_SOFTMAX: be->softmax(decides, n); break;
	case OD_SCORE_LOGIT:
	case OD_SCORE_MIXER: break;
	case OD_SCORE_SIGMOID:
		for (size_t e = 0; e < n; e++)
			decides[e] = 1 / (1 + od_exp(-decides[e]));
		break;
	}
	memcpy(score, decides, n * sizeof(*score));
	if (bias != NULL)
		for (size_t e = 0; e < n; e++)
			decides[e] += bias[e];
}

/* ---- Prior ---- */

/* Largest minus smallest; finite for all numbers, and the same in any order. */
static float range_of(const float *x, size_t n)
{
	float most = -INFINITY, least = INFINITY, range;

	for (size_t e = 0; e < n; e++) {
		most = x[e] > most ? x[e] : most;
		least = x[e] < least ? x[e] : least;
	}
	range = most - least;
	return range > 0 ? fminf(range, FLT_MAX) : 0;
}

/* Raises what decides for recent experts and for the best, which stand in best; then decides anew. base: what decides
 * without a prior, before groups; logits if it is a probability. Returns the margin. */
static float prefer(const struct od_backend *be, const struct od_op_route *o, const struct od_cpu_recent *r,
		    const float *base, float *decides, uint16_t *best)
{
	const size_t n = o->n_experts;
	float range = range_of(base, n), by;
	bool raised[OD_MAX_EXPERTS] = { 0 };

	if (r->before != NULL)
		range = r->before->range + (range - r->before->range) / (float)(r->position + 1);
	r->after->range = range;
	by = o->prior.lambda * range;
	for (uint32_t i = 0; r->before != NULL && i < o->prior.recent; i++)
		if (r->before->expert[i] < n)
			raised[r->before->expert[i]] = true;
	for (uint32_t i = 0; i < o->prior.keep; i++)
		raised[best[i]] = true;
	for (size_t e = 0; e < n; e++)
		decides[e] = raised[e] ? base[e] + by : base[e];
	if (by_probability(o))
		be->softmax(decides, n);
	return decide(o, decides, best, o->prior.keep);
}

/* The row's experts are the newest, the one of the least weight first. What was before may come from another program:
 * if it names an expert twice, fewer than `most` may be left. */
static void remember(const struct od_op_route *o, const struct od_cpu_recent *r, const uint16_t *choice,
		     const float *weight)
{
	uint16_t order[OD_MAX_CHOICE], *to = r->after->expert;
	const uint32_t most = o->prior.recent, k = o->top_k;
	uint32_t n = 0;

	for (uint32_t i = 0; i < k; i++) {
		const uint32_t c = k - 1 - i;
		uint32_t at = i;

		for (; at > 0 && weight[order[at - 1]] > weight[c]; at--)
			order[at] = order[at - 1];
		order[at] = (uint16_t)c;
	}
	while (n < k && n < most) {
		to[n] = choice[order[n]];
		n++;
	}
	for (uint32_t i = 0; r->before != NULL && i < most && n < most; i++)
		if (!od_is_among(choice, k, r->before->expert[i]))
			to[n++] = r->before->expert[i];
	while (n < most)
		to[n++] = OD_NO_EXPERT;
}

/* ---- Weights ---- */

/* The weight of a mixer's expert `best`. logits [n_experts]; left: the same, -inf where they were chosen before. */
static float mixed_weight(const struct od_backend *be, const struct od_op_route *o, const float *logits,
			  const float *left, uint16_t best, float *margin)
{
	float share[OD_MAX_EXPERTS];

	for (size_t e = 0; e < o->n_experts; e++) {
		const float away = (logits[best] - logits[e]) / fmaxf(fabsf(logits[e]), logits[best]);

		share[e] = away > o->router.band ? -INFINITY : left[e];
		if (e != best && left[e] != -INFINITY)
			*margin = fminf(*margin, fabsf(away - o->router.band));
	}
	be->softmax(share, o->n_experts);
	return share[best];
}

/* score: logits. */
static void mix(const struct od_backend *be, const struct od_op_route *o, const float *decides, const float *score,
		const uint16_t *best, float *weight, float *margin)
{
	const size_t n = o->n_experts, k = o->top_k, want = k < n ? k + 1 : k;
	float left[OD_MAX_EXPERTS];

	memcpy(left, score, n * sizeof(*left));
	*margin = 1;
	for (size_t i = 0; i < k; i++) {
		if (i + 1 < want)
			*margin = fminf(*margin, decides[best[i]] - decides[best[i + 1]]);
		weight[i] = mixed_weight(be, o, score, left, best[i], margin);
		left[best[i]] = -INFINITY;
	}
}

static void weigh(const struct od_backend *be, const struct od_op_route *o, const float *factor, const float *score,
		  const uint16_t *best, float *weight)
{
	const size_t k = o->top_k;
	float chosen[OD_MAX_CHOICE], sum = 0;

	for (size_t i = 0; i < k; i++)
		chosen[i] = score[best[i]];
	if (o->router.score == OD_SCORE_LOGIT)
		be->softmax(chosen, k);
	for (size_t i = 0; i < k; i++)
		sum += chosen[i];
	sum = o->router.renormalise ? sum + o->router.sum_eps : 1;
	for (size_t i = 0; i < k; i++)
		weight[i] = chosen[i] / sum * o->router.scale * (factor != NULL ? factor[best[i]] : 1);
}

void od_cpu_route_row(const struct od_backend *be, const struct od_op_route *o, const float *bias, const float *factor,
		      const struct od_cpu_recent *recent, float *decides, uint16_t *choice, float *weight,
		      float *margin)
{
	const size_t n = o->n_experts;
	uint16_t best[OD_MAX_CHOICE + 1];
	float score[OD_MAX_EXPERTS], base[OD_MAX_EXPERTS];

	if (o->router.logit_scale != 0 && o->router.score != OD_SCORE_MIXER)
		for (size_t e = 0; e < n; e++)
			decides[e] *= o->router.logit_scale;
	if (recent->after != NULL && by_probability(o))
		memcpy(base, decides, n * sizeof(*base));
	score_experts(be, o, bias, decides, score);
	if (recent->after != NULL && !by_probability(o))
		memcpy(base, decides, n * sizeof(*base));
	*margin = decide(o, decides, best, 0);
	if (recent->after != NULL)
		*margin = prefer(be, o, recent, base, decides, best);
	memcpy(choice, best, o->top_k * sizeof(*choice));
	if (o->router.score == OD_SCORE_MIXER)
		mix(be, o, decides, score, best, weight, margin);
	else
		weigh(be, o, factor, score, best, weight);
	if (recent->after != NULL)
		remember(o, recent, choice, weight);
	if (!by_probability(o))
		be->softmax(decides, n);
}

#include "common/compute/cpu/cpu_route.h"

#include "common/compute/cpu/cpu_scalar.h"
#include "common/compute/rank.h"

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

/* No expert outside of the best groups will be chosen. Returns the gap between the last group that stays and the
 * next. */
static float keep_groups(float *decides, const struct od_op_route *o)
{
	const size_t n_groups = o->router.n_groups, top = o->router.top_groups, size = o->n_experts / n_groups;
	const float out = by_probability(o) ? 0 : -INFINITY;
	float best[OD_MAX_GROUPS];
	uint16_t order[OD_MAX_GROUPS];

	for (size_t g = 0; g < n_groups; g++)
		best[g] = group_score(decides + g * size, size, o->router.group_two);
	od_rank(best, n_groups, order, n_groups);
	for (size_t i = top; i < n_groups; i++)
		for (size_t e = 0; e < size; e++)
			decides[order[i] * size + e] = out;
	return top < n_groups ? best[order[top - 1]] - best[order[top]] : 1.0f;
}

/* decides [n_experts]: logits, which become what experts are chosen by. score: what weights are made of. */
static void score_experts(const struct od_backend *be, const struct od_op_route *o, const float *bias, float *decides,
			  float *score)
{
	const size_t n = o->n_experts;

	if (o->router.logit_scale != 0)
		for (size_t e = 0; e < n; e++)
			decides[e] *= o->router.logit_scale;
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

static void mix(const struct od_backend *be, const struct od_op_route *o, float *logits, uint16_t *choice,
		float *weight, float *margin)
{
	const size_t n = o->n_experts, k = o->top_k, want = k < n ? k + 1 : k;
	uint16_t best[OD_MAX_CHOICE + 1];
	float left[OD_MAX_EXPERTS];

	memcpy(left, logits, n * sizeof(*left));
	od_rank(logits, n, best, want);
	*margin = 1;
	for (size_t i = 0; i < k; i++) {
		choice[i] = best[i];
		if (i + 1 < want)
			*margin = fminf(*margin, logits[best[i]] - logits[best[i + 1]]);
		weight[i] = mixed_weight(be, o, logits, left, best[i], margin);
		left[best[i]] = -INFINITY;
	}
	be->softmax(logits, n);
}

void od_cpu_route_row(const struct od_backend *be, const struct od_op_route *o, const float *bias, const float *factor,
		      float *decides, uint16_t *choice, float *weight, float *margin)
{
	const size_t n = o->n_experts, k = o->top_k, want = k < n ? k + 1 : k;
	uint16_t best[OD_MAX_CHOICE + 1]; /* the k best and the next, for the margin */
	float score[OD_MAX_EXPERTS], chosen[OD_MAX_CHOICE], sum = 0, gap;

	if (o->router.score == OD_SCORE_MIXER) {
		mix(be, o, decides, choice, weight, margin);
		return;
	}
	score_experts(be, o, bias, decides, score);
	*margin = o->router.n_groups > 0 ? keep_groups(decides, o) : 1;
	od_rank(decides, n, best, want);
	for (size_t i = 0; i < k; i++)
		chosen[i] = score[best[i]];
	if (o->router.score == OD_SCORE_LOGIT)
		be->softmax(chosen, k);
	for (size_t i = 0; i < k; i++)
		sum += chosen[i];
	sum = o->router.renormalise ? sum + o->router.sum_eps : 1;
	for (size_t i = 0; i < k; i++) {
		choice[i] = best[i];
		weight[i] = chosen[i] / sum * o->router.scale * (factor != NULL ? factor[best[i]] : 1);
	}
	gap = want > k ? decides[best[k - 1]] - decides[best[k]] : 1.0f;
	*margin = fminf(gap < *margin ? gap : *margin, 1);
	if (!by_probability(o))
		be->softmax(decides, n);
}

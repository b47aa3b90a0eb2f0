#include "common/model/logprobs.h"

#include "common/base/same_math.h"

#include <math.h>

#define BLOCK 256u /* logits at a time, by a loop that compilers make vectors of */

static float highest(const float *logits, uint32_t vocab)
{
	float best = logits[0];

	for (uint32_t i = 1; i < vocab; i++)
		best = logits[i] > best ? logits[i] : best;
	return best;
}

/* Logarithm of the sum of exp(logit - best); the sum is at least 1. */
static double log_of_sum(const float *logits, uint32_t vocab, double best)
{
	double sum = 0, p[BLOCK];

	for (uint32_t at = 0, n; at < vocab; at += n) {
		n = vocab - at < BLOCK ? vocab - at : BLOCK;
		for (uint32_t i = 0; i < n; i++)
			p[i] = od_exp_same((double)logits[at + i] - best);
		for (uint32_t i = 0; i < n; i++)
			sum += p[i];
	}
	return od_log_same(sum);
}

/* A later token with the same logit goes behind. */
static size_t insert(struct od_logprob *top, size_t has, size_t n, int32_t token, float logit)
{
	size_t at = has < n ? has : n - 1;

	for (; at > 0 && top[at - 1].logprob < (double)logit; at--)
		top[at] = top[at - 1];
	top[at] = (struct od_logprob){ token, (double)logit };
	return has < n ? has + 1 : n;
}

double od_logprobs(const float *logits, uint32_t vocab, int32_t token, struct od_logprob *top, size_t n)
{
	const double best = (double)highest(logits, vocab), log_sum = log_of_sum(logits, vocab, best);
	size_t has = 0;

	if (n > 0)
		for (uint32_t i = 0; i < vocab; i++)
			if (has < n || (double)logits[i] > top[n - 1].logprob) /* they are logits until all are there */
				has = insert(top, has, n, (int32_t)i, logits[i]);
	for (size_t i = 0; i < has; i++)
		top[i].logprob = top[i].logprob - best - log_sum;
	return (double)logits[token] - best - log_sum;
}

uint32_t od_logprobs_rank(const float *logits, uint32_t vocab, int32_t token)
{
	const uint32_t own = (uint32_t)token;
	uint32_t rank = 1;

	for (uint32_t i = 0; i < own; i++)
		rank += logits[i] >= logits[own];
	for (uint32_t i = own + 1; i < vocab; i++)
		rank += logits[i] > logits[own];
	return rank;
}

double od_logprobs_any(const float *logits, const int32_t *any, size_t n, struct od_logprob known)
{
	double best = -INFINITY, sum = 0;

	for (size_t i = 0; i < n; i++)
		best = (double)logits[any[i]] > best ? (double)logits[any[i]] : best;
	for (size_t i = 0; i < n; i++)
		sum += od_exp_same((double)logits[any[i]] - best);
	return n > 0 ? best - (double)logits[known.token] + known.logprob + od_log_same(sum) : best;
}

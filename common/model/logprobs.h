/* logprobs.h - log probabilities of tokens by a model's raw logits: log softmax in f64, with the same bits on every
 * CPU.
 * Thread: any. */
#ifndef OD_MODEL_LOGPROBS_H
#define OD_MODEL_LOGPROBS_H

#include <stddef.h>
#include <stdint.h>

struct od_logprob {
	int32_t token;
	double logprob; /* natural logarithm */
};

/* logits [vocab], all finite. Returns the log probability of token, and fills top [n], n at most vocab, with the most
 * probable tokens, best first; ties go to the lower id. */
double od_logprobs(const float *logits, uint32_t vocab, int32_t token, struct od_logprob *top, size_t n);
/* The token's place among all, best first, from 1 on; ties go to the lower id. */
uint32_t od_logprobs_rank(const float *logits, uint32_t vocab, int32_t token);
/* The log probability that the next token is one of these [n], which are distinct: relative to that of one token, which
 * is known. n is 0: -INFINITY. */
double od_logprobs_any(const float *logits, const int32_t *any, size_t n, struct od_logprob known);

#endif

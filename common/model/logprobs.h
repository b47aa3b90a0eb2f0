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

#endif

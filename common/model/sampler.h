/* sampler.h - samples a token from logits, reproducibly by seed. Temperature 0 is greedy.
 *
 * Order: repetition penalty (CTRL: positive logits divided, negative multiplied, once per distinct recent
 * token), temperature, top-k, top-p, min-p, draw. Ties go to the lower id. The draw is an exponential race (the Gumbel-max
 * trick): of two models whose logits differ little, samplers with the same seed mostly choose the same token.
 * Thread: one at a time per sampler. Owner: od_sampler_new's caller. */
#ifndef OD_MODEL_SAMPLER_H
#define OD_MODEL_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct od_sampler_opts {
	double temperature;	   /* 0: greedy */
	uint32_t top_k;		   /* 0: all */
	double top_p;		   /* 1: all */
	double min_p;		   /* 0: all; relative to the best probability */
	double repetition_penalty; /* 1: none */
	uint32_t repetition_window; /* recent tokens that it covers, prompt included; 0: all */
	uint64_t seed;
};

void od_sampler_defaults(struct od_sampler_opts *o); /* greedy, everything off */
OD_MUST_CHECK int od_sampler_check(const struct od_sampler_opts *o, struct od_err *err);

struct od_sampler;
OD_MUST_CHECK int od_sampler_new(struct od_sampler **out, const struct od_sampler_opts *o, uint32_t vocab,
				 struct od_err *err);
void od_sampler_free(struct od_sampler *s); /* NULL ok */
/* Appends tokens to the history (the prompt, then each chosen token); ids outside the vocabulary are ignored. */
OD_MUST_CHECK int od_sampler_accept(struct od_sampler *s, const int32_t *ids, size_t n);
/* Resets the history to these tokens and the number of draws to `draws`. The random numbers of a draw, one for each token of
 * the vocabulary, depend only on the seed and on the number of draws before it. Each od_sampler_sample counts, greedy too. */
OD_MUST_CHECK int od_sampler_replay(struct od_sampler *s, const int32_t *ids, size_t n, uint64_t draws);
bool od_logits_finite(const float *logits, uint32_t vocab); /* [vocab]; true: none is NaN or infinite */
/* logits [vocab] are overwritten. NaN counts as minus infinity; all minus infinity gives token 0, with margin 0. *margin (NULL
 * ok): by how much the logit of another candidate would have to be higher for a tie, after penalties; infinite: there was no
 * other candidate. */
int32_t od_sampler_sample(struct od_sampler *s, float *logits, float *margin);

#endif

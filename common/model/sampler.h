/* sampler.h - samples a token from logits, reproducibly by seed. Temperature 0 is greedy.
 *
 * Order: logit bias; repetition penalty (CTRL: positive logits divided, negative multiplied, once per distinct
 * recent token); frequency penalty (times how often the token was chosen) and presence penalty (once), both
 * subtracted in f32 as OpenAI defines them, and both of chosen tokens only, not of the prompt's; DRY (dry.h); tokens
 * that come too early; top-n-sigma; then, as in vLLM, temperature, top-k, top-p, min-p, draw. With typical sampling,
 * XTC or dynamic temperature (candidates.h) the rest after top-n-sigma is llama.cpp's: top-k, typical, top-p, min-p,
 * XTC, temperature, draw; so all filters then see logits that no temperature has divided, and at temperature 0 the
 * best of what they leave is chosen. Ties go to the lower id. Tokens of minus infinity are never drawn and count
 * nowhere: not for top-n-sigma's deviation, nor for an entropy.
 * The draw is an exponential race (the Gumbel-max trick): of two models whose logits differ little, samplers with
 * the same seed mostly choose the same token.
 * Thread: one at a time per sampler. Owner: od_sampler_new's caller. */
#ifndef OD_MODEL_SAMPLER_H
#define OD_MODEL_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/model/dry.h"

/* OpenAI's limit of frequency_penalty and presence_penalty; its negative is the lower limit */
#define OD_MAX_PENALTY 2.0
#define OD_MAX_BIAS 100.0 /* and -100 at least: as good as certain, and as good as impossible */
#define OD_MAX_SIGMA 1000.0
#define OD_MAX_DYNATEMP_RANGE 1000.0
#define OD_MAX_DYNATEMP_EXPONENT 100.0
#define OD_MAX_LATE 2048u
#define OD_MAX_LOGIT_BIAS 1024u /* entries that are finite */

struct od_logit_bias {
	int32_t token;
	float bias; /* added to its logit; minus infinity: it is never drawn */
};

struct od_sampler_opts {
	double temperature; /* 0: greedy */
	uint32_t top_k; /* 0: all */
	double top_p; /* 1: all */
	double min_p; /* 0: all; relative to the best probability */
	double typical_p; /* 1: all */
	double top_n_sigma; /* 0 and below: all */
	double xtc_probability, xtc_threshold; /* probability 0, or a threshold above 0.5: off */
	double dynatemp_range; /* 0: off; else the temperature is at most this much lower or higher */
	double dynatemp_exponent;
	double repetition_penalty; /* 1: none */
	uint32_t repetition_window; /* recent tokens that it covers, prompt included; 0: all */
	double frequency_penalty; /* 0: none; below 0: chosen tokens become likelier */
	double presence_penalty; /* 0: none */
	struct od_dry_opts dry;
	const struct od_logit_bias *logit_bias; /* [n_logit_bias]; od_sampler_new copies it */
	size_t n_logit_bias;
	uint64_t min_draws; /* tokens of `late` are not drawn before so many draws */
	const int32_t *late; /* [n_late]; od_sampler_new copies it; ids outside the vocabulary are ignored */
	size_t n_late;
	uint64_t seed;
};

void od_sampler_defaults(struct od_sampler_opts *o); /* greedy, everything off */
/* Checks all but the tokens of logit_bias, which need the vocabulary. */
OD_MUST_CHECK int od_sampler_check(const struct od_sampler_opts *o, struct od_err *err);
/* True: what is chosen depends on earlier tokens. */
bool od_sampler_looks_back(const struct od_sampler_opts *o);

struct od_sampler;
/* Refuses a logit_bias that names a token twice, or one outside the vocabulary. */
OD_MUST_CHECK int od_sampler_new(struct od_sampler **out, const struct od_sampler_opts *o, uint32_t vocab,
				 struct od_err *err);
void od_sampler_free(struct od_sampler *s); /* NULL ok */
/* Append tokens to the history: the prompt's, then each chosen one. Ids outside the vocabulary are ignored. */
OD_MUST_CHECK int od_sampler_prompt(struct od_sampler *s, const int32_t *ids, size_t n);
OD_MUST_CHECK int od_sampler_accept(struct od_sampler *s, const int32_t *ids, size_t n);
/* Resets the history to these tokens, of which the last `draws` were chosen (all, if there are fewer), and the number
 * of draws to `draws`. The random numbers of a draw, one for each token of the vocabulary and one for XTC, depend only
 * on the seed and on the number of draws before it. Each od_sampler_sample counts, greedy too. */
OD_MUST_CHECK int od_sampler_replay(struct od_sampler *s, const int32_t *ids, size_t n, uint64_t draws);
bool od_logits_finite(const float *logits, uint32_t vocab); /* [vocab]; true: none is NaN or infinite */
/* logits [vocab] are overwritten. NaN counts as minus infinity; all minus infinity gives token 0, with margin 0.
 * *margin (NULL ok): by how much the logit of another candidate would have to be higher for a tie, after bias and
 * penalties; infinite: there was no other candidate. */
int32_t od_sampler_sample(struct od_sampler *s, float *logits, float *margin);

#endif

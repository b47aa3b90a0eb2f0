/* dry.h - DRY, "don't repeat yourself": a penalty for tokens that would prolong a repetition. By p-e-w's proposal to
 * text-generation-webui (pull request 5677), as llama.cpp defines it.
 *
 * The text's end is compared with every earlier place. Where its last n tokens stand there too, and n is at least
 * allowed_length, multiplier * base^(n - allowed_length) is subtracted from the logit of the token behind that place;
 * the greatest n counts. No match reaches back past a breaker, and tokens that are breakers are not penalised.
 * Thread: one at a time per od_dry. Owner: od_dry_new's caller. */
#ifndef OD_MODEL_DRY_H
#define OD_MODEL_DRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define OD_DRY_BASE 1.75 /* llama.cpp's */
#define OD_MAX_DRY_BASE 100.0
#define OD_MAX_DRY_MULTIPLIER 100.0
#define OD_MAX_DRY_WINDOW (1u << 24) /* tokens */
#define OD_MAX_DRY_BREAKERS 32768u /* n_breakers that a shadow takes */
#define OD_MAX_BREAKER_TOKENS 21u /* a breaker's first token, and what has to follow */

struct od_dry_opts {
	double multiplier; /* 0: off */
	double base; /* at least 1 */
	uint32_t allowed_length; /* tokens that may be repeated without a penalty */
	uint32_t window; /* recent tokens that it looks at, prompt included; 0: off */
	/* [n_breakers]: for each breaker the number of its tokens, then these. od_dry_new copies it; od_breakers_find
	 * makes it of texts. */
	const int32_t *breakers;
	size_t n_breakers;
};

void od_dry_defaults(struct od_dry_opts *o); /* off; the rest as llama.cpp has it */
bool od_dry_is_on(const struct od_dry_opts *o);
OD_MUST_CHECK int od_dry_check(const struct od_dry_opts *o, struct od_err *err); /* all but the breakers */

struct od_dry;
OD_MUST_CHECK int od_dry_new(struct od_dry **out, const struct od_dry_opts *o, uint32_t vocab, struct od_err *err);
void od_dry_free(struct od_dry *d); /* NULL ok */
void od_dry_clear(struct od_dry *d); /* forgets the text */
void od_dry_add(struct od_dry *d, int32_t token); /* the token is one of the vocabulary */
void od_dry_penalise(struct od_dry *d, float *logits); /* logits [vocab] */

#endif

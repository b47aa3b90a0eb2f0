/* choice_prompts.h - a prompt with each of some texts behind it, as tokens.
 *
 * Prompt and choice are tokenised as one text, so that words which cross the border are what they would be in any text.
 * Such a word may change the prompt's last tokens. What belongs to the choices then begins, for all of them, where the
 * first one parts from the prompt's own tokens: so all are continuations of one prefix, and can be compared. Behind a
 * prompt of token ids a choice is tokenised by itself. No byte of a choice becomes a control token.
 * Thread: a request thread. Owner: the caller, until odm_choice_prompts_fini. */
#ifndef ODM_CHOICE_PROMPTS_H
#define ODM_CHOICE_PROMPTS_H

#include <jansson.h>

#include "main-node/serve/http/api_error.h"

struct odm_engine;
struct odm_turn;

struct odm_choice_prompts {
	int32_t **ids; /* [n] each has prompt and choice, [n_ids[i]] tokens */
	size_t *n_ids;
	size_t n;
	size_t from; /* tokens that all begin with: the choices' tokens follow */
};

/* texts: an array of strings. prompt: a string or an array of token ids; NULL: the turn's. *out is to be freed also
 * after an error, which names "prompt", "messages" or "choices[3]". */
OD_MUST_CHECK int odm_choice_prompts_make(struct odm_choice_prompts *out, const struct odm_engine *engine,
					  const json_t *prompt, struct odm_turn *turn, const json_t *texts,
					  struct odm_api_error *e);
void odm_choice_prompts_fini(struct odm_choice_prompts *p);

#endif

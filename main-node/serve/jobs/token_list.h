/* token_list.h - tokens of a text with their log probabilities, as the engine reports them, copied for another thread.
 *
 * Thread: one at a time. Owner: the caller, until odm_token_list_fini. */
#ifndef ODM_TOKEN_LIST_H
#define ODM_TOKEN_LIST_H

#include "common/model/logprobs.h"
#include "main-node/engine/engine.h"

struct odm_token_record {
	int32_t token;
	bool of_prompt, has_logprob;
	double logprob, end_logprob; /* as in odm_token, and its rank */
	uint32_t rank;
	size_t n_top;
	struct od_logprob top[ODM_MAX_LOGPROBS]; /* best first */
};

struct odm_token_list {
	struct odm_token_record *record; /* [n] */
	size_t n, cap;
	bool failed; /* out of memory: some are missing */
};

void odm_token_list_add(struct odm_token_list *l, const struct odm_token *t, bool of_prompt);
void odm_token_list_fini(struct odm_token_list *l);

#endif

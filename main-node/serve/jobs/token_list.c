#include "main-node/serve/jobs/token_list.h"

#include <stdlib.h>
#include <string.h>

#define FIRST 16

void odm_token_list_add(struct odm_token_list *l, const struct odm_token *t, bool of_prompt)
{
	const size_t n_top = t->n_top < ODM_MAX_LOGPROBS ? t->n_top : ODM_MAX_LOGPROBS;
	struct odm_token_record *r;

	if (l->n == l->cap) {
		const size_t cap = l->cap > 0 ? 2 * l->cap : FIRST;

		r = l->failed ? NULL : realloc(l->record, cap * sizeof(*r));
		l->failed = r == NULL;
		if (r == NULL)
			return;
		l->record = r;
		l->cap = cap;
	}
	r = &l->record[l->n++];
	*r = (struct odm_token_record){ .token = t->token,
					.of_prompt = of_prompt,
					.has_logprob = t->has_logprob,
					.logprob = t->logprob,
					.end_logprob = t->end_logprob,
					.rank = t->rank,
					.n_top = n_top };
	if (n_top > 0)
		memcpy(r->top, t->top, n_top * sizeof(*r->top));
}

void odm_token_list_fini(struct odm_token_list *l)
{
	free(l->record);
	*l = (struct odm_token_list){ 0 };
}

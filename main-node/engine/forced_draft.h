/* forced_draft.h - drafts from a constraint: where only one text can follow, its tokens are a draft.
 *
 * The tokens are those of the tokenizer for the last token's text and what follows it, as the model learnt them; where
 * these do not begin with the last token, those of what follows alone. The model may write the same text in other
 * tokens: the sampler decides, as about any draft.
 * Thread: any. Owner: nothing is kept. */
#ifndef ODM_FORCED_DRAFT_H
#define ODM_FORCED_DRAFT_H

#include "common/grammar/constraint.h"

/* Writes at most max tokens that may follow `last`, behind which the text is in this state; returns their number. */
size_t odm_forced_draft(struct od_constraint *c, uint32_t state, const struct od_tokenizer *t, int32_t last,
			int32_t *out, size_t max);

#endif

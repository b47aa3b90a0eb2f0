/* answer_space.h - the white space that a chat template writes around the text of an answer.
 *
 * A model writes it, as it was trained on what the template renders; clients should not see it, and where it stays in
 * the content that they send back, the template writes it twice and the prompt is not the text that the model saw. So
 * it is measured on a small conversation and dropped: no more than that, and only where it is.
 * Thread: any. Owner: the caller. */
#ifndef ODM_CHAT_ANSWER_SPACE_H
#define ODM_CHAT_ANSWER_SPACE_H

#include "common/text/tokenizer.h"
#include "main-node/chat/chat_template.h"

#define ODM_MAX_SPACE_BYTES 16

struct odm_answer_space {
	/* between the generation prompt and the text, as tokens: a tokeniser may add some */
	char lead[ODM_MAX_SPACE_BYTES];
	char tail[ODM_MAX_SPACE_BYTES]; /* between the text and what ends it */
};

/* Both are "" where the template does not show them. */
void odm_answer_space_find(struct odm_answer_space *out, const struct odm_chat_template *t,
			   const struct od_tokenizer *tokenizer, bool with_tools);

#endif

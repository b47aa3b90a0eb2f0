/* conversation.h - the messages of a chat: an optional system prompt, then user and assistant by turns.
 *
 * A question becomes part of it only together with its answer, so a failed request leaves no trace.
 * Thread: any. Owner: the caller, from odm_conversation_init to odm_conversation_fini. */
#ifndef ODM_CONVERSATION_H
#define ODM_CONVERSATION_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

struct odm_conversation {
	json_t *messages; /* an array of {"role", "content"} */
	json_t *system; /* a string; NULL: none */
};

OD_MUST_CHECK int odm_conversation_init(struct odm_conversation *c, struct od_err *err);
void odm_conversation_fini(struct odm_conversation *c);

void odm_conversation_clear(struct odm_conversation *c); /* the system prompt stays */
/* Bytes that are not UTF-8 become U+FFFD, here and below. len 0: no system prompt. */
OD_MUST_CHECK int odm_conversation_set_system(struct odm_conversation *c, const char *text, size_t len,
					      struct od_err *err);

/* A new array: the system prompt, the messages, and the question. NULL: out of memory. */
json_t *odm_conversation_ask(const struct odm_conversation *c, const char *question, size_t len);
OD_MUST_CHECK int odm_conversation_add(struct odm_conversation *c, const char *question, size_t question_len,
				       const char *answer, size_t answer_len, struct od_err *err);
/* Removes the last question and its answer. A new reference to the question, a string; NULL: there is none. */
json_t *odm_conversation_take_last(struct odm_conversation *c);

/* The last answer, a string that is borrowed; NULL: there is none. */
json_t *odm_conversation_last_answer(const struct odm_conversation *c);

/* A JSON array of messages, system prompt included, as `od-main template --messages` takes it; mode 0600. replace: over
 * a file that odm_conversation_load takes; else only a new file is written. */
OD_MUST_CHECK int odm_conversation_save(const struct odm_conversation *c, const char *path, bool replace,
					struct od_err *err);
/* Such an array, or an object with "messages". On failure the conversation stays as it was. */
OD_MUST_CHECK int odm_conversation_load(struct odm_conversation *c, const char *path, struct od_err *err);

#endif

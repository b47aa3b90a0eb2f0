/* chat_reply.h - what the events of a streamed /v1/chat/completions mean: text, thoughts, the end, usage, an error.
 *
 * Thread: one at a time. Owner: the caller; nothing here allocates. */
#ifndef ODM_CHAT_REPLY_H
#define ODM_CHAT_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct odm_chat_usage {
	bool known;
	uint64_t prompt_tokens, cached_tokens, completion_tokens;
};

struct odm_chat_reply {
	void (*text)(void *arg, bool thought, const char *text, size_t len); /* UTF-8, as the server sent it; len > 0 */
	void *arg;
	/* Zero to begin with. */
	struct odm_chat_usage usage;
	char finish[32]; /* "stop", "length", ...; "" until it is known */
	bool done; /* [DONE] was read */
	struct od_err err; /* the first: the server's, or an event that makes no sense; later events are skipped */
};

/* data: of an event; NUL-terminated. */
void odm_chat_reply_event(struct odm_chat_reply *r, const char *data, size_t len);
/* Puts the message of an OpenAI error, {"error": {"message": ...}} or {"error": "..."}, into buf as one plain line.
 * False, and "", when the text has another format. */
bool odm_chat_error_text(const char *json, size_t len, char *buf, size_t size);

#endif

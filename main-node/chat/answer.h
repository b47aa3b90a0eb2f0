/* answer.h - what a model's raw text means: content, reasoning and tool calls, as the text comes.
 *
 * Text may be cut anywhere, inside a tag or a UTF-8 character too: what comes back is the same. Content and reasoning are
 * given as soon as they cannot begin a tag; each call when it is complete. A call that is malformed (bad JSON, cut off, too
 * long, too deep, of a function that the request does not have) comes back as content, byte for byte; at the end of the text only its
 * closing tags may be missing. Of white space only line breaks between the parts are dropped, as chat templates put them there:
 * around a thought, and before a call.
 *
 * Calls in a thought are held until the turn ends (then they are calls: the model did not close the thought) or other text or
 * the thought's end follows (then they were thought about).
 *
 * Thread: one at a time. Owner: odm_answer_new's caller; form, tools and sink must outlive the answer. What the sink gets is
 * borrowed for the call. */
#ifndef ODM_CHAT_ANSWER_H
#define ODM_CHAT_ANSWER_H

#include "main-node/chat/call_args.h"

#define ODM_MAX_CALL_BYTES ((size_t)1 << 20)

/* Pieces end between UTF-8 characters, but at bytes that are not UTF-8. */
struct odm_answer_sink {
	void *arg;
	void (*content)(void *arg, const char *text, size_t len);
	void (*reasoning)(void *arg, const char *text, size_t len);
	void (*call)(void *arg, const struct odm_tool_call *call);
};

struct odm_answer_opts {
	const struct odm_chat_form *form;
	bool in_thought;       /* the prompt leaves a thought open: odm_chat_form_in_thought() */
	const json_t *tools;   /* the request's, an array in OpenAI's form; empty: no calls; NULL: not known, any function */
	size_t max_call_bytes; /* 0: ODM_MAX_CALL_BYTES */
};

struct odm_answer;
OD_MUST_CHECK int odm_answer_new(struct odm_answer **out, const struct odm_answer_opts *opts,
				 const struct odm_answer_sink *sink, struct od_err *err);
void odm_answer_free(struct odm_answer *a); /* NULL ok */
/* Fails only for lack of memory, and then for good. */
OD_MUST_CHECK int odm_answer_push(struct odm_answer *a, const char *text, size_t len);
/* The text is complete. */
OD_MUST_CHECK int odm_answer_finish(struct odm_answer *a);
/* The model has ended its turn; text that follows is not its answer and is dropped. */
bool odm_answer_over(const struct odm_answer *a);

#endif

/* answer.h - what a model's raw text means: content, reasoning and tool calls, as the text comes.
 *
 * Text may be cut anywhere, inside a tag or a UTF-8 character too: what comes back is the same. Content and reasoning
 * are given as soon as they cannot begin a tag; each call when it is complete, or as it is written. A call that is
 * malformed (bad JSON, cut off, too long, too deep, of a function that the request does not have) comes back as
 * content, byte for byte; at the end of the text only its closing tags may be missing. Of white space only line breaks
 * between the blocks are dropped, as chat templates put them there: around a thought, and before a call; and what the
 * template writes around an answer (answer_space.h).
 *
 * Calls as they are written (early_calls) begin when call_stream.h says so. What then turns out to be malformed cannot
 * be taken back: such a call ends with the arguments that it has, and its text is not content.
 *
 * Stop strings are looked for in the content only, within each stretch between calls and thoughts. One that is found,
 * and all that follows, is not given, and the answer is over.
 *
 * Calls in a thought are held until the turn ends (then they are calls: the model did not close the thought) or other
 * text or the thought's end follows (then they were thought about).
 *
 * Thread: one at a time. Owner: odm_answer_new's caller; format, tools and sink must outlive the answer. What the sink
 * gets is borrowed for the call. */
#ifndef ODM_CHAT_ANSWER_H
#define ODM_CHAT_ANSWER_H

#include "main-node/chat/call_args.h"

#define ODM_MAX_CALL_BYTES ((size_t)1 << 20)

/* Pieces end between UTF-8 characters, except at bytes that are not UTF-8. */
struct odm_answer_sink {
	void *arg;
	void (*content)(void *arg, const char *text, size_t len);
	void (*reasoning)(void *arg, const char *text, size_t len);
	/* A call begins (id NULL: the format has none). Its arguments follow: together they are the text of a JSON
	 * object if the call ends complete; no piece ends within an escape. Then it ends. */
	void (*call)(void *arg, const char *name, const char *id);
	void (*arguments)(void *arg, const char *text, size_t len);
	void (*call_end)(void *arg, bool complete);
};

struct odm_answer_opts {
	const struct odm_chat_format *format;
	bool in_thought; /* true: the prompt leaves a thought open (odm_chat_format_in_thought) */
	/* the request's tools, an array in OpenAI's format; empty: no calls; NULL: not known, any function */
	const json_t *tools;
	size_t max_call_bytes; /* 0: ODM_MAX_CALL_BYTES */
	bool early_calls; /* false: each call is given when it is complete */
	/* white space that is dropped before the text, and behind its content, if it is there; NULL: nothing */
	const char *lead, *tail;
	const char *const *stop; /* [n_stop] stop strings; need not outlive odm_answer_new */
	size_t n_stop;
};

struct odm_answer;
OD_MUST_CHECK int odm_answer_new(struct odm_answer **out, const struct odm_answer_opts *opts,
				 const struct odm_answer_sink *sink, struct od_err *err);
void odm_answer_free(struct odm_answer *a); /* NULL ok */
/* Fails only for lack of memory, and then for good. */
OD_MUST_CHECK int odm_answer_push(struct odm_answer *a, const char *text, size_t len);
/* Tells that the text is complete. */
OD_MUST_CHECK int odm_answer_finish(struct odm_answer *a);
/* Returns whether the model has ended its turn, or a stop string was found; text that follows is dropped. */
bool odm_answer_over(const struct odm_answer *a);
/* Returns whether a stop string was found: *which of them. */
bool odm_answer_stopped(const struct odm_answer *a, size_t *which);

#endif

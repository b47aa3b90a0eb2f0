/* answer_internal.h - what answer.c (tags) and answer_harmony.c (channels) share. Thread and owner: answer.h. */
#ifndef ODM_CHAT_ANSWER_INTERNAL_H
#define ODM_CHAT_ANSWER_INTERNAL_H

#include "common/text/stopper.h"
#include "main-node/chat/answer.h"
#include "main-node/chat/call_stream.h"

#define MAX_MARK_BYTES 64

enum answer_kind { ANSWER_CONTENT, ANSWER_THOUGHT, N_ANSWER_KINDS };

/* The next byte belongs to one of these. */
enum answer_state {
	IN_CONTENT,
	IN_THOUGHT,
	IN_CALL, /* answer.c: a block of calls */
	BETWEEN_MESSAGES, /* this and the following: harmony */
	IN_HEADER,
	IN_MESSAGE,
	IN_CALL_MESSAGE,
	IS_OVER,
};

/* A tag has one of these effects. */
enum answer_mark {
	MARK_NONE,
	MARK_OPEN,
	MARK_CLOSE,
	MARK_LABEL,
	MARK_CALL,
	MARK_TURN_END,
	MARK_HEADER,
	MARK_BODY,
	MARK_MESSAGE_END
};

struct odm_answer {
	const struct odm_chat_format *format;
	const json_t *tools;
	const struct odm_answer_sink *sink;
	size_t max_call_bytes;
	bool calls; /* calls can be given at all */
	bool early_calls;
	bool failed;

	const char *lead, *tail; /* the rest of the lead that may still come */
	struct od_stopper *stopper; /* NULL: no stop strings */
	bool stopped;

	enum answer_state state;
	char held[MAX_MARK_BYTES]; /* may begin a tag */
	size_t n_held;
	bool fresh; /* only white space since the start, a thought or a call */

	/* Output that the sink has not had yet; all of it is of one kind. */
	struct od_strbuf out;
	enum answer_kind out_kind;
	size_t n_breaks; /* line breaks that are dropped if a tag follows */
	bool any[N_ANSWER_KINDS], any_call;

	/* The block of calls that is being read, with its opening tag. */
	struct od_strbuf block;
	struct odm_call_reader reader;
	size_t furthest; /* the farthest position that a format which did not fit has read */
	enum answer_state block_in;
	bool closed; /* the text has ended, and closing tags were put behind it */
	size_t n_written; /* bytes of the block without those tags */

	/* The call that is given while it is written. */
	struct odm_call_stream stream;
	struct od_strbuf args; /* arguments that the sink has not had yet */

	bool prompt_thought; /* the prompt opened the thought: its tag may come once more */

	/* Calls in a thought are held, with their text. */
	struct odm_tool_call *waiting;
	size_t n_waiting;
	struct od_strbuf waiting_text;

	/* Harmony: the message that is being read. */
	struct od_strbuf header, body;
	enum answer_kind message_kind;
	bool message_began;
};

/* Appends to the output; answer_call() gives a call instead. */
void answer_put(struct odm_answer *a, enum answer_kind kind, const char *text, size_t len);
void answer_call(struct odm_answer *a, struct odm_tool_call *call);
/* Call it after odm_call_stream_*(a->stream, ..., &call, &a->args) has returned `began`. */
void answer_early(struct odm_answer *a, bool began, struct odm_tool_call *call);
/* Ends a call that was begun. whole: the call as it was built, taken; NULL: it is malformed. */
void answer_early_end(struct odm_answer *a, struct odm_tool_call *whole);
void answer_over(struct odm_answer *a);

/* Lists the tags that count in the answer's state: i = 0, 1, ... until NULL. */
const char *answer_harmony_mark(const struct odm_answer *a, size_t i, enum answer_mark *mark);
void answer_harmony_act(struct odm_answer *a, enum answer_mark mark, const char *text, size_t len);
void answer_harmony_text(struct odm_answer *a, char c);
void answer_harmony_finish(struct odm_answer *a);

#endif

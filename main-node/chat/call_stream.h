/* call_stream.h - the arguments of a call while it is written: what is certain before the call is complete.
 *
 * A call is begun when its name is known, is one of the request's functions, and its arguments have begun: the opening
 * brace of JSON, the first parameter's tag. What is appended until the end is, together, always a beginning of the text
 * that odm_tool_call_build() gives for the complete call. Thread: one at a time. Owner: the caller has the struct, zero
 * for each call. */
#ifndef ODM_CHAT_CALL_STREAM_H
#define ODM_CHAT_CALL_STREAM_H

#include "main-node/chat/call_args.h"

struct odm_call_stream {
	bool begun;
	size_t sent; /* bytes of the arguments that were appended */
	/* The fields below belong to the stream. */
	bool ended; /* true: all was appended, or the call cannot be followed */
	bool found; /* `at` has a value */
	size_t at; /* position in the text of the next byte to look at */
	const json_t *function; /* one of the tools; NULL: not known */
	struct odm_json_scan json;
	/* XML formats. */
	size_t n_keys;
	bool string; /* the last value is appended as it comes */
	/* Gemma's notation. */
	size_t member; /* start of the member that is being read */
	size_t member_sent; /* bytes of it that were appended */
	size_t value_at; /* position behind the quote of the next byte to append of its string; 0: no string */
	size_t n_members;
	int depth;
	bool quoted;
};

/* text is the reader's block so far. True: the call begins now, and *call, the caller's then, has its name and id.
 * Appends to args. */
bool odm_call_stream_look(struct odm_call_stream *s, const struct odm_call_reader *r, const char *text,
			  const json_t *tools, struct odm_tool_call *call, struct od_strbuf *args);
/* Does the same for JSON arguments [len] of a call whose name is known. */
bool odm_call_stream_json(struct odm_call_stream *s, struct odm_slice name, struct odm_slice json, const json_t *tools,
			  struct odm_tool_call *call, struct od_strbuf *args);

/* Returns how many bytes of an incomplete text do not end within a UTF-8 character. */
size_t odm_utf8_whole(const char *text, size_t len);
/* Returns how many bytes of an incomplete JSON text end neither within a UTF-8 character nor within an escape. */
size_t odm_json_whole(const char *text, size_t len);

#endif

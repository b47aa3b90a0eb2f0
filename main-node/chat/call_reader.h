/* call_reader.h - reads a block of tool calls, byte by byte, after a format of chat_format.h.
 *
 * The caller keeps the block's text (with open) in one buffer that grows; the reader has offsets into it. What it
 * answers depends on the bytes only, never on how many came at a time. Thread: one at a time. Owner: the caller. */
#ifndef ODM_CHAT_CALL_READER_H
#define ODM_CHAT_CALL_READER_H

#include "common/base/strbuf.h"
#include "main-node/chat/chat_format.h"
#include "main-node/chat/json_text.h"

#define ODM_MAX_NAME_BYTES 256
#define ODM_MAX_PARAMS 256

struct odm_span {
	size_t begin, end;
};

/* The fields of a call, as spans of the block's text; empty: the format has no such field. */
struct odm_call_spans {
	struct odm_span name, id;
	struct odm_span args; /* JSON of the arguments, or of the whole call, or Gemma's notation */
	bool whole; /* args is the whole call */
	size_t n_params;
	struct {
		struct odm_span key, value;
	} param[ODM_MAX_PARAMS];
};

enum odm_read {
	ODM_READ_MORE, /* wait for the next byte */
	ODM_READ_CALL, /* spans has a call; call again */
	ODM_READ_DONE, /* the block ends at pos */
	ODM_READ_BAD, /* no block of this format: bytes from pos on were not looked at, or may begin something else */
};

struct odm_call_reader {
	const struct odm_call_format *format;
	size_t pos; /* the next byte */
	size_t call_begin; /* start of the call that is being read; 0 for the first, which includes open */
	struct odm_call_spans spans;

	/* The fields below belong to the reader. */
	int section;
	const char *at; /* position in the section's text */
	size_t mark; /* start of the field that is being read; SIZE_MAX: not begun */
	struct odm_json_scan json;
	bool key_seen; /* the object's first key */
	const char *value_at; /* a value may go on if what follows its end does not fit; NULL: no such value */
	struct odm_span value;
	bool value_again;
};

void odm_call_reader_init(struct odm_call_reader *r, const struct odm_call_format *format);
/* text[0..len) is the block so far. */
enum odm_read odm_call_read(struct odm_call_reader *r, const char *text, size_t len);
/* Tells that the text ends within the block. If only the tags that close its last call and the block are missing,
 * appends them so that they can be read. False: more is missing. */
bool odm_call_close(const struct odm_call_reader *r, struct od_strbuf *block);

#endif

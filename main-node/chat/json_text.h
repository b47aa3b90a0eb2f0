/* json_text.h - JSON as written: where a value begins and ends, so that its own bytes (spaces, order, 1.50) can be
 * kept.
 *
 * jansson decides what is valid; these only find extents. Thread: any. Owner: slices are borrowed from the text. */
#ifndef ODM_CHAT_JSON_TEXT_H
#define ODM_CHAT_JSON_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/base/strbuf.h"

#define ODM_JSON_MAX_DEPTH 64

struct odm_slice {
	const char *text; /* not NUL-terminated */
	size_t len;
};

/* Finds the end of one JSON object that arrives byte by byte. Zero-initialised. */
struct odm_json_scan {
	int depth;
	bool string, escape;
};
enum odm_json_scanned { ODM_JSON_MORE, ODM_JSON_END, ODM_JSON_BAD };
/* ODM_JSON_BAD: no JSON object goes on with this byte, or it is nested too deep. */
enum odm_json_scanned odm_json_scan(struct odm_json_scan *s, char c);

/* Parses any JSON value, of at most ODM_JSON_MAX_DEPTH levels; integers beyond 63 bits become reals. NULL: not valid.
 * The caller owns the result. */
json_t *odm_json_value(struct odm_slice text);

/* A member of an object, or an element of an array (then key.text is NULL). */
struct odm_json_item {
	struct odm_slice key; /* with its quotes */
	struct odm_slice value; /* without white space around it */
};
/* Walks a valid object or array. *pos is 0 before the first call. False: no more. */
bool odm_json_next(struct odm_slice text, size_t *pos, struct odm_json_item *item);
/* The value of a valid object's member; empty if there is none. */
struct odm_slice odm_json_member(struct odm_slice object, const char *name);

/* Appends text as it stands within a JSON string; only what must be escaped is. */
void odm_json_escape(struct od_strbuf *out, const char *text, size_t len);
/* Does the same with quotes. */
void odm_json_quote(struct od_strbuf *out, const char *text, size_t len);

#endif

/* event_reader.h - server-sent events (WHATWG HTML, section 9.2) out of bytes that come in any pieces.
 *
 * Only "data" and comments are told; other fields are skipped. An event that the stream's end cuts off is dropped.
 * Thread: one at a time. Owner: the caller, until odm_event_reader_fini. */
#ifndef ODM_EVENT_READER_H
#define ODM_EVENT_READER_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/strbuf.h"

#define ODM_MAX_EVENT_BYTES (1u << 20) /* limit of a line, and of an event's data */

struct odm_event_reader {
	/* its lines of data, joined by newlines; NUL-terminated */
	void (*event)(void *arg, const char *data, size_t len);
	void (*comment)(void *arg, const char *text, size_t len);
	void *arg;
	/* Private; zero to begin with. */
	struct od_strbuf line, data;
	bool begun, after_cr, any_data;
};

/* OD_ERR_RANGE: a line or an event is too long. After a failure the reader can only be freed. */
OD_MUST_CHECK int odm_event_reader_feed(struct odm_event_reader *r, const char *bytes, size_t len, struct od_err *err);
void odm_event_reader_fini(struct odm_event_reader *r);

#endif

/* strbuf.h - a text buffer that grows. A failed append sets `failed`, so that callers check once, at the end.
 *
 * Thread: one at a time. Owner: the caller, until od_strbuf_fini or od_strbuf_take. */
#ifndef OD_BASE_STRBUF_H
#define OD_BASE_STRBUF_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

struct od_strbuf {
	char *text; /* malloc'd, NUL-terminated; NULL while empty */
	size_t len, cap;
	bool failed;
};

/* The text so far; "" while the buffer is empty. */
static inline const char *od_strbuf_text(const struct od_strbuf *b)
{
	return b->text != NULL ? b->text : "";
}
void od_strbuf_append(struct od_strbuf *b, const char *text, size_t len);
void od_strbuf_printf(struct od_strbuf *b, const char *fmt, ...) OD_PRINTF(2, 3);
/* The text (malloc'd, never NULL) or NULL if an append failed; the buffer is empty afterwards. */
char *od_strbuf_take(struct od_strbuf *b, size_t *len);
void od_strbuf_fini(struct od_strbuf *b);

#endif

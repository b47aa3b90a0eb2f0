/* text_spans.h - ranges of a text, in order and apart: which of its bytes are a user's, and which a chat template's
 * own.
 *
 * Thread: one at a time. Owner: the caller, until od_text_spans_fini. */
#ifndef OD_TEXT_TEXT_SPANS_H
#define OD_TEXT_TEXT_SPANS_H

#include <stddef.h>

#include "common/base/status.h"

struct od_text_span {
	size_t begin, end; /* bytes */
};

/* All bytes zero is none. */
struct od_text_spans {
	struct od_text_span *v;
	size_t n, cap;
};

/* begin is at or behind the end of the last one; if it is that, the last one grows. An empty span is left out. */
OD_MUST_CHECK int od_text_spans_add(struct od_text_spans *s, size_t begin, size_t end);
/* Leaves out what is at or behind `end`. */
void od_text_spans_cut(struct od_text_spans *s, size_t end);
void od_text_spans_fini(struct od_text_spans *s);

#endif

/* stopper.h - finds stop strings in a stream of text pieces; holds back text that may be the start of one.
 *
 * Thread: one at a time. Owner: od_stopper_new's caller. */
#ifndef OD_TEXT_STOPPER_H
#define OD_TEXT_STOPPER_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

struct od_stopper;
OD_MUST_CHECK int od_stopper_new(struct od_stopper **out, const char *const *stop, size_t n_stop, struct od_err *err);
void od_stopper_free(struct od_stopper *s);
/* Adds a piece; *emit (borrowed until the next call) is the text that may now be shown. *stopped: a stop string was
 * found; it and all later text are not emitted. */
OD_MUST_CHECK int od_stopper_push(struct od_stopper *s, const char *piece, size_t len, const char **emit,
				  size_t *emit_len, bool *stopped);
/* After *stopped: which of the stop strings it was, the first of equal ones. */
size_t od_stopper_found(const struct od_stopper *s);
/* At the end of the text: *emit is the text held back. */
OD_MUST_CHECK int od_stopper_flush(struct od_stopper *s, const char **emit, size_t *emit_len);

#endif

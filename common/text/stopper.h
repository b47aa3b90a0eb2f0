/* stopper.h - stop strings over a stream of text pieces: holds back what may still become one.
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
/* Feed a piece; *emit (borrowed until the next call) is what may now be shown. *stopped: a stop string was
 * found; it and what follows are not part of the text. */
OD_MUST_CHECK int od_stopper_push(struct od_stopper *s, const char *piece, size_t len, const char **emit,
				  size_t *emit_len, bool *stopped);
OD_MUST_CHECK int od_stopper_flush(struct od_stopper *s, const char **emit, size_t *emit_len);

#endif

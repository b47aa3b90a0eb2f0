/* partial.h - the folder PACK.partial in which a pack is built, and its replacement of PACK at the end.
 *
 * PACK exists complete or not at all. A partial that was left behind is resumed when it came from the same
 * files (names, sizes, times, headers) for the same codec, and emptied otherwise.
 * Thread: one od-pack per PACK at a time, held by a lock on the folder. */
#ifndef OD_PACK_PARTIAL_H
#define OD_PACK_PARTIAL_H

#include <limits.h>
#include <stdbool.h>

#include "common/pack/codec.h"
#include "common/pack/import/safetensors.h"

struct od_partial {
	char pack[PATH_MAX], dir[PATH_MAX]; /* PACK, where its links lead, and PACK.partial beside that */
	int lock_fd;			    /* the folder, with a lock on it; -1: none */
	bool force;
	bool resumed; /* what is in it came from the same checkpoint */
	bool emptied; /* something else was in it */
};

/* Refuses an existing PACK unless force. After any return od_partial_close is valid. */
OD_MUST_CHECK int od_partial_open(struct od_partial *p, const char *pack, const struct od_checkpoint *c,
				  enum od_codec codec, bool force, struct od_err *err);
void od_partial_close(struct od_partial *p);
/* The folder and all that od-pack writes there; only while it is open. */
void od_partial_remove(const struct od_partial *p);

/* Everything to disk, then PACK.partial becomes PACK. */
OD_MUST_CHECK int od_partial_publish(struct od_partial *p, struct od_err *err);

#endif

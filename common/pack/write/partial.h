/* partial.h - the folder PACK.partial, in which a pack is built and which replaces PACK at the end.
 *
 * PACK is always complete or absent. A PACK.partial of an earlier run is resumed if it was made from the same files
 * (names, sizes, times, headers) with the same codec; otherwise it is emptied.
 * Thread: one. Owner: the caller. A lock on the folder allows one od-pack per PACK at a time. */
#ifndef OD_PACK_PARTIAL_H
#define OD_PACK_PARTIAL_H

#include <limits.h>
#include <stdbool.h>

#include "common/pack/codec.h"
#include "common/pack/import/safetensors.h"

struct od_partial {
	char pack[PATH_MAX], dir[PATH_MAX]; /* PACK with its links resolved, and PACK.partial beside it */
	int lock_fd; /* the folder, with a lock on it; -1: none */
	bool force;
	bool resumed; /* its contents are from the same checkpoint */
	bool emptied; /* it had other contents */
};

/* Refuses an existing PACK unless force. After any return od_partial_close is valid. */
OD_MUST_CHECK int od_partial_open(struct od_partial *p, const char *pack, const struct od_checkpoint *c,
				  enum od_codec codec, bool force, struct od_err *err);
void od_partial_close(struct od_partial *p);
/* Removes the folder and od-pack's files in it; only while it is open. */
void od_partial_remove(const struct od_partial *p);

/* Syncs everything to disk, then renames PACK.partial to PACK. */
OD_MUST_CHECK int od_partial_publish(struct od_partial *p, struct od_err *err);

#endif

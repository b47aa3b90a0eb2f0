/* pack_write.h - a checkpoint to a pack: what od-pack does.
 *
 * Memory stays bounded (under 512 MiB) whatever the model's size: weights pass through in pieces that are read
 * with pread, never mapped. The same checkpoint gives the same bytes, with any number of threads.
 * Thread: any; starts its own. */
#ifndef OD_PACK_PACK_WRITE_H
#define OD_PACK_PACK_WRITE_H

#include <stdbool.h>

#include "common/pack/expert_load.h"

struct od_pack_job {
	const char *checkpoint, *pack;
	enum od_codec codec;
	unsigned shadows; /* OD_SHADOW_BITs: which to make with it */
	bool force;
	unsigned n_threads;
	/* From the calling thread; both may be NULL. note: a line for the user ("resuming: ..."). */
	void (*note)(void *arg, const char *text);
	od_progress_fn *progress;
	void *arg;
	/* Room for PATH_MAX bytes, or NULL. After a failure: the folder with what is done so far, from which the next
	 * run goes on; "" when there is none. Only I/O errors (a full disk is one) leave one. */
	char *kept;
	/* Shadows that could not be made, for reasons that note was told; or NULL. The pack is complete without them. */
	unsigned *missing;
};

OD_MUST_CHECK int od_pack_write(const struct od_pack_job *job, struct od_err *err);

#endif

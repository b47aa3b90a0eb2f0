/* pack_write.h - makes a pack from a checkpoint (od-pack).
 *
 * Memory is bounded (under 512 MiB) for any model size: weights are read with pread in pieces, never mapped. The same
 * checkpoint gives the same bytes with any number of threads.
 * Thread: any; starts n_threads of its own. */
#ifndef OD_PACK_PACK_WRITE_H
#define OD_PACK_PACK_WRITE_H

#include <stdbool.h>

#include "common/pack/load/expert_load.h"

struct od_pack_job {
	const char *checkpoint, *pack; /* checkpoint: a folder, or a GGUF file */
	enum od_codec codec;
	unsigned shadows; /* OD_SHADOW_BITs: shadows to make with it */
	bool by_default; /* the shadows are the default, not requested (shadow_add.h) */
	bool force;
	unsigned n_threads;
	/* Called on the calling thread; both may be NULL. note: a line for the user ("resuming: ..."). */
	void (*note)(void *arg, const char *text);
	od_progress_fn *progress;
	void *arg;
	/* [PATH_MAX] or NULL. After a failure: the folder of the partial pack, from which the next run continues; ""
	 * when there is none. Only I/O errors (a full disk, for example) leave one. */
	char *kept;
	/* Output, or NULL: the shadows that failed; note reports the reasons. The pack is complete without them. */
	unsigned *missing;
};

OD_MUST_CHECK int od_pack_write(const struct od_pack_job *job, struct od_err *err);

#endif

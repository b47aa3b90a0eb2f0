/* shadow_add.h - shadows for a pack that lacks them: each is made under a temporary name and renamed when it is whole, so
 * that the pack is complete before, during and after.
 * Thread: any; starts its own. */
#ifndef OD_PACK_SHADOW_ADD_H
#define OD_PACK_SHADOW_ADD_H

#include "common/pack/expert_load.h"
#include "common/pack/shadow/shadow_layout.h"

struct od_shadow_add {
	const struct od_pack *pack;
	bool force; /* also where there is one already */
	unsigned n_threads;
	/* From the calling thread; both may be NULL. note: a line for the user. */
	void (*note)(void *arg, const char *text);
	od_progress_fn *progress;
	void *arg;
	uint64_t done_bytes, all_bytes; /* where progress starts and ends; adds the files' bytes */
};

/* Who adds shadows holds the lock of the pack's folder. *fd is the caller's to close, -1 unless OD_OK. */
OD_MUST_CHECK int od_shadow_lock(const struct od_pack *p, int *fd, struct od_err *err);

/* One after the other. Those that are there already stay (unless force, or they are not this pack's); those that could
 * not be made are returned, and note has got the reasons. */
OD_MUST_CHECK unsigned od_shadow_add(const struct od_shadow_add *job, unsigned set);

#endif

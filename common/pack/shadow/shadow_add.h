/* shadow_add.h - adds shadows to a pack. Each is written under a temporary name and renamed when complete, so that the
 * pack stays usable throughout.
 *
 * Thread: any; starts n_threads of its own. */
#ifndef OD_PACK_SHADOW_ADD_H
#define OD_PACK_SHADOW_ADD_H

#include "common/pack/load/expert_load.h"
#include "common/pack/shadow/shadow_layout.h"

struct od_shadow_add {
	const struct od_pack *pack;
	bool force; /* replace existing shadows */
	bool by_default; /* not requested by the user: make only those that are smaller than the experts as published */
	unsigned n_threads;
	/* Called on the calling thread; both may be NULL. note: a line for the user. */
	void (*note)(void *arg, const char *text);
	od_progress_fn *progress;
	void *arg;
	uint64_t done_bytes, all_bytes; /* where progress starts and ends; adds the files' bytes */
};

/* Locks the pack's folder; hold it while adding shadows. The caller closes *fd; -1 unless OD_OK. */
OD_MUST_CHECK int od_shadow_lock(const struct od_pack *p, int *fd, struct od_err *err);

/* Adds the shadows of set one after the other. Existing ones of this pack are kept unless force. Returns the set of
 * those that failed; note reports the reasons. */
OD_MUST_CHECK unsigned od_shadow_add(const struct od_shadow_add *job, unsigned set);

#endif

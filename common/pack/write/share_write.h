/* share_write.h - od-pack --share: writes one worker's share of a pack, to copy it to the worker by hand. The result is
 * a spool: od-worker uses it with --pack, and fills it further with --spool.
 *
 * Thread: any. After an interruption the next run continues. */
#ifndef OD_PACK_SHARE_WRITE_H
#define OD_PACK_SHARE_WRITE_H

#include "common/pack/load/expert_load.h"
#include "common/pack/share.h"

struct od_share_job {
	const char *pack, *dir;
	const char *share; /* "2/4" */
	uint32_t group_size; /* 0: top-k */
	od_progress_fn *progress; /* NULL ok */
	void *arg;
};

/* *n: experts of the share. */
OD_MUST_CHECK int od_share_write(const struct od_share_job *job, uint32_t *n, struct od_err *err);

#endif

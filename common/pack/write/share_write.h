/* share_write.h - od-pack --share: one worker's share of a pack, for people who carry it to the worker by hand. What it
 * writes is a spool, so od-worker uses it with --pack, and goes on filling it with --spool.
 *
 * Thread: any. Interrupted, it goes on where it stopped. */
#ifndef OD_PACK_SHARE_WRITE_H
#define OD_PACK_SHARE_WRITE_H

#include "common/pack/expert_load.h"
#include "common/pack/share.h"

struct od_share_job {
	const char *pack, *dir;
	const char *share;   /* "2/4" */
	uint32_t group_size; /* 0: top-k */
	od_progress_fn *progress; /* NULL ok */
	void *arg;
};

/* *n: experts of the share. */
OD_MUST_CHECK int od_share_write(const struct od_share_job *job, uint32_t *n, struct od_err *err);

#endif

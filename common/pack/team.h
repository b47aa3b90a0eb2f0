/* team.h - processes a list of items with several threads that read from disk.
 *
 * Unlike a pool's, these threads block on reads, so there may be more of them than CPUs. Items are claimed in order;
 * the first error stops the run and is returned.
 * Thread: od_team_run from any thread; the caller works too, and only it calls progress. */
#ifndef OD_PACK_TEAM_H
#define OD_PACK_TEAM_H

#include <stddef.h>
#include <stdint.h>

#include "common/pack/load/expert_load.h"

/* Processes one item; *bytes is added to the progress. thread is 0..n_threads-1. */
typedef int od_team_fn(void *arg, unsigned thread, size_t item, uint64_t *bytes, struct od_err *err);

struct od_team_job {
	od_team_fn *fn;
	void *arg;
	size_t n_items;
	unsigned n_threads; /* at least 1; fewer are started when there are fewer items */
	od_progress_fn *progress; /* NULL ok */
	void *progress_arg;
	uint64_t done_bytes, all_bytes; /* where progress starts, where it ends */
};

OD_MUST_CHECK int od_team_run(const struct od_team_job *job, struct od_err *err);

#endif

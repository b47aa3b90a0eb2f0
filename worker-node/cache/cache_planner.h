/* cache_planner.h - the thread that divides a worker's cache into pools (common/cache/planner.h), outside the token path:
 * first when main has sent this worker's place, with all experts alike, and again whenever uses have doubled. It makes
 * and frees the buffers that a plan needs. Buffers that only the old plan needs are freed before those that only the new one
 * needs are made, so memory never exceeds the budget.
 *
 * Policies other than rank have no pools but one, of experts in the state they are computed on.
 * Thread: start and stop by the owner. Owner: what the options name is borrowed until odw_planner_stop. */
#ifndef ODW_CACHE_PLANNER_H
#define ODW_CACHE_PLANNER_H

#include "common/pack/pack.h"
#include "worker-node/schedule.h"

struct odw_planner;

struct odw_planner_opts {
	const struct od_pack *pack;
	struct odw_schedule *schedule;
	struct odw_bufs *bufs;
	unsigned slot; /* the set of buffers that a slot has, of which there are */
	unsigned n_slots;
	uint32_t n_experts;
	enum od_cache_policy policy;
	struct od_cache_sizes sizes; /* memory in each state */
	uint64_t budget_bytes;	     /* of the pools: what the slots hold for the cache is not in it */
};

/* How many buffers of each kind the slots and this plan need. */
void odw_planner_bufs(const struct odw_planner_opts *o, const struct od_cache_plan *plan, size_t n[OD_N_EXPERT_BUFS]);

OD_MUST_CHECK int odw_planner_start(struct odw_planner **out, const struct odw_planner_opts *opts, struct od_err *err);
void odw_planner_stop(struct odw_planner *p); /* after odw_schedule_stop: joins, frees; NULL ok */

#endif

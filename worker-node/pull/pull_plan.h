/* pull_plan.h - which experts a worker with a spool means to hold, and which it pulls next.
 *
 * Its share (common/pack/share.h) in order of use, as far as the limit goes: the layers of its group, then its part of
 * prefill. What a RUN waits for goes first. An expert that could not be had rests for a while. What is no longer in the
 * share stays on disk until its place is needed.
 * Thread: its owner's (puller, under its lock). Owner: the pack is borrowed. An expert is its number in all layers. */
#ifndef ODW_PULL_PLAN_H
#define ODW_PULL_PLAN_H

#include "common/pack/pack.h"
#include "common/pack/share.h"

#define ODW_NO_EXPERT UINT32_MAX

struct odw_pull_plan {
	const struct od_pack *pack;
	uint32_t n, per_layer;
	struct od_share share;
	uint64_t limit_bytes; /* of experts.bin on disk, headers included; UINT64_MAX: none */
	uint64_t header_bytes, disk_bytes, goal_bytes; /* goal: of the experts that are meant to be held */
	uint32_t n_goal, n_too_many;		       /* too many: of the share, beyond the limit */
	bool *goal, *on_disk, *active; /* [n]; on_disk: in part at least */
	uint64_t *rest_ns;	       /* [n]: not before this */
	uint32_t *order;	       /* [n_goal]: in which to pull */
	uint32_t cursor;	       /* all of order before it is whole, active or resting */
	uint32_t *urgent;	       /* [n], a queue without doubles */
	uint32_t n_urgent;
	uint64_t next_rest_ns; /* when the first of those that rest may be tried again; UINT64_MAX: none rests */
};

/* header_bytes: of one expert. on_disk is filled by the caller afterwards, with odw_pull_plan_keep. */
OD_MUST_CHECK int odw_pull_plan_init(struct odw_pull_plan *p, const struct od_pack *pack, uint64_t limit_bytes,
				     uint64_t header_bytes, struct od_err *err);
void odw_pull_plan_fini(struct odw_pull_plan *p);

void odw_pull_plan_keep(struct odw_pull_plan *p, uint32_t expert); /* there is some of it on disk */
void odw_pull_plan_share(struct odw_pull_plan *p, const struct od_share *share);
/* Also this one, whosever share it is. False: the limit leaves no room. */
bool odw_pull_plan_add(struct odw_pull_plan *p, uint32_t expert);
void odw_pull_plan_urge(struct odw_pull_plan *p, uint32_t expert); /* it is in the goal and absent */

/* The next one to pull, which is active from now on; ODW_NO_EXPERT: none now. */
uint32_t odw_pull_plan_next(struct odw_pull_plan *p, uint64_t now_ns);
bool odw_pull_plan_urgent_waits(const struct odw_pull_plan *p);
/* On disk now that is in nobody's way but the limit's, if room must be made for this one; ODW_NO_EXPERT: none. Its bytes
 * no longer count. */
uint32_t odw_pull_plan_victim(struct odw_pull_plan *p, uint32_t for_expert);
/* No longer active: whole (0), or to be tried again not before rest_ns. */
void odw_pull_plan_end(struct odw_pull_plan *p, uint32_t expert, uint64_t rest_ns);
/* What was whole is not any more. */
void odw_pull_plan_lost(struct odw_pull_plan *p, uint32_t expert);

#endif

/* pull_plan.h - the goal of a worker with a spool: the experts to hold on disk, and the one to pull next.
 *
 * The goal is the worker's share (common/pack/share.h) up to the limit: the layers of its group, then its share of
 * prefill. Experts that a RUN waits for come first. After a failed pull an expert is retried later. Experts no longer
 * in the share stay on disk until their space is needed. An expert is identified by its number over all layers.
 * Thread: the puller's, under its lock. Owner: the caller; the pack is borrowed. */
#ifndef ODW_PULL_PLAN_H
#define ODW_PULL_PLAN_H

#include "common/pack/pack.h"
#include "common/pack/share.h"

#define ODW_NO_EXPERT UINT32_MAX

struct odw_pull_plan {
	const struct od_pack *pack;
	uint32_t n, per_layer;
	struct od_share share;
	uint64_t limit_bytes; /* limit of experts.bin on disk, headers included; UINT64_MAX: none */
	uint64_t header_bytes, disk_bytes, goal_bytes; /* goal: of all experts to hold */
	uint32_t n_goal, n_too_many; /* too many: experts of the share beyond the limit */
	bool *goal, *on_disk, *active; /* [n]; on_disk: at least in part; active: being pulled */
	uint64_t *rest_ns; /* [n]: not to be pulled before this time */
	uint32_t *order; /* [n_goal]: pull order */
	uint32_t cursor; /* all entries of order before it are complete, active or resting */
	uint32_t *urgent; /* [n]: a queue without duplicates */
	uint32_t n_urgent;
	uint64_t next_rest_ns; /* the earliest retry of a resting expert; UINT64_MAX: none rests */
};

/* header_bytes: of one expert. The caller then fills on_disk with odw_pull_plan_keep. */
OD_MUST_CHECK int odw_pull_plan_init(struct odw_pull_plan *p, const struct od_pack *pack, uint64_t limit_bytes,
				     uint64_t header_bytes, struct od_err *err);
void odw_pull_plan_fini(struct odw_pull_plan *p);

void odw_pull_plan_keep(struct odw_pull_plan *p, uint32_t expert); /* a part of it is on disk */
void odw_pull_plan_share(struct odw_pull_plan *p, const struct od_share *share);
/* Adds an expert of any share to the goal. False: the limit leaves no room. */
bool odw_pull_plan_add(struct odw_pull_plan *p, uint32_t expert);
void odw_pull_plan_urge(struct odw_pull_plan *p, uint32_t expert); /* makes an absent expert of the goal urgent */

/* The next expert to pull, which becomes active; ODW_NO_EXPERT: none now. */
uint32_t odw_pull_plan_next(struct odw_pull_plan *p, uint64_t now_ns);
bool odw_pull_plan_urgent_waits(const struct odw_pull_plan *p);
/* An expert outside the goal to delete from disk, if for_expert needs its space; ODW_NO_EXPERT: none. Its bytes are no
 * longer counted. */
uint32_t odw_pull_plan_victim(struct odw_pull_plan *p, uint32_t for_expert);
/* The expert is no longer active: complete (rest_ns 0), or to be retried at rest_ns. */
void odw_pull_plan_end(struct odw_pull_plan *p, uint32_t expert, uint64_t rest_ns);
/* A complete expert was lost (damaged on disk). */
void odw_pull_plan_lost(struct odw_pull_plan *p, uint32_t expert);

#endif

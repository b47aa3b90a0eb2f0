/* cache_planner.h - the thread that splits a cache of experts into pools (common/cache/planner.h), off the token path.
 * It plans when the place is set (od_schedule_place), with uniform use counts, and again whenever the number of uses
 * has doubled. It makes and frees the buffers of a plan: first it frees those of the old plan only, then it makes those
 * of the new one, so memory never exceeds the budget.
 *
 * Policies other than rank have one pool, of experts in the state that is computed on. Thread: start and stop by the
 * owner. Owner: the options' objects are borrowed until od_cache_planner_stop. */
#ifndef OD_RESIDENCY_CACHE_PLANNER_H
#define OD_RESIDENCY_CACHE_PLANNER_H

#include "common/pack/load/expert_form.h"
#include "common/pack/pack.h"
#include "common/residency/schedule.h"

struct od_cache_planner;

struct od_cache_planner_opts {
	const struct od_pack *pack;
	struct od_schedule *schedule;
	struct od_expert_bufs *bufs;
	unsigned slot; /* the set of buffers of a slot */
	unsigned n_slots;
	uint32_t n_experts;
	enum od_cache_policy policy;
	const struct od_cache_sizes *layer; /* [n_moe of the model]: memory of an expert in each state */
	uint64_t budget_bytes; /* limit of the pools; cached data in the n_slots slots is not counted */
};

/* Number of buffers of each kind that the slots and this plan need. */
void od_cache_planner_bufs(const struct od_cache_planner_opts *o, const struct od_cache_plan *plan,
			   size_t n[OD_N_EXPERT_BUFS]);

OD_MUST_CHECK int od_cache_planner_start(struct od_cache_planner **out, const struct od_cache_planner_opts *opts,
					 struct od_err *err);
void od_cache_planner_stop(struct od_cache_planner *p); /* after od_schedule_stop: joins, frees; NULL ok */

#endif

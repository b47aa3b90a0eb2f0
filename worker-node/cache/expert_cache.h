/* expert_cache.h - what a worker keeps of experts beyond their use (od-worker --cache-mib): the state that the policy wants
 * for each, the buffers of those that are in no slot, and what the planner needs to know of their uses (common/cache, ZipMoE
 * section 3.4).
 *
 * A load takes what is here of its expert; when the expert leaves its slot, its buffers are offered. An expert in state F
 * stays in its slot, where it is computed on (schedule.h pins it). In states C, S and E its buffers are here. What the
 * policy wants to keep and was never read completely is forgotten. A worker keeps experts of the layers that its group
 * serves, so nothing before main has told its place.
 * Thread: the schedule's, under its lock. Owner: the caller of odw_cache_new; the buffers are borrowed. All but odw_cache_new
 * take NULL: no cache. */
#ifndef ODW_EXPERT_CACHE_H
#define ODW_EXPERT_CACHE_H

#include "common/cache/pool_policy.h"
#include "common/cache/rank_list.h"
#include "common/pack/share.h"
#include "worker-node/cache/expert_bufs.h"

struct odw_expert_cache;

OD_MUST_CHECK int odw_cache_new(struct odw_expert_cache **out, uint32_t n_moe, uint32_t n_experts, struct odw_bufs *bufs,
				struct od_err *err);
void odw_cache_free(struct odw_expert_cache *c);

/* ---- The policy ---- */

/* The state in which the expert is, or is to be kept. */
enum od_cache_state odw_cache_look(const struct odw_expert_cache *c, uint32_t m, uint32_t expert);
/* The expert is used, and in a slot. Of the changes (odw_cache_layer: whose) the caller makes those of experts in slots. */
struct od_cache_changes odw_cache_use(struct odw_expert_cache *c, uint32_t m, uint32_t expert);
uint32_t odw_cache_layer(const struct odw_expert_cache *c, const struct od_cache_change *change); /* of the model */

/* ---- Buffers of what is in no slot ---- */

unsigned odw_cache_has(const struct odw_expert_cache *c, uint32_t m, uint32_t expert); /* a set */
/* They move to mem. The set of those that did. */
unsigned odw_cache_take(struct odw_expert_cache *c, uint32_t m, uint32_t expert, struct od_expert_mem *mem);
/* What the policy wants of the set `valid` leaves mem and stays. */
void odw_cache_offer(struct odw_expert_cache *c, uint32_t m, uint32_t expert, struct od_expert_mem *mem, unsigned valid);

/* ---- The plan ---- */

/* True: its group has other layers than before, so that nothing is kept any more. When others of the group come and go, the
 * cache stays as it is. */
bool odw_cache_place(struct odw_expert_cache *c, const struct od_share *share);
/* n experts of a layer are asked for together, by a RUN. */
void odw_cache_visit(struct odw_expert_cache *c, uint32_t m, const uint16_t *experts, size_t n);

/* What a plan is made from. */
struct odw_cache_uses {
	uint64_t place;	    /* which it was; 0: none yet */
	uint32_t n_moe;  /* of this worker's group */
	bool begun;	    /* there is a policy */
	uint64_t visits;
	double k, *inclusion; /* [n_experts], the caller's */
};
bool odw_cache_plan_is_due(const struct odw_expert_cache *c);
void odw_cache_uses(struct odw_expert_cache *c, struct odw_cache_uses *u); /* and no longer due */
/* The policy begins, with nothing kept. False: the place is another one by now, and policy stays the caller's. */
bool odw_cache_begin(struct odw_expert_cache *c, uint64_t place, struct od_cache *policy);
/* As odw_cache_use. Nothing, when the place is another one by now. */
struct od_cache_changes odw_cache_set_plan(struct odw_expert_cache *c, uint64_t place, const struct od_cache_plan *plan);

uint64_t odw_cache_changes(const struct odw_expert_cache *c); /* grows when what is kept changes */

#endif

/* expert_cache.h - a worker's expert cache (od-worker --cache-mib; ZipMoE, arXiv 2601.21198, section 3.4): the policy's
 * state for each expert, the buffers of cached experts outside slots, and use counts for the planner.
 *
 * A load takes the cached buffers of its expert; when an expert leaves its slot, its buffers are offered to the cache.
 * An expert in state F stays pinned in its slot (schedule.h); in states C, S and E its buffers are here. If data that
 * the policy wants was never read completely, the policy forgets the expert. A worker caches experts of its group's
 * layers only, so nothing before main has sent PLACE.
 * Thread: the schedule's, under its lock. Owner: the caller of odw_cache_new; bufs is borrowed. All functions except
 * odw_cache_new accept NULL: no cache. */
#ifndef ODW_EXPERT_CACHE_H
#define ODW_EXPERT_CACHE_H

#include "common/cache/pool_policy.h"
#include "common/cache/rank_list.h"
#include "common/pack/load/expert_form.h"
#include "common/pack/share.h"
#include "worker-node/cache/expert_bufs.h"

struct odw_expert_cache;

OD_MUST_CHECK int odw_cache_new(struct odw_expert_cache **out, uint32_t n_moe, uint32_t n_experts,
				struct odw_bufs *bufs, struct od_err *err);
void odw_cache_free(struct odw_expert_cache *c);

/* ---- The policy ---- */

/* The expert's cache state, or the state that the policy wants for it. */
enum od_cache_state odw_cache_look(const struct odw_expert_cache *c, uint32_t m, uint32_t expert);
/* Records a use of an expert that is in a slot. The caller applies the changes of experts in slots (odw_cache_layer
 * gives a change's layer). */
struct od_cache_changes odw_cache_use(struct odw_expert_cache *c, uint32_t m, uint32_t expert);
uint32_t odw_cache_layer(const struct odw_expert_cache *c, const struct od_cache_change *change); /* the model's m */

/* ---- Buffers outside slots ---- */

unsigned odw_cache_has(const struct odw_expert_cache *c, uint32_t m, uint32_t expert); /* the set of cached buffers */
/* Moves the cached buffers to mem and returns their set. */
unsigned odw_cache_take(struct odw_expert_cache *c, uint32_t m, uint32_t expert, struct od_expert_mem *mem);
/* Moves from mem to the cache those buffers of the set `valid` that the policy wants. */
void odw_cache_offer(struct odw_expert_cache *c, uint32_t m, uint32_t expert, struct od_expert_mem *mem,
		     unsigned valid);

/* ---- The plan ---- */

/* Sets this worker's place. True: its group serves other layers now, so the cache was emptied. The cache is kept when
 * only the other workers of the group change. */
bool odw_cache_place(struct odw_expert_cache *c, const struct od_share *share);
/* Records that a RUN asks for n experts of a layer together. */
void odw_cache_visit(struct odw_expert_cache *c, uint32_t m, const uint16_t *experts, size_t n);

/* The planner's input. */
struct odw_cache_uses {
	uint64_t place; /* number of the place that it belongs to; 0: none yet */
	uint32_t n_moe; /* layers of this worker's group */
	bool begun; /* there is a policy */
	uint64_t visits;
	double k, *inclusion; /* [n_experts]: the caller's array */
};
bool odw_cache_plan_is_due(const struct odw_expert_cache *c);
void odw_cache_uses(struct odw_expert_cache *c, struct odw_cache_uses *u); /* fills u; the plan is no longer due */
/* Installs the policy, with an empty cache. False: the place has changed; the caller keeps policy. */
bool odw_cache_begin(struct odw_expert_cache *c, uint64_t place, struct od_cache *policy);
/* Installs a plan; changes as in odw_cache_use, none if the place has changed. */
struct od_cache_changes odw_cache_set_plan(struct odw_expert_cache *c, uint64_t place,
					   const struct od_cache_plan *plan);

uint64_t odw_cache_changes(const struct odw_expert_cache *c); /* grows with every change of the cache's contents */

#endif

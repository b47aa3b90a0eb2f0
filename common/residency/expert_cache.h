/* expert_cache.h - experts that are kept after their use (od-worker --cache-mib; ZipMoE, arXiv 2601.21198, section
 * 3.4): the policy's state for each expert, the buffers of cached experts outside slots, and use counts for the
 * planner.
 *
 * A load takes the cached buffers of its expert; when an expert leaves its slot, its buffers are offered to the
 * cache. An expert in state F stays pinned in its slot (schedule.h); in states C, S and E its buffers are here. If
 * data that the policy wants was never read completely, the policy forgets the expert. Only experts of the layers of
 * the own group are kept (od_expert_cache_place), so none before the place is set. Thread: the schedule's, under its
 * lock. Owner: the caller of od_expert_cache_new; bufs is borrowed. All functions except od_expert_cache_new accept
 * NULL: no cache. */
#ifndef OD_RESIDENCY_EXPERT_CACHE_H
#define OD_RESIDENCY_EXPERT_CACHE_H

#include "common/cache/pool_policy.h"
#include "common/cache/rank_list.h"
#include "common/pack/load/expert_form.h"
#include "common/pack/share.h"
#include "common/residency/expert_bufs.h"

struct od_expert_cache;

OD_MUST_CHECK int od_expert_cache_new(struct od_expert_cache **out, uint32_t n_moe, uint32_t n_experts,
				      struct od_expert_bufs *bufs, struct od_err *err);
void od_expert_cache_free(struct od_expert_cache *c);

/* ---- The policy ---- */

/* The expert's cache state, or the state that the policy wants for it. */
enum od_cache_state od_expert_cache_look(const struct od_expert_cache *c, uint32_t m, uint32_t expert);
/* Records a use of an expert that is in a slot. The caller applies the changes of experts in slots
 * (od_expert_cache_layer gives a change's layer). */
struct od_cache_changes od_expert_cache_use(struct od_expert_cache *c, uint32_t m, uint32_t expert);
uint32_t od_expert_cache_layer(const struct od_expert_cache *c,
			       const struct od_cache_change *change); /* the model's m */

/* ---- Buffers outside slots ---- */

unsigned od_expert_cache_has(const struct od_expert_cache *c, uint32_t m,
			     uint32_t expert); /* the set of cached buffers */
/* Moves the cached buffers to mem and returns their set. */
unsigned od_expert_cache_take(struct od_expert_cache *c, uint32_t m, uint32_t expert, struct od_expert_mem *mem);
/* Moves from mem to the cache those buffers of the set `valid` that the policy wants. */
void od_expert_cache_offer(struct od_expert_cache *c, uint32_t m, uint32_t expert, struct od_expert_mem *mem,
			   unsigned valid);

/* ---- The plan ---- */

/* Sets the place. True: the group serves other layers now, so the cache was emptied. The cache is kept when
 * only the other members of the group change. */
bool od_expert_cache_place(struct od_expert_cache *c, const struct od_share *share);
/* Records that a RUN asks for n experts of a layer together. */
void od_expert_cache_visit(struct od_expert_cache *c, uint32_t m, const uint16_t *experts, size_t n);

/* The planner's input. */
struct od_expert_cache_uses {
	uint64_t place; /* number of the place that it belongs to; 0: none yet */
	uint32_t n_moe, first, step; /* layers of the own group: n_moe, from the first on every step-th */
	bool begun; /* there is a policy */
	uint64_t visits;
	double k, *inclusion; /* [n_experts]: the caller's array */
};
bool od_expert_cache_plan_is_due(const struct od_expert_cache *c);
void od_expert_cache_uses(struct od_expert_cache *c,
			  struct od_expert_cache_uses *u); /* fills u; the plan is no longer due */
/* Installs the policy, with an empty cache. False: the place has changed; the caller keeps policy. */
bool od_expert_cache_begin(struct od_expert_cache *c, uint64_t place, struct od_cache *policy);
/* Installs a plan; changes as in od_expert_cache_use, none if the place has changed. */
struct od_cache_changes od_expert_cache_set_plan(struct od_expert_cache *c, uint64_t place,
						 const struct od_cache_plan *plan);

/* LRU and LFU: another budget; changes as above. */
struct od_cache_changes od_expert_cache_set_budget(struct od_expert_cache *c, uint64_t budget_bytes);

uint64_t od_expert_cache_changes(const struct od_expert_cache *c); /* grows with every change of the cache's contents */

#endif

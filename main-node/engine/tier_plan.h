/* tier_plan.h - the memory of a process that holds a part of the model's experts (--memory): what texts leave is for
 * slots and for a cache of experts.
 *
 * Claims are met in this order: the program and the dense weights; the KV cache of one context and the experts of one
 * layer, without which nothing runs; the prefix cache and snapshots; then experts. Where the device releases memory, KV
 * cache that is not used is lent to experts (FluxMoE, arXiv 2604.02715, section 4.3).
 * Thread: one at a time, while the model is loaded. Owner: the model. */
#ifndef ODM_TIER_PLAN_H
#define ODM_TIER_PLAN_H

#include "common/residency/residency.h"

struct odm_tier_plan {
	struct od_residency_sizes sizes;
	uint64_t memory_bytes; /* limit of the process, or of what it takes of a card's own memory */
	uint64_t limit_bytes; /* memory_bytes less odm_tier_plan_beside() */
	uint64_t reserve_bytes; /* shall stay free for others */
	uint64_t load_bytes; /* stages and buffers of the load threads; of a card those that lie there */
	uint64_t expert_bytes; /* for slots and cache */
	uint64_t
		shared_bytes; /* for slots, cache and the pages that are in use; expert_bytes if pages have their own */
	unsigned n_readers, n_inflaters;
};

struct odm_tier_division {
	unsigned n_slots;
	uint64_t slots_bytes, cache_bytes;
};

/* memory_bytes: the limit of the process; 0: what is free, less a reserve. Sets all but expert_bytes. OD_ERR_ARG: the
 * machine has less. p: all zero, or of an earlier call. */
OD_MUST_CHECK int odm_tier_plan_open(struct odm_tier_plan *p, const struct od_pack *pack, const struct od_device *d,
				     enum od_form form, uint64_t memory_bytes, struct od_err *err);
/* The first three alone, for a process that keeps no experts. */
OD_MUST_CHECK int odm_tier_plan_limit(struct odm_tier_plan *p, const struct od_device *d, uint64_t memory_bytes,
				      struct od_err *err);
/* Memory that this process has already, or will need beside a plan; none on a card with memory of its own. */
uint64_t odm_tier_plan_beside(const struct od_device *d);
/* Host memory beside a card that experts may take, now: what is free, less the reserve of a machine without a card. */
uint64_t odm_tier_plan_host_bytes(void);
void odm_tier_plan_close(struct odm_tier_plan *p); /* all zero is fine */

/* The least that it takes: the load threads, and a slot for each expert that a token uses in a layer. */
uint64_t odm_tier_plan_least(const struct odm_tier_plan *p, uint32_t top_k);
/* Slots as above; the rest of expert_bytes is for the cache. */
struct odm_tier_division odm_tier_plan_divide(const struct odm_tier_plan *p, uint32_t top_k);
/* Memory of all experts. */
uint64_t odm_tier_plan_all_bytes(const struct odm_tier_plan *p, const struct od_config *c);
/* Every expert fits into the cache. */
bool odm_tier_plan_holds_all(const struct odm_tier_plan *p, const struct od_config *c);

#endif

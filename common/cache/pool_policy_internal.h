/* pool_policy_internal.h - what the policies share: the state of every expert and the list of changes. Each policy is a
 * struct od_cache with more behind it. */
#ifndef OD_CACHE_POOL_POLICY_INTERNAL_H
#define OD_CACHE_POOL_POLICY_INTERNAL_H

#include "common/cache/pool_policy.h"

struct od_cache {
	struct od_cache_opts opt;
	uint8_t *state;			/* [n_moe][n_experts] enum od_cache_state */
	struct od_cache_change *change; /* [n_moe * n_experts + 1] */
	size_t n_changes;

	/* Leaves its verdict by cache_keep and cache_drop. */
	void (*use)(struct od_cache *c, uint32_t layer, uint32_t expert);
	void (*forget)(struct od_cache *c, uint32_t layer, uint32_t expert);
	void (*set_plan)(struct od_cache *c, const struct od_cache_plan *plan);
	void (*free)(struct od_cache *c); /* all but c->state, c->change and c itself */
};

OD_MUST_CHECK int odc_check(const struct od_cache_opts *o, struct od_err *err);
/* What all policies have, around c, which becomes *out or is freed; NULL: there was no memory for it. */
OD_MUST_CHECK int odc_open(struct od_cache **out, struct od_cache *c, const struct od_cache_opts *o, struct od_err *err);

/* NULL without memory; everything else is odc_open's. */
struct od_cache *odc_rank_new(const struct od_cache_opts *o);
struct od_cache *odc_queue_new(const struct od_cache_opts *o); /* LRU, LFU */

static inline size_t cache_id(const struct od_cache *c, uint32_t layer, uint32_t expert)
{
	return (size_t)layer * c->opt.n_experts + expert;
}

/* How many experts the policies of one state can keep. */
static inline uint32_t cache_places(const struct od_cache_opts *o)
{
	uint64_t all = (uint64_t)o->n_moe * o->n_experts, fit = o->budget_bytes / o->expert_bytes;

	return (uint32_t)(fit < all ? fit : all);
}

static inline void cache_set(struct od_cache *c, size_t id, enum od_cache_state state)
{
	c->state[id] = (uint8_t)state;
	c->change[c->n_changes++] = (struct od_cache_change){
		.layer = (uint32_t)(id / c->opt.n_experts),
		.expert = (uint32_t)(id % c->opt.n_experts),
		.state = state,
	};
}

#endif

/* pool_policy_internal.h - what the policies have in common: the state of every expert and the list of changes. Each
 * policy's struct begins with a struct od_cache. Only for common/cache. */
#ifndef OD_CACHE_POOL_POLICY_INTERNAL_H
#define OD_CACHE_POOL_POLICY_INTERNAL_H

#include "tests/bench/sim/pool_policy.h"

struct od_cache {
	struct od_cache_opts opt;
	uint8_t *state; /* [n_moe][n_experts] enum od_cache_state */
	struct od_cache_change *change; /* [n_moe * n_experts + 1] */
	size_t n_changes;

	/* Records the changes with cache_set. */
	void (*use)(struct od_cache *c, uint32_t layer, uint32_t expert);
	void (*forget)(struct od_cache *c, uint32_t layer, uint32_t expert);
	void (*set_plan)(struct od_cache *c, const struct od_cache_plan *plan);
	void (*fit)(struct od_cache *c); /* NULL, or evicts until the budget is kept */
	void (*free)(struct od_cache *c); /* frees what is the policy's own: not c->state, c->change or c itself */
};

OD_MUST_CHECK int odc_check(const struct od_cache_opts *o, struct od_err *err);
/* Initialises the common fields of c, which becomes *out or is freed. c NULL: OD_ERR_NOMEM. */
OD_MUST_CHECK int odc_open(struct od_cache **out, struct od_cache *c, const struct od_cache_opts *o,
			   struct od_err *err);

/* Allocate the policy; NULL when out of memory. odc_open initialises the common fields. */
struct od_cache *odc_rank_new(const struct od_cache_opts *o);
struct od_cache *odc_queue_new(const struct od_cache_opts *o); /* LRU, LFU */

static inline size_t cache_id(const struct od_cache *c, uint32_t layer, uint32_t expert)
{
	return (size_t)layer * c->opt.n_experts + expert;
}

/* LRU and LFU: the size of an expert. */
static inline uint64_t cache_layer_bytes(const struct od_cache_opts *o, uint32_t layer)
{
	return o->layer_bytes != NULL ? o->layer_bytes[layer] : o->expert_bytes;
}

/* The number of experts that fit, if all layers have the same size. */
static inline uint32_t cache_capacity(const struct od_cache_opts *o)
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

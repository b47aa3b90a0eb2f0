/* pool_policy_internal.h - what the policies have in common: the state of every expert and the list of changes. Each
 * policy's struct begins with a struct sim_cache. Only for cache_rule.c, pool_policy.c and rank_dispatch.c. */
#ifndef OD_BENCH_POOL_POLICY_INTERNAL_H
#define OD_BENCH_POOL_POLICY_INTERNAL_H

#include "tests/bench/sim/pool_policy.h"

struct sim_cache {
	struct sim_cache_opts opt;
	uint8_t *state; /* [n_moe][n_experts] enum sim_cache_state */
	struct sim_cache_change *change; /* [n_moe * n_experts + 1] */
	size_t n_changes;

	/* Records the changes with cache_set. */
	void (*use)(struct sim_cache *c, uint32_t layer, uint32_t expert);
	void (*free)(struct sim_cache *c); /* frees what is the policy's own: not c->state, c->change or c itself */
};

/* Initialises the common fields of c, which becomes *out or is freed. c NULL: OD_ERR_NOMEM. */
OD_MUST_CHECK int sim_cache_open(struct sim_cache **out, struct sim_cache *c, const struct sim_cache_opts *o,
				 struct od_err *err);

/* NULL when out of memory. sim_cache_open initialises the common fields. */
struct sim_cache *sim_cache_rank_new(const struct sim_cache_opts *o);

static inline size_t cache_id(const struct sim_cache *c, uint32_t layer, uint32_t expert)
{
	return (size_t)layer * c->opt.n_experts + expert;
}

/* The number of experts that fit. */
static inline uint32_t cache_capacity(const struct sim_cache_opts *o)
{
	uint64_t all = (uint64_t)o->n_moe * o->n_experts, fit = o->budget_bytes / o->expert_bytes;

	return (uint32_t)(fit < all ? fit : all);
}

static inline void cache_set(struct sim_cache *c, size_t id, enum sim_cache_state state)
{
	c->state[id] = (uint8_t)state;
	c->change[c->n_changes++] = (struct sim_cache_change){
		.layer = (uint32_t)(id / c->opt.n_experts),
		.expert = (uint32_t)(id % c->opt.n_experts),
		.state = state,
	};
}

#endif

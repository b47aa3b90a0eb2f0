/* pool_policy.h - cache policies: the state in which an expert is kept after a use, and the experts evicted for it.
 * Rank dispatch (ZipMoE, arXiv 2601.21198, section 3.4), LRU and LFU.
 *
 * A policy knows sizes only; the owner of the experts applies the returned changes in order. The same calls drive a
 * worker and a replay of recorded routes, and give the same changes.
 *
 * Rank dispatch has pools of fixed capacity in every layer (planner.h). An expert of rank r goes to the first pool p
 * with r < S_F + ... + S_p that has any capacity. If it is full, the pool's least used expert is evicted. In the paper
 * it then leaves the cache; here it moves to a later pool whose data it has, and so does a newcomer that is itself the
 * least used. Otherwise an expert that drops out of a pool would be absent until its next use, although the planner
 * counts on it. So the paper's margin behind a pool's end is not needed. An expert that fits no pool leaves after its
 * use. LRU and LFU keep every used expert in one state, in one cache for all layers.
 *
 * Thread: one at a time. Deterministic; no allocation after od_cache_new. Owner: od_cache_new's caller. */
#ifndef OD_CACHE_POOL_POLICY_H
#define OD_CACHE_POOL_POLICY_H

#include <stddef.h>

#include "tests/bench/sim/planner.h"

struct od_cache;

enum od_cache_policy { OD_CACHE_RANK, OD_CACHE_LRU, OD_CACHE_LFU };
extern const char *const od_cache_policy_names[]; /* "rank", "lru", "lfu", then NULL */

struct od_cache_opts {
	enum od_cache_policy policy;
	uint32_t n_moe, n_experts;
	struct od_cache_plan plan; /* rank: its pools; n_moe as above */
	bool full_is_stored; /* rank: F is the stored bytes (planes), so that it can shrink to S or E */
	uint64_t budget_bytes, expert_bytes; /* LRU and LFU: expert_bytes is the size in `state` */
	/* LRU and LFU: [n_moe], the size in `state` by layer, used instead. NULL: all layers have the same. Copied */
	const uint64_t *layer_bytes;
	enum od_cache_state state;
};

struct od_cache_change {
	uint32_t layer, expert;
	enum od_cache_state state; /* the new state; OD_CACHE_NONE: evicted */
};

/* Borrowed until the next call. */
struct od_cache_changes {
	const struct od_cache_change *change; /* [n] */
	size_t n;
};

OD_MUST_CHECK int od_cache_new(struct od_cache **out, const struct od_cache_opts *o, struct od_err *err);
void od_cache_free(struct od_cache *c); /* NULL ok */

enum od_cache_state od_cache_look(const struct od_cache *c, uint32_t layer, uint32_t expert);

/* Records a use of the expert; call it when the use is certain, at the latest when it is over. The last change is the
 * expert's own; before it come the experts that are evicted or shrink. */
struct od_cache_changes od_cache_use(struct od_cache *c, uint32_t layer, uint32_t expert);

/* Removes an expert that the owner could not keep. */
void od_cache_forget(struct od_cache *c, uint32_t layer, uint32_t expert);

/* LRU and LFU only: another budget. The changes are the experts that are evicted at once. */
struct od_cache_changes od_cache_set_budget(struct od_cache *c, uint64_t budget_bytes);

/* Rank dispatch only: replaces the pools. The changes are the experts that are evicted at once. */
struct od_cache_changes od_cache_set_plan(struct od_cache *c, const struct od_cache_plan *plan);

#endif

/* pool_policy.h - what of an expert stays in a worker's cache after a use, and who has to go for it: rank dispatch
 * (ZipMoE, arXiv 2601.21198, section 3.4), LRU and LFU.
 *
 * It knows sizes, not bytes: whoever holds the experts does what the changes say, in their order. The same calls drive a
 * worker and a replay of recorded routes, and give the same changes.
 *
 * Rank dispatch has pools of fixed places in every layer (planner.h). An expert of rank r goes to the first pool p with
 * r < S_F + ... + S_p that has places at all; when it is full, the least used of it has to go. In the paper that one leaves
 * the cache. Here it tries the pools behind, as far as it has what they keep, and so does the newcomer when it is the least
 * used itself: else an expert that falls behind a pool's end would be nowhere until its next use, where the planner counts
 * on it. So the paper's margin, by which an expert may stand behind a pool's end, is not needed. No pool: it leaves after
 * its use. The others keep every expert that was used, in one state, and have one cache for all layers.
 *
 * Thread: one at a time. Deterministic; nothing is allocated after od_cache_new. Owner: od_cache_new's caller. */
#ifndef OD_CACHE_POOL_POLICY_H
#define OD_CACHE_POOL_POLICY_H

#include <stddef.h>

#include "common/cache/planner.h"

struct od_cache;

enum od_cache_policy { OD_CACHE_RANK, OD_CACHE_LRU, OD_CACHE_LFU };
extern const char *const od_cache_policy_names[]; /* "rank", "lru", "lfu", then NULL */

struct od_cache_opts {
	enum od_cache_policy policy;
	uint32_t n_moe, n_experts;
	struct od_cache_plan plan; /* rank: its pools; n_moe as above */
	bool full_is_stored;	   /* rank: F is the stored bytes themselves (planes), so that it can become S or E */
	uint64_t budget_bytes, expert_bytes; /* the others: expert_bytes in the state that they keep */
	enum od_cache_state state;
};

struct od_cache_change {
	uint32_t layer, expert;
	enum od_cache_state state; /* to be kept from now on; OD_CACHE_NONE: nothing of it */
};

/* Borrowed until the next call. */
struct od_cache_changes {
	const struct od_cache_change *change; /* [n] */
	size_t n;
};

OD_MUST_CHECK int od_cache_new(struct od_cache **out, const struct od_cache_opts *o, struct od_err *err);
void od_cache_free(struct od_cache *c); /* NULL ok */

enum od_cache_state od_cache_look(const struct od_cache *c, uint32_t layer, uint32_t expert);

/* The expert is used: called when that is certain, at the latest when the use is over. The last change is the expert's
 * own, the others leave or shrink before it. */
struct od_cache_changes od_cache_use(struct od_cache *c, uint32_t layer, uint32_t expert);

/* What was to be kept could not be: it is out. */
void od_cache_forget(struct od_cache *c, uint32_t layer, uint32_t expert);

/* Rank dispatch alone: other pools from now on. The changes are the experts that leave at once. */
struct od_cache_changes od_cache_set_plan(struct od_cache *c, const struct od_cache_plan *plan);

#endif

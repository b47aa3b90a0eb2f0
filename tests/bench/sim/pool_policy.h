/* pool_policy.h - a cache of a replay: the state in which an expert is kept after a use, and the experts evicted for
 * it. Here is rank dispatch (ZipMoE, arXiv 2601.21198, section 3.4); other rules are in cache_rule.h.
 *
 * Rank dispatch has pools of fixed capacity in every layer (planner.h). An expert of rank r goes to the first pool p
 * with r < S_F + ... + S_p that has any capacity. If it is full, the pool's least used expert is evicted. In the paper
 * it then leaves the cache; here it moves to a later pool whose data it has, and so does a newcomer that is itself the
 * least used. Otherwise an expert that drops out of a pool would be absent until its next use, although the planner
 * counts on it. So the paper's margin behind a pool's end is not needed. An expert that fits no pool leaves after its
 * use.
 *
 * Thread: one at a time. Deterministic; no allocation after sim_cache_new. Owner: sim_cache_new's caller. */
#ifndef OD_BENCH_POOL_POLICY_H
#define OD_BENCH_POOL_POLICY_H

#include <stddef.h>

#include "tests/bench/sim/planner.h"

struct sim_cache;

struct sim_cache_opts {
	uint32_t n_moe, n_experts;
	struct sim_cache_plan plan; /* rank: its pools; n_moe as above */
	bool full_is_stored; /* rank: F is the stored bytes (planes), so that it can shrink to S or E */
	/* Other rules keep experts in this one state, where each takes expert_bytes. */
	enum sim_cache_state state;
	uint64_t budget_bytes, expert_bytes;
	bool favour_recent; /* lrfu: as od_expert_cache_favour_recent */
};

struct sim_cache_change {
	uint32_t layer, expert;
	enum sim_cache_state state; /* the new state; SIM_CACHE_NONE: evicted */
};

/* Borrowed until the next call. */
struct sim_cache_changes {
	const struct sim_cache_change *change; /* [n] */
	size_t n;
};

/* Rank dispatch. */
OD_MUST_CHECK int sim_cache_new(struct sim_cache **out, const struct sim_cache_opts *o, struct od_err *err);
void sim_cache_free(struct sim_cache *c); /* NULL ok */

enum sim_cache_state sim_cache_look(const struct sim_cache *c, uint32_t layer, uint32_t expert);

/* Records a use of the expert; call it when the use is certain, at the latest when it is over. The last change is the
 * expert's own; before it come the experts that are evicted or shrink. */
struct sim_cache_changes sim_cache_use(struct sim_cache *c, uint32_t layer, uint32_t expert);

#endif

/* cache_replay.h - replays recorded routes through the cache of one worker, or of od-main on one machine
 * (cache_rule.h).
 *
 * Prompts read from a cache but do not change it, so they are not replayed. Loads begin after the router: there are no
 * predictions, because the cache's gain does not depend on them. The time of a layer is its load time by Algorithm 3
 * (sim_cache_makespan_ns).
 * Thread: one at a time. Owner: cache_world_open's caller; the routes are borrowed. */
#ifndef OD_BENCH_CACHE_REPLAY_H
#define OD_BENCH_CACHE_REPLAY_H

#include "tests/bench/sim/cache_routes.h"
#include "tests/bench/sim/cache_rule.h"
#include "tests/bench/sim/rank_list.h"

struct cache_world {
	/* Set by the caller. */
	const struct cache_routes *routes;
	struct sim_cache_sizes sizes;
	bool full_is_stored; /* as in struct sim_cache_opts */
	struct sim_cache_cost cost;
	/* The world's own. */
	uint64_t *next; /* [n_uses]: the next use of the same expert, or CACHE_NEVER */
	struct sim_rank_stats stats;
};

OD_MUST_CHECK int cache_world_open(struct cache_world *w, struct od_err *err);
void cache_world_close(struct cache_world *w); /* half-built is fine */

struct cache_setup {
	enum cache_rule rule;
	bool planned; /* rank: pools by the planner; false: pool F alone */
	enum sim_cache_state state; /* other rules: the state of cached experts */
	bool per_layer; /* other rules: one cache per layer instead of one for all */
	uint64_t budget_bytes; /* 0: nothing is kept (not with rank) */
	uint64_t seed;
};

struct cache_result {
	uint64_t uses, loads; /* loads: uses that needed a read */
	uint64_t read_bytes, cold_bytes; /* cold: without a cache */
	uint64_t layers;
	double makespan_ns; /* sum over layers */
	/* sum over stays in the cache; the end of the replay ends them; prompts' steps count */
	double stay_steps;
	uint64_t stays;
	struct sim_cache_plan plan; /* rank: its pools, and what they should bring; else all zero */
};

/* Bytes read, in % of those read without a cache. */
double cache_read_percent(const struct cache_result *r);

OD_MUST_CHECK int cache_replay(const struct cache_world *w, const struct cache_setup *s, struct cache_result *out,
			       struct od_err *err);

#endif

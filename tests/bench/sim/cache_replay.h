/* cache_replay.h - replays recorded routes through the caches of a cluster's workers (cache_rule.h).
 *
 * Experts are placed on workers as od-main does for workers with caches (main-node/cluster/placement.h), without
 * predictions: all workers are one group, experts have homes, and the experts of a layer are dealt by the cost of their
 * current state in each worker's cache. So each setup has its own deals. Belady's oracle and the plans need deals
 * before the caches have contents (a worker's next use of an expert would depend on its cache); they use the deals by
 * homes, which are those of empty caches. Without a cache experts are dealt as od-main does without caches: groups
 * rotate, and there are no homes.
 *
 * Each worker has its own cache, for all layers. Prompts read from caches but do not change them, so they are not
 * replayed.
 *
 * Loads begin after the router: there are no predictions, because the cache's gain does not depend on them. The time of
 * a layer is the load time of its slowest worker by Algorithm 3 (sim_cache_makespan_ns).
 * Thread: one at a time. Owner: cache_world_open's caller; the routes are borrowed. */
#ifndef OD_BENCH_CACHE_REPLAY_H
#define OD_BENCH_CACHE_REPLAY_H

#include "tests/bench/sim/rank_list.h"
#include "main-node/cluster/placement.h"
#include "tests/bench/sim/cache_routes.h"
#include "tests/bench/sim/cache_rule.h"

struct cache_world {
	/* Set by the caller. */
	const struct cache_routes *routes;
	struct odm_groups groups; /* from odm_groups_make */
	struct sim_cache_sizes sizes;
	bool full_is_stored; /* as in struct sim_cache_opts */
	struct sim_cache_cost cost;
	/* The world's own. */
	struct odm_deal_times *times; /* [n_workers], which are alike */
	uint32_t *worker; /* [n_uses]: the worker of each use, dealt by homes */
	uint64_t *next; /* [n_uses]: that worker's next use of the expert, or CACHE_NEVER */
	struct sim_rank_stats *stats; /* [n_workers], dealt by homes */
};

OD_MUST_CHECK int cache_world_open(struct cache_world *w, struct od_err *err);
void cache_world_close(struct cache_world *w); /* half-built is fine */

struct cache_setup {
	enum cache_rule rule;
	bool planned; /* rank: pools by the planner; false: pool F alone */
	enum sim_cache_state state; /* other rules: the state of cached experts */
	bool per_layer; /* other rules: one cache per layer instead of one for all */
	uint64_t budget_bytes; /* per worker; 0: no cache */
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
	uint32_t experts[SIM_CACHE_STATES]; /* rank: capacity of each pool, of all workers */
	uint64_t worker_layers; /* pairs of a worker and a layer of a step */
	double worker_ns, planned_ns; /* sum of their makespans: replayed, planned */
};

/* Bytes read, in % of those read without a cache. */
double cache_read_percent(const struct cache_result *r);

OD_MUST_CHECK int cache_replay(const struct cache_world *w, const struct cache_setup *s, struct cache_result *out,
			       struct od_err *err);

#endif

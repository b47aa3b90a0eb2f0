/* cache_replay.h - recorded routes through the caches of a cluster's workers (common/cache/pool_policy.h).
 *
 * Which worker runs which expert is main's placement without predictions (main-node/placement.h): a decode step's experts
 * lie over the layer's group, a prompt's over all workers. A worker has a cache of its own, for the layers that its group
 * serves; experts of other layers, which only prompts bring, pass it by. Figures are of decode steps; prompts only leave
 * their traces in the caches.
 *
 * Loads begin when the router has spoken: nothing is predicted, since what a cache saves does not depend on that. A layer
 * takes as long as its slowest worker's loads do by Algorithm 3 (od_cache_makespan_ns).
 * Thread: one at a time. Owner: cache_world_open's caller; the routes are borrowed. */
#ifndef OD_BENCH_CACHE_REPLAY_H
#define OD_BENCH_CACHE_REPLAY_H

#include "common/cache/pool_policy.h"
#include "common/cache/rank_list.h"
#include "main-node/placement.h"
#include "tests/bench/cache_routes.h"

struct cache_world {
	/* Set by the caller. */
	const struct cache_routes *routes;
	struct odm_groups groups;
	struct od_cache_sizes sizes;
	bool full_is_stored; /* as in struct od_cache_opts */
	struct od_cache_cost cost;
	/* The world's own. */
	uint32_t *layer;		 /* [n_workers][n_layers]: index among the worker's own layers; UINT32_MAX: none of them */
	uint32_t *n_layers;		 /* [n_workers] own layers */
	uint32_t *worker;		 /* [n_uses] who runs it */
	uint64_t *next;			 /* [n_uses] index of the worker's next use of that expert, or OD_CACHE_NEVER */
	struct od_rank_profile *profile; /* [n_workers] of decode steps; all zero for a worker without layers */
};

OD_MUST_CHECK int cache_world_open(struct cache_world *w, struct od_err *err);
void cache_world_close(struct cache_world *w); /* whatever is there */

struct cache_setup {
	enum od_cache_policy policy;
	bool planned;		   /* rank: pools by the planner; else pool F alone */
	enum od_cache_state state; /* that the others keep */
	bool per_layer; /* not rank: a cache for each layer, not one for all */
	uint32_t margin;
	uint64_t budget_bytes; /* of a worker; 0: no cache */
	uint64_t seed;
};

struct cache_result {
	uint64_t uses, loads;		 /* loads: uses for which something had to be read */
	uint64_t read_bytes, cold_bytes; /* cold: without a cache */
	uint64_t layers;
	double makespan_ns;	    /* sum over layers */
	double stay_steps;	    /* sum over stays, which end with the replay */
	uint64_t stays;
	uint32_t experts[OD_CACHE_STATES]; /* rank: places in each pool, of all workers */
	uint64_t worker_layers;	    /* a worker's turns at a layer, and their makespans, replayed and as planned */
	double worker_ns, planned_ns;
};

/* The plans of a setup, one a worker, [n_workers]; all zero where a worker has nothing to plan. */
OD_MUST_CHECK int cache_plans(const struct cache_world *w, const struct cache_setup *s, struct od_cache_plan *plan,
			      struct od_err *err);
/* plan: from cache_plans; NULL: not rank dispatch. */
OD_MUST_CHECK int cache_replay(const struct cache_world *w, const struct cache_setup *s, const struct od_cache_plan *plan,
			       struct cache_result *out, struct od_err *err);

#endif

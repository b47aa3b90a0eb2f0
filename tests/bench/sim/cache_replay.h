/* cache_replay.h - recorded routes through the caches of a cluster's workers (cache_rule.h).
 *
 * Which worker runs which expert is decided as od-main does it for workers with caches (main-node/cluster/placement.h), without
 * predictions: groups stand still, experts have homes, and a layer's are dealt by the cost of each expert's state in each
 * worker's cache at that moment. So every setup has deals of its own. Two things need deals before there is anything in a
 * cache: Belady's oracle, since a worker's next use of an expert would depend on what it keeps, and the plans. Theirs are
 * the deals by homes: those that would be made if nothing was ever kept. Without a cache experts are dealt as od-main
 * does it without caches: groups turn, and there are no homes.
 *
 * A worker has a cache of its own, for the layers that its group serves. Prompts read from caches, but leave no trace in
 * them: they are not replayed.
 *
 * Loads begin when the router has spoken: nothing is predicted, since what a cache saves does not depend on that. A layer
 * takes as long as its slowest worker's loads do by Algorithm 3 (od_cache_makespan_ns).
 * Thread: one at a time. Owner: cache_world_open's caller; the routes are borrowed. */
#ifndef OD_BENCH_CACHE_REPLAY_H
#define OD_BENCH_CACHE_REPLAY_H

#include "common/cache/rank_list.h"
#include "main-node/cluster/placement.h"
#include "tests/bench/sim/cache_routes.h"
#include "tests/bench/sim/cache_rule.h"

struct cache_world {
	/* Set by the caller. */
	const struct cache_routes *routes;
	struct odm_groups groups; /* as odm_groups_make makes them */
	struct od_cache_sizes sizes;
	bool full_is_stored; /* as in struct od_cache_opts */
	struct od_cache_cost cost;
	/* The world's own. */
	uint32_t *worker;		 /* [n_uses] who runs it by homes, */
	uint64_t *next;			 /* [n_uses] and then: its next use of that expert, or CACHE_NEVER */
	struct od_rank_profile *profile; /* [n_workers] by homes; all zero for a worker without layers */
};

OD_MUST_CHECK int cache_world_open(struct cache_world *w, struct od_err *err);
void cache_world_close(struct cache_world *w); /* whatever is there */

/* Layers that the worker's group serves, when it stands still. */
uint32_t cache_own_layers(const struct cache_world *w, uint32_t worker);

struct cache_setup {
	enum cache_rule rule;
	bool planned;		   /* rank: pools by the planner; else pool F alone */
	enum od_cache_state state; /* that the others keep */
	bool per_layer; /* not rank: a cache for each layer, not one for all */
	uint64_t budget_bytes; /* of a worker; 0: no cache */
	uint64_t seed;
};

struct cache_result {
	uint64_t uses, loads;		 /* loads: uses for which something had to be read */
	uint64_t read_bytes, cold_bytes; /* cold: without a cache */
	uint64_t layers;
	double makespan_ns;	    /* sum over layers */
	double stay_steps;	    /* sum over stays, which end with the replay; prompts' steps count */
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

/* planner.h - how a worker's cache is best divided into pools: so many experts of each layer kept full, so many
 * compressed, so many as SM bytes, so many as exponents alone (ZipMoE, arXiv 2601.21198, section 3.4 and appendix C).
 *
 * Pools follow each other down a layer's list of experts by how often they are used: the first S_F ranks are in pool F,
 * the next S_C in C, and so on; who has which rank does not matter. A division's worth is the expected makespan of a
 * layer's loads, over all hit patterns, each weighed by its probability (selection.h).
 *
 * Where the paper walks a grid of memory ratios, this one walks numbers of experts, which is what ratios come down to:
 * with few experts all of them, with many in steps. The last pool takes what the others leave, since a hit more never
 * makes the estimate longer. The numbers are of all the worker's layers together, so that a cache of less than an expert
 * a layer is some use.
 *
 * Thread: pure functions; a plan for 128 experts may take a second, so not the thread that tokens wait for. */
#ifndef OD_CACHE_PLANNER_H
#define OD_CACHE_PLANNER_H

#include "common/base/status.h"
#include "common/cache/cache_state.h"

#define OD_CACHE_PLAN_STEPS 24

struct od_cache_plan_opts {
	uint32_t n_moe, n_experts; /* layers of this worker, experts of a layer */
	const double *inclusion;      /* [n_experts]: how often the expert of each rank is used when the layer is */
	/* Experts used at once, 1 to n_experts on average; inclusion is scaled to that sum. Between two whole numbers both are
	 * planned for, in proportion. */
	double k;
	uint64_t budget_bytes;
	struct od_cache_sizes sizes;
	struct od_cache_cost cost;
	uint32_t steps; /* of each pool's number of experts, from none to all that fit; 0: OD_CACHE_PLAN_STEPS */
};

struct od_cache_plan {
	uint32_t n_moe;
	uint32_t experts[OD_CACHE_STATES]; /* in each pool, of all layers */
	double makespan_ns;		   /* expected, mean over layers */
	double cold_ns;			   /* without a cache */
};

/* *out is all zero unless OD_OK. OD_ERR_RANGE: the frequencies are not such. */
OD_MUST_CHECK int od_cache_plan_make(struct od_cache_plan *out, const struct od_cache_plan_opts *o, struct od_err *err);

/* The expected makespan of a division that is given (Algorithm 4's inner loops): plan->experts are read, makespan_ns and
 * cold_ns set. */
OD_MUST_CHECK int od_cache_plan_value(struct od_cache_plan *plan, const struct od_cache_plan_opts *o, struct od_err *err);

/* A layer's share of a pool. Pool after pool is dealt over the layers, each beginning where the last one ended, so that all
 * layers have as many places, or one more. */
static inline uint32_t od_cache_plan_places(const struct od_cache_plan *p, uint32_t layer, enum od_cache_state pool)
{
	uint32_t first = 0;

	for (unsigned before = 0; before < pool; before++)
		first = (first + p->experts[before]) % p->n_moe;
	return p->experts[pool] / p->n_moe +
	       ((layer + p->n_moe - first) % p->n_moe < p->experts[pool] % p->n_moe);
}

#endif

/* planner.h - plans the split of a worker's cache into pools: the number of experts kept full, compressed, as SM bytes,
 * and as exponents only (ZipMoE, arXiv 2601.21198, section 3.4 and appendix C).
 *
 * Pools partition a layer's experts by use rank: the first S_F ranks are in pool F, the next S_C in C, and so on. The
 * value of a split is the expected makespan of a layer's loads, over all hit patterns weighted by probability
 * (selection.h).
 *
 * The paper searches a grid of memory ratios; this planner searches numbers of experts: all of them if experts are few,
 * in steps if many. The last pool takes the remaining memory, since another hit never increases the estimate. The
 * numbers are for all layers of the worker together, so that a cache smaller than one expert per layer is still used.
 *
 * Thread: pure functions; a plan for 128 experts may take a second, so keep it off the token path. */
#ifndef OD_BENCH_PLANNER_H
#define OD_BENCH_PLANNER_H

#include "common/base/status.h"
#include "tests/bench/sim/cache_state.h"

#define SIM_CACHE_PLAN_STEPS 24

struct sim_cache_plan_opts {
	uint32_t n_moe, n_experts; /* layers of this worker, experts of a layer */
	const double *inclusion; /* [n_experts]: probability by rank that an expert is used when its layer is */
	/* Mean number of experts used together, 1 to n_experts; inclusion is scaled to this sum. If it is not an
	 * integer, the estimates for the integers below and above are weighted. */
	double k;
	uint64_t budget_bytes;
	struct sim_cache_sizes sizes;
	struct sim_cache_cost cost;
	uint32_t steps; /* search steps per pool, from no expert to all that fit; 0: SIM_CACHE_PLAN_STEPS */
};

struct sim_cache_plan {
	uint32_t n_moe;
	uint32_t experts[SIM_CACHE_STATES]; /* in each pool, all layers together */
	double makespan_ns; /* expected, mean over layers */
	double cold_ns; /* expected without a cache, mean over layers */
};

/* *out is all zero unless OD_OK. OD_ERR_RANGE: invalid inclusion probabilities. */
OD_MUST_CHECK int sim_cache_plan_make(struct sim_cache_plan *out, const struct sim_cache_plan_opts *o,
				      struct od_err *err);

/* Evaluates a given split (the inner loops of Algorithm 4): reads plan->experts, sets makespan_ns and cold_ns. */
OD_MUST_CHECK int sim_cache_plan_value(struct sim_cache_plan *plan, const struct sim_cache_plan_opts *o,
				       struct od_err *err);

/* A layer's capacity in a pool. Its entries, pool after pool, go round the layers, each pool continuing where
 * the previous one ended, so that the totals of two layers differ by at most one. */
static inline uint32_t sim_cache_plan_capacity(const struct sim_cache_plan *p, uint32_t layer,
					       enum sim_cache_state pool)
{
	uint32_t first = 0;

	for (unsigned before = 0; before < pool; before++)
		first = (first + p->experts[before]) % p->n_moe;
	return p->experts[pool] / p->n_moe + ((layer + p->n_moe - first) % p->n_moe < p->experts[pool] % p->n_moe);
}

#endif

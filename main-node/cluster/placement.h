/* placement.h - which workers serve a layer, and which of them gets an expert (design section 3; OD-MoE section 3.1).
 *
 * G = min(asked or top-k, N) workers make a group, there are M = max(1, N / G) groups, worker w is in group w mod M,
 * MoE layer m is served by group m mod M. When the layers leave remainder 1 mod M, the last layer of a step and the
 * first of the next would meet one group, so the start rotates with the step. It stands still when a worker has a spool
 * instead of the whole pack, or a cache: that one keeps the layers of its group, and turning would make that all layers;
 * two layers of one group in a row, once a step, cost less.
 * Thread: pure functions. */
#ifndef ODM_PLACEMENT_H
#define ODM_PLACEMENT_H

#include <stddef.h>

#include "common/cache/cache_state.h"

/* What it costs a worker to have each of these experts of layer m ready, into cost[n]: a whole load, as much less as its
 * cache has of it, or ODM_COST_LACKS when it has none on its disk. Of many at once, because it may take a lock. */
typedef void odm_cost_fn(void *arg, uint32_t worker, uint32_t m, const uint16_t *expert, size_t n, uint8_t *cost);
#define ODM_COST_LOAD 64u
#define ODM_COST_INFLATE 8u /* of what is there, but compressed */
#define ODM_COST_E 16u	    /* a quarter of the bytes of a BF16 expert are coded exponents, */
#define ODM_COST_SM 48u	    /* three quarters SM bytes */
#define ODM_COST_RUN 4u	    /* besides, for each: so that equal ones are shared out */
#define ODM_COST_MANY_RUN 32u /* the same where experts are many, and so their rows */
#define ODM_COST_LACKS UINT8_MAX
uint8_t odm_cost_of_state(enum od_cache_state state); /* what its cache has */

struct odm_groups {
	uint32_t n_workers, n_groups;
	uint32_t n_moe;
	uint32_t few;	 /* experts of a layer that its group can take; more lie over all workers */
	bool still;	 /* the start never rotates */
	bool homes;	 /* of equal workers, an expert always goes to the same one of the group: for caches */
	odm_cost_fn *cost; /* NULL: a whole load for every worker and expert */
	void *cost_arg;
};

#define ODM_NOBODY UINT32_MAX

/* asked: the user's G, 0: top_k. n_workers may be 0: then there is no group. */
struct odm_groups odm_groups_make(uint32_t n_workers, uint32_t asked, uint32_t top_k, uint32_t n_moe);
uint32_t odm_group_of_layer(const struct odm_groups *g, uint64_t step, uint32_t m);
uint32_t odm_group_size(const struct odm_groups *g, uint32_t group);
/* The i-th worker of a group, i < odm_group_size. */
uint32_t odm_group_worker(const struct odm_groups *g, uint32_t group, uint32_t i);

/* Deal experts (sorted by id, all different) of (step, m). worker[i] is where expert[i] goes. keep(arg, expert) names a
 * worker that already loads the expert, or ODM_NOBODY; those stay. scratch: ODM_DEAL_SCRATCH(n_experts, n_workers) of them.
 * The time it takes grows with n_experts, times the workers that may have them.
 *
 * Few experts (a row's, or those of some rows that ask for much the same) go to the layer's group. The one that can be ready
 * first is dealt, to the worker whose cost of it and of what it has by then is least, and so on. A tie goes to the first
 * expert, and to the first worker counted from the expert's home, which is the group's worker e mod its size, or without
 * homes from another one each time the group's turn comes, so that none of a large group idles. Workers that lack the expert
 * are passed over: the expert goes to another worker of the group, else to one of another group; if no worker has it, it
 * is dealt within the group. With homes, what none of the group keeps any of may go to who does: groups are of those who are here, and a worker
 * that is lost shifts them, but not what the others keep.
 *
 * Many experts (a prompt's, or those of many rows) lie over all workers: e on e mod N, or who lacks it, on the next that has
 * it. With caches, what is kept goes to who keeps it, as far as others do not have much less to do, the rest around it, of
 * equal workers to e mod N. */
void odm_deal(const struct odm_groups *g, uint64_t step, uint32_t m, const uint16_t *expert, size_t n_experts,
	      uint32_t (*keep)(void *arg, uint16_t expert), void *arg, uint32_t *worker, uint32_t *scratch);
#define ODM_DEAL_SCRATCH(n_experts, n_workers) ((size_t)(n_workers) * (3 + (size_t)(n_experts) + (size_t)(n_experts) / 4))

/* Where many experts' e lies when nothing is cached. */
uint32_t odm_worker_of_many(const struct odm_groups *g, uint32_t m, uint16_t expert);

static inline uint8_t odm_worker_cost(const struct odm_groups *g, uint32_t worker, uint32_t m, uint16_t expert)
{
	uint8_t cost = ODM_COST_LOAD;

	if (g->cost != NULL)
		g->cost(g->cost_arg, worker, m, &expert, 1, &cost);
	return cost;
}
static inline bool odm_worker_has(const struct odm_groups *g, uint32_t worker, uint32_t m, uint16_t expert)
{
	return odm_worker_cost(g, worker, m, expert) != ODM_COST_LACKS;
}

#endif

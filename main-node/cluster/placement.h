/* placement.h - assigns layers to groups of workers, and experts to workers (OD-MoE, arXiv 2512.03927, section 3.1).
 *
 * A group has G = min(asked or top-k, N) workers; there are M = max(1, N / G) groups; worker w is in group w mod M;
 * group m mod M serves MoE layer m. If the number of layers is 1 mod M, the same group would serve the last layer of a
 * step and the first of the next, so the start rotates with the step. It does not rotate when a worker has a spool
 * instead of the whole pack, or a cache: such a worker holds its group's layers, and rotation would require all layers.
 * Two layers in a row on one group, once per step, cost less.
 * Workers that are not alike are one group: by when they would be through, each layer's experts go where they are done
 * first, which balances unequal workers as turns of groups balance equal ones.
 * Thread: pure functions. Owner: the caller; plain data. */
#ifndef ODM_PLACEMENT_H
#define ODM_PLACEMENT_H

#include <stddef.h>

#include "main-node/cluster/worker_times.h"
#include "main-node/step/step.h"

/* cost[n]: the cost for a worker to make each of expert[n] of layer m ready: ODM_COST_LOAD, 0 if its cache has it, or
 * ODM_COST_LACKS if it is not on its disk. For several experts at once, because it may take a lock. */
typedef void odm_cost_fn(void *arg, uint32_t worker, uint32_t m, const uint16_t *expert, size_t n, uint8_t *cost);
#define ODM_COST_LOAD 64u
#define ODM_COST_RUN 4u /* added per expert, to balance experts of equal load cost */
#define ODM_COST_MANY_RUN 32u /* added where there are many experts, which have many rows */
#define ODM_COST_LACKS UINT8_MAX

/* A worker's times, in ns. */
struct odm_deal_times {
	uint32_t id; /* the member's, whoever else is in the view */
	struct odm_expert_times expert;
	double link, row_link; /* a RUN and its RESULT take this: without rows, and for each row */
	double begin; /* until its earlier loads are through */
	double layer; /* until the layer's rows come */
	uint32_t held; /* slots that earlier layers' experts hold, */
	double freed; /* until this time */
	double home; /* share of experts whose home it is (with caches) */
	uint32_t slots; /* 0: as many as are needed */
};

struct odm_groups {
	uint32_t n_workers, n_groups;
	uint32_t n_many; /* the first ones, among which many experts are spread */
	uint32_t n_moe;
	uint32_t few; /* limit of experts per layer for its group; more are placed on all workers */
	bool still; /* the start does not rotate */
	bool homes; /* for caches: ties always go to the expert's home worker */
	odm_cost_fn *cost; /* NULL: a whole load for every worker and expert */
	void *cost_arg;
	/* [n_workers], or [n_many] if that is more; borrowed. Workers are not alike, and n_groups is 1. NULL: all are
	 * alike. */
	const struct odm_deal_times *times;
};

/* asked: --group-size; 0: top_k. n_workers 0: no group. */
struct odm_groups odm_groups_make(uint32_t n_workers, uint32_t asked, uint32_t top_k, uint32_t n_moe);
uint32_t odm_group_of_layer(const struct odm_groups *g, uint64_t step, uint32_t m);
uint32_t odm_group_size(const struct odm_groups *g, uint32_t group);
/* The i-th worker of a group, i < odm_group_size. */
uint32_t odm_group_worker(const struct odm_groups *g, uint32_t group, uint32_t i);

/* Places the experts (sorted by id, distinct) of (step, m): worker[i] is the worker of expert[i]. rows[i]: its rows;
 * NULL: one each. keep(arg, expert) returns the worker that already loads the expert, which keeps it, or ODM_NOBODY.
 * scratch: ODM_DEAL_SCRATCH(n_experts, n_workers). Time: O(n_experts * candidate workers).
 *
 * Few experts (of one row, or of rows with similar routes) go to the layer's group, greedily: next is always the pair
 * of expert and worker with the least resulting total cost of that worker. Ties: the first expert; the first worker
 * from the expert's home (the group's worker e mod group size) on, or, without homes, from a start that rotates each
 * time the group is used, to spread load. A worker that lacks the expert is skipped: the expert goes to another worker
 * of the group, else of another group; if no worker has it, it stays in the group. With homes, an expert that no
 * worker of the group has cached may go to a worker elsewhere that has: the loss of a worker shifts the groups, but
 * not the others' caches.
 *
 * Many experts (of a prompt, or of many rows) are spread over all N workers (n_many): e goes to worker e mod N, or if
 * that lacks it, to the next that has it. With caches, a cached expert goes to the worker that has it unless others
 * have much less work; the rest is balanced around that, ties to e mod N.
 *
 * Workers that are not alike (times): the cost is the time at which the worker is through: its link, its loads, and
 * its runs, which overlap with loads of as many later experts as it has slots. Many experts go one by one to the
 * worker that is through first, cached ones before others, those with most rows first (longest processing time first).
 * So a worker that would end last alone gets nothing. With homes, an expert that is to be loaded leaves its home for a
 * worker that ends clearly earlier, but not each time: so the home's cache fills, for a small share of the time. One
 * that is cached at another worker than its home moves there in one of many layers. */
void odm_deal(const struct odm_groups *g, uint64_t step, uint32_t m, const uint16_t *expert, const uint32_t *rows,
	      size_t n_experts, uint32_t (*keep)(void *arg, uint16_t expert), void *arg, uint32_t *worker,
	      uint32_t *scratch);
#define ODM_DEAL_SCRATCH(n_experts, n_workers) \
	((size_t)(n_workers) * (5 + (size_t)(n_experts) + (size_t)(n_experts) / 4) + 2 * (size_t)(n_experts))

/* The worker of an expert when many are placed and nothing is cached. */
uint32_t odm_worker_of_many(const struct odm_groups *g, uint32_t m, uint16_t expert);

/* With times and homes: the expert's home. Shares decide (weighted rendezvous hashing), so that few experts move when
 * they change. */
uint32_t odm_home(const struct odm_groups *g, uint32_t m, uint16_t expert);

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

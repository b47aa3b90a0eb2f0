/* placement.h - assigns layers to groups of workers, and experts to workers (OD-MoE, arXiv 2512.03927, section 3.1).
 *
 * A group has G = min(asked or top-k, N) workers; there are M = max(1, N / G) groups; worker w is in group w mod M;
 * group m mod M serves MoE layer m. If the number of layers is 1 mod M, the same group would serve the last layer of a
 * step and the first of the next, so the start rotates with the step. It does not rotate when a worker has a spool
 * instead of the whole pack: such a worker holds its group's layers, and rotation would require all layers.
 * A layer's group is only the first choice among equals: experts go where they are done first, which balances unequal
 * workers, and layers that need more experts than a group loads in time. With caches there is one group of all, in
 * which each expert has a home.
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
#define ODM_COST_LACKS UINT8_MAX

/* A worker's times, in ns. */
struct odm_deal_times {
	uint32_t id; /* the member's, whoever else is in the view */
	struct odm_expert_times expert;
	double link; /* round trip of a RUN and its RESULT without rows */
	double row_link; /* time of a row both ways, beyond that of the quickest link: main's port is shared by all */
	double begin; /* time until earlier loads have ended */
	double layer; /* time until the layer's rows come */
	uint32_t held; /* number of slots that experts of earlier layers hold */
	double freed; /* time until the last of these slots is free */
	double home; /* with caches: the worker is the home of this share of all experts */
	double homes_from; /* sum of the shares of the workers before it in the hosts file */
	uint32_t slots; /* 0: as many as are needed */
};

struct odm_groups {
	uint32_t n_workers, n_groups;
	uint32_t n_many; /* many experts of a layer are dealt to the first n_many workers only */
	uint32_t n_moe;
	uint32_t n_experts; /* in a layer; for homes */
	uint32_t few; /* up to so many experts of a layer are dealt one by one to groups, more as "many" */
	bool still; /* the start does not rotate */
	bool homes; /* for caches, with one group: an expert's first choice is its home */
	bool ahead; /* WANTs are dealt; else RUNs are, and loads that WANTs ordered count as done */
	bool second; /* The second half of a step's rows is dealt: experts of the first one stay where they are. */
	odm_cost_fn *cost; /* NULL: a whole load for every worker and expert */
	void *cost_arg;
	const struct odm_deal_times *times; /* [n_workers], or [n_many] if that is more; borrowed */
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
 * The cost of an expert is the time at which its worker is through: its link, its loads, and its runs, which overlap
 * with loads of as many later experts as it has slots. A worker that would end last alone gets nothing.
 *
 * Few experts (of one row, or of rows with similar routes) are dealt greedily: next is always the pair of expert and
 * worker that is through first. Ties: the first expert; its home, or without homes the layer's group, from a start that
 * rotates each time the group is used, to spread load. Many experts (of a prompt, or of many rows) go one by one to the
 * worker that is through first, cached ones before others, those with most rows first (longest processing time first).
 * Ties: counted from the home, or from e mod N. So where workers are alike and have nothing else to load, groups serve
 * layers by turns.
 *
 * With homes, an expert that is to be loaded leaves its home for a worker that ends clearly earlier, but not each time:
 * so the home's cache fills, for a small share of the time. One that is cached at another worker than its home moves
 * there in one of many layers. A worker that lacks an expert gets it only if all do. */
void odm_deal(const struct odm_groups *g, uint64_t step, uint32_t m, const uint16_t *expert, const uint32_t *rows,
	      size_t n_experts, uint32_t (*keep)(void *arg, uint16_t expert), void *arg, uint32_t *worker,
	      uint32_t *scratch);
#define ODM_DEAL_SCRATCH(n_experts, n_workers) \
	((size_t)(n_workers) * (11 + (size_t)(n_experts) + (size_t)(n_experts) / 4) + 4 * (size_t)(n_experts) + 1)

/* With homes: the expert's. Workers share a layer's experts by their shares, each as evenly as whole experts allow. */
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

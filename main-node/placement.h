/* placement.h - which workers serve a layer, and which of them gets an expert (design section 3; OD-MoE section 3.1).
 *
 * G = min(asked or top-k, N) workers make a group, there are M = max(1, N / G) groups, worker w is in group w mod M,
 * MoE layer m is served by group m mod M. When the layers leave remainder 1 mod M, the last layer of a step and the
 * first of the next would meet one group, so the start rotates with the step. It stands still when a worker has a spool
 * instead of the whole pack: that one keeps the layers of its group, and turning would make that all layers; two layers
 * of one group in a row, once a step, cost less.
 * Thread: pure functions. */
#ifndef ODM_PLACEMENT_H
#define ODM_PLACEMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Is an expert of layer m on this worker's disk? */
typedef bool odm_has_fn(void *arg, uint32_t worker, uint32_t m, uint16_t expert);

struct odm_groups {
	uint32_t n_workers, n_groups;
	uint32_t n_layers;
	bool still;	 /* the start never rotates */
	odm_has_fn *has; /* NULL: every worker has every expert */
	void *has_arg;
};

#define ODM_NOBODY UINT32_MAX

/* asked: the user's G, 0: top_k. n_workers may be 0: then there is no group. */
struct odm_groups odm_groups_make(uint32_t n_workers, uint32_t asked, uint32_t top_k, uint32_t n_layers);
uint32_t odm_group_of_layer(const struct odm_groups *g, uint64_t step, uint32_t m);
uint32_t odm_group_size(const struct odm_groups *g, uint32_t group);
/* The i-th worker of a group, i < odm_group_size. */
uint32_t odm_group_worker(const struct odm_groups *g, uint32_t group, uint32_t i);

/* Deal experts (sorted by id, all different) over the group of (step, m). worker[i] is where expert[i] goes.
 * keep(arg, expert) names a worker that already loads the expert, or ODM_NOBODY; those stay, the others go to the
 * worker of the group with the fewest. A tie goes to the first, counted from another one each time the group's turn
 * comes, so that none of a large group idles. Workers that lack the expert are passed over: then it goes to
 * another of the group, else to anybody, and only if nobody has it to the group all the same. load is scratch of
 * n_workers. */
void odm_deal(const struct odm_groups *g, uint64_t step, uint32_t m, const uint16_t *expert, size_t n_experts,
	      uint32_t (*keep)(void *arg, uint16_t expert), void *arg, uint32_t *worker, uint32_t *load);

/* Prefill: experts of every layer lie over all workers: e on e mod N, or who lacks it, on the next that has it. */
uint32_t odm_prefill_worker(const struct odm_groups *g, uint32_t m, uint16_t expert);
static inline bool odm_worker_has(const struct odm_groups *g, uint32_t worker, uint32_t m, uint16_t expert)
{
	return g->has == NULL || g->has(g->has_arg, worker, m, expert);
}


#endif

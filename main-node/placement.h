/* placement.h - which workers serve a layer, and which of them gets an expert (design section 3; OD-MoE section 3.1).
 *
 * G = min(asked or top-k, N) workers make a group, there are M = max(1, N / G) groups, worker w is in group w mod M,
 * MoE layer m is served by group m mod M. When the layers leave remainder 1 mod M, the last layer of a step and the
 * first of the next would meet one group, so the start rotates with the step.
 * Thread: pure functions. */
#ifndef ODM_PLACEMENT_H
#define ODM_PLACEMENT_H

#include <stddef.h>
#include <stdint.h>

struct odm_groups {
	uint32_t n_workers, n_groups;
	uint32_t n_layers;
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
 * comes, so that none of a large group idles. load is scratch of n_workers. */
void odm_deal(const struct odm_groups *g, uint64_t step, uint32_t m, const uint16_t *expert, size_t n_experts,
	      uint32_t (*keep)(void *arg, uint16_t expert), void *arg, uint32_t *worker, uint32_t *load);

/* Prefill: experts of every layer lie over all workers. */
static inline uint32_t odm_prefill_worker(const struct odm_groups *g, uint16_t expert)
{
	return expert % g->n_workers;
}

#endif

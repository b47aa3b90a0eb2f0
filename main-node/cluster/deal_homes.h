/* deal_homes.h - shares of all experts: of how many each worker with a cache is the home (placement.h).
 *
 * If all caches together hold all experts, no share exceeds its worker's cache, so in the end nothing is loaded; within
 * that, quick workers have larger shares. Else each worker is the home of as many experts as its cache holds, and the
 * rest is shared by how quickly workers load and run.
 * Thread: pure functions. Owner: the caller; plain data. */
#ifndef ODM_DEAL_HOMES_H
#define ODM_DEAL_HOMES_H

#include <stdbool.h>

#include "main-node/cluster/worker_times.h"

struct odm_home_share {
	struct odm_expert_times times;
	double capacity; /* its cache's: a share of all experts */
	double share; /* the result; all together 1 */
};

/* n_experts: of all layers. Layers are shared by whole experts, so a cache needs room for a few more than its share. */
void odm_share_homes(struct odm_home_share *worker, uint32_t n, size_t n_experts);
/* The change is large enough to move experts. */
bool odm_home_differs(double before, double now);

#endif

/* cluster_figures.h - what a cluster adds to the figures of a sequence that ends: its daemons, their loads, and
 * predictions that were not used.
 *
 * Thread: the engine thread; odm_cluster_figures_nodes: any. Owner: the caller; plain data. */
#ifndef ODM_CLUSTER_FIGURES_H
#define ODM_CLUSTER_FIGURES_H

#include "main-node/cluster/cluster.h"
#include "main-node/step/figures.h"

struct odm_cluster_figures {
	struct odm_cluster *cluster; /* borrowed */
	uint64_t before[OD_N_COUNTERS]; /* the workers' counts when there was last no sequence */
	uint64_t voided[OD_N_COUNTERS]; /* predictions that were not used when the last sequence ended */
};

/* Adds the daemons, as they last reported. */
void odm_cluster_figures_nodes(const struct odm_cluster_figures *x, struct odm_figures *f);
uint64_t odm_cluster_figures_slots(const struct odm_figures *f); /* the fewest of a node that has any */
/* Adds to c the predictions that were not used since the last sequence that ended. Some are of no sequence. now
 * [OD_N_COUNTERS]: since the start. */
void odm_cluster_figures_voided(const struct odm_cluster_figures *x, uint64_t *c, uint64_t *now);
/* Loads by the workers' counters since there was last no sequence. They are asked when no RUN or WANT of any is left,
 * so it does not matter when they answer; the next sequence waits for that. */
void odm_cluster_figures_loads(struct odm_cluster_figures *x, uint64_t *since);
/* Adds these loads to c: a text that was computed anew has some already. */
void odm_cluster_figures_count_loads(uint64_t *c, const uint64_t *since);

#endif

/* members_times.h - what workers take for their work (worker_times.h), as the engine learns and uses it.
 *
 * Thread: as each function says; a monitor (members.h). Owner: the cluster. */
#ifndef ODM_MEMBERS_TIMES_H
#define ODM_MEMBERS_TIMES_H

#include "main-node/cluster/members.h"

/* Engine thread: how long n experts, of which n_loads may have to be loaded, with so many rows (pairs) and bytes (both
 * ways) should take this worker. */
double odm_members_expect(struct odm_members *ms, uint32_t id, uint32_t n, uint32_t n_loads, uint32_t pairs,
			  double bytes);
/* Engine thread: what it reports of a layer. */
void odm_members_worked(struct odm_members *ms, uint32_t id, const struct odm_layer_report *r);
/* Any thread: what the workers [n] take, to deal by. */
void odm_members_times(struct odm_members *ms, const struct odm_member *worker, uint32_t n,
		       struct odm_deal_times *times);
/* The slowest times of workers that have experts of a layer: a RUN of them with few rows, beside its rows' way (0: not
 * known), and each of many rows besides (0: nothing, or not known). */
struct odm_many_times {
	double run, row;
};
/* Engine thread: of the workers [n], of which worker[i] has n_experts[i]. */
struct odm_many_times odm_members_many(struct odm_members *ms, const struct odm_member *worker,
				       const uint32_t *n_experts, uint32_t n);

#endif

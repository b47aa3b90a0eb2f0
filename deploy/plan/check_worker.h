/* check_worker.h - measures a worker through its data port: round trips, loads, computations with few and many rows,
 * and its link. It uses RUNs as od-main does; what they load is given back when the session ends.
 *
 * Thread: one at a time. Owner: the caller. */
#ifndef ODP_CHECK_WORKER_H
#define ODP_CHECK_WORKER_H

#include "deploy/plan/check_hosts.h"

struct odp_worker_check {
	struct odp_meeting *meeting;
	const struct odm_cluster_opts *cluster;
	double expert_weights; /* one expert has so many */
	uint64_t budget_ns; /* about so long in all */
};

/* Adds to c: its rates, whether its data port answers, and what could not be measured. */
void odp_check_worker(struct odp_checked *c, const struct odp_worker_check *o);

/* The rate of main's own port, from what it sends to several of these workers [n] at once; all have been measured. With
 * one worker it is that one's link: at least so much. 0: none was measured. */
double odp_check_main_link(struct odp_checked *const *worker, size_t n, const struct odp_worker_check *o);

#endif

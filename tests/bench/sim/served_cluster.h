/* served_cluster.h - the cluster of OD-MoE Eq. 1 for the simulator (deploy/plan/sim.h): equal workers, given times of
 * main, worker, shadow and loads, and messages that take no time: main_ns and worker_ns include it.
 *
 * Thread: plain data. Owner: served_cluster_init ... served_cluster_fini by the caller. */
#ifndef OD_BENCH_SERVED_CLUSTER_H
#define OD_BENCH_SERVED_CLUSTER_H

#include "deploy/plan/sim.h"

struct served_params {
	uint32_t n_moe, n_experts, top_k;
	uint32_t n_workers, group_size; /* group_size 0: top_k */
	unsigned slots;
	/* A layer on main until its router has chosen; an expert on a worker; a layer on the shadow; the head of main
	 * and shadow; a load. */
	uint64_t main_ns, worker_ns, shadow_ns, head_ns, load_ns;
	uint32_t align_kv; /* KV period: steps between alignments, counted from 1; 0: never */
	bool no_shadow, early;
	double hedge; /* budget: wasted loads per use; 0: no hedges */
};

struct served_cluster {
	struct odp_cluster cluster;
	struct odp_sim_model model;
	struct odp_sim_opts opts;
	struct odp_sim_block *block;
	struct odp_machine *worker;
};

OD_MUST_CHECK int served_cluster_init(struct served_cluster *c, const struct served_params *p, struct od_err *err);
void served_cluster_fini(struct served_cluster *c); /* all zero is fine */

/* The load window of OD-MoE Eq. 1 with these groups. */
uint64_t served_window_ns(const struct served_params *p, unsigned slots);

#endif

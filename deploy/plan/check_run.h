/* check_run.h - one RUN after the other to one worker, and how long each took.
 *
 * Thread: one at a time. Owner: odp_runs_open's caller. */
#ifndef ODP_CHECK_RUN_H
#define ODP_CHECK_RUN_H

#include "main-node/cluster/cluster_opts.h"
#include "main-node/cluster/data_link.h"
#include "main-node/cluster/members_look.h"

#define ODP_RUN_EXPERTS 8 /* one RUN has at most so many */

struct odp_runs {
	struct odm_members *members; /* borrowed */
	const struct odm_cluster_opts *cluster; /* borrowed */
	struct odm_link link;
	size_t row_bytes;
	uint32_t max_rows;
	uint8_t *rows; /* [max_rows][row_bytes]: what RUNs send */
	uint32_t *index; /* [max_rows] */
	uint64_t step, request, sent_ns;
};

struct odp_run {
	uint32_t m;
	uint16_t expert[ODP_RUN_EXPERTS];
	size_t n_experts;
	uint32_t n_rows; /* sent */
	uint32_t used; /* each expert uses so many of these, and they come back */
	bool last; /* its slots become free */
};

struct odp_run_times {
	double round_ns; /* from RUN to the last RESULT */
	double worker_ns; /* within that: from its arrival at the worker to the end of the computation */
	double compute_ns;
	double load_ns, loaded_bytes; /* summed */
	bool ready; /* all experts were resident */
};

/* Connects to the worker's data port and attaches. OD_ERR_TIMEOUT: it does not answer there. r is valid for
 * odp_runs_close in any case. */
OD_MUST_CHECK int odp_runs_open(struct odp_runs *r, struct odm_members *members, void *zmq,
				const struct odm_cluster_opts *cluster, const struct odm_member *worker,
				struct od_err *err);
void odp_runs_close(struct odp_runs *r);

/* Sends the RUN; then odp_runs_wait waits for all its RESULTs. */
OD_MUST_CHECK int odp_runs_send(struct odp_runs *r, const struct odp_run *run, struct od_err *err);
OD_MUST_CHECK int odp_runs_wait(struct odp_runs *r, const struct odp_run *run, struct odp_run_times *t,
				struct od_err *err);
/* Both. */
OD_MUST_CHECK int odp_runs_do(struct odp_runs *r, const struct odp_run *run, struct odp_run_times *t,
			      struct od_err *err);

#endif

/* recall_served.h - od-bench recall --served: for each configuration, the share of expert uses that a cluster of given
 * speed would have served in time, and its extra loads: as in the paper, with early departure, and with hedges.
 *
 * Each of these modes is a cluster in virtual time (deploy/plan/sim.h) that gets the prompts in order.
 * Thread: one at a time. Owner: recall_served_init ... recall_served_fini by the caller. */
#ifndef OD_BENCH_RECALL_SERVED_H
#define OD_BENCH_RECALL_SERVED_H

#include "tests/bench/live/recall_config.h"
#include "tests/bench/report/bench_table.h"
#include "tests/bench/sim/recall_tape.h"
#include "tests/bench/sim/served_cluster.h"

#define RECALL_HEDGES_MAX 6
#define RECALL_WAYS_MAX (2 + RECALL_HEDGES_MAX)

struct recall_served_opts {
	const char *hedge; /* list of percentages; NULL: the default list */
	uint64_t workers, slots; /* the group size is top-k */
	double load; /* load time of an expert over the window of OD-MoE Eq. 1 for one slot */
	double shadow_ms; /* time of a layer on the shadow; main, worker, head: 1 ms */
};

/* A mode of the cluster. */
struct recall_way {
	char name[48];
	bool early;
	double hedge; /* budget: wasted loads per use; 0: no hedges */
};

struct recall_served {
	struct recall_served_opts o;
	struct recall_way way[RECALL_WAYS_MAX];
	size_t n_ways, n_configs, n_prompts;
	struct served_params params;
	struct odp_sim **sim; /* [n_configs][n_ways]; NULL: a configuration without a shadow */
	struct odp_sim_figures *result; /* [n_configs][n_ways][n_prompts] */
};

void recall_served_defaults(struct recall_served_opts *o);
/* Checks the options; err names the wrong one. */
OD_MUST_CHECK int recall_served_check(const struct recall_served_opts *o, struct od_err *err);
OD_MUST_CHECK int recall_served_init(struct recall_served *s, const struct recall_served_opts *o,
				     const struct recall_configs *configs, size_t n_prompts,
				     const struct od_config *cfg, struct od_err *err);
void recall_served_fini(struct recall_served *s); /* all zero is fine */

/* Runs a prompt in every mode; call it for the prompts in order. */
OD_MUST_CHECK int recall_served_run(struct recall_served *s, size_t config, size_t prompt, struct served_trace *t,
				    struct od_err *err);
void recall_served_report(const struct recall_served *s, const struct recall_configs *configs, struct od_report *r);

#endif

/* check_steps.h - what main spends in a step beside its forward pass, the workers and the way to them: dealing,
 * messages, hand-overs between threads, sampling. od-main's own engine writes a text on the cluster for that.
 *
 * Thread: one at a time, the one of the model's compute queue. Owner: nothing is kept. */
#ifndef ODP_CHECK_STEPS_H
#define ODP_CHECK_STEPS_H

#include "deploy/plan/check_facts.h"
#include "deploy/plan/check_text.h"
#include "main-node/step/timeline.h"

/* Workers that have been measured, and are free now. */
struct odp_steps_check {
	struct odp_text_hosts hosts;
	struct odp_checked *const *worker; /* [hosts.n] */
	double row_bytes;
	uint64_t budget_ns;
};

/* Adds to the fixed time of main's layers; rates: main's. */
OD_MUST_CHECK int odp_check_steps(struct odp_rates *rates, const struct odp_steps_check *o, struct od_err *err);

/* Times that main took beside all that is known: of layers that another one follows in a step's record, and of the rest
 * of the step with its last layer. */
#define ODP_OWN_TIMES 256
struct odp_own_times {
	double layer_ns[ODP_OWN_TIMES], step_ns[ODP_OWN_TIMES];
	size_t n_layers, n_steps;
};
struct odp_known_times {
	const struct od_config *config;
	double layer_ns, head_ns; /* main's, without workers */
	const double *way_ns; /* [n_members] by member: a RUN of one row there and back */
	double row_ns; /* a further row of a RESULT on its way */
	size_t n_members;
};
/* next_ns: the next step's begin. */
void odp_add_own_times(struct odp_own_times *t, const struct odp_known_times *k, const struct odm_timeline_step *r,
		       uint64_t next_ns);

#endif

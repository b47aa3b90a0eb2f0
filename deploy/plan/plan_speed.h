/* plan_speed.h - how fast a cluster would be, what limits it, and what would lift that: the simulator, run with the
 * cluster as it is and with one thing changed.
 *
 * Thread: any; odp_speed_limits starts threads. Owner: the caller; plain data. */
#ifndef ODP_PLAN_SPEED_H
#define ODP_PLAN_SPEED_H

#include "deploy/plan/sim.h"

enum odp_figure_kind { ODP_DECODE, ODP_FIRST_TOKEN };

#define ODP_MAX_LIFTS 3

struct odp_figure {
	enum odp_figure_kind kind;
	uint32_t texts, prompt_tokens; /* prompt_tokens: of ODP_FIRST_TOKEN */
	bool drafts;
	double value; /* tokens a second of all texts together; seconds to the first token */
	double up_bytes, down_bytes, shadow_bytes; /* a token, through the ports of main, and of the shadow both ways */
	double loads; /* a token */
	double main_busy, link_busy, read_busy, worker_busy,
		shadow_busy; /* share of the time, 0 to 1; the busiest worker's */
	const char *limit; /* "workers' reads" */
	/* Best first. */
	struct odp_lift {
		char what[64]; /* "a worker more" */
		double value; /* as above */
	} lift[ODP_MAX_LIFTS];
	size_t n_lifts;
};

struct odp_synthetic;

struct odp_speed_input {
	const struct odp_synthetic *like; /* odp_speed_routes' for this model; NULL: each run makes its own */
	struct odp_cluster cluster;
	struct odp_sim_model model;
	uint32_t prefill_rows;
	bool alone; /* the only worker is main itself */
	bool next_gate; /* od-main --predictor next-gate; beside a shadow it always stands in */
	double *worker_bytes; /* [n_workers] a token, both ways: odp_speed writes it; NULL: it does not */
	const char *trace_path; /* odp_speed writes a Chrome trace there; NULL: it does not */
};

/* A shadow predicts these shares of the used experts and of the tokens. */
struct odp_guessing {
	double recall, accept;
};
/* The routes that all runs of a model have, with a shadow that predicts like that; for odp_synthetic_free. */
OD_MUST_CHECK int odp_speed_routes(struct odp_synthetic **out, const struct odp_sim_model *m,
				   const struct odp_guessing *shadow, struct od_err *err);
/* f has kind, texts, prompt_tokens and drafts; the rest but limit and lifts is filled in. drafts: with them in each
 * step, whether they pay or not. */
OD_MUST_CHECK int odp_speed(struct odp_figure *f, const struct odp_speed_input *in, struct od_err *err);
/* Sets limit and lifts, too. Its runs share the CPUs. */
OD_MUST_CHECK int odp_speed_limits(struct odp_figure *f, const struct odp_speed_input *in, struct od_err *err);

#endif

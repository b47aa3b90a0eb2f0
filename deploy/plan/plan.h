/* plan.h - whether a model runs on given machines, how, and how fast: roles, memory, slots, caches, the shadow's
 * precision, groups, figures with their limits.
 *
 * Thread: one at a time. Owner: odp_plan_make's caller; it borrows model. */
#ifndef ODP_PLAN_H
#define ODP_PLAN_H

#include "common/net/hosts.h"
#include "deploy/plan/plan_memory.h"
#include "deploy/plan/plan_speed.h"

enum odp_role { ODP_MAIN, ODP_SHADOW, ODP_WORKER };
extern const char *const odp_role_names[];

struct odp_host_plan {
	enum odp_role role;
	struct odp_machine machine; /* name: as in the hosts file */
	uint16_t port; /* 0: the usual one */
	size_t on; /* the first host of the plan on its machine: another one if they share an address */
	struct odp_memory memory;
	uint64_t disk_bytes;
	double link_bytes; /* a token, both ways, when one text is written without drafts */
	uint64_t kept_experts; /* workers, and main where there are none */
	enum od_form form; /* experts' there */
};

/* It says what is missing, and by how much; the remedy is the smallest change that would fit. */
#define ODP_MAX_PROBLEMS 16
struct odp_problem {
	char what[320], remedy[320];
};

#define ODP_MAX_FIGURES 8

struct odp_plan {
	const struct odp_model *model;
	struct odp_host_plan *host; /* [n]: main, shadows, workers in the order of the file */
	size_t n;
	uint32_t n_workers, n_shadows;
	bool alone; /* main has the experts itself */
	bool assumed; /* the rate of reads was not given and not measured */
	struct odp_texts texts; /* with the context that was chosen */
	/* Dense weights that a step of main reads; with streams_below bytes of memory or more it would read none. */
	double streamed_bytes;
	uint64_t streams_below;
	uint32_t group_size;
	bool next_gate; /* main predicts by itself: without a shadow, where it pays */
	enum od_precision shadow; /* 0: none */
	uint32_t shadow_texts; /* at once, of full length: where its memory is short, fewer than main writes */
	uint64_t kept_experts, all_experts;
	/* Plain tokens a second of one text with the shadow, and without it, with main's own predictor if that pays;
	 * with drafts; 0: not known. */
	double with_shadow, without_shadow, with_drafts;
	/* A worker that would serve better as a shadow; NULL: none would. */
	const struct odp_host_plan *better_shadow;
	enum od_precision better_precision;
	double better_value; /* tokens a second then */
	struct odp_figure figure[ODP_MAX_FIGURES];
	size_t n_figures; /* 0: it does not fit */
	struct odp_problem problem[ODP_MAX_PROBLEMS];
	size_t n_problems, n_more_problems; /* the latter are only counted */
};

struct odp_plan_opts {
	const struct od_hosts *hosts; /* NULL: this machine alone */
	const char *hosts_path; /* for messages */
	uint64_t ctx_tokens; /* a text's; 0: the usual least */
	const char *trace_path; /* a Chrome trace of one text's plain decoding; NULL: none */
};

/* OD_OK, also where it does not fit: then there are problems instead of figures. OD_ERR_ARG: hosts lack words. */
OD_MUST_CHECK int odp_plan_make(struct odp_plan *p, const struct odp_model *m, const struct odp_plan_opts *o,
				struct od_err *err);
void odp_plan_fini(struct odp_plan *p); /* all zero is fine */

#endif

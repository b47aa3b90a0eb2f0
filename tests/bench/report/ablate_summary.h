/* ablate_summary.h - speed and cost of a setting of od-bench ablate, from the runs of all prompts.
 *
 * Speed and stall time are measured per prompt, so they have a spread over prompts; the others are totals per generated
 * token.
 * Thread: any. Owner: the caller. */
#ifndef OD_BENCH_ABLATE_SUMMARY_H
#define OD_BENCH_ABLATE_SUMMARY_H

#include "common/base/status.h"
#include "main-node/step/figures.h"
#include "tests/bench/report/bench_stats.h"

/* Over prompts; NaN where there are too few. */
struct ablate_spread {
	double median, q1, q3, mean, sd;
};

struct ablate_summary {
	struct ablate_spread tok_per_s, stalled_ms; /* stalled: per token */
	uint64_t tokens, uses; /* in decode steps */
	double recall; /* OD-MoE Eq. 3; NaN: no predictions */
	double served; /* share of uses served in time (figures.h) */
	double extra; /* loads begun and never used, over uses */
	/* Per token. unforeseen: uses without a prediction; late_loads: predicted, but not loaded in time; predictions
	 * are counted as rows of a layer. */
	double stalls, stall_ms, unforeseen, late_loads, late_predictions, missing_predictions;
	double align_bytes; /* per token: bytes sent to the shadow, without answers to its requests */
	double load_ms, main_ms, worker_ms, window_ms; /* Eq. 1, from measured times */
};

/* f: [n], one per prompt. OD_ERR_NOMEM. */
OD_MUST_CHECK int ablate_summarise(const struct odm_figures *f, size_t n, struct ablate_summary *out,
				   struct od_err *err);

/* Compares settings a and b prompt by prompt, so that a slow prompt affects both. */
enum ablate_by {
	ABLATE_BY_SPEED, /* speed of a / speed of b: a is better above 1 */
	ABLATE_BY_STALLS, /* stall of b - stall of a, in milliseconds per token: a is better above 0 */
};
struct ablate_pair {
	enum ablate_by by;
	struct od_stats gain;
	size_t n_better; /* prompts where a was better */
};
OD_MUST_CHECK int ablate_compare(const struct odm_figures *a, const struct odm_figures *b, size_t n, enum ablate_by by,
				 struct ablate_pair *out, struct od_err *err);
/* "yes" (a is better), "no" (a is worse), or "undecided": the 95 % interval of the gain allows both, or there are few
 * prompts. */
const char *ablate_verdict(const struct ablate_pair *p);

#endif

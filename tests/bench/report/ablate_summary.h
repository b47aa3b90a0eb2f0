/* ablate_summary.h - what a setting of od-bench ablate cost, from the runs of all prompts.
 *
 * Speed and the time stalled are figures of each prompt, so they have a spread over prompts; the others are totals, per
 * generated token.
 * Thread: any. Owner: the caller. */
#ifndef OD_BENCH_ABLATE_SUMMARY_H
#define OD_BENCH_ABLATE_SUMMARY_H

#include "common/base/status.h"
#include "main-node/engine/figures.h"
#include "tests/bench/report/bench_stats.h"

/* Over prompts; NaN where there are too few. */
struct ablate_spread {
	double median, q1, q3, mean, sd;
};

struct ablate_summary {
	struct ablate_spread tok_per_s, stalled_ms; /* stalled: a token */
	uint64_t tokens, uses; /* of decode steps */
	double recall;	       /* OD-MoE Eq. 3; NaN: nothing was predicted */
	double served;	       /* share of uses served in time (figures.h) */
	double extra;	       /* loads begun and never used, over uses */
	/* A token. Unforeseen: uses that nobody had predicted; late_loads: foreseen, but not there in time; predictions:
	 * rows of a layer. */
	double stalls, stall_ms, unforeseen, late_loads, late_predictions, missing_predictions;
	double align_bytes; /* a token: what the shadow was told, but for what it asked for */
	double load_ms, main_ms, worker_ms, window_ms;	     /* Eq. 1, from what was measured */
};

/* f: [n] one of each prompt. OD_ERR_NOMEM. */
OD_MUST_CHECK int ablate_summarise(const struct odm_figures *f, size_t n, struct ablate_summary *out,
				   struct od_err *err);

/* Is a better than b? Prompt by prompt, so that what makes a prompt slow falls on both. */
enum ablate_by {
	ABLATE_BY_SPEED,  /* a's speed over b's: better above 1 */
	ABLATE_BY_STALLS, /* milliseconds a token that b stalled more than a: better above 0 */
};
struct ablate_pair {
	enum ablate_by by;
	struct od_stats gain;
	size_t n_better; /* prompts in which a was */
};
OD_MUST_CHECK int ablate_compare(const struct odm_figures *a, const struct odm_figures *b, size_t n, enum ablate_by by,
				 struct ablate_pair *out, struct od_err *err);
/* "yes", "no" (it was worse), or "undecided": the 95 % interval of the gain holds neither, or there are few prompts. */
const char *ablate_verdict(const struct ablate_pair *p);

#endif

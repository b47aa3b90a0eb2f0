/* recall_stats.h - counts of one prompt under one configuration of od-bench recall, and confidence intervals over
 * prompts.
 *
 * Recall is a ratio of sums over prompts (OD-MoE Eq. 3). Prompts are the random sample, because the tokens of one
 * prompt are correlated. So intervals come from the spread between prompts: R = sum c / sum u, residuals c_i - R u_i,
 * s^2 = n / (n - 1) * sum (c_i - R u_i)^2 / (sum u)^2, and R -+ t(0.975, n - 1) s (ratio estimator, linearised).
 * Thread: its owner's. Owner: recall_counts_init ... recall_counts_fini by the caller. */
#ifndef OD_BENCH_RECALL_STATS_H
#define OD_BENCH_RECALL_STATS_H

#include "common/model/config.h"
#include "common/predict/recall.h"

/* Buckets of the true router's margin (probability of the k-th expert minus that of the next): bucket i is from edge i
 * - 1 up to, but not including, edge i; the last one has no upper end. */
#define RECALL_MARGINS 8
extern const double recall_margin_edges[RECALL_MARGINS - 1];
size_t recall_margin_bucket(double margin);

struct recall_counts {
	struct od_recall recall; /* rows that had a prediction: all, by layer, by token index */
	struct od_recall_cell rank[OD_MAX_TOP_K]; /* by rank of the true router's choice */
	struct od_recall_cell margin[RECALL_MARGINS];
	/* Recall of every prediction at its arrival: lead[i] counts those that arrived i routers before the router's
	 * choice, their own layer's router included; [0]: late. */
	struct od_recall_cell *lead; /* [n_leads]; longer leads count in the last */
	uint32_t n_leads;
	uint64_t expert_uses, missing_rows; /* missing: rows of a layer without a prediction */
	uint64_t guesses, wrong_guesses; /* guesses of the next token by the emulated model */
	/* Sent to the shadow unrequested (kv_rows, align_bytes), and on request (prompts). */
	uint64_t kv_rows, align_bytes, asked_rows, asked_bytes; /* rows: of one layer each */
	uint64_t tokens, steps;
};

/* One row of one layer, predicted or (n_predicted 0) not. */
struct recall_row {
	uint32_t layer, token; /* token: index of the generated token, from 0 */
	double margin;
	const uint16_t *predicted, *used; /* used: [n_used], best first */
	size_t n_predicted, n_used;
};

OD_MUST_CHECK int recall_counts_init(struct recall_counts *c, uint32_t n_moe, uint32_t n_tokens, struct od_err *err);
void recall_counts_fini(struct recall_counts *c);
void recall_counts_row(struct recall_counts *c, const struct recall_row *r);
void recall_counts_lead(struct recall_counts *c, uint32_t lead, const struct recall_row *r);
void recall_counts_merge(struct recall_counts *into, const struct recall_counts *from);

struct recall_interval {
	double value, low, high; /* NaN: unknown */
};

/* The sum of cells [from, to) of n. */
struct od_recall_cell recall_sum(const struct od_recall_cell *cell, size_t n, size_t from, size_t to);

/* R of n prompts with its 95 % interval, clipped to 0..1. Prompts without uses are ignored. */
struct recall_interval recall_ratio(const struct od_recall_cell *cell, size_t n);
/* R of a minus R of b; prompt i is the same in both. Prompts without uses in either are ignored. */
struct recall_interval recall_difference(const struct od_recall_cell *a, const struct od_recall_cell *b, size_t n);
/* Mean and sample standard deviation of the prompts' recalls. */
void recall_spread(const struct od_recall_cell *cell, size_t n, double *mean, double *sd);

/* Student's t: the quantile 0.975 with df degrees of freedom, to 2e-4; NaN for 0. */
double recall_t975(size_t df);

#endif

/* recall_report.h - what od-bench recall says about configurations, live or in one process: the same keys for both, as
 * far as there are figures.
 *
 * Thread: main(). Owner: everything is borrowed. */
#ifndef OD_BENCH_RECALL_REPORT_H
#define OD_BENCH_RECALL_REPORT_H

#include "tests/bench/live/bench_prompts.h"
#include "tests/bench/live/recall_stats.h"
#include "tests/bench/report/bench_table.h"

struct recall_view {
	size_t n_configs;
	const char *const *name;	    /* [n_configs] */
	const char *const *group;	    /* [n_configs]: those of one group are put in order */
	const struct recall_counts *counts; /* [n_configs][prompts->n] */
	const struct od_prompts *prompts;
	const char *const *finish; /* [prompts->n]: how its text ended */
	uint32_t n_moe, top_k, max_tokens;
};

/* Everything: totals, then tables. With several configurations a person gets their comparison, and --json also every
 * table of each. */
OD_MUST_CHECK int recall_report(const struct recall_view *v, struct od_report *r, struct od_err *err);

/* The cells "recall of all rows that had a prediction" of a configuration's prompts, malloc'd [prompts->n]; NULL: no
 * memory. */
struct od_recall_cell *recall_prompt_cells(const struct recall_view *v, size_t config);
/* The same for token indices [from, to) alone. */
struct od_recall_cell *recall_prompt_token_cells(const struct recall_view *v, size_t config, uint32_t from,
						 uint32_t to);

#endif

/* recall_report.h - the report of od-bench recall about configurations. Live runs and runs in one process use the same
 * keys; keys without figures are left out.
 *
 * Thread: main(). Owner: everything is borrowed. */
#ifndef OD_BENCH_RECALL_REPORT_H
#define OD_BENCH_RECALL_REPORT_H

#include "tests/bench/live/bench_prompts.h"
#include "tests/bench/live/recall_stats.h"
#include "tests/bench/report/bench_table.h"

struct recall_view {
	size_t n_configs;
	const char *const *name; /* [n_configs] */
	const char *const *group; /* [n_configs]: configurations of one group are ranked together */
	const struct recall_counts *counts; /* [n_configs][prompts->n] */
	const struct od_prompts *prompts;
	const char *const *finish; /* [prompts->n]: finish reason of its text */
	uint32_t n_moe, top_k, max_tokens;
};

/* Reports totals, then tables. With several configurations the text compares them; --json also has all tables of
 * each. */
OD_MUST_CHECK int recall_report(const struct recall_view *v, struct od_report *r, struct od_err *err);

#endif

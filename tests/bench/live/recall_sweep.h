/* recall_sweep.h - the configurations of OD-MoE's Fig. 3, Fig. 6 and Table 1, and these figures as tables.
 *
 *   Fig. 3   recall by token index: no alignment, token, KV, both
 *   Fig. 6   recall by alignment period: of KV, of the token, of both
 *   Table 1  the shadow compared with other predictors, on the same prompts
 *
 * Thread: main(). Owner: everything is borrowed. */
#ifndef OD_BENCH_RECALL_SWEEP_H
#define OD_BENCH_RECALL_SWEEP_H

#include "tests/bench/live/recall_config.h"
#include "tests/bench/report/recall_report.h"

enum { RECALL_FIG3 = 1, RECALL_FIG6 = 2, RECALL_TABLE1 = 4 }; /* bits of a set */
extern const char *const recall_sweep_names[]; /* "fig3", "fig6", "table1", "all", NULL */
unsigned recall_sweep_set(int name); /* index into the names; negative: none */

OD_MUST_CHECK int recall_sweep_add(unsigned set, const struct od_shadow_choice *choice, size_t n,
				   struct recall_configs *c, struct od_err *err);
/* Appends the tables to the report. The view's configurations are c's. */
void recall_sweep_report(unsigned set, const struct recall_configs *c, const struct recall_view *v,
			 struct od_report *r);

#endif

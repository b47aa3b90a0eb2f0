/* recall_sweep.h - the configurations of OD-MoE's Fig. 3, Fig. 6 and Table 1, and these figures as tables and plots.
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

#define RECALL_PERIODS 7
extern const uint32_t recall_periods[RECALL_PERIODS]; /* 1, 2, 4, ... 32, 0 (never) */

OD_MUST_CHECK int recall_sweep_add(unsigned set, const struct od_shadow_choice *choice, size_t n,
				   struct recall_configs *c, struct od_err *err);
/* Appends the tables to the report. The view's configurations are c's. */
void recall_sweep_report(unsigned set, const struct recall_configs *c, const struct recall_view *v,
			 struct od_report *r);

bool recall_in_table1(const struct recall_config *c);
/* True: it predicts a row several times, with different leads, for more than a few rows. */
bool recall_speaks_often(const struct recall_view *v, size_t config);
/* Sum of leads [from, to) over all prompts. */
struct od_recall_cell recall_sum_leads(const struct recall_view *v, size_t config, uint32_t from, uint32_t to);
/* Names of the shadows' groups, in order; returns how many (at most RECALL_CONFIGS_MAX). */
size_t recall_groups(const struct recall_configs *c, const char *group[RECALL_CONFIGS_MAX]);

/* recall_draw.c: writes plots into dir; set 0: all configurations by token index and by layer. */
OD_MUST_CHECK int recall_draw(unsigned set, const struct recall_configs *c, const struct recall_view *v,
			      const char *dir, struct od_err *err);

/* Token indices per bin, for a readable curve. */
static inline uint32_t recall_bin_tokens(uint32_t max_tokens)
{
	return max_tokens > 32 ? (max_tokens + 31) / 32 : 1;
}

#endif

/* ablate.h - shared by the files of od-bench ablate: settings, and the figures of OD-MoE that show them.
 *
 * A setting is one configuration of the cluster; it is measured once per prompt, even if several figures show it.
 * Thread: main(). Owner: struct ablate owns all below it; prompts and options are bench_ablate.c's. */
#ifndef OD_BENCH_ABLATE_H
#define OD_BENCH_ABLATE_H

#include "main-node/engine/engine.h"
#include "tests/bench/live/bench_prompts.h"

#define ABLATE_MAX_SETTINGS 64
#define ABLATE_MAX_BARS 32

struct ablate_setting {
	int predictor; /* index of rival_names */
	uint64_t align_token, align_kv; /* the shadow's periods; 0: never */
	double load_time_ms;
};

/* OD-MoE Fig. 8, 9 or 10: its settings in order, and their labels. */
struct ablate_figure {
	const char *key, *token_key, *title;
	size_t n;
	size_t setting[ABLATE_MAX_BARS];
	char label[ABLATE_MAX_BARS][48];
};
enum { ABLATE_FIG8, ABLATE_FIG9, ABLATE_FIG10, ABLATE_FIGURES };
#define ABLATE_CASES 6 /* Fig. 8's */
#define ABLATE_PERIODS 5 /* Fig. 9's: 1, 2, 4, 8, 16, of each kind */
#define ABLATE_KV_PERIODS 6 /* Fig. 10's: 1 to 32 */
#define ABLATE_LOADS 2 /* Fig. 10's: load times */

struct ablate {
	struct ablate_setting setting[ABLATE_MAX_SETTINGS];
	size_t n_settings;
	struct ablate_figure figure[ABLATE_FIGURES]; /* n 0: not wanted */
	const struct od_prompts *prompts;
	size_t n_done; /* prompts that all settings have finished */
	/* [n_settings][prompts->n], without nodes. */
	struct odm_figures *run;
	size_t n_other_tokens; /* runs whose tokens differ from the first setting's: must be 0 */
	char first_other[160];
	/* For the report. */
	double window_ms, run_time_ms, load_time_ms; /* window: of the calibration, NaN without one */
	uint64_t max_tokens;
	uint32_t workers, groups, slots;
	const char *precision, *departure, *fingerprint;
	double hedge_percent;
};

static inline struct odm_figures *ablate_runs(const struct ablate *a, size_t setting)
{
	return a->run + setting * a->prompts->n;
}

/* figures: [ABLATE_FIGURES], true for each one to make. Fig. 10 has load_time_ms and twice as much. */
void ablate_plan(struct ablate *a, const bool *figures, double load_time_ms);

OD_MUST_CHECK int ablate_report(const struct ablate *a, bool json, struct od_err *err);

#endif

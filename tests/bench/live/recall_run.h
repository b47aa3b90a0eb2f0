/* recall_run.h - od-bench recall in one process: runs the true model once over every prompt and compares every
 * configuration's predictions with it, in parallel on the CPUs.
 *
 * A thread takes a prompt, records it, and replays it to a shadow of each configuration. Main's own predictors learn
 * from prompt to prompt, so they get the prompts in order, one thread at a time.
 * Results do not depend on the number of threads.
 * Thread: recall_run_all from one thread; it starts and joins its own, each with a CPU device of its own. Owner:
 * recall_run_open ... recall_run_close by the caller; options, configurations and prompts are borrowed. */
#ifndef OD_BENCH_RECALL_RUN_H
#define OD_BENCH_RECALL_RUN_H

#include "main-node/engine/engine.h"
#include "tests/bench/live/recall_config.h"
#include "tests/bench/live/recall_record.h"
#include "tests/bench/live/recall_stats.h"
#include "tests/bench/sim/recall_served.h"

struct recall_run_opts {
	const char *pack; /* NULL: the default of od_pack_open */
	const char *device; /* od_device_open's; of one card */
	int cpu; /* enum od_cpu */
	enum od_profile profile;
	uint64_t threads, ctx_tokens; /* 0: number of CPUs; the model's context, at most 4096 */
	uint32_t prefill_rows, max_tokens;
	bool early; /* departure of the shadows */
	bool progress; /* on stderr */
	const char *dump; /* file, or NULL */
	const struct recall_served_opts *served; /* NULL: no simulation of clusters */
	const struct odm_engine_opts *routing; /* its --routing; the rest is ignored */
};

struct recall_prompt_result {
	uint32_t n_tokens;
	const char *finish;
};

struct recall_run {
	struct recall_run_opts opt;
	const struct recall_configs *configs;
	struct od_prompts *prompts;
	struct recall_counts *counts; /* [configs][prompts] */
	struct recall_prompt_result *result; /* [prompts] */
	struct od_pack *pack;
	struct recall_models *models;
	struct recall_served served; /* all zero: none */
};

/* Opens the pack, loads the weights that the configurations need, and tokenises the prompts. */
OD_MUST_CHECK int recall_run_open(struct recall_run *r, struct od_err *err);
OD_MUST_CHECK int recall_run_all(struct recall_run *r, struct od_err *err);
void recall_run_close(struct recall_run *r); /* half-built is fine; all fields not set by the caller must begin as 0 */

static inline struct recall_counts *recall_run_counts(const struct recall_run *r, size_t config)
{
	return r->counts + config * r->prompts->n;
}

#endif

/* cache_live.h - results of od-bench cache --live: a local cluster of workers with caches, by size, policy and length
 * of text, compared with the replay of its recorded routes. Thread: one at a time. */
#ifndef OD_BENCH_CACHE_LIVE_H
#define OD_BENCH_CACHE_LIVE_H

#include "main-node/step/figures.h"
#include "tests/bench/sim/cache_budget.h"
#include "tests/bench/sim/cache_replay.h"

#define CACHE_LIVE_NONE (-1) /* no cache */

struct cache_live_run {
	/* The setting. */
	int policy; /* enum od_cache_policy, or CACHE_LIVE_NONE */
	const struct cache_budget *budget; /* NULL: none */
	uint64_t tokens;
	/* The results. */
	double ttft_ms, tpot_ms; /* medians over prompts */
	double tok_per_s; /* all texts, one after another, prompts included */
	uint64_t uses, hits[OD_CACHE_STATES];
	struct cache_result replay;
};

struct cache_live {
	struct cache_live_run *run; /* [n_runs]; for each length the run without a cache comes first */
	size_t n_runs, n_prompts;
	struct cache_budgets budgets;
	struct od_cache_sizes sizes; /* an expert's on a worker */
	uint32_t workers, groups, slots;
	double load_ms;
	const char *predictor, *form, *fingerprint;
};

OD_MUST_CHECK int cache_live_report(const struct cache_live *l, bool json, struct od_err *err);

#endif

/* cache_draw.h - results of od-bench cache, and plots of them. Thread: one at a time. */
#ifndef OD_BENCH_CACHE_DRAW_H
#define OD_BENCH_CACHE_DRAW_H

#include "tests/bench/report/bench_plot.h"
#include "tests/bench/sim/cache_replay.h"

#define CACHE_KINDS 7
#define CACHE_KIND_LRU 3
#define CACHE_BUDGETS 32

struct cache_kind {
	const char *name;
	enum cache_rule rule;
	bool planned;
};
extern const struct cache_kind cache_kinds[CACHE_KINDS];

struct cache_budget {
	uint64_t bytes; /* per worker */
	double percent; /* of the published size of all experts, divided by the number of workers */
};

struct cache_study {
	struct cache_routes routes;
	struct cache_world world;
	struct cache_budget budget[CACHE_BUDGETS];
	size_t n_budgets;
	struct cache_result cold; /* without a cache */
	struct cache_result result[CACHE_BUDGETS][CACHE_KINDS];
};

double cache_makespan_ms(const struct cache_result *r); /* per layer */
double cache_read_percent(const struct cache_result *r);
double cache_rank_share(const struct cache_world *w, uint32_t rank); /* of all workers' turns */

/* DIR/cache-makespan.svg, -makespan-lru.svg, -stay.svg, -ranks.svg */
OD_MUST_CHECK int cache_draw(const struct cache_study *s, const char *dir, struct od_err *err);

#endif

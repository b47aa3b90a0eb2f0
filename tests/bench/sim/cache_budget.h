/* cache_budget.h - sizes of caches to compare, from the option --budget.
 *
 * Thread: any. Owner: plain data. */
#ifndef OD_BENCH_CACHE_BUDGET_H
#define OD_BENCH_CACHE_BUDGET_H

#include "tests/bench/bench_list.h"

struct cache_budgets {
	struct cache_budget {
		uint64_t bytes;
		double percent; /* percent of the published size of all experts */
	} budget[OD_LIST_MAX];
	size_t n;
};

/* "900MiB,20%", rounded to whole units, which none may be less than. published: the bytes that are 100 %. */
OD_MUST_CHECK int cache_budgets_parse(struct cache_budgets *b, const char *text, double published, uint64_t unit,
				      struct od_err *err);

#endif

/* route_policy.h - ways to choose a row's experts by what a cache has ("Mixture of Cache-Conditional Experts", arXiv
 * 2412.00099, sections 2.3 and 3), for comparison with od-main's --routing.
 *
 * A cache of a layer has the experts that were used last; of one row's, the one of the least weight is the newest.
 * Thread: any; plain data. Owner: the caller. */
#ifndef OD_BENCH_ROUTE_POLICY_H
#define OD_BENCH_ROUTE_POLICY_H

#include "common/compute/ops.h"

enum route_way {
	ROUTE_ROUTER, /* the router's top-k */
	ROUTE_PRUNE, /* only the first `value` of them have weight (section 2.3) */
	ROUTE_SWAP, /* the one of rank `value` is another expert, by a hash of the row */
	ROUTE_MAX_RANK, /* cached experts of the first `value` go first (3.1) */
	ROUTE_CUMULATIVE, /* max-rank of as many as have a probability of `value` together (3.2) */
	ROUTE_CACHE_PRIOR, /* logits of cached experts are raised by `value` times the mean range (3.3) */
	N_ROUTE_WAYS
};
extern const char *const route_way_names[]; /* NULL at the end */

struct route_policy {
	enum route_way way;
	double value;
	uint32_t keep; /* the first ones of the router are used in any case */
};

struct route_counts {
	uint64_t n_rows, n_uses, n_misses;
	uint64_t n_oracle_misses; /* route_oracle_misses */
	uint64_t n_came; /* experts that came into the cache, those at the start too */
	uint64_t stay_rows; /* rows that they were there, together */
};

struct route_cache {
	uint16_t expert[OD_MAX_EXPERTS]; /* [n]: newest first */
	uint32_t n, room;
	double range; /* ROUTE_CACHE_PRIOR: mean of the rows so far */
	struct route_counts count;
};

/* expert [k]: chosen by probability [n]; row: a number of the row. Returns how many of them have weight. The cache is
 * as the row before left it. */
uint32_t route_choose(const struct route_policy *p, struct route_cache *c, const float *probability, uint32_t n,
		      uint32_t k, uint64_t row, uint16_t *expert);
/* Puts random experts of n into the cache, which is empty. */
void route_fill(struct route_cache *c, uint32_t n, uint64_t seed);
/* The row has used them: counts uses and misses, and puts them into the cache. weight [k]. */
void route_used(struct route_cache *c, const uint16_t *expert, const float *weight, uint32_t n_weighted, uint32_t k);
/* Misses of a cache of `room` experts that begins empty and keeps those that are used next (Belady's rule,
 * cache_rule.h). used [n_uses]: one row's experts after the other's, all below n; OD_NO_EXPERT: none. */
OD_MUST_CHECK int route_oracle_misses(const uint16_t *used, size_t n_uses, uint32_t n, uint32_t room,
				      uint64_t *n_misses, struct od_err *err);

#endif

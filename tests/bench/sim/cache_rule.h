/* cache_rule.h - rules for what a cache keeps: the workers' own (common/cache/pool_policy.h), and others for comparison,
 * which keep experts in one state: FIFO, Marking (Fiat, Karp, Luby, McGeoch, Sleator, Young 1991) and Belady's oracle.
 *
 * Marking: a use marks an expert; an unmarked one, drawn at random, has to go; when all are marked, a new phase begins with
 * none marked. Belady's keeps those whose next use is nearest, which only a replay can know.
 * A cache of any rule is driven by the functions of pool_policy.h.
 * Thread: one at a time. Deterministic. Owner: cache_rule_new's caller, by od_cache_free. */
#ifndef OD_BENCH_CACHE_RULE_H
#define OD_BENCH_CACHE_RULE_H

#include "common/cache/pool_policy.h"

enum cache_rule {
	CACHE_RANK = OD_CACHE_RANK,
	CACHE_LRU = OD_CACHE_LRU,
	CACHE_LFU = OD_CACHE_LFU,
	CACHE_FIFO,
	CACHE_MARKING,
	CACHE_BELADY,
};

#define CACHE_NEVER UINT64_MAX

/* o->policy does not count; seed: Marking's. */
OD_MUST_CHECK int cache_rule_new(struct od_cache **out, enum cache_rule rule, const struct od_cache_opts *o, uint64_t seed,
				 struct od_err *err);

/* Before od_cache_use of a CACHE_BELADY: when the expert is used again, on any clock that grows from use to use, or
 * CACHE_NEVER. */
void cache_rule_foretell(struct od_cache *belady, uint64_t next_use);

#endif

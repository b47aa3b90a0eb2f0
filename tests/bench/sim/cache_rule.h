/* cache_rule.h - eviction rules of a cache: the daemons' own, LRFU (common/residency/expert_cache.h), ZipMoE's
 * (pool_policy.h), and others that keep experts in one state: LRU, LFU, FIFO, Marking (Fiat, Karp, Luby, McGeoch,
 * Sleator, Young 1991) and Belady's oracle.
 *
 * Marking: a use marks an expert; the victim is a random unmarked one; when all are marked, a new phase begins with
 * none marked. Belady's evicts the expert whose next use is farthest, which only a replay can know. The functions of
 * pool_policy.h drive a cache of any rule.
 * Thread: one at a time. Deterministic. Owner: cache_rule_new's caller, by sim_cache_free. */
#ifndef OD_BENCH_CACHE_RULE_H
#define OD_BENCH_CACHE_RULE_H

#include "tests/bench/sim/pool_policy.h"

enum cache_rule {
	CACHE_RANK,
	CACHE_LRU,
	CACHE_LFU,
	CACHE_FIFO,
	CACHE_MARKING,
	CACHE_BELADY,
	CACHE_LRFU,
};

#define CACHE_NEVER UINT64_MAX

/* seed: for Marking. */
OD_MUST_CHECK int cache_rule_new(struct sim_cache **out, enum cache_rule rule, const struct sim_cache_opts *o,
				 uint64_t seed, struct od_err *err);

/* Call before sim_cache_use of a CACHE_BELADY. next_use: time of the expert's next use, on any clock that grows from
 * use to use, or CACHE_NEVER. */
void cache_rule_foretell(struct sim_cache *belady, uint64_t next_use);

/* Call before the uses of a step of a CACHE_LRFU: its number, which grows. */
void cache_rule_step(struct sim_cache *lrfu, uint64_t step);

#endif

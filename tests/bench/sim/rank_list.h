/* rank_list.h - ranks each layer's experts by number of uses, updated at every use, and counts uses by rank (ZipMoE,
 * arXiv 2601.21198, section 3.4, "rank-based workload modeling").
 *
 * Of two experts with equal counts the more recently used one ranks first. A use counts for the rank that the expert
 * has before the use, because that is the rank that a cache following this list sees.
 * Thread: one at a time. Owner: init ... fini by the caller; no allocation in between. */
#ifndef OD_BENCH_RANK_LIST_H
#define OD_BENCH_RANK_LIST_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct sim_rank_list {
	uint32_t n_moe, n_experts;
	uint64_t *count; /* [n_moe][n_experts] uses */
	uint16_t *order; /* [n_moe][n_experts] experts, the most used first */
	uint16_t *rank; /* [n_moe][n_experts] of each expert */
};

OD_MUST_CHECK int sim_rank_list_init(struct sim_rank_list *r, uint32_t n_moe, uint32_t n_experts, struct od_err *err);
void sim_rank_list_fini(struct sim_rank_list *r); /* all zero is fine */
void sim_rank_list_use(struct sim_rank_list *r, uint32_t layer, uint32_t expert);

static inline uint32_t sim_rank_of(const struct sim_rank_list *r, uint32_t layer, uint32_t expert)
{
	return r->rank[(size_t)layer * r->n_experts + expert];
}
static inline uint32_t sim_rank_at(const struct sim_rank_list *r, uint32_t layer, uint32_t rank)
{
	return r->order[(size_t)layer * r->n_experts + rank];
}

/* The planner's input: uses by rank. */
struct sim_rank_stats {
	struct sim_rank_list list;
	uint64_t *uses; /* [n_experts] by rank */
	uint64_t visits; /* number of sets of experts used together */
	uint64_t all; /* uses in all */
};

OD_MUST_CHECK int sim_rank_stats_init(struct sim_rank_stats *p, uint32_t n_moe, uint32_t n_experts, struct od_err *err);
void sim_rank_stats_fini(struct sim_rank_stats *p);
/* Records that n distinct experts are used together; n 0 does nothing. */
void sim_rank_stats_visit(struct sim_rank_stats *p, uint32_t layer, const uint16_t *experts, size_t n);

/* f [n_experts] by rank: probability of use per visit; uniform before the first visit. */
void sim_rank_stats_inclusion(const struct sim_rank_stats *p, double *f);
/* mean number of experts per visit; 1 before the first visit */
double sim_rank_stats_k(const struct sim_rank_stats *p);

#endif

/* rank_list.h - a layer's experts in the order of how often they were used, kept up to date use by use; and how often the
 * expert of each rank is the one that is used next (ZipMoE, arXiv 2601.21198, section 3.4, "rank-based workload
 * modeling").
 *
 * Of two that were used as often, the one used last stands first. A rank's frequency is taken at the rank that an expert
 * has at the moment of its use, not in hindsight: what a cache that goes by this list will see.
 * Thread: its owner's. Owner: init ... fini by the caller; nothing is allocated in between. */
#ifndef OD_CACHE_RANK_LIST_H
#define OD_CACHE_RANK_LIST_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct od_rank_list {
	uint32_t n_moe, n_experts;
	uint64_t *count; /* [n_moe][n_experts] uses */
	uint16_t *order; /* [n_moe][n_experts] experts, the most used first */
	uint16_t *rank;	 /* [n_moe][n_experts] of each expert */
};

OD_MUST_CHECK int od_rank_list_init(struct od_rank_list *r, uint32_t n_moe, uint32_t n_experts, struct od_err *err);
void od_rank_list_fini(struct od_rank_list *r); /* one that is all zero, too */
void od_rank_list_use(struct od_rank_list *r, uint32_t layer, uint32_t expert);

static inline uint32_t od_rank_of(const struct od_rank_list *r, uint32_t layer, uint32_t expert)
{
	return r->rank[(size_t)layer * r->n_experts + expert];
}
static inline uint32_t od_rank_at(const struct od_rank_list *r, uint32_t layer, uint32_t rank)
{
	return r->order[(size_t)layer * r->n_experts + rank];
}

/* What the planner wants to know. */
struct od_rank_profile {
	struct od_rank_list list;
	uint64_t *uses;	 /* [n_experts] by rank */
	uint64_t visits; /* times that a layer's experts were used together */
	uint64_t all;	 /* uses */
};

OD_MUST_CHECK int od_rank_profile_init(struct od_rank_profile *p, uint32_t n_moe, uint32_t n_experts,
				       struct od_err *err);
void od_rank_profile_fini(struct od_rank_profile *p);
/* n experts, all different, are used together; none: nothing happens. */
void od_rank_profile_visit(struct od_rank_profile *p, uint32_t layer, const uint16_t *experts, size_t n);

/* f [n_experts]; all of them equal before the first visit. */
void od_rank_profile_inclusion(const struct od_rank_profile *p, double *f);
double od_rank_profile_k(const struct od_rank_profile *p); /* experts used together, on average; 1 before the first visit */

#endif

/* cache_costs.h - load times and sizes of a pack's experts, as the cache planner counts them (u, rho, c of ZipMoE,
 * arXiv 2601.21198, section 3.2).
 *
 * Thread: any; pure functions. */
#ifndef OD_RESIDENCY_CACHE_COSTS_H
#define OD_RESIDENCY_CACHE_COSTS_H

#include "common/cache/cache_state.h"
#include "common/pack/load/expert_form.h"
#include "common/pack/pack.h"
#include "common/residency/schedule.h"

/* For an average expert of the pack. */
struct od_cache_cost od_expert_cache_cost(const struct od_pack *pack, const struct od_expert_costs *costs);
/* layer [n_moe]: memory of an expert of each layer in each cache state, in memory of d (NULL: of the host). F is also
 * its memory in a slot. The pools are the same for all layers. */
void od_expert_cache_sizes(const struct od_pack *pack, const struct od_device *d, enum od_form form,
			   struct od_cache_sizes *layer);
/* The mean over n sizes, layer[0], layer[step], and so on; n at least 1. */
struct od_cache_sizes od_cache_sizes_mean(const struct od_cache_sizes *layer, uint32_t n, uint32_t step);

#endif

/* expert_cache.h - which experts stay in memory after their use: the policy alone. Their memory is that of their slots
 * (schedule.h).
 *
 * An expert's worth is the number of its uses, of which each counts half as much after every 32 steps of its layer:
 * LRFU (D. Lee et al., IEEE Transactions on Computers 50(12), 2001, section 3). All layers share one budget. What is
 * used stays if the budget has room; else those of less worth leave, or, if there are none, it does not stay. Among
 * experts of equal worth layers keep as many as others (FluxMoE, arXiv 2604.02715, section 6.3).
 * Only experts of the layers of the own group stay, and none before the place is set.
 * Thread: the schedule's, under its lock. Owner: od_expert_cache_new's caller. All functions but od_expert_cache_new
 * accept NULL: no cache. */
#ifndef OD_RESIDENCY_EXPERT_CACHE_H
#define OD_RESIDENCY_EXPERT_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/pack/share.h"

struct od_expert_cache;

/* expert_bytes [n_moe]: memory of an expert of each layer, none of them 0; copied. */
OD_MUST_CHECK int od_expert_cache_new(struct od_expert_cache **out, uint32_t n_moe, uint32_t n_experts,
				      const uint64_t *expert_bytes, uint64_t budget_bytes, struct od_err *err);
void od_expert_cache_free(struct od_expert_cache *c);

/* Experts that stay from now on, or no longer: borrowed until the next call. */
struct od_expert_changes {
	const struct od_expert_change {
		uint32_t m, expert;
	} * change;
	size_t n;
};

bool od_expert_cache_keeps(const struct od_expert_cache *c, uint32_t m, uint32_t expert);
/* Records a use. Steps of larger numbers than all before let the layer's time pass. */
struct od_expert_changes od_expert_cache_use(struct od_expert_cache *c, uint64_t step, uint32_t m, uint32_t expert);
/* Records a use of an expert that was computed elsewhere: it does not come. */
void od_expert_cache_used_elsewhere(struct od_expert_cache *c, uint64_t step, uint32_t m, uint32_t expert);
/* How many uses more than the expert that would leave for it this one will have, if it is used as often as it has been,
 * each use counted by its age; INFINITY: it is kept, or there is room; -INFINITY: it would not be kept. */
double od_expert_cache_gain(const struct od_expert_cache *c, uint32_t m, uint32_t expert);
/* Share of the layer's recent steps that used the expert, of which older ones count less. */
double od_expert_cache_chance(const struct od_expert_cache *c, uint32_t m, uint32_t expert);
/* The expert is not in memory any more, because its load failed, for example. */
void od_expert_cache_forget(struct od_expert_cache *c, uint32_t m, uint32_t expert);
/* Steps are numbered anew. */
void od_expert_cache_new_session(struct od_expert_cache *c);

/* From now on uses count half as much after every 2 steps: where texts prefer the experts that they used last ("Mixture
 * of Cache-Conditional Experts", arXiv 2412.00099, section 3), these are what they will use. False: after every 32, as at
 * first. True: it was otherwise, so nothing is kept any more. */
bool od_expert_cache_favour_recent(struct od_expert_cache *c, bool recent);

/* Sets the place. True: the group serves other layers now; only experts of layers that it still serves are kept. */
bool od_expert_cache_place(struct od_expert_cache *c, const struct od_share *share);
struct od_expert_changes od_expert_cache_set_budget(struct od_expert_cache *c, uint64_t budget_bytes);

uint64_t od_expert_cache_kept_bytes(const struct od_expert_cache *c); /* memory of the experts that stay */
uint64_t od_expert_cache_changes(const struct od_expert_cache *c); /* grows with every change of what is kept */

#endif

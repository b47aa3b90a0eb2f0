#include "common/residency/expert_cache.h"

#include "common/base/mem.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_VISITS 64 /* visits of layers before the first plan; further plans at twice as many, and so on, */
#define MOST_VISITS 4096u /* up to so many apart */

struct od_expert_cache {
	uint32_t n_moe, n_experts;
	struct od_expert_bufs *bufs;
	struct od_expert_mem *kept; /* [n_moe][n_experts], touched as needed */
	uint64_t place; /* how many there were; 0: none yet */
	uint32_t group, n_groups; /* this worker's; n_groups 0: no place yet */
	uint32_t n_own; /* layers of the group */
	struct od_cache *policy; /* NULL: nothing is kept yet */
	struct od_rank_stats stats;
	uint64_t due_visits; /* when the next plan is due */
	bool due;
	uint64_t changes;
};

int od_expert_cache_new(struct od_expert_cache **out, uint32_t n_moe, uint32_t n_experts, struct od_expert_bufs *bufs,
			struct od_err *err)
{
	struct od_expert_cache *c = calloc(1, sizeof(*c));

	*out = NULL;
	if (c != NULL)
		c->kept = od_alloc_array((size_t)n_moe * n_experts, sizeof(*c->kept));
	if (c == NULL || c->kept == NULL) {
		od_expert_cache_free(c);
		return od_fail(err, OD_ERR_NOMEM, "cache of %u layers of %u experts", n_moe, n_experts);
	}
	c->n_moe = n_moe;
	c->n_experts = n_experts;
	c->bufs = bufs;
	*out = c;
	return OD_OK;
}

void od_expert_cache_free(struct od_expert_cache *c)
{
	if (c == NULL)
		return;
	od_cache_free(c->policy);
	od_rank_stats_fini(&c->stats);
	od_free(c->kept);
	free(c);
}

static struct od_expert_mem *kept(const struct od_expert_cache *c, uint32_t m, uint32_t expert)
{
	return &c->kept[(size_t)m * c->n_experts + expert];
}

/* Does this worker's group serve the layer? */
static bool is_own(const struct od_expert_cache *c, uint32_t m)
{
	return c->n_own > 0 && m % c->n_groups == c->group;
}

/* ---- The policy ---- */

enum od_cache_state od_expert_cache_look(const struct od_expert_cache *c, uint32_t m, uint32_t expert)
{
	if (c == NULL || c->policy == NULL || !is_own(c, m))
		return OD_CACHE_NONE;
	return od_cache_look(c->policy, m / c->n_groups, expert);
}

uint32_t od_expert_cache_layer(const struct od_expert_cache *c, const struct od_cache_change *change)
{
	return c->group + change->layer * c->n_groups;
}

/* Buffers that an expert without a slot shall have. In state F it would be in a slot. */
static unsigned wanted(enum od_cache_state state)
{
	switch (state) {
	case OD_CACHE_C: return OD_SET_STORED;
	case OD_CACHE_S: return OD_SET_SM;
	case OD_CACHE_E: return OD_SET_E;
	case OD_CACHE_F:
	case OD_CACHE_NONE: break;
	}
	return 0;
}

/* Gives back buffers that the policy does not want any more. */
static void trim(struct od_expert_cache *c, uint32_t m, uint32_t expert)
{
	od_expert_bufs_put(c->bufs, m, kept(c, m, expert), OD_SET_STORED & ~wanted(od_expert_cache_look(c, m, expert)));
}

static struct od_cache_changes apply(struct od_expert_cache *c, struct od_cache_changes changes)
{
	c->changes++;
	for (size_t i = 0; i < changes.n; i++)
		trim(c, od_expert_cache_layer(c, &changes.change[i]), changes.change[i].expert);
	return changes;
}

struct od_cache_changes od_expert_cache_use(struct od_expert_cache *c, uint32_t m, uint32_t expert)
{
	if (c == NULL || c->policy == NULL || !is_own(c, m))
		return (struct od_cache_changes){ 0 };
	return apply(c, od_cache_use(c->policy, m / c->n_groups, expert));
}

/* ---- Buffers of what is in no slot ---- */

unsigned od_expert_cache_has(const struct od_expert_cache *c, uint32_t m, uint32_t expert)
{
	unsigned which = 0;

	if (c != NULL)
		for (unsigned i = 0; i < OD_N_EXPERT_BUFS; i++)
			which |= kept(c, m, expert)->at[i].buf != NULL ? 1u << i : 0;
	return which;
}

unsigned od_expert_cache_take(struct od_expert_cache *c, uint32_t m, uint32_t expert, struct od_expert_mem *mem)
{
	const unsigned which = od_expert_cache_has(c, m, expert);

	if (which != 0) {
		*mem = *kept(c, m, expert);
		*kept(c, m, expert) = (struct od_expert_mem){ 0 };
	}
	return which;
}

void od_expert_cache_offer(struct od_expert_cache *c, uint32_t m, uint32_t expert, struct od_expert_mem *mem,
			   unsigned valid)
{
	const enum od_cache_state state = od_expert_cache_look(c, m, expert);
	bool lacks = state == OD_CACHE_F;

	if (state == OD_CACHE_NONE)
		return;
	for (unsigned i = 0; i < OD_N_EXPERT_BUFS; i++) {
		struct od_ref *to = &kept(c, m, expert)->at[i];

		if ((wanted(state) & 1u << i) == 0)
			continue;
		if (to->buf == NULL && (valid & 1u << i) != 0) {
			*to = mem->at[i];
			mem->at[i] = (struct od_ref){ 0 };
		}
		lacks = lacks || to->buf == NULL;
	}
	if (lacks) {
		od_cache_forget(c->policy, m / c->n_groups, expert);
		c->changes++;
		trim(c, m, expert);
	}
}

/* ---- The plan ---- */

static void begin_anew(struct od_expert_cache *c)
{
	od_cache_free(c->policy);
	c->policy = NULL;
	od_rank_stats_fini(&c->stats);
	c->changes++;
	c->due_visits = FIRST_VISITS;
	c->due = c->n_own > 0 && od_rank_stats_init(&c->stats, c->n_own, c->n_experts, NULL) == OD_OK;
}

bool od_expert_cache_place(struct od_expert_cache *c, const struct od_share *share)
{
	const uint32_t group = share->worker % share->n_groups;

	if (c == NULL || (c->n_groups == share->n_groups && c->group == group))
		return false;
	c->group = group;
	c->n_groups = share->n_groups;
	c->place++;
	c->n_own = group < c->n_moe ? (c->n_moe - group + share->n_groups - 1) / share->n_groups : 0;
	begin_anew(c);
	for (uint32_t m = 0; m < c->n_moe; m++) {
		for (uint32_t expert = 0; expert < c->n_experts; expert++)
			trim(c, m, expert);
	}
	return true;
}

void od_expert_cache_visit(struct od_expert_cache *c, uint32_t m, const uint16_t *experts, size_t n)
{
	if (c == NULL || !is_own(c, m) || c->stats.uses == NULL)
		return;
	od_rank_stats_visit(&c->stats, m / c->n_groups, experts, n);
	if (c->stats.visits < c->due_visits)
		return;
	c->due_visits += c->due_visits < MOST_VISITS ? c->due_visits : MOST_VISITS;
	c->due = true;
}

bool od_expert_cache_plan_is_due(const struct od_expert_cache *c)
{
	return c != NULL && c->due;
}

void od_expert_cache_uses(struct od_expert_cache *c, struct od_expert_cache_uses *u)
{
	c->due = false;
	u->place = c->place;
	u->n_moe = c->n_own;
	u->first = c->group;
	u->step = c->n_groups;
	u->begun = c->policy != NULL;
	u->visits = c->stats.visits;
	u->k = od_rank_stats_k(&c->stats);
	od_rank_stats_inclusion(&c->stats, u->inclusion);
}

bool od_expert_cache_begin(struct od_expert_cache *c, uint64_t place, struct od_cache *policy)
{
	if (place != c->place)
		return false;
	c->policy = policy;
	return true;
}

struct od_cache_changes od_expert_cache_set_plan(struct od_expert_cache *c, uint64_t place,
						 const struct od_cache_plan *plan)
{
	if (place != c->place || c->policy == NULL)
		return (struct od_cache_changes){ 0 };
	return apply(c, od_cache_set_plan(c->policy, plan));
}

struct od_cache_changes od_expert_cache_set_budget(struct od_expert_cache *c, uint64_t budget_bytes)
{
	if (c == NULL || c->policy == NULL)
		return (struct od_cache_changes){ 0 };
	return apply(c, od_cache_set_budget(c->policy, budget_bytes));
}

uint64_t od_expert_cache_changes(const struct od_expert_cache *c)
{
	return c->changes;
}

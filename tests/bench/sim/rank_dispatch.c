/* Rank dispatch: an expert's rank in its layer says which pool it belongs to. */
#include "tests/bench/sim/pool_policy_internal.h"
#include "tests/bench/sim/rank_list.h"

#include <stdlib.h>

struct rank_cache {
	struct sim_cache base;
	struct sim_rank_list ranks;
	uint32_t *kept; /* [n_moe][SIM_CACHE_STATES] experts in each pool */
};

static uint32_t *kept(struct rank_cache *r, uint32_t layer, unsigned pool)
{
	return &r->kept[(size_t)layer * SIM_CACHE_STATES + pool];
}

static void leave(struct rank_cache *r, uint32_t layer, uint32_t expert)
{
	enum sim_cache_state pool = sim_cache_look(&r->base, layer, expert);

	if (pool != SIM_CACHE_NONE)
		--*kept(r, layer, pool);
	r->base.state[cache_id(&r->base, layer, expert)] = SIM_CACHE_NONE;
}

/* The pool must not be empty. */
static uint32_t least_used(const struct rank_cache *r, uint32_t layer, enum sim_cache_state pool)
{
	uint32_t at = r->base.opt.n_experts - 1;

	while (at > 0 && sim_cache_look(&r->base, layer, sim_rank_at(&r->ranks, layer, at)) != pool)
		at--;
	return sim_rank_at(&r->ranks, layer, at);
}

static void keep(struct rank_cache *r, uint32_t layer, uint32_t expert, enum sim_cache_state pool)
{
	if (pool != SIM_CACHE_NONE)
		++*kept(r, layer, pool);
	cache_set(&r->base, cache_id(&r->base, layer, expert), pool);
}

/* States that an expert which is complete, or in a pool, can take without a read. */
static unsigned within(const struct rank_cache *r, enum sim_cache_state state)
{
	const unsigned halves = SIM_CACHE_POOL(SIM_CACHE_S) | SIM_CACHE_POOL(SIM_CACHE_E);

	switch (state) {
	case SIM_CACHE_F: return r->base.opt.full_is_stored ? halves : 0;
	case SIM_CACHE_C: return halves;
	case SIM_CACHE_S:
	case SIM_CACHE_E: return 0;
	case SIM_CACHE_NONE: break;
	}
	return ~0u;
}

static void dispatch(struct rank_cache *r, uint32_t layer, uint32_t expert, unsigned pools);

/* Whether an expert that is in no pool finds room in this one, and makes it: who has to go tries the pools
 * behind. */
static bool make_room(struct rank_cache *r, uint32_t layer, uint32_t rank, enum sim_cache_state pool, uint32_t capacity)
{
	uint32_t least;

	if (*kept(r, layer, pool) < capacity)
		return true;
	least = least_used(r, layer, pool);
	if (sim_rank_of(&r->ranks, layer, least) < rank)
		return false;
	leave(r, layer, least);
	dispatch(r, layer, least, within(r, pool));
	return true;
}

/* An expert in no pool goes to one of those given, or to none. */
static void dispatch(struct rank_cache *r, uint32_t layer, uint32_t expert, unsigned pools)
{
	const struct sim_cache_opts *o = &r->base.opt;
	const uint32_t rank = sim_rank_of(&r->ranks, layer, expert);
	uint64_t end = 0;

	for (unsigned pool = 0; pool < SIM_CACHE_STATES; pool++) {
		uint32_t capacity = sim_cache_plan_capacity(&o->plan, layer, pool);

		end += capacity;
		if ((pools & SIM_CACHE_POOL(pool)) && capacity > 0 && rank < end &&
		    make_room(r, layer, rank, pool, capacity)) {
			keep(r, layer, expert, pool);
			return;
		}
	}
	keep(r, layer, expert, SIM_CACHE_NONE);
}

static void use(struct sim_cache *c, uint32_t layer, uint32_t expert)
{
	struct rank_cache *r = (struct rank_cache *)c; /* base is the first member */

	leave(r, layer, expert);
	sim_rank_list_use(&r->ranks, layer, expert);
	dispatch(r, layer, expert, within(r, SIM_CACHE_NONE));
}

static void free_rank(struct sim_cache *c)
{
	struct rank_cache *r = (struct rank_cache *)c;

	sim_rank_list_fini(&r->ranks);
	free(r->kept);
}

struct sim_cache *sim_cache_rank_new(const struct sim_cache_opts *o)
{
	struct rank_cache *r = calloc(1, sizeof(*r));

	if (r == NULL)
		return NULL;
	r->base = (struct sim_cache){ .use = use, .free = free_rank };
	r->kept = calloc((size_t)o->n_moe * SIM_CACHE_STATES, sizeof(*r->kept));
	if (r->kept == NULL || sim_rank_list_init(&r->ranks, o->n_moe, o->n_experts, NULL) != OD_OK) {
		free_rank(&r->base);
		free(r);
		return NULL;
	}
	return &r->base;
}

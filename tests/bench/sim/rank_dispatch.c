/* Rank dispatch: an expert's rank in its layer says which pool it belongs to. */
#include "tests/bench/sim/pool_policy_internal.h"
#include "tests/bench/sim/rank_list.h"

#include <stdlib.h>

struct rank_cache {
	struct od_cache base;
	struct od_rank_list ranks;
	uint32_t *kept; /* [n_moe][OD_CACHE_STATES] experts in each pool */
};

static uint32_t *kept(struct rank_cache *r, uint32_t layer, unsigned pool)
{
	return &r->kept[(size_t)layer * OD_CACHE_STATES + pool];
}

static void leave(struct rank_cache *r, uint32_t layer, uint32_t expert)
{
	enum od_cache_state pool = od_cache_look(&r->base, layer, expert);

	if (pool != OD_CACHE_NONE)
		--*kept(r, layer, pool);
	r->base.state[cache_id(&r->base, layer, expert)] = OD_CACHE_NONE;
}

/* The pool must not be empty. */
static uint32_t least_used(const struct rank_cache *r, uint32_t layer, enum od_cache_state pool)
{
	uint32_t at = r->base.opt.n_experts - 1;

	while (at > 0 && od_cache_look(&r->base, layer, od_rank_at(&r->ranks, layer, at)) != pool)
		at--;
	return od_rank_at(&r->ranks, layer, at);
}

static void keep(struct rank_cache *r, uint32_t layer, uint32_t expert, enum od_cache_state pool)
{
	if (pool != OD_CACHE_NONE)
		++*kept(r, layer, pool);
	cache_set(&r->base, cache_id(&r->base, layer, expert), pool);
}

/* States that an expert which is complete, or in a pool, can take without a read. */
static unsigned within(const struct rank_cache *r, enum od_cache_state state)
{
	const unsigned halves = OD_CACHE_POOL(OD_CACHE_S) | OD_CACHE_POOL(OD_CACHE_E);

	switch (state) {
	case OD_CACHE_F: return r->base.opt.full_is_stored ? halves : 0;
	case OD_CACHE_C: return halves;
	case OD_CACHE_S:
	case OD_CACHE_E: return 0;
	case OD_CACHE_NONE: break;
	}
	return ~0u;
}

static void dispatch(struct rank_cache *r, uint32_t layer, uint32_t expert, unsigned pools);

/* Whether an expert that is in no pool finds room in this one, and makes it: who has to go tries the pools
 * behind. */
static bool make_room(struct rank_cache *r, uint32_t layer, uint32_t rank, enum od_cache_state pool, uint32_t capacity)
{
	uint32_t least;

	if (*kept(r, layer, pool) < capacity)
		return true;
	least = least_used(r, layer, pool);
	if (od_rank_of(&r->ranks, layer, least) < rank)
		return false;
	leave(r, layer, least);
	dispatch(r, layer, least, within(r, pool));
	return true;
}

/* An expert in no pool goes to one of those given, or to none. */
static void dispatch(struct rank_cache *r, uint32_t layer, uint32_t expert, unsigned pools)
{
	const struct od_cache_opts *o = &r->base.opt;
	const uint32_t rank = od_rank_of(&r->ranks, layer, expert);
	uint64_t end = 0;

	for (unsigned pool = 0; pool < OD_CACHE_STATES; pool++) {
		uint32_t capacity = od_cache_plan_capacity(&o->plan, layer, pool);

		end += capacity;
		if ((pools & OD_CACHE_POOL(pool)) && capacity > 0 && rank < end &&
		    make_room(r, layer, rank, pool, capacity)) {
			keep(r, layer, expert, pool);
			return;
		}
	}
	keep(r, layer, expert, OD_CACHE_NONE);
}

static void use(struct od_cache *c, uint32_t layer, uint32_t expert)
{
	struct rank_cache *r = (struct rank_cache *)c; /* base is the first member */

	leave(r, layer, expert);
	od_rank_list_use(&r->ranks, layer, expert);
	dispatch(r, layer, expert, within(r, OD_CACHE_NONE));
}

static void forget(struct od_cache *c, uint32_t layer, uint32_t expert)
{
	leave((struct rank_cache *)c, layer, expert);
}

static void set_plan(struct od_cache *c, const struct od_cache_plan *plan)
{
	struct rank_cache *r = (struct rank_cache *)c;

	for (uint32_t layer = 0; layer < c->opt.n_moe; layer++) {
		for (unsigned pool = 0; pool < OD_CACHE_STATES; pool++) {
			while (*kept(r, layer, pool) > od_cache_plan_capacity(plan, layer, pool)) {
				uint32_t least = least_used(r, layer, pool);

				leave(r, layer, least);
				keep(r, layer, least, OD_CACHE_NONE);
			}
		}
	}
}

static void free_rank(struct od_cache *c)
{
	struct rank_cache *r = (struct rank_cache *)c;

	od_rank_list_fini(&r->ranks);
	free(r->kept);
}

struct od_cache *odc_rank_new(const struct od_cache_opts *o)
{
	struct rank_cache *r = calloc(1, sizeof(*r));

	if (r == NULL)
		return NULL;
	r->base = (struct od_cache){ .use = use, .forget = forget, .set_plan = set_plan, .free = free_rank };
	r->kept = calloc((size_t)o->n_moe * OD_CACHE_STATES, sizeof(*r->kept));
	if (r->kept == NULL || od_rank_list_init(&r->ranks, o->n_moe, o->n_experts, NULL) != OD_OK) {
		free_rank(&r->base);
		free(r);
		return NULL;
	}
	return &r->base;
}

#include "tests/bench/sim/pool_policy_internal.h"

#include <stdlib.h>
#include <string.h>

const char *const od_cache_policy_names[] = { "rank", "lru", "lfu", NULL };

static struct od_cache *new_policy(const struct od_cache_opts *o)
{
	switch (o->policy) {
	case OD_CACHE_RANK: return odc_rank_new(o);
	case OD_CACHE_LRU:
	case OD_CACHE_LFU: return odc_queue_new(o);
	}
	return NULL;
}

int odc_check(const struct od_cache_opts *o, struct od_err *err)
{
	if (o->n_moe == 0 || o->n_experts == 0 || (uint64_t)o->n_moe * o->n_experts >= UINT32_MAX)
		return od_fail(err, OD_ERR_RANGE, "cache of %u layers of %u experts", o->n_moe, o->n_experts);
	if (o->policy == OD_CACHE_RANK && o->plan.n_moe != o->n_moe)
		return od_fail(err, OD_ERR_RANGE, "cache of %u layers, its plan has %u", o->n_moe, o->plan.n_moe);
	if (o->policy == OD_CACHE_RANK)
		return OD_OK;
	for (uint32_t i = 0; i < o->n_moe; i++)
		if (cache_layer_bytes(o, i) == 0 || o->state >= OD_CACHE_STATES)
			return od_fail(err, OD_ERR_RANGE, "cache %s: an expert of no bytes",
				       od_cache_policy_names[o->policy]);
	return OD_OK;
}

int odc_open(struct od_cache **out, struct od_cache *c, const struct od_cache_opts *o, struct od_err *err)
{
	const size_t n = (size_t)o->n_moe * o->n_experts;

	*out = NULL;
	if (c != NULL) {
		c->opt = *o;
		c->opt.layer_bytes = NULL; /* the caller's */
		c->state = malloc(n);
		c->change = calloc(n + 1, sizeof(*c->change));
	}
	if (c == NULL || c->state == NULL || c->change == NULL) {
		od_cache_free(c);
		return od_fail(err, OD_ERR_NOMEM, "cache of %zu experts", n);
	}
	memset(c->state, OD_CACHE_NONE, n);
	*out = c;
	return OD_OK;
}

int od_cache_new(struct od_cache **out, const struct od_cache_opts *o, struct od_err *err)
{
	int rc = odc_check(o, err);

	*out = NULL;
	return rc == OD_OK ? odc_open(out, new_policy(o), o, err) : rc;
}

void od_cache_free(struct od_cache *c)
{
	if (c == NULL)
		return;
	c->free(c);
	free(c->state);
	free(c->change);
	free(c);
}

enum od_cache_state od_cache_look(const struct od_cache *c, uint32_t layer, uint32_t expert)
{
	return c->state[cache_id(c, layer, expert)];
}

static struct od_cache_changes changes_of(const struct od_cache *c)
{
	return (struct od_cache_changes){ .change = c->change, .n = c->n_changes };
}

struct od_cache_changes od_cache_use(struct od_cache *c, uint32_t layer, uint32_t expert)
{
	c->n_changes = 0;
	c->use(c, layer, expert);
	return changes_of(c);
}

void od_cache_forget(struct od_cache *c, uint32_t layer, uint32_t expert)
{
	if (od_cache_look(c, layer, expert) == OD_CACHE_NONE)
		return;
	c->forget(c, layer, expert);
	c->state[cache_id(c, layer, expert)] = OD_CACHE_NONE;
}

struct od_cache_changes od_cache_set_budget(struct od_cache *c, uint64_t budget_bytes)
{
	c->n_changes = 0;
	c->opt.budget_bytes = budget_bytes;
	if (c->fit != NULL)
		c->fit(c);
	return changes_of(c);
}

struct od_cache_changes od_cache_set_plan(struct od_cache *c, const struct od_cache_plan *plan)
{
	c->n_changes = 0;
	if (c->set_plan != NULL && plan->n_moe == c->opt.n_moe) {
		c->set_plan(c, plan);
		c->opt.plan = *plan;
	}
	return changes_of(c);
}

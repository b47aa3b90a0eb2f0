#include "tests/bench/sim/pool_policy_internal.h"

#include <stdlib.h>
#include <string.h>

int sim_cache_open(struct sim_cache **out, struct sim_cache *c, const struct sim_cache_opts *o, struct od_err *err)
{
	const size_t n = (size_t)o->n_moe * o->n_experts;

	*out = NULL;
	if (c != NULL) {
		c->opt = *o;
		c->state = malloc(n);
		c->change = calloc(n + 1, sizeof(*c->change));
	}
	if (c == NULL || c->state == NULL || c->change == NULL) {
		sim_cache_free(c);
		return od_fail(err, OD_ERR_NOMEM, "cache of %zu experts", n);
	}
	memset(c->state, SIM_CACHE_NONE, n);
	*out = c;
	return OD_OK;
}

int sim_cache_new(struct sim_cache **out, const struct sim_cache_opts *o, struct od_err *err)
{
	*out = NULL;
	if (o->plan.n_moe != o->n_moe)
		return od_fail(err, OD_ERR_RANGE, "cache of %u layers, its plan has %u", o->n_moe, o->plan.n_moe);
	return sim_cache_open(out, sim_cache_rank_new(o), o, err);
}

void sim_cache_free(struct sim_cache *c)
{
	if (c == NULL)
		return;
	c->free(c);
	free(c->state);
	free(c->change);
	free(c);
}

enum sim_cache_state sim_cache_look(const struct sim_cache *c, uint32_t layer, uint32_t expert)
{
	return c->state[cache_id(c, layer, expert)];
}

struct sim_cache_changes sim_cache_use(struct sim_cache *c, uint32_t layer, uint32_t expert)
{
	c->n_changes = 0;
	c->use(c, layer, expert);
	return (struct sim_cache_changes){ .change = c->change, .n = c->n_changes };
}

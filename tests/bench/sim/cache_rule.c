#include "tests/bench/sim/cache_rule.h"

#include "tests/bench/sim/pool_policy_internal.h"
#include "common/residency/expert_cache.h"
#include "tests/bench/bench_draw.h"

#include <stdlib.h>

/* An expert that is kept: the one with the least key has to go. */
struct kept {
	uint32_t id;
	uint64_t key, since; /* among equal keys the one that was used before goes first */
};

struct rival {
	struct sim_cache base;
	enum cache_rule rule;
	uint32_t capacity, n, unmarked;
	struct kept *kept; /* [capacity]; Marking: the unmarked first */
	uint32_t *at; /* [n_moe * n_experts] where in kept */
	uint64_t *count; /* [n_moe * n_experts]: uses, kept or not */
	uint64_t clock, random, next_use;
};

static struct rival *rival_of(struct sim_cache *c)
{
	return (struct rival *)c; /* base is the first member */
}

static void put(struct rival *r, uint32_t at, struct kept k)
{
	r->kept[at] = k;
	r->at[k.id] = at;
}

static void swap(struct rival *r, uint32_t a, uint32_t b)
{
	const struct kept k = r->kept[a];

	put(r, a, r->kept[b]);
	put(r, b, k);
}

static bool goes_first(const struct kept *a, const struct kept *b)
{
	return a->key < b->key || (a->key == b->key && a->since < b->since);
}

static uint32_t find_least(const struct rival *r)
{
	uint32_t least = 0;

	for (uint32_t i = 1; i < r->n; i++)
		least = goes_first(&r->kept[i], &r->kept[least]) ? i : least;
	return least;
}

static void mark(struct rival *r, uint32_t id)
{
	if (r->at[id] < r->unmarked)
		swap(r, r->at[id], --r->unmarked);
}

/* Chooses the expert that makes room. */
static uint32_t victim(struct rival *r)
{
	if (r->rule != CACHE_MARKING)
		return find_least(r);
	if (r->unmarked == 0)
		r->unmarked = r->n;
	return (uint32_t)(od_draw(&r->random) % r->unmarked);
}

static uint64_t key_of(const struct rival *r, uint32_t id, bool is_kept)
{
	if (r->rule == CACHE_BELADY)
		return ~r->next_use;
	if (r->rule == CACHE_LFU)
		return r->count[id];
	return is_kept && r->rule != CACHE_LRU ? r->kept[r->at[id]].key : r->clock;
}

static void use(struct sim_cache *c, uint32_t layer, uint32_t expert)
{
	struct rival *r = rival_of(c);
	const uint32_t id = (uint32_t)cache_id(c, layer, expert);
	const bool is_kept = c->state[id] != SIM_CACHE_NONE;
	struct kept own = { .id = id, .since = ++r->clock };
	uint32_t at = is_kept ? r->at[id] : r->n;

	r->count[id]++;
	own.key = key_of(r, id, is_kept);
	if (!is_kept && r->n == r->capacity) {
		at = r->capacity > 0 ? victim(r) : 0;
		if (r->capacity == 0 || (r->rule == CACHE_BELADY && goes_first(&own, &r->kept[at]))) {
			cache_set(c, id, SIM_CACHE_NONE);
			return;
		}
		cache_set(c, r->kept[at].id, SIM_CACHE_NONE);
	}
	r->n += at == r->n;
	put(r, at, own);
	mark(r, id);
	cache_set(c, id, c->opt.state);
}

static void free_rival(struct sim_cache *c)
{
	free(rival_of(c)->kept);
	free(rival_of(c)->at);
	free(rival_of(c)->count);
}

static struct sim_cache *new_rival(enum cache_rule rule, const struct sim_cache_opts *o, uint64_t seed)
{
	struct rival *r = calloc(1, sizeof(*r));

	if (r == NULL)
		return NULL;
	r->base = (struct sim_cache){ .use = use, .free = free_rival };
	r->rule = rule;
	r->capacity = cache_capacity(o);
	r->random = seed;
	r->kept = calloc((size_t)r->capacity + 1, sizeof(*r->kept));
	r->at = calloc((size_t)o->n_moe * o->n_experts, sizeof(*r->at));
	r->count = calloc((size_t)o->n_moe * o->n_experts, sizeof(*r->count));
	if (r->kept == NULL || r->at == NULL || r->count == NULL) {
		free_rival(&r->base);
		free(r);
		return NULL;
	}
	return &r->base;
}

/* ---- What the daemons do ---- */

struct daemon_cache {
	struct sim_cache base;
	struct od_expert_cache *own;
	uint64_t step;
};

static struct daemon_cache *daemon_of(struct sim_cache *c)
{
	return (struct daemon_cache *)c; /* base is the first member */
}

static void use_daemon(struct sim_cache *c, uint32_t layer, uint32_t expert)
{
	struct daemon_cache *d = daemon_of(c);
	const struct od_expert_changes changes = od_expert_cache_use(d->own, d->step, layer, expert);

	for (size_t i = 0; i < changes.n; i++) {
		const struct od_expert_change *at = &changes.change[i];

		cache_set(c, cache_id(c, at->m, at->expert),
			  od_expert_cache_keeps(d->own, at->m, at->expert) ? c->opt.state : SIM_CACHE_NONE);
	}
}

static void free_daemon(struct sim_cache *c)
{
	od_expert_cache_free(daemon_of(c)->own);
}

static struct sim_cache *new_daemon(const struct sim_cache_opts *o)
{
	const struct od_share whole = { .n_workers = 1, .worker = 0, .n_groups = 1 };
	struct daemon_cache *d = calloc(1, sizeof(*d));
	uint64_t *bytes = calloc(o->n_moe, sizeof(*bytes));

	if (d != NULL && bytes != NULL) {
		d->base = (struct sim_cache){ .use = use_daemon, .free = free_daemon };
		for (uint32_t i = 0; i < o->n_moe; i++)
			bytes[i] = o->expert_bytes;
	}
	if (d == NULL || bytes == NULL ||
	    od_expert_cache_new(&d->own, o->n_moe, o->n_experts, bytes, o->budget_bytes, NULL) != OD_OK) {
		free(bytes);
		free(d);
		return NULL;
	}
	free(bytes);
	(void)od_expert_cache_place(d->own, &whole);
	(void)od_expert_cache_favour_recent(d->own, o->favour_recent);
	return &d->base;
}

void cache_rule_step(struct sim_cache *lrfu, uint64_t step)
{
	daemon_of(lrfu)->step = step;
}

int cache_rule_new(struct sim_cache **out, enum cache_rule rule, const struct sim_cache_opts *o, uint64_t seed,
		   struct od_err *err)
{
	*out = NULL;
	if (rule == CACHE_RANK)
		return sim_cache_new(out, o, err);
	if (o->expert_bytes == 0 || o->state >= SIM_CACHE_STATES)
		return od_fail(err, OD_ERR_RANGE, "cache: an expert of no bytes");
	return sim_cache_open(out, rule == CACHE_LRFU ? new_daemon(o) : new_rival(rule, o, seed), o, err);
}

void cache_rule_foretell(struct sim_cache *belady, uint64_t next_use)
{
	rival_of(belady)->next_use = next_use;
}

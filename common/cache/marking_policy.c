/* Marking (Fiat, Karp, Luby, McGeoch, Sleator, Young 1991): a use marks an expert; an unmarked one, drawn at random, has
 * to go; when all are marked, a new phase begins with none marked. */
#include "common/cache/pool_policy_internal.h"

#include <stdlib.h>

struct marking_cache {
	struct od_cache base;
	uint32_t places, n, unmarked;
	uint32_t *kept; /* [places] ids, the unmarked first */
	uint32_t *at;	/* [n_layers * n_experts] where in kept */
	uint64_t random;
};

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t draw(struct marking_cache *k)
{
	uint64_t z = k->random += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static void put(struct marking_cache *k, uint32_t at, uint32_t id)
{
	k->kept[at] = id;
	k->at[id] = at;
}

static void swap(struct marking_cache *k, uint32_t a, uint32_t b)
{
	uint32_t id = k->kept[a];

	put(k, a, k->kept[b]);
	put(k, b, id);
}

static void mark(struct marking_cache *k, uint32_t id)
{
	if (k->at[id] < k->unmarked)
		swap(k, k->at[id], --k->unmarked);
}

static void use(struct od_cache *c, uint32_t layer, uint32_t expert, uint64_t next_use)
{
	struct marking_cache *k = (struct marking_cache *)c; /* base is the first member */
	const uint32_t id = (uint32_t)cache_id(c, layer, expert);

	(void)next_use;
	if (c->state[id] == OD_CACHE_NONE && k->n < k->places) {
		put(k, k->n++, id); /* marked */
	} else if (c->state[id] == OD_CACHE_NONE && k->places > 0) {
		uint32_t at;

		if (k->unmarked == 0)
			k->unmarked = k->n;
		at = (uint32_t)(draw(k) % k->unmarked);
		cache_set(c, k->kept[at], OD_CACHE_NONE);
		put(k, at, id);
	}
	if (k->places > 0)
		mark(k, id);
	cache_set(c, id, k->places > 0 ? c->opt.state : OD_CACHE_NONE);
}

static void forget(struct od_cache *c, uint32_t layer, uint32_t expert)
{
	struct marking_cache *k = (struct marking_cache *)c;
	const uint32_t id = (uint32_t)cache_id(c, layer, expert);

	mark(k, id);
	swap(k, k->at[id], --k->n);
}

static void free_marking(struct od_cache *c)
{
	struct marking_cache *k = (struct marking_cache *)c;

	free(k->kept);
	free(k->at);
}

struct od_cache *odc_marking_new(const struct od_cache_opts *o)
{
	struct marking_cache *k = calloc(1, sizeof(*k));

	if (k == NULL)
		return NULL;
	k->base = (struct od_cache){ .use = use, .forget = forget, .free = free_marking };
	k->places = cache_places(o);
	k->random = o->seed;
	k->kept = calloc((size_t)k->places + 1, sizeof(*k->kept));
	k->at = calloc((size_t)o->n_layers * o->n_experts, sizeof(*k->at));
	if (k->kept == NULL || k->at == NULL) {
		free_marking(&k->base);
		free(k);
		return NULL;
	}
	return &k->base;
}

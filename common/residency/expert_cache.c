#include "common/residency/expert_cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The first reads least of half-lives from 4 to 4096 on recorded routes; the second of 1 to 32 where texts favour
 * recent experts (docs/BENCHMARKS.md). */
#define HALF_LIFE_STEPS 32
#define RECENT_HALF_LIFE_STEPS 2

/* Worths that differ by less are equal, and nothing is replaced by its equal: where the rows of many texts choose
 * nearly all experts of a layer, whatever is replaced is used again before its successor. No whole number, so that
 * rounding decides nothing. */
#define EQUAL_STEPS 2.5

/* Worth of an expert: log2 of the sum of 2^(t / half-life) over its uses, t in steps of its layer since the cache was
 * made. So it changes only at uses, and all worths of a layer lose as much with time. Of equal ones the use before last
 * is worth less. */
struct worth {
	double log2_sum; /* -INFINITY: never used */
	uint64_t last_use;
};

/* A layer has a time of its own: the next step has not come to the layers behind, so their experts are not older. */
struct layer {
	uint64_t expert_bytes, last_step, time;
	uint32_t *heap, n; /* [n] ids of those that are kept, the least worth first */
};

struct od_expert_cache {
	uint32_t n_moe, n_experts;
	uint64_t budget_bytes, kept_bytes;
	double half_life; /* steps */
	uint32_t group, n_groups; /* this worker's; n_groups 0: no place yet */
	struct layer *layer; /* [n_moe] */
	uint32_t *heaps; /* [n_moe][n_experts] */
	struct worth *worth; /* [n_moe * n_experts], as the following: by id */
	uint32_t *at; /* number in its layer's heap + 1; 0: not kept */
	struct od_expert_change *change;
	size_t n_changes;
	uint64_t n_uses, changes;
};

int od_expert_cache_new(struct od_expert_cache **out, uint32_t n_moe, uint32_t n_experts, const uint64_t *expert_bytes,
			uint64_t budget_bytes, struct od_err *err)
{
	const size_t n = (size_t)n_moe * n_experts;
	struct od_expert_cache *c = calloc(1, sizeof(*c));

	*out = NULL;
	if (c != NULL) {
		c->n_moe = n_moe;
		c->n_experts = n_experts;
		c->budget_bytes = budget_bytes;
		c->half_life = HALF_LIFE_STEPS;
		c->layer = calloc(n_moe, sizeof(*c->layer));
		c->heaps = calloc(n, sizeof(*c->heaps));
		c->worth = calloc(n, sizeof(*c->worth));
		c->at = calloc(n, sizeof(*c->at));
		c->change = calloc(n + 1, sizeof(*c->change));
	}
	if (c == NULL || c->layer == NULL || c->heaps == NULL || c->worth == NULL || c->at == NULL ||
	    c->change == NULL) {
		od_expert_cache_free(c);
		return od_fail(err, OD_ERR_NOMEM, "cache of %u layers of %u experts", n_moe, n_experts);
	}
	for (uint32_t m = 0; m < n_moe; m++)
		c->layer[m] =
			(struct layer){ .expert_bytes = expert_bytes[m], .heap = c->heaps + (size_t)m * n_experts };
	for (size_t i = 0; i < n; i++)
		c->worth[i].log2_sum = -INFINITY;
	*out = c;
	return OD_OK;
}

void od_expert_cache_free(struct od_expert_cache *c)
{
	if (c == NULL)
		return;
	free(c->layer);
	free(c->heaps);
	free(c->worth);
	free(c->at);
	free(c->change);
	free(c);
}

static uint32_t id_of(const struct od_expert_cache *c, uint32_t m, uint32_t expert)
{
	return m * c->n_experts + expert;
}

static struct layer *layer_of(const struct od_expert_cache *c, uint32_t id)
{
	return &c->layer[id / c->n_experts];
}

/* Does this worker's group serve the layer? */
static bool is_own(const struct od_expert_cache *c, uint32_t m)
{
	return c->n_groups > 0 && m % c->n_groups == c->group;
}

bool od_expert_cache_keeps(const struct od_expert_cache *c, uint32_t m, uint32_t expert)
{
	return c != NULL && c->at[id_of(c, m, expert)] != 0;
}

static struct od_expert_changes changes_of(struct od_expert_cache *c)
{
	c->changes += c->n_changes > 0;
	return (struct od_expert_changes){ c->change, c->n_changes };
}

static void note_change(struct od_expert_cache *c, uint32_t id)
{
	c->change[c->n_changes++] = (struct od_expert_change){ id / c->n_experts, id % c->n_experts };
}

/* ---- Heaps ---- */

static bool is_less(const struct od_expert_cache *c, uint32_t a, uint32_t b)
{
	const struct worth *x = &c->worth[a], *y = &c->worth[b];

	return x->log2_sum < y->log2_sum || (x->log2_sum == y->log2_sum && x->last_use < y->last_use);
}

static void put(struct od_expert_cache *c, struct layer *l, uint32_t at, uint32_t id)
{
	l->heap[at] = id;
	c->at[id] = at + 1;
}

/* The id belongs somewhere above or below the place `at`, which is free. */
static void settle(struct od_expert_cache *c, struct layer *l, uint32_t at, uint32_t id)
{
	for (; at > 0 && is_less(c, id, l->heap[(at - 1) / 2]); at = (at - 1) / 2)
		put(c, l, at, l->heap[(at - 1) / 2]);
	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child + 1 < l->n && is_less(c, l->heap[child + 1], l->heap[child]))
			child++;
		if (child >= l->n || !is_less(c, l->heap[child], id))
			break;
		put(c, l, at, l->heap[child]);
		at = child;
	}
	put(c, l, at, id);
}

static void add(struct od_expert_cache *c, uint32_t id)
{
	struct layer *l = layer_of(c, id);

	c->kept_bytes += l->expert_bytes;
	settle(c, l, l->n++, id);
}

static void take_out(struct od_expert_cache *c, uint32_t id)
{
	struct layer *l = layer_of(c, id);
	const uint32_t at = c->at[id] - 1, last = l->heap[--l->n];

	c->kept_bytes -= l->expert_bytes;
	c->at[id] = 0;
	if (at < l->n)
		settle(c, l, at, last);
}

/* In steps, at its layer's time. */
static double worth_now(const struct od_expert_cache *c, uint32_t id)
{
	return c->worth[id].log2_sum * c->half_life - (double)layer_of(c, id)->time;
}

/* The kept one of least worth; among equals that of the layer that keeps most, so that layers shrink evenly. False:
 * nothing is kept. */
static bool find_least(const struct od_expert_cache *c, uint32_t *least)
{
	double worth = INFINITY;
	uint32_t most = 0;

	for (uint32_t m = 0; m < c->n_moe; m++)
		if (c->layer[m].n > 0)
			worth = fmin(worth, worth_now(c, c->layer[m].heap[0]));
	for (uint32_t m = 0; m < c->n_moe; m++) {
		const struct layer *l = &c->layer[m];

		if (l->n <= most || worth_now(c, l->heap[0]) >= worth + EQUAL_STEPS)
			continue;
		most = l->n;
		*least = l->heap[0];
	}
	return most > 0;
}

static void evict(struct od_expert_cache *c, uint32_t id)
{
	take_out(c, id);
	note_change(c, id);
}

/* ---- Uses ---- */

static void add_use(struct od_expert_cache *c, uint64_t step, uint32_t id)
{
	struct worth *w = &c->worth[id];
	struct layer *l = layer_of(c, id);
	double now, more, less;

	if (step > l->last_step) {
		l->last_step = step;
		l->time++;
	}
	now = (double)l->time / c->half_life;
	more = fmax(now, w->log2_sum);
	less = fmin(now, w->log2_sum);
	w->log2_sum = more + log2(1 + exp2(less - more));
	w->last_use = ++c->n_uses;
}

/* Among equals the layers share: then each has experts to load while the one before is computed. */
static bool replaces(const struct od_expert_cache *c, uint32_t id, uint32_t least)
{
	const struct layer *to = layer_of(c, id), *from = layer_of(c, least);
	const double more = worth_now(c, id) - worth_now(c, least);

	return more > EQUAL_STEPS || (more > -0.5 && from->n > to->n + 1 && from->expert_bytes >= to->expert_bytes);
}

/* Where sizes differ, some that leave may not be enough: then their room is for the next one. */
static bool make_room(struct od_expert_cache *c, uint32_t id)
{
	const uint64_t bytes = layer_of(c, id)->expert_bytes;
	uint32_t least;

	while (c->kept_bytes + bytes > c->budget_bytes && find_least(c, &least) && replaces(c, id, least))
		evict(c, least);
	return c->kept_bytes + bytes <= c->budget_bytes;
}

struct od_expert_changes od_expert_cache_use(struct od_expert_cache *c, uint64_t step, uint32_t m, uint32_t expert)
{
	uint32_t id;

	if (c == NULL || !is_own(c, m))
		return (struct od_expert_changes){ 0 };
	c->n_changes = 0;
	id = id_of(c, m, expert);
	add_use(c, step, id);
	if (c->at[id] != 0) {
		settle(c, layer_of(c, id), c->at[id] - 1, id);
	} else if (make_room(c, id)) {
		add(c, id);
		note_change(c, id);
	}
	return changes_of(c);
}

void od_expert_cache_used_elsewhere(struct od_expert_cache *c, uint64_t step, uint32_t m, uint32_t expert)
{
	if (c != NULL && is_own(c, m) && !od_expert_cache_keeps(c, m, expert))
		add_use(c, step, id_of(c, m, expert));
}

/* Uses that an expert will have of each one that it has now, of those of a half-life of HALF_LIFE_STEPS. */
static double horizon(const struct od_expert_cache *c)
{
	return (1 - exp2(-1 / c->half_life)) / (1 - exp2(-1.0 / HALF_LIFE_STEPS));
}

static double uses_now(const struct od_expert_cache *c, uint32_t id)
{
	return exp2(worth_now(c, id) / c->half_life);
}

double od_expert_cache_gain(const struct od_expert_cache *c, uint32_t m, uint32_t expert)
{
	uint32_t id, least;

	if (c == NULL || !is_own(c, m))
		return -INFINITY;
	id = id_of(c, m, expert);
	if (c->at[id] != 0 || c->kept_bytes + c->layer[m].expert_bytes <= c->budget_bytes)
		return INFINITY;
	return find_least(c, &least) ? horizon(c) * (uses_now(c, id) - uses_now(c, least)) : -INFINITY;
}

double od_expert_cache_chance(const struct od_expert_cache *c, uint32_t m, uint32_t expert)
{
	const double each = c != NULL ? exp2(-1 / c->half_life) : 0, time = c != NULL ? (double)c->layer[m].time : 0;

	/* One use in each step would sum up to the second factor's inverse. */
	return time > 0 ? uses_now(c, id_of(c, m, expert)) * ((1 - each) / (1 - pow(each, time))) : 0;
}

void od_expert_cache_forget(struct od_expert_cache *c, uint32_t m, uint32_t expert)
{
	if (!od_expert_cache_keeps(c, m, expert))
		return;
	take_out(c, id_of(c, m, expert));
	c->changes++;
}

void od_expert_cache_new_session(struct od_expert_cache *c)
{
	for (uint32_t m = 0; c != NULL && m < c->n_moe; m++)
		c->layer[m].last_step = 0;
}

/* ---- Place and budget ---- */

static void keep_none(struct od_expert_cache *c)
{
	for (uint32_t m = 0; m < c->n_moe; m++)
		while (c->layer[m].n > 0)
			take_out(c, c->layer[m].heap[0]);
	c->changes++;
}

bool od_expert_cache_favour_recent(struct od_expert_cache *c, bool recent)
{
	const double half_life = recent ? RECENT_HALF_LIFE_STEPS : HALF_LIFE_STEPS;

	if (c == NULL || c->half_life == half_life)
		return false;
	keep_none(c);
	for (size_t i = 0; i < (size_t)c->n_moe * c->n_experts; i++)
		c->worth[i].log2_sum = -INFINITY;
	c->half_life = half_life;
	return true;
}

bool od_expert_cache_place(struct od_expert_cache *c, const struct od_share *share)
{
	const uint32_t group = share->worker % share->n_groups;

	if (c == NULL || (c->n_groups == share->n_groups && c->group == group))
		return false;
	c->group = group;
	c->n_groups = share->n_groups;
	for (uint32_t m = 0; m < c->n_moe; m++)
		while (!is_own(c, m) && c->layer[m].n > 0)
			take_out(c, c->layer[m].heap[0]);
	c->changes++;
	return true;
}

struct od_expert_changes od_expert_cache_set_budget(struct od_expert_cache *c, uint64_t budget_bytes)
{
	uint32_t least;

	if (c == NULL)
		return (struct od_expert_changes){ 0 };
	c->n_changes = 0;
	c->budget_bytes = budget_bytes;
	while (c->kept_bytes > budget_bytes && find_least(c, &least))
		evict(c, least);
	return changes_of(c);
}

uint64_t od_expert_cache_kept_bytes(const struct od_expert_cache *c)
{
	return c != NULL ? c->kept_bytes : 0;
}

uint64_t od_expert_cache_changes(const struct od_expert_cache *c)
{
	return c != NULL ? c->changes : 0;
}

#include "common/residency/expert_cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Half-lives from 4 to 4096 were tried on recorded routes: this one reads least (docs/BENCHMARKS.md). */
#define HALF_LIFE_STEPS 32

/* Worth of an expert: log2 of the sum of 2^(t / half-life) over its uses, t in steps since the cache was made. So it
 * changes only at uses, and all worths lose as much with time. Of equal ones the use before last is worth less. */
struct worth {
	double log2_sum; /* -INFINITY: never used */
	uint64_t last_use;
};

struct od_expert_cache {
	uint32_t n_moe, n_experts;
	uint64_t budget_bytes, kept_bytes;
	uint64_t *expert_bytes; /* [n_moe] */
	uint32_t group, n_groups; /* this worker's; n_groups 0: no place yet */
	struct worth *worth; /* [n_moe * n_experts], as the following: by id */
	uint32_t *at; /* number in heap + 1; 0: not kept */
	uint32_t *heap, n; /* [n] ids of those that are kept, the least worth first */
	struct od_expert_change *change;
	size_t n_changes;
	uint64_t last_step, time, n_uses, changes;
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
		c->expert_bytes = calloc(n_moe, sizeof(*c->expert_bytes));
		c->worth = calloc(n, sizeof(*c->worth));
		c->at = calloc(n, sizeof(*c->at));
		c->heap = calloc(n, sizeof(*c->heap));
		c->change = calloc(n + 1, sizeof(*c->change));
	}
	if (c == NULL || c->expert_bytes == NULL || c->worth == NULL || c->at == NULL || c->heap == NULL ||
	    c->change == NULL) {
		od_expert_cache_free(c);
		return od_fail(err, OD_ERR_NOMEM, "cache of %u layers of %u experts", n_moe, n_experts);
	}
	memcpy(c->expert_bytes, expert_bytes, n_moe * sizeof(*expert_bytes));
	for (size_t i = 0; i < n; i++)
		c->worth[i].log2_sum = -INFINITY;
	*out = c;
	return OD_OK;
}

void od_expert_cache_free(struct od_expert_cache *c)
{
	if (c == NULL)
		return;
	free(c->expert_bytes);
	free(c->worth);
	free(c->at);
	free(c->heap);
	free(c->change);
	free(c);
}

static uint32_t id_of(const struct od_expert_cache *c, uint32_t m, uint32_t expert)
{
	return m * c->n_experts + expert;
}

static uint64_t bytes_of(const struct od_expert_cache *c, uint32_t id)
{
	return c->expert_bytes[id / c->n_experts];
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

/* ---- The heap ---- */

static bool is_less(const struct od_expert_cache *c, uint32_t a, uint32_t b)
{
	const struct worth *x = &c->worth[a], *y = &c->worth[b];

	return x->log2_sum < y->log2_sum || (x->log2_sum == y->log2_sum && x->last_use < y->last_use);
}

static void put(struct od_expert_cache *c, uint32_t at, uint32_t id)
{
	c->heap[at] = id;
	c->at[id] = at + 1;
}

/* The id belongs somewhere above or below the place `at`, which is free. */
static void settle(struct od_expert_cache *c, uint32_t at, uint32_t id)
{
	for (; at > 0 && is_less(c, id, c->heap[(at - 1) / 2]); at = (at - 1) / 2)
		put(c, at, c->heap[(at - 1) / 2]);
	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child + 1 < c->n && is_less(c, c->heap[child + 1], c->heap[child]))
			child++;
		if (child >= c->n || !is_less(c, c->heap[child], id))
			break;
		put(c, at, c->heap[child]);
		at = child;
	}
	put(c, at, id);
}

static void add(struct od_expert_cache *c, uint32_t id)
{
	c->kept_bytes += bytes_of(c, id);
	settle(c, c->n++, id);
}

static void take_out(struct od_expert_cache *c, uint32_t id)
{
	const uint32_t at = c->at[id] - 1, last = c->heap[--c->n];

	c->kept_bytes -= bytes_of(c, id);
	c->at[id] = 0;
	if (at < c->n)
		settle(c, at, last);
}

static void evict_least(struct od_expert_cache *c)
{
	const uint32_t id = c->heap[0];

	take_out(c, id);
	note_change(c, id);
}

/* ---- Uses ---- */

static void add_use(struct od_expert_cache *c, uint64_t step, uint32_t id)
{
	struct worth *w = &c->worth[id];
	double now, more, less;

	if (step > c->last_step) {
		c->last_step = step;
		c->time++;
	}
	now = (double)c->time / HALF_LIFE_STEPS;
	more = fmax(now, w->log2_sum);
	less = fmin(now, w->log2_sum);
	w->log2_sum = more + log2(1 + exp2(less - more));
	w->last_use = ++c->n_uses;
}

/* Where sizes differ, some that leave may not be enough: then their room is for the next one. */
static bool make_room(struct od_expert_cache *c, uint32_t id)
{
	const uint64_t bytes = bytes_of(c, id);

	while (c->n > 0 && c->kept_bytes + bytes > c->budget_bytes && is_less(c, c->heap[0], id))
		evict_least(c);
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
		settle(c, c->at[id] - 1, id);
	} else if (make_room(c, id)) {
		add(c, id);
		note_change(c, id);
	}
	return changes_of(c);
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
	if (c != NULL)
		c->last_step = 0;
}

/* ---- Place and budget ---- */

bool od_expert_cache_place(struct od_expert_cache *c, const struct od_share *share)
{
	const uint32_t group = share->worker % share->n_groups;

	if (c == NULL || (c->n_groups == share->n_groups && c->group == group))
		return false;
	c->group = group;
	c->n_groups = share->n_groups;
	while (c->n > 0)
		take_out(c, c->heap[0]);
	c->changes++;
	return true;
}

struct od_expert_changes od_expert_cache_set_budget(struct od_expert_cache *c, uint64_t budget_bytes)
{
	if (c == NULL)
		return (struct od_expert_changes){ 0 };
	c->n_changes = 0;
	c->budget_bytes = budget_bytes;
	while (c->kept_bytes > budget_bytes)
		evict_least(c);
	return changes_of(c);
}

uint64_t od_expert_cache_changes(const struct od_expert_cache *c)
{
	return c != NULL ? c->changes : 0;
}

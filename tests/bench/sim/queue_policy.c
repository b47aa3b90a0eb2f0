/* LRU and LFU: a heap of what is kept, who has the least key has to go. */
#include "tests/bench/sim/pool_policy_internal.h"

#include <stdlib.h>

struct key {
	uint64_t first, second;
};

struct queue_cache {
	struct od_cache base;
	uint64_t *layer_bytes; /* [n_moe] */
	uint64_t kept_bytes;
	uint32_t n;
	uint32_t *heap; /* [n] ids, the least key first */
	uint32_t *at; /* [n_moe * n_experts] where in heap, of those that are kept */
	struct key *key;
	uint64_t *count; /* uses, kept or not */
	uint64_t clock;
};

static bool less(const struct queue_cache *q, uint32_t a, uint32_t b)
{
	const struct key *x = &q->key[a], *y = &q->key[b];

	return x->first < y->first || (x->first == y->first && x->second < y->second);
}

static void put(struct queue_cache *q, uint32_t at, uint32_t id)
{
	q->heap[at] = id;
	q->at[id] = at;
}

/* The id belongs somewhere above or below the index `at`, which is free. */
static void settle(struct queue_cache *q, uint32_t at, uint32_t id)
{
	for (; at > 0 && less(q, id, q->heap[(at - 1) / 2]); at = (at - 1) / 2)
		put(q, at, q->heap[(at - 1) / 2]);
	for (;;) {
		uint64_t child = 2 * (uint64_t)at + 1;

		if (child + 1 < q->n && less(q, q->heap[child + 1], q->heap[child]))
			child++;
		if (child >= q->n || !less(q, q->heap[child], id))
			break;
		put(q, at, q->heap[child]);
		at = (uint32_t)child;
	}
	put(q, at, id);
}

static uint64_t bytes_of(const struct queue_cache *q, uint32_t id)
{
	return q->layer_bytes[id / q->base.opt.n_experts];
}

static void take_out(struct queue_cache *q, uint32_t id)
{
	uint32_t at = q->at[id], last = q->heap[--q->n];

	q->kept_bytes -= bytes_of(q, id);
	if (at < q->n)
		settle(q, at, last);
}

/* Evicts until `more` bytes fit beside what is kept. */
static void make_room(struct queue_cache *q, uint64_t more)
{
	while (q->n > 0 && q->kept_bytes + more > q->base.opt.budget_bytes) {
		const uint32_t out = q->heap[0];

		take_out(q, out);
		cache_set(&q->base, out, OD_CACHE_NONE);
	}
}

static void fit(struct od_cache *c)
{
	make_room((struct queue_cache *)c, 0);
}

static void use(struct od_cache *c, uint32_t layer, uint32_t expert)
{
	struct queue_cache *q = (struct queue_cache *)c; /* base is the first member */
	const uint32_t id = (uint32_t)cache_id(c, layer, expert);
	const bool is_kept = c->state[id] != OD_CACHE_NONE;
	enum od_cache_state to = c->opt.state;

	q->clock++;
	q->count[id]++;
	q->key[id] = (struct key){ c->opt.policy == OD_CACHE_LFU ? q->count[id] : 0, q->clock };
	if (is_kept) {
		settle(q, q->at[id], id);
	} else if (bytes_of(q, id) > c->opt.budget_bytes) {
		to = OD_CACHE_NONE;
	} else {
		make_room(q, bytes_of(q, id));
		q->kept_bytes += bytes_of(q, id);
		q->n++;
		settle(q, q->n - 1, id);
	}
	cache_set(c, id, to);
}

static void forget(struct od_cache *c, uint32_t layer, uint32_t expert)
{
	take_out((struct queue_cache *)c, (uint32_t)cache_id(c, layer, expert));
}

static void free_queue(struct od_cache *c)
{
	struct queue_cache *q = (struct queue_cache *)c;

	free(q->layer_bytes);
	free(q->heap);
	free(q->at);
	free(q->key);
	free(q->count);
}

struct od_cache *odc_queue_new(const struct od_cache_opts *o)
{
	const size_t n = (size_t)o->n_moe * o->n_experts;
	struct queue_cache *q = calloc(1, sizeof(*q));

	if (q == NULL)
		return NULL;
	q->base = (struct od_cache){ .use = use, .forget = forget, .fit = fit, .free = free_queue };
	q->layer_bytes = calloc(o->n_moe, sizeof(*q->layer_bytes));
	q->heap = calloc(n, sizeof(*q->heap));
	q->at = calloc(n, sizeof(*q->at));
	q->key = calloc(n, sizeof(*q->key));
	q->count = calloc(n, sizeof(*q->count));
	if (q->layer_bytes == NULL || q->heap == NULL || q->at == NULL || q->key == NULL || q->count == NULL) {
		free_queue(&q->base);
		free(q);
		return NULL;
	}
	for (uint32_t i = 0; i < o->n_moe; i++)
		q->layer_bytes[i] = cache_layer_bytes(o, i);
	return &q->base;
}

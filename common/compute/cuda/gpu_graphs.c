#include "common/compute/cuda/gpu_graphs.h"

#include "common/base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define GATHER_BYTES (128u << 10)
#define SEEN 512u

/* A gathered launch; its arguments follow, and zeros up to a multiple of 16. All bytes have a value, so that bytes tell
 * whether launches are the same. */
struct entry {
	const struct gpu_kernel *kernel;
	uint64_t shared;
	struct gpu_grid grid;
	uint32_t zero;
};

struct run {
	unsigned n;
	size_t bytes;
	char *at; /* entries */
};

struct known {
	struct known *next;
	uint64_t hash, used;
	struct run run;
	struct gpu_graph *graph;
};

struct gpu_graphs {
	struct gpu_stream *stream;
	struct run now;
	size_t last; /* index of its entries' first */
	uint64_t seen[SEEN]; /* hashes of the last runs that were not known */
	unsigned n_seen;
	struct known *known;
	unsigned n_launches; /* sum over all known */
	uint64_t clock; /* runs */
	uint64_t full_until; /* by the clock: the GPU had no memory for more */
	bool stopped;
	const char *failed; /* the kernel of the launch that did; NULL: none, or it was told */
};

static size_t entry_bytes(const struct gpu_kernel *k)
{
	return sizeof(struct entry) + (size_t)od_round_up(k->args_bytes, 16);
}

/* list [r->n]: launches whose arguments stay in r. */
static void list_run(const struct run *r, struct gpu_launch *list)
{
	const char *at = r->at;

	for (unsigned i = 0; i < r->n; i++) {
		const struct entry *e = (const struct entry *)(const void *)at;

		list[i] = (struct gpu_launch){ e->kernel, e->grid, (size_t)e->shared, e + 1 };
		at += entry_bytes(e->kernel);
	}
}

/* Any hash that mixes well: equal hashes are compared. */
static uint64_t hash_of(const struct run *r)
{
	uint64_t h = r->n;

	for (size_t i = 0; i < r->bytes; i += sizeof(h)) {
		uint64_t v;

		memcpy(&v, r->at + i, sizeof(v));
		h = (h ^ v) * 0x9e3779b97f4a7c15u;
		h ^= h >> 32;
	}
	return h;
}

/* A graph has its arguments inside, so it may stand only for launches that are equal in every byte. */
static struct known *find(struct gpu_graphs *g, uint64_t hash)
{
	for (struct known *k = g->known; k != NULL; k = k->next)
		if (k->hash == hash && k->run.bytes == g->now.bytes && memcmp(k->run.at, g->now.at, g->now.bytes) == 0)
			return k;
	return NULL;
}

static void free_known(struct known *k)
{
	if (k == NULL)
		return;
	gpu_graph_free(k->graph);
	free(k->run.at);
	free(k);
}

static void drop_oldest(struct gpu_graphs *g)
{
	struct known **oldest = &g->known, *k;

	for (struct known **at = &g->known; *at != NULL; at = &(*at)->next)
		if ((*at)->used < (*oldest)->used)
			oldest = at;
	k = *oldest;
	*oldest = k->next;
	g->n_launches -= k->run.n;
	free_known(k);
}

/* A run becomes a graph when it comes again: one that never does would only take memory, and push out others. */
static bool seen_before(struct gpu_graphs *g, uint64_t hash)
{
	for (unsigned i = 0; i < SEEN; i++)
		if (g->seen[i] == hash)
			return true;
	g->seen[g->n_seen++ % SEEN] = hash;
	return false;
}

/* NULL: there is no memory, which is not an error. */
static struct known *make(struct gpu_graphs *g, uint64_t hash)
{
	struct gpu_launch list[GPU_GRAPH_MOST];
	struct known *k;

	while (g->n_launches + g->now.n > GPU_GRAPHS_LAUNCHES)
		drop_oldest(g);
	k = calloc(1, sizeof(*k));
	if (k == NULL)
		return NULL;
	k->hash = hash;
	k->run = g->now;
	k->run.at = malloc(g->now.bytes);
	if (k->run.at != NULL) {
		memcpy(k->run.at, g->now.at, g->now.bytes);
		list_run(&k->run, list);
		if (gpu_graph_new(&k->graph, g->stream, list, k->run.n) != 0)
			g->full_until = g->clock + GPU_GRAPHS_PAUSE;
	}
	if (k->graph == NULL) {
		free_known(k);
		return NULL;
	}
	k->next = g->known;
	g->known = k;
	g->n_launches += k->run.n;
	return k;
}

static int start_each(struct gpu_graphs *g)
{
	struct gpu_launch list[GPU_GRAPH_MOST];
	int error = 0;

	list_run(&g->now, list);
	for (unsigned i = 0; error == 0 && i < g->now.n; i++) {
		error = gpu_start(g->stream, &list[i], i > 0);
		g->failed = error != 0 ? list[i].kernel->name : NULL;
	}
	return error;
}

static int start_run(struct gpu_graphs *g)
{
	struct known *k;
	uint64_t hash;
	int error;

	if (g->now.n < GPU_GRAPH_LEAST)
		return start_each(g);
	g->clock++;
	hash = hash_of(&g->now);
	k = find(g, hash);
	if (k == NULL && seen_before(g, hash) && g->clock >= g->full_until)
		k = make(g, hash);
	if (k == NULL)
		return start_each(g);
	k->used = g->clock;
	error = gpu_graph_start(g->stream, k->graph);
	g->failed = error != 0 ? "a graph of launches" : NULL;
	return error;
}

int gpu_graphs_flush(struct gpu_graphs *g)
{
	int error;

	if (g == NULL || g->now.n == 0)
		return 0;
	error = start_run(g);
	g->now.n = 0;
	g->now.bytes = g->last = 0;
	g->stopped = error != 0;
	return error;
}

const char *gpu_graphs_failed(struct gpu_graphs *g)
{
	const char *name = g != NULL ? g->failed : NULL;

	if (g != NULL)
		g->failed = NULL;
	return name;
}

void gpu_graphs_resume(struct gpu_graphs *g)
{
	if (g != NULL)
		g->stopped = false;
}

int gpu_graphs_add(struct gpu_graphs *g, const struct gpu_launch *l)
{
	const size_t bytes = entry_bytes(l->kernel);
	struct entry *e;
	int error = 0;

	if (g->now.n == GPU_GRAPH_MOST || g->now.bytes + bytes > GATHER_BYTES)
		error = gpu_graphs_flush(g);
	if (g->stopped)
		return error;
	g->last = g->now.bytes;
	e = (struct entry *)(void *)(g->now.at + g->now.bytes);
	memset(e, 0, bytes);
	e->kernel = l->kernel;
	e->shared = l->shared;
	e->grid = l->grid;
	memcpy(e + 1, l->args, l->kernel->args_bytes);
	g->now.n++;
	g->now.bytes += bytes;
	return error;
}

bool gpu_graphs_last(const struct gpu_graphs *g, const char *kernel, struct gpu_launch *l)
{
	const struct entry *e;

	if (g == NULL || g->last == g->now.bytes) /* it was given, or taken back */
		return false;
	e = (const struct entry *)(const void *)(g->now.at + g->last);
	*l = (struct gpu_launch){ e->kernel, e->grid, (size_t)e->shared, e + 1 };
	return strcmp(e->kernel->name, kernel) == 0;
}

void gpu_graphs_take_back(struct gpu_graphs *g)
{
	assert(g->last < g->now.bytes);
	g->now.n--;
	g->now.bytes = g->last;
}

struct gpu_graphs *gpu_graphs_new(struct gpu_stream *s)
{
	struct gpu_graphs *g = calloc(1, sizeof(*g));

	if (g == NULL)
		return NULL;
	g->stream = s;
	g->now.at = malloc(GATHER_BYTES);
	if (g->now.at == NULL) {
		free(g);
		return NULL;
	}
	return g;
}

void gpu_graphs_free(struct gpu_graphs *g)
{
	struct known *next;

	if (g == NULL)
		return;
	for (struct known *k = g->known; k != NULL; k = next) {
		next = k->next;
		free_known(k);
	}
	free(g->now.at);
	free(g);
}

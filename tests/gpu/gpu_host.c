/* A GPU for tests: memory of the host, late queues as streams, and threads that are fibres (gpu_emulated_warps.h).
 *
 * Like a card's, the memory of a GPU is that of all who have opened it in this process; OD_GPU_BYTES is what the last
 * one found. What has no memory any more cannot be accessed.
 *
 * Only this file reads the environment: OD_GPU_SEED, of the threads' order; OD_GPU_BYTES, its memory ("A,B,C": of
 * the first, the second and all further ones); OD_GPU_PAGE_BYTES, the size of a page of it (0: it has none);
 * OD_GPU_GRANULE_BYTES, that of memory that is committed (a page, or 4096; 0: none can be);
 * OD_GPU_SM, its multiprocessors (2); OD_GPU_BANDWIDTH, the bytes a second that it says its memory gives;
 * OD_GPU_FAIL_AT=N: its N-th kernel faults, and from then on it is lost, as a GPU is after a fault;
 * OD_GPU_REFUSE_AT=N: the N-th launch is refused for lack of memory, and the GPU lives on; OD_GPU_MAP_FAILS_AT=N: the
 * N-th commit has an error, but not for lack of memory, and the GPU lives on; OD_GPU_KERNELS, a file
 * that the names of all kernels that are launched are appended to; OD_GPU_ORDER, OD_GPU_HOST_UNIFIED and
 * OD_GPU_PINNED_BYTES (gpu_open). */
#include "common/base/mem.h"
#include "common/compute/cuda/gpu_graphs.h"
#include "tests/gpu/gpu_emulated_warps.h"
#include "tests/gpu/late_queues.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define N_GPUS 3
#define TOTAL_BYTES (8ull << 30)
#define CLOCK_HZ 1000000000u
#define CACHE_BYTES (4u << 20)
#define BANDWIDTH 1000000000000u

/* ---- The GPU ---- */

static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t used_bytes[N_GPUS]; /* under the lock */

struct gpu {
	struct od_late *late;
	pthread_mutex_t lock;
	struct gpu_blocks *blocks; /* the work's own, as the next two */
	uint64_t n_launched, fail_at; /* fail_at 0: never */
	_Atomic uint64_t n_asked;
	uint64_t refuse_at; /* 0: never */
	atomic_bool lost;
	uint64_t *used, pinned; /* under memory_lock */
	uint64_t n_commits, map_fails_at; /* under memory_lock; 0: never */
	struct reservation *reservations; /* under memory_lock */
	uint64_t total, page_bytes, granule_bytes, most_pinned;
	bool unified;
	unsigned n_sm;
	uint64_t bandwidth;
	bool taken[OD_MAX_LATE]; /* streams; under the lock */
};

struct gpu_stream {
	struct gpu *g;
	unsigned number;
	struct gpu_graphs *graphs; /* NULL: it does not gather */
};

struct gpu_event {
	struct gpu *g;
	unsigned stream;
	uint64_t ticket;
};

struct memory { /* in front of it */
	uint64_t taken;
	void *begin; /* its pages, and the one behind them */
	size_t all;
};

enum { ERROR_NONE, ERROR_MEMORY, ERROR_LAUNCH, ERROR_MAP, ERROR_LOST };

const char *gpu_error(int error)
{
	switch (error) {
	case ERROR_NONE: return "no error";
	case ERROR_MEMORY: return "out of memory";
	case ERROR_LAUNCH: return "a kernel cannot be launched like this";
	case ERROR_MAP: return "an address cannot be mapped";
	default: return "a kernel has faulted, and the GPU is lost";
	}
}

bool gpu_lacks_memory(int error)
{
	return error == ERROR_MEMORY;
}

static uint64_t number_of(const char *variable, uint64_t otherwise)
{
	const char *text = getenv(variable);

	return text != NULL ? strtoull(text, NULL, 0) : otherwise;
}

/* The number of a GPU in a list. */
static uint64_t number_in(const char *variable, unsigned index, uint64_t otherwise)
{
	const char *text = getenv(variable);

	for (const char *comma; text != NULL && index > 0 && (comma = strchr(text, ',')) != NULL; index--)
		text = comma + 1;
	return text != NULL ? strtoull(text, NULL, 0) : otherwise;
}

int gpu_open(struct gpu **out, unsigned index, struct od_err *err)
{
	struct gpu *g = calloc(1, sizeof(*g));
	int rc;

	*out = NULL;
	if (index >= N_GPUS) {
		free(g);
		return od_fail(err, OD_ERR_UNSUPPORTED, "cuda:%u: there are %d emulated GPUs", index, N_GPUS);
	}
	if (g == NULL)
		return od_fail(err, OD_ERR_NOMEM, "emulated GPU");
	pthread_mutex_init(&g->lock, NULL);
	g->total = number_in("OD_GPU_BYTES", index, TOTAL_BYTES);
	g->used = &used_bytes[index];
	g->unified = number_of("OD_GPU_HOST_UNIFIED", 0) != 0;
	g->page_bytes = number_of("OD_GPU_PAGE_BYTES", 0);
	g->granule_bytes =
		g->unified ? 0 : number_of("OD_GPU_GRANULE_BYTES", g->page_bytes > 0 ? g->page_bytes : OD_PAGE_BYTES);
	g->n_sm = (unsigned)number_of("OD_GPU_SM", 2);
	g->bandwidth = number_of("OD_GPU_BANDWIDTH", BANDWIDTH);
	g->fail_at = number_of("OD_GPU_FAIL_AT", 0);
	g->refuse_at = number_of("OD_GPU_REFUSE_AT", 0);
	g->map_fails_at = number_of("OD_GPU_MAP_FAILS_AT", 0);
	g->most_pinned = number_of("OD_GPU_PINNED_BYTES", TOTAL_BYTES);
	g->blocks = gpu_blocks_new(number_of("OD_GPU_SEED", 1));
	rc = g->blocks == NULL ? od_fail(err, OD_ERR_NOMEM, "emulated GPU") :
				 od_late_new(&g->late, number_of("OD_GPU_ORDER", 0), err);
	if (rc == OD_OK)
		*out = g;
	else
		gpu_close(g);
	return rc;
}

void gpu_close(struct gpu *g)
{
	if (g == NULL)
		return;
	od_late_free(g->late);
	gpu_blocks_free(g->blocks);
	pthread_mutex_destroy(&g->lock);
	free(g);
}

void gpu_look(struct gpu *g, struct gpu_about *about)
{
	pthread_mutex_lock(&memory_lock);
	*about = (struct gpu_about){ .name = "emulated GPU",
				     .major = 8,
				     .minor = 6,
				     .n_sm = g->n_sm,
				     .clock_hz = CLOCK_HZ,
				     .memory_bytes_per_s = g->bandwidth,
				     .cache_bytes = CACHE_BYTES,
				     .total_bytes = g->total,
				     .free_bytes = g->total > *g->used ? g->total - *g->used : 0,
				     .page_bytes = g->page_bytes,
				     .granule_bytes = g->granule_bytes,
				     .unified = g->unified };
	pthread_mutex_unlock(&memory_lock);
}

/* It ends where an unreadable page begins (but for what the alignment leaves), so that a kernel that reads behind it is
 * caught. taken: what of `total` it takes. */
static void *take(struct gpu *g, uint64_t bytes, uint64_t taken, size_t align, uint64_t *used, uint64_t total)
{
	const size_t room = (size_t)od_round_up(bytes, align), pages = (size_t)od_round_up(align + room, OD_PAGE_BYTES);
	char *begin = MAP_FAILED, *at;

	pthread_mutex_lock(&memory_lock);
	if (*used <= total && taken <= total - *used && !atomic_load(&g->lost))
		begin = mmap(NULL, pages + OD_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (begin != MAP_FAILED)
		*used += taken;
	pthread_mutex_unlock(&memory_lock);
	if (begin == MAP_FAILED)
		return NULL;
	mprotect(begin + pages, OD_PAGE_BYTES, PROT_NONE);
	at = begin + pages - room;
	*((struct memory *)(void *)at - 1) = (struct memory){ taken, begin, pages + OD_PAGE_BYTES };
	return at;
}

static void give_back(void *at, uint64_t *used)
{
	struct memory *m;

	if (at == NULL)
		return;
	m = (struct memory *)at - 1;
	pthread_mutex_lock(&memory_lock);
	*used -= m->taken;
	pthread_mutex_unlock(&memory_lock);
	munmap(m->begin, m->all);
}

static uint64_t in_pages(const struct gpu *g, uint64_t bytes)
{
	return g->page_bytes > 0 && bytes > g->page_bytes / 2 ? od_round_up(bytes, g->page_bytes) : bytes;
}

void *gpu_alloc(struct gpu *g, uint64_t bytes)
{
	return take(g, bytes, in_pages(g, bytes), 256, g->used, g->total);
}

void gpu_free(struct gpu *g, void *at)
{
	give_back(at, g->used);
}

void *gpu_alloc_host(struct gpu *g, uint64_t bytes)
{
	return take(g, bytes, bytes, OD_PAGE_BYTES, &g->pinned, g->most_pinned);
}

void gpu_free_host(struct gpu *g, void *at)
{
	give_back(at, &g->pinned);
}

/* ---- Addresses and memory apart ---- */

#define ANYTHING 0xff /* committed memory holds it: floats of it are no numbers */

struct reservation {
	struct reservation *next;
	char *at;
	uint64_t n; /* granules */
	bool has[]; /* [n]: memory */
};

static void *map_at(void *at, uint64_t bytes, int prot)
{
	return mmap(at, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at != NULL ? MAP_FIXED : 0), -1, 0);
}

void *gpu_reserve(struct gpu *g, uint64_t bytes)
{
	struct reservation *r = calloc(1, sizeof(*r) + bytes / g->granule_bytes);

	if (r != NULL)
		r->at = map_at(NULL, bytes, PROT_NONE);
	if (r == NULL || r->at == MAP_FAILED || bytes % g->granule_bytes != 0) {
		free(r);
		return NULL;
	}
	r->n = bytes / g->granule_bytes;
	pthread_mutex_lock(&memory_lock);
	r->next = g->reservations;
	g->reservations = r;
	pthread_mutex_unlock(&memory_lock);
	return r->at;
}

/* The granules of a range, all of which have memory, or none. Under memory_lock. */
static bool *granules_of(struct gpu *g, const char *at, uint64_t bytes, bool have)
{
	struct reservation *r = g->reservations;
	uint64_t first;

	while (r != NULL && (at < r->at || at >= r->at + r->n * g->granule_bytes))
		r = r->next;
	first = r != NULL ? (uint64_t)(at - r->at) / g->granule_bytes : 0;
	if (r == NULL || bytes == 0 || (uint64_t)(at - r->at) % g->granule_bytes != 0 ||
	    bytes % g->granule_bytes != 0 || bytes / g->granule_bytes > r->n - first)
		gpu_host_fail("a range is not of whole granules that were reserved");
	for (uint64_t i = 0; i < bytes / g->granule_bytes; i++)
		if (r->has[first + i] != have)
			gpu_host_fail(have ? "what is released has no memory" : "what is committed has memory");
	return r->has + first;
}

int gpu_commit(struct gpu *g, void *at, uint64_t bytes)
{
	int error = ERROR_MEMORY;
	bool *has;

	pthread_mutex_lock(&memory_lock);
	has = granules_of(g, at, bytes, false);
	if (atomic_load(&g->lost)) {
		error = ERROR_LOST;
	} else if (++g->n_commits == g->map_fails_at) {
		error = ERROR_MAP;
	} else if (*g->used <= g->total && bytes <= g->total - *g->used &&
		   map_at(at, bytes, PROT_READ | PROT_WRITE) == at) {
		memset(at, ANYTHING, bytes);
		memset(has, true, bytes / g->granule_bytes);
		*g->used += bytes;
		error = ERROR_NONE;
	}
	pthread_mutex_unlock(&memory_lock);
	return error;
}

void gpu_release(struct gpu *g, void *at, uint64_t bytes)
{
	pthread_mutex_lock(&memory_lock);
	memset(granules_of(g, at, bytes, true), false, bytes / g->granule_bytes);
	if (map_at(at, bytes, PROT_NONE) != at)
		gpu_host_fail("memory cannot be released");
	*g->used -= bytes;
	pthread_mutex_unlock(&memory_lock);
}

void gpu_unreserve(struct gpu *g, void *at, uint64_t bytes)
{
	struct reservation **r = &g->reservations, *of;

	pthread_mutex_lock(&memory_lock);
	(void)granules_of(g, at, bytes, false);
	while ((*r)->at != at)
		r = &(*r)->next;
	of = *r;
	*r = of->next;
	pthread_mutex_unlock(&memory_lock);
	munmap(of->at, bytes);
	free(of);
}

int gpu_stream_new(struct gpu_stream **out, struct gpu *g, bool gathers)
{
	struct gpu_stream *s = calloc(1, sizeof(*s));
	unsigned i = 0;

	*out = NULL;
	if (s == NULL)
		return ERROR_MEMORY;
	pthread_mutex_lock(&g->lock);
	while (i < OD_MAX_LATE && g->taken[i])
		i++;
	if (i < OD_MAX_LATE)
		g->taken[i] = true;
	pthread_mutex_unlock(&g->lock);
	if (i == OD_MAX_LATE) {
		free(s);
		return ERROR_MEMORY;
	}
	s->g = g;
	s->number = i;
	s->graphs = gathers ? gpu_graphs_new(s) : NULL;
	if (gathers && s->graphs == NULL) {
		gpu_stream_free(s);
		return ERROR_MEMORY;
	}
	*out = s;
	return ERROR_NONE;
}

void gpu_stream_free(struct gpu_stream *s)
{
	if (s == NULL)
		return;
	gpu_graphs_free(s->graphs);
	pthread_mutex_lock(&s->g->lock);
	s->g->taken[s->number] = false;
	pthread_mutex_unlock(&s->g->lock);
	free(s);
}

struct copy {
	void *to;
	const void *from;
	uint64_t n;
};

static int do_copy(void *arg, struct od_err *err)
{
	const struct copy *c = arg;

	(void)err;
	memcpy(c->to, c->from, (size_t)c->n);
	return OD_OK;
}

int gpu_copy(struct gpu_stream *s, void *to, const void *from, uint64_t n, enum gpu_way way)
{
	const struct copy c = { to, from, n };
	const int error = gpu_graphs_flush(s->graphs);

	(void)way;
	if (error == ERROR_NONE && atomic_load(&s->g->lost))
		return ERROR_LOST;
	if (error == ERROR_NONE && n > 0)
		od_late_give(s->g->late, s->number, do_copy, &c, sizeof(c));
	return error;
}

struct launch {
	struct gpu *g;
	const struct gpu_kernel *kernel;
	struct gpu_grid grid;
	size_t shared;
	_Alignas(16) unsigned char args[];
};

static int do_launch(void *arg, struct od_err *err)
{
	const struct launch *l = arg;

	(void)err;
	if (++l->g->n_launched == l->g->fail_at)
		atomic_store(&l->g->lost, true);
	if (!atomic_load(&l->g->lost)) /* work that was queued behind a fault is not done either */
		gpu_blocks_run(l->g->blocks, &(struct gpu_launch){ l->kernel, l->grid, l->shared, l->args });
	return OD_OK;
}

#define MOST_KERNELS 1024

static void append_line(const char *path, const char *text)
{
	char line[128];
	const int n = snprintf(line, sizeof(line), "%s\n", text),
		  fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);

	if (fd < 0 || write(fd, line, (size_t)n) != n)
		gpu_host_fail("$OD_GPU_KERNELS cannot be written");
	close(fd);
}

/* Notes a kernel when it is launched first. */
static void note_launched(const char *name)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static const char *known[MOST_KERNELS];
	const char *path = getenv("OD_GPU_KERNELS");
	size_t i = 0;

	if (path == NULL)
		return;
	pthread_mutex_lock(&lock);
	while (i < MOST_KERNELS && known[i] != NULL && known[i] != name)
		i++;
	if (i < MOST_KERNELS && known[i] == NULL) {
		known[i] = name;
		append_line(path, name);
	}
	pthread_mutex_unlock(&lock);
}

int gpu_start(struct gpu_stream *s, const struct gpu_launch *l, bool follows)
{
	const struct gpu_kernel *k = l->kernel;
	struct launch *copy;

	(void)follows; /* kernels wait before they do anything */
	if (atomic_load(&s->g->lost))
		return ERROR_LOST;
	note_launched(k->name);
	if (l->grid.x == 0 || l->grid.y == 0 || l->grid.z == 0 || l->grid.y > GPU_MAX_GRID_Y ||
	    l->grid.z > GPU_MAX_GRID_Y || k->n_threads == 0 || k->n_threads % 32 != 0 ||
	    k->n_threads > GPU_HOST_THREADS || l->shared > GPU_HOST_SHARED)
		return ERROR_LAUNCH;
	if (atomic_fetch_add(&s->g->n_asked, 1) + 1 == s->g->refuse_at)
		return ERROR_MEMORY;
	copy = malloc(sizeof(*copy) + k->args_bytes);
	if (copy == NULL)
		return ERROR_MEMORY;
	*copy = (struct launch){ s->g, k, l->grid, l->shared };
	memcpy(copy->args, l->args, k->args_bytes);
	od_late_give(s->g->late, s->number, do_launch, copy, sizeof(*copy) + k->args_bytes);
	free(copy);
	return ERROR_NONE;
}

int gpu_launch(struct gpu_stream *s, const struct gpu_launch *l)
{
	return s->graphs != NULL ? gpu_graphs_add(s->graphs, l) : gpu_start(s, l, false);
}

void gpu_stream_resume(struct gpu_stream *s)
{
	gpu_graphs_resume(s->graphs);
}

const char *gpu_failed_kernel(struct gpu_stream *s)
{
	return gpu_graphs_failed(s->graphs);
}

bool gpu_last_launch(struct gpu_stream *s, const char *kernel, struct gpu_launch *l)
{
	return gpu_graphs_last(s->graphs, kernel, l);
}

void gpu_take_back(struct gpu_stream *s)
{
	gpu_graphs_take_back(s->graphs);
}

/* ---- Graphs ---- */

struct gpu_graph {
	unsigned n;
	struct gpu_launch launch[]; /* with arguments of their own */
};

void gpu_graph_free(struct gpu_graph *g)
{
	for (unsigned i = 0; g != NULL && i < g->n; i++)
		free((void *)g->launch[i].args);
	free(g);
}

int gpu_graph_new(struct gpu_graph **out, struct gpu_stream *s, const struct gpu_launch *l, unsigned n)
{
	struct gpu_graph *g = calloc(1, sizeof(*g) + n * sizeof(g->launch[0]));

	(void)s;
	*out = NULL;
	for (; g != NULL && g->n < n; g->n++) {
		const size_t bytes = l[g->n].kernel->args_bytes;
		void *args = malloc(bytes);

		if (args == NULL)
			break;
		g->launch[g->n] = l[g->n];
		g->launch[g->n].args = memcpy(args, l[g->n].args, bytes);
	}
	if (g == NULL || g->n < n) {
		gpu_graph_free(g);
		return ERROR_MEMORY;
	}
	*out = g;
	return ERROR_NONE;
}

int gpu_graph_start(struct gpu_stream *s, struct gpu_graph *g)
{
	int error = ERROR_NONE;

	note_launched("graph");
	for (unsigned i = 0; error == ERROR_NONE && i < g->n; i++)
		error = gpu_start(s, &g->launch[i], i > 0);
	return error;
}

/* ---- Events ---- */

int gpu_event_new(struct gpu_event **out, struct gpu *g, bool sleeps)
{
	(void)sleeps;
	*out = calloc(1, sizeof(**out));
	if (*out == NULL)
		return ERROR_MEMORY;
	(*out)->g = g;
	return ERROR_NONE;
}

void gpu_event_free(struct gpu_event *e)
{
	free(e);
}

int gpu_event_record(struct gpu_event *e, struct gpu_stream *s)
{
	const int error = gpu_graphs_flush(s->graphs);

	e->stream = s->number;
	e->ticket = od_late_ticket(e->g->late, s->number);
	return error;
}

int gpu_event_wait(struct gpu_event *e)
{
	struct od_err err;

	(void)!od_late_wait(e->g->late, e->stream, e->ticket, &err); /* no work of ours returns an error */
	return atomic_load(&e->g->lost) ? ERROR_LOST : ERROR_NONE;
}

int gpu_stream_after(struct gpu_stream *s, struct gpu_event *e)
{
	const int error = gpu_graphs_flush(s->graphs);

	od_late_after(s->g->late, s->number, e->stream, e->ticket);
	return error;
}

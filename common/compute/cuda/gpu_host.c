/* A GPU for tests: memory of the host, late queues as streams, and blocks whose threads are fibres.
 *
 * Only this file reads the environment: OD_GPU_SEED, of the threads' order; OD_GPU_BYTES, its memory; OD_GPU_SM, its
 * multiprocessors (2); OD_GPU_FAIL_AT=N: its N-th kernel faults, and from then on it is lost, as a GPU is after a fault;
 * OD_GPU_REFUSE_AT=N: the N-th launch is refused for lack of memory, and the GPU lives on; OD_GPU_KERNELS, a file that the names of
 * all kernels that are launched are appended to; OD_GPU_ORDER, OD_GPU_HOST_UNIFIED and OD_GPU_PINNED_BYTES (gpu_open). */
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/compute/cuda/gpu_fibres.h"
#include "common/compute/cuda/gpu_graphs.h"
#include "common/compute/far/late_queues.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
/* With -fsanitize=thread fibres are threads to the sanitizer that only barriers order, so it finds races between threads of a block:
 * what a shuffle or a vote orders as well as what no order of fibres shows. The code that switches between them is left out. */
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define UNSEEN __attribute__((no_sanitize_thread, noinline))
#define NO_ORDER 1u /* switching does not order them */
#define releases(at) __tsan_release((void *)(at))
#define acquires(at) __tsan_acquire((void *)(at))
#else
#define UNSEEN
#define releases(at) (void)(at)
#define acquires(at) (void)(at)
#endif

#define WARP 32u
#define MAX_THREADS 1024u
#define STACK_BYTES (64u << 10)
#define ENDED_BYTES (4u << 10) /* at the top of a stack, for the frames of start() and stop() */
#define MOST_SHARED (48u << 10) /* what every GPU grants a launch; for more, CUDA wants cudaFuncSetAttribute */
#define CANARY_BYTES 64u
#define DIRT 0xff /* in shared memory: NaN as f32 */
#define TOTAL_BYTES (8ull << 30)

/* ---- Fibres ---- */

/* Saves what a call must keep, and goes on where *to was saved. */
void gpu_fibre_switch(void **from, void *to);
#if defined(__x86_64__)
__asm__(".text\n"
	".type gpu_fibre_switch,@function\n"
	"gpu_fibre_switch:\n"
	"	push %rbp\n	push %rbx\n	push %r12\n	push %r13\n	push %r14\n	push %r15\n"
	"	mov %rsp, (%rdi)\n"
	"	mov %rsi, %rsp\n"
	"	pop %r15\n	pop %r14\n	pop %r13\n	pop %r12\n	pop %rbx\n	pop %rbp\n"
	"	ret\n"
	".size gpu_fibre_switch,.-gpu_fibre_switch\n");
#define SAVED_WORDS 6u
#define START_WORD 6u /* where the address that it goes on at is */
#elif defined(__aarch64__)
__asm__(".text\n"
	".type gpu_fibre_switch,%function\n"
	"gpu_fibre_switch:\n"
	"	sub sp, sp, #160\n"
	"	stp x19, x20, [sp]\n	stp x21, x22, [sp, #16]\n	stp x23, x24, [sp, #32]\n	stp x25, x26, [sp, #48]\n"
	"	stp x27, x28, [sp, #64]\n	stp x29, x30, [sp, #80]\n	stp d8, d9, [sp, #96]\n	stp d10, d11, [sp, #112]\n"
	"	stp d12, d13, [sp, #128]\n	stp d14, d15, [sp, #144]\n"
	"	mov x9, sp\n	str x9, [x0]\n	mov sp, x1\n"
	"	ldp x19, x20, [sp]\n	ldp x21, x22, [sp, #16]\n	ldp x23, x24, [sp, #32]\n	ldp x25, x26, [sp, #48]\n"
	"	ldp x27, x28, [sp, #64]\n	ldp x29, x30, [sp, #80]\n	ldp d8, d9, [sp, #96]\n	ldp d10, d11, [sp, #112]\n"
	"	ldp d12, d13, [sp, #128]\n	ldp d14, d15, [sp, #144]\n"
	"	add sp, sp, #160\n"
	"	ret\n"
	".size gpu_fibre_switch,.-gpu_fibre_switch\n");
#define SAVED_WORDS 20u
#define START_WORD 11u
#else
#error "no fibres for this processor: build without the emulated GPU"
#endif

enum state { READY, AT_BLOCK, AT_WARP, DONE };

/* What lanes of a warp do together; they must do the same. */
enum together { TOGETHER_SYNC, TOGETHER_XOR, TOGETHER_FROM, TOGETHER_UP, TOGETHER_BALLOT };

#define MOST_COPIES 64u

/* gpu_copy_16 and gpu_copy_4: carried out at once, or when it is waited for. */
struct async_copy {
	void *to;
	const void *from;
	unsigned words, group;
};

struct fibre {
	void *sp;
	enum state state;
	enum together what;
	unsigned parity; /* of slots */
	struct async_copy copy[MOST_COPIES];
	unsigned n_copies, group; /* not carried out yet; that of the next copy */
	unsigned n_syncs, n_warp_syncs; /* barriers that it has reached */
#if defined(__SANITIZE_THREAD__)
	void *tsan;
#endif
};

struct warp {
	uint32_t slot[2][WARP]; /* the next exchange has the other one, so that no lane writes what another has yet to read */
	unsigned n_at, n_alive;
	char sync[2]; /* of its barriers, in turn: so the next one does not order what comes before this one */
};

struct block {
	struct fibre fibre[MAX_THREADS];
	struct warp warp[MAX_THREADS / WARP];
	unsigned ready[MAX_THREADS], n_ready;
	unsigned n_threads, n_alive, n_at;
	void *scheduler; /* its stack pointer */
	void (*kernel)(const void *args);
	const void *args;
	unsigned char *stacks, *shared;
	size_t n_shared; /* bytes that the launch asked for */
	char begin, end, sync[2]; /* what orders threads */
	uint64_t random;
};

_Thread_local struct gpu_place gpu_place;
static _Thread_local struct block *running;

_Noreturn void gpu_host_fail(const char *what)
{
	fprintf(stderr, "emulated GPU: block (%u, %u, %u), thread %u of %u: %s\n", gpu_place.x, gpu_place.y, gpu_place.z,
		gpu_place.thread, gpu_place.n_threads, what);
	abort();
}

static unsigned char *stack_of(const struct block *b, unsigned i)
{
	return b->stacks + (size_t)i * STACK_BYTES;
}

UNSEEN static void switch_to(struct block *b, unsigned i)
{
#if defined(__SANITIZE_ADDRESS__)
	void *mine;

	__sanitizer_start_switch_fiber(&mine, stack_of(b, i), STACK_BYTES);
#elif defined(__SANITIZE_THREAD__)
	__tsan_switch_to_fiber(b->fibre[i].tsan, NO_ORDER);
#endif
	gpu_fibre_switch(&b->scheduler, b->fibre[i].sp);
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_finish_switch_fiber(mine, NULL, NULL);
#endif
}

#if defined(__SANITIZE_ADDRESS__)
static _Thread_local const void *scheduler_stack;
static _Thread_local size_t scheduler_bytes;
#endif
#if defined(__SANITIZE_THREAD__)
static _Thread_local void *scheduler_tsan;
#endif

/* xorshift64*; which order it gives does not matter, only that it is another one each time. */
UNSEEN static uint64_t draw(struct block *b)
{
	b->random ^= b->random >> 12;
	b->random ^= b->random << 25;
	b->random ^= b->random >> 27;
	return b->random * 0x2545f4914f6cdd1du >> 32;
}

UNSEEN static void release(struct block *b, unsigned begin, unsigned end, enum state state)
{
	for (unsigned i = begin; i < end; i++) {
		if (b->fibre[i].state != state)
			continue;
		if (state == AT_WARP && b->fibre[i].what != b->fibre[begin].what)
			gpu_host_fail("lanes of a warp do different things together");
		b->fibre[i].state = READY;
		b->ready[b->n_ready++] = i;
	}
}

/* Thread i has stopped. */
UNSEEN static void note_stop(struct block *b, unsigned i)
{
	struct warp *w = &b->warp[i / WARP];

	switch (b->fibre[i].state) {
	case READY: break;
	case AT_BLOCK: b->n_at++; break;
	case AT_WARP: w->n_at++; break;
	case DONE:
		b->n_alive--;
		w->n_alive--;
		break;
	}
	if (b->fibre[i].state == DONE && w->n_at > 0)
		gpu_host_fail("lanes of its warp wait for it, but it has ended");
	if (b->fibre[i].state == DONE && b->fibre[i].n_copies > 0)
		gpu_host_fail("it has ended, but has not waited for a copy to shared memory");
	if (w->n_at == WARP) {
		w->n_at = 0;
		release(b, i / WARP * WARP, (i / WARP + 1) * WARP, AT_WARP);
	}
	if (b->n_alive > 0 && b->n_at == b->n_alive) {
		b->n_at = 0;
		release(b, 0, b->n_threads, AT_BLOCK);
	}
}

/* One of the threads that can go on, no longer among them. */
UNSEEN static unsigned take_ready(struct block *b)
{
	unsigned at, i;

	if (b->n_ready == 0)
		gpu_host_fail("threads wait for each other at different barriers");
	at = (unsigned)(draw(b) * b->n_ready >> 32);
	i = b->ready[at];
	b->ready[at] = b->ready[--b->n_ready];
	gpu_place.thread = i;
	return i;
}

/* The fibre that runs stops. */
UNSEEN static void stop(enum state state)
{
	struct block *b = running;
	struct fibre *f = &b->fibre[gpu_place.thread];

	f->state = state;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	if (state != DONE) {
		/* On to the next one at once: by way of the scheduler there are twice as many switches. */
		const unsigned i = gpu_place.thread;
		unsigned next;

		note_stop(b, i);
		next = take_ready(b);
		if (next != i)
			gpu_fibre_switch(&f->sp, b->fibre[next].sp);
		return;
	}
#endif
#if defined(__SANITIZE_ADDRESS__)
	void *mine;

	__sanitizer_start_switch_fiber(state == DONE ? NULL : &mine, scheduler_stack, scheduler_bytes);
#elif defined(__SANITIZE_THREAD__)
	__tsan_switch_to_fiber(scheduler_tsan, NO_ORDER);
#endif
	gpu_fibre_switch(&f->sp, b->scheduler);
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_finish_switch_fiber(mine, &scheduler_stack, &scheduler_bytes);
#endif
}

UNSEEN static void start(void)
{
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_finish_switch_fiber(NULL, &scheduler_stack, &scheduler_bytes);
#endif
	acquires(&running->begin);
	running->kernel(running->args);
	releases(&running->end);
	stop(DONE);
	abort(); /* a thread that is done is never switched to */
}

UNSEEN static void prepare(struct block *b, unsigned i)
{
	/* As if it had been saved just before start(): the stack is as behind a call. */
	void **top = (void **)(void *)(stack_of(b, i) + STACK_BYTES - 64);

#if defined(__SANITIZE_ADDRESS__)
	/* The thread that had the stack before never returned from stop(), so its frames are still marked. */
	__asan_unpoison_memory_region(stack_of(b, i) + STACK_BYTES - ENDED_BYTES, ENDED_BYTES);
#endif
	top -= SAVED_WORDS + 1 + (SAVED_WORDS + 1) % 2;
	memset(top, 0, (SAVED_WORDS + 1) * sizeof(*top));
	top[START_WORD] = (void *)(uintptr_t)start;
	b->fibre[i].sp = top;
	b->fibre[i].state = READY;
	b->fibre[i].parity = b->fibre[i].n_copies = b->fibre[i].group = b->fibre[i].n_syncs = b->fibre[i].n_warp_syncs = 0;
#if defined(__SANITIZE_THREAD__)
	if (b->fibre[i].tsan == NULL)
		b->fibre[i].tsan = __tsan_create_fiber(0);
#endif
	b->ready[b->n_ready++] = i;
}

UNSEEN static void run_block(struct block *b, size_t shared)
{
	b->n_ready = b->n_at = 0;
	b->n_alive = b->n_threads;
	b->n_shared = shared;
	memset(b->shared, DIRT, shared + CANARY_BYTES);
	releases(&b->begin);
	for (unsigned i = 0; i < b->n_threads; i++)
		prepare(b, i);
	for (unsigned i = 0; i < b->n_threads / WARP; i++)
		b->warp[i].n_at = 0, b->warp[i].n_alive = WARP;
	while (b->n_alive > 0) {
		switch_to(b, take_ready(b));
		note_stop(b, gpu_place.thread); /* others may have run meanwhile */
	}
	acquires(&b->end);
	for (size_t i = 0; i < CANARY_BYTES; i++)
		if (b->shared[shared + i] != DIRT)
			gpu_host_fail("a write behind the shared memory that was asked for");
}

/* ---- What a kernel calls ---- */

UNSEEN void gpu_sync(void)
{
	char *sync = &running->sync[running->fibre[gpu_place.thread].n_syncs++ % 2];

	releases(sync);
	stop(AT_BLOCK);
	acquires(sync);
}

UNSEEN static void meet(enum together what)
{
	running->fibre[gpu_place.thread].what = what;
	stop(AT_WARP);
}

UNSEEN void gpu_sync_warp(void)
{
	struct warp *w = &running->warp[gpu_place.thread / WARP];
	char *sync = &w->sync[running->fibre[gpu_place.thread].n_warp_syncs++ % 2];

	releases(sync);
	meet(TOGETHER_SYNC);
	acquires(sync);
}

/* All lanes give a word; returns the warp's. */
UNSEEN static const uint32_t *exchange(uint32_t mine, enum together what)
{
	struct fibre *f = &running->fibre[gpu_place.thread];
	uint32_t *slot = running->warp[gpu_place.thread / WARP].slot[f->parity];

	f->parity ^= 1;
	slot[gpu_place.thread % WARP] = mine;
	meet(what);
	return slot;
}

UNSEEN static float float_from(float v, enum together what, unsigned lane)
{
	const uint32_t *slot;
	uint32_t bits;

	memcpy(&bits, &v, sizeof(bits));
	slot = exchange(bits, what);
	memcpy(&v, &slot[lane], sizeof(v));
	return v;
}

UNSEEN float gpu_shuffle_xor(float v, unsigned mask)
{
	return float_from(v, TOGETHER_XOR, (gpu_place.thread % WARP) ^ mask);
}

UNSEEN uint32_t gpu_shuffle_xor_u32(uint32_t v, unsigned mask)
{
	return exchange(v, TOGETHER_XOR)[(gpu_place.thread % WARP) ^ mask];
}

UNSEEN float gpu_shuffle_from(float v, unsigned lane)
{
	return float_from(v, TOGETHER_FROM, lane);
}

UNSEEN uint32_t gpu_add_up_u32(uint32_t v, unsigned by)
{
	const unsigned lane = gpu_place.thread % WARP;
	const uint32_t *slot = exchange(v, TOGETHER_UP);

	return lane >= by ? v + slot[lane - by] : v;
}

UNSEEN uint32_t gpu_ballot(bool yes)
{
	const uint32_t *slot = exchange(yes, TOGETHER_BALLOT);
	uint32_t all = 0;

	for (unsigned i = 0; i < WARP; i++)
		all |= slot[i] << i;
	return all;
}

static void check_copy(const struct block *b, const unsigned char *to, const void *from, size_t n)
{
	if ((uintptr_t)to % n != 0 || (uintptr_t)from % n != 0)
		gpu_host_fail("a copy is not aligned to its size");
	if (to < b->shared || to + n > b->shared + b->n_shared)
		gpu_host_fail("a copy goes to other than shared memory");
}

/* Word by word, for the thread sanitizer does not see a memcpy that the compiler writes out. */
static void copy_words(void *to, const void *from, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		((volatile uint32_t *)to)[i] = ((const uint32_t *)from)[i];
}

static void begin_copy(uint32_t to, const void *from, unsigned words)
{
	struct fibre *f = &running->fibre[gpu_place.thread];
	unsigned char *shared = gpu_place.shared + to;

	check_copy(running, shared, from, words * sizeof(uint32_t));
	if (draw(running) % 2 == 0) {
		copy_words(shared, from, words);
		return;
	}
	if (f->n_copies == MOST_COPIES)
		gpu_host_fail("too many copies to shared memory at a time (raise MOST_COPIES)");
	f->copy[f->n_copies++] = (struct async_copy){ shared, from, words, f->group };
}

void gpu_copy_16(uint32_t to, const void *from)
{
	begin_copy(to, from, 4);
}

void gpu_copy_4(uint32_t to, const void *from)
{
	begin_copy(to, from, 1);
}

void gpu_end_copies(void)
{
	running->fibre[gpu_place.thread].group++;
}

void gpu_wait_copies(unsigned n)
{
	struct fibre *f = &running->fibre[gpu_place.thread];
	unsigned left = 0;

	for (unsigned i = 0; i < f->n_copies; i++) {
		if (f->copy[i].group + n < f->group)
			copy_words(f->copy[i].to, f->copy[i].from, f->copy[i].words);
		else
			f->copy[left++] = f->copy[i];
	}
	f->n_copies = left;
}

/* ---- The GPU ---- */

struct gpu {
	struct od_late *late;
	pthread_mutex_t lock;
	struct block *block; /* the work's own, as the next two */
	uint64_t n_launched, fail_at; /* fail_at 0: never */
	_Atomic uint64_t n_asked;
	uint64_t refuse_at; /* 0: never */
	atomic_bool lost;
	uint64_t used; /* under the lock, as all below */
	uint64_t total, pinned, most_pinned;
	bool unified;
	unsigned n_sm;
	bool taken[OD_MAX_LATE]; /* streams */
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
	uint64_t bytes;
	void *begin; /* of what malloc gave */
};

enum { ERROR_NONE, ERROR_MEMORY, ERROR_LAUNCH, ERROR_LOST };

const char *gpu_error(int error)
{
	switch (error) {
	case ERROR_NONE: return "no error";
	case ERROR_MEMORY: return "out of memory";
	case ERROR_LAUNCH: return "a kernel cannot be launched like this";
	default: return "a kernel has faulted, and the GPU is lost";
	}
}

static uint64_t number_of(const char *variable, uint64_t otherwise)
{
	const char *text = getenv(variable);

	return text != NULL ? strtoull(text, NULL, 0) : otherwise;
}

int gpu_open(struct gpu **out, unsigned index, struct od_err *err)
{
	struct gpu *g = calloc(1, sizeof(*g));
	int rc;

	*out = NULL;
	if (index > 1) {
		free(g);
		return od_fail(err, OD_ERR_UNSUPPORTED, "cuda:%u: there are 2 emulated GPUs", index);
	}
	if (g == NULL)
		return od_fail(err, OD_ERR_NOMEM, "emulated GPU");
	pthread_mutex_init(&g->lock, NULL);
	g->total = number_of("OD_GPU_BYTES", TOTAL_BYTES);
	g->n_sm = (unsigned)number_of("OD_GPU_SM", 2);
	g->fail_at = number_of("OD_GPU_FAIL_AT", 0);
	g->refuse_at = number_of("OD_GPU_REFUSE_AT", 0);
	g->most_pinned = number_of("OD_GPU_PINNED_BYTES", TOTAL_BYTES);
	g->unified = number_of("OD_GPU_HOST_UNIFIED", 0) != 0;
	g->block = calloc(1, sizeof(*g->block));
	if (g->block != NULL) {
		g->block->random = number_of("OD_GPU_SEED", 1) * 0x9e3779b97f4a7c15u | 1;
		g->block->shared = aligned_alloc(256, MOST_SHARED + 256);
		g->block->stacks = mmap(NULL, (size_t)MAX_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
					MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	}
	rc = g->block == NULL || g->block->shared == NULL || g->block->stacks == MAP_FAILED ?
		     od_fail(err, OD_ERR_NOMEM, "emulated GPU") : od_late_new(&g->late, number_of("OD_GPU_ORDER", 0), err);
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
	if (g->block != NULL && g->block->stacks != NULL && g->block->stacks != MAP_FAILED)
		munmap(g->block->stacks, (size_t)MAX_THREADS * STACK_BYTES);
#if defined(__SANITIZE_THREAD__)
	for (unsigned i = 0; g->block != NULL && i < MAX_THREADS; i++)
		if (g->block->fibre[i].tsan != NULL)
			__tsan_destroy_fiber(g->block->fibre[i].tsan);
#endif
	if (g->block != NULL)
		free(g->block->shared);
	free(g->block);
	pthread_mutex_destroy(&g->lock);
	free(g);
}

void gpu_look(struct gpu *g, struct gpu_about *about)
{
	pthread_mutex_lock(&g->lock);
	*about = (struct gpu_about){ .name = "emulated GPU", .major = 8, .minor = 6, .n_sm = g->n_sm, .total_bytes = g->total,
				     .free_bytes = g->total - g->used, .most_shared = MOST_SHARED, .unified = g->unified };
	pthread_mutex_unlock(&g->lock);
}

static void *take(struct gpu *g, uint64_t bytes, size_t align, uint64_t *used, uint64_t total)
{
	struct memory *m = NULL;
	char *at = NULL;

	pthread_mutex_lock(&g->lock);
	if (bytes <= total - *used && !atomic_load(&g->lost))
		at = aligned_alloc(align, (size_t)od_round_up(align + bytes, align));
	if (at != NULL)
		*used += bytes;
	pthread_mutex_unlock(&g->lock);
	if (at == NULL)
		return NULL;
	memset(at, 0, align + bytes);
	m = (struct memory *)(void *)(at + align) - 1;
	*m = (struct memory){ bytes, at };
	return at + align;
}

static void give_back(struct gpu *g, void *at, uint64_t *used)
{
	struct memory *m = (struct memory *)at - 1;

	if (at == NULL)
		return;
	pthread_mutex_lock(&g->lock);
	*used -= m->bytes;
	pthread_mutex_unlock(&g->lock);
	free(m->begin);
}

void *gpu_alloc(struct gpu *g, uint64_t bytes)
{
	return take(g, bytes, 256, &g->used, g->total);
}

void gpu_free(struct gpu *g, void *at)
{
	give_back(g, at, &g->used);
}

void *gpu_alloc_host(struct gpu *g, uint64_t bytes)
{
	return take(g, bytes, OD_PAGE_BYTES, &g->pinned, g->most_pinned);
}

void gpu_free_host(struct gpu *g, void *at)
{
	give_back(g, at, &g->pinned);
}

/* Of the host's pages. */
int gpu_map_cost(struct gpu *g, uint64_t bytes, double *map_s, double *unmap_s, struct od_err *err)
{
	const size_t n = (size_t)od_round_up(bytes, OD_PAGE_BYTES);
	const int fd = memfd_create("mapped", MFD_CLOEXEC);
	char *at = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	bool ok = fd >= 0 && at != MAP_FAILED && ftruncate(fd, (off_t)n) == 0;
	uint64_t start = od_now_ns();

	(void)g;
	for (size_t i = 0; ok && i < n; i += OD_PAGE_BYTES)
		ok = mmap(at + i, OD_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)i) != MAP_FAILED;
	*map_s = od_seconds(od_now_ns() - start);
	start = od_now_ns();
	if (at != MAP_FAILED)
		munmap(at, n);
	*unmap_s = od_seconds(od_now_ns() - start);
	if (fd >= 0)
		close(fd);
	return ok ? OD_OK : od_fail(err, OD_ERR_NOMEM, "no memory to map: %llu bytes", (unsigned long long)bytes);
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

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
	return b == 0 ? a : common_divisor(b, a % b);
}

/* All blocks of a grid, in another order each time: a GPU promises none. */
UNSEEN static void run_grid(struct block *b, const struct gpu_grid *g, size_t shared)
{
	const uint64_t n = (uint64_t)g->x * g->y * g->z;
	uint64_t at = draw(b) % n, step = 1 + draw(b) % n;

	while (common_divisor(n, step) != 1)
		step++;
	for (uint64_t i = 0; i < n; i++, at = (at + step) % n) {
		gpu_place.x = (unsigned)(at % g->x);
		gpu_place.y = (unsigned)(at / g->x % g->y);
		gpu_place.z = (unsigned)(at / g->x / g->y);
		run_block(b, shared);
	}
}

UNSEEN static int do_launch(void *arg, struct od_err *err)
{
	const struct launch *l = arg;
	struct block *b = l->g->block;

	(void)err;
	if (++l->g->n_launched == l->g->fail_at)
		atomic_store(&l->g->lost, true);
	if (atomic_load(&l->g->lost)) /* what was queued behind a fault is not done either */
		return OD_OK;
	b->kernel = (void (*)(const void *))l->kernel->function;
	b->args = l->args;
	b->n_threads = l->kernel->n_threads;
	running = b;
#if defined(__SANITIZE_THREAD__)
	scheduler_tsan = __tsan_get_current_fiber();
#endif
	gpu_place = (struct gpu_place){ .n_threads = l->kernel->n_threads, .n_x = l->grid.x, .shared = b->shared };
	run_grid(b, &l->grid, l->shared);
	return OD_OK;
}

#define MOST_KERNELS 1024

static void append_line(const char *path, const char *text)
{
	char line[128];
	const int n = snprintf(line, sizeof(line), "%s\n", text), fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);

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

int gpu_start(struct gpu_stream *s, const struct gpu_launch *l)
{
	const struct gpu_kernel *k = l->kernel;
	struct launch *copy;

	if (atomic_load(&s->g->lost))
		return ERROR_LOST;
	note_launched(k->name);
	if (l->grid.x == 0 || l->grid.y == 0 || l->grid.z == 0 || l->grid.y > GPU_MAX_GRID_Y || l->grid.z > GPU_MAX_GRID_Y || k->n_threads == 0 ||
	    k->n_threads % WARP != 0 || k->n_threads > MAX_THREADS || l->shared > MOST_SHARED)
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
	return s->graphs != NULL ? gpu_graphs_add(s->graphs, l) : gpu_start(s, l);
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
		error = gpu_start(s, &g->launch[i]);
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

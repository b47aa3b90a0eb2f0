/* The threads of a block as fibres, and grids of them. */
#include "tests/gpu/gpu_emulated_warps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
/* With -fsanitize=thread fibres are threads to the sanitizer that only barriers order, so it finds races between
 * threads of a block: what a shuffle or a vote orders as well as what no order of fibres shows. The code that switches
 * between them is left out. */
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
#define MAX_THREADS GPU_HOST_THREADS
#define STACK_BYTES (64u << 10)
#define ENDED_BYTES (4u << 10) /* at the top of a stack, for the frames of start() and stop() */
#define CANARY_BYTES 64u
#define DIRT 0xff /* in shared memory: NaN as f32 */

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

enum gpu_fibre_state { READY, AT_BLOCK, AT_WARP, DONE };

/* Operations that lanes of a warp do together; all lanes must do the same one. */
enum together { TOGETHER_SYNC, TOGETHER_XOR, TOGETHER_FROM, TOGETHER_UP, TOGETHER_BALLOT };

#define MOST_COPIES 64u /* late ones of a thread; those beyond are carried out at once, as any may be */

/* gpu_copy_16 and gpu_copy_4: carried out at once, or when it is waited for. */
struct async_copy {
	void *to;
	const void *from;
	unsigned words, group;
};

struct fibre {
	void *sp;
	enum gpu_fibre_state state;
	enum together what;
	unsigned parity; /* parity of slots */
	struct async_copy copy[MOST_COPIES];
	unsigned n_copies, group; /* not carried out yet; that of the next copy */
	unsigned n_syncs, n_warp_syncs; /* barriers that it has reached */
#if defined(__SANITIZE_THREAD__)
	void *tsan;
#endif
};

struct warp {
	/* the next exchange has the other one, so that no lane writes what another has yet to read */
	uint32_t slot[2][WARP];
	unsigned n_at, n_alive;
	char sync[2]; /* its barriers in turn, so that the next one does not order what comes before this one */
};

struct gpu_blocks {
	struct fibre fibre[MAX_THREADS];
	struct warp warp[MAX_THREADS / WARP];
	unsigned ready[MAX_THREADS], n_ready; /* in the order in which they came to be ready */
	unsigned reach; /* one of so many that came last goes on */
	unsigned n_threads, n_alive, n_at;
	void *scheduler; /* its stack pointer */
	void (*kernel)(const void *args);
	const void *args;
	unsigned char *stacks, *shared;
	size_t n_shared; /* bytes that the launch asked for */
	char begin, end, sync[2]; /* order threads */
	uint64_t random;
};

_Thread_local struct gpu_position gpu_position;
static _Thread_local struct gpu_blocks *running;

_Noreturn void gpu_host_fail(const char *what)
{
	fprintf(stderr, "emulated GPU: block (%u, %u, %u), thread %u of %u: %s\n", gpu_position.x, gpu_position.y,
		gpu_position.z, gpu_position.thread, gpu_position.n_threads, what);
	abort();
}

static unsigned char *stack_of(const struct gpu_blocks *b, unsigned i)
{
	return b->stacks + (size_t)i * STACK_BYTES;
}

UNSEEN static void switch_to(struct gpu_blocks *b, unsigned i)
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
UNSEEN static uint64_t draw(struct gpu_blocks *b)
{
	b->random ^= b->random >> 12;
	b->random ^= b->random << 25;
	b->random ^= b->random >> 27;
	return b->random * 0x2545f4914f6cdd1du >> 32;
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
	return b == 0 ? a : common_divisor(b, a % b);
}

/* The numbers 0 to n - 1 in one of many orders: each is (the one before + step) % n. */
UNSEEN static void choose_order(struct gpu_blocks *b, uint64_t n, uint64_t *first, uint64_t *step)
{
	*first = draw(b) % n;
	*step = 1 + draw(b) % n;
	while (common_divisor(n, *step) != 1)
		++*step;
}

UNSEEN static void release(struct gpu_blocks *b, unsigned begin, unsigned end, enum gpu_fibre_state state)
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

/* All threads go on, from the block's beginning or from a barrier, in one of two ways. If all that can go on draw lots
 * each time, no warp gets further than the others. If the one that came last goes on, a warp comes to the next barrier
 * before another begins, past shuffles and votes. */
UNSEEN static void release_block(struct gpu_blocks *b)
{
	const unsigned n = b->n_threads / WARP;
	uint64_t at, step;

	b->reach = draw(b) % 2 == 0 ? MAX_THREADS : 1;
	choose_order(b, n, &at, &step);
	for (unsigned i = 0; i < n; i++, at = (at + step) % n)
		release(b, (unsigned)at * WARP, (unsigned)(at + 1) * WARP, AT_BLOCK);
}

/* Thread i has stopped. */
UNSEEN static void note_stop(struct gpu_blocks *b, unsigned i)
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
		release_block(b);
	}
}

/* One of the threads that can go on, no longer among them. */
UNSEEN static unsigned take_ready(struct gpu_blocks *b)
{
	const unsigned reach = b->n_ready < b->reach ? b->n_ready : b->reach;
	unsigned at, i;

	if (b->n_ready == 0)
		gpu_host_fail("threads wait for each other at different barriers");
	at = b->n_ready - 1 - (unsigned)(draw(b) * reach >> 32);
	i = b->ready[at];
	b->ready[at] = b->ready[--b->n_ready];
	gpu_position.thread = i;
	return i;
}

/* The fibre that runs stops. */
UNSEEN static void stop(enum gpu_fibre_state state)
{
	struct gpu_blocks *b = running;
	struct fibre *f = &b->fibre[gpu_position.thread];

	f->state = state;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	if (state != DONE) {
		/* On to the next one at once: by way of the scheduler there are twice as many switches. */
		const unsigned i = gpu_position.thread;
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

UNSEEN static void prepare(struct gpu_blocks *b, unsigned i)
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
	b->fibre[i].state = AT_BLOCK;
	b->fibre[i].parity = b->fibre[i].n_copies = b->fibre[i].group = b->fibre[i].n_syncs = b->fibre[i].n_warp_syncs =
		0;
#if defined(__SANITIZE_THREAD__)
	if (b->fibre[i].tsan == NULL)
		b->fibre[i].tsan = __tsan_create_fiber(0);
#endif
}

UNSEEN static void run_block(struct gpu_blocks *b, size_t shared)
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
	release_block(b);
	while (b->n_alive > 0) {
		switch_to(b, take_ready(b));
		note_stop(b, gpu_position.thread); /* others may have run meanwhile */
	}
	acquires(&b->end);
	for (size_t i = 0; i < CANARY_BYTES; i++)
		if (b->shared[shared + i] != DIRT)
			gpu_host_fail("a write behind the shared memory that was asked for");
}

/* ---- What a kernel calls ---- */

UNSEEN void gpu_sync(void)
{
	char *sync = &running->sync[running->fibre[gpu_position.thread].n_syncs++ % 2];

	releases(sync);
	stop(AT_BLOCK);
	acquires(sync);
}

UNSEEN static void meet(enum together what)
{
	running->fibre[gpu_position.thread].what = what;
	stop(AT_WARP);
}

UNSEEN void gpu_sync_warp(void)
{
	struct warp *w = &running->warp[gpu_position.thread / WARP];
	char *sync = &w->sync[running->fibre[gpu_position.thread].n_warp_syncs++ % 2];

	releases(sync);
	meet(TOGETHER_SYNC);
	acquires(sync);
}

/* All lanes give a word; returns the warp's. */
UNSEEN static const uint32_t *exchange(uint32_t mine, enum together what)
{
	struct fibre *f = &running->fibre[gpu_position.thread];
	uint32_t *slot = running->warp[gpu_position.thread / WARP].slot[f->parity];

	f->parity ^= 1;
	slot[gpu_position.thread % WARP] = mine;
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
	return float_from(v, TOGETHER_XOR, (gpu_position.thread % WARP) ^ mask);
}

UNSEEN uint32_t gpu_shuffle_xor_u32(uint32_t v, unsigned mask)
{
	return exchange(v, TOGETHER_XOR)[(gpu_position.thread % WARP) ^ mask];
}

UNSEEN float gpu_shuffle_from(float v, unsigned lane)
{
	return float_from(v, TOGETHER_FROM, lane);
}

UNSEEN uint32_t gpu_add_up_u32(uint32_t v, unsigned by)
{
	const unsigned lane = gpu_position.thread % WARP;
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

static void check_copy(const struct gpu_blocks *b, const unsigned char *to, const void *from, size_t n)
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
	struct fibre *f = &running->fibre[gpu_position.thread];
	unsigned char *shared = gpu_position.shared + to;

	check_copy(running, shared, from, words * sizeof(uint32_t));
	if (draw(running) % 2 == 0 || f->n_copies == MOST_COPIES) {
		copy_words(shared, from, words);
		return;
	}
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
	running->fibre[gpu_position.thread].group++;
}

void gpu_wait_copies(unsigned n)
{
	struct fibre *f = &running->fibre[gpu_position.thread];
	unsigned left = 0;

	for (unsigned i = 0; i < f->n_copies; i++) {
		if (f->copy[i].group + n < f->group)
			copy_words(f->copy[i].to, f->copy[i].from, f->copy[i].words);
		else
			f->copy[left++] = f->copy[i];
	}
	f->n_copies = left;
}

/* ---- Grids ---- */

struct gpu_blocks *gpu_blocks_new(uint64_t seed)
{
	struct gpu_blocks *b = calloc(1, sizeof(*b));

	if (b == NULL)
		return NULL;
	b->random = seed * 0x9e3779b97f4a7c15u | 1;
	b->shared = aligned_alloc(256, GPU_HOST_SHARED + 256);
	b->stacks = mmap(NULL, (size_t)MAX_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (b->shared == NULL || b->stacks == MAP_FAILED) {
		gpu_blocks_free(b);
		return NULL;
	}
	return b;
}

void gpu_blocks_free(struct gpu_blocks *b)
{
	if (b == NULL)
		return;
#if defined(__SANITIZE_ADDRESS__)
	if (b->stacks != MAP_FAILED) /* a later mapping there would have the marks of frames that never ended */
		__asan_unpoison_memory_region(b->stacks, (size_t)MAX_THREADS * STACK_BYTES);
#endif
	if (b->stacks != MAP_FAILED)
		munmap(b->stacks, (size_t)MAX_THREADS * STACK_BYTES);
#if defined(__SANITIZE_THREAD__)
	for (unsigned i = 0; i < MAX_THREADS; i++)
		if (b->fibre[i].tsan != NULL)
			__tsan_destroy_fiber(b->fibre[i].tsan);
#endif
	free(b->shared);
	free(b);
}

/* Blocks come in another order each time: a GPU promises none. */
UNSEEN void gpu_blocks_run(struct gpu_blocks *b, const struct gpu_launch *l)
{
	const struct gpu_grid *g = &l->grid;
	const uint64_t n = (uint64_t)g->x * g->y * g->z;
	uint64_t at, step;

	choose_order(b, n, &at, &step);
	b->kernel = (void (*)(const void *))l->kernel->function;
	b->args = l->args;
	b->n_threads = l->kernel->n_threads;
	running = b;
#if defined(__SANITIZE_THREAD__)
	scheduler_tsan = __tsan_get_current_fiber();
#endif
	gpu_position = (struct gpu_position){ .n_threads = b->n_threads, .n_x = g->x, .shared = b->shared };
	for (uint64_t i = 0; i < n; i++, at = (at + step) % n) {
		gpu_position.x = (unsigned)(at % g->x);
		gpu_position.y = (unsigned)(at / g->x % g->y);
		gpu_position.z = (unsigned)(at / g->x / g->y);
		run_block(b, l->shared);
	}
}

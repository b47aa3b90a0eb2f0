/* The emulated GPU (gpu_host.c): what it computes, and that it finds the mistakes that it is for. A child process makes
 * each mistake, since that ends it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/compute/cuda/gpu.h"

#define THREADS 128u
#define BLOCKS 3u

struct args {
	uint32_t *out; /* [BLOCKS][THREADS] */
	uint32_t way;
};

/* Each thread gets the number of the thread on the other side of the block. way 1: without the barrier. */
GPU_KERNEL(mirror, struct args, THREADS)
{
	uint32_t *shared = (uint32_t *)(void *)gpu_shared();

	shared[gpu_thread()] = gpu_thread() + 1;
	if (a.way != 1)
		gpu_sync();
	a.out[gpu_block_x() * THREADS + gpu_thread()] = shared[THREADS - 1 - gpu_thread()];
}

/* mirror by copies to shared memory, each 16 bytes, or way 2 and 3: 4 bytes. way 1 and 3: they are waited for too
 * late. */
GPU_KERNEL(mirror_copies, struct args, THREADS)
{
	const uint32_t *shared = (const uint32_t *)(void *)gpu_shared();
	uint32_t *out = a.out + gpu_block_x() * THREADS, other;

	out[gpu_thread()] = gpu_thread() + 1;
	gpu_sync();
	if (a.way >= 2)
		gpu_copy_4(4 * gpu_thread(), out + gpu_thread());
	else if (gpu_thread() < THREADS / 4)
		gpu_copy_16(16 * gpu_thread(), out + 4 * gpu_thread());
	gpu_end_copies();
	if (a.way % 2 == 0)
		gpu_wait_copies(0);
	gpu_sync();
	other = shared[THREADS - 1 - gpu_thread()];
	gpu_wait_copies(0);
	gpu_sync();
	out[gpu_thread()] = other;
}

/* mirror by warps. Behind a sum over the warp each writes again what it has written; way 1: without a barrier
 * before. */
GPU_KERNEL(mirror_warps, struct args, THREADS)
{
	uint32_t *shared = (uint32_t *)(void *)gpu_shared(), other;

	if (gpu_lane() == 0)
		shared[gpu_warp()] = gpu_warp();
	gpu_sync();
	other = shared[THREADS / GPU_WARP - 1 - gpu_warp()];
	if (a.way != 1)
		gpu_sync();
	for (unsigned mask = 16; mask > 0; mask /= 2)
		(void)gpu_shuffle_xor(1, mask);
	if (gpu_lane() == 0)
		shared[gpu_warp()] = THREADS;
	a.out[gpu_block_x() * THREADS + gpu_thread()] = other * GPU_WARP + GPU_WARP - gpu_lane();
}

/* Each thread has many copies under way: more than products of rows of F32 with many columns have. */
GPU_KERNEL(many_copies, struct args, THREADS)
{
	uint32_t *out = a.out + gpu_block_x() * THREADS;

	out[gpu_thread()] = THREADS - gpu_thread();
	gpu_sync();
	for (unsigned i = 0; i < a.way; i++)
		gpu_copy_4(4 * gpu_thread(), out + gpu_thread());
	gpu_end_copies();
	gpu_wait_copies(0);
	out[gpu_thread()] = ((const uint32_t *)(const void *)gpu_shared())[gpu_thread()];
}

/* A sum over each warp, and who of it is odd. */
GPU_KERNEL(exchange, struct args, THREADS)
{
	float sum = (float)gpu_thread();
	uint32_t both = gpu_add_up_u32(gpu_thread(), 1);

	for (unsigned mask = 16; mask > 0; mask /= 2)
		sum += gpu_shuffle_xor(sum, mask);
	a.out[gpu_block_x() * THREADS + gpu_thread()] =
		(uint32_t)sum + (gpu_ballot(gpu_thread() % 2 == 1) == 0xaaaaaaaau) +
		(both == (gpu_lane() > 0 ? 2 * gpu_thread() - 1 : gpu_thread()));
}

/* Mistakes that are undefined on every GPU. */
enum { APART, PART_OF_WARP, ENDED, DIFFERENT, TOO_FAR, UNALIGNED, UNALIGNED_COPY, COPY_ELSEWHERE, COPY_LEFT, N_WAYS };

GPU_KERNEL(wrong, struct args, THREADS)
{
	const bool first = gpu_thread() < 16;

	switch (a.way) {
	case APART: /* a barrier for some, and another one for the others */
		if (gpu_warp() == 0)
			(void)gpu_ballot(gpu_thread() == 0 || gpu_thread() > 0);
		if (first)
			gpu_sync();
		else
			gpu_sync_warp();
		break;
	case PART_OF_WARP:
		if (first)
			(void)gpu_shuffle_xor(1, 1);
		else
			gpu_sync();
		break;
	case ENDED:
		if (first)
			(void)gpu_shuffle_xor(1, 1);
		break;
	case DIFFERENT:
		if (first)
			(void)gpu_shuffle_xor(1, 1);
		else
			(void)gpu_ballot(true);
		break;
	case TOO_FAR: gpu_shared()[4 * THREADS] = 1; break;
	case UNALIGNED_COPY: gpu_copy_16(0, (const unsigned char *)a.out + 4); break;
	case COPY_ELSEWHERE: gpu_copy_16(4 * THREADS, a.out + 4); break;
	case COPY_LEFT: /* some of so many are late */
		for (unsigned i = 0; i < THREADS / 4; i++)
			gpu_copy_16(16 * i, a.out);
		gpu_end_copies();
		gpu_wait_copies(1);
		break;
	default: a.out[0] = gpu_load_4((const unsigned char *)a.out + 1); break;
	}
}

typedef int kernel_fn(struct gpu_stream *, struct gpu_grid, size_t, const struct args *);

static void run(kernel_fn *kernel, uint32_t way, uint32_t *out)
{
	struct gpu_stream *s;
	struct gpu_event *e;
	struct od_err err;
	struct gpu *g;
	struct args a = { .way = way };

	assert_int_equal(gpu_open(&g, 0, &err), OD_OK);
	assert_int_equal(gpu_stream_new(&s, g, false), 0);
	assert_int_equal(gpu_event_new(&e, g, false), 0);
	a.out = gpu_alloc(g, BLOCKS * THREADS * sizeof(*a.out));
	assert_int_equal(kernel(s, (struct gpu_grid){ BLOCKS, 1, 1 }, THREADS * sizeof(uint32_t), &a), 0);
	assert_int_equal(gpu_copy(s, out, a.out, BLOCKS * THREADS * sizeof(*out), GPU_FROM), 0);
	assert_int_equal(gpu_event_record(e, s), 0);
	assert_int_equal(gpu_event_wait(e), 0);
	gpu_free(g, a.out);
	gpu_event_free(e);
	gpu_stream_free(s);
	gpu_close(g);
}

static void use_seed(int seed)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", seed);
	setenv("OD_GPU_SEED", text, 1);
}

static size_t wrong_mirrors(kernel_fn *kernel, uint32_t way)
{
	uint32_t out[BLOCKS * THREADS];
	size_t n = 0;

	run(kernel, way, out);
	for (size_t i = 0; i < BLOCKS * THREADS; i++)
		n += out[i] != THREADS - i % THREADS;
	return n;
}

static void test_barriers(void **state)
{
	(void)state;
	for (int seed = 1; seed < 20; seed++) {
		use_seed(seed);
		assert_int_equal(wrong_mirrors(mirror, 0), 0);
		/* a missing barrier shows, whatever the order is */
		assert_true(wrong_mirrors(mirror, 1) > THREADS / 8);
		for (uint32_t way = 0; way < 4; way += 2) {
			assert_int_equal(wrong_mirrors(mirror_copies, way), 0);
			assert_true(wrong_mirrors(mirror_copies, way + 1) > THREADS / 8);
		}
	}
}

/* A warp gets so far ahead of another one in some orders only. */
static void test_warps_run_ahead(void **state)
{
	size_t n = 0;

	(void)state;
	for (int seed = 1; seed < 20; seed++) {
		use_seed(seed);
		assert_int_equal(wrong_mirrors(mirror_warps, 0), 0);
		n += wrong_mirrors(mirror_warps, 1);
	}
	assert_true(n > THREADS);
}

static void test_many_copies(void **state)
{
	(void)state;
	use_seed(5);
	assert_int_equal(wrong_mirrors(many_copies, 300), 0);
}

static void test_warps(void **state)
{
	uint32_t out[BLOCKS * THREADS];

	(void)state;
	use_seed(3);
	run(exchange, 0, out);
	for (uint32_t i = 0; i < BLOCKS * THREADS; i++) {
		const uint32_t first = i % THREADS / 32 * 32;

		assert_int_equal(out[i], 32 * first + 31 * 16 + 2);
	}
}

/* The signal that ends a child process which makes the mistake; 0: none does. */
static int signal_of(void (*mistake)(uint32_t way), uint32_t way)
{
	const pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (child == 0) {
		const int null = dup2(STDOUT_FILENO, STDERR_FILENO);

		close(null);
		(void)signal(SIGSEGV, SIG_DFL); /* cmocka has a handler */
		mistake(way);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void run_wrong(uint32_t way)
{
	uint32_t out[BLOCKS * THREADS];

	run(wrong, way, out);
}

static void test_mistakes_end_it(void **state)
{
	(void)state;
	for (uint32_t way = 0; way < N_WAYS; way++)
		if (signal_of(run_wrong, way) != SIGABRT)
			fail_msg("mistake %u is not found", way);
}

/* ---- addresses and memory apart ---- */

#define GRANULE 8192u

enum { RIGHT, NOT_COMMITTED, RELEASED, RELEASED_EARLY, COMMITTED_TWICE, RELEASED_TWICE, NOT_WHOLE, LEFT, N_USES };

/* Copies a word to the second of three granules and back. */
static void use_range(uint32_t way)
{
	uint32_t from = 7, to = 0;
	struct gpu_stream *s;
	struct gpu_event *e;
	struct od_err err;
	struct gpu *g;
	char *at;

	setenv("OD_GPU_GRANULE_BYTES", "8192", 1);
	assert_int_equal(gpu_open(&g, 0, &err), OD_OK);
	assert_int_equal(gpu_stream_new(&s, g, false), 0);
	assert_int_equal(gpu_event_new(&e, g, false), 0);
	at = gpu_reserve(g, 3ull * GRANULE);
	assert_int_equal(gpu_commit(g, at, GRANULE), 0);
	if (way != NOT_COMMITTED)
		assert_int_equal(gpu_commit(g, at + GRANULE, way == NOT_WHOLE ? GRANULE / 2 : GRANULE), 0);
	if (way == COMMITTED_TWICE)
		(void)gpu_commit(g, at, GRANULE);
	if (way == RELEASED)
		gpu_release(g, at + GRANULE, GRANULE);
	assert_int_equal(gpu_copy(s, at + GRANULE, &from, sizeof(from), GPU_TO), 0);
	assert_int_equal(gpu_copy(s, &to, at + GRANULE, sizeof(to), GPU_FROM), 0);
	if (way == RELEASED_EARLY)
		gpu_release(g, at, 2ull * GRANULE);
	assert_int_equal(gpu_event_record(e, s), 0);
	assert_int_equal(gpu_event_wait(e), 0);
	assert_int_equal(to, 7);
	if (way != LEFT)
		gpu_release(g, at, 2ull * GRANULE);
	if (way == RELEASED_TWICE)
		gpu_release(g, at, GRANULE);
	gpu_unreserve(g, at, 3ull * GRANULE);
	gpu_event_free(e);
	gpu_stream_free(s);
	gpu_close(g);
}

static void test_memory_is_where_it_was_committed(void **state)
{
	(void)state;
	assert_int_equal(signal_of(use_range, RIGHT), 0);
	for (uint32_t way = RIGHT + 1; way < N_USES; way++)
		if (signal_of(use_range, way) !=
		    (way == NOT_COMMITTED || way == RELEASED || way == RELEASED_EARLY ? SIGSEGV : SIGABRT))
			fail_msg("mistake %u is not found", way);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_barriers),	cmocka_unit_test(test_warps_run_ahead),
		cmocka_unit_test(test_many_copies),	cmocka_unit_test(test_warps),
		cmocka_unit_test(test_mistakes_end_it), cmocka_unit_test(test_memory_is_where_it_was_committed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Runs kernels as nvcc compiles them: the emulated GPU's plugin has this in place of gpu_emulated_warps.c.
 *
 * $OD_PTX names the folder with PTX files. Blocks run in random order, as do strands; what is random follows from
 * $OD_GPU_SEED. In some blocks lanes part at random, as on GPUs that schedule threads independently. Copies to shared
 * memory happen at a random time between cp.async and the wait for them. What a GPU faults on, or leaves undefined,
 * ends the process: addresses that are not aligned or not in the launch's shared memory, barriers that some threads do
 * not reach, shuffles with lanes that have ended, races (ptx_races.h). */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/ptx/ptx_block.h"

_Thread_local struct gpu_position gpu_position; /* kernels that were compiled for the host want it */

/* ---- Messages ---- */

void ptx_tell_position(const struct gpu_blocks *blk, uint32_t pc, uint32_t block, unsigned thread)
{
	const struct ptx_insn *i = &blk->code[pc];
	const struct gpu_grid *g = &blk->grid;

	fprintf(stderr, "  %s, block (%u, %u, %u), thread %u of %u, %s:%u, %s:%u\n", blk->k->name, block % g->x,
		block / g->x % g->y, block / g->x / g->y, thread, blk->n_threads, ptx_file(blk->k), i->line,
		ptx_source_file(blk->k, i->source), ptx_source_line(i->source));
}

void ptx_fail(const struct gpu_blocks *blk, unsigned lane, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	fprintf(stderr, "ptx: ");
	vfprintf(stderr, format, ap);
	fprintf(stderr, "\n");
	va_end(ap);
	ptx_tell_position(blk, blk->pc_now, blk->block, blk->warp_now * PTX_LANES + lane);
	abort();
}

void gpu_host_fail(const char *what)
{
	fprintf(stderr, "ptx: %s\n", what);
	abort();
}

/* ---- Random order ---- */

uint32_t ptx_draw(struct gpu_blocks *blk) /* xorshift64* */
{
	blk->random ^= blk->random >> 12;
	blk->random ^= blk->random << 25;
	blk->random ^= blk->random >> 27;
	return (uint32_t)(blk->random * 0x2545f4914f6cdd1du >> 32);
}

bool ptx_one_in(struct gpu_blocks *blk, unsigned n)
{
	return n != 0 && ptx_draw(blk) % n == 0;
}

void ptx_push(struct gpu_blocks *blk, struct ptx_strand s)
{
	if (blk->n_ready == GPU_HOST_THREADS)
		gpu_host_fail("too many strands");
	blk->ready[blk->n_ready++] = s;
}

void ptx_go_on(struct gpu_blocks *blk, struct ptx_strand s)
{
	uint32_t left = s.mask;

	while (left != 0) {
		s.mask = ptx_one_in(blk, blk->splits) ? left & ptx_draw(blk) : left;
		if (s.mask == 0)
			s.mask = left;
		ptx_push(blk, s);
		left &= ~s.mask;
	}
}

/* ---- Blocks ---- */

static void set_special(const struct gpu_blocks *blk, enum ptx_special which, uint64_t v)
{
	unsigned char *at = blk->constants + (size_t)which * PTX_LANES * 8;

	for (unsigned lane = 0; lane < PTX_LANES; lane++)
		if (which == PTX_SHARED_64 || which == PTX_ARGS)
			((ptx_u64 *)(void *)at)[lane] = v;
		else
			((ptx_u32 *)(void *)at)[lane] = (uint32_t)v;
}

static void prepare_warp(struct gpu_blocks *blk, uint32_t i)
{
	struct ptx_warp *w = &blk->warp[i];

	w->alive = PTX_ALL;
	w->waited = blk->k->waits ? 0 : PTX_ALL;
	w->at_bar = w->at_meet = w->syncs = w->n_copies = 0;
	memset(w->group, 0, sizeof(w->group));
	w->registers = blk->registers + i * blk->k->register_bytes;
	for (uint32_t lane = 0; lane < PTX_LANES; lane++)
		((ptx_u32 *)(void *)w->registers)[lane] = i * PTX_LANES + lane;
	ptx_go_on(blk, (struct ptx_strand){ i, PTX_ALL, 0 });
}

static struct ptx_strand take_ready(struct gpu_blocks *blk)
{
	struct ptx_strand s;
	unsigned at;

	if (blk->n_ready == 0)
		ptx_fail(blk, 0, "threads wait for each other at different barriers");
	at = ptx_draw(blk) % blk->n_ready;
	s = blk->ready[at];
	blk->ready[at] = blk->ready[--blk->n_ready];
	return s;
}

static void run_block(struct gpu_blocks *blk)
{
	/* Four of eight blocks keep warps together, two let lanes part where they have met, and two at branches,
	 * too. */
	static const unsigned splits[8] = { 0, 0, 0, 0, 16, 16, 16, 2 };
	const unsigned how = ptx_draw(blk) % 8;
	const struct gpu_grid *g = &blk->grid;

	blk->lockstep = how < 6;
	blk->splits = splits[how];
	set_special(blk, PTX_CTAID_X, blk->block % g->x);
	set_special(blk, PTX_CTAID_Y, blk->block / g->x % g->y);
	set_special(blk, PTX_CTAID_Z, blk->block / g->x / g->y);
	memset(blk->shared + blk->shared_at, 0xff, blk->n_shared); /* NaN as f32 */
	blk->n_ready = blk->n_at = 0;
	blk->n_alive = blk->n_threads;
	ptx_races_barrier(blk->races);
	for (uint32_t i = 0; i < blk->n_warps; i++)
		prepare_warp(blk, i);
	while (blk->n_alive > 0)
		ptx_run_strand(blk, take_ready(blk));
}

/* ---- Grids ---- */

static void grow(unsigned char **at, size_t *room, size_t need)
{
	if (need <= *room)
		return;
	free(*at);
	*room = (need + 63) / 64 * 64;
	*at = aligned_alloc(64, *room);
	if (*at == NULL)
		gpu_host_fail("out of memory");
	memset(*at, 0xa5, *room);
}

static void take_kernel(struct gpu_blocks *blk, const struct gpu_kernel *k)
{
	blk->k = ptx_find(k->name);
	if (blk->k == NULL) {
		fprintf(stderr, "ptx: there is no PTX of %s\n", k->name);
		abort();
	}
	if (blk->k->args_bytes != k->args_bytes || blk->k->n_threads != k->n_threads) {
		fprintf(stderr, "ptx: %s: an argument of %zu bytes, %u threads; the PTX has %zu, %u\n", k->name,
			k->args_bytes, k->n_threads, blk->k->args_bytes, blk->k->n_threads);
		abort();
	}
	blk->code = blk->k->code;
	blk->n_threads = k->n_threads;
	blk->n_warps = k->n_threads / PTX_LANES;
	grow(&blk->constants, &blk->constants_room, blk->k->constant_bytes);
	grow(&blk->registers, &blk->registers_room, blk->n_warps * blk->k->register_bytes);
	grow(&blk->args, &blk->args_room, k->args_bytes);
	memcpy(blk->constants, blk->k->constants, blk->k->constant_bytes);
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
	return b == 0 ? a : common_divisor(b, a % b);
}

void gpu_blocks_run(struct gpu_blocks *blk, const struct gpu_launch *l)
{
	/* offsets in shared memory: nvcc may rely on 16 bytes, on no more */
	static const uint32_t starts[] = { 0, 16, 1024 };
	const uint64_t n = (uint64_t)l->grid.x * l->grid.y * l->grid.z;
	uint64_t at = ptx_draw(blk) % n, step = 1 + ptx_draw(blk) % n;

	take_kernel(blk, l->kernel);
	memcpy(blk->args, l->args, l->kernel->args_bytes);
	blk->grid = l->grid;
	blk->n_shared = (uint32_t)l->shared;
	blk->shared_at = starts[ptx_draw(blk) % 3];
	set_special(blk, PTX_NTID_X, blk->n_threads);
	set_special(blk, PTX_NCTAID_X, l->grid.x);
	set_special(blk, PTX_SHARED_32, blk->shared_at);
	set_special(blk, PTX_SHARED_64, blk->shared_at);
	set_special(blk, PTX_ARGS, (uintptr_t)blk->args);
	ptx_races_begin_launch(blk->races);
	while (common_divisor(n, step) != 1)
		step++;
	for (uint64_t i = 0; i < n; i++, at = (at + step) % n) {
		blk->block = (uint32_t)at;
		run_block(blk);
	}
}

struct gpu_blocks *gpu_blocks_new(uint64_t seed)
{
	struct gpu_blocks *blk = calloc(1, sizeof(*blk));

	if (blk == NULL)
		return NULL;
	blk->random = seed * 0x9e3779b97f4a7c15u | 1;
	blk->shared = aligned_alloc(PTX_WINDOW, PTX_WINDOW);
	blk->races = ptx_races_new();
	if (blk->shared == NULL || blk->races == NULL) {
		gpu_blocks_free(blk);
		return NULL;
	}
	return blk;
}

void gpu_blocks_free(struct gpu_blocks *blk)
{
	if (blk == NULL)
		return;
	for (unsigned i = 0; i < PTX_MOST_WARPS; i++)
		free(blk->warp[i].copy);
	ptx_races_free(blk->races);
	free(blk->shared);
	free(blk->args);
	free(blk->registers);
	free(blk->constants);
	free(blk);
}

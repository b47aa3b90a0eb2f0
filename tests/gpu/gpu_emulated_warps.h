/* gpu_emulated_warps.h - the threads of a block on the host; what gpu.h says of the same functions holds.
 *
 * A kernel that forgets a barrier reads what another thread has not written, in some order: tests find it because the
 * order is random ($OD_GPU_SEED).
 * Thread: the one that runs the grid. */
#ifndef OD_TESTS_GPU_EMULATED_WARPS_H
#define OD_TESTS_GPU_EMULATED_WARPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/compute/cuda/gpu_runtime.h"

/* The fibre that runs. */
struct gpu_position {
	unsigned thread, n_threads, x, y, z, n_x; /* in its block; the block in the grid; blocks in x */
	unsigned char *shared;
};
extern _Thread_local struct gpu_position gpu_position;

static inline unsigned gpu_thread(void)
{
	return gpu_position.thread;
}

static inline unsigned gpu_threads(void)
{
	return gpu_position.n_threads;
}

static inline unsigned gpu_block_x(void)
{
	return gpu_position.x;
}

static inline unsigned gpu_grid_x(void)
{
	return gpu_position.n_x;
}

static inline unsigned gpu_block_y(void)
{
	return gpu_position.y;
}

static inline unsigned gpu_block_z(void)
{
	return gpu_position.z;
}

static inline unsigned char *gpu_shared(void)
{
	return gpu_position.shared;
}

void gpu_sync(void);
void gpu_sync_warp(void);
float gpu_shuffle_xor(float v, unsigned mask);
uint32_t gpu_shuffle_xor_u32(uint32_t v, unsigned mask);
float gpu_shuffle_from(float v, unsigned lane);
uint32_t gpu_add_up_u32(uint32_t v, unsigned by);
uint32_t gpu_ballot(bool yes);
void gpu_copy_16(uint32_t to, const void *from);
void gpu_copy_4(uint32_t to, const void *from);
void gpu_end_copies(void);
void gpu_wait_copies(unsigned n);

static inline uint32_t gpu_read_host_u32(const uint32_t *at)
{
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static inline void gpu_write_host_u32(uint32_t *at, uint32_t v)
{
	__atomic_store_n(at, v, __ATOMIC_RELEASE);
}

/* ---- For gpu_host.c ---- */

#define GPU_HOST_THREADS 1024u /* the most of a block */
#define GPU_HOST_SHARED (48u << 10) /* every GPU grants a launch this much; for more, CUDA wants cudaFuncSetAttribute */

/* Runs the blocks of grids; the interpreter of PTX (tests/gpu/ptx) has these functions, too. One thread at a time.
 * seed: of the order of blocks and threads. NULL: no memory. */
struct gpu_blocks;
struct gpu_blocks *gpu_blocks_new(uint64_t seed);
void gpu_blocks_free(struct gpu_blocks *b); /* NULL ok */
void gpu_blocks_run(struct gpu_blocks *b, const struct gpu_launch *l);

_Noreturn void gpu_host_fail(const char *what); /* a kernel does what a GPU cannot: ends the process */

#endif

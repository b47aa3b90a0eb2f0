/* gpu.h - the language of the GPU kernels: C with a few functions, for CUDA.
 *
 * Every kernel file (k_*.cu) is compiled twice: by nvcc for GPUs, and by the C compiler for tests on machines without
 * one, with functions of the same names (tests/gpu). Only those differ between the two, so a kernel that passes on the
 * host computes the same bits on a GPU: fmaf, division and square root are rounded as IEEE 754 says, and nothing is
 * contracted (-fmad=false).
 *
 * A kernel file is written in what C and C++ have in common. A kernel has one argument, a struct by value named a;
 * blocks have one dimension. Shared memory is what the launch asks for, not cleared.
 * Thread: device code. */
#ifndef OD_COMPUTE_GPU_H
#define OD_COMPUTE_GPU_H

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/compute/cuda/gpu_runtime.h"

#define GPU_WARP 32u
#define GPU_ALL_LANES 0xffffffffu
#define GPU_MOST_ARGS 4096u /* bytes of a kernel's argument: what the oldest of drivers take */

/* A kernel's launcher. */
#define GPU_LAUNCH(name, function, type, n_threads) \
	int name(struct gpu_stream *stream, struct gpu_grid grid, size_t shared, const type *args) \
	{ \
		static_assert(sizeof(type) <= GPU_MOST_ARGS, "CUDA takes no more"); \
		static const struct gpu_kernel kernel = { (void (*)(void))function, #name, n_threads, sizeof(type) }; \
		const struct gpu_launch l = { &kernel, grid, shared, args }; \
\
		return gpu_launch(stream, &l); \
	}

#ifdef __CUDACC__

#define GPU_FN static __device__ __forceinline__
#define GPU_TABLE static __device__ const /* not __constant__, which threads of a warp read one after the other */
#define GPU_RESTRICT __restrict__
#define GPU_PRAGMA(x) _Pragma(#x)
#define GPU_UNROLL GPU_PRAGMA(unroll)
#define GPU_UNROLL_N(n) GPU_PRAGMA(unroll n)
#define GPU_NO_UNROLL GPU_PRAGMA(unroll 1)

/* Defines the kernel and its launcher: int name(struct gpu_stream *, struct gpu_grid, size_t shared, const type *). It
 * begins when the one before it in its stream has ended (gpu_after_previous). */
#define GPU_KERNEL(name, type, n_threads) GPU_BOUND_KERNEL(name, type, n_threads, (n_threads), true)
/* A kernel with as many registers as it needs, though a multiprocessor then may run only one block of it at a time. */
#define GPU_ROOMY_KERNEL(name, type, n_threads) GPU_BOUND_KERNEL(name, type, n_threads, (n_threads, 1), true)
/* A kernel for large grids: so few registers that a multiprocessor runs n_blocks blocks at a time, if there is shared
 * memory for them. It does not let the next kernel's blocks come early. */
#define GPU_DENSE_KERNEL(name, type, n_threads, n_blocks) \
	GPU_BOUND_KERNEL(name, type, n_threads, (n_threads, n_blocks), false)

#define GPU_BOUND_KERNEL(name, type, n_threads, bounds, is_small) \
	GPU_FN void name##_work(const type &a); \
	__global__ void __launch_bounds__ bounds name##_kernel(const __grid_constant__ type a) \
	{ \
		gpu_after_previous(is_small); \
		name##_work(a); \
	} \
	extern "C" GPU_LAUNCH(name, name##_kernel, type, n_threads) GPU_FN void name##_work(const type &a)

/* Programmatic dependent launch: from compute capability 9.0 on, a GPU may start a kernel's blocks while the kernel
 * before it in the stream still runs. Here each block waits until that kernel has ended and its writes are visible, so
 * results do not change; only the start is hidden. is_small: the next kernel's blocks may start now. Those of a large
 * grid keep them out until they end: waiting blocks would occupy the multiprocessors of those that end first, and leave
 * other multiprocessors without work. */
GPU_FN void gpu_after_previous(bool is_small)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
	if (is_small)
		asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

extern __shared__ __align__(16) unsigned char gpu_shared_bytes[];

GPU_FN unsigned gpu_thread(void)
{
	return threadIdx.x;
}

/* gpu_thread, read again: so no register holds it, or what depends on it, from before. */
GPU_FN unsigned gpu_thread_here(void)
{
	unsigned v;

	asm volatile("mov.u32 %0, %%tid.x;" : "=r"(v));
	return v;
}

GPU_FN unsigned gpu_threads(void)
{
	return blockDim.x;
}

GPU_FN unsigned gpu_block_x(void)
{
	return blockIdx.x;
}

GPU_FN unsigned gpu_block_y(void)
{
	return blockIdx.y;
}

GPU_FN unsigned gpu_grid_x(void) /* blocks */
{
	return gridDim.x;
}

GPU_FN unsigned gpu_block_z(void)
{
	return blockIdx.z;
}

GPU_FN unsigned char *gpu_shared(void)
{
	return gpu_shared_bytes;
}

/* Where something lies in shared memory, in a word: addresses are worked out with less. */
GPU_FN uint32_t gpu_shared_address(const void *at)
{
	return (uint32_t)__cvta_generic_to_shared(at);
}

GPU_FN const void *gpu_shared_at(uint32_t address)
{
	return __cvta_shared_to_generic(address);
}

GPU_FN uint32_t gpu_shared_u32(uint32_t address)
{
	return *(const uint32_t *)gpu_shared_at(address);
}

GPU_FN void gpu_sync(void) /* all threads of the block */
{
	__syncthreads();
}

GPU_FN void gpu_sync_warp(void)
{
	__syncwarp();
}

/* All lanes of the warp call these together. */
GPU_FN float gpu_shuffle_xor(float v, unsigned mask)
{
	return __shfl_xor_sync(GPU_ALL_LANES, v, (int)mask);
}

GPU_FN uint32_t gpu_shuffle_xor_u32(uint32_t v, unsigned mask)
{
	return __shfl_xor_sync(GPU_ALL_LANES, v, (int)mask);
}

GPU_FN float gpu_shuffle_from(float v, unsigned lane)
{
	return __shfl_sync(GPU_ALL_LANES, v, (int)lane);
}

/* v and the v of the lane that is `by` before, if there is one */
GPU_FN uint32_t gpu_add_up_u32(uint32_t v, unsigned by)
{
	asm volatile("{\n.reg .pred p;\n.reg .b32 t;\n"
		     "shfl.sync.up.b32 t|p, %0, %1, 0, 0xffffffff;\n"
		     "@p add.u32 %0, %0, t;\n}"
		     : "+r"(v)
		     : "r"(by));
	return v;
}

GPU_FN uint32_t gpu_ballot(bool yes)
{
	return __ballot_sync(GPU_ALL_LANES, yes);
}

/* A word that the host writes, too. */
GPU_FN uint32_t gpu_read_host_u32(const uint32_t *at)
{
	return *(const volatile uint32_t *)at;
}

/* For the host, which sees it after all that the thread has written before. */
GPU_FN void gpu_write_host_u32(uint32_t *at, uint32_t v)
{
	__threadfence_system();
	*(volatile uint32_t *)at = v;
}

GPU_FN unsigned gpu_popcount(uint64_t bits)
{
	return (unsigned)__popcll(bits);
}

/* Four bytes of x (0 to 3) and y (4 to 7): byte i is the one whose number is in bits 4 * i to 4 * i + 2, or eight times
 * its highest bit, if bit 4 * i + 3 is 1. Bits from 16 on are not used. */
GPU_FN uint32_t gpu_pick_bytes(uint32_t x, uint32_t y, uint32_t numbers)
{
	uint32_t v;

	asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(x), "r"(y), "r"(numbers)); /* __byte_perm masks numbers first */
	return v;
}

/* sum and the four products of signed bytes of x and y. */
GPU_FN uint32_t gpu_dot4(uint32_t x, uint32_t y, uint32_t sum)
{
	return (uint32_t)__dp4a((int)x, (int)y, (int)sum);
}

/* The bits of x where mask has ones, else those of y. */
GPU_FN uint32_t gpu_choose_bits(uint32_t x, uint32_t y, uint32_t mask)
{
	uint32_t v;

	asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(v) : "r"(x), "r"(y), "r"(mask));
	return v;
}

/* The low word of both, high before low, moved right by `bits` modulo 32. */
GPU_FN uint32_t gpu_funnel(uint32_t low, uint32_t high, uint32_t bits)
{
	return __funnelshift_r(low, high, bits);
}

GPU_FN uint32_t gpu_float_bits(float f)
{
	return __float_as_uint(f);
}

GPU_FN float gpu_bits_float(uint32_t u)
{
	return __uint_as_float(u);
}

/* v, which is worked out once: the compiler might do it again at each use. */
GPU_FN uint32_t gpu_now(uint32_t v)
{
	asm volatile("" : "+r"(v));
	return v;
}

/* Weights are read once: they need not stay in a cache. Aligned to the type. */
GPU_FN uint4 gpu_load_16(const void *at)
{
	return __ldcs((const uint4 *)at);
}

GPU_FN uint2 gpu_load_8(const void *at)
{
	return __ldcs((const uint2 *)at);
}

GPU_FN uint32_t gpu_load_4(const void *at)
{
	return __ldcs((const uint32_t *)at);
}

/* Asks for the 128 bytes that `at` is in, which are there: they come to the L2 cache. */
GPU_FN void gpu_prefetch(const void *at)
{
	asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/* Rows, which are read more than once, and which the kernel does not write; aligned to the type. */
GPU_FN float gpu_load_f1(const float *at)
{
	return __ldg(at);
}

GPU_FN float2 gpu_load_f2(const float *at)
{
	return __ldg((const float2 *)at);
}

/* The thread copies 16 bytes to an address of shared memory, both aligned to that, while it goes on. Before sm_80 it
 * waits for them. */
GPU_FN void gpu_copy_16(uint32_t to, const void *from)
{
#if __CUDA_ARCH__ >= 800
	asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#else
	*(uint4 *)__cvta_shared_to_generic(to) = gpu_load_16(from);
#endif
}

/* Copies 4 bytes; some neighbours are soon copied, too. */
GPU_FN void gpu_copy_4(uint32_t to, const void *from)
{
#if __CUDA_ARCH__ >= 800
	asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
#else
	*(uint32_t *)__cvta_shared_to_generic(to) = *(const uint32_t *)from;
#endif
}

/* n; on GPUs before sm_80 `before`. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define GPU_SINCE_80(n, before) (before)
#else
#define GPU_SINCE_80(n, before) (n)
#endif

/* A group of copies ends: those that the thread has begun since the one before, or none. */
GPU_FN void gpu_end_copies(void)
{
#if __CUDA_ARCH__ >= 800
	asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* All of the thread's groups but the last n, a constant, are there, for this thread. */
#if __CUDA_ARCH__ >= 800
#define gpu_wait_copies(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")
#else
#define gpu_wait_copies(n)
#endif

GPU_FN void gpu_check_aligned(const void *at, size_t n) /* a GPU faults by itself */
{
	(void)at;
	(void)n;
}

typedef uint4 gpu_u4;
typedef uint2 gpu_u2;
typedef float4 gpu_f4;
typedef float2 gpu_f2;

#else
#include "gpu_emulated.h" /* a build that compiles kernels as C gives its folder (-I) */
#endif

/* The address of gpu_shared(). To find it out takes long on some GPUs. */
GPU_FN uint32_t gpu_shared_start(void)
{
	return gpu_now(gpu_shared_address(gpu_shared()));
}

/* Any memory. */
GPU_FN gpu_f4 gpu_load_f4(const float *at)
{
	gpu_check_aligned(at, 16);
	return *(const gpu_f4 *)at;
}

/* Shared memory, which gpu_load_8 and gpu_load_16 cannot read. */
GPU_FN gpu_f2 gpu_shared_f2(const float *at)
{
	gpu_check_aligned(at, 8);
	return *(const gpu_f2 *)at;
}

GPU_FN gpu_u4 gpu_shared_16(const void *at)
{
	gpu_check_aligned(at, 16);
	return *(const gpu_u4 *)at;
}

GPU_FN void gpu_store_16(void *at, gpu_u4 v) /* any memory */
{
	gpu_check_aligned(at, 16);
	*(gpu_u4 *)at = v;
}

GPU_FN void gpu_store_f4(float *at, gpu_f4 v)
{
	gpu_check_aligned(at, 16);
	*(gpu_f4 *)at = v;
}

GPU_FN unsigned gpu_lane(void)
{
	return gpu_thread() % GPU_WARP;
}

GPU_FN unsigned gpu_warp(void)
{
	return gpu_thread() / GPU_WARP;
}

#endif

/* gpu_emulated.h - the language of the GPU kernels (gpu.h) for the C compiler; gpu.h says what each function does.
 *
 * gpu_host.c runs a grid block after block, with the threads of a block as fibres whose order between two barriers is
 * random (gpu_emulated_warps.h). Only gpu.h includes this.
 * Thread: the one that runs the grid. */
#ifndef OD_TESTS_GPU_EMULATED_H
#define OD_TESTS_GPU_EMULATED_H

#include <stdint.h>
#include <string.h>

#include "tests/gpu/gpu_emulated_warps.h"

#define GPU_FN static inline __attribute__((unused))
#define GPU_TABLE static const __attribute__((unused))
#define GPU_RESTRICT restrict
#define GPU_UNROLL
#define GPU_UNROLL_N(n)
#define GPU_NO_UNROLL
#define GPU_SINCE_80(n, before) (n)
#define gpu_thread_here gpu_thread

#define GPU_KERNEL(name, type, n_threads) \
	int name(struct gpu_stream *stream, struct gpu_grid grid, size_t shared, const type *args); \
	static void name##_kernel(type a); \
	static void name##_fibre(const void *args) \
	{ \
		name##_kernel(*(const type *)args); \
	} \
	GPU_LAUNCH(name, name##_fibre, type, n_threads) \
	static void name##_kernel(type a)

#define GPU_ROOMY_KERNEL(name, type, n_threads) GPU_KERNEL(name, type, n_threads)
#define GPU_DENSE_KERNEL(name, type, n_threads, n_blocks) GPU_KERNEL(name, type, n_threads)

typedef struct {
	uint32_t x, y, z, w;
} gpu_u4;
typedef struct {
	uint32_t x, y;
} gpu_u2;
typedef struct {
	float x, y, z, w;
} gpu_f4;
typedef struct {
	float x, y;
} gpu_f2;

GPU_FN unsigned gpu_popcount(uint64_t bits)
{
	return (unsigned)__builtin_popcountll(bits);
}

GPU_FN uint32_t gpu_pick_bytes(uint32_t x, uint32_t y, uint32_t numbers)
{
	const uint64_t all = (uint64_t)y << 32 | x;
	uint32_t v = 0;

	for (unsigned i = 0; i < 4; i++) {
		const uint32_t byte = all >> 8 * (numbers >> 4 * i & 7) & 255;

		v |= ((numbers >> 4 * i & 8) == 0 ? byte : byte >> 7 != 0 ? 255u : 0) << 8 * i;
	}
	return v;
}

GPU_FN uint32_t gpu_dot4(uint32_t x, uint32_t y, uint32_t sum)
{
	for (unsigned i = 0; i < 4; i++)
		sum += (uint32_t)((int8_t)(x >> 8 * i) * (int8_t)(y >> 8 * i));
	return sum;
}

GPU_FN uint32_t gpu_choose_bits(uint32_t x, uint32_t y, uint32_t mask)
{
	return (x & mask) | (y & ~mask);
}

GPU_FN uint32_t gpu_funnel(uint32_t low, uint32_t high, uint32_t bits)
{
	return (uint32_t)(((uint64_t)high << 32 | low) >> (bits & 31));
}

GPU_FN uint32_t gpu_float_bits(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

GPU_FN float gpu_bits_float(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

/* A GPU faults on an address that is not a multiple of the access's size. */
GPU_FN void gpu_check_aligned(const void *at, size_t n)
{
	if ((uintptr_t)at % n != 0)
		gpu_host_fail("an access is not aligned to its size");
}

GPU_FN gpu_u4 gpu_load_16(const void *at)
{
	gpu_check_aligned(at, 16);
	return *(const gpu_u4 *)at;
}

GPU_FN gpu_u2 gpu_load_8(const void *at)
{
	gpu_check_aligned(at, 8);
	return *(const gpu_u2 *)at;
}

GPU_FN uint32_t gpu_load_4(const void *at)
{
	gpu_check_aligned(at, 4);
	return *(const uint32_t *)at;
}

GPU_FN void gpu_prefetch(const void *at)
{
	(void)*(const volatile unsigned char *)at; /* it has to be there */
}

GPU_FN uint32_t gpu_shared_address(const void *at)
{
	return (uint32_t)((const unsigned char *)at - gpu_shared());
}

GPU_FN const void *gpu_shared_at(uint32_t address)
{
	return gpu_shared() + address;
}

GPU_FN uint32_t gpu_shared_u32(uint32_t address)
{
	gpu_check_aligned(gpu_shared_at(address), 4);
	return *(const uint32_t *)gpu_shared_at(address);
}

GPU_FN uint32_t gpu_now(uint32_t v)
{
	return v;
}

GPU_FN float gpu_load_f1(const float *at)
{
	gpu_check_aligned(at, 4);
	return *at;
}

GPU_FN gpu_f2 gpu_load_f2(const float *at)
{
	gpu_check_aligned(at, 8);
	return *(const gpu_f2 *)at;
}

#endif

/* gpu_planes.h - weights as SM bytes and planes of exponents (planes.h): a block of threads decodes a block of a chunk.
 *
 * Thread: device code; all GPU_PLANES_THREADS threads of the block call gpu_planes_decode. */
#ifndef OD_COMPUTE_GPU_PLANES_H
#define OD_COMPUTE_GPU_PLANES_H

#include "common/compute/cuda/gpu_math.h"
#include "common/compute/cuda/kernels.h"

/* planes.c's weight: exponent byte, and SM byte = mantissa << 1 | sign. */
GPU_FN uint32_t gpu_merged(uint32_t e, uint32_t sm)
{
	return (sm & 1u) << 15 | e << 7 | sm >> 1;
}

#define HEADER_BYTES 16u
#define LEVELS 3u
#define GROUPS (GPU_PLANES_BLOCK / 64)

GPU_FN uint32_t u16_at(const uint8_t *at)
{
	return at[0] | (uint32_t)at[1] << 8;
}

GPU_FN uint32_t u32_at(const uint8_t *at)
{
	return u16_at(at) | u16_at(at + 2) << 16;
}

/* A block's weights are [first, first + weights) of a chunk of n; false: there is no such block (od_planes_span). */
GPU_FN bool gpu_planes_span(uint32_t n, uint32_t row, uint32_t block, uint32_t *first, uint32_t *weights)
{
	if (row > GPU_PLANES_BLOCK) {
		const uint32_t pieces = (row + GPU_PLANES_BLOCK - 1) / GPU_PLANES_BLOCK, r = block / pieces, end = (r + 1) * row;

		*first = r * row + block % pieces * GPU_PLANES_BLOCK;
		*weights = end - *first < GPU_PLANES_BLOCK ? end - *first : GPU_PLANES_BLOCK;
		return *first < n;
	}
	*first = block * (GPU_PLANES_BLOCK / row) * row;
	*weights = n - *first < GPU_PLANES_BLOCK / row * row ? n - *first : GPU_PLANES_BLOCK / row * row;
	return *first < n;
}

/* A level of codes in two bit planes, in groups of 64. */
struct level {
	const uint8_t *at;
	uint32_t n;
	uint32_t *before; /* [groups + 1]: escapes before each group; shared memory */
};

GPU_FN uint32_t level_bytes(uint32_t n)
{
	return n / 64 * 16 + (n % 64 + 7) / 8 * 2;
}

/* Both planes of a group, from bytes of any alignment. */
GPU_FN void planes_of(const struct level *l, uint32_t group, uint64_t plane[2])
{
	const uint32_t left = l->n - group * 64, bytes = left < 64 ? (left + 7) / 8 : 8;
	const uint8_t *at = l->at + group * 16;

	plane[0] = plane[1] = 0;
	for (uint32_t i = 0; i < bytes; i++) {
		plane[0] |= (uint64_t)at[i] << 8 * i;
		plane[1] |= (uint64_t)at[bytes + i] << 8 * i;
	}
}

/* Escapes before each group, by all threads, of which there is one for each group. */
GPU_FN void count_before(const struct level *l, uint32_t *warp_sum)
{
	const uint32_t groups = (l->n + 63) / 64, t = gpu_thread();
	uint64_t plane[2];
	uint32_t mine = 0, sum, base = 0;

	if (t < groups) {
		planes_of(l, t, plane);
		mine = gpu_popcount(plane[0] & plane[1]);
	}
	sum = mine;
	for (unsigned by = 1; by < GPU_WARP; by *= 2) {
		const uint32_t other = gpu_shuffle_up_u32(sum, by);

		if (gpu_lane() >= by)
			sum += other;
	}
	if (gpu_lane() == GPU_WARP - 1)
		warp_sum[gpu_warp()] = sum;
	gpu_sync();
	for (unsigned w = 0; w < gpu_warp(); w++)
		base += warp_sum[w];
	l->before[t] = base + sum - mine;
	gpu_sync();
}

/* Code i of a level; *next: its place among the level's escapes. */
GPU_FN uint32_t code_of(const struct level *l, uint32_t i, uint32_t *next)
{
	const uint32_t group = i / 64, bit = i % 64;
	uint64_t plane[2], escapes;

	planes_of(l, group, plane);
	escapes = plane[0] & plane[1];
	*next = l->before[group] + gpu_popcount(escapes & ((1ull << bit) - 1));
	return (uint32_t)(plane[0] >> bit & 1) | (uint32_t)(plane[1] >> bit & 1) << 1;
}

/* What code 3 of a level stands for. */
GPU_FN uint32_t escaped(const struct level *level, const uint8_t *symbols, const uint8_t *plain, uint32_t i)
{
	for (unsigned l = 1; l < LEVELS; l++) {
		const uint32_t code = code_of(&level[l], i, &i);

		if (code != 3)
			return symbols[3 * l + code];
	}
	return plain[i];
}

/* A group's 64 exponents to shared memory. */
GPU_FN void decode_group(const struct level *level, const uint8_t *symbols, const uint8_t *plain, uint32_t group, uint8_t *e)
{
	const uint32_t left = level[0].n - group * 64, n = left < 64 ? left : 64;
	uint32_t next = level[0].before[group];
	uint64_t plane[2];

	planes_of(&level[0], group, plane);
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t code = (uint32_t)(plane[0] >> i & 1) | (uint32_t)(plane[1] >> i & 1) << 1;

		e[group * 64 + i] = (uint8_t)(code == 3 ? escaped(level, symbols, plain, next++) : symbols[code]);
	}
}

/* Block `block` of a checked chunk, which has so many weights, to e [weights], shared memory; scratch: GPU_PLANES_SCRATCH bytes of
 * it. Ends with the block together. */
GPU_FN void gpu_planes_decode(const uint8_t *chunk, uint32_t block, uint32_t weights, uint8_t *e, uint8_t *scratch)
{
	uint32_t *before = (uint32_t *)(void *)scratch, *warp_sum = before + LEVELS * (GROUPS + 1);
	const uint8_t *at = chunk + u32_at(chunk + HEADER_BYTES + 4 * block);
	struct level level[LEVELS];
	uint32_t n[LEVELS + 1];

	n[0] = weights;
	for (unsigned l = 0; l < LEVELS; l++)
		n[l + 1] = u16_at(at + 2 * l);
	if (u16_at(at + 6) != 0) { /* raw */
		for (uint32_t i = gpu_thread(); i < weights; i += GPU_PLANES_THREADS)
			e[i] = at[8 + i];
	} else {
		at += 8;
		level[2].at = at + n[3];
		level[1].at = level[2].at + level_bytes(n[2]);
		level[0].at = level[1].at + level_bytes(n[1]);
		for (unsigned l = 0; l < LEVELS; l++) {
			level[l].n = n[l];
			level[l].before = before + l * (GROUPS + 1);
			count_before(&level[l], warp_sum);
		}
		if (gpu_thread() * 64 < weights)
			decode_group(level, chunk, at, gpu_thread(), e);
	}
	gpu_sync();
}

#undef HEADER_BYTES
#undef LEVELS
#undef GROUPS

#endif

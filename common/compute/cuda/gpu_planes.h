/* gpu_planes.h - weights as SM bytes and planes of exponents (planes.h): a block of threads makes BF16 of a block of a chunk.
 *
 * Thread: device code; all GPU_PLANES_THREADS threads of the block call gpu_planes_weights. */
#ifndef OD_COMPUTE_GPU_PLANES_H
#define OD_COMPUTE_GPU_PLANES_H

#include "common/compute/cuda/gpu_math.h"
#include "common/compute/cuda/kernels.h"

/* planes.c's weight: exponent byte, and SM byte = mantissa << 1 | sign. */
GPU_FN uint32_t gpu_merged(uint32_t e, uint32_t sm)
{
	return (sm & 1u) << 15 | e << 7 | sm >> 1;
}

/* Two weights from bytes 0 and 2. */
GPU_FN uint32_t gpu_merged_2(uint32_t e, uint32_t sm)
{
	return e << 7 | (sm >> 1 & 0x007f007fu) | (sm & 0x00010001u) << 15;
}

/* Eight weights from all bytes. */
GPU_FN gpu_u4 gpu_merged_8(uint32_t e0, uint32_t e1, uint32_t sm0, uint32_t sm1)
{
	gpu_u4 v;

	v.x = gpu_merged_2(gpu_pick_bytes(e0, 0, 0x4140), gpu_pick_bytes(sm0, 0, 0x4140));
	v.y = gpu_merged_2(gpu_pick_bytes(e0, 0, 0x4342), gpu_pick_bytes(sm0, 0, 0x4342));
	v.z = gpu_merged_2(gpu_pick_bytes(e1, 0, 0x4140), gpu_pick_bytes(sm1, 0, 0x4140));
	v.w = gpu_merged_2(gpu_pick_bytes(e1, 0, 0x4342), gpu_pick_bytes(sm1, 0, 0x4342));
	return v;
}

#define HEADER_BYTES 16u
#define LEVELS 3u
#define WARPS (GPU_PLANES_THREADS / GPU_WARP) /* a thread has a group of 64 codes */
#define STRIDE (16 * GPU_PLANES_THREADS) /* all threads load 16 SM bytes each, */
#define EACH (GPU_PLANES_BLOCK / STRIDE) /* so many times */

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

GPU_FN uint32_t level_bytes(uint32_t n)
{
	return n / 64 * 16 + (n % 64 + 7) / 8 * 2;
}

/* 16 bytes at any address, by loads that are aligned. Nothing is read that shares no word of 4 with the bytes before end. */
GPU_FN gpu_u4 bytes_16(const uint8_t *at, const uint8_t *end)
{
	const uint32_t skip = (uint32_t)((uintptr_t)at % 4);
	uint64_t w[5];
	gpu_u4 v;

	if ((uintptr_t)at % 16 == 0 && at + 16 <= end)
		return gpu_load_16(at);
	GPU_UNROLL
	for (unsigned i = 0; i < 5; i++) {
		const uint8_t *word = at - skip + 4 * i;

		w[i] = word < end ? gpu_load_4(word) : 0;
	}
	v.x = (uint32_t)((w[1] << 32 | w[0]) >> 8 * skip);
	v.y = (uint32_t)((w[2] << 32 | w[1]) >> 8 * skip);
	v.z = (uint32_t)((w[3] << 32 | w[2]) >> 8 * skip);
	v.w = (uint32_t)((w[4] << 32 | w[3]) >> 8 * skip);
	return v;
}

/* The thread's group of a level of n codes: both planes. Behind the last code there is any, but no escape. */
GPU_FN void load_group(const uint8_t *level, uint32_t n, uint64_t plane[2])
{
	const uint32_t first = 64 * gpu_thread(), bytes = n - first < 64 ? (n - first + 7) / 8 : 8;
	gpu_u4 v;

	plane[0] = plane[1] = 0;
	if (first >= n)
		return;
	v = bytes_16(level + first / 4, level + level_bytes(n));
	plane[0] = (uint64_t)v.y << 32 | v.x;
	plane[1] = (uint64_t)v.w << 32 | v.z;
	if (bytes < 8)
		plane[1] = (plane[0] >> 8 * bytes | plane[1] << (64 - 8 * bytes)) & ((1ull << 8 * bytes) - 1);
}

/* next[l]: escapes of level l in groups before the thread's. sums [LEVELS][warps]: shared memory. Has one barrier. */
GPU_FN void count_before(const uint64_t plane[LEVELS][2], uint32_t *sums, uint32_t *next)
{
	GPU_UNROLL
	for (unsigned l = 0; l < LEVELS; l++) {
		const uint32_t mine = gpu_popcount(plane[l][0] & plane[l][1]);
		uint32_t sum = mine;

		GPU_UNROLL
		for (unsigned by = 1; by < GPU_WARP; by *= 2) {
			const uint32_t other = gpu_shuffle_up_u32(sum, by);

			if (gpu_lane() >= by)
				sum += other;
		}
		if (gpu_lane() == GPU_WARP - 1)
			sums[l * WARPS + gpu_warp()] = sum;
		next[l] = sum - mine;
	}
	gpu_sync();
	for (unsigned w = 0; w < gpu_warp(); w++) {
		GPU_UNROLL
		for (unsigned l = 0; l < LEVELS; l++)
			next[l] += sums[l * WARPS + w];
	}
}

/* A group's 64 bytes to `to`: of each code its symbol (symbols: three bytes), of an escape the next byte of the level below. A bit of
 * the planes becomes a number of a byte to pick, so four codes are looked up at once. */
GPU_FN void decode_group(const uint64_t plane[2], uint32_t symbols, const uint8_t *below, uint8_t *to)
{
	GPU_NO_UNROLL
	for (unsigned i = 0; i < 4; i++) {
		const uint32_t low = (uint32_t)(plane[0] >> 16 * i) & 0xffffu, high = (uint32_t)(plane[1] >> 16 * i) & 0xffffu;
		uint32_t word[4];
		gpu_u4 v;

		GPU_UNROLL
		for (unsigned j = 0; j < 4; j++) {
			uint32_t codes = (low >> 4 * j & 15) | (high >> 4 * j & 15) << 16; /* both halves: four bits to a nibble each */

			codes = (codes | codes << 6) & 0x03030303u;
			codes = (codes | codes << 3) & 0x11111111u;
			word[j] = gpu_pick_bytes(symbols, 0, codes | codes >> 15);
			GPU_UNROLL
			for (unsigned k = 0; k < 4; k++) {
				if ((low & high) >> (4 * j + k) & 1)
					word[j] = (word[j] & ~(255u << 8 * k)) | (uint32_t)*below++ << 8 * k;
			}
		}
		v.x = word[0], v.y = word[1], v.z = word[2], v.w = word[3];
		gpu_store_16(to + 16 * i, v);
	}
}

/* The exponents of a coded block, whose levels have n codes (n[LEVELS]: plain bytes), to e; other: as much room. The deepest level comes
 * first: its bytes are what the escapes of the level above stand for, and so on, from one place to the other and back. */
GPU_FN void decode(const uint8_t *chunk, const uint8_t *plain, const uint32_t *n, uint8_t *e, uint8_t *other)
{
	const uint8_t *level = plain + n[LEVELS];
	uint64_t plane[LEVELS][2];
	uint32_t next[LEVELS];

	GPU_UNROLL
	for (unsigned l = LEVELS; l-- > 0; level += level_bytes(n[l]))
		load_group(level, n[l], plane[l]);
	count_before(plane, (uint32_t *)(void *)other, next); /* other is not written before the barrier behind the deepest level */
	GPU_UNROLL
	for (unsigned l = LEVELS; l-- > 0;) {
		const uint8_t *s = chunk + 3 * l, *below = l == LEVELS - 1 ? plain : l % 2 == 0 ? other : e;

		if (64 * gpu_thread() < n[l])
			decode_group(plane[l], u16_at(s) | (uint32_t)s[2] << 16, below + next[l], (l % 2 == 0 ? e : other) + 64 * gpu_thread());
		if (l > 0)
			gpu_sync();
	}
}

/* Block `block` of a checked chunk as BF16 in shared memory: w [weights]. sm [weights]: its SM bytes, which are loaded while the
 * exponents are decoded. shared: GPU_PLANES_SHARED bytes, aligned to 16; no thread uses it any more. Ends with the block together. */
GPU_FN const uint16_t *gpu_planes_weights(const uint8_t *chunk, uint32_t block, uint32_t weights, const uint8_t *sm, uint8_t *shared)
{
	uint8_t *exponents = shared + GPU_PLANES_BLOCK;
	const uint8_t *at = chunk + u32_at(chunk + HEADER_BYTES + 4 * block);
	const uint32_t mine = 16 * gpu_thread();
	gpu_u4 e[EACH], s[EACH];
	uint32_t n[LEVELS + 1];

	/* No test whether a thread has any of the weights: what lies behind the last one is not used. */
	GPU_UNROLL
	for (unsigned i = 0; i < EACH; i++)
		s[i] = bytes_16(sm + mine + i * STRIDE, sm + weights);
	n[0] = weights;
	GPU_UNROLL
	for (unsigned l = 0; l < LEVELS; l++)
		n[l + 1] = u16_at(at + 2 * l);
	if (u16_at(at + 6) != 0) { /* raw */
		GPU_UNROLL
		for (unsigned i = 0; i < EACH; i++)
			gpu_store_16(exponents + mine + i * STRIDE, bytes_16(at + 8 + mine + i * STRIDE, at + 8 + weights));
	} else {
		decode(chunk, at + 8, n, exponents, shared);
	}
	gpu_sync();
	/* The weights take the place of the exponents: all of them are read first. */
	GPU_UNROLL
	for (unsigned i = 0; i < EACH; i++)
		e[i] = gpu_shared_16(exponents + mine + i * STRIDE);
	gpu_sync();
	GPU_UNROLL
	for (unsigned i = 0; i < EACH; i++) {
		uint8_t *to = shared + 2 * (mine + i * STRIDE);

		gpu_store_16(to, gpu_merged_8(e[i].x, e[i].y, s[i].x, s[i].y));
		gpu_store_16(to + 16, gpu_merged_8(e[i].z, e[i].w, s[i].z, s[i].w));
	}
	gpu_sync();
	return (const uint16_t *)(const void *)shared;
}

#undef HEADER_BYTES
#undef LEVELS
#undef WARPS
#undef STRIDE
#undef EACH

#endif

/* Lossless weights: what a load, or a product with coded weights, makes of SM bytes and exponents. */
#include "common/compute/cuda/gpu_planes.h"

#define THREADS 256u
#define EACH (GPU_MERGE_EACH / THREADS) /* elements of a thread */

GPU_KERNEL(gpu_merge, struct gpu_merge, THREADS)
{
	const uint64_t first = a.first + (uint64_t)gpu_block_x() * GPU_MERGE_EACH;
	const uint64_t end = a.end - first < GPU_MERGE_EACH ? a.end : first + GPU_MERGE_EACH;
	const bool whole = end - first == GPU_MERGE_EACH &&
			   (((uintptr_t)a.e + first) | ((uintptr_t)a.sm + first)) % 16 == 0 &&
			   ((uintptr_t)a.to + 2 * first) % 16 == 0;

	if (whole) {
		/* Eight weights at a time: so a warp writes whole lines. */
		const uint64_t at = first + 8 * gpu_thread();
		gpu_u2 e[EACH / 8], sm[EACH / 8];

		GPU_UNROLL
		for (unsigned i = 0; i < EACH / 8; i++)
			e[i] = gpu_load_8(a.e + at + 8 * THREADS * i), sm[i] = gpu_load_8(a.sm + at + 8 * THREADS * i);
		/* A launch of one block may write over SM bytes that its other threads read. */
		gpu_sync();
		GPU_UNROLL
		for (unsigned i = 0; i < EACH / 8; i++)
			gpu_store_16(a.to + at + 8 * THREADS * i, gpu_merged_8(e[i], sm[i]));
	} else {
		uint32_t v[EACH];

		GPU_UNROLL
		for (unsigned i = 0; i < EACH; i++) {
			const uint64_t at = first + gpu_thread() + i * THREADS;

			v[i] = at < end ? gpu_merged(a.e[at], a.sm[at]) : 0;
		}
		gpu_sync(); /* as above */
		GPU_UNROLL
		for (unsigned i = 0; i < EACH; i++) {
			const uint64_t at = first + gpu_thread() + i * THREADS;

			if (at < end)
				a.to[at] = (uint16_t)v[i];
		}
	}
}

/* ---- Planes ---- */

GPU_KERNEL(gpu_merge_planes, struct gpu_merge_planes, GPU_PLANES_THREADS)
{
	struct gpu_planes_block *b = (struct gpu_planes_block *)(void *)(gpu_shared() + GPU_PLANES_TASK);
	const uint32_t begin = gpu_block_y() * a.chunk_rows, block = a.first_block + gpu_block_x();
	const uint32_t rows = a.n_rows - begin < a.chunk_rows ? a.n_rows - begin : a.chunk_rows;
	uint32_t word[GPU_PLANES_WORDS], first, weights;
	uint64_t offset;
	bool aligned;

	if (!gpu_planes_span(rows * a.row, a.row, block, &first, &weights))
		return;
	if (gpu_warp() == 0) {
		const struct gpu_planes_block found =
			gpu_planes_find(a.coded + a.at[gpu_block_y()], block, weights, first + weights == rows * a.row);

		if (gpu_lane() == 0)
			*b = found;
	}
	gpu_sync(); /* the block's codes have been found */
	offset = (uint64_t)begin * a.row + first;
	aligned = (uintptr_t)(a.to + offset) % 16 == 0;
	gpu_planes_decode(b, a.sm + offset, gpu_shared(), word);
	gpu_sync(); /* all have read the codes: the weights take their memory */
	gpu_planes_store(gpu_shared(), word);
	gpu_sync(); /* a thread writes weights that others decoded */
	/* A warp writes whole lines. */
	GPU_UNROLL
	for (unsigned i = 0; i < GPU_PLANES_BLOCK / (8 * GPU_PLANES_THREADS); i++) {
		const uint32_t unit = i * GPU_PLANES_THREADS + gpu_thread();
		const gpu_u4 v = gpu_shared_16(gpu_shared() + gpu_planes_unit(unit / 8, unit % 8));
		const uint32_t w[4] = { v.x, v.y, v.z, v.w };

		if (aligned && 8 * unit + 8 <= weights) {
			gpu_store_16(a.to + offset + 8 * unit, v);
			continue;
		}
		GPU_UNROLL
		for (unsigned k = 0; k < 8; k++)
			if (8 * unit + k < weights)
				a.to[offset + 8 * unit + k] = (uint16_t)(w[k / 2] >> 16 * (k % 2));
	}
}

/* Lossless weights: what a load, or a product with coded weights, makes of SM bytes and exponents. */
#include "common/compute/cuda/gpu_planes.h"

#define THREADS 256u
#define EACH (GPU_MERGE_EACH / THREADS) /* of a thread */

GPU_KERNEL(gpu_merge, struct gpu_merge, THREADS)
{
	const uint64_t first = a.first + (uint64_t)gpu_block_x() * GPU_MERGE_EACH;
	const uint64_t end = a.end - first < GPU_MERGE_EACH ? a.end : first + GPU_MERGE_EACH;
	const bool whole = end - first == GPU_MERGE_EACH && (((uintptr_t)a.e + first) | ((uintptr_t)a.sm + first)) % 16 == 0 &&
			   ((uintptr_t)a.to + 2 * first) % 16 == 0;

	if (whole) {
		/* Eight weights at a time: so a warp writes whole lines. */
		const uint64_t at = first + 8 * gpu_thread();
		gpu_u2 e[EACH / 8], sm[EACH / 8];

		GPU_UNROLL
		for (unsigned i = 0; i < EACH / 8; i++)
			e[i] = gpu_load_8(a.e + at + 8 * THREADS * i), sm[i] = gpu_load_8(a.sm + at + 8 * THREADS * i);
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
		gpu_sync();
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
	const uint32_t begin = gpu_block_y() * a.chunk_rows;
	const uint32_t rows = a.n_rows - begin < a.chunk_rows ? a.n_rows - begin : a.chunk_rows;
	gpu_u2 sm[GPU_PLANES_UNITS];
	uint32_t first, weights;
	uint64_t place;
	bool aligned;

	if (!gpu_planes_span(rows * a.row, a.row, a.first_block + gpu_block_x(), &first, &weights))
		return;
	place = (uint64_t)begin * a.row + first;
	aligned = (uintptr_t)(a.to + place) % 16 == 0;
	gpu_planes_decode(a.coded + a.at[gpu_block_y()], a.first_block + gpu_block_x(), weights, a.sm + place, gpu_shared(), sm);
	GPU_UNROLL
	for (unsigned i = 0; i < GPU_PLANES_UNITS; i++) {
		const uint32_t at = 8 * gpu_thread() + i * GPU_PLANES_STRIDE;
		const gpu_u4 v = gpu_merged_8(gpu_planes_exponents(gpu_shared(), i), sm[i]);
		const uint32_t word[4] = { v.x, v.y, v.z, v.w };

		if (aligned && at + 8 <= weights) {
			gpu_store_16(a.to + place + at, v);
			continue;
		}
		GPU_UNROLL
		for (unsigned k = 0; k < 8; k++)
			if (at + k < weights)
				a.to[place + at + k] = (uint16_t)(word[k / 2] >> 16 * (k % 2));
	}
}

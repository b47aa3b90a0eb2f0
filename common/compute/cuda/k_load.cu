/* Lossless weights: what a load, or a product with coded weights, makes of SM bytes and exponents. */
#include "common/compute/cuda/gpu_planes.h"

#define THREADS 256u
#define EACH (GPU_MERGE_EACH / THREADS) /* of a thread */

/* Two weights from the lower two bytes. */
GPU_FN uint32_t merged_2(uint32_t e, uint32_t sm)
{
	return gpu_merged(e & 255u, sm & 255u) | gpu_merged(e >> 8 & 255u, sm >> 8 & 255u) << 16;
}

GPU_FN void store_16(uint16_t *to, uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
	gpu_u4 v;

	v.x = x, v.y = y, v.z = z, v.w = w;
	*(gpu_u4 *)(void *)to = v;
}

GPU_KERNEL(gpu_merge, struct gpu_merge, THREADS)
{
	const uint64_t first = a.first + (uint64_t)gpu_block_x() * GPU_MERGE_EACH;
	const uint64_t end = a.end - first < GPU_MERGE_EACH ? a.end : first + GPU_MERGE_EACH;
	const bool whole = end - first == GPU_MERGE_EACH && (((uintptr_t)a.e + first) | ((uintptr_t)a.sm + first)) % 16 == 0 &&
			   ((uintptr_t)a.to + 2 * first) % 16 == 0;

	if (whole) {
		const uint64_t at = first + gpu_thread() * EACH;
		const gpu_u4 e = gpu_load_16(a.e + at), sm = gpu_load_16(a.sm + at);

		gpu_sync();
		store_16(a.to + at, merged_2(e.x, sm.x), merged_2(e.x >> 16, sm.x >> 16), merged_2(e.y, sm.y), merged_2(e.y >> 16, sm.y >> 16));
		store_16(a.to + at + 8, merged_2(e.z, sm.z), merged_2(e.z >> 16, sm.z >> 16), merged_2(e.w, sm.w),
			 merged_2(e.w >> 16, sm.w >> 16));
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
	uint8_t *e = gpu_shared(), *sm = e + GPU_PLANES_BLOCK;
	const uint32_t begin = gpu_block_y() * a.chunk_rows;
	const uint32_t rows = a.n_rows - begin < a.chunk_rows ? a.n_rows - begin : a.chunk_rows;
	uint32_t first, weights;
	uint64_t place;

	if (!gpu_planes_span(rows * a.row, a.row, a.first_block + gpu_block_x(), &first, &weights))
		return;
	place = (uint64_t)begin * a.row + first;
	for (uint32_t i = gpu_thread(); i < weights; i += GPU_PLANES_THREADS)
		sm[i] = a.sm[place + i];
	gpu_planes_decode(a.coded + a.at[gpu_block_y()], a.first_block + gpu_block_x(), weights, e, sm + GPU_PLANES_BLOCK);
	for (uint32_t i = gpu_thread(); i < weights; i += GPU_PLANES_THREADS)
		a.to[place + i] = (uint16_t)gpu_merged(e[i], sm[i]);
}

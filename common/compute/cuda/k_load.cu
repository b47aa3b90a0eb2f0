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
		const uint64_t at = first + gpu_thread() * EACH;
		const gpu_u4 e = gpu_load_16(a.e + at), sm = gpu_load_16(a.sm + at);

		gpu_sync();
		gpu_store_16(a.to + at, gpu_merged_8(e.x, e.y, sm.x, sm.y));
		gpu_store_16(a.to + at + 8, gpu_merged_8(e.z, e.w, sm.z, sm.w));
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
	uint32_t first, weights, whole;
	const uint16_t *w;
	uint64_t place;

	if (!gpu_planes_span(rows * a.row, a.row, a.first_block + gpu_block_x(), &first, &weights))
		return;
	place = (uint64_t)begin * a.row + first;
	w = gpu_planes_weights(a.coded + a.at[gpu_block_y()], a.first_block + gpu_block_x(), weights, a.sm + place, gpu_shared());
	whole = (uintptr_t)(a.to + place) % 16 == 0 ? weights / 8 * 8 : 0;
	for (uint32_t i = 8 * gpu_thread(); i < whole; i += 8 * GPU_PLANES_THREADS)
		gpu_store_16(a.to + place + i, gpu_shared_16(w + i));
	for (uint32_t i = whole + gpu_thread(); i < weights; i += GPU_PLANES_THREADS)
		a.to[place + i] = w[i];
}

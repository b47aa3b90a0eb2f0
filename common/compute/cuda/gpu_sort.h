/* gpu_sort.h - sorts few pairs of a row and its choice by expert (struct gpu_sort), as a part of a kernel.
 *
 * A thread for each pair counts the pairs that come before its own: all choices are in shared memory then, so that no step waits for
 * global memory. All threads of the block call these, GPU_SORT_FEW of them.
 * Thread: device code. */
#ifndef OD_COMPUTE_GPU_SORT_H
#define OD_COMPUTE_GPU_SORT_H

#include "common/compute/cuda/gpu.h"
#include "common/compute/cuda/kernels.h"

#define GPU_SORT_WARPS (GPU_SORT_FEW / GPU_WARP)

struct gpu_sort_room { /* in shared memory, aligned to 16 */
	uint32_t key[GPU_SORT_FEW]; /* expert * GPU_SORT_FEW + pair: all are different, and their order is the result's */
	uint32_t starts[GPU_SORT_FEW]; /* of each place: a tile begins there */
	uint32_t tiles[GPU_SORT_WARPS], faults[GPU_SORT_WARPS]; /* bits, of places and of pairs */
};

/* Where a pair comes to stand. */
struct gpu_sorted {
	uint32_t begin, place, end; /* of its expert's run; its own */
	bool twice; /* the row has chosen the expert before */
};

GPU_FN struct gpu_sorted gpu_sorted_of(const struct gpu_sort *a, const struct gpu_sort_room *m, uint32_t expert, uint32_t pair)
{
	const uint32_t first = expert * GPU_SORT_FEW, mine = first + pair, row = first + pair / a->top_k * a->top_k;
	struct gpu_sorted s = { 0, 0, 0, false };
	uint32_t before_row = 0;

	for (uint32_t i = 0; i < a->n_rows * a->top_k; i += 4) { /* behind the last are keys that come after all */
		const gpu_u4 v = gpu_shared_16(m->key + i);
		const uint32_t key[4] = { v.x, v.y, v.z, v.w };

		GPU_UNROLL
		for (unsigned j = 0; j < 4; j++) {
			s.begin += key[j] < first;
			before_row += key[j] < row;
			s.place += key[j] < mine;
			s.end += key[j] < first + GPU_SORT_FEW;
		}
	}
	s.twice = s.place != before_row;
	return s;
}

/* Tiles that begin before a place. */
GPU_FN uint32_t gpu_tiles_before(const struct gpu_sort_room *m, uint32_t place)
{
	uint32_t n = 0;

	GPU_UNROLL
	for (unsigned w = 0; w < GPU_SORT_WARPS; w++) {
		const uint32_t at = w * GPU_WARP, some = place < at ? 0 : place - at;

		n += gpu_popcount(some < GPU_WARP ? m->tiles[w] & ((1u << some) - 1) : m->tiles[w]);
	}
	return n;
}

/* expert: the choice of the thread's pair; of threads behind the last one any. false: a choice is out of range, or there twice in a row;
 * then nothing was written. */
GPU_FN bool gpu_sort_pairs(const struct gpu_sort *a, struct gpu_sort_room *m, uint32_t expert)
{
	const uint32_t pairs = a->n_rows * a->top_k, i = gpu_thread();
	struct gpu_sorted s = { 0, 0, 0, false };
	uint32_t part, part_end, bad, index;
	bool starts;

	m->key[i] = i < pairs ? expert * GPU_SORT_FEW + i : UINT32_MAX;
	gpu_sync();
	if (i < pairs)
		s = gpu_sorted_of(a, m, expert, i);
	/* A run is cut where a round of `together` pairs ends, and each part from its beginning. */
	part = s.place / a->together * a->together;
	part_end = part + a->together < s.end ? part + a->together : s.end;
	part = part > s.begin ? part : s.begin;
	starts = (s.place - part) % a->rows == 0;
	if (i < pairs)
		m->starts[s.place] = starts;
	bad = gpu_ballot(i < pairs && (expert >= a->n_experts || s.twice));
	gpu_sync();
	index = gpu_ballot(i < pairs && m->starts[i] != 0);
	if (gpu_lane() == 0) {
		m->tiles[gpu_warp()] = index;
		m->faults[gpu_warp()] = bad;
	}
	gpu_sync();
	bad = 0;
	GPU_UNROLL
	for (unsigned w = 0; w < GPU_SORT_WARPS; w++)
		bad |= m->faults[w];
	if (bad != 0)
		return false;
	index = gpu_tiles_before(m, s.place);
	if (i < pairs) {
		a->pair[s.place] = i;
		if (starts) {
			a->tile[index].expert = expert;
			a->tile[index].first = s.place;
			a->tile[index].n = part_end - s.place < a->rows ? part_end - s.place : a->rows;
		}
		if (s.place % a->together == 0)
			a->tiles_before[s.place / a->together] = index;
	}
	if (i == 0)
		a->tiles_before[(pairs + a->together - 1) / a->together] = gpu_tiles_before(m, pairs);
	return true;
}

#endif

/* gpu_sort.h - choices of experts: their faults; the tile of a block; and few pairs of a row and its choice, sorted by expert (struct
 * gpu_sort).
 *
 * To sort, a thread for each pair counts the pairs that come before its own: all choices are in shared memory then, so that no step waits
 * for global memory. All threads of the block call what sorts, GPU_SORT_FEW of them.
 * Thread: device code. */
#ifndef OD_COMPUTE_GPU_SORT_H
#define OD_COMPUTE_GPU_SORT_H

#include "common/compute/cuda/gpu.h"
#include "common/compute/cuda/kernels.h"

/* Whether choice i is out of range, or the same as an earlier one of its row. */
GPU_FN uint32_t gpu_fault_of(const uint16_t *choice, uint32_t top_k, uint32_t n_experts, uint32_t i)
{
	bool twice = false;

	if (choice[i] >= n_experts)
		return GPU_FAULT_RANGE;
	GPU_UNROLL_N(8) /* without a way out, so that reads do not wait for each other */
	for (uint32_t j = i / top_k * top_k; j < i; j++)
		twice |= choice[j] == choice[i];
	return twice ? GPU_FAULT_TWICE : 0;
}

/* There is one. The first fault of the first kernel that has one is told. One thread calls this, and all kernels that do are in one
 * stream; the host may look at any time, so kind comes last. */
GPU_FN void gpu_tell_fault(const uint16_t *choice, uint32_t top_k, uint32_t n_experts, struct gpu_fault *fault)
{
	uint32_t i = 0;

	while (gpu_fault_of(choice, top_k, n_experts, i) == 0)
		i++;
	if (gpu_read_host_u32(&fault->kind) != 0)
		return;
	fault->expert = choice[i];
	fault->n_experts = n_experts;
	gpu_write_host_u32(&fault->kind, gpu_fault_of(choice, top_k, n_experts, i));
}

/* Of one row, by the first warp of its first launch. */
GPU_FN void gpu_check_choices(const struct gpu_expert_products *a)
{
	bool bad = false;

	if (a->down || a->first != 0 || gpu_block_x() != 0 || gpu_block_y() != 0 || gpu_warp() != 0)
		return;
	for (uint32_t i = gpu_lane(); i < a->top_k; i += GPU_WARP)
		bad |= gpu_fault_of(a->choice, a->top_k, a->n_experts, i) != 0;
	if (gpu_ballot(bad) != 0 && gpu_lane() == 0)
		gpu_tell_fault(a->choice, a->top_k, a->n_experts, a->fault);
}

/* The block's tile of a launcher for R rows; false: there is none. */
GPU_FN bool gpu_find_tile(const unsigned R, const struct gpu_expert_products *a, struct gpu_tile *tile)
{
	uint32_t index;

	if (R == 1) {
		tile->first = a->first + gpu_block_x();
		tile->n = 1;
		tile->expert = tile->first < a->top_k ? a->choice[tile->first] : a->n_experts;
		return tile->expert < a->n_experts;
	}
	index = (a->first == 0 ? 0 : a->tiles_before[0]) + gpu_block_x();
	*tile = a->tile[index]; /* any, if there is none */
	return (index < a->tiles_before[1]) & (tile->n > 0); /* none has no rows: this is so that both are asked for together */
}

/* Pair i of the sorted ones. */
GPU_FN uint32_t gpu_pair_at(const unsigned R, const struct gpu_expert_products *a, uint32_t i)
{
	return R == 1 ? i : a->pair[i];
}

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

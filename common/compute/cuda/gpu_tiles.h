/* gpu_tiles.h - what kernels of experts find of their work: the tile of a block, the pairs of it, and faults of
 * choices.
 *
 * Thread: device code. */
#ifndef OD_COMPUTE_GPU_TILES_H
#define OD_COMPUTE_GPU_TILES_H

#include "common/compute/cuda/gpu_rows.h"
#include "common/compute/cuda/kernels.h"

#define GPU_NO_EXPERT 0xffffu /* OD_NO_EXPERT: the choice is left out */

/* Whether choice i is out of range, or the same as an earlier one of its row. */
GPU_FN uint32_t gpu_fault_of(const uint16_t *choice, uint32_t top_k, uint32_t n_experts, uint32_t i)
{
	bool twice = false;

	if (choice[i] == GPU_NO_EXPERT)
		return 0;
	if (choice[i] >= n_experts)
		return GPU_FAULT_RANGE;
	GPU_UNROLL_N(8) /* without a way out, so that reads do not wait for each other */
	for (uint32_t j = i / top_k * top_k; j < i; j++)
		twice |= choice[j] == choice[i];
	return twice ? GPU_FAULT_TWICE : 0;
}

/* There is one. The first fault of the first kernel that has one is told. One thread calls this, and all kernels that
 * do are in one stream; the host may look at any time, so kind comes last. */
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

/* Checks one row's choices, by the first warp of its first launch. */
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
	/* none has no rows: this is so that both are asked for together */
	return (index < a->tiles_before[1]) & (tile->n > 0);
}

/* Pair i of the sorted ones. */
GPU_FN uint32_t gpu_pair_at(const unsigned R, const struct gpu_expert_products *a, uint32_t i)
{
	return R == 1 ? i : a->pair[i];
}

/* An expert's output i: what gpu_expert_down_end would make of it. */
GPU_FN float gpu_end_down(const struct gpu_expert_products *a, const struct gpu_expert *e, uint32_t i, float y)
{
	if (e->bias[GPU_DOWN].at != NULL)
		y += gpu_vector_at(&e->bias[GPU_DOWN], i);
	return a->round ? gpu_round_bf16(y) : y;
}

#endif

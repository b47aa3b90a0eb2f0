/* Which rows go to which expert, and what is done to them beside products (OD_OP_EXPERTS). */
#include "common/compute/cuda/gpu_rows.h"

/* Sum of v of the threads before this one; *all: of all. shared: [GPU_SORT_THREADS / GPU_WARP + 1]. */
GPU_FN uint32_t sum_before(uint32_t v, uint32_t *shared, uint32_t *all)
{
	const uint32_t sum = gpu_sum_up(v);
	uint32_t base = 0;

	if (gpu_lane() == GPU_WARP - 1)
		shared[gpu_warp()] = sum;
	gpu_sync();
	*all = 0;
	for (unsigned w = 0; w < GPU_SORT_THREADS / GPU_WARP; w++) {
		base += w < gpu_warp() ? shared[w] : 0;
		*all += shared[w];
	}
	gpu_sync();
	return base + sum - v;
}

/* Whether choice i is out of range, or the same as an earlier one of its row. */
GPU_FN uint32_t fault_of(const struct gpu_sort *a, uint32_t i)
{
	if (a->choice[i] >= a->n_experts)
		return GPU_FAULT_RANGE;
	for (uint32_t j = i / a->top_k * a->top_k; j < i; j++)
		if (a->choice[j] == a->choice[i])
			return GPU_FAULT_TWICE;
	return 0;
}

/* The first fault of the first kernel that has one is told. Only this thread writes it, since all kernels that sort are in one stream;
 * the host may look at any time, so kind comes last. */
GPU_FN void tell_fault(const struct gpu_sort *a)
{
	uint32_t i = 0;

	while (fault_of(a, i) == 0)
		i++;
	if (gpu_read_host_u32(&a->fault->kind) != 0)
		return;
	a->fault->expert = a->choice[i];
	a->fault->n_experts = a->n_experts;
	gpu_write_host_u32(&a->fault->kind, fault_of(a, i));
}

GPU_FN bool choices_are_valid(const struct gpu_sort *a, uint32_t *shared)
{
	uint32_t bad = 0;

	for (uint32_t i = gpu_thread(); i < a->n_rows * a->top_k; i += GPU_SORT_THREADS)
		bad |= fault_of(a, i) != 0;
	(void)sum_before(bad, shared, &bad);
	if (bad > 0 && gpu_thread() == 0)
		tell_fault(a);
	return bad == 0;
}

/* Tiles of an expert's run [begin, end): cut at multiples of together, counted from pair 0, and then every `rows`. */
GPU_FN uint32_t tiles_in(const struct gpu_sort *a, uint32_t begin, uint32_t end)
{
	uint32_t n = 0;

	for (uint32_t at = begin, part; at < end; at = part) {
		part = (at / a->together + 1) * a->together;
		part = part < end ? part : end;
		n += (part - at + a->rows - 1) / a->rows;
	}
	return n;
}

GPU_FN void put_tiles(const struct gpu_sort *a, uint32_t expert, uint32_t begin, uint32_t end, struct gpu_tile *tile)
{
	for (uint32_t at = begin, part; at < end; at = part) {
		part = (at / a->together + 1) * a->together;
		part = part < end ? part : end;
		for (uint32_t i = at; i < part; i += a->rows, tile++) {
			tile->expert = expert;
			tile->first = i;
			tile->n = part - i < a->rows ? part - i : a->rows;
		}
	}
}

GPU_ROOMY_KERNEL(gpu_sort, struct gpu_sort, GPU_SORT_THREADS)
{
	uint32_t *shared = (uint32_t *)(void *)gpu_shared(), pairs = a.n_rows * a.top_k, done = 0, tiles = 0;
	const uint32_t rounds = (pairs + a.together - 1) / a.together;

	for (uint32_t i = gpu_thread(); i <= rounds; i += GPU_SORT_THREADS)
		a.tiles_before[i] = 0;
	if (!choices_are_valid(&a, shared))
		return;
	/* A thread for each expert: it finds its rows in order. */
	for (uint32_t first = 0; first < a.n_experts; first += GPU_SORT_THREADS) {
		const uint32_t e = first + gpu_thread();
		uint32_t n = 0, begin, all, mine, before;

		for (uint32_t i = 0; e < a.n_experts && i < pairs; i++)
			n += a.choice[i] == e;
		begin = done + sum_before(n, shared, &all);
		done += all;
		for (uint32_t i = 0, at = begin; n > 0 && i < pairs; i++)
			if (a.choice[i] == e)
				a.pair[at++] = i;
		if (e < a.n_experts)
			a.end[e] = begin + n;
		mine = tiles_in(&a, begin, begin + n);
		before = tiles + sum_before(mine, shared, &all);
		put_tiles(&a, e, begin, begin + n, a.tile + before);
		/* Of whom a round's first pair is says how many tiles are before the round. */
		for (uint32_t r = (begin + a.together - 1) / a.together; n > 0 && r * a.together < begin + n; r++)
			a.tiles_before[r] = before + tiles_in(&a, begin, r * a.together);
		tiles += all;
	}
	gpu_sync();
	if (gpu_thread() == 0)
		a.tiles_before[rounds] = tiles;
}

/* The block's pair of a round; false: there is none. */
GPU_FN bool find_pair(const struct gpu_expert_rows *a, uint32_t *at, const struct gpu_expert **expert)
{
	const uint32_t index = a->tiles_before[0] + gpu_block_y() / a->rows, r = gpu_block_y() % a->rows;

	if (index >= a->tiles_before[1] || r >= a->tile[index].n)
		return false;
	*at = a->tile[index].first + r;
	*expert = &a->expert[a->tile[index].expert];
	return true;
}

GPU_KERNEL(gpu_expert_act, struct gpu_expert_rows, GPU_ROW_THREADS)
{
	const uint32_t i = gpu_block_x() * GPU_ROW_THREADS + gpu_thread();
	const struct gpu_expert *e;
	uint32_t at;
	float g, u;

	if (!find_pair(&a, &at, &e) || i >= a.n)
		return;
	g = a.gate[(size_t)(at - a.first) * a.n + i];
	u = a.up[(size_t)(at - a.first) * a.n + i];
	if (e->bias[GPU_GATE].at != NULL) {
		g += gpu_vector_at(&e->bias[GPU_GATE], i);
		u += gpu_vector_at(&e->bias[GPU_UP], i);
	}
	a.gate[(size_t)(at - a.first) * a.n + i] = gpu_activation(a.act, g, u, a.limit);
}

GPU_KERNEL(gpu_expert_down_end, struct gpu_expert_rows, GPU_ROW_THREADS)
{
	const uint32_t i = gpu_block_x() * GPU_ROW_THREADS + gpu_thread();
	const struct gpu_expert *e;
	uint32_t at;
	float *y;

	if (!find_pair(&a, &at, &e) || i >= a.n)
		return;
	y = a.y + (size_t)a.pair[at] * a.n + i;
	if (e->bias[GPU_DOWN].at != NULL)
		*y += gpu_vector_at(&e->bias[GPU_DOWN], i);
	if (a.round)
		*y = gpu_round_bf16(*y);
}

/* Products of rows with weights that stay coded (OD_OP_EXPERTS): a block of threads decodes some rows of weights to shared memory, and
 * multiplies them with all rows of x of a tile. So a resident expert takes two thirds of the memory, and of its bandwidth. */
#include "common/compute/cuda/gpu_planes.h"

/* Rows of a block of planes; a longer row has several, one after the other. */
GPU_FN uint32_t block_rows(uint32_t row)
{
	return row > GPU_PLANES_BLOCK ? 1 : GPU_PLANES_BLOCK / row;
}

/* A piece of the rows [first, first + n_rows) of weights: columns [k, k + n). */
struct piece {
	const struct gpu_mat *m;
	const uint8_t *e; /* decoded, n for each row; shared memory */
	uint32_t first, n_rows, k, n;
};

/* sum[r] += of the thread's output and lane; outputs by 16 threads each. */
GPU_FN void add_piece(const unsigned R, const struct piece *p, uint32_t output, const float *const *x, float *sum)
{
	const uint8_t *e = p->e + output * p->n, *sm = p->m->data + (uint64_t)(p->first + output) * p->m->n_in + p->k;

	for (uint32_t i = gpu_lane() % GPU_LANES; i < p->n; i += GPU_LANES) {
		const float w = gpu_bf16(gpu_merged(e[i], sm[i]));

		GPU_UNROLL
		for (unsigned r = 0; r < R; r++)
			sum[r] = fmaf(w, x[r][p->k + i], sum[r]);
	}
}

/* The rows of a tile. Those behind the last one are as that, and not stored. */
GPU_FN const float *x_of(const struct gpu_expert_products *a, const struct gpu_tile *tile, uint32_t r)
{
	const uint32_t at = tile->first + (r < tile->n ? r : tile->n - 1);

	return a->down ? a->gate + (size_t)(at - a->first) * a->intermediate : a->x + (size_t)(a->pair[at] / a->top_k) * a->hidden;
}

GPU_FN float *y_of(const struct gpu_expert_products *a, const struct gpu_tile *tile, bool up, uint32_t r)
{
	const uint32_t at = tile->first + r;

	return a->down ? a->y + (size_t)a->pair[at] * a->hidden : (up ? a->up : a->gate) + (size_t)(at - a->first) * a->intermediate;
}

#define OUTPUTS (GPU_PLANES_THREADS / GPU_LANES) /* at a time */

/* All products of block `block` of m. Those of a long row go on from piece to piece, which begin at multiples of 16. */
GPU_FN void rows_of(const unsigned R, const struct gpu_expert_products *a, const struct gpu_tile *tile, const struct gpu_mat *m, bool up,
		    uint32_t block)
{
	uint8_t *e = gpu_shared(), *scratch = e + GPU_PLANES_BLOCK;
	const uint32_t row = m->n_in, each = block_rows(row), in_chunk = (m->chunk_rows + each - 1) / each;
	const uint32_t chunk = block / in_chunk, begin = chunk * m->chunk_rows;
	const uint32_t rows = m->n_out - begin < m->chunk_rows ? m->n_out - begin : m->chunk_rows;
	const uint32_t pieces = row > GPU_PLANES_BLOCK ? (row + GPU_PLANES_BLOCK - 1) / GPU_PLANES_BLOCK : 1;
	const float *x[GPU_PRODUCT_ROWS];
	const uint8_t *at;
	struct piece p;

	p.m = m;
	p.e = e;
	p.first = begin + block % in_chunk * each;
	if (begin >= m->n_out || p.first >= begin + rows)
		return;
	p.n_rows = begin + rows - p.first < each ? begin + rows - p.first : each;
	at = m->coded + m->chunk_at[chunk];
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++)
		x[r] = x_of(a, tile, r);
	for (uint32_t first = 0; first < p.n_rows; first += OUTPUTS) {
		const uint32_t output = first + gpu_thread() / GPU_LANES;
		float sum[GPU_PRODUCT_ROWS];

		GPU_UNROLL
		for (unsigned r = 0; r < R; r++)
			sum[r] = 0;
		for (uint32_t i = 0; i < pieces; i++) {
			p.k = i * GPU_PLANES_BLOCK;
			p.n = pieces > 1 ? (row - p.k < GPU_PLANES_BLOCK ? row - p.k : GPU_PLANES_BLOCK) : row;
			if (first == 0) {
				gpu_sync(); /* the piece before has been used */
				gpu_planes_decode(at, block % in_chunk * pieces + i, p.n * p.n_rows, e, scratch);
			}
			if (output < p.n_rows)
				add_piece(R, &p, output, x, sum);
		}
		GPU_UNROLL
		for (unsigned r = 0; r < R; r++) {
			const float v = gpu_canonical(gpu_fold_each(sum[r]));

			if (r < tile->n && output < p.n_rows && gpu_lane() % GPU_LANES == 0)
				y_of(a, tile, up, r)[p.first + output] = v;
		}
	}
}

GPU_FN void expert_planes_of(const unsigned R, const struct gpu_expert_products *a)
{
	const uint32_t index = a->tiles_before[0] + gpu_block_y(), half = gpu_grid_x() / 2;
	const bool up = !a->down && gpu_block_x() >= half;
	const struct gpu_tile *tile;
	const struct gpu_mat *m;

	if (index >= a->tiles_before[1])
		return;
	tile = &a->tile[index];
	m = &a->expert[tile->expert].mat[a->down ? GPU_DOWN : up ? GPU_UP : GPU_GATE];
	if (m->form == GPU_PLANES)
		rows_of(R, a, tile, m, up, gpu_block_x() - (up ? half : 0));
}

#define EXPERT_PLANES(rows)                                                                          \
	GPU_KERNEL(gpu_expert_planes_##rows, struct gpu_expert_products, GPU_PLANES_THREADS)         \
	{                                                                                            \
		expert_planes_of(rows, &a);                                                          \
	}

EXPERT_PLANES(1)
EXPERT_PLANES(2)
EXPERT_PLANES(4)
EXPERT_PLANES(8)

gpu_expert_products_fn *const gpu_expert_planes[4] = { gpu_expert_planes_1, gpu_expert_planes_2, gpu_expert_planes_4, gpu_expert_planes_8 };

uint32_t gpu_planes_blocks(uint32_t n_out, uint32_t n_in, uint32_t chunk_rows)
{
	const uint32_t each = n_in > GPU_PLANES_BLOCK ? 1 : GPU_PLANES_BLOCK / n_in, in_chunk = (chunk_rows + each - 1) / each;

	return (n_out + chunk_rows - 1) / chunk_rows * in_chunk;
}

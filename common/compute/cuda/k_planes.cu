/* Products of rows with weights that stay coded (OD_OP_EXPERTS, and steps of few rows of OD_OP_LINEAR and OD_OP_FFN): a block of threads
 * decodes some rows of weights to BF16 in shared memory, and multiplies them with all rows of x of a tile. So a resident expert takes two
 * thirds of the memory, and of its bandwidth. */
#include "common/compute/cuda/gpu_planes.h"

#define GROUPS (GPU_PLANES_THREADS / GPU_LANES) /* a group of threads has an output; each of its threads has a lane */

/* A matrix with planes, or some chunks of it. */
struct planes {
	const uint8_t *sm, *coded;
	const uint64_t *chunk_at; /* from coded */
	uint32_t n_out, n_in, chunk_rows;
};

/* The rows of x of a tile, and where their products go. Row r is r of x and of y, or of an expert what the pairs say. */
struct rows {
	const float *x;
	float *y;
	uint64_t x_stride, y_stride;
	const uint32_t *x_pair, *y_pair; /* NULL: r */
	uint32_t top_k, n;
};

/* Those behind the last row are as that, and not stored. */
GPU_FN const float *x_of(const struct rows *rows, uint32_t r)
{
	const uint32_t at = r < rows->n ? r : rows->n - 1;

	return rows->x + (rows->x_pair != NULL ? rows->x_pair[at] / rows->top_k : at) * rows->x_stride;
}

/* All threads; v: the thread's lane of the sum. */
GPU_FN void end_sum(const struct rows *rows, uint32_t r, uint32_t output, bool is_output, float v)
{
	const float y = gpu_canonical(gpu_fold_each(v));

	if (is_output && r < rows->n && gpu_thread() % GPU_LANES == 0)
		rows->y[(rows->y_pair != NULL ? rows->y_pair[r] : r) * rows->y_stride + output] = y;
}

/* sum[r] += the thread's lane of n weights times x[r]. Some steps are read before they are used. */
GPU_FN void add_lane(const unsigned R, const uint16_t *w, const float *const *x, uint32_t n, float *sum)
{
	const uint32_t steps = GPU_PRODUCT_ROWS / R;
	uint32_t i = gpu_thread() % GPU_LANES;

	GPU_NO_UNROLL
	for (; i + (steps - 1) * GPU_LANES < n; i += steps * GPU_LANES) {
		GPU_UNROLL
		for (uint32_t s = 0; s < steps; s++) {
			GPU_UNROLL
			for (unsigned r = 0; r < R; r++)
				sum[r] = fmaf(gpu_bf16(w[i + s * GPU_LANES]), x[r][i + s * GPU_LANES], sum[r]);
		}
	}
	GPU_NO_UNROLL
	for (; i < n; i += GPU_LANES) {
		GPU_UNROLL
		for (unsigned r = 0; r < R; r++)
			sum[r] = fmaf(gpu_bf16(w[i]), x[r][i], sum[r]);
	}
}

/* Rows w [n][n_in] of weights, the first of which is output `first`: a group has all R rows of an output. */
GPU_FN void many_outputs(const unsigned R, const struct rows *rows, const uint16_t *w, uint32_t first, uint32_t n, uint32_t n_in)
{
	const float *x[GPU_PRODUCT_ROWS];

	GPU_UNROLL
	for (unsigned r = 0; r < R; r++)
		x[r] = x_of(rows, r);
	GPU_NO_UNROLL
	for (uint32_t at = 0; at < n; at += GROUPS) {
		const uint32_t i = at + gpu_thread() / GPU_LANES;
		float sum[GPU_PRODUCT_ROWS];

		GPU_UNROLL
		for (unsigned r = 0; r < R; r++)
			sum[r] = 0;
		if (i < n)
			add_lane(R, w + i * n_in, x, n_in, sum);
		GPU_UNROLL
		for (unsigned r = 0; r < R; r++)
			end_sum(rows, r, first + i, i < n, sum[r]);
	}
}

/* All products of block `block` of m, which is some rows; or a row in several pieces, which begin at multiples of 16. With few
 * outputs each group of threads has one row of x: a sum's lanes cannot be shared by more threads, so more rows at a time take longer. */
GPU_FN void products_of(const unsigned R, const struct planes *m, const struct rows *rows, uint32_t block)
{
	const uint32_t row = m->n_in, each = row > GPU_PLANES_BLOCK ? 1 : GPU_PLANES_BLOCK / row;
	const uint32_t pieces = (row + GPU_PLANES_BLOCK - 1) / GPU_PLANES_BLOCK, in_chunk = (m->chunk_rows + each - 1) / each;
	const uint32_t chunk = block / in_chunk, begin = chunk * m->chunk_rows, first = begin + block % in_chunk * each;
	const uint32_t end = m->n_out - begin < m->chunk_rows ? m->n_out : begin + m->chunk_rows, n = end - first < each ? end - first : each;
	const uint32_t i = gpu_thread() / GPU_LANES / R, r = gpu_thread() / GPU_LANES % R;
	const bool few = n * R <= GROUPS;
	const uint16_t *w = NULL;
	float sum = 0;

	if (begin >= m->n_out || first >= end)
		return;
	GPU_NO_UNROLL
	for (uint32_t k = 0; k < row; k += GPU_PLANES_BLOCK) {
		const uint32_t length = row - k < GPU_PLANES_BLOCK ? row - k : GPU_PLANES_BLOCK;

		if (k > 0)
			gpu_sync(); /* the piece before has been used */
		w = gpu_planes_weights(m->coded + m->chunk_at[chunk], block % in_chunk * pieces + k / GPU_PLANES_BLOCK, length * n,
				       m->sm + (uint64_t)first * row + k, gpu_shared());
		if (few && i < n && r < rows->n) {
			const float *x = x_of(rows, r) + k;

			add_lane(1, w + i * length, &x, length, &sum);
		}
	}
	if (few)
		end_sum(rows, r, first + i, i < n, sum);
	else
		many_outputs(R, rows, w, first, n, row);
}

/* ---- Matrices that the host names ---- */

GPU_FN void listed_products_of(const unsigned R, const struct gpu_planes_products *a)
{
	const struct gpu_planes_product *p;
	struct planes m;
	struct rows rows;
	uint32_t i = 0;

	while (i + 1 < a->n && a->p[i + 1].first_block <= gpu_block_x())
		i++;
	p = &a->p[i];
	m.sm = p->sm, m.coded = p->coded, m.chunk_at = a->chunk_at + p->first_chunk;
	m.n_out = p->n_out, m.n_in = p->n_in, m.chunk_rows = p->chunk_rows;
	rows.x = p->x, rows.x_stride = p->n_in, rows.x_pair = NULL;
	rows.y = p->y, rows.y_stride = p->y_stride, rows.y_pair = NULL;
	rows.top_k = 1, rows.n = p->n_rows;
	products_of(R, &m, &rows, gpu_block_x() - p->first_block);
}

/* ---- Experts: which, the device has found out (k_experts.cu) ---- */

GPU_FN void expert_products_of(const unsigned R, const struct gpu_expert_products *a)
{
	const uint32_t index = a->tiles_before[0] + gpu_block_y(), half = gpu_grid_x() / 2;
	const bool up = !a->down && gpu_block_x() >= half;
	const struct gpu_tile *tile;
	const struct gpu_mat *mat;
	struct planes m;
	struct rows rows;

	if (index >= a->tiles_before[1])
		return;
	tile = &a->tile[index];
	mat = &a->expert[tile->expert].mat[a->down ? GPU_DOWN : up ? GPU_UP : GPU_GATE];
	if (mat->form != GPU_PLANES)
		return;
	m.sm = mat->data, m.coded = mat->coded, m.chunk_at = mat->chunk_at;
	m.n_out = mat->n_out, m.n_in = mat->n_in, m.chunk_rows = mat->chunk_rows;
	rows.top_k = a->top_k, rows.n = tile->n;
	if (a->down) {
		rows.x = a->gate + (size_t)(tile->first - a->first) * a->intermediate, rows.x_stride = a->intermediate, rows.x_pair = NULL;
		rows.y = a->y, rows.y_stride = a->hidden, rows.y_pair = a->pair + tile->first;
	} else {
		rows.x = a->x, rows.x_stride = a->hidden, rows.x_pair = a->pair + tile->first;
		rows.y = (up ? a->up : a->gate) + (size_t)(tile->first - a->first) * a->intermediate, rows.y_stride = a->intermediate;
		rows.y_pair = NULL;
	}
	products_of(R, &m, &rows, gpu_block_x() - (up ? half : 0));
}

/* While a block waits for memory or multiplies with few threads, others decode. */
#define PLANES(rows)                                                                                     \
	GPU_DENSE_KERNEL(gpu_planes_products_##rows, struct gpu_planes_products, GPU_PLANES_THREADS, 4)  \
	{                                                                                                \
		listed_products_of(rows, &a);                                                            \
	}                                                                                                \
	GPU_DENSE_KERNEL(gpu_expert_planes_##rows, struct gpu_expert_products, GPU_PLANES_THREADS, 4)    \
	{                                                                                                \
		expert_products_of(rows, &a);                                                            \
	}

PLANES(1)
PLANES(2)
PLANES(4)
PLANES(8)

#define NAMES(kernel) \
	{ kernel##_1, kernel##_2, kernel##_4, kernel##_8 }

gpu_planes_products_fn *const gpu_planes_products[4] = NAMES(gpu_planes_products);
gpu_expert_products_fn *const gpu_expert_planes[4] = NAMES(gpu_expert_planes);

uint32_t gpu_planes_blocks(uint32_t n_out, uint32_t n_in, uint32_t chunk_rows)
{
	const uint32_t each = n_in > GPU_PLANES_BLOCK ? 1 : GPU_PLANES_BLOCK / n_in, in_chunk = (chunk_rows + each - 1) / each;

	return (n_out + chunk_rows - 1) / chunk_rows * in_chunk;
}

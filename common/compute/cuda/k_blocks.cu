/* Products of rows with weights of GGUF's formats of blocks (OD_OP_LINEAR, and the matrices of OD_OP_FFN and
 * OD_OP_EXPERTS), and rows of embeddings of these formats (OD_OP_EMBED).
 *
 * Blocks have no alignment and several fields, so a thread decodes some neighbours at a time, and a warp's threads
 * exchange values in shared memory: each weight is decoded once for all rows of x. Then a thread has two of the 16
 * lanes (backend.h) of an output. Products are those of the same weights as F32. */
#include "common/compute/cuda/gpu_blocks.h"
#include "common/compute/cuda/gpu_rows.h"
#include "common/compute/cuda/gpu_tiles.h"

#define THREADS 128u
#define LANES 2u /* lanes of a thread */
#define SHARE (GPU_LANES / LANES) /* threads of an output, which are neighbours */
#define WARP_OUTS (GPU_WARP / SHARE)
#define COLUMNS (GPU_RUN * GPU_WARP) /* weights of an output that a warp decodes at a time */
#define STRIDE (COLUMNS + GPU_LANES) /* two outputs that are read together are in different banks */
#define WARP_FLOATS (WARP_OUTS * STRIDE)

static_assert(THREADS / GPU_WARP * WARP_OUTS == GPU_PRODUCT_OUTS, "grids are those of all products");

/* A warp's outputs and rows. */
struct block_work {
	const unsigned char *data;
	uint64_t row_bytes;
	uint32_t format, n_out, n_in, first; /* first: the warp's first output */
	const float *x[GPU_PRODUCT_ROWS]; /* from the thread's lanes on; rows behind the last one repeat it */
	bool in_pairs; /* all x are aligned to two floats */
};

GPU_FN void begin_work(struct block_work *w, const struct gpu_mat *m, uint32_t first)
{
	w->data = m->data;
	w->row_bytes = m->row_bytes;
	w->format = m->format;
	w->n_out = m->n_out;
	w->n_in = m->n_in;
	w->first = first + gpu_warp() * WARP_OUTS;
	w->in_pairs = true;
}

GPU_FN void set_x(struct block_work *w, unsigned r, const float *x)
{
	w->x[r] = x + gpu_lane() % SHARE * LANES;
	w->in_pairs = w->in_pairs && (uintptr_t)x % (LANES * sizeof(float)) == 0;
}

GPU_FN void store_run(float *at, const float *v)
{
	GPU_UNROLL
	for (unsigned i = 0; i < GPU_RUN; i += 4) {
		gpu_f4 four;

		four.x = v[i], four.y = v[i + 1], four.z = v[i + 2], four.w = v[i + 3];
		gpu_store_f4(at + i, four);
	}
}

/* Columns [k, k + n) of the warp's outputs; outputs past the last repeat it, and are discarded. */
GPU_FN void decode(const struct block_work *w, uint32_t k, uint32_t n, float *to)
{
	GPU_NO_UNROLL
	for (uint32_t j = 0; j < WARP_OUTS; j++) {
		const uint32_t out = w->first + j < w->n_out ? w->first + j : w->n_out - 1;
		float v[GPU_RUN];

		if (gpu_lane() * GPU_RUN >= n)
			continue;
		gpu_block_run(w->format, w->data + out * w->row_bytes, k / GPU_RUN + gpu_lane(), v);
		store_run(to + j * STRIDE + gpu_lane() * GPU_RUN, v);
	}
}

/* sum [R][LANES] */
GPU_FN void add_columns(const unsigned R, const struct block_work *w, uint32_t k, uint32_t n, const float *weights,
			float *sum)
{
	const float *at = weights + gpu_lane() / SHARE * STRIDE + gpu_lane() % SHARE * LANES;

	GPU_UNROLL_N(2)
	for (uint32_t i = 0; i < n; i += GPU_LANES) {
		const gpu_f2 by = gpu_shared_f2(at + i);

		GPU_UNROLL
		for (unsigned r = 0; r < R; r++) {
			const float *x = w->x[r] + k + i;
			gpu_f2 v;

			if (w->in_pairs)
				v = gpu_load_f2(x);
			else
				v.x = gpu_load_f1(x), v.y = gpu_load_f1(x + 1);
			sum[r * LANES] = fmaf(by.x, v.x, sum[r * LANES]);
			sum[r * LANES + 1] = fmaf(by.y, v.y, sum[r * LANES + 1]);
		}
	}
}

/* Rows are whole blocks, so all columns are whole steps of 16. */
GPU_FN void add_all(const unsigned R, const struct block_work *w, float *sum)
{
	float *weights = (float *)(void *)gpu_shared() + gpu_warp() * WARP_FLOATS;

	GPU_UNROLL
	for (unsigned i = 0; i < R * LANES; i++)
		sum[i] = 0;
	GPU_NO_UNROLL
	for (uint32_t k = 0; k < w->n_in; k += COLUMNS) {
		const uint32_t n = w->n_in - k < COLUMNS ? w->n_in - k : COLUMNS;

		gpu_sync_warp(); /* all have read the weights before */
		decode(w, k, n, weights);
		gpu_sync_warp(); /* the weights are there */
		add_columns(R, w, k, n, weights, sum);
	}
}

/* The thread's output of row r. All lanes of the warp call this; one of those that share it stores it: *stores. */
GPU_FN float end_sum(const struct block_work *w, const float *sum, unsigned r, bool *stores)
{
	*stores = w->first + gpu_lane() / SHARE < w->n_out && gpu_lane() % SHARE == 0;
	return gpu_canonical(gpu_fold(sum + r * LANES, LANES));
}

GPU_FN void products_of(const unsigned R, const struct gpu_products *a)
{
	const uint32_t first = gpu_block_x() * R;
	float sum[GPU_PRODUCT_ROWS * LANES];
	const struct gpu_product *p;
	struct block_work w;
	uint32_t i = 0, n;

	while (i + 1 < a->n && a->p[i + 1].first_block <= gpu_block_y())
		i++;
	p = &a->p[i];
	if (first >= p->n_rows)
		return;
	n = p->n_rows - first < R ? p->n_rows - first : R;
	begin_work(&w, &p->w, (gpu_block_y() - p->first_block) * GPU_PRODUCT_OUTS);
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++)
		set_x(&w, r, p->x + (first + (r < n ? r : n - 1)) * p->x_stride);
	add_all(R, &w, sum);
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++) {
		bool stores;
		const float y = end_sum(&w, sum, r, &stores);

		if (stores && r < n)
			p->y[(first + r) * p->y_stride + w.first + gpu_lane() / SHARE] = y;
	}
}

GPU_FN void expert_products_of(const unsigned R, const struct gpu_expert_products *a)
{
	const uint32_t n_out = a->down ? a->hidden : a->intermediate,
		       blocks = (n_out + GPU_PRODUCT_OUTS - 1) / GPU_PRODUCT_OUTS;
	const bool up = !a->down && gpu_block_y() >= blocks;
	float sum[GPU_PRODUCT_ROWS * LANES];
	uint32_t pair[GPU_PRODUCT_ROWS];
	const struct gpu_expert *e;
	const struct gpu_mat *m;
	struct gpu_tile tile;
	struct block_work w;

	if (!gpu_find_tile(R, a, &tile))
		return;
	e = &a->expert[tile.expert];
	m = &e->mat[a->down ? GPU_DOWN : up ? GPU_UP : GPU_GATE];
	if (m->coding != GPU_BLOCKS)
		return;
	begin_work(&w, m, (gpu_block_y() - (up ? blocks : 0)) * GPU_PRODUCT_OUTS);
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++) {
		const uint32_t at = tile.first + (r < tile.n ? r : tile.n - 1);

		pair[r] = gpu_pair_at(R, a, at);
		set_x(&w, r,
		      a->down ? a->gate + (size_t)(at - a->first) * a->intermediate :
				a->x + (size_t)(pair[r] / a->top_k) * a->hidden);
	}
	add_all(R, &w, sum);
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++) {
		const uint32_t out = w.first + gpu_lane() / SHARE;
		bool stores;
		const float y = end_sum(&w, sum, r, &stores);

		if (!stores || r >= tile.n)
			continue;
		if (a->down)
			a->y[(size_t)pair[r] * a->hidden + out] = a->ends ? gpu_end_down(a, e, out, y) : y;
		else
			(up ? a->up : a->gate)[(size_t)(tile.first + r - a->first) * a->intermediate + out] = y;
	}
}

/* Blocks of a multiprocessor: as many as get on without spilled registers. */
#define BLOCKS(rows) ((rows) == 8 ? 3 : 4)

#define PRODUCTS(rows) \
	GPU_DENSE_KERNEL(gpu_products_GPU_BLOCKS_##rows, struct gpu_products, THREADS, BLOCKS(rows)) \
	{ \
		products_of(rows, &a); \
	} \
	GPU_DENSE_KERNEL(gpu_experts_GPU_BLOCKS_##rows, struct gpu_expert_products, THREADS, BLOCKS(rows)) \
	{ \
		expert_products_of(rows, &a); \
		if ((rows) == 1) \
			gpu_check_choices(&a); \
	}

PRODUCTS(1)
PRODUCTS(2)
PRODUCTS(4)
PRODUCTS(8)

size_t gpu_blocks_shared(void)
{
	return THREADS / GPU_WARP * WARP_FLOATS * sizeof(float);
}

/* grid.x: hidden / GPU_ROW_THREADS; grid.y: rows */
GPU_KERNEL(gpu_embed_blocks, struct gpu_embed, GPU_ROW_THREADS)
{
	const uint32_t i = gpu_block_x() * GPU_ROW_THREADS + gpu_thread();
	const size_t row = a.in_order ? gpu_block_y() : (size_t)a.rows[gpu_block_y()].token;
	float v;

	if (i >= a.hidden)
		return;
	v = gpu_block_at(a.dtype, a.table + row * a.row_bytes, i);
	a.x[(size_t)gpu_block_y() * a.hidden + i] = a.scale != 0 ? v * a.scale : v;
}

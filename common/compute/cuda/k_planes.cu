/* Products of rows with weights that stay coded (OD_OP_EXPERTS, and steps of few rows of OD_OP_LINEAR and OD_OP_FFN): a block of threads
 * decodes some rows of weights to BF16 in shared memory, and multiplies them with all rows of x of a tile. So a resident expert takes two
 * thirds of the memory, and of its bandwidth. */
#include "common/compute/cuda/gpu_planes.h"

#define LINE GPU_PLANES_LINE

/* What a block of threads has to do: n outputs, which are some rows of weights, or one row in several blocks, with the rows of x of a
 * tile. Row r is r of x and of y, or of an expert what the pairs say. It lies in shared memory: one thread works it out, and it takes no
 * registers while weights are decoded. */
struct task {
	struct gpu_planes_block planes;
	const uint8_t *chunk, *sm; /* sm: of the first weight */
	const float *x;
	float *y;
	uint64_t x_stride, y_stride;
	const uint32_t *x_pair, *y_pair; /* NULL: r */
	uint32_t top_k, n_rows;
	uint32_t block, first, n, n_in; /* block: the first in the chunk; first: output; n 0: nothing */
	uint32_t k;			/* first column of the piece of a row that is decoded now */
};

static_assert(sizeof(struct task) <= GPU_PLANES_SHARED - GPU_PLANES_TASK, "room for it");

GPU_FN struct task *the_task(void)
{
	return (struct task *)(void *)(gpu_shared() + GPU_PLANES_TASK);
}

/* Those behind the last row are as that, and not stored. */
GPU_FN const float *x_of(const struct task *t, uint32_t r)
{
	const uint32_t at = r < t->n_rows ? r : t->n_rows - 1;

	return t->x + (t->x_pair != NULL ? t->x_pair[at] / t->top_k : at) * t->x_stride;
}

/* An output is the work of 16 threads with a lane of its sum each, or of eight with two, which takes fewer instructions for a weight. */
GPU_FN uint32_t threads_of(const unsigned lanes)
{
	return GPU_LANES / lanes;
}

/* All threads; i: output of the task; lane [lanes]: the thread's of the sum. */
GPU_FN void end_sum(const unsigned lanes, const struct task *t, uint32_t r, uint32_t i, const float *lane)
{
	const float y = gpu_canonical(gpu_fold(lane, lanes));

	if (i < t->n && r < t->n_rows && gpu_thread() % threads_of(lanes) == 0)
		t->y[(t->y_pair != NULL ? t->y_pair[r] : r) * t->y_stride + t->first + i] = y;
}

/* ---- Sums ---- */

/* The thread's line: a unit has the weights of a pair of lanes of all its four steps. */
GPU_FN void store_lines(uint8_t *shared, const uint32_t *word)
{
	GPU_UNROLL
	for (unsigned pair = 0; pair < 8; pair++) {
		const gpu_u4 v = { word[pair], word[8 + pair], word[16 + pair], word[24 + pair] };

		gpu_store_16(shared + gpu_planes_unit(gpu_thread(), pair), v);
	}
}

/* sum[r * lanes]: the thread's lanes of a line, from `lane` on, whose unit is at `unit`, times x[r], which is advanced. */
GPU_FN void add_line(const unsigned R, const unsigned lanes, const uint8_t *unit, uint32_t lane, const float **x, float *sum)
{
	const uint32_t numbers = lane % 2 == 0 ? 0x1044 : 0x3244;
	const gpu_u4 v = gpu_shared_16(unit);
	const uint32_t word[4] = { v.x, v.y, v.z, v.w };

	GPU_UNROLL
	for (unsigned s = 0; s < 4; s++) {
		if (lanes == 1) {
			const float w = gpu_bits_float(gpu_pick_bytes(word[s], 0, numbers));

			GPU_UNROLL
			for (unsigned r = 0; r < R; r++)
				sum[r] = fmaf(w, gpu_load_f1(x[r] + GPU_LANES * s), sum[r]);
		} else {
			const float w0 = gpu_bf16(word[s] & 0xffffu), w1 = gpu_bits_float(word[s] & 0xffff0000u);

			GPU_UNROLL
			for (unsigned r = 0; r < R; r++) {
				const gpu_f2 by = gpu_load_f2(x[r] + GPU_LANES * s);

				sum[2 * r] = fmaf(w0, by.x, sum[2 * r]);
				sum[2 * r + 1] = fmaf(w1, by.y, sum[2 * r + 1]);
			}
		}
	}
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++)
		x[r] += LINE;
}

/* The same of n lines from line `first` of the block on. Some are under way together, as many as there are registers for. */
GPU_FN void add_lines(const unsigned R, const unsigned lanes, const uint8_t *shared, uint32_t first, const float **x, uint32_t n,
		      float *sum)
{
	const uint32_t lane = gpu_thread() % threads_of(lanes) * lanes;
	uint32_t l = 0;

	GPU_UNROLL
	for (unsigned r = 0; r < R; r++)
		x[r] += lane;
	if (R <= 2) {
		uint32_t unit[8]; /* the order of units is the same every eight lines */

		GPU_UNROLL
		for (unsigned i = 0; i < 8; i++)
			unit[i] = gpu_planes_unit(first + i, lane / 2);
		GPU_NO_UNROLL
		for (; l + 8 <= n; l += 8) {
			GPU_UNROLL
			for (unsigned i = 0; i < 8; i++)
				add_line(R, lanes, shared + 2 * LINE * l + unit[i], lane, x, sum);
		}
	}
	GPU_UNROLL_N(2)
	for (; l < n; l++)
		add_line(R, lanes, shared + gpu_planes_unit(first + l, lane / 2), lane, x, sum);
}

/* Of n weights from weight `first` of the block on, if rows are no whole lines; one row. */
GPU_FN void add_slowly(const unsigned lanes, const uint8_t *shared, uint32_t first, const float *x, uint32_t n, float *sum)
{
	GPU_NO_UNROLL
	for (uint32_t k = gpu_thread() % threads_of(lanes) * lanes; k < n; k += GPU_LANES) {
		GPU_UNROLL
		for (unsigned i = 0; i < lanes && k + i < n; i++) {
			const uint32_t at = first + k + i;
			const uint8_t *w = shared + gpu_planes_unit(at / LINE, at % GPU_LANES / 2) + at % LINE / GPU_LANES * 4 + at % 2 * 2;

			sum[i] = fmaf(gpu_bf16(*(const uint16_t *)(const void *)w), x[k + i], sum[i]);
		}
	}
}

GPU_FN bool in_lines(const struct task *t)
{
	return t->n_in % LINE == 0 && (uintptr_t)t->x % (2 * sizeof(float)) == 0;
}

GPU_FN void add(const unsigned R, const unsigned lanes, bool lines, uint32_t first, const float **x, uint32_t n, float *sum)
{
	if (lines) {
		add_lines(R, lanes, gpu_shared(), first / LINE, x, n / LINE, sum);
	} else {
		GPU_UNROLL
		for (unsigned r = 0; r < R; r++)
			add_slowly(lanes, gpu_shared(), first, x[r], n, sum + r * lanes);
	}
}

/* ---- Products ---- */

/* Threads of an output have all R rows of it. */
GPU_FN void many_outputs(const unsigned R, const struct task *t)
{
	GPU_NO_UNROLL
	for (uint32_t at = 0; at < t->n; at += GPU_PLANES_THREADS / threads_of(2)) {
		const uint32_t i = at + gpu_thread() / threads_of(2);
		const float *x[GPU_PRODUCT_ROWS];
		float sum[GPU_PRODUCT_ROWS * 2];

		GPU_UNROLL
		for (unsigned r = 0; r < R; r++)
			x[r] = x_of(t, r), sum[2 * r] = sum[2 * r + 1] = 0;
		if (i < t->n)
			add(R, 2, in_lines(t), i * t->n_in, x, t->n_in, sum);
		GPU_UNROLL
		for (unsigned r = 0; r < R; r++)
			end_sum(2, t, r, i, sum + 2 * r);
	}
}

GPU_FN uint32_t piece_length(const struct task *t)
{
	return t->n_in - t->k < GPU_PLANES_BLOCK ? t->n_in - t->k : GPU_PLANES_BLOCK;
}

/* With few outputs threads have one row of one. */
GPU_FN void add_few(const unsigned R, const unsigned lanes, const struct task *t, float *sum)
{
	const uint32_t length = piece_length(t), i = gpu_thread() / threads_of(lanes) / R, r = gpu_thread() / threads_of(lanes) % R;

	if (i < t->n && r < t->n_rows) {
		const float *x = x_of(t, r) + t->k;

		add(1, lanes, in_lines(t), i * length, &x, length, sum);
	}
}

GPU_FN void end_few(const unsigned R, const unsigned lanes, const struct task *t, const float *sum)
{
	end_sum(lanes, t, gpu_thread() / threads_of(lanes) % R, gpu_thread() / threads_of(lanes) / R, sum);
}

GPU_FN void find_piece(struct task *t, uint32_t k)
{
	t->k = k;
	t->planes = gpu_planes_find(t->chunk, t->block + k / GPU_PLANES_BLOCK, piece_length(t) * t->n);
}

/* The task is known to one thread. A sum's lanes cannot be shared by more threads, so more rows at a time take longer. */
GPU_FN void products_of(const unsigned R)
{
	struct task *t = the_task();
	const uint32_t few = GPU_PLANES_THREADS / threads_of(2), fewest = GPU_WARP / threads_of(1);
	float sum[2] = { 0, 0 };

	gpu_sync();
	if (t->n == 0)
		return;
	GPU_NO_UNROLL
	for (;;) {
		uint32_t word[GPU_PLANES_WORDS];

		gpu_planes_decode(&t->planes, t->sm + t->k, gpu_shared(), word);
		gpu_sync();
		store_lines(gpu_shared(), word);
		gpu_sync();
		if (t->n * R <= fewest)
			add_few(R, 1, t, sum);
		else if (t->n * R <= few)
			add_few(R, 2, t, sum);
		if (t->n_in - t->k <= GPU_PLANES_BLOCK)
			break;
		gpu_sync(); /* the piece has been used */
		if (gpu_thread() == 0)
			find_piece(t, t->k + GPU_PLANES_BLOCK);
		gpu_sync();
	}
	if (t->n * R <= fewest)
		end_few(R, 1, t, sum);
	else if (t->n * R <= few)
		end_few(R, 2, t, sum);
	else
		many_outputs(R, t);
}

/* The outputs of block `block` of a matrix, to a task of the thread's own (gpu_planes_block). sm, coded: its own, or its first chunk's that
 * is meant; chunk_at: from that on. */
GPU_FN void find_outputs(struct task *t, const uint8_t *sm, const uint8_t *coded, const uint64_t *chunk_at, const struct gpu_chunks *c,
			 uint32_t n_out, uint32_t n_in, uint32_t block)
{
	const uint32_t chunk = block / c->blocks, in_chunk = block - chunk * c->blocks, begin = chunk * c->rows;
	const uint32_t rows = begin >= n_out ? 0 : n_out - begin < c->rows ? n_out - begin : c->rows, at = in_chunk * c->block_rows;

	t->n_in = n_in;
	t->first = begin + at;
	t->n = at >= rows ? 0 : rows - at < c->block_rows ? rows - at : c->block_rows;
	if (t->n == 0)
		return;
	t->chunk = coded + chunk_at[chunk];
	t->block = in_chunk * ((n_in + GPU_PLANES_BLOCK - 1) / GPU_PLANES_BLOCK);
	t->sm = sm + (uint64_t)t->first * n_in;
	find_piece(t, 0);
}

/* ---- Matrices that the host names ---- */

GPU_FN void find_listed(const struct gpu_planes_products *a, struct task *t)
{
	const struct gpu_planes_product *p;
	uint32_t i = 0;

	while (i + 1 < a->n && a->p[i + 1].first_block <= gpu_block_y())
		i++;
	p = &a->p[i];
	find_outputs(t, p->sm, p->coded, a->chunk_at + p->first_chunk, &p->chunks, p->n_out, p->n_in, gpu_block_y() - p->first_block);
	t->x = p->x, t->x_stride = p->n_in, t->x_pair = NULL;
	t->y = p->y, t->y_stride = p->y_stride, t->y_pair = NULL;
	t->top_k = 1, t->n_rows = p->n_rows;
}

/* ---- Experts: which, the device has found out (k_experts.cu) ---- */

GPU_FN void find_expert(const struct gpu_expert_products *a, const struct gpu_tile *tile, struct task *t)
{
	const bool up = !a->down && gpu_block_y() >= a->planes_blocks;
	const struct gpu_mat *m = &a->expert[tile->expert].mat[a->down ? GPU_DOWN : up ? GPU_UP : GPU_GATE];
	const size_t in_round = (size_t)(tile->first - a->first) * a->intermediate;

	t->n = 0;
	if (m->form != GPU_PLANES)
		return;
	find_outputs(t, m->data, m->coded, m->chunk_at, &m->chunks, m->n_out, m->n_in,
		     gpu_block_y() - (up ? a->planes_blocks : 0));
	t->x = a->down ? a->gate + in_round : a->x;
	t->x_stride = a->down ? a->intermediate : a->hidden;
	t->x_pair = a->down ? NULL : a->pair + tile->first;
	t->y = a->down ? a->y : (up ? a->up : a->gate) + in_round;
	t->y_stride = a->down ? a->hidden : a->intermediate;
	t->y_pair = a->down ? a->pair + tile->first : NULL;
	t->top_k = a->top_k;
	t->n_rows = tile->n;
}

GPU_FN void expert_products_of(const unsigned R, const struct gpu_expert_products *a)
{
	const uint32_t index = a->tiles_before[0] + gpu_block_x();

	if (index >= a->tiles_before[1])
		return;
	if (gpu_thread() == 0) {
		struct task t;

		find_expert(a, &a->tile[index], &t);
		*the_task() = t;
	}
	products_of(R);
}

GPU_FN void listed_products_of(const unsigned R, const struct gpu_planes_products *a)
{
	if (gpu_thread() == 0) {
		struct task t;

		find_listed(a, &t);
		*the_task() = t;
	}
	products_of(R);
}

/* While a block waits for memory or multiplies with few threads, others decode. blocks: of a multiprocessor, by registers. */
#define PLANES(rows, blocks)                                                                                 \
	GPU_DENSE_KERNEL(gpu_planes_products_##rows, struct gpu_planes_products, GPU_PLANES_THREADS, blocks) \
	{                                                                                                    \
		listed_products_of(rows, &a);                                                                \
	}                                                                                                    \
	GPU_DENSE_KERNEL(gpu_expert_planes_##rows, struct gpu_expert_products, GPU_PLANES_THREADS, blocks)   \
	{                                                                                                    \
		expert_products_of(rows, &a);                                                                \
	}

/* Before sm_80 there is shared memory for one only, so registers need not be few. */
PLANES(1, GPU_SINCE_80(4, 2))
PLANES(2, GPU_SINCE_80(4, 2))
PLANES(4, GPU_SINCE_80(4, 2))
PLANES(8, 2)

#define NAMES(kernel) \
	{ kernel##_1, kernel##_2, kernel##_4, kernel##_8 }

gpu_planes_products_fn *const gpu_planes_products[4] = NAMES(gpu_planes_products);
gpu_expert_products_fn *const gpu_expert_planes[4] = NAMES(gpu_expert_planes);

struct gpu_chunks gpu_planes_chunks(uint32_t n_in, uint32_t chunk_rows)
{
	const uint32_t block_rows = n_in > GPU_PLANES_BLOCK ? 1 : GPU_PLANES_BLOCK / n_in;
	const struct gpu_chunks c = { chunk_rows, block_rows, (chunk_rows + block_rows - 1) / block_rows };

	return c;
}

uint32_t gpu_planes_blocks(uint32_t n_out, const struct gpu_chunks *c)
{
	return (n_out + c->rows - 1) / c->rows * c->blocks;
}

/* Products of rows with weights that stay coded (OD_OP_EXPERTS, and steps of few rows of OD_OP_LINEAR and OD_OP_FFN): a block of threads
 * decodes some rows of weights to BF16 in shared memory, and multiplies them with all rows of x of a tile. So a resident expert takes two
 * thirds of the memory, and of its bandwidth. */
#include "common/compute/cuda/gpu_planes.h"

#define SHARE 8u			     /* threads of an output, */
#define LANES (GPU_LANES / SHARE)	     /* each with so many of its lanes */
#define GROUPS (GPU_PLANES_THREADS / SHARE) /* of such threads */
#define LINE 64u			     /* weights: 128 bytes of shared memory */

/* What a block of threads has to do: n outputs, which are some rows of weights, or one row in several blocks, with the rows of x of a
 * tile. Row r is r of x and of y, or of an expert what the pairs say. It lies in shared memory: one thread works it out, and it takes no
 * registers while weights are decoded. */
struct task {
	const uint8_t *chunk, *sm; /* sm: of the first weight */
	const float *x;
	float *y;
	uint64_t x_stride, y_stride;
	const uint32_t *x_pair, *y_pair; /* NULL: r */
	uint32_t top_k, n_rows;
	uint32_t block, first, n, n_in; /* block: the first in the chunk; first: output; n 0: nothing */
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

/* All threads; i: output of the task; lane [LANES]: the thread's of the sum. */
GPU_FN void end_sum(const struct task *t, uint32_t r, uint32_t i, const float *lane)
{
	const float y = gpu_canonical(gpu_fold(lane, LANES));

	if (i < t->n && r < t->n_rows && gpu_thread() % SHARE == 0)
		t->y[(t->y_pair != NULL ? t->y_pair[r] : r) * t->y_stride + t->first + i] = y;
}

/* ---- Weights in shared memory ---- */

/* In lines, if rows are whole lines: a thread reads the weights of its lanes of all four steps of a line at once, a word of two for
 * each. The four words of a pair of lanes lie together, and the pairs of a line in an order that depends on the line: so neither those
 * that write units nor those that read meet in a bank. Else weights lie one after the other. */
struct places {
	uint8_t *whole, *word[4]; /* of the thread's first unit; a stride of units is 32 lines, whose order is the same again */
};

GPU_FN void store_unit(const bool lines, const struct places *to, unsigned i, gpu_u2 e, gpu_u2 sm)
{
	const gpu_u4 v = gpu_merged_8(e, sm);
	const uint32_t word[4] = { v.x, v.y, v.z, v.w };

	if (!lines)
		gpu_store_16(to->whole + 2 * i * GPU_PLANES_STRIDE, v);
	GPU_UNROLL
	for (unsigned k = 0; lines && k < 4; k++)
		*(uint32_t *)(void *)(to->word[k] + 2 * i * GPU_PLANES_STRIDE) = word[k];
}

/* Weights take the place of their exponents, which are the upper half: those that the upper half of the weights overwrite are read
 * first. Ends with the block together. */
GPU_FN void store_weights(const bool lines, const gpu_u2 *sm, uint8_t *shared)
{
	const unsigned line = gpu_thread() / 8, step = gpu_thread() % 8 / 2, first_pair = gpu_thread() % 2 * 4;
	gpu_u2 late[GPU_PLANES_UNITS / 2];
	struct places to;

	to.whole = shared + 16 * gpu_thread();
	GPU_UNROLL
	for (unsigned k = 0; k < 4; k++)
		to.word[k] = shared + 2 * LINE * line + 16 * ((first_pair + k + line) % 8) + 4 * step;
	GPU_UNROLL
	for (unsigned i = 0; i < GPU_PLANES_UNITS / 2; i++) {
		late[i] = gpu_planes_exponents(shared, i + GPU_PLANES_UNITS / 2);
		store_unit(lines, &to, i, gpu_planes_exponents(shared, i), sm[i]);
	}
	gpu_sync();
	GPU_UNROLL
	for (unsigned i = 0; i < GPU_PLANES_UNITS / 2; i++)
		store_unit(lines, &to, i + GPU_PLANES_UNITS / 2, late[i], sm[i + GPU_PLANES_UNITS / 2]);
	gpu_sync();
}

/* sum[r]: the thread's lanes of a line times x[r], from column k on. */
GPU_FN void add_line(const unsigned R, const uint8_t *shared, uint32_t line, const float *const *x, size_t k, float *sum)
{
	const unsigned pair = gpu_thread() % SHARE;
	const gpu_u4 v = gpu_shared_16(shared + 2 * LINE * line + 16 * ((pair + line) % 8));
	const uint32_t word[4] = { v.x, v.y, v.z, v.w };

	GPU_UNROLL
	for (unsigned s = 0; s < 4; s++) {
		const float w0 = gpu_bf16(word[s] & 0xffffu), w1 = gpu_bits_float(word[s] & 0xffff0000u);

		GPU_UNROLL
		for (unsigned r = 0; r < R; r++) {
			const gpu_f2 by = gpu_load_f2(x[r] + k + GPU_LANES * s + LANES * pair);

			sum[r * LANES] = fmaf(w0, by.x, sum[r * LANES]);
			sum[r * LANES + 1] = fmaf(w1, by.y, sum[r * LANES + 1]);
		}
	}
}

/* Of all n weights from weight `first` of the block on. Lines are counted, so that some are under way together: as many as there are
 * registers for. */
GPU_FN void add_lines(const unsigned R, const uint8_t *shared, uint32_t first, const float *const *x, uint32_t n, float *sum)
{
	if (R <= 2) {
		GPU_UNROLL_N(4)
		for (uint32_t l = 0; l < n / LINE; l++)
			add_line(R, shared, first / LINE + l, x, (size_t)l * LINE, sum);
	} else {
		GPU_NO_UNROLL
		for (uint32_t l = 0; l < n / LINE; l++)
			add_line(R, shared, first / LINE + l, x, (size_t)l * LINE, sum);
	}
}

GPU_FN void add_slowly(const unsigned R, const uint8_t *shared, uint32_t first, const float *const *x, uint32_t n, float *sum)
{
	const uint16_t *w = (const uint16_t *)(const void *)shared + first;

	GPU_NO_UNROLL
	for (uint32_t k = gpu_thread() % SHARE * LANES; k < n; k += GPU_LANES) {
		GPU_UNROLL
		for (unsigned i = 0; i < LANES; i++) {
			GPU_UNROLL
			for (unsigned r = 0; r < R; r++)
				if (k + i < n)
					sum[r * LANES + i] = fmaf(gpu_bf16(w[k + i]), x[r][k + i], sum[r * LANES + i]);
		}
	}
}

GPU_FN void add(const unsigned R, const bool lines, uint32_t first, const float *const *x, uint32_t n, float *sum)
{
	if (lines)
		add_lines(R, gpu_shared(), first, x, n, sum);
	else
		add_slowly(R, gpu_shared(), first, x, n, sum);
}

/* ---- Products ---- */

/* A group has all R rows of an output. */
GPU_FN void many_outputs(const unsigned R, const bool lines, const struct task *t)
{
	const float *x[GPU_PRODUCT_ROWS];

	GPU_UNROLL
	for (unsigned r = 0; r < R; r++)
		x[r] = x_of(t, r);
	GPU_NO_UNROLL
	for (uint32_t at = 0; at < t->n; at += GROUPS) {
		const uint32_t i = at + gpu_thread() / SHARE;
		float sum[GPU_PRODUCT_ROWS * LANES];

		GPU_UNROLL
		for (unsigned k = 0; k < R * LANES; k++)
			sum[k] = 0;
		if (i < t->n)
			add(R, lines, i * t->n_in, x, t->n_in, sum);
		GPU_UNROLL
		for (unsigned r = 0; r < R; r++)
			end_sum(t, r, i, sum + r * LANES);
	}
}

/* With few outputs each group of threads has one row of x: a sum's lanes cannot be shared by more threads, so more rows at a time take
 * longer. */
GPU_FN void products_of(const unsigned R)
{
	const struct task *t = the_task();
	const uint32_t i = gpu_thread() / SHARE / R, r = gpu_thread() / SHARE % R;
	bool lines = false, few = false;
	float sum[LANES] = { 0, 0 };

	gpu_sync();
	if (t->n == 0)
		return;
	GPU_NO_UNROLL
	for (uint32_t k = 0; k < t->n_in; k += GPU_PLANES_BLOCK) {
		const uint32_t length = t->n_in - k < GPU_PLANES_BLOCK ? t->n_in - k : GPU_PLANES_BLOCK;
		gpu_u2 sm[GPU_PLANES_UNITS];

		if (k > 0)
			gpu_sync(); /* the piece before has been used */
		gpu_planes_decode(t->chunk, t->block + k / GPU_PLANES_BLOCK, length * t->n, t->sm + k, gpu_shared(), sm);
		lines = t->n_in % LINE == 0 && (uintptr_t)t->x % (LANES * sizeof(float)) == 0;
		if (lines)
			store_weights(true, sm, gpu_shared());
		else
			store_weights(false, sm, gpu_shared());
		few = t->n * R <= GROUPS;
		if (few && i < t->n && r < t->n_rows) {
			const float *x = x_of(t, r) + k;

			add(1, lines, i * length, &x, length, sum);
		}
	}
	if (few)
		end_sum(t, r, i, sum);
	else
		many_outputs(R, lines, t);
}

/* The outputs of block `block` of a matrix. sm, coded: its own, or its first chunk's that is meant; chunk_at: from that on. */
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
	if (gpu_thread() == 0)
		find_expert(a, &a->tile[index], the_task());
	products_of(R);
}

GPU_FN void listed_products_of(const unsigned R, const struct gpu_planes_products *a)
{
	if (gpu_thread() == 0)
		find_listed(a, the_task());
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

PLANES(1, 4)
PLANES(2, 4)
PLANES(4, 4)
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

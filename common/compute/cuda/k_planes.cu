/* Products of rows with weights that stay coded (OD_OP_EXPERTS, and steps of few rows of OD_OP_LINEAR and OD_OP_FFN): a
 * block of threads decodes some rows of weights to BF16 in shared memory, and multiplies them with all rows of x of a
 * tile. So a resident expert takes two thirds of the memory, and of its bandwidth. */
#include "common/compute/cuda/gpu_planes.h"
#include "common/compute/cuda/gpu_tiles.h"

#define LINE GPU_PLANES_LINE

/* A block's work: n outputs, which are some rows of weights, or one row in several blocks, with the rows of x of a
 * tile. Row r is row r of x and of y, or the pairs say which of an expert's. It lies in shared memory: a warp works it
 * out, and it takes no registers while weights are decoded. */
struct planes_task {
	struct gpu_planes_block planes;
	const uint8_t *chunk, *sm; /* sm: of the first weight */
	const float *x;
	float *y;
	uint64_t x_stride, y_stride;
	const uint32_t *x_pair, *y_pair; /* NULL: r */
	uint32_t top_k, n_rows;
	uint32_t block, first, n, n_in; /* block: the first in the chunk; first: output; n 0: nothing */
	uint32_t k; /* first column of the piece of a row that is decoded now */
	bool is_last; /* the outputs, of the chunk */
};

static_assert(sizeof(struct planes_task) <= GPU_PLANES_SHARED - GPU_PLANES_TASK, "room for it");

GPU_FN struct planes_task *the_task(void)
{
	return (struct planes_task *)(void *)(gpu_shared() + GPU_PLANES_TASK);
}

/* Rows past the end repeat the last row; their results are discarded. */
GPU_FN const float *x_of(const struct planes_task *t, uint32_t r)
{
	const uint32_t at = r < t->n_rows ? r : t->n_rows - 1;

	return t->x + (t->x_pair != NULL ? t->x_pair[at] / t->top_k : at) * t->x_stride;
}

/* ---- Sums ----
 *
 * A line is 64 weights of a row: four steps of 16, which are one of each lane of a sum. Lanes are independent, but each
 * waits for its additions, so what they add has to be near: weights are in shared memory, in units of two lanes of a
 * line, and so is x. */

#define STEPS 4u /* steps of a line */

/* All threads call this. i: the thread's output of the task; lane [lanes]: its lanes of that sum; its neighbours have
 * the others. */
GPU_FN void end_sum(const unsigned lanes, const struct planes_task *t, uint32_t r, uint32_t i, const float *lane)
{
	const float y = gpu_canonical(gpu_fold(lane, lanes));

	if (i < t->n && r < t->n_rows && gpu_thread() % (GPU_LANES / lanes) == 0)
		t->y[(t->y_pair != NULL ? t->y_pair[r] : r) * t->y_stride + t->first + i] = y;
}

/* The thread's line: a unit has the weights of a pair of lanes of all its steps. */
GPU_FN void store_lines(uint8_t *shared, const uint32_t *word)
{
	GPU_UNROLL
	for (unsigned pair = 0; pair < GPU_LANES / 2; pair++) {
		const gpu_u4 v = { word[pair], word[8 + pair], word[16 + pair], word[24 + pair] };

		gpu_store_16(shared + gpu_planes_unit(gpu_thread(), pair), v);
	}
}

/* The elements of a line with the thread's lanes, from `lane` on. */
GPU_FN gpu_u4 read_line(const uint8_t *shared, uint32_t line, uint32_t lane)
{
	return gpu_shared_16(shared + gpu_planes_unit(line, lane / 2));
}

/* Their weights: [lanes][STEPS]. */
GPU_FN void make_weights(const unsigned lanes, uint32_t lane, gpu_u4 v, float *w)
{
	const uint32_t word[STEPS] = { v.x, v.y, v.z, v.w }, numbers = lane % 2 == 0 ? 0x1044 : 0x3244;

	GPU_UNROLL
	for (unsigned s = 0; s < STEPS; s++) {
		w[s] = lanes == 1 ? gpu_bits_float(gpu_pick_bytes(word[s], 0, numbers)) : gpu_bf16(word[s] & 0xffffu);
		if (lanes == 2)
			w[STEPS + s] = gpu_bits_float(word[s] & 0xffff0000u);
	}
}

GPU_FN bool in_lines(const struct planes_task *t)
{
	return t->n_in % LINE == 0 && (uintptr_t)t->x % (2 * sizeof(float)) == 0;
}

GPU_FN uint32_t piece_length(const struct planes_task *t)
{
	return t->n_in - t->k < GPU_PLANES_BLOCK ? t->n_in - t->k : GPU_PLANES_BLOCK;
}

/* ---- Few outputs ----
 *
 * Some neighbours have one output with one row: as many outputs and rows as there are threads for. All threads bring x,
 * some lines of every row at a time, of which each has the four steps of a lane: while some add what is there, the next
 * are on their way. */

GPU_FN float *x_shared(unsigned turn) /* [rows][lines][GPU_LANES][STEPS] */
{
	return (float *)(void *)(gpu_shared() + GPU_PLANES_SHARED) + turn % 2 * GPU_PLANES_THREADS * STEPS;
}

GPU_FN gpu_f4 load_steps(const float *x)
{
	const gpu_f4 v = { gpu_load_f1(x), gpu_load_f1(x + GPU_LANES), gpu_load_f1(x + 2 * GPU_LANES),
			   gpu_load_f1(x + 3 * GPU_LANES) };

	return v;
}

/* Lines of x that are there together. */
GPU_FN uint32_t lines_of(const unsigned R)
{
	return GPU_PLANES_THREADS / GPU_LANES / R;
}

/* n lines, 1 or 4 / lanes, from line `first` of the block on, times x. All are read before one is used. */
GPU_FN void add_together(const unsigned lanes, const unsigned n, uint32_t first, uint32_t lane, const float *x,
			 float *sum)
{
	gpu_u4 line[4];
	gpu_f4 by[4];

	GPU_UNROLL
	for (unsigned l = 0; l < n; l++) {
		line[l] = read_line(gpu_shared(), first + l, lane);
		GPU_UNROLL
		for (unsigned i = 0; i < lanes; i++)
			by[l * lanes + i] = gpu_load_f4(x + (l * GPU_LANES + i) * STEPS);
	}
	GPU_UNROLL
	for (unsigned l = 0; l < n; l++) {
		float w[2 * STEPS];

		make_weights(lanes, lane, line[l], w);
		GPU_UNROLL
		for (unsigned i = 0; i < lanes; i++) {
			const gpu_f4 v = by[l * lanes + i];

			sum[i] = fmaf(w[i * STEPS], v.x, sum[i]);
			sum[i] = fmaf(w[i * STEPS + 1], v.y, sum[i]);
			sum[i] = fmaf(w[i * STEPS + 2], v.z, sum[i]);
			sum[i] = fmaf(w[i * STEPS + 3], v.w, sum[i]);
		}
	}
}

GPU_FN void add_some_lines(const unsigned lanes, uint32_t first, uint32_t lane, const float *x, uint32_t n, float *sum)
{
	const unsigned together = 4 / lanes;
	uint32_t l = 0;

	GPU_UNROLL_N(2)
	for (; l + together <= n; l += together)
		add_together(lanes, together, first + l, lane, x + l * GPU_LANES * STEPS, sum);
	GPU_NO_UNROLL
	for (; l < n; l++)
		add_together(lanes, 1, first + l, lane, x + l * GPU_LANES * STEPS, sum);
}

/* sum[lanes] += what the piece has of the thread's lanes. */
GPU_FN void add_piece(const unsigned R, const unsigned lanes, const struct planes_task *t, float *sum)
{
	const uint32_t thread = gpu_thread_here(), length = piece_length(t), lines = length / LINE,
		       together = lines_of(R);
	const uint32_t out = thread / (GPU_LANES / lanes), lane = thread % (GPU_LANES / lanes) * lanes;
	const uint32_t row = thread / GPU_LANES / together, mine = thread / GPU_LANES % together;
	const float *x = x_of(t, row) + t->k + mine * LINE + thread % GPU_LANES;
	const bool adds = out / R < t->n && out % R < t->n_rows;
	gpu_f4 ahead = { 0, 0, 0, 0 };

	if (mine < lines)
		ahead = load_steps(x);
	GPU_NO_UNROLL
	for (uint32_t first = 0, turn = 0; first < lines; first += together, turn++) {
		const float *xs = x_shared(turn) + (out % R * together * GPU_LANES + lane) * STEPS;
		const uint32_t n = lines - first < together ? lines - first : together;

		gpu_store_f4(x_shared(turn) + thread * STEPS, ahead);
		gpu_sync(); /* all readers of the previous contents have passed this barrier */
		x += together * LINE;
		if (first + together + mine < lines)
			ahead = load_steps(x);
		if (adds)
			add_some_lines(lanes, out / R * lines + first, lane, xs, n, sum);
	}
}

/* Adds n weights from weight `first` of the block on, if rows are no whole lines; one row; two lanes. */
GPU_FN void add_slowly(uint32_t first, const float *x, uint32_t n, float *sum)
{
	GPU_NO_UNROLL
	for (uint32_t k = gpu_thread() % (GPU_LANES / 2) * 2; k < n; k += GPU_LANES) {
		GPU_UNROLL
		for (unsigned i = 0; i < 2 && k + i < n; i++) {
			const uint32_t at = first + k + i;
			const uint8_t *w = gpu_shared() + gpu_planes_unit(at / LINE, at % GPU_LANES / 2) +
					   at % LINE / GPU_LANES * 4 + at % 2 * 2;

			sum[i] = fmaf(gpu_bf16(*(const uint16_t *)(const void *)w), x[k + i], sum[i]);
		}
	}
}

GPU_FN void add_piece_slowly(const unsigned R, const struct planes_task *t, float *sum)
{
	const uint32_t out = gpu_thread_here() / (GPU_LANES / 2), length = piece_length(t);

	if (out / R < t->n && out % R < t->n_rows)
		add_slowly(out / R * length, x_of(t, out % R) + t->k, length, sum);
}

GPU_FN void end_few(const unsigned R, const unsigned lanes, const struct planes_task *t, const float *sum)
{
	const uint32_t out = gpu_thread_here() / (GPU_LANES / lanes);

	end_sum(lanes, t, out % R, out / R, sum);
}

/* ---- Many outputs: threads have all R rows of one, and two lanes ---- */

/* sum[2 * r]: n lines from line `first` of the block on, times x[r], which is advanced. */
GPU_FN void add_lines(const unsigned R, uint32_t first, const float **x, uint32_t n, float *sum)
{
	const uint32_t lane = gpu_thread() % (GPU_LANES / 2) * 2;

	GPU_UNROLL
	for (unsigned r = 0; r < R; r++)
		x[r] += lane;
	GPU_UNROLL_N(2)
	for (uint32_t l = 0; l < n; l++) {
		float w[2 * STEPS];

		make_weights(2, lane, read_line(gpu_shared(), first + l, lane), w);
		GPU_UNROLL
		for (unsigned s = 0; s < STEPS; s++) {
			GPU_UNROLL
			for (unsigned r = 0; r < R; r++) {
				const gpu_f2 by = gpu_load_f2(x[r] + s * GPU_LANES);

				sum[2 * r] = fmaf(w[s], by.x, sum[2 * r]);
				sum[2 * r + 1] = fmaf(w[STEPS + s], by.y, sum[2 * r + 1]);
			}
		}
		GPU_UNROLL
		for (unsigned r = 0; r < R; r++)
			x[r] += LINE;
	}
}

GPU_FN void many_outputs(const unsigned R, const struct planes_task *t)
{
	GPU_NO_UNROLL
	for (uint32_t at = 0; at < t->n; at += GPU_PLANES_THREADS / (GPU_LANES / 2)) {
		const uint32_t i = at + gpu_thread() / (GPU_LANES / 2);
		const float *x[GPU_PRODUCT_ROWS];
		float sum[GPU_PRODUCT_ROWS * 2];

		GPU_UNROLL
		for (unsigned r = 0; r < R; r++)
			x[r] = x_of(t, r), sum[2 * r] = sum[2 * r + 1] = 0;
		if (i < t->n && in_lines(t))
			add_lines(R, i * t->n_in / LINE, x, t->n_in / LINE, sum);
		GPU_UNROLL
		for (unsigned r = 0; r < R && !in_lines(t); r++)
			if (i < t->n)
				add_slowly(i * t->n_in, x[r], t->n_in, sum + 2 * r);
		GPU_UNROLL
		for (unsigned r = 0; r < R; r++)
			end_sum(2, t, r, i, sum + 2 * r);
	}
}

/* ---- Products ---- */

/* A warp finds what the block of threads does next: the piece from column k on. */
GPU_FN struct gpu_planes_block find_piece(const struct planes_task *t, uint32_t k)
{
	const uint32_t length = t->n_in - k < GPU_PLANES_BLOCK ? t->n_in - k : GPU_PLANES_BLOCK;

	return gpu_planes_find(t->chunk, t->block + k / GPU_PLANES_BLOCK, length * t->n,
			       t->is_last && k + length == t->n_in);
}

GPU_FN void share_task(const struct planes_task *t)
{
	if (gpu_lane() == 0)
		*the_task() = *t;
}

GPU_FN void next_piece(struct planes_task *t)
{
	const uint32_t k = t->k + GPU_PLANES_BLOCK;
	const struct gpu_planes_block planes = find_piece(t, k);

	gpu_sync_warp(); /* all have read it */
	if (gpu_lane() == 0)
		t->k = k, t->planes = planes;
}

#define FEWEST (GPU_PLANES_THREADS / GPU_LANES) /* outputs of all rows for which a thread has one lane */
#define FEW (2 * FEWEST) /* outputs of all rows for which a thread has two lanes */

/* The task is known to a warp. It stays in shared memory, so that decoding has the registers. */
GPU_FN void products_of(const unsigned R)
{
	struct planes_task *t = the_task();
	float sum[2] = { 0, 0 }; /* goes on from piece to piece of a row: its additions have one order */

	gpu_sync(); /* the first warp has written the task */
	if (t->n == 0)
		return;
	GPU_NO_UNROLL
	for (;;) {
		uint32_t word[GPU_PLANES_WORDS];

		gpu_planes_decode(&t->planes, t->sm + t->k, gpu_shared(), word);
		gpu_sync(); /* all have decoded: the weights take the memory of bytes and table */
		store_lines(gpu_shared(), word);
		gpu_sync(); /* a sum takes lines of several threads */
		if (t->n * R <= FEW && !in_lines(t))
			add_piece_slowly(R, t, sum);
		else if (t->n * R <= FEWEST)
			add_piece(R, 1, t, sum);
		else if (t->n * R <= FEW)
			add_piece(R, 2, t, sum);
		if (t->n_in - t->k <= GPU_PLANES_BLOCK)
			break;
		gpu_sync(); /* the piece has been used */
		if (gpu_warp() == 0)
			next_piece(t);
		gpu_sync(); /* the task says which is next */
	}
	if (t->n * R > FEW)
		many_outputs(R, t);
	else if (t->n * R > FEWEST || !in_lines(t))
		end_few(R, 2, t, sum);
	else
		end_few(R, 1, t, sum);
}

/* The outputs of block `block` of a matrix, to a task of the thread's own (gpu_planes_block). sm, coded: its own, or
 * its first chunk's that is meant; chunk_at: from that on. */
GPU_FN void find_outputs(struct planes_task *t, const uint8_t *sm, const uint8_t *coded, const uint64_t *chunk_at,
			 const struct gpu_chunks *c, uint32_t n_out, uint32_t n_in, uint32_t block)
{
	const uint32_t chunk = block / c->blocks, in_chunk = block - chunk * c->blocks, begin = chunk * c->rows;
	const uint32_t rows = begin >= n_out	      ? 0 :
			      n_out - begin < c->rows ? n_out - begin :
							c->rows,
		       at = in_chunk * c->block_rows;

	t->n_in = n_in;
	t->first = begin + at;
	t->n = at >= rows ? 0 : rows - at < c->block_rows ? rows - at : c->block_rows;
	if (t->n == 0)
		return;
	t->chunk = coded + chunk_at[chunk];
	t->block = in_chunk * ((n_in + GPU_PLANES_BLOCK - 1) / GPU_PLANES_BLOCK);
	t->sm = sm + (uint64_t)t->first * n_in;
	t->is_last = at + t->n == rows;
	t->k = 0;
	t->planes = find_piece(t, 0);
}

/* ---- Matrices that the host names ---- */

GPU_FN void find_listed(const struct gpu_planes_products *a, struct planes_task *t)
{
	const struct gpu_planes_product *p;
	uint32_t i = 0;

	while (i + 1 < a->n && a->p[i + 1].first_block <= gpu_block_y())
		i++;
	p = &a->p[i];
	find_outputs(t, p->sm, p->coded, a->chunk_at + p->first_chunk, &p->chunks, p->n_out, p->n_in,
		     gpu_block_y() - p->first_block);
	t->x = p->x, t->x_stride = p->n_in, t->x_pair = NULL;
	t->y = p->y, t->y_stride = p->y_stride, t->y_pair = NULL;
	t->top_k = 1, t->n_rows = p->n_rows;
}

/* ---- Experts: which, the device has found out (k_experts.cu) ---- */

GPU_FN void find_expert(const unsigned R, const struct gpu_expert_products *a, const struct gpu_tile *tile,
			struct planes_task *t)
{
	const bool up = !a->down && gpu_block_y() >= a->planes_blocks;
	const struct gpu_mat *m = &a->expert[tile->expert].mat[a->down ? GPU_DOWN : up ? GPU_UP : GPU_GATE];
	const size_t in_round = (size_t)(tile->first - a->first) * a->intermediate;

	t->n = 0;
	if (m->coding != GPU_PLANES)
		return;
	find_outputs(t, m->data, m->coded, m->chunk_at, &m->chunks, m->n_out, m->n_in,
		     gpu_block_y() - (up ? a->planes_blocks : 0));
	t->x = a->down ? a->gate + in_round : a->x;
	t->x_stride = a->down ? a->intermediate : a->hidden;
	t->x_pair = a->down || R == 1 ? NULL : a->pair + tile->first;
	t->y = !a->down ? (up ? a->up : a->gate) + in_round : R == 1 ? a->y + (size_t)tile->first * a->hidden : a->y;
	t->y_stride = a->down ? a->hidden : a->intermediate;
	t->y_pair = a->down && R > 1 ? a->pair + tile->first : NULL;
	t->top_k = a->top_k;
	t->n_rows = tile->n;
}

GPU_FN void expert_products_of(const unsigned R, const struct gpu_expert_products *a)
{
	struct gpu_tile tile;

	if (!gpu_find_tile(R, a, &tile))
		return;
	if (gpu_warp() == 0) {
		struct planes_task t;

		find_expert(R, a, &tile, &t);
		share_task(&t);
	}
	products_of(R);
}

GPU_FN void listed_products_of(const unsigned R, const struct gpu_planes_products *a)
{
	if (gpu_warp() == 0) {
		struct planes_task t;

		find_listed(a, &t);
		share_task(&t);
	}
	products_of(R);
}

/* While a block waits for memory or multiplies with few threads, others decode. blocks: of a multiprocessor, by
 * registers. */
#define PLANES(rows, blocks) \
	GPU_DENSE_KERNEL(gpu_planes_products_##rows, struct gpu_planes_products, GPU_PLANES_THREADS, blocks) \
	{ \
		listed_products_of(rows, &a); \
	} \
	GPU_DENSE_KERNEL(gpu_expert_planes_##rows, struct gpu_expert_products, GPU_PLANES_THREADS, blocks) \
	{ \
		expert_products_of(rows, &a); \
		if ((rows) == 1) \
			gpu_check_choices(&a); \
	}

/* Before sm_80 there is shared memory for one only, so registers need not be few. */
PLANES(1, GPU_SINCE_80(4, 2))
PLANES(2, GPU_SINCE_80(3, 2))
PLANES(4, GPU_SINCE_80(3, 2))
PLANES(8, 2)

#define NAMES(kernel) \
	{ \
		kernel##_1, kernel##_2, kernel##_4, kernel##_8 \
	}

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

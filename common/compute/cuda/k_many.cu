/* Products of weights with many rows, as those of a prompt: OD_OP_LINEAR, and the matrices of OD_OP_FFN and
 * OD_OP_EXPERTS.
 *
 * With many rows it is arithmetic that takes the time, not memory. So a block decodes each weight once for
 * GPU_MANY_ROWS rows, to shared memory, and a thread multiplies what it reads from there with as much as its registers
 * have sums for: 8 outputs with 8 rows, of two of the 16 lanes (backend.h). Sums are those of k_products.cu, so a row
 * has the same bits with few rows and with many. While a stage is added, the next one is on its way to registers; it is
 * stored behind the sums, elsewhere. */
#include "common/compute/cuda/gpu_tiles.h"
#include "common/compute/cuda/gpu_weights.h"

#define THREADS GPU_MANY_THREADS
#define OUTS GPU_MANY_OUTS
#define ROWS GPU_MANY_ROWS
#define EACH 8u /* outputs of a thread; rows of it */
#define LANES 2u /* lanes of a thread */
#define SIDE 16u /* outputs of a warp; rows of it: a thread has every second one */
#define STEPS 2u /* steps of GPU_LANES columns in a stage */
#define COLUMNS (STEPS * GPU_LANES)
#define RUN 4u /* neighbours that are read together, and stored */
#define OWN (OUTS * COLUMNS / THREADS) /* weights of a stage that a thread brings; of x it brings a run */
#define RUNS (OWN / RUN)

/* Shared memory: two stages, each [STEPS][OUTS][GPU_LANES] weights, then [STEPS][ROWS][GPU_LANES] of x. The room behind
 * each step brings what a warp stores together into different banks. */
#define W_STEP (OUTS * GPU_LANES + 4u)
#define X_STEP (ROWS * GPU_LANES + 16u)
#define STAGE (STEPS * (W_STEP + X_STEP))

static_assert(OUTS == THREADS / GPU_WARP / (ROWS / SIDE) * SIDE && ROWS * COLUMNS == THREADS * RUN &&
		      GPU_WARP * LANES * EACH * EACH == SIDE * SIDE * GPU_LANES,
	      "every thread has as much to bring and to add");

/* A thread brings some weights of one of the block's outputs, and some elements of one of the block's rows of x. Of
 * which ones: */
GPU_FN uint32_t own_out(void)
{
	return gpu_thread() / (COLUMNS / OWN);
}

GPU_FN uint32_t own_row(void)
{
	return gpu_thread() / (COLUMNS / RUN);
}

struct many_source {
	const struct gpu_mat *m;
	const unsigned char *row;
	const float *x;
	size_t scale; /* published: the row's first one */
	uint32_t n_in, coding, bits, at,
		x_at; /* at: column of the thread's weights in a stage; x_at: of its run of x */
	bool in_runs, x_in_runs; /* a whole run is aligned to its size */
};

struct brought {
	struct gpu_raw code[RUNS];
	float scale; /* published: a group has a multiple of 16 columns (backend.h) */
	float x[RUN];
};

/* Row `out` of m, and the thread's row of x. */
GPU_FN void begin_source(struct many_source *s, const struct gpu_mat *m, uint32_t out, const float *x)
{
	s->m = m;
	s->coding = m->coding;
	s->bits = gpu_code_bits(m->coding);
	s->n_in = m->n_in;
	s->row = m->data + out * m->row_bytes;
	s->scale = gpu_is_scaled(m->coding) ? (size_t)out * ((m->n_in + m->group - 1) / m->group) : 0;
	s->x = x;
	s->at = gpu_thread() % (COLUMNS / OWN) * OWN;
	s->x_at = gpu_thread() % (COLUMNS / RUN) * RUN;
	s->in_runs = (((uintptr_t)m->data | m->row_bytes) & (RUN * s->bits / 8 - 1)) == 0;
	s->x_in_runs = (uintptr_t)x % (RUN * sizeof(float)) == 0;
}

/* Codes [k, k + RUN) of the row; those behind its end are 0. */
GPU_FN struct gpu_raw read_run(const unsigned bits, const struct many_source *s, uint32_t k)
{
	const unsigned each = 32 / bits;
	struct gpu_raw r = { { 0, 0, 0, 0 } };

	if (s->in_runs && k + RUN <= s->n_in)
		return gpu_read_raw(RUN * bits / 8, s->row + (size_t)k * bits / 8);
	GPU_UNROLL
	for (unsigned i = 0; i < RUN; i++)
		if (k + i < s->n_in)
			r.w[i / each] |= gpu_raw_at(bits, s->row, k + i) << bits * (i % each);
	return r;
}

GPU_FN void read_runs(const unsigned bits, const struct many_source *s, uint32_t k, struct brought *b)
{
	GPU_UNROLL
	for (unsigned i = 0; i < RUNS; i++)
		b->code[i] = read_run(bits, s, k + i * RUN);
}

/* The thread's share of the stage from column k on. */
GPU_FN void bring(const struct many_source *s, uint32_t k, struct brought *b)
{
	const uint32_t at = k + s->at, x = k + s->x_at;

	switch (s->bits) {
	case 16: read_runs(16, s, at, b); break;
	case 8: read_runs(8, s, at, b); break;
	case 4: read_runs(4, s, at, b); break;
	default: read_runs(32, s, at, b);
	}
	b->scale = gpu_is_scaled(s->coding) && at < s->n_in ? gpu_scale_at(s->m, s->scale + at / s->m->group) : 1;
	if (s->x_in_runs && x + RUN <= s->n_in) {
		const gpu_f4 v = gpu_load_f4(s->x + x);

		b->x[0] = v.x, b->x[1] = v.y, b->x[2] = v.z, b->x[3] = v.w;
		return;
	}
	GPU_UNROLL
	for (unsigned i = 0; i < RUN; i++)
		b->x[i] = x + i < s->n_in ? s->x[x + i] : 0;
}

GPU_FN void store_run(float *at, const float *v)
{
	gpu_f4 all;

	all.x = v[0], all.y = v[1], all.z = v[2], all.w = v[3];
	gpu_store_f4(at, all);
}

/* The values of the thread's weights, of which `left` are before the row's end. Those behind it are -0, which adds
 * nothing: -0 times 0 is -0, and the sum of that and any number is the number, be it 0 or -0. */
GPU_FN void store_weights(const unsigned coding, const struct brought *b, uint32_t left, float *to)
{
	GPU_UNROLL
	for (unsigned i = 0; i < RUNS; i++) {
		float w[RUN];

		gpu_decode(coding, RUN, b->code[i], w);
		if (gpu_is_scaled(coding)) {
			GPU_UNROLL
			for (unsigned n = 0; n < RUN; n++)
				w[n] *= b->scale;
		}
		if (left < OWN) {
			GPU_UNROLL
			for (unsigned n = 0; n < RUN; n++)
				if (i * RUN + n >= left)
					w[n] = -0.0f;
		}
		store_run(to + i * RUN, w);
	}
}

/* k: the stage's first column. */
GPU_FN void store(const struct many_source *s, uint32_t k, const struct brought *b, float *stage)
{
	const uint32_t at = k + s->at, left = at < s->n_in ? s->n_in - at : 0;
	float *const w = stage + s->at / GPU_LANES * W_STEP + own_out() * GPU_LANES + s->at % GPU_LANES;

	switch (s->coding) {
	case GPU_BF16: store_weights(GPU_BF16, b, left, w); break;
	case GPU_F16: store_weights(GPU_F16, b, left, w); break;
	case GPU_F32: store_weights(GPU_F32, b, left, w); break;
	case GPU_E4M3: store_weights(GPU_E4M3, b, left, w); break;
	case GPU_E5M2: store_weights(GPU_E5M2, b, left, w); break;
	case GPU_INT8: store_weights(GPU_INT8, b, left, w); break;
	case GPU_SCALED_I8: store_weights(GPU_SCALED_I8, b, left, w); break;
	case GPU_SCALED_U8: store_weights(GPU_SCALED_U8, b, left, w); break;
	case GPU_SCALED_U4: store_weights(GPU_SCALED_U4, b, left, w); break;
	case GPU_SCALED_E2M1: store_weights(GPU_SCALED_E2M1, b, left, w); break;
	case GPU_SCALED_E4M3: store_weights(GPU_SCALED_E4M3, b, left, w); break;
	default: store_weights(GPU_SCALED_E5M2, b, left, w);
	}
	store_run(stage + STEPS * W_STEP + s->x_at / GPU_LANES * X_STEP + own_row() * GPU_LANES + s->x_at % GPU_LANES,
		  b->x);
}

/* The thread's share of the block: its first output, its first row, its first lane. Threads that read the same are one
 * or two lanes of the warp apart, for which shared memory reads once. */
GPU_FN uint32_t first_out(void)
{
	return gpu_warp() % (OUTS / SIDE) * SIDE + gpu_lane() % 2;
}

GPU_FN uint32_t first_row(void)
{
	return gpu_warp() / (OUTS / SIDE) * SIDE + gpu_lane() / 2 % 2;
}

GPU_FN uint32_t first_lane(void)
{
	return gpu_lane() / 4 * LANES;
}

/* sum[output][row][lane] */
GPU_FN void add_stage(const float *stage, float (*sum)[EACH][LANES])
{
	const float *w = stage + first_out() * GPU_LANES + first_lane();
	const float *x = stage + STEPS * W_STEP + first_row() * GPU_LANES + first_lane();

	GPU_UNROLL
	for (unsigned step = 0; step < STEPS; step++) {
		gpu_f2 by[EACH];

		GPU_UNROLL
		for (unsigned j = 0; j < EACH; j++)
			by[j] = gpu_shared_f2(w + step * W_STEP + 2 * j * GPU_LANES);
		GPU_UNROLL
		for (unsigned i = 0; i < EACH; i++) {
			const gpu_f2 v = gpu_shared_f2(x + step * X_STEP + 2 * i * GPU_LANES);

			GPU_UNROLL
			for (unsigned j = 0; j < EACH; j++) {
				sum[j][i][0] = fmaf(by[j].x, v.x, sum[j][i][0]);
				sum[j][i][1] = fmaf(by[j].y, v.y, sum[j][i][1]);
			}
		}
	}
}

/* adds: the warp has outputs and rows that there are. Without, it still brings its share, and meets the barriers. */
GPU_FN void add_all(const struct many_source *s, bool adds, float (*sum)[EACH][LANES])
{
	float *now = (float *)(void *)gpu_shared(), *next = now + STAGE;
	struct brought b;

	GPU_UNROLL
	for (unsigned j = 0; j < EACH; j++) {
		GPU_UNROLL
		for (unsigned i = 0; i < EACH; i++)
			sum[j][i][0] = sum[j][i][1] = 0;
	}
	bring(s, 0, &b);
	store(s, 0, &b, now);
	gpu_sync(); /* the first stage is there */
	GPU_NO_UNROLL
	for (uint32_t k = COLUMNS; k < s->n_in; k += COLUMNS) {
		float *const other = now;

		bring(s, k, &b); /* its loads are under way while the stage before is added */
		if (adds)
			add_stage(now, sum);
		store(s, k, &b, next);
		gpu_sync(); /* the next stage is there, and all have read this one, which is written next */
		now = next;
		next = other;
	}
	if (adds)
		add_stage(now, sum);
}

/* Sum of an output and a row over all lanes. All lanes of the warp call this. */
GPU_FN float end_sum(const float *sum, const struct gpu_mat *m, uint32_t out)
{
	const float y = gpu_fold_apart(sum, LANES, GPU_WARP * LANES / GPU_LANES);

	return gpu_canonical(m->coding == GPU_INT8 ? y * m->scale[out] : y);
}

/* i, or the last one of n: of those behind it threads bring the last one again, and store nothing. */
GPU_FN uint32_t at_most(uint32_t i, uint32_t n)
{
	return i < n ? i : n - 1;
}

/* Whether the warp has any of n_out outputs and n_rows rows, from the block's first on. */
GPU_FN bool has_any(uint32_t n_out, uint32_t n_rows)
{
	return first_out() / SIDE * SIDE < n_out && first_row() / SIDE * SIDE < n_rows;
}

GPU_DENSE_KERNEL(gpu_many_products, struct gpu_products, THREADS, 1)
{
	const uint32_t row = gpu_block_x() * ROWS;
	const struct gpu_product *p;
	float sum[EACH][EACH][LANES];
	struct many_source s;
	uint32_t i = 0, out, n_rows, n_out;

	while (i + 1 < a.n && a.p[i + 1].first_block <= gpu_block_y())
		i++;
	p = &a.p[i];
	if (row >= p->n_rows)
		return;
	out = (gpu_block_y() - p->first_block) * OUTS;
	n_out = p->w.n_out - out;
	n_rows = p->n_rows - row;
	begin_source(&s, &p->w, out + at_most(own_out(), n_out),
		     p->x + (row + at_most(own_row(), n_rows)) * p->x_stride);
	add_all(&s, has_any(n_out, n_rows), sum);
	if (!has_any(n_out, n_rows))
		return;
	GPU_UNROLL
	for (unsigned j = 0; j < EACH; j++) {
		const uint32_t o = first_out() + 2 * j;

		GPU_UNROLL
		for (unsigned r = 0; r < EACH; r++) {
			const float y = end_sum(sum[j][r], &p->w, out + at_most(o, n_out));

			if (first_lane() == 0 && o < n_out && first_row() + 2 * r < n_rows)
				p->y[(row + first_row() + 2 * r) * p->y_stride + out + o] = y;
		}
	}
}

/* Where row `row` of the tile goes to. */
GPU_FN float *expert_row(const struct gpu_expert_products *a, const struct gpu_tile *tile, uint32_t row, bool up)
{
	const uint32_t at = tile->first + row;

	return a->down ? a->y + (size_t)a->pair[at] * a->hidden :
			 (up ? a->up : a->gate) + (size_t)(at - a->first) * a->intermediate;
}

GPU_DENSE_KERNEL(gpu_many_experts, struct gpu_expert_products, THREADS, 1)
{
	const uint32_t n_out = a.down ? a.hidden : a.intermediate, blocks = (n_out + OUTS - 1) / OUTS;
	const bool up = !a.down && gpu_block_y() >= blocks;
	const uint32_t out = (gpu_block_y() - (up ? blocks : 0)) * OUTS, left = n_out - out;
	float sum[EACH][EACH][LANES];
	const struct gpu_expert *e;
	struct gpu_tile tile;
	struct gpu_mat m;
	struct many_source s;
	uint32_t at;

	if (!gpu_find_tile(ROWS, &a, &tile))
		return;
	e = &a.expert[tile.expert];
	m = e->mat[a.down ? GPU_DOWN : up ? GPU_UP : GPU_GATE];
	at = tile.first + at_most(own_row(), tile.n);
	begin_source(&s, &m, out + at_most(own_out(), left),
		     a.down ? a.gate + (size_t)(at - a.first) * a.intermediate :
			      a.x + (size_t)(a.pair[at] / a.top_k) * a.hidden);
	add_all(&s, has_any(left, tile.n), sum);
	if (!has_any(left, tile.n))
		return;
	GPU_UNROLL
	for (unsigned r = 0; r < EACH; r++) {
		const uint32_t i = first_row() + 2 * r;
		float *const to = expert_row(&a, &tile, at_most(i, tile.n), up);

		GPU_UNROLL
		for (unsigned j = 0; j < EACH; j++) {
			const uint32_t o = out + at_most(first_out() + 2 * j, left);
			const float y = end_sum(sum[j][r], &m, o);

			if (first_lane() == 0 && first_out() + 2 * j < left && i < tile.n)
				to[o] = a.down ? gpu_end_down(&a, e, o, y) : y;
		}
	}
}

size_t gpu_many_shared(void)
{
	return 2 * STAGE * sizeof(float);
}

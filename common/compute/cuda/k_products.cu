/* Products of weights with rows: OD_OP_LINEAR, and the matrices of OD_OP_FFN and OD_OP_EXPERTS.
 *
 * A dot product has 16 lanes (backend.h), which are independent chains of multiply-adds: some neighbouring threads share an output,
 * each with some of its lanes, and fold them at the end. A matrix of few outputs has few chains, so it is not threads that keep the
 * memory busy, but how much each has asked for: a warp copies its rows of weights to shared memory, many pieces ahead of the sums and
 * in whole lines. It copies x along with them: a read of x from the first cache would wait for all copies before it. */
#include "common/compute/cuda/gpu_weights.h"

#define SHARE 8u		  /* threads of an output */
#define LANES (GPU_LANES / SHARE) /* of an output that a thread has */
#define OUTS 2u			  /* outputs of a thread */
#define SUMS (OUTS * LANES)	  /* of a thread and a row of x */
#define SLOTS (GPU_WARP / SHARE)  /* a thread's outputs are so many apart */
#define WARP_OUTS (OUTS * SLOTS)
#define BLOCK_OUTS (GPU_PRODUCT_THREADS / GPU_WARP * WARP_OUTS)

#define UNIT 16u	       /* bytes that a thread copies at a time */
#define PIECE (SHARE * UNIT)   /* of a row of weights */
#define WEIGHTS (WARP_OUTS * PIECE) /* of a stage of a warp's ring; x is behind them */
#define MOST_X 2048u		    /* bytes of x in a stage; more is not copied */
#define RING 14336u		    /* bytes of a warp's ring, at most; NF4's values are before the first */

#define GROUP 64u /* weights of a group of INT8_GROUP and NF4 */
#define NF4_PIECE 128u

GPU_FN bool is_grouped(const unsigned form)
{
	return form == GPU_INT8_GROUP || form == GPU_NF4;
}

/* Weights of a row whose lanes are read together. */
GPU_FN unsigned step_of(const unsigned form)
{
	return form == GPU_NF4 ? NF4_PIECE : GPU_LANES;
}

/* Bytes of n weights, which are whole ones. */
GPU_FN size_t bytes_of(const unsigned form, size_t n)
{
	return form == GPU_NF4 ? n / 2 : gpu_codes_bytes(form, n);
}

/* Bytes of a step that one thread reads. */
GPU_FN unsigned own_bytes(const unsigned form)
{
	return (unsigned)bytes_of(form, step_of(form)) / SHARE;
}

/* Columns of a piece. */
GPU_FN unsigned columns_of(const unsigned form)
{
	return PIECE / (own_bytes(form) * SHARE) * step_of(form);
}

/* Whether the ring has x of R rows. */
GPU_FN bool has_x(const unsigned form, const unsigned R)
{
	return R * columns_of(form) * sizeof(float) <= MOST_X;
}

GPU_FN unsigned stage_bytes(const unsigned form, const unsigned R)
{
	return WEIGHTS + (has_x(form, R) ? R * columns_of(form) * (unsigned)sizeof(float) : 0);
}

/* Of a ring: 4, 7, 9 or 11; where copies are waited for, one ahead is enough. */
GPU_FN unsigned stages_of(const unsigned form, const unsigned R)
{
	const unsigned n = RING / stage_bytes(form, R);

	return GPU_SINCE_80(n >= 11 ? 11u : n >= 9 ? 9u : n >= 7 ? 7u : 4u, 2u);
}

GPU_CONSTANT const float nf4_values[16] = { /* od_nf4_values (quant.h) */
	-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
	-0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
	0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
	0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f,
};

/* From shared memory: other than constants, different elements are read by the lanes of a warp at once. */
GPU_FN float nf4_value(uint32_t code)
{
	return ((const float *)(const void *)gpu_shared())[code & 15u];
}

GPU_FN void share_nf4(void)
{
	if (gpu_thread() < 16)
		((float *)(void *)gpu_shared())[gpu_thread()] = nf4_values[gpu_thread()];
	gpu_sync();
}

/* The code of weight i of a row, without scale. */
GPU_FN float code_at(const unsigned form, const unsigned char *row, size_t i)
{
	/* quant.h: word i of 16 has the codes of eight weights of its lane. */
	const size_t in = i % NF4_PIECE, lane = in % 16, j = in % GROUP / 16 * 2 + in / GROUP;
	const unsigned char *word = row + i / NF4_PIECE * (NF4_PIECE / 2) + lane * 4;

	if (form == GPU_NF4)
		return nf4_value(word[j / 2] >> 4 * (j % 2));
	return gpu_code_at(form, row, i);
}

/* ---- What a thread has of a block's outputs and rows ---- */

struct outputs {
	const struct gpu_mat *m;
	const unsigned char *row[OUTS];	  /* of weights; an output behind the last one is as that, and not stored */
	const float *x[GPU_PRODUCT_ROWS]; /* from the thread's lanes on; rows behind the last one likewise */
	uint32_t first, lane;		  /* its first output; the first of its lanes */
	bool aligned, x_in_units;	  /* all x: to LANES, to UNIT */
};

/* Sums: [rows][outputs][lanes] of the thread; of a group of 64 apart.
 * Scales hold until column `until`; the next one of each output is scale next[] of all. Where it is known which come next, they have
 * been read ahead: those of groups of 64, and in pieces of some whole groups, of which the threads of an output read one each; shared is
 * how many. */
struct sums {
	float sum[GPU_PRODUCT_ROWS * SUMS], part[GPU_PRODUCT_ROWS * SUMS];
	float scale[OUTS], ahead[OUTS];
	size_t next[OUTS];
	uint32_t until, shared;
};

GPU_FN uint32_t output_of(const struct outputs *t, unsigned j)
{
	return t->first + j * SLOTS;
}

/* to[r][j][i] += w[j][i] * x[r][k + i]. in_ring: x is the thread's of that column in the ring; else it is not used. */
GPU_FN void add(const unsigned form, const unsigned R, const struct outputs *t, size_t k, const bool in_ring, const float *x,
		const float *w, float *to)
{
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++) {
		const gpu_f2 by = in_ring ? gpu_shared_f2(x + r * columns_of(form)) : gpu_load_f2(t->x[r] + k);

		GPU_UNROLL
		for (unsigned j = 0; j < OUTS; j++) {
			float *sum = to + r * SUMS + j * LANES;

			sum[0] = fmaf(w[j * LANES], by.x, sum[0]);
			sum[1] = fmaf(w[j * LANES + 1], by.y, sum[1]);
		}
	}
}

/* Columns that share a scale. */
GPU_FN uint32_t group_of(const unsigned form, const struct outputs *t)
{
	return is_grouped(form) ? GROUP : t->m->group;
}

/* Scale next[] + i of each output; the next one is n on. */
GPU_FN void read_scales(const unsigned form, const struct outputs *t, struct sums *s, unsigned i, unsigned n, float *to)
{
	GPU_UNROLL
	for (unsigned j = 0; j < OUTS; j++) {
		to[j] = is_grouped(form) ? t->m->scale[s->next[j] + i] : gpu_scale_at(t->m, s->next[j] + i);
		s->next[j] += n;
	}
}

GPU_FN void begin_sums(const unsigned form, const unsigned R, const struct outputs *t, struct sums *s)
{
	const uint32_t groups = gpu_is_scaled(form) || is_grouped(form) ? (t->m->n_in + group_of(form, t) - 1) / group_of(form, t) : 0;

	GPU_UNROLL
	for (unsigned i = 0; i < R * SUMS; i++)
		s->sum[i] = s->part[i] = 0;
	s->until = s->shared = 0;
	GPU_UNROLL
	for (unsigned j = 0; j < OUTS; j++)
		s->next[j] = (size_t)(output_of(t, j) < t->m->n_out ? output_of(t, j) : t->m->n_out - 1) * groups;
	if (is_grouped(form))
		read_scales(form, t, s, 0, 1, s->ahead);
}

/* Before column k. */
GPU_FN void need_scales(const unsigned form, const struct outputs *t, size_t k, struct sums *s)
{
	if (!gpu_is_scaled(form) || k < s->until)
		return;
	read_scales(form, t, s, 0, 1, s->scale);
	s->until += t->m->group;
}

/* Of the next piece of s->shared groups. */
GPU_FN void read_ahead(const unsigned form, const struct outputs *t, struct sums *s)
{
	read_scales(form, t, s, gpu_lane() % SHARE < s->shared ? gpu_lane() % SHARE : 0, s->shared, s->ahead);
}

/* A group of 64 ends: lane = fma(the group's sum, scale, lane). */
GPU_FN void end_group(const unsigned form, const unsigned R, const struct outputs *t, struct sums *s)
{
	GPU_UNROLL
	for (unsigned i = 0; i < R * SUMS; i++) {
		s->sum[i] = fmaf(s->part[i], s->ahead[i / LANES % OUTS], s->sum[i]);
		s->part[i] = 0;
	}
	s->until += GROUP;
	if (s->until < t->m->n_in)
		read_scales(form, t, s, 0, 1, s->ahead);
}

/* A step of weights from column k on; code[j]: where the thread's begin. scale [OUTS], if the form is scaled. */
GPU_FN void add_step(const unsigned form, const unsigned R, const struct outputs *t, size_t k, const bool in_ring, const float *x,
		     const unsigned char *const *code, const float *scale, struct sums *s)
{
	float w[SUMS];

	GPU_UNROLL
	for (unsigned j = 0; j < OUTS; j++) {
		gpu_decode(form, LANES, gpu_read_raw(own_bytes(form), code[j]), w + j * LANES);
		GPU_UNROLL
		for (unsigned i = 0; gpu_is_scaled(form) && i < LANES; i++)
			w[j * LANES + i] *= scale[j];
	}
	add(form, R, t, k, in_ring, x, w, form == GPU_INT8_GROUP ? s->part : s->sum);
	if (form == GPU_INT8_GROUP && (k + GPU_LANES) % GROUP == 0)
		end_group(form, R, t, s);
}

GPU_FN void add_nf4(const unsigned R, const struct outputs *t, size_t k, const bool in_ring, const float *x,
		    const unsigned char *const *code, struct sums *s)
{
	struct gpu_raw raw[OUTS];

	GPU_UNROLL
	for (unsigned j = 0; j < OUTS; j++)
		raw[j] = gpu_read_raw(own_bytes(GPU_NF4), code[j]);
	GPU_NO_UNROLL
	for (unsigned g = 0; g < NF4_PIECE / GROUP; g++) { /* quant.h: group g has the codes 2 * i + g of a lane */
		GPU_UNROLL
		for (unsigned i = 0; i < GROUP / GPU_LANES; i++) {
			float w[SUMS];

			GPU_UNROLL
			for (unsigned n = 0; n < SUMS; n++)
				w[n] = nf4_value(raw[n / LANES].w[n % LANES] >> 4 * (2 * i + g));
			add(GPU_NF4, R, t, k + GROUP * g + GPU_LANES * i, in_ring, x + GROUP * g + GPU_LANES * i, w, s->part);
		}
		end_group(GPU_NF4, R, t, s);
	}
}

GPU_FN void add_codes(const unsigned form, const unsigned R, const struct outputs *t, size_t k, const bool in_ring, const float *x,
		      const unsigned char *const *code, struct sums *s)
{
	if (form == GPU_NF4) {
		add_nf4(R, t, k, in_ring, x, code, s);
		return;
	}
	need_scales(form, t, k, s);
	add_step(form, R, t, k, in_ring, x, code, s->scale, s);
}

/* ---- The ring: a warp's weights on their way ---- */

/* Output r of a warp has its units of a piece in an order of its own: so what a warp reads together, the same units of some outputs, is in
 * different banks. */
GPU_FN unsigned swap_of(const unsigned form, unsigned r)
{
	const unsigned units = own_bytes(form) * SHARE > UNIT ? own_bytes(form) * SHARE / UNIT : 1; /* of a step */

	return r % (SHARE / units) * units;
}

GPU_FN void copy_piece(const unsigned form, const struct outputs *t, uint32_t piece, unsigned char *stage)
{
	const unsigned unit = gpu_lane() % SHARE;

	GPU_UNROLL
	for (unsigned j = 0; j < OUTS; j++) {
		const unsigned r = gpu_lane() / SHARE + j * SLOTS;

		gpu_copy_16(stage + r * PIECE + (unit ^ swap_of(form, r)) * UNIT, t->row[j] + (size_t)piece * PIECE + unit * UNIT);
	}
}

/* x of a piece of all rows, one after the other. */
GPU_FN void copy_x(const unsigned form, const unsigned R, const struct outputs *t, uint32_t piece, unsigned char *to)
{
	const unsigned units = columns_of(form) * (unsigned)sizeof(float) / UNIT; /* of a row */

	GPU_UNROLL
	for (unsigned r = 0; r < R; r++) {
		GPU_UNROLL
		for (unsigned u = 0; u < units; u += GPU_WARP)
			if (u + gpu_lane() < units)
				gpu_copy_16(to + (r * units + u + gpu_lane()) * UNIT,
					    t->x[r] - t->lane + (size_t)piece * columns_of(form) + (u + gpu_lane()) * (UNIT / sizeof(float)));
	}
}

GPU_FN void copy_stage(const unsigned form, const unsigned R, const struct outputs *t, uint32_t piece, unsigned char *stage)
{
	copy_piece(form, t, piece, stage);
	if (has_x(form, R))
		copy_x(form, R, t, piece, stage + WEIGHTS);
}

/* The thread's x of column k of a stage's piece. */
GPU_FN const float *x_of(const struct outputs *t, const unsigned char *stage, size_t k)
{
	return (const float *)(const void *)(stage + WEIGHTS) + k + t->lane;
}

/* Where the thread's weights of step i are. */
GPU_FN void find_codes(const unsigned form, const unsigned char *stage, unsigned i, const unsigned char **code)
{
	GPU_UNROLL
	for (unsigned j = 0; j < OUTS; j++) {
		const unsigned r = gpu_lane() / SHARE + j * SLOTS;
		const unsigned mine = swap_of(form, r) * UNIT + gpu_lane() % SHARE * own_bytes(form);

		code[j] = stage + r * PIECE + (mine ^ i * own_bytes(form) * SHARE); /* unit u is at u ^ swap_of(r) */
	}
}

GPU_FN void add_piece(const unsigned form, const unsigned R, const struct outputs *t, size_t k, const unsigned char *stage, struct sums *s)
{
	const unsigned steps = PIECE / (own_bytes(form) * SHARE);
	/* As many steps as leave registers for all sums; few with what reads their scales. */
	const unsigned most = form == GPU_NF4 ? 1 : R > 4 || gpu_is_scaled(form) ? 2 : R > 2 || is_grouped(form) ? 4 : steps;
	const unsigned together = most < steps ? most : steps;

	GPU_NO_UNROLL
	for (unsigned begin = 0; begin < steps; begin += together) {
		GPU_UNROLL
		for (unsigned i = begin; i < begin + together; i++) {
			const unsigned char *code[OUTS];

			find_codes(form, stage, i, code);
			add_codes(form, R, t, k + i * step_of(form), has_x(form, R), x_of(t, stage, i * step_of(form)), code, s);
		}
	}
}

/* A piece of s->shared groups of one scale each; more: another piece follows. */
GPU_FN void add_shared_piece(const unsigned form, const unsigned R, const struct outputs *t, size_t k, const unsigned char *stage,
			     bool more, struct sums *s)
{
	const unsigned steps = PIECE / (own_bytes(form) * SHARE);
	float shared[OUTS];

	GPU_UNROLL
	for (unsigned j = 0; j < OUTS; j++)
		shared[j] = s->ahead[j];
	if (more)
		read_ahead(form, t, s);
	s->until += steps * GPU_LANES;
	GPU_UNROLL_N(2)
	for (unsigned i = 0; i < steps; i++) {
		const unsigned char *code[OUTS];
		float scale[OUTS];

		GPU_UNROLL
		for (unsigned j = 0; j < OUTS; j++) /* a power of two divides the others */
			scale[j] = gpu_shuffle_from(shared[j], gpu_lane() / SHARE * SHARE + i * s->shared / steps);
		find_codes(form, stage, i, code);
		add_step(form, R, t, k + i * GPU_LANES, has_x(form, R), x_of(t, stage, i * GPU_LANES), code, scale, s);
	}
}

/* All but the last n - 2 of n stages that the thread has asked for are there. */
GPU_FN void wait_stage(const unsigned n)
{
	switch (n) { /* the number is a part of the instruction */
	case 11: gpu_wait_copies(9); break;
	case 9: gpu_wait_copies(7); break;
	case 7: gpu_wait_copies(5); break;
	case 4: gpu_wait_copies(2); break;
	default: gpu_wait_copies(0);
	}
}

/* All whole pieces of the rows; returns how many columns these are. */
GPU_FN uint32_t add_pieces(const unsigned form, const unsigned R, const struct outputs *t, struct sums *s)
{
	const uint32_t columns = columns_of(form), n = t->m->n_in / columns, stages = stages_of(form, R), bytes = stage_bytes(form, R);
	unsigned char *ring = gpu_shared() + (form == GPU_NF4 ? sizeof(nf4_values) : 0) + gpu_warp() * stages * bytes;
	uint32_t now = 0;

	if (gpu_is_scaled(form) && n > 0 && columns % t->m->group == 0 && columns / t->m->group <= SHARE) {
		s->shared = columns / t->m->group;
		read_ahead(form, t, s);
	}
	GPU_NO_UNROLL
	for (uint32_t i = 0; i + 1 < stages; i++) {
		if (i < n)
			copy_stage(form, R, t, i, ring + i * bytes);
		gpu_end_copies();
	}
	GPU_NO_UNROLL
	for (uint32_t i = 0; i < n; i++) {
		wait_stage(stages);
		gpu_sync_warp(); /* others' copies are there, too, and the stage before has been read */
		if (i + stages - 1 < n)
			copy_stage(form, R, t, i + stages - 1, ring + (now > 0 ? now - 1 : stages - 1) * bytes);
		gpu_end_copies();
		if (gpu_is_scaled(form) && s->shared > 0)
			add_shared_piece(form, R, t, (size_t)i * columns, ring + now * bytes, i + 1 < n, s);
		else
			add_piece(form, R, t, (size_t)i * columns, ring + now * bytes, s);
		now = now + 1 < stages ? now + 1 : 0;
	}
	return n * columns;
}

/* ---- Sums ---- */

/* Column by column, of any alignment, from k on. */
GPU_FN void add_slowly(const unsigned form, const unsigned R, const struct outputs *t, size_t k, struct sums *s)
{
	const struct gpu_mat *m = t->m;

	GPU_NO_UNROLL
	for (; k < m->n_in; k += GPU_LANES) {
		need_scales(form, t, k, s);
		GPU_UNROLL
		for (unsigned n = 0; n < SUMS; n++) {
			const unsigned i = n % LANES;

			if (k + t->lane + i >= m->n_in)
				continue;
			GPU_UNROLL
			for (unsigned r = 0; r < R; r++) {
				const float code = code_at(form, t->row[n / LANES], k + t->lane + i);
				float *to = (is_grouped(form) ? s->part : s->sum) + r * SUMS + n;

				*to = fmaf(gpu_is_scaled(form) ? code * s->scale[n / LANES] : code, t->x[r][k + i], *to);
			}
		}
		if (is_grouped(form) && ((k + GPU_LANES) % GROUP == 0 || k + GPU_LANES >= m->n_in))
			end_group(form, R, t, s);
	}
}

/* Whether the matrix's rows are aligned to so many bytes. */
GPU_FN bool is_aligned(const struct outputs *t, size_t bytes)
{
	return t->aligned && t->m->row_bytes % bytes == 0 && (uintptr_t)t->m->data % bytes == 0;
}

/* All lanes of a tile. */
GPU_FN void dots(const unsigned form, const unsigned R, const struct outputs *t, struct sums *s)
{
	const size_t n = t->m->n_in;
	size_t k = 0;

	begin_sums(form, R, t, s);
	if (is_aligned(t, UNIT) && (t->x_in_units || !has_x(form, R)))
		k = add_pieces(form, R, t, s);
	if (is_aligned(t, own_bytes(form))) { /* what is left of the last piece */
		GPU_NO_UNROLL
		for (; k + step_of(form) <= n; k += step_of(form)) {
			const unsigned char *code[OUTS];

			GPU_UNROLL
			for (unsigned j = 0; j < OUTS; j++)
				code[j] = t->row[j] + bytes_of(form, k) + gpu_lane() % SHARE * own_bytes(form);
			add_codes(form, R, t, k, false, t->x[0], code, s);
		}
	}
	/* A group that the steps have begun goes on in part. */
	if (k < n)
		add_slowly(form, R, t, k, s);
	else if (form == GPU_INT8_GROUP && n % GROUP != 0)
		end_group(form, R, t, s);
}

/* The block's outputs begin with first. */
GPU_FN void begin_tile(const unsigned form, struct outputs *t, const struct gpu_mat *m, uint32_t first)
{
	if (form == GPU_NF4)
		share_nf4();
	t->m = m;
	t->first = first + gpu_warp() * WARP_OUTS + gpu_lane() / SHARE;
	GPU_UNROLL
	for (unsigned j = 0; j < OUTS; j++)
		t->row[j] = m->data + (output_of(t, j) < m->n_out ? output_of(t, j) : m->n_out - 1) * m->row_bytes;
	t->lane = gpu_lane() % SHARE * LANES;
	t->aligned = t->x_in_units = true;
}

GPU_FN void set_x(struct outputs *t, unsigned r, const float *x)
{
	t->x[r] = x + t->lane;
	t->aligned = t->aligned && (uintptr_t)x % (LANES * sizeof(float)) == 0;
	t->x_in_units = t->x_in_units && (uintptr_t)x % UNIT == 0;
}

/* Output j of row r. All lanes of the warp call this; one of SHARE threads stores it: *stores. */
GPU_FN float end_sum(const unsigned form, const struct outputs *t, const struct sums *s, unsigned r, unsigned j, bool *stores)
{
	const float y = gpu_fold(s->sum + r * SUMS + j * LANES, LANES);

	*stores = output_of(t, j) < t->m->n_out && t->lane == 0;
	return gpu_canonical(form == GPU_INT8 && *stores ? y * t->m->scale[output_of(t, j)] : y);
}

GPU_FN void products_of(const unsigned form, const unsigned R, const struct gpu_products *a)
{
	const unsigned first = gpu_block_x() * R;
	const struct gpu_product *p;
	struct sums s;
	struct outputs t;
	uint32_t i = 0, n;

	while (i + 1 < a->n && a->p[i + 1].first_block <= gpu_block_y())
		i++;
	p = &a->p[i];
	if (first >= p->n_rows)
		return;
	n = p->n_rows - first < R ? p->n_rows - first : R;
	begin_tile(form, &t, &p->w, (gpu_block_y() - p->first_block) * BLOCK_OUTS);
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++)
		set_x(&t, r, p->x + (first + (r < n ? r : n - 1)) * p->x_stride);
	dots(form, R, &t, &s);
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++) {
		GPU_UNROLL
		for (unsigned j = 0; j < OUTS; j++) {
			bool stores;
			const float y = end_sum(form, &t, &s, r, j, &stores);

			if (stores && r < n)
				p->y[(first + r) * p->y_stride + output_of(&t, j)] = y;
		}
	}
}

/* Experts of a round: which, the device has found out (k_experts.cu). */
GPU_FN void expert_products_of(const unsigned form, const unsigned R, const struct gpu_expert_products *a)
{
	const uint32_t n_out = a->down ? a->hidden : a->intermediate, blocks = (n_out + BLOCK_OUTS - 1) / BLOCK_OUTS;
	const uint32_t index = a->tiles_before[0] + gpu_block_x();
	const bool up = !a->down && gpu_block_y() >= blocks;
	const struct gpu_tile *tile;
	const struct gpu_mat *m;
	struct sums s;
	struct outputs t;

	if (index >= a->tiles_before[1])
		return;
	tile = &a->tile[index];
	m = &a->expert[tile->expert].mat[a->down ? GPU_DOWN : up ? GPU_UP : GPU_GATE];
	if (m->form != form)
		return;
	begin_tile(form, &t, m, (gpu_block_y() - (up ? blocks : 0)) * BLOCK_OUTS);
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++) {
		const uint32_t at = tile->first + (r < tile->n ? r : tile->n - 1);

		set_x(&t, r, a->down ? a->gate + (size_t)(at - a->first) * a->intermediate : a->x + (size_t)(a->pair[at] / a->top_k) * a->hidden);
	}
	dots(form, R, &t, &s);
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++) {
		float *to = r >= tile->n ? NULL :
			    a->down	 ? a->y + (size_t)a->pair[tile->first + r] * a->hidden :
					   (up ? a->up : a->gate) + (size_t)(tile->first + r - a->first) * a->intermediate;

		GPU_UNROLL
		for (unsigned j = 0; j < OUTS; j++) {
			bool stores;
			const float y = end_sum(form, &t, &s, r, j, &stores);

			if (stores && to != NULL)
				to[output_of(&t, j)] = y;
		}
	}
}

/* Of a multiprocessor: as many as get on without spilled registers. */
#define BLOCKS(rows) ((rows) == 8 ? 4 : 5)

#define PRODUCTS(form, rows)                                                                                     \
	GPU_DENSE_KERNEL(gpu_products_##form##_##rows, struct gpu_products, GPU_PRODUCT_THREADS, BLOCKS(rows))   \
	{                                                                                                        \
		products_of(form, rows, &a);                                                                     \
	}                                                                                                        \
	GPU_DENSE_KERNEL(gpu_experts_##form##_##rows, struct gpu_expert_products, GPU_PRODUCT_THREADS, BLOCKS(rows))\
	{                                                                                                        \
		expert_products_of(form, rows, &a);                                                              \
	}
#define FORM(form) PRODUCTS(form, 1) PRODUCTS(form, 2) PRODUCTS(form, 4) PRODUCTS(form, 8)
#define NAMES(form) \
	{ gpu_products_##form##_1, gpu_products_##form##_2, gpu_products_##form##_4, gpu_products_##form##_8 }

FORM(GPU_BF16)
FORM(GPU_F16)
FORM(GPU_F32)
FORM(GPU_E4M3)
FORM(GPU_E5M2)
FORM(GPU_INT8)
FORM(GPU_INT8_GROUP)
FORM(GPU_NF4)
FORM(GPU_SCALED_I8)
FORM(GPU_SCALED_U8)
FORM(GPU_SCALED_U4)
FORM(GPU_SCALED_E2M1)
FORM(GPU_SCALED_E4M3)
FORM(GPU_SCALED_E5M2)

gpu_products_fn *const gpu_products[GPU_N_FORMS][4] = {
	NAMES(GPU_BF16), NAMES(GPU_F16), NAMES(GPU_F32), NAMES(GPU_E4M3), NAMES(GPU_E5M2), NAMES(GPU_INT8), NAMES(GPU_INT8_GROUP),
	NAMES(GPU_NF4), NAMES(GPU_SCALED_I8), NAMES(GPU_SCALED_U8), NAMES(GPU_SCALED_U4), NAMES(GPU_SCALED_E2M1),
	NAMES(GPU_SCALED_E4M3), NAMES(GPU_SCALED_E5M2),
};

#define EXPERTS(form) \
	{ gpu_experts_##form##_1, gpu_experts_##form##_2, gpu_experts_##form##_4, gpu_experts_##form##_8 }

gpu_expert_products_fn *const gpu_expert_products[GPU_N_FORMS][4] = {
	EXPERTS(GPU_BF16), EXPERTS(GPU_F16), EXPERTS(GPU_F32), EXPERTS(GPU_E4M3), EXPERTS(GPU_E5M2), EXPERTS(GPU_INT8),
	EXPERTS(GPU_INT8_GROUP), EXPERTS(GPU_NF4), EXPERTS(GPU_SCALED_I8), EXPERTS(GPU_SCALED_U8), EXPERTS(GPU_SCALED_U4),
	EXPERTS(GPU_SCALED_E2M1), EXPERTS(GPU_SCALED_E4M3), EXPERTS(GPU_SCALED_E5M2),
};

size_t gpu_product_shared(enum gpu_form form)
{
	return GPU_PRODUCT_THREADS / GPU_WARP * RING + (form == GPU_NF4 ? sizeof(nf4_values) : 0);
}

unsigned gpu_product_outs(void)
{
	return BLOCK_OUTS;
}

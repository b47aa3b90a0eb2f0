/* Products of weights with rows: OD_OP_LINEAR, and the matrices of OD_OP_FFN and OD_OP_EXPERTS.
 *
 * A dot product has 16 lanes (backend.h), which are independent chains of multiply-adds: some neighbouring threads
 * share an output, each with some of its lanes, and fold them at the end. A matrix of few outputs has few chains, so it
 * is not threads that keep the memory busy, but how much each has asked for: a warp copies its rows of weights to
 * shared memory, many pieces ahead of the sums and in whole lines. Scales come along with them, and x, which the
 * block's warps share: a read from the first cache would wait for all copies before it. */
#include "common/compute/cuda/gpu_rows.h"
#include "common/compute/cuda/gpu_tiles.h"
#include "common/compute/cuda/gpu_weights.h"

#define SUMS 4u /* sums of a thread and a row of x: four lanes of an output, or two of two */
#define MOST_LANES 4u
#define MOST_OUTS 2u
#define WARP_OUTS (GPU_WARP * SUMS / GPU_LANES)
#define WARPS (GPU_PRODUCT_THREADS / GPU_WARP)
#define BLOCK_OUTS (WARPS * WARP_OUTS)
static_assert(BLOCK_OUTS == GPU_PRODUCT_OUTS, "kernels.h");

#define UNIT 16u /* bytes that a thread copies at a time */
#define PIECE 128u /* bytes of a row of weights */
#define COPIERS (PIECE / UNIT) /* threads that copy a piece of a row */
#define COPIES (WARP_OUTS * COPIERS / GPU_WARP) /* weights that a thread copies, in units */
#define MOST_X 2048u /* bytes of x in a stage; more is not copied */
#define MOST_STAGES 12u /* limit of a ring */
#define RING 30720u /* bytes of the block's ring, at most */
#define RING_16 27648u /* limit for one row of 16 bits (gpu_product_shared) */

#define GROUP 64u /* weights of a group of NF4 */
#define NF4_PIECE 128u

/* Lanes of an output that a thread has. With four it reads four codes of a byte at once, but x serves one output only:
 * so for one row. */
GPU_FN unsigned lanes_of(const unsigned coding, const unsigned R)
{
	return R == 1 && coding != GPU_NF4 && gpu_code_bits(coding) == 8 ? MOST_LANES : SUMS / MOST_OUTS;
}

/* Outputs of a thread; they are slots_of apart. */
GPU_FN unsigned outs_of(const unsigned coding, const unsigned R)
{
	return SUMS / lanes_of(coding, R);
}

/* Threads of an output. */
GPU_FN unsigned share_of(const unsigned coding, const unsigned R)
{
	return GPU_LANES / lanes_of(coding, R);
}

/* Threads of neighbouring outputs are neighbours: they read the same x, which shared memory answers at once. */
GPU_FN unsigned slots_of(const unsigned coding, const unsigned R)
{
	return GPU_WARP / share_of(coding, R);
}

/* The thread's index among those of an output. */
GPU_FN unsigned share_index(const unsigned coding, const unsigned R)
{
	return gpu_lane() / slots_of(coding, R);
}

/* Its output j of the warp's. */
GPU_FN unsigned out_of(const unsigned coding, const unsigned R, unsigned j)
{
	return gpu_lane() % slots_of(coding, R) + j * slots_of(coding, R);
}

/* Weights of a row whose lanes are read together. */
GPU_FN unsigned step_of(const unsigned coding)
{
	return coding == GPU_NF4 ? NF4_PIECE : GPU_LANES;
}

/* Bytes of n weights, which are whole ones. */
GPU_FN size_t bytes_of(const unsigned coding, size_t n)
{
	return coding == GPU_NF4 ? n / 2 : gpu_codes_bytes(coding, n);
}

GPU_FN unsigned step_bytes(const unsigned coding)
{
	return (unsigned)bytes_of(coding, step_of(coding));
}

/* Bytes of a step that one thread reads. */
GPU_FN unsigned own_bytes(const unsigned coding, const unsigned R)
{
	return step_bytes(coding) / share_of(coding, R);
}

/* Columns of a piece. */
GPU_FN unsigned columns_of(const unsigned coding)
{
	return PIECE / step_bytes(coding) * step_of(coding);
}

/* Pieces of a row that are copied and waited for together, a stage: two where one is little work. */
GPU_FN unsigned pieces_of(const unsigned coding, const unsigned R)
{
	return R == 1 && coding != GPU_NF4 && !gpu_is_scaled(coding) ? 2 : 1;
}

GPU_FN unsigned stage_columns(const unsigned coding, const unsigned R)
{
	return pieces_of(coding, R) * columns_of(coding);
}

/* Groups of 64 of a stage of a row. */
GPU_FN unsigned stage_groups(const unsigned coding, const unsigned R)
{
	return coding == GPU_NF4 ? stage_columns(coding, R) / GROUP : 0;
}

/* Bytes of a row of x. */
GPU_FN unsigned x_bytes(const unsigned coding, const unsigned R)
{
	return coding == GPU_NF4 ? GPU_ROUNDED_BYTES : stage_columns(coding, R) * (unsigned)sizeof(float);
}

/* Whether the ring has x of R rows. */
GPU_FN bool has_x(const unsigned coding, const unsigned R)
{
	return coding == GPU_NF4 || R * x_bytes(coding, R) <= MOST_X;
}

/* A stage: of each warp pieces of weights of all outputs, one piece after the other; x; of each warp scales of
 * groups. */
GPU_FN unsigned weights_bytes(const unsigned coding, const unsigned R)
{
	return pieces_of(coding, R) * WARP_OUTS * PIECE;
}

GPU_FN unsigned x_begins(const unsigned coding, const unsigned R)
{
	return WARPS * weights_bytes(coding, R);
}

GPU_FN unsigned scales_begin(const unsigned coding, const unsigned R)
{
	return x_begins(coding, R) + (has_x(coding, R) ? R * x_bytes(coding, R) : 0);
}

/* Words of an output's scales: floats of groups of 64, or published ones as they are. */
GPU_FN unsigned stage_scales(const unsigned coding, const unsigned R)
{
	return gpu_is_scaled(coding) ? share_of(coding, R) : stage_groups(coding, R);
}

GPU_FN unsigned scales_bytes(const unsigned coding, const unsigned R)
{
	return WARP_OUTS * stage_scales(coding, R) * (unsigned)sizeof(float);
}

GPU_FN unsigned stage_bytes(const unsigned coding, const unsigned R)
{
	return scales_begin(coding, R) + WARPS * scales_bytes(coding, R);
}

/* Stages of a ring; where copies are waited for, one ahead is enough. */
GPU_FN unsigned stages_of(const unsigned coding, const unsigned R)
{
	const unsigned n = RING / stage_bytes(coding, R);

	return GPU_SINCE_80(n < MOST_STAGES ? n : MOST_STAGES, 2u);
}

/* ---- What a thread has of a block's outputs and rows ---- */

struct outputs {
	const struct gpu_mat *m;
	uint32_t n_out, n_in; /* m's: to read them from memory again would be to wait for copies */
	/* Weights of a matrix like m with the second half of the warp's rows; NULL: none. */
	const unsigned char *second;
	const unsigned char *row[MOST_OUTS]; /* weights; outputs past the last repeat it, and are discarded */
	const float *x[GPU_PRODUCT_ROWS]; /* from the thread's lanes on; rows behind the last one likewise */
	uint32_t warp, first, lane; /* the warp's first output; the thread's; the first of its lanes */
	float scale[MOST_OUTS]; /* INT8's, read before copies are asked for */
	bool aligned, x_in_units; /* all x: to two floats, to UNIT */
};

/* The thread's sums: [rows][outputs][lanes]. Published scales: scale[] holds for columns before `until`; the next one
 * of each output is number next[] of the matrix. shared: how many groups a piece has, if they are whole and no more
 * than the threads of an output; then the ring has their scales. Else 0. */
struct products_sums {
	float sum[GPU_PRODUCT_ROWS * SUMS];
	float scale[MOST_OUTS], divisor;
	size_t next[MOST_OUTS];
	uint32_t until, shared;
};

/* Index among all outputs; those past the last repeat it. */
GPU_FN uint32_t real_output(const struct outputs *t, uint32_t i)
{
	return i < t->n_out ? i : t->n_out - 1;
}

GPU_FN uint32_t output_of(const unsigned coding, const unsigned R, const struct outputs *t, unsigned j)
{
	return t->first + (t->second != NULL ? 0 : j * slots_of(coding, R));
}

/* Row i of the warp's. */
GPU_FN const unsigned char *row_of(const struct outputs *t, unsigned i)
{
	if (t->second == NULL)
		return t->m->data + real_output(t, t->warp + i) * t->m->row_bytes;
	return (i < WARP_OUTS / 2 ? t->m->data : t->second) +
	       real_output(t, t->warp + i % (WARP_OUTS / 2)) * t->m->row_bytes;
}

/* x of the thread's lanes: from the ring, or from its row. */
GPU_FN void read_x(const unsigned lanes, const bool in_ring, const float *ring, const float *row, float *x)
{
	if (in_ring && lanes == 4) {
		const gpu_f4 v = gpu_load_f4(ring);

		x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
		return;
	}
	GPU_UNROLL
	for (unsigned i = 0; i < lanes; i += 2) {
		const gpu_f2 v = in_ring ? gpu_shared_f2(ring + i) : gpu_load_f2(row + i);

		x[i] = v.x, x[i + 1] = v.y;
	}
}

/* sum[r][j][i] += w[j][i] * x[r][k + i]. in_ring: x is the thread's of that column in the ring; else it is not used. */
GPU_FN void add(const unsigned coding, const unsigned R, const struct outputs *t, size_t k, const bool in_ring,
		const float *x, const float *w, float *sum)
{
	const unsigned lanes = lanes_of(coding, R);

	GPU_UNROLL
	for (unsigned r = 0; r < R; r++) {
		float by[MOST_LANES];

		read_x(lanes, in_ring, x + r * stage_columns(coding, R), t->x[r] + k, by);
		GPU_UNROLL
		for (unsigned n = 0; n < SUMS; n++)
			sum[r * SUMS + n] = fmaf(w[n], by[n % lanes], sum[r * SUMS + n]);
	}
}

/* ---- Scales ---- */

GPU_FN void begin_sums(const unsigned coding, const unsigned R, const struct outputs *t, struct products_sums *s)
{
	const uint32_t group = gpu_is_scaled(coding) ? t->m->group : 1, groups = (t->n_in + group - 1) / group;

	GPU_UNROLL
	for (unsigned i = 0; i < R * SUMS; i++)
		s->sum[i] = 0;
	s->until = s->shared = 0;
	if (!gpu_is_scaled(coding))
		return;
	GPU_UNROLL
	for (unsigned j = 0; j < outs_of(coding, R); j++)
		s->next[j] = (size_t)real_output(t, output_of(coding, R, t, j)) * groups;
	s->divisor = t->m->divisor != NULL ? *t->m->divisor : 1;
	if (columns_of(coding) % group == 0 && columns_of(coding) / group <= share_of(coding, R))
		s->shared = columns_of(coding) / group;
}

/* A scale as it is stored. */
GPU_FN float read_scale(const struct outputs *t, const struct products_sums *s, const void *at)
{
	const float scale = gpu_scale_code(t->m->scale_dtype, at);

	return t->m->divisor != NULL ? scale / s->divisor : scale;
}

/* Before column k. */
GPU_FN void need_scales(const unsigned coding, const unsigned R, const struct outputs *t, size_t k,
			struct products_sums *s)
{
	if (!gpu_is_scaled(coding) || k < s->until)
		return;
	GPU_UNROLL
	for (unsigned j = 0; j < outs_of(coding, R); j++)
		s->scale[j] = read_scale(
			t, s, (const char *)t->m->scales + s->next[j]++ * gpu_scale_bytes(t->m->scale_dtype));
	s->until += t->m->group;
}

/* NF4: the scale of output i at column k. */
GPU_FN const float *group_scale(const struct outputs *t, uint32_t i, size_t k)
{
	return t->m->scale + (size_t)real_output(t, i) * ((t->n_in + GROUP - 1) / GROUP) + k / GROUP;
}

/* ---- Steps ---- */

/* A step of weights from column k on; code[j]: where the thread's begin. scale [outputs], if the coding is scaled. */
GPU_FN void add_step(const unsigned coding, const unsigned R, const struct outputs *t, size_t k, const bool in_ring,
		     const float *x, const unsigned char *const *code, const float *scale, struct products_sums *s)
{
	const unsigned lanes = lanes_of(coding, R);
	float w[SUMS];

	GPU_UNROLL
	for (unsigned j = 0; j < outs_of(coding, R); j++) {
		gpu_decode(coding, lanes, gpu_read_raw(own_bytes(coding, R), code[j]), w + j * lanes);
		if (gpu_is_scaled(coding)) {
			GPU_UNROLL
			for (unsigned i = 0; i < lanes; i++)
				w[j * lanes + i] *= scale[j];
		}
	}
	add(coding, R, t, k, in_ring, x, w, s->sum);
}

/* add_weights for codes with scales, which it reads where a group begins. */
GPU_FN void add_codes(const unsigned coding, const unsigned R, const struct outputs *t, size_t k, const bool in_ring,
		      const float *x, const unsigned char *const *code, struct products_sums *s)
{
	need_scales(coding, R, t, k, s);
	add_step(coding, R, t, k, in_ring, x, code, s->scale, s);
}

/* ---- The ring: weights on their way ---- */

/* The thread's copies: from where, and to where in the first stage of the ring. */
struct copies {
	const unsigned char *row[COPIES]; /* weights, from its unit on */
	const float *scale; /* NF4: of a group */
	const unsigned char *scales[MOST_OUTS]; /* published: of an output */
	uint32_t scales_bytes; /* bytes of a piece; 0: the ring has none */
	uint32_t to[COPIES], to_x, to_scale;
};

/* Unit u of a piece of the warp's output r lies at u ^ swap_of(r) in the ring: so the units that a warp reads together,
 * the same of some outputs, are in different banks. */
GPU_FN unsigned swap_of(const unsigned coding, const unsigned R, unsigned r)
{
	const unsigned own = own_bytes(coding, R), bytes = (own < 4 ? own : 4) * share_of(coding, R),
		       units = bytes > UNIT ? bytes / UNIT : 1;

	return r % (COPIERS / units) * units;
}

GPU_FN struct copies copies_of(const unsigned coding, const unsigned R, const struct outputs *t,
			       const struct products_sums *s, uint32_t ring)
{
	struct copies c = { { NULL }, NULL, { NULL }, 0, { 0 }, 0, 0 };

	GPU_UNROLL
	for (unsigned j = 0; j < COPIES; j++) {
		const unsigned r = gpu_lane() / COPIERS + j * (WARP_OUTS / COPIES), unit = gpu_lane() % COPIERS;

		c.row[j] = row_of(t, r) + unit * UNIT;
		c.to[j] = ring + gpu_warp() * weights_bytes(coding, R) + r * PIECE +
			  (unit ^ swap_of(coding, R, r)) * UNIT;
	}
	c.to_x = ring + x_begins(coding, R) + gpu_thread() * UNIT;
	c.to_scale = ring + scales_begin(coding, R) + gpu_warp() * scales_bytes(coding, R) +
		     gpu_lane() * (uint32_t)sizeof(float);
	if (coding == GPU_NF4) /* some threads for each output */
		c.scale = group_scale(t, t->warp + gpu_lane() / stage_groups(coding, R), 0) +
			  gpu_lane() % stage_groups(coding, R);
	if (gpu_is_scaled(coding) && s->shared > 0) {
		const size_t bytes = gpu_scale_bytes(t->m->scale_dtype),
			     groups = (t->n_in + t->m->group - 1) / t->m->group;

		c.scales_bytes = s->shared * (uint32_t)bytes;
		GPU_UNROLL
		for (unsigned j = 0; j < outs_of(coding, R); j++)
			c.scales[j] =
				(const unsigned char *)t->m->scales +
				real_output(t, t->warp + gpu_lane() / share_of(coding, R) + j * slots_of(coding, R)) *
					groups * bytes;
	}
	return c;
}

/* The thread's share of x of n pieces, of all rows, one after the other. */
GPU_FN void copy_x(const unsigned coding, const unsigned R, const struct outputs *t, uint32_t piece, uint32_t n,
		   uint32_t to)
{
	/* Units of a row, and of a piece. */
	const unsigned units = x_bytes(coding, R) / UNIT, each = units / pieces_of(coding, R);

	GPU_UNROLL
	for (unsigned r = 0; r < R; r++) {
		GPU_UNROLL
		for (unsigned u = 0; u < units; u += GPU_PRODUCT_THREADS)
			if (u + gpu_thread() < n * each)
				gpu_copy_16(to + (r * units + u) * UNIT,
					    (const unsigned char *)(t->x[r] - t->lane) +
						    ((size_t)piece * each + u + gpu_thread()) * UNIT);
	}
}

/* Published scales of a piece: a word of each output. They may begin and end within a word. */
GPU_FN void copy_scales(const unsigned coding, const unsigned R, const struct copies *c, uint32_t piece, uint32_t to)
{
	GPU_UNROLL
	for (unsigned j = 0; j < outs_of(coding, R); j++) {
		const unsigned char *first = c->scales[j] + (size_t)piece * c->scales_bytes;
		const unsigned char *word = first - (uintptr_t)first % sizeof(uint32_t) +
					    gpu_lane() % share_of(coding, R) * sizeof(uint32_t);

		if (word < first + c->scales_bytes)
			gpu_copy_4(to + j * GPU_WARP * (uint32_t)sizeof(uint32_t), word);
	}
}

/* A stage from that piece on; at: where in the ring. */
GPU_FN void copy_stage(const unsigned coding, const unsigned R, const struct outputs *t, const struct copies *c,
		       uint32_t piece, uint32_t at)
{
	const uint32_t all = t->n_in / columns_of(coding), each = pieces_of(coding, R);
	const uint32_t n = each == 1 || piece + each <= all ? each : all - piece;

	GPU_UNROLL
	for (unsigned i = 0; i < each; i++) {
		GPU_UNROLL
		for (unsigned j = 0; i < n && j < COPIES; j++)
			gpu_copy_16(c->to[j] + at + i * WARP_OUTS * PIECE, c->row[j] + (size_t)(piece + i) * PIECE);
	}
	if (has_x(coding, R))
		copy_x(coding, R, t, piece, n, c->to_x + at);
	if (gpu_lane() < WARP_OUTS * stage_groups(coding, R) &&
	    gpu_lane() % stage_groups(coding, R) < n * columns_of(coding) / GROUP)
		gpu_copy_4(c->to_scale + at, c->scale + (size_t)piece * (columns_of(coding) / GROUP));
	if (gpu_is_scaled(coding) && c->scales_bytes > 0)
		copy_scales(coding, R, c, piece, c->to_scale + at);
}

/* The thread's reads in the first stage of the ring. */
struct products_offsets {
	uint32_t code[MOST_OUTS], x, scale; /* a row's codes without the bits that the unit decides */
	uint32_t unit_bits[MOST_OUTS]; /* the unit's bits of step 0 */
};

GPU_FN struct products_offsets offsets_of(const unsigned coding, const unsigned R, const struct outputs *t,
					  uint32_t ring)
{
	struct products_offsets p = { { 0 },
				      ring + x_begins(coding, R) + t->lane * (uint32_t)sizeof(float),
				      ring + scales_begin(coding, R),
				      { 0 } };

	GPU_UNROLL
	for (unsigned j = 0; j < outs_of(coding, R); j++) {
		const unsigned r = out_of(coding, R, j);

		p.code[j] = ring + gpu_warp() * weights_bytes(coding, R) + r * PIECE;
		p.unit_bits[j] = swap_of(coding, R, r) * UNIT ^ share_index(coding, R) * own_bytes(coding, R);
	}
	p.scale += gpu_warp() * scales_bytes(coding, R) +
		   out_of(coding, R, 0) * stage_scales(coding, R) * (uint32_t)sizeof(float);
	return p;
}

/* A step's weights. at: the stage in the ring; i: of its steps. */
GPU_FN void find_step(const unsigned coding, const unsigned R, const struct products_offsets *p, uint32_t at,
		      unsigned i, const unsigned char **code)
{
	const unsigned steps = PIECE / step_bytes(coding);

	GPU_UNROLL
	for (unsigned j = 0; j < outs_of(coding, R); j++) /* unit u is at u ^ swap_of(r) */
		code[j] = (const unsigned char *)gpu_shared_at(p->code[j] + at + i / steps * WARP_OUTS * PIECE +
							       (p->unit_bits[j] ^ i % steps * step_bytes(coding)));
}

GPU_FN const float *x_at(const unsigned coding, const struct products_offsets *p, uint32_t at, unsigned i)
{
	return (const float *)gpu_shared_at(p->x + at) + i * step_of(coding);
}

/* Piece i of the stage at `at`; its first column is k. */
GPU_FN void add_piece(const unsigned coding, const unsigned R, const struct outputs *t, size_t k,
		      const struct products_offsets *p, uint32_t at, unsigned i, struct products_sums *s)
{
	const unsigned steps = PIECE / step_bytes(coding);
	/* As many steps as leave registers for all sums; few with what reads their scales. */
	const unsigned most = R > 4 || gpu_is_scaled(coding) ? 2 : R > 2 ? 4 : steps;
	const unsigned together = most < steps ? most : steps;

	GPU_NO_UNROLL
	for (unsigned begin = 0; begin < steps; begin += together) {
		GPU_UNROLL
		for (unsigned n = begin; n < begin + together; n++) {
			const unsigned char *code[MOST_OUTS];

			find_step(coding, R, p, at, i * steps + n, code);
			add_codes(coding, R, t, k + n * step_of(coding), has_x(coding, R),
				  x_at(coding, p, at, i * steps + n), code, s);
		}
	}
}

/* The scale that the thread reads for those it shares an output with: output j's, of a piece. */
GPU_FN float shared_scale(const unsigned coding, const unsigned R, const struct outputs *t,
			  const struct products_offsets *p, uint32_t at, unsigned j, const struct products_sums *s)
{
	const uint32_t bytes = gpu_scale_bytes(t->m->scale_dtype),
		       mine = share_index(coding, R) < s->shared ? share_index(coding, R) : 0;
	const uint32_t first = ((uint32_t)(uintptr_t)t->m->scales + (uint32_t)s->next[j] * bytes) % sizeof(uint32_t);

	return read_scale(
		t, s, gpu_shared_at(p->scale + at + j * GPU_WARP * (uint32_t)sizeof(uint32_t) + first + mine * bytes));
}

/* A stage of one piece of s->shared groups. */
GPU_FN void add_shared_piece(const unsigned coding, const unsigned R, const struct outputs *t, size_t k,
			     const struct products_offsets *p, uint32_t at, struct products_sums *s)
{
	const unsigned steps = PIECE / step_bytes(coding);
	float shared[MOST_OUTS];

	GPU_UNROLL
	for (unsigned j = 0; j < outs_of(coding, R); j++) {
		shared[j] = shared_scale(coding, R, t, p, at, j, s);
		s->next[j] += s->shared;
	}
	s->until += columns_of(coding);
	GPU_UNROLL_N(2)
	for (unsigned i = 0; i < steps; i++) {
		const unsigned char *code[MOST_OUTS];
		float scale[MOST_OUTS];

		GPU_UNROLL
		for (unsigned j = 0; j < outs_of(coding, R); j++) /* a power of two divides the others */
			scale[j] = gpu_shuffle_from(shared[j],
						    out_of(coding, R, 0) + i * s->shared / steps * slots_of(coding, R));
		find_step(coding, R, p, at, i, code);
		add_step(coding, R, t, k + i * GPU_LANES, has_x(coding, R), x_at(coding, p, at, i), code, scale, s);
	}
}

/* ---- NF4: rows have been rounded to INT8 (gpu_round_rows), and products of four are one instruction ---- */

static_assert(GPU_ROUNDED_COLUMNS == PIECE / (NF4_PIECE / 2) * NF4_PIECE,
	      "a stage of a row is a piece of a rounded one");

/* od_nf4_int8 (quant.h), four values a word, as a sum: a code selects from the half of the values that it is in. Of the
 * other half it gets a value's sign, 0 or -1, for which the values of the high half make up. */
struct nf4_table {
	uint32_t low[2], high[2];
};

/* Values that the compiler takes for different ones in each thread stay in its registers; others would be moved there
 * for each use. */
GPU_FN struct nf4_table nf4_table(void)
{
	const uint32_t zero = gpu_thread_here() & 0x80000000u;
	const struct nf4_table t = { { 0xcebda881u ^ zero, 0x00f4e9dcu ^ zero },
				     { 0x2c20150bu ^ zero, 0x7f5d4839u ^ zero } };

	return t;
}

/* Picks those of eight codes, for both groups, that are multiplied with a lane's word. */
GPU_FN void nf4_bytes(const uint32_t *half, uint32_t codes, uint32_t *of)
{
	const uint32_t first = gpu_pick_bytes(half[0], half[1], codes),
		       second = gpu_pick_bytes(half[0], half[1], codes >> 16);

	of[0] = gpu_pick_bytes(first, second, 0x6420), of[1] = gpu_pick_bytes(first, second, 0x7531);
}

/* A step, of both of its groups or of the first: raw[j] has codes of output j, scale[j] its groups' scales; x[r]: a
 * piece of row r; step: of the piece. */
GPU_FN void add_nf4(const unsigned R, const struct nf4_table *t, const struct gpu_raw *raw,
		    const unsigned char *const *x, unsigned step, const float (*scale)[2], unsigned groups,
		    struct products_sums *s)
{
	const unsigned lanes = lanes_of(GPU_NF4, R);
	uint32_t low[SUMS][2], high[SUMS][2];

	GPU_UNROLL
	for (unsigned n = 0; n < SUMS; n++) {
		nf4_bytes(t->low, raw[n / lanes].w[n % lanes], low[n]);
		nf4_bytes(t->high, raw[n / lanes].w[n % lanes] ^ 0x88888888u, high[n]);
	}
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++) {
		const gpu_u4 v = gpu_shared_16(x[r] + step * NF4_PIECE + share_index(GPU_NF4, R) * UNIT);
		const gpu_f2 both = gpu_shared_f2((const float *)(const void *)(x[r] + GPU_ROUNDED_COLUMNS) +
						  step * (NF4_PIECE / GROUP));
		const uint32_t q[4] = { v.x, v.y, v.z, v.w };

		GPU_UNROLL
		for (unsigned g = 0; g < NF4_PIECE / GROUP; g++) {
			const float by = g == 0 ? both.x : both.y;

			if (g >= groups)
				break;
			GPU_UNROLL
			for (unsigned n = 0; n < SUMS; n++) {
				const uint32_t mine = q[n % lanes * 2 + g];
				/* A sum of eight products is below 2^22: added to the bits of 1.5 * 2^23, it is in a
				 * float, exactly, and no conversion is needed. */
				const uint32_t sum = gpu_dot4(low[n][g], mine,
							      gpu_dot4(high[n][g], mine, gpu_float_bits(0x1.8p23f)));

				s->sum[r * SUMS + n] = fmaf(gpu_bits_float(sum) - 0x1.8p23f, scale[n / lanes][g] * by,
							    s->sum[r * SUMS + n]);
			}
		}
	}
}

/* A stage; at: where in the ring. */
GPU_FN void add_nf4_stage(const unsigned R, const struct nf4_table *table, const struct products_offsets *p,
			  uint32_t ring, uint32_t at, struct products_sums *s)
{
	const unsigned char *x[GPU_PRODUCT_ROWS];

	GPU_UNROLL
	for (unsigned r = 0; r < R; r++)
		x[r] = (const unsigned char *)gpu_shared_at(ring + x_begins(GPU_NF4, R) + at + r * GPU_ROUNDED_BYTES);
	GPU_UNROLL
	for (unsigned i = 0; i < PIECE / step_bytes(GPU_NF4); i++) {
		const unsigned char *code[MOST_OUTS];
		struct gpu_raw raw[MOST_OUTS];
		float scale[MOST_OUTS][2];

		find_step(GPU_NF4, R, p, at, i, code);
		GPU_UNROLL
		for (unsigned j = 0; j < MOST_OUTS; j++) {
			const gpu_f2 both = gpu_shared_f2((const float *)gpu_shared_at(p->scale + at) +
							  j * slots_of(GPU_NF4, R) * stage_scales(GPU_NF4, R) +
							  i * NF4_PIECE / GROUP);

			raw[j] = gpu_read_raw(own_bytes(GPU_NF4, R), code[j]);
			scale[j][0] = both.x, scale[j][1] = both.y;
		}
		add_nf4(R, table, raw, x, i, scale, 2, s);
	}
}

/* The rest of the rows, of any alignment, from column k on, where a piece of a rounded row begins. */
GPU_FN void add_nf4_slowly(const unsigned R, const struct outputs *t, size_t k, struct products_sums *s)
{
	const struct nf4_table table = nf4_table();

	GPU_NO_UNROLL
	for (; k < t->n_in; k += NF4_PIECE) {
		const unsigned groups = k + GROUP < t->n_in ? 2 : 1;
		const unsigned char *x[GPU_PRODUCT_ROWS];
		struct gpu_raw raw[MOST_OUTS];
		float scale[MOST_OUTS][2];

		GPU_UNROLL
		for (unsigned r = 0; r < R; r++)
			x[r] = (const unsigned char *)(t->x[r] - t->lane) + k / GPU_ROUNDED_COLUMNS * GPU_ROUNDED_BYTES;
		GPU_UNROLL
		for (unsigned j = 0; j < MOST_OUTS; j++) {
			const unsigned char *code =
				t->row[j] + k / NF4_PIECE * (NF4_PIECE / 2) + t->lane * sizeof(uint32_t);
			const float *first = group_scale(t, output_of(GPU_NF4, R, t, j), k);

			GPU_UNROLL
			for (unsigned n = 0; n < lanes_of(GPU_NF4, R); n++, code += 4)
				raw[j].w[n] = code[0] | code[1] << 8 | code[2] << 16 | (uint32_t)code[3] << 24;
			scale[j][0] = first[0], scale[j][1] = first[groups - 1];
		}
		add_nf4(R, &table, raw, x, (unsigned)(k / NF4_PIECE % 2), scale, groups, s);
	}
}

/* Waits for the oldest of the thread's n - 1 stages under way; the ring has n. */
GPU_FN void wait_stage(const unsigned n)
{
	switch (n) { /* the number stands in the instruction */
	case 12: gpu_wait_copies(10); break;
	case 11: gpu_wait_copies(9); break;
	case 10: gpu_wait_copies(8); break;
	case 9: gpu_wait_copies(7); break;
	case 8: gpu_wait_copies(6); break;
	case 7: gpu_wait_copies(5); break;
	case 6: gpu_wait_copies(4); break;
	case 5: gpu_wait_copies(3); break;
	case 4: gpu_wait_copies(2); break;
	case 3: gpu_wait_copies(1); break;
	default: gpu_wait_copies(0);
	}
}

/* Asks for the first stages. */
GPU_FN void begin_pieces(const unsigned coding, const unsigned R, const struct outputs *t, const struct copies *c)
{
	const uint32_t n = t->n_in / columns_of(coding), each = pieces_of(coding, R);

	GPU_UNROLL
	for (unsigned i = 0; i + 1 < stages_of(coding, R); i++) {
		if (i * each < n)
			copy_stage(coding, R, t, c, i * each, i * stage_bytes(coding, R));
		gpu_end_copies(); /* an empty group, too: wait_stage counts groups */
	}
}

/* All whole pieces of the rows; returns how many columns these are. */
GPU_FN uint32_t add_pieces(const unsigned coding, const unsigned R, const struct outputs *t, const struct copies *c,
			   uint32_t ring, struct products_sums *s)
{
	const uint32_t columns = columns_of(coding), n = t->n_in / columns, each = pieces_of(coding, R),
		       ahead = stages_of(coding, R) - 1;
	const struct products_offsets p = offsets_of(coding, R, t, ring);
	struct nf4_table table;
	uint32_t now = 0, before = ahead * stage_bytes(coding, R);

	if (coding == GPU_NF4)
		table = nf4_table();
	GPU_NO_UNROLL
	for (uint32_t first = 0; first < n; first += each) {
		wait_stage(ahead + 1);
		if (has_x(coding, R)) /* others' copies are there, too, and the stage before has been read */
			gpu_sync();
		else /* a warp's weights are copied and read by itself alone */
			gpu_sync_warp();
		if (first + ahead * each < n)
			copy_stage(coding, R, t, c, first + ahead * each, before);
		gpu_end_copies();
		GPU_UNROLL
		for (unsigned i = 0; i < each; i++) {
			if (i > 0 && first + i >= n)
				break;
			if (coding == GPU_NF4)
				add_nf4_stage(R, &table, &p, ring, now, s);
			else if (gpu_is_scaled(coding) && s->shared > 0)
				add_shared_piece(coding, R, t, (size_t)first * columns, &p, now, s);
			else
				add_piece(coding, R, t, (size_t)(first + i) * columns, &p, now, i, s);
		}
		before = now;
		now = now < ahead * stage_bytes(coding, R) ? now + stage_bytes(coding, R) : 0;
	}
	return n * columns;
}

/* ---- Sums ---- */

/* Column by column, of any alignment, from k on. */
GPU_FN void add_slowly(const unsigned coding, const unsigned R, const struct outputs *t, size_t k,
		       struct products_sums *s)
{
	GPU_NO_UNROLL
	for (; k < t->n_in; k += GPU_LANES) {
		need_scales(coding, R, t, k, s);
		GPU_UNROLL
		for (unsigned n = 0; n < SUMS; n++) {
			const unsigned j = n / lanes_of(coding, R), i = n % lanes_of(coding, R);

			if (k + t->lane + i >= t->n_in)
				continue;
			GPU_UNROLL
			for (unsigned r = 0; r < R; r++) {
				const float code = gpu_code_at(coding, t->row[j], k + t->lane + i);
				float *to = &s->sum[r * SUMS + n];

				*to = fmaf(gpu_is_scaled(coding) ? code * s->scale[j] : code, t->x[r][k + i], *to);
			}
		}
	}
}

/* Whether the matrix's rows are aligned to so many bytes. */
GPU_FN bool is_aligned(const struct outputs *t, size_t bytes)
{
	return t->aligned && t->m->row_bytes % bytes == 0 &&
	       ((uintptr_t)t->m->data | (uintptr_t)t->second) % bytes == 0;
}

/* Steps from column k on, read from memory; returns the column behind them. */
GPU_FN size_t add_steps(const unsigned coding, const unsigned R, const struct outputs *t, size_t k,
			struct products_sums *s)
{
	GPU_NO_UNROLL
	for (; k + step_of(coding) <= t->n_in; k += step_of(coding)) {
		const unsigned char *code[MOST_OUTS];

		GPU_UNROLL
		for (unsigned j = 0; j < outs_of(coding, R); j++)
			code[j] = t->row[j] + bytes_of(coding, k) + share_index(coding, R) * own_bytes(coding, R);
		add_codes(coding, R, t, k, false, t->x[0], code, s);
	}
	return k;
}

/* All lanes of a tile. */
GPU_FN void dots(const unsigned coding, const unsigned R, const struct outputs *t, struct products_sums *s)
{
	const bool in_pieces = is_aligned(t, UNIT) && (t->x_in_units || !has_x(coding, R));
	const uint32_t ring = gpu_shared_start();
	struct copies c;
	size_t k = 0;

	begin_sums(coding, R, t, s);
	c = copies_of(coding, R, t, s, ring);
	if (in_pieces)
		begin_pieces(coding, R, t, &c);
	if (in_pieces)
		k = add_pieces(coding, R, t, &c, ring, s);
	if (coding == GPU_NF4) {
		add_nf4_slowly(R, t, k, s);
		return;
	}
	if (is_aligned(t, own_bytes(coding, R))) /* the rest of the last piece */
		k = add_steps(coding, R, t, k, s);
	add_slowly(coding, R, t, k, s);
}

/* The block's outputs begin with first; second: as in struct outputs. */
GPU_FN void begin_tile(const unsigned coding, const unsigned R, struct outputs *t, const struct gpu_mat *m,
		       const unsigned char *second, uint32_t first)
{
	t->m = m;
	t->second = second;
	t->n_out = m->n_out;
	t->n_in = m->n_in;
	t->warp = first + gpu_warp() * (second != NULL ? WARP_OUTS / 2 : WARP_OUTS);
	t->first = t->warp + out_of(coding, R, 0);
	GPU_UNROLL
	for (unsigned j = 0; j < outs_of(coding, R); j++)
		t->row[j] = row_of(t, out_of(coding, R, j));
	if (coding == GPU_INT8) {
		GPU_UNROLL
		for (unsigned j = 0; j < outs_of(coding, R); j++)
			t->scale[j] = m->scale[real_output(t, output_of(coding, R, t, j))];
	}
	t->lane = share_index(coding, R) * lanes_of(coding, R);
	t->aligned = t->x_in_units = true;
}

GPU_FN void set_x(struct outputs *t, unsigned r, const float *x)
{
	t->x[r] = x + t->lane;
	t->aligned = t->aligned && (uintptr_t)x % (2 * sizeof(float)) == 0;
	t->x_in_units = t->x_in_units && (uintptr_t)x % UNIT == 0;
}

/* Output j of row r. All lanes of the warp call this; one of those that share it stores it: *stores. */
GPU_FN float end_sum(const unsigned coding, const unsigned R, const struct outputs *t, const struct products_sums *s,
		     unsigned r, unsigned j, bool *stores)
{
	const unsigned lanes = lanes_of(coding, R);
	const float y = gpu_fold_apart(s->sum + r * SUMS + j * lanes, lanes, slots_of(coding, R));

	*stores = output_of(coding, R, t, j) < t->n_out && t->lane == 0;
	return gpu_canonical(coding == GPU_INT8 ? y * t->scale[j] : y);
}

GPU_FN void products_of(const unsigned coding, const unsigned R, const struct gpu_products *a)
{
	const unsigned first = gpu_block_x() * R;
	const struct gpu_product *p;
	struct products_sums s;
	struct outputs t;
	uint32_t i = 0, n;

	while (i + 1 < a->n && a->p[i + 1].first_block <= gpu_block_y())
		i++;
	p = &a->p[i];
	if (first >= p->n_rows)
		return;
	n = p->n_rows - first < R ? p->n_rows - first : R;
	begin_tile(coding, R, &t, &p->w, NULL, (gpu_block_y() - p->first_block) * BLOCK_OUTS);
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++)
		set_x(&t, r, p->x + (first + (r < n ? r : n - 1)) * p->x_stride);
	dots(coding, R, &t, &s);
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++) {
		GPU_UNROLL
		for (unsigned j = 0; j < outs_of(coding, R); j++) {
			bool stores;
			const float y = end_sum(coding, R, &t, &s, r, j, &stores);

			if (stores && r < n)
				p->y[(first + r) * p->y_stride + output_of(coding, R, &t, j)] = y;
		}
	}
}

/* Whether gate and up can be multiplied together: a thread has an output of both. Their codes have to be all that an
 * output needs. */
#define HAS_PAIRS(coding) ((coding) == GPU_BF16 || (coding) == GPU_F16 || (coding) == GPU_F32)

/* Output i of gate and of up: what gpu_expert_act would make of them. */
GPU_FN float activate(const struct gpu_expert_products *a, const struct gpu_expert *e, uint32_t i, float gate, float up)
{
	if (e->bias[GPU_GATE].at != NULL) {
		gate += gpu_vector_at(&e->bias[GPU_GATE], i);
		up += gpu_vector_at(&e->bias[GPU_UP], i);
	}
	return gpu_activation(a->act, gate, up, a->limit);
}

/* The thread's outputs of row r, which go to `to`; NULL: there is no such row. */
GPU_FN void store_outputs(const unsigned coding, const unsigned R, const struct gpu_expert_products *a,
			  const struct gpu_expert *e, const struct outputs *t, const struct products_sums *s,
			  unsigned r, float *to)
{
	float y[MOST_OUTS];
	bool stores[MOST_OUTS];

	GPU_UNROLL
	for (unsigned j = 0; j < outs_of(coding, R); j++)
		y[j] = end_sum(coding, R, t, s, r, j, &stores[j]);
	if (to == NULL)
		return;
	if (HAS_PAIRS(coding) && t->second != NULL) {
		if (stores[0])
			to[t->first] = activate(a, e, t->first, y[0], y[1]);
		return;
	}
	GPU_UNROLL
	for (unsigned j = 0; j < outs_of(coding, R); j++) {
		const uint32_t i = output_of(coding, R, t, j);

		if (stores[j])
			to[i] = a->ends ? gpu_end_down(a, e, i, y[j]) : y[j];
	}
}

/* Experts of a round: which, the device has found out (k_experts.cu). What is read of them first, is read at once, as
 * far as it can be: the first copies wait for it. */
GPU_FN void expert_products_of(const unsigned coding, const unsigned R, const struct gpu_expert_products *a)
{
	const uint32_t n_out = a->down ? a->hidden : a->intermediate, blocks = (n_out + BLOCK_OUTS - 1) / BLOCK_OUTS;
	const bool pairs = HAS_PAIRS(coding) && a->pairs, up = !a->down && !pairs && gpu_block_y() >= blocks;
	uint32_t pair[GPU_PRODUCT_ROWS];
	const struct gpu_expert *e;
	struct gpu_tile tile;
	struct gpu_mat m;
	struct products_sums s;
	struct outputs t;

	if (!gpu_find_tile(R, a, &tile))
		return;
	e = &a->expert[tile.expert];
	m = e->mat[a->down ? GPU_DOWN : up ? GPU_UP : GPU_GATE];
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++)
		pair[r] = gpu_pair_at(R, a, tile.first + (r < tile.n ? r : tile.n - 1));
	if (m.coding != coding)
		return;
	begin_tile(coding, R, &t, &m, pairs ? e->mat[GPU_UP].data : NULL,
		   (gpu_block_y() - (up ? blocks : 0)) * (pairs ? BLOCK_OUTS / 2 : BLOCK_OUTS));
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++) {
		const uint32_t at = tile.first + (r < tile.n ? r : tile.n - 1);
		const size_t row = a->down ? at - a->first : pair[r] / a->top_k;

		set_x(&t, r,
		      coding == GPU_NF4 ? a->rounded + row * GPU_ROUNDED_FLOATS(t.n_in) :
		      a->down		? a->gate + row * a->intermediate :
					  a->x + row * a->hidden);
	}
	dots(coding, R, &t, &s);
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++)
		store_outputs(coding, R, a, e, &t, &s, r,
			      r >= tile.n ? NULL :
			      a->down	  ? a->y + (size_t)pair[r] * a->hidden :
					(up ? a->up : a->gate) + (size_t)(tile.first + r - a->first) * a->intermediate);
}

/* Blocks of a multiprocessor: as many as get on without spilled registers. */
#define BLOCKS(rows) ((rows) == 8 ? 4 : 5)

#define PRODUCTS(coding, rows) \
	GPU_DENSE_KERNEL(gpu_products_##coding##_##rows, struct gpu_products, GPU_PRODUCT_THREADS, BLOCKS(rows)) \
	{ \
		products_of(coding, rows, &a); \
	} \
	GPU_DENSE_KERNEL(gpu_experts_##coding##_##rows, struct gpu_expert_products, GPU_PRODUCT_THREADS, BLOCKS(rows)) \
	{ \
		expert_products_of(coding, rows, &a); \
		if ((rows) == 1) \
			gpu_check_choices(&a); \
	}
#define CODING(coding) PRODUCTS(coding, 1) PRODUCTS(coding, 2) PRODUCTS(coding, 4) PRODUCTS(coding, 8)
#define NAMES(coding) \
	{ gpu_products_##coding##_1, gpu_products_##coding##_2, gpu_products_##coding##_4, gpu_products_##coding##_8 },
#define EXPERT_NAMES(coding) \
	{ gpu_experts_##coding##_1, gpu_experts_##coding##_2, gpu_experts_##coding##_4, gpu_experts_##coding##_8 },
#define ELSEWHERE(coding) /* k_blocks.cu has the kernels */
/* In the order of enum gpu_coding: the tables are indexed by it. */
#define CODINGS(X, BLOCKS) \
	X(GPU_BF16) \
	X(GPU_F16) \
	X(GPU_F32) \
	X(GPU_E4M3) \
	X(GPU_E5M2) \
	X(GPU_INT8) \
	X(GPU_NF4) \
	BLOCKS(GPU_BLOCKS) \
	X(GPU_SCALED_I8) \
	X(GPU_SCALED_U8) \
	X(GPU_SCALED_U4) \
	X(GPU_SCALED_E2M1) \
	X(GPU_SCALED_E4M3) \
	X(GPU_SCALED_E5M2)

CODINGS(CODING, ELSEWHERE)

gpu_products_fn *const gpu_products[GPU_N_CODINGS][4] = { CODINGS(NAMES, NAMES) };
gpu_expert_products_fn *const gpu_expert_products[GPU_N_CODINGS][4] = { CODINGS(EXPERT_NAMES, EXPERT_NAMES) };

/* For one row of 16 bits six stages are less than a ring may be, and a multiprocessor has room for one block more. */
size_t gpu_product_shared(enum gpu_coding coding, unsigned index)
{
	const bool is_16 = coding == GPU_BF16 || coding == GPU_F16;

	if (coding == GPU_BLOCKS)
		return gpu_blocks_shared();
	return index == 0 && is_16 ? RING_16 : RING;
}

bool gpu_products_pair(enum gpu_coding coding)
{
	return HAS_PAIRS(coding);
}

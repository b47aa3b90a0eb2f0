#include "common/compute/cpu/matmul.h"

#include "common/base/mem.h"
#include "common/compute/cpu/cpu_tables.h"
#include "common/compute/quant.h"

#include <string.h>

#define ACT8_BLOCKS 1920u /* blocks of INT8 activations on the stack: 128 KiB, with their scales */
#define MIN_PIECE_WEIGHTS 32768u /* a piece of work for a thread: some microseconds, well above a hand-over */
#define MERGED_BLOCKS 4u /* blocks of planes that are merged at a time: 128 KiB of BF16 */
#define LONG_ROWS 64u /* rows of x that meet a long row of merged weights before the next one */

/* ---- Planes ---- */

/* As every table folds its lanes. */
static float fold(float *lane)
{
	for (int half = 8; half > 0; half /= 2)
		for (int i = 0; i < half; i++)
			lane[i] += lane[i + half];
	return lane[0] != lane[0] ? od_bits_f32(0x7fc00000u) : lane[0];
}

/* A row of more than one block: its sums go on where the buffer ends. */
static __attribute__((noinline)) void long_row(const struct od_backend *be, const struct od_mat *w, const float *x,
					       size_t x_stride, float *y, size_t y_stride, size_t n_rows, size_t o,
					       uint16_t *merged)
{
	const size_t i = o / w->planes->chunk_rows, first = i * w->planes->chunk_rows, row = w->n_in;
	const size_t left = w->n_out - first, n = (left < w->planes->chunk_rows ? left : w->planes->chunk_rows) * row;
	const size_t blocks = (row + OD_PLANES_BLOCK - 1) / OD_PLANES_BLOCK;
	const uint8_t *sm = (const uint8_t *)w->data + o * row;
	float lanes[LONG_ROWS][16];

	for (size_t r = 0, nr; r < n_rows; r += nr) {
		nr = n_rows - r < LONG_ROWS ? n_rows - r : LONG_ROWS;
		memset(lanes, 0, nr * sizeof(lanes[0]));
		for (size_t b = 0, nb; b < blocks; b += nb) {
			size_t col = b * OD_PLANES_BLOCK, end;

			nb = blocks - b < MERGED_BLOCKS ? blocks - b : MERGED_BLOCKS;
			end = b + nb < blocks ? (b + nb) * OD_PLANES_BLOCK : row;
			for (size_t k = 0; k < nb; k++)
				be->planes_merge(od_planes_chunk(w->planes, i), n, row, (o - first) * blocks + b + k,
						 sm + col + k * OD_PLANES_BLOCK, merged + k * OD_PLANES_BLOCK);
			for (size_t k = 0; k < nr; k++)
				be->add_bf16(lanes[k], merged, x + (r + k) * x_stride + col, end - col);
		}
		for (size_t k = 0; k < nr; k++)
			y[(r + k) * y_stride + o] = fold(lanes[k]);
	}
}

/* Rows [o, o + *n) of w, as many as fit, at most up to end, merged; returns the first one. Blocks are merged whole. */
static const uint16_t *merge_rows(const struct od_backend *be, const struct od_mat *w, size_t o, size_t end,
				  uint16_t *merged, size_t *n)
{
	const size_t i = o / w->planes->chunk_rows, first = i * w->planes->chunk_rows, row = w->n_in;
	const size_t left = w->n_out - first, rows = left < w->planes->chunk_rows ? left : w->planes->chunk_rows;
	const size_t each = OD_PLANES_BLOCK / row, b = (o - first) / each, begin = first + b * each;
	const uint8_t *sm = (const uint8_t *)w->data + first * row;
	size_t last = begin + MERGED_BLOCKS * each;

	last = last < first + rows ? last : first + rows;
	last = last < end ? last : end;
	for (size_t k = 0; begin + k * each < last; k++)
		be->planes_merge(od_planes_chunk(w->planes, i), rows * row, row, b + k, sm + (b + k) * each * row,
				 merged + k * each * row);
	*n = last - o;
	return merged + (o - begin) * row;
}

void od_matmul_merged(const struct od_backend *be, const struct od_mat *w, const float *x, size_t x_stride, float *y,
		      size_t y_stride, size_t n_rows, size_t o_begin, size_t o_end)
{
	_Alignas(OD_LINE_BYTES) uint16_t merged[MERGED_BLOCKS * OD_PLANES_BLOCK + OD_PAD_BYTES];

	for (size_t o = o_begin, n; o < o_end; o += n) {
		struct od_mat some = { .dtype = OD_BF16, .n_in = w->n_in };

		n = 1;
		if (w->n_in > OD_PLANES_BLOCK) {
			long_row(be, w, x, x_stride, y, y_stride, n_rows, o, merged);
			continue;
		}
		some.data = merge_rows(be, w, o, o_end, merged, &n);
		some.n_out = n;
		be->matmul_bf16(&some, x, x_stride, y + o, y_stride, n_rows, 0, n);
	}
}

/* ---- Any weights ---- */

void od_matmul_range(const struct od_backend *be, const struct od_mat *w, const float *x, size_t x_stride, float *y,
		     size_t y_stride, size_t n_rows, size_t o_begin, size_t o_end)
{
	od_matmul_fn *f = be->matmul;

	if (w->planes != NULL) {
		be->matmul_planes(be, w, x, x_stride, y, y_stride, n_rows, o_begin, o_end);
		return;
	}
	if (w->scales.at != NULL)
		f = be->matmul_scaled;
	else if ((od_format(w->dtype)->uses & OD_USE_BLOCKS) != 0)
		f = be->matmul_blocks;
	else if (od_format(w->dtype)->rule == OD_RULE_BF16)
		f = be->matmul_bf16;
	f(w, x, x_stride, y, y_stride, n_rows, o_begin, o_end);
}

/* The outputs of all products stand in one line, each product at a multiple of the grain. */
struct matmul_job {
	const struct od_backend *be;
	const struct od_product *p;
	size_t n, grain;
	const struct od_act8 *act8; /* the rows of the only product; NULL: as they are */
};

static void matmul_piece(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct matmul_job *j = arg;
	size_t first = 0;

	(void)thread;
	for (size_t i = 0; i < j->n && first < end; i++) {
		const struct od_product *p = &j->p[i];
		const size_t n = p->w.n_out, o = begin > first ? begin - first : 0,
			     o_end = end - first < n ? end - first : n;

		if (o < o_end && j->act8 != NULL)
			j->be->matmul_int8(&p->w, j->act8, p->y, n, p->n_rows, o, o_end);
		else if (o < o_end)
			od_matmul_range(j->be, &p->w, p->x, p->w.n_in, p->y, n, p->n_rows, o, o_end);
		first += od_round_up(n, j->grain);
	}
}

/* Outputs of the smallest piece of work: whole register blocks; of planes as many blocks as are decoded side by
 * side. */
static size_t grain_of(const struct od_mat *w)
{
	size_t grain = MIN_PIECE_WEIGHTS / (w->n_in + 1) / 8 * 8 + 8;

	if (w->planes == NULL)
		return grain;
	return w->n_in <= OD_PLANES_BLOCK ? 4 * (OD_PLANES_BLOCK / w->n_in) : 4;
}

static void run_job(struct od_pool *pool, struct matmul_job *j)
{
	size_t line = 0;

	j->grain = 1;
	for (size_t i = 0; i < j->n; i++) {
		size_t grain = grain_of(&j->p[i].w);

		j->grain = grain > j->grain ? grain : j->grain;
	}
	for (size_t i = 0; i < j->n; i++)
		line += od_round_up(j->p[i].w.n_out, j->grain);
	od_pool_for(pool, line, j->grain, matmul_piece, j);
}

/* As many rows at a time as fit; at least one does. */
static __attribute__((noinline)) void matmul_act8(const struct od_backend *be, struct od_pool *pool,
						  struct od_product p)
{
	_Alignas(OD_LINE_BYTES) int8_t q[ACT8_BLOCKS * OD_QUANT_GROUP];
	float scale[ACT8_BLOCKS];
	const struct od_act8 act8 = { .q = q, .scale = scale };
	size_t n_in = p.w.n_in, blocks = od_quant_groups(n_in), fit = ACT8_BLOCKS / blocks;
	struct matmul_job j = { .be = be, .p = &p, .n = 1, .act8 = &act8 };

	for (size_t left = p.n_rows; left > 0; left -= p.n_rows) {
		p.n_rows = left < fit ? left : fit;
		for (size_t r = 0; r < p.n_rows; r++)
			be->round_int8(q + r * blocks * OD_QUANT_GROUP, scale + r * blocks, p.x + r * n_in, n_in,
				       p.w.dtype);
		run_job(pool, &j);
		p.x += p.n_rows * n_in;
		p.y += p.n_rows * p.w.n_out;
	}
}

static bool wants_int8(const struct od_backend *be, const struct od_mat *w)
{
	const enum od_rule rule = od_format(w->dtype)->rule;

	if (w->scales.at != NULL || (rule != OD_RULE_ROW && rule != OD_RULE_GROUP) || w->n_in == 0 ||
	    w->n_in > OD_ACT8_MAX_IN)
		return false;
	return w->act == OD_ACT_INT8 || (w->act == OD_ACT_FASTER && w->dtype == OD_NF4 && be->nf4_likes_int8);
}

void od_matmul_all(const struct od_backend *be, struct od_pool *pool, const struct od_product *p, size_t n)
{
	/* Runs of products that need no rounding are one job. */
	for (size_t i = 0, end; i < n; i = end) {
		struct matmul_job job = { .be = be, .p = &p[i] };

		for (end = i; end < n && !wants_int8(be, &p[end].w);)
			end++;
		job.n = end - i;
		if (job.n > 0)
			run_job(pool, &job);
		else
			matmul_act8(be, pool, p[end++]);
	}
}

void od_matmul(const struct od_backend *be, struct od_pool *pool, const struct od_mat *w, const float *x, float *y,
	       size_t n_rows)
{
	const struct od_product p = { .w = *w, .x = x, .y = y, .n_rows = n_rows };

	if (n_rows > 0)
		od_matmul_all(be, pool, &p, 1);
}

/* cpu_tiles.h - how the matmuls of a CPU table walk over outputs, rows and columns, over the 16 lanes of a vec_*.h
 * that is included before. What a tile computes is an od_dots_fn. Blocking decides which dots run side by side, never
 * the order of a sum. Only for cpu*.c and what they include. */
#ifndef OD_COMPUTE_CPU_TILES_H
#define OD_COMPUTE_CPU_TILES_H

#include "common/compute/cpu_tables.h"

/* Outputs that all row tiles visit before the next ones, so that their weights stay in the L2 cache. */
#define BLOCK_WEIGHTS 131072u
#define MAX_BLOCK_OUTS 64u
#define COLUMNS 1024u /* a multiple of every step over k: 4 rows of f32 take 16 KiB */

static inline float canonical(float a)
{
	return a != a ? od_bits_f32(0x7fc00000u) : a;
}

/* All rows of x (NULL: they are elsewhere) with the outputs of w from o_begin on: what a matmul cuts into tiles. */
static ALWAYS_INLINE struct od_tile tile_of(const struct od_mat *w, const float *x, size_t x_stride, float *y,
					    size_t y_stride, size_t o_begin)
{
	const size_t row_bytes = od_row_bytes(w->dtype, w->n_in);

	return (struct od_tile){
		.w = (const unsigned char *)w->data + o_begin * row_bytes,
		.w_stride_bytes = row_bytes,
		.x = x,
		.x_stride = x_stride,
		.n = w->n_in,
		.mat = w,
		.out = o_begin,
		.y = y + o_begin,
		.y_stride = y_stride,
		.first = true,
		.last = true,
	};
}

/* The sums of a tile: where they start, and where they go. */
static ALWAYS_INLINE void begin_sums(const size_t no, const size_t nr, const struct od_tile *a, v16 (*sum)[4])
{
	V16_UNROLL(4)
	for (size_t o = 0; o < no; o++)
		V16_UNROLL(4)
		for (size_t r = 0; r < nr; r++)
			sum[o][r] = a->first ? v16_set1(0) : v16_load(a->carry + 16 * (o * nr + r));
}

static ALWAYS_INLINE void end_sums(const size_t no, const size_t nr, const struct od_tile *a, v16 (*sum)[4])
{
	V16_UNROLL(4)
	for (size_t o = 0; o < no; o++) {
		V16_UNROLL(4)
		for (size_t r = 0; r < nr; r++) {
			if (a->last)
				a->y[r * a->y_stride + o] = canonical(v16_fold_add(sum[o][r]));
			else
				v16_store(a->carry + 16 * (o * nr + r), sum[o][r]);
		}
	}
}

/* n_out outputs of nr rows. */
static ALWAYS_INLINE void row_tile(od_dots_fn *const f, const enum od_dtype t, const size_t no, const size_t nr,
				   struct od_tile a, size_t n_out)
{
	a.ahead = tiles_ahead(od_row_bytes(t, a.n));
	for (size_t o = 0, n; o < n_out; o += n) {
		n = o + no <= n_out ? no : 1;
		if (n == no)
			f(t, no, nr, &a);
		else
			f(t, 1, nr, &a);
		a.carry = a.carry != NULL ? a.carry + 16 * nr * n : NULL;
		a.w += n * a.w_stride_bytes;
		a.out += n;
		a.y += n;
		a.scale = a.scale != NULL ? a.scale + n : NULL;
	}
}

/* The same in columns, so that their part of the rows stays in the L1 cache. */
static ALWAYS_INLINE void column_tiles(od_dots_fn *const f, const enum od_dtype t, const size_t no, const size_t nr,
				       struct od_tile a, size_t n_out)
{
	float carry[MAX_BLOCK_OUTS * 4 * 16];
	size_t n = a.n;

	a.carry = carry;
	do {
		a.n = n < COLUMNS ? n : COLUMNS;
		n -= a.n;
		a.last = n == 0;
		row_tile(f, t, no, nr, a, n_out);
		a.first = false;
		a.w += od_row_bytes(t, COLUMNS);
		a.col += COLUMNS;
	} while (!a.last);
}

/* Blocks of outputs; within one, four rows at a time, then two, then one. */
static ALWAYS_INLINE void matmul_of(od_dots_fn *const f, const enum od_dtype t, struct od_tile a, size_t n_rows,
				    size_t n_out)
{
	size_t block = BLOCK_WEIGHTS / (a.n + 1) / 4 * 4 + 4, n;

	block = n_rows == 1 ? n_out : block < MAX_BLOCK_OUTS ? block : MAX_BLOCK_OUTS;
	for (size_t o = 0; o < n_out; o += n) {
		struct od_tile b = a;
		size_t r = 0;

		n = n_out - o < block ? n_out - o : block;
		b.w += o * a.w_stride_bytes;
		b.out += o;
		b.scale = a.scale != NULL ? a.scale + o : NULL;
		for (size_t nr; r < n_rows; r += nr) {
			nr = n_rows - r >= 4 ? 4 : n_rows - r >= 2 ? 2 : 1;
			b.row = r;
			b.y = a.y + r * a.y_stride + o;
			if (nr == 4)
				column_tiles(f, t, V16_OUTS_OF_4, 4, b, n);
			else if (nr == 2)
				column_tiles(f, t, V16_OUTS_OF_2, 2, b, n);
			else
				row_tile(f, t, od_dtype_bytes(t) == 0 ? V16_4BIT_OUTS_OF_1 : V16_OUTS_OF_1, 1, b, n);
		}
	}
}

#endif

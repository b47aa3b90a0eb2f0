/* cpu_quant_dots.h - how dots walk over a shadow's quantised weights, and the dots of f32 rows with NF4.
 *
 * Within a group of 64 a lane adds its products in order, from 0; then lane = fma(group's sum, scale, lane). A short
 * last group is a group like any other; lanes without a product in it add 0 * scale. Only for cpu*.c, behind their
 * vec_*.h. */
#ifndef OD_COMPUTE_CPU_QUANT_DOTS_H
#define OD_COMPUTE_CPU_QUANT_DOTS_H

#include "common/compute/cpu/cpu_tiles.h"

#define LINE_GROUPS(t) ((t) == OD_NF4 ? OD_NF4_PIECE / OD_QUANT_GROUP : 1u) /* groups of weights in OD_LINE_BYTES */

/* sum: += the groups of one line of weights at input k. whole: all n inputs are there, else 0 < n < what a line holds.
 * The scale of group g of the line is scale[o][g]. */
typedef void od_line_fn(const enum od_dtype t, const size_t no, const size_t nr, const bool whole,
			const struct od_tile *a, size_t k, size_t n, const float *const *scale, v16 (*sum)[4]);

/* For OD_NF4. */
static ALWAYS_INLINE void add_nf4(const enum od_dtype t, const size_t no, const size_t nr, const bool whole,
				  const struct od_tile *a, size_t k, size_t n, const float *const *scale, v16 (*sum)[4])
{
	const unsigned char *w = a->w + od_row_bytes(t, k);
	const float *x = a->x + a->row * a->x_stride + a->col + k;
	size_t n_groups = whole ? LINE_GROUPS(t) : od_quant_groups(n);

	V16_UNROLL(2)
	for (size_t g = 0; g < n_groups; g++) {
		size_t left_in_group = n - OD_QUANT_GROUP * g,
		       steps = whole || left_in_group >= 64 ? 4 : (left_in_group + 15) / 16;
		v16w next[4];
		v16 partial[4][4];

		V16_UNROLL(4)
		for (size_t o = 0; o < no; o++) {
			v16w codes = v16w_load(w + o * a->w_stride_bytes);

			next[o] = g == 0 ? codes : v16w_shift4(codes);
			V16_UNROLL(4)
			for (size_t r = 0; r < nr; r++)
				partial[o][r] = v16_set1(0);
		}
		V16_UNROLL(4)
		for (size_t m = 0; m < steps; m++) {
			size_t i = OD_QUANT_GROUP * g + 16 * m, left = whole || n - i >= 16 ? 16 : n - i;
			v16 wv[4];

			V16_UNROLL(4)
			for (size_t o = 0; o < no; o++) {
				wv[o] = v16_nf4(next[o]);
				next[o] = v16w_shift8(next[o]);
			}
			V16_UNROLL(4)
			for (size_t r = 0; r < nr; r++) {
				const float *xr = x + r * a->x_stride + i;
				v16 xv = whole ? v16_load(xr) : v16_load_n(xr, left);

				V16_UNROLL(4)
				for (size_t o = 0; o < no; o++)
					partial[o][r] = whole ? v16_fma(wv[o], xv, partial[o][r]) :
								v16_fma_n(wv[o], xv, partial[o][r], left);
			}
		}
		V16_UNROLL(4)
		for (size_t o = 0; o < no; o++) {
			v16 s = v16_set1(scale[o][g]);

			V16_UNROLL(4)
			for (size_t r = 0; r < nr; r++)
				sum[o][r] = v16_fma(partial[o][r], s, sum[o][r]);
		}
	}
}

/* The rest of a row, for one output and one row of x: inlined for each shape it would be most of the code. */
typedef v16 od_end_fn(const enum od_dtype t, struct od_tile a, size_t k, size_t n, const float *scale, v16 sum);

static __attribute__((noinline)) v16 end_nf4(const enum od_dtype t, struct od_tile a, size_t k, size_t n,
					     const float *scale, v16 sum)
{
	v16 s[1][4] = { { sum } };

	add_nf4(t, 1, 1, false, &a, k, n, &scale, s);
	return s[0][0];
}

/* The scales of row o of the tile. Those that belong to the rows that prefetch_rows fetches meanwhile are fetched too:
 * their stream is too thin for the hardware's prefetcher to follow, and a miss every 16 groups cost a fifth of the
 * speed. */
static ALWAYS_INLINE const float *group_scales(const struct od_tile *a, const size_t no, size_t o)
{
	const size_t groups = od_quant_groups(a->mat->n_in), ahead = groups * no * (a->ahead > 0 ? a->ahead : 1);
	const float *scale = a->mat->scale + (a->out + o) * groups + a->col / OD_QUANT_GROUP;

	for (size_t i = 0; i < od_quant_groups(a->n); i += OD_LINE_BYTES / sizeof(float))
		od_prefetch((uintptr_t)(scale + i) + ahead * sizeof(float));
	return scale;
}

/* An od_dots_fn but for its first two arguments. */
static ALWAYS_INLINE void quant_dots(od_line_fn *const add_line, od_end_fn *const add_end, const enum od_dtype t,
				     const size_t no, const size_t nr, const struct od_tile *a)
{
	const size_t step = LINE_GROUPS(t) * OD_QUANT_GROUP, bytes = od_row_bytes(t, a->n);
	const float *scale[4];
	v16 sum[4][4];
	size_t k = 0;

	begin_sums(no, nr, a, sum);
	V16_UNROLL(4)
	for (size_t o = 0; o < no; o++)
		scale[o] = t == OD_NF4 ? group_scales(a, no, o) : a->mat->scale + a->out + o;
	for (; k + step <= a->n; k += step) {
		prefetch_rows(a, no, od_row_bytes(t, k), bytes);
		add_line(t, no, nr, true, a, k, step, scale, sum);
		if (t != OD_NF4)
			continue; /* a row has one scale */
		V16_UNROLL(4)
		for (size_t o = 0; o < no; o++)
			scale[o] += LINE_GROUPS(t);
	}
	if (k < a->n) {
		V16_UNROLL(4)
		for (size_t o = 0; o < no; o++) {
			V16_UNROLL(4)
			for (size_t r = 0; r < nr; r++) {
				struct od_tile one = *a;

				one.w += o * a->w_stride_bytes;
				one.row += r;
				sum[o][r] = add_end(t, one, k, a->n - k, scale[o], sum[o][r]);
			}
		}
	}
	end_sums(no, nr, a, NULL, sum);
}

/* For OD_NF4. */
static ALWAYS_INLINE void nf4_dots(const enum od_dtype t, const size_t no, const size_t nr, const struct od_tile *a)
{
	quant_dots(add_nf4, end_nf4, t, no, nr, a);
}

#endif

/* cpu_int8_dots.h - matmul_int8 of a CPU table: quantised weights with INT8 activations (quant.h).
 *
 * A lane's four products of a block are summed as integers, exactly; then lane = fma(sum, activations' scale * weights'
 * scale, lane). Only for cpu*.c, behind their vec_*.h. */
#ifndef OD_COMPUTE_CPU_INT8_DOTS_H
#define OD_COMPUTE_CPU_INT8_DOTS_H

#include "common/compute/cpu/cpu_quant_dots.h"

/* An od_line_fn. */
static ALWAYS_INLINE void add_blocks(const enum od_dtype t, const size_t no, const size_t nr, const bool whole,
				     const struct od_tile *a, size_t k, size_t n, const float *const *scale,
				     v16 (*sum)[4])
{
	const unsigned char *w = a->w + od_row_bytes(t, k);
	size_t n_groups = whole ? LINE_GROUPS(t) : od_quant_groups(n);
	size_t n_blocks = od_quant_groups(a->mat->n_in), first = a->row * n_blocks + (a->col + k) / OD_QUANT_GROUP;

	V16_UNROLL(2)
	for (size_t g = 0; g < n_groups; g++) {
		v64 wv[4], av[4];

		V16_UNROLL(4)
		for (size_t o = 0; o < no; o++) {
			const unsigned char *p = w + o * a->w_stride_bytes;

			if (t == OD_NF4)
				wv[o] = g == 0 ? v64_nf4_low(p) : v64_nf4_high(p);
			else
				wv[o] = whole ? v64_load(p) : v64_load_n(p, n);
		}
		V16_UNROLL(4)
		for (size_t r = 0; r < nr; r++)
			av[r] = v64_load(a->act8->q + OD_QUANT_GROUP * (first + r * n_blocks + g));
		V16_UNROLL(4)
		for (size_t o = 0; o < no; o++) {
			v16 s = v16_set1(scale[o][g]);

			V16_UNROLL(4)
			for (size_t r = 0; r < nr; r++) {
				v16 both = v16_mul(s, v16_set1(a->act8->scale[first + r * n_blocks + g]));

				sum[o][r] = v16_fma(v64_dot(wv[o], av[r]), both, sum[o][r]);
			}
		}
	}
}

/* An od_end_fn. */
static __attribute__((noinline)) v16 end_blocks(const enum od_dtype t, struct od_tile a, size_t k, size_t n,
						const float *scale, v16 sum)
{
	v16 s[1][4] = { { sum } };

	add_blocks(t, 1, 1, false, &a, k, n, &scale, s);
	return s[0][0];
}

static ALWAYS_INLINE void int8_dots(const enum od_dtype t, const size_t no, const size_t nr, const struct od_tile *a)
{
	quant_dots(add_blocks, end_blocks, t, no, nr, a);
}

static void matmul_int8(const struct od_mat *w, const struct od_act8 *x, float *y, size_t y_stride, size_t n_rows,
			size_t o_begin, size_t o_end)
{
	struct od_tile a = tile_of(w, NULL, 0, y, y_stride, o_begin);

	a.act8 = x;
	if (w->dtype == OD_NF4)
		matmul_of(int8_dots, OD_NF4, a, n_rows, o_end - o_begin);
	else
		matmul_of(int8_dots, OD_INT8, a, n_rows, o_end - o_begin);
}

#endif

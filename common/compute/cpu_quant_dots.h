/* cpu_quant_dots.h - dots of f32 rows with weights whose scales are grouped: INT8 by groups, and NF4.
 *
 * Within a group of 64 a lane adds its products in order, from 0; then lane = fma(group's sum, scale, lane). A short
 * last group is a group like any other; lanes without a product in it add 0 * scale. Only for cpu*.c, behind their
 * vec_*.h. */
#ifndef OD_COMPUTE_CPU_QUANT_DOTS_H
#define OD_COMPUTE_CPU_QUANT_DOTS_H

#include "common/compute/cpu_tiles.h"

#define SEGMENT_GROUPS 64u /* whose scales are decoded at a time, for up to 4 rows of weights */
#define LINE_GROUPS(t) ((t) == OD_NF4 ? OD_NF4_PIECE / OD_QUANT_GROUP : 1u) /* of weights, in OD_LINE_BYTES */

/* Scales [at, at + n) of a matrix from their codes. */
static __attribute__((noinline)) void decode_scales(const struct od_scale_codes *c, size_t at, size_t n, float *out)
{
	const v16 mean = v16_set1(c->mean);

	for (size_t i = 0, end; i < n; i = end) { /* a run under one step */
		v16 step = v16_set1(c->step[(at + i) / OD_SCALE_GROUP]);

		end = i + OD_SCALE_GROUP - (at + i) % OD_SCALE_GROUP;
		end = end < n ? end : n;
		for (size_t j = i; j < end; j += 16) {
			size_t left = end - j < 16 ? end - j : 16;
			v16 code = left == 16 ? v16_load_i8(c->code + at + j) : v16_load_i8_n(c->code + at + j, left);

			v16_store_n(out + j, v16_add(v16_mul(code, step), mean), left);
		}
	}
}

/* The scales of n groups, at most SEGMENT_GROUPS, from the given one of an output's. Those that belong to the weights
 * that prefetch_rows fetches now are fetched too: their stream is too thin for the hardware's prefetcher to follow, and
 * a miss every 16 groups cost INT8 a fifth of its speed. */
static ALWAYS_INLINE const float *group_scales(const struct od_mat *w, size_t outs_ahead, size_t out, size_t group,
					       size_t n, float *decoded)
{
	size_t groups = od_quant_groups(w->n_in), at = out * groups + group, ahead = outs_ahead * groups;

	if (w->scale != NULL) {
		for (size_t i = 0; i < n; i += OD_LINE_BYTES / sizeof(float))
			od_prefetch((uintptr_t)(w->scale + at + i) + ahead * sizeof(float));
		return w->scale + at;
	}
	od_prefetch((uintptr_t)(w->codes.code + at) + ahead);
	decode_scales(&w->codes, at, n, decoded);
	return decoded;
}

/* sum: += the groups of one line of weights at input k. whole: all n inputs are there, else 0 < n < what a line holds.
 * The scale of group g of the line is scale[o][g * each]. */
typedef void od_line_fn(const enum od_dtype t, const size_t no, const size_t nr, const bool whole,
			const struct od_tile *a, size_t k, size_t n, const float *const *scale, size_t each,
			v16 (*sum)[4]);

/* An od_line_fn. */
static ALWAYS_INLINE void add_groups(const enum od_dtype t, const size_t no, const size_t nr, const bool whole,
				     const struct od_tile *a, size_t k, size_t n, const float *const *scale,
				     size_t each, v16 (*sum)[4])
{
	const unsigned char *w = a->w + od_row_bytes(t, k);
	const float *x = a->x + a->row * a->x_stride + a->col + k;
	size_t n_groups = whole ? LINE_GROUPS(t) : od_quant_groups(n);

	V16_UNROLL(2)
	for (size_t g = 0; g < n_groups; g++) {
		size_t left_in_group = n - OD_QUANT_GROUP * g, steps = whole || left_in_group >= 64 ? 4 : (left_in_group + 15) / 16;
		v16w next[4];
		v16 part[4][4];

		V16_UNROLL(4)
		for (size_t o = 0; o < no; o++) {
			if (t == OD_NF4) {
				v16w codes = v16w_load(w + o * a->w_stride_bytes);

				next[o] = g == 0 ? codes : v16w_shift4(codes);
			}
			V16_UNROLL(4)
			for (size_t r = 0; r < nr; r++)
				part[o][r] = v16_set1(0);
		}
		V16_UNROLL(4)
		for (size_t m = 0; m < steps; m++) {
			size_t i = OD_QUANT_GROUP * g + 16 * m, left = whole || n - i >= 16 ? 16 : n - i;
			v16 wv[4];

			V16_UNROLL(4)
			for (size_t o = 0; o < no; o++) {
				const unsigned char *p = w + o * a->w_stride_bytes + i;

				if (t != OD_NF4) {
					wv[o] = whole ? v16_load_i8(p) : v16_load_i8_n(p, left);
					continue;
				}
				wv[o] = v16_nf4(next[o]);
				next[o] = v16w_shift8(next[o]);
			}
			V16_UNROLL(4)
			for (size_t r = 0; r < nr; r++) {
				const float *xr = x + r * a->x_stride + i;
				v16 xv = whole ? v16_load(xr) : v16_load_n(xr, left);

				V16_UNROLL(4)
				for (size_t o = 0; o < no; o++)
					part[o][r] = whole ? v16_fma(wv[o], xv, part[o][r])
							   : v16_fma_n(wv[o], xv, part[o][r], left);
			}
		}
		V16_UNROLL(4)
		for (size_t o = 0; o < no; o++) {
			v16 s = v16_set1(scale[o][g * each]);

			V16_UNROLL(4)
			for (size_t r = 0; r < nr; r++)
				sum[o][r] = v16_fma(part[o][r], s, sum[o][r]);
		}
	}
}

/* What is left of a row, for one output and one row of x: inlined for each shape it would be most of the code. */
typedef v16 od_end_fn(const enum od_dtype t, struct od_tile a, size_t k, size_t n, const float *scale, size_t each,
		      v16 sum);

static __attribute__((noinline)) v16 end_groups(const enum od_dtype t, struct od_tile a, size_t k, size_t n,
						const float *scale, size_t each, v16 sum)
{
	v16 s[1][4] = { { sum } };

	add_groups(t, 1, 1, false, &a, k, n, &scale, each, s);
	return s[0][0];
}

/* An od_dots_fn but for its first two arguments. */
static ALWAYS_INLINE void quant_dots(od_line_fn *const add_line, od_end_fn *const add_end, const enum od_dtype t,
				     const size_t no, const size_t nr, const struct od_tile *a)
{
	const size_t step = LINE_GROUPS(t) * OD_QUANT_GROUP, bytes = od_row_bytes(t, a->n);
	const size_t each = t == OD_NF4 || a->mat->grouped;
	const size_t outs_ahead = no * (a->ahead > 0 ? a->ahead : 1);
	float decoded[4][SEGMENT_GROUPS];
	v16 sum[4][4];

	begin_sums(no, nr, a, sum);
	for (size_t k = 0, end; k < a->n; k = end) {
		const float *scale[4];

		end = a->n - k < SEGMENT_GROUPS * OD_QUANT_GROUP ? a->n : k + SEGMENT_GROUPS * OD_QUANT_GROUP;
		V16_UNROLL(4)
		for (size_t o = 0; o < no; o++)
			scale[o] = each == 0 ? a->mat->scale + a->out + o
					     : group_scales(a->mat, outs_ahead, a->out + o, (a->col + k) / OD_QUANT_GROUP,
							    od_quant_groups(end - k), decoded[o]);
		for (; k + step <= end; k += step) {
			prefetch_rows(a, no, od_row_bytes(t, k), bytes);
			add_line(t, no, nr, true, a, k, step, scale, each, sum);
			V16_UNROLL(4)
			for (size_t o = 0; o < no; o++)
				scale[o] += LINE_GROUPS(t) * each;
		}
		if (k == end)
			continue;
		V16_UNROLL(4)
		for (size_t o = 0; o < no; o++) {
			V16_UNROLL(4)
			for (size_t r = 0; r < nr; r++) {
				struct od_tile one = *a;

				one.w += o * a->w_stride_bytes;
				one.row += r;
				sum[o][r] = add_end(t, one, k, end - k, scale[o], each, sum[o][r]);
			}
		}
	}
	end_sums(no, nr, a, NULL, sum);
}

static ALWAYS_INLINE void group_dots(const enum od_dtype t, const size_t no, const size_t nr, const struct od_tile *a)
{
	quant_dots(add_groups, end_groups, t, no, nr, a);
}

#endif

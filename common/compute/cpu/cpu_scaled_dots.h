/* cpu_scaled_dots.h - dots of f32 rows with weights that were published with scales (struct od_scales).
 *
 * A weight is its code's value times its scale, rounded; lane i adds the products k = i (mod 16) in order, by fma, as
 * in the dots of F32 weights. Groups end at multiples of 16, so 16 neighbours have one scale. Only for cpu*.c, behind
 * their vec_*.h. */
#ifndef OD_COMPUTE_CPU_SCALED_DOTS_H
#define OD_COMPUTE_CPU_SCALED_DOTS_H

#include "common/compute/cpu/cpu_tiles.h"

#define SEGMENT_WEIGHTS 2048u /* weights of a row whose scales are decoded at a time: up to 4 rows take 2 KiB of them */
#define SEGMENT_SCALES (SEGMENT_WEIGHTS / 16)
#define STEP_WEIGHTS 64u

static v16 load_scales(const struct od_scales *s, size_t at, size_t n)
{
	const char *p = (const char *)s->at + at * od_dtype_bytes(s->dtype);
	const bool whole = n >= 16;

	if (s->dtype == OD_F32)
		return whole ? v16_load((const float *)(const void *)p) : v16_load_n((const float *)(const void *)p, n);
	if (s->dtype == OD_BF16)
		return whole ? v16_load_bf16(p) : v16_load_bf16_n(p, n);
	if (s->dtype == OD_F16)
		return whole ? v16_load_f16(p) : v16_load_f16_n(p, n);
	if (s->dtype == OD_F8_E4M3)
		return whole ? v16_load_e4m3(p) : v16_load_e4m3_n(p, n);
	return whole ? v16_load_e8m0(p) : v16_load_e8m0_n(p, n);
}

/* Scales [at, at + n) of a matrix, to out, which has room for n rounded up to 16. Those ahead scales further on are
 * fetched: their stream is too thin for the hardware's prefetcher to follow. */
static __attribute__((noinline)) void decode_scaled(const struct od_scales *s, size_t at, size_t n, size_t ahead,
						    float *out)
{
	const size_t each = od_dtype_bytes(s->dtype);

	for (size_t i = 0; i < n * each; i += OD_LINE_BYTES)
		od_prefetch((uintptr_t)s->at + (at + ahead) * each + i);
	for (size_t i = 0; i < n; i += 16) {
		v16 scale = load_scales(s, at + i, n - i);

		v16_store(out + i, s->divisor != NULL ? v16_div(scale, v16_set1(*s->divisor)) : scale);
	}
}

/* The type t of a kernel: one is for both types of 4 bits, which differ in a table, and one for both integers of a
 * byte. */
#define KERNEL_4BIT OD_U4B8
#define KERNEL_INT OD_INT8

/* A scale as the weights of one row meet it. */
struct od_scaled {
	v16 scale;
	v16t table; /* KERNEL_4BIT: instead */
	uint8_t flip; /* KERNEL_INT */
};

static ALWAYS_INLINE struct od_scaled scaled_of(const enum od_dtype t, const struct od_mat *w, float scale)
{
	struct od_scaled s = { .scale = v16_set1(scale), .flip = w->dtype == OD_U8B128 ? 0x80 : 0 };

	if (t == KERNEL_4BIT)
		s.table = v16t_of(w->dtype, s.scale);
	return s;
}

static ALWAYS_INLINE v16 load_scaled(const enum od_dtype t, const unsigned char *p, const struct od_scaled *s)
{
	if (t == KERNEL_4BIT)
		return v16_load_4bit(p, s->table);
	return v16_mul(t == KERNEL_INT ? v16_load_i8_flipped(p, s->flip) :
		       t == OD_F8_E4M3 ? v16_load_e4m3(p) :
					 v16_load_e5m2(p),
		       s->scale);
}

static ALWAYS_INLINE v16 load_scaled_n(const enum od_dtype t, const unsigned char *p, size_t n,
				       const struct od_scaled *s)
{
	if (t == KERNEL_4BIT)
		return v16_load_4bit_n(p, n, s->table);
	return v16_mul(t == KERNEL_INT ? v16_load_i8_flipped_n(p, n, s->flip) :
		       t == OD_F8_E4M3 ? v16_load_e4m3_n(p, n) :
					 v16_load_e5m2_n(p, n),
		       s->scale);
}

/* sum: += the 16 weights at input k. */
static ALWAYS_INLINE void add_16(const enum od_dtype t, const size_t no, const size_t nr, const struct od_tile *a,
				 size_t k, const struct od_scaled *s, v16 (*sum)[4])
{
	const unsigned char *w = a->w + od_row_bytes(t, k);
	const float *x = a->x + a->row * a->x_stride + a->col + k;
	v16 wv[4];

	V16_UNROLL(4)
	for (size_t o = 0; o < no; o++)
		wv[o] = load_scaled(t, w + o * a->w_stride_bytes, &s[o]);
	V16_UNROLL(4)
	for (size_t r = 0; r < nr; r++) {
		v16 xv = v16_load(x + r * a->x_stride);

		V16_UNROLL(4)
		for (size_t o = 0; o < no; o++)
			sum[o][r] = v16_fma(wv[o], xv, sum[o][r]);
	}
}

/* Has the vector header a faster way with 64 neighbours? */
#ifdef V16_LOADS_64_E4M3
#define LOADS_64(t) ((t) == OD_F8_E4M3)
#else
#define LOADS_64(t) false
static ALWAYS_INLINE void v16_load_64_e4m3(const void *p, v16 *w)
{
	for (size_t j = 0; j < 4; j++)
		w[j] = v16_load_e4m3((const unsigned char *)p + 16 * j);
}
#endif

/* sum: += the 64 weights of E4M3 at input k. */
static ALWAYS_INLINE void add_64(const size_t no, const size_t nr, const struct od_tile *a, size_t k,
				 const struct od_scaled *s, v16 (*sum)[4])
{
	const float *x = a->x + a->row * a->x_stride + a->col + k;

	V16_UNROLL(4)
	for (size_t o = 0; o < no; o++) {
		v16 w[4];

		v16_load_64_e4m3(a->w + o * a->w_stride_bytes + k, w);
		V16_UNROLL(4)
		for (size_t j = 0; j < 4; j++) {
			w[j] = v16_mul(w[j], s[o].scale);
			V16_UNROLL(4)
			for (size_t r = 0; r < nr; r++)
				sum[o][r] = v16_fma(w[j], v16_load(x + r * a->x_stride + 16 * j), sum[o][r]);
		}
	}
}

/* sum: += the weights from k to end, under one scale for each output; returns where less than 16 are left. */
static ALWAYS_INLINE size_t add_run(const enum od_dtype t, const size_t no, const size_t nr, const struct od_tile *a,
				    size_t k, size_t end, const struct od_scaled *s, size_t row_bytes, v16 (*sum)[4])
{
	/* With more rows the FMAs are most of the work, and less code is better. */
	for (; (nr == 1 || LOADS_64(t)) && k + STEP_WEIGHTS <= end; k += STEP_WEIGHTS) {
		if (t != KERNEL_4BIT || k % (2 * STEP_WEIGHTS) == 0)
			prefetch_rows(a, no, od_row_bytes(t, k), row_bytes);
		if (LOADS_64(t)) {
			add_64(no, nr, a, k, s, sum);
			continue;
		}
		V16_UNROLL(4)
		for (size_t j = 0; j < STEP_WEIGHTS; j += 16)
			add_16(t, no, nr, a, k + j, s, sum);
	}
	for (; k + 16 <= end; k += 16) {
		if (od_row_bytes(t, k) % OD_LINE_BYTES == 0)
			prefetch_rows(a, no, od_row_bytes(t, k), row_bytes);
		add_16(t, no, nr, a, k, s, sum);
	}
	return k;
}

#ifdef V16_LOADS_INTERLEAVED
/* One row, groups of 32 as in MXFP4, whole ones: n of them from k on. Each has only two steps, so whatever stands
 * around them counts, and the type is a constant here. Returns where they end. */
static ALWAYS_INLINE size_t add_groups_of_32(const enum od_dtype type, const size_t no, const struct od_tile *a,
					     size_t k, const float (*scale)[SEGMENT_SCALES], size_t n, size_t row_bytes,
					     v16 (*sum)[4])
{
	const unsigned char *w[4];
	const float *x = a->x + a->row * a->x_stride + a->col + k;
	v16 s[4];

	V16_UNROLL(4)
	for (size_t o = 0; o < no; o++) {
		w[o] = a->w + o * a->w_stride_bytes + k / 2;
		s[o] = v16_interleave(sum[o][0]);
	}
	for (size_t g = 0; g < n; g++, x += 32) {
		v16 x0 = v16_interleave(v16_load(x)), x1 = v16_interleave(v16_load(x + 16));

		if (g % 4 == 0)
			prefetch_rows(a, no, (k + 32 * g) / 2, row_bytes);
		V16_UNROLL(4)
		for (size_t o = 0; o < no; o++) {
			v16t table = v16t_of(type, v16_set1(scale[o][g]));

			s[o] = v16_fma(v16_load_4bit_interleaved(w[o] + 16 * g, table), x0, s[o]);
			s[o] = v16_fma(v16_load_4bit_interleaved(w[o] + 16 * g + 8, table), x1, s[o]);
		}
	}
	V16_UNROLL(4)
	for (size_t o = 0; o < no; o++)
		sum[o][0] = v16_deinterleave(s[o]);
	return k + 32 * n;
}
#endif

/* The last n < 16 of a row, for one output and one row of x: inlined for each shape it would be most of the code. */
static __attribute__((noinline)) v16 end_scaled(const enum od_dtype t, const unsigned char *w, const float *x, size_t n,
						const struct od_mat *mat, float scale, v16 sum)
{
	struct od_scaled s = scaled_of(t, mat, scale);

	return v16_fma_n(load_scaled_n(t, w, n, &s), v16_load_n(x, n), sum, n);
}

/* An od_dots_fn. */
static ALWAYS_INLINE void scaled_dots(const enum od_dtype t, const size_t no, const size_t nr, const struct od_tile *a)
{
	const struct od_scales *scales = &a->mat->scales;
	const size_t group = scales->group, groups = od_scale_groups(scales, a->mat->n_in);
	const size_t bytes = od_row_bytes(t, a->n), ahead = groups * no * (a->ahead > 0 ? a->ahead : 1);
	float scale[4][SEGMENT_SCALES];
	v16 sum[4][4];

	begin_sums(no, nr, a, sum);
	for (size_t k = 0, segment; k < a->n; k = segment) {
		size_t first = (a->col + k) / group, in_group = (a->col + k) % group, n;

		segment = a->n - k < SEGMENT_WEIGHTS ? a->n : k + SEGMENT_WEIGHTS;
		n = (a->col + segment - 1) / group - first + 1;
		V16_UNROLL(4)
		for (size_t o = 0; o < no; o++)
			decode_scaled(scales, (a->out + o) * groups + first, n, ahead, scale[o]);
		size_t g = 0;
#ifdef V16_LOADS_INTERLEAVED
		if (t == KERNEL_4BIT && nr == 1 && group == 32 && in_group == 0) {
			g = (segment - k) / 32;
			k = a->mat->dtype == OD_U4B8 ? add_groups_of_32(OD_U4B8, no, a, k, scale, g, bytes, sum) :
						       add_groups_of_32(OD_F4_E2M1, no, a, k, scale, g, bytes, sum);
		}
#endif
		for (size_t end; g < n; g++) {
			struct od_scaled s[4];

			end = segment - k < group - in_group ? segment : k + group - in_group;
			in_group = 0;
			V16_UNROLL(4)
			for (size_t o = 0; o < no; o++)
				s[o] = scaled_of(t, a->mat, scale[o][g]);
			k = add_run(t, no, nr, a, k, end, s, bytes, sum);
		}
		if (k == segment)
			continue;
		V16_UNROLL(4)
		for (size_t o = 0; o < no; o++)
			V16_UNROLL(4)
		for (size_t r = 0; r < nr; r++)
			sum[o][r] = end_scaled(t, a->w + o * a->w_stride_bytes + od_row_bytes(t, k),
					       a->x + (a->row + r) * a->x_stride + a->col + k, segment - k, a->mat,
					       scale[o][n - 1], sum[o][r]);
	}
	end_sums(no, nr, a, NULL, sum);
}

static void matmul_scaled(const struct od_mat *w, const float *x, size_t x_stride, float *y, size_t y_stride,
			  size_t n_rows, size_t o_begin, size_t o_end)
{
	const struct od_tile a = tile_of(w, x, x_stride, y, y_stride, o_begin);
	const size_t n_out = o_end - o_begin;

	if (w->dtype == OD_U4B8 || w->dtype == OD_F4_E2M1)
		matmul_of(scaled_dots, KERNEL_4BIT, a, n_rows, n_out);
	else if (w->dtype == OD_F8_E4M3)
		matmul_of(scaled_dots, OD_F8_E4M3, a, n_rows, n_out);
	else if (w->dtype == OD_F8_E5M2)
		matmul_of(scaled_dots, OD_F8_E5M2, a, n_rows, n_out);
	else
		matmul_of(scaled_dots, KERNEL_INT, a, n_rows, n_out);
}

#endif

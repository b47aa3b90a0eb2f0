/* BF16 dot instructions: rows are rounded to BF16 and a matmul with BF16 weights, or FP8 ones, which become BF16
 * exactly, adds pairs of products in one go, another order than 16 lanes of FMA and so another kernel class. Subnormals
 * count as zero. Compiled with the flags in rules.mk; runs only where the CPU has AVX-512 with BF16. */
#include "common/compute/cpu/vec_avx512.h"

#include "common/compute/cpu/cpu_tiles.h"

typedef __m512bh vpairs; /* 32 BF16: lane i of a sum takes elements 2i and 2i + 1 */

static ALWAYS_INLINE vpairs row_pairs(const float *x)
{
	return _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x));
}

static ALWAYS_INLINE vpairs row_pairs_n(const float *x, size_t n)
{
	return _mm512_cvtne2ps_pbh(v16_load_n(x + 16, n > 16 ? n - 16 : 0), v16_load_n(x, n < 16 ? n : 16));
}

/* 32 weights of OD_BF16, OD_F8_E4M3 or OD_F8_E5M2. */
static ALWAYS_INLINE vpairs weight_pairs(const enum od_dtype t, const unsigned char *p)
{
	if (t == OD_F8_E4M3)
		return _mm512_cvtne2ps_pbh(v16_load_e4m3(p + 16), v16_load_e4m3(p));
	if (t == OD_F8_E5M2)
		return _mm512_cvtne2ps_pbh(v16_load_e5m2(p + 16), v16_load_e5m2(p));
	return (vpairs)_mm512_loadu_si512(p);
}

static ALWAYS_INLINE vpairs weight_pairs_n(const enum od_dtype t, const unsigned char *p, size_t n)
{
	const size_t high = n > 16 ? n - 16 : 0, low = n - high;

	if (t == OD_F8_E4M3)
		return _mm512_cvtne2ps_pbh(v16_load_e4m3_n(p + 16, high), v16_load_e4m3_n(p, low));
	if (t == OD_F8_E5M2)
		return _mm512_cvtne2ps_pbh(v16_load_e5m2_n(p + 16, high), v16_load_e5m2_n(p, low));
	return (vpairs)_mm512_maskz_loadu_epi16((__mmask32)((1ull << n) - 1), p);
}

/* An od_add_fn, for FP8 as well. */
static ALWAYS_INLINE void add_pairs(const enum od_dtype t, const size_t no, const size_t nr, const struct od_tile *a,
				    const float *x, size_t k, v16 (*sum)[4])
{
	vpairs xv[4];

	V16_UNROLL(4)
	for (size_t r = 0; r < nr; r++)
		xv[r] = row_pairs(x + r * a->x_stride + k);
	V16_UNROLL(4)
	for (size_t o = 0; o < no; o++) {
		const vpairs wv = weight_pairs(t, a->w + o * a->w_stride_bytes + od_dtype_bytes(t) * k);

		V16_UNROLL(4)
		for (size_t r = 0; r < nr; r++)
			sum[o][r] = _mm512_dpbf16_ps(sum[o][r], wv, xv[r]);
	}
}

/* Its od_add_n_fn, of steps of 32 columns. */
static ALWAYS_INLINE void add_pairs_n(const enum od_dtype t, const size_t no, const size_t nr, const struct od_tile *a,
				      const float *x, size_t k, size_t n, v16 (*sum)[4])
{
	V16_UNROLL(4)
	for (size_t o = 0; o < no; o++) {
		const vpairs wv = weight_pairs_n(t, a->w + o * a->w_stride_bytes + od_dtype_bytes(t) * k, n);

		V16_UNROLL(4)
		for (size_t r = 0; r < nr; r++)
			sum[o][r] = _mm512_dpbf16_ps(sum[o][r], wv, row_pairs_n(x + r * a->x_stride + k, n));
	}
}

/* An od_dots_fn. */
static ALWAYS_INLINE void dots_bf16(const enum od_dtype t, const size_t no, const size_t nr, const struct od_tile *a)
{
	const size_t each = od_dtype_bytes(t);
	const float *x = a->x + a->row * a->x_stride + a->col;
	size_t k = 0;
	v16 sum[4][4];

	begin_sums(no, nr, a, sum);
	for (; k + 32 <= a->n; k += 32) {
		prefetch_rows(a, no, each * k, each * a->n);
		add_pairs(t, no, nr, a, x, k, sum);
	}
	if (k < a->n)
		add_pairs_n(t, no, nr, a, x, k, a->n - k, sum);
	end_sums(no, nr, a, NULL, sum);
}

/* An od_dots_fn for long rows and few of x. */
static ALWAYS_INLINE void long_dots(const enum od_dtype t, const size_t no, const size_t nr, const struct od_tile *a)
{
	long_dots_of(add_pairs, add_pairs_n, 32, t, no, nr, a);
}

static void matmul_bf16(const struct od_mat *w, const float *x, size_t x_stride, float *y, size_t y_stride,
			size_t n_rows, size_t o_begin, size_t o_end)
{
	matmul_bf16_of(dots_bf16, long_dots, w, x, x_stride, y, y_stride, n_rows, o_begin, o_end);
}

static void add_bf16(float *lanes, const uint16_t *w, const float *x, size_t n)
{
	dots_bf16(OD_BF16, 1, 1,
		  &(struct od_tile){ .w = (const unsigned char *)w, .x = x, .n = n, .from = lanes, .to = lanes });
}

void od_cpu_put_avx512bf16(struct od_backend *t)
{
	t->matmul_bf16 = matmul_bf16;
	t->add_bf16 = add_bf16;
}

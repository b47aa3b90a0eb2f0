/* The table with BF16 dot instructions: rows are rounded to BF16 and a matmul with BF16 weights, or FP8 ones, which
 * become BF16 exactly, adds pairs of products in one go, another order than 16 lanes of FMA and so another kernel
 * class. Subnormals count as zero. The rest of the table is as in cpu_avx512.c. Runs only where od_backend_cpu found AVX512_BF16. */
#include "common/compute/cpu_tables.h"
#include "common/compute/vec_avx512.h"

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

static ALWAYS_INLINE void dots_bf16(const enum od_dtype t, const size_t no, const size_t nr, const struct od_tile *a)
{
	const size_t each = od_dtype_bytes(t);
	const unsigned char *w = a->w;
	const float *x = a->x + a->row * a->x_stride + a->col;
	float *carry = a->carry;
	size_t k = 0;
	v16 sum[4][4];

	V16_UNROLL(4)
	for (size_t o = 0; o < no; o++)
		V16_UNROLL(4)
		for (size_t r = 0; r < nr; r++)
			sum[o][r] = a->first ? v16_set1(0) : v16_load(carry + 16 * (o * nr + r));
	for (; k + 32 <= a->n; k += 32) {
		vpairs xv[4];

		prefetch_rows(a, no, each * k, each * a->n);
		V16_UNROLL(4)
		for (size_t r = 0; r < nr; r++)
			xv[r] = row_pairs(x + r * a->x_stride + k);
		V16_UNROLL(4)
		for (size_t o = 0; o < no; o++) {
			vpairs wv = weight_pairs(t, w + o * a->w_stride_bytes + each * k);

			V16_UNROLL(4)
			for (size_t r = 0; r < nr; r++)
				sum[o][r] = _mm512_dpbf16_ps(sum[o][r], wv, xv[r]);
		}
	}
	if (k < a->n) {
		V16_UNROLL(4)
		for (size_t o = 0; o < no; o++) {
			vpairs wv = weight_pairs_n(t, w + o * a->w_stride_bytes + each * k, a->n - k);

			V16_UNROLL(4)
			for (size_t r = 0; r < nr; r++)
				sum[o][r] = _mm512_dpbf16_ps(sum[o][r], wv, row_pairs_n(x + r * a->x_stride + k, a->n - k));
		}
	}
	V16_UNROLL(4)
	for (size_t o = 0; o < no; o++) {
		V16_UNROLL(4)
		for (size_t r = 0; r < nr; r++) {
			float d;

			if (!a->last) {
				v16_store(carry + 16 * (o * nr + r), sum[o][r]);
				continue;
			}
			d = v16_fold_add(sum[o][r]);
			a->y[r * a->y_stride + o] = d != d ? od_bits_f32(0x7fc00000u) : d;
		}
	}
}

#define OD_BF16_DOTS dots_bf16
#define OD_MATMUL_INT8 od_cpu_matmul_int8_avx512
#define OD_MATMUL_SCALED od_cpu_matmul_scaled_avx512
#define OD_PLANES_DECODE od_cpu_planes_decode_avx512
#define OD_PLANES_MERGE od_cpu_planes_merge_avx512
#define OD_MERGE_BF16 od_cpu_merge_bf16_avx512
#define OD_FUSED od_cpu_matmul_fused_avx512bf16
#define OD_TABLE od_cpu_table_avx512bf16
#define OD_TABLE_NAME "avx512bf16"
#define OD_TABLE_CLASS "bf16dot"
#include "common/compute/cpu_kernels.h"

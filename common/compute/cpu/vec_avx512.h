/* vec_avx512.h - the 16 lanes of vec_scalar.h as one zmm register; the operations are described there. */
#ifndef OD_COMPUTE_VEC_AVX512_H
#define OD_COMPUTE_VEC_AVX512_H

#include <immintrin.h>

#include "common/compute/dtype.h"
#include "common/compute/quant.h"

typedef __m512 v16;

/* Rows of weights that meet 1, 2, 4 rows of x. 16 of 32 registers are sums in the last; for one row memory is
 * the limit, and it likes few streams. */
#define V16_OUTS_OF_1 4
#define V16_4BIT_OUTS_OF_1 4
#define V16_OUTS_OF_2 4
#define V16_OUTS_OF_4 4

static inline __mmask16 v16_first(size_t n) /* n <= 16 */
{
	return (__mmask16)((1u << n) - 1u);
}

static inline v16 v16_set1(float a)
{
	return _mm512_set1_ps(a);
}

static inline v16 v16_load_n(const float *p, size_t n)
{
	return _mm512_maskz_loadu_ps(v16_first(n), p);
}

static inline v16 v16_load(const float *p)
{
	return _mm512_loadu_ps(p);
}

static inline v16 v16_of_bf16(__m256i h)
{
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

static inline v16 v16_load_bf16_n(const void *p, size_t n)
{
	return v16_of_bf16(_mm256_maskz_loadu_epi16(v16_first(n), p));
}

static inline v16 v16_load_bf16(const void *p)
{
	return v16_of_bf16(_mm256_loadu_si256(p));
}

/* 32 of BF16, in order: a permutation puts words into the upper halves of floats, which is fewer instructions than
 * widening and shifting. */
static inline void v16_load_32_bf16(const void *p, v16 *first, v16 *second)
{
	const __m512i index =
		_mm512_setr_epi32(0, 1 << 16, 2 << 16, 3 << 16, 4 << 16, 5 << 16, 6 << 16, 7 << 16, 8 << 16, 9 << 16,
				  10 << 16, 11 << 16, 12 << 16, 13 << 16, 14 << 16, 15 << 16);
	const __m512i w = _mm512_loadu_si512(p), more = _mm512_set1_epi32(16 << 16);

	*first = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, index, w));
	*second = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, _mm512_add_epi32(index, more), w));
}

static inline v16 v16_load_f16_n(const void *p, size_t n)
{
	return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(v16_first(n), p));
}

static inline v16 v16_load_f16(const void *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

static inline v16 v16_load_i8_n(const void *p, size_t n)
{
	return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(v16_first(n), p)));
}

static inline v16 v16_of_i8(__m128i b)
{
	return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
}

static inline v16 v16_load_i8(const void *p)
{
	return v16_of_i8(_mm_loadu_si128(p));
}

/* With F16's bits an E4M3 number is 256 times too small (F16's bias is 15, not 7), subnormals too, and its NaNs, 3f80
 * there, look like numbers: they become all ones. */
static inline v16 v16_of_e4m3(__m128i b)
{
	const __m256i nan = _mm256_set1_epi16(0x3f80), bits = _mm256_set1_epi16((short)0xbf80);
	__m256i h = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(b), 7), bits);
	__mmask16 nans = _mm256_cmpeq_epi16_mask(_mm256_and_si256(h, nan), nan);

	h = _mm256_mask_mov_epi16(h, nans, _mm256_set1_epi16(-1));
	return _mm512_mul_ps(_mm512_cvtph_ps(h), _mm512_set1_ps(256));
}

static inline v16 v16_load_e4m3_n(const void *p, size_t n)
{
	return v16_of_e4m3(_mm_maskz_loadu_epi8(v16_first(n), p));
}

static inline v16 v16_load_e4m3(const void *p)
{
	return v16_of_e4m3(_mm_loadu_si128(p));
}

static inline v16 v16_of_e5m2(__m128i b)
{
	return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(b), 8));
}

static inline v16 v16_load_e5m2_n(const void *p, size_t n)
{
	return v16_of_e5m2(_mm_maskz_loadu_epi8(v16_first(n), p));
}

static inline v16 v16_load_e5m2(const void *p)
{
	return v16_of_e5m2(_mm_loadu_si128(p));
}

static inline v16 v16_of_flipped(__m128i b, uint8_t flip)
{
	return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_xor_si128(b, _mm_set1_epi8((char)flip))));
}

static inline v16 v16_load_i8_flipped_n(const void *p, size_t n, uint8_t flip)
{
	return v16_of_flipped(_mm_maskz_loadu_epi8(v16_first(n), p), flip);
}

static inline v16 v16_load_i8_flipped(const void *p, uint8_t flip)
{
	return v16_of_flipped(_mm_loadu_si128(p), flip);
}

static inline v16 v16_of_e8m0(__m128i b)
{
	const __m512i half = _mm512_set1_epi32(0x00400000); /* 2^-127, and with all ones above it NaN */
	__m512i u = _mm512_slli_epi32(_mm512_cvtepu8_epi32(b), 23);
	__mmask16 nan = _mm512_cmpeq_epi32_mask(u, _mm512_set1_epi32(0x7f800000));

	return _mm512_castsi512_ps(_mm512_mask_or_epi32(_mm512_max_epu32(u, half), nan, u, half));
}

static inline v16 v16_load_e8m0_n(const void *p, size_t n)
{
	return v16_of_e8m0(_mm_maskz_loadu_epi8(v16_first(n), p));
}

static inline v16 v16_load_e8m0(const void *p)
{
	return v16_of_e8m0(_mm_loadu_si128(p));
}

typedef __m512i v16w;

static inline v16w v16w_load(const void *p)
{
	return _mm512_loadu_si512(p);
}

static inline v16w v16w_shift4(v16w c)
{
	return _mm512_srli_epi32(c, 4);
}

static inline v16w v16w_shift8(v16w c)
{
	return _mm512_srli_epi32(c, 8);
}

static inline v16 v16_nf4(v16w c) /* a permutation looks at 4 bits */
{
	return _mm512_permutexvar_ps(c, _mm512_loadu_ps(od_nf4_values));
}

static inline void v16_store_n(float *p, v16 a, size_t n)
{
	_mm512_mask_storeu_ps(p, v16_first(n), a);
}

static inline void v16_store(float *p, v16 a)
{
	_mm512_storeu_ps(p, a);
}

/* od_f32_bf16 in integers: the conversion instruction of AVX512_BF16 would flush subnormals. */
static inline __m512i v16_bf16_bits(v16 a)
{
	__m512i u = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
	__m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
	__mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);

	return _mm512_srli_epi32(_mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000)), 16);
}

static inline void v16_store_bf16_n(uint16_t *p, v16 a, size_t n)
{
	_mm256_mask_storeu_epi16(p, v16_first(n), _mm512_cvtepi32_epi16(v16_bf16_bits(a)));
}

static inline void v16_store_bf16(uint16_t *p, v16 a)
{
	_mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(v16_bf16_bits(a)));
}

static inline v16 v16_round_bf16(v16 a)
{
	return _mm512_castsi512_ps(_mm512_slli_epi32(v16_bf16_bits(a), 16));
}

static inline v16 v16_fma(v16 a, v16 b, v16 c)
{
	return _mm512_fmadd_ps(a, b, c);
}

static inline v16 v16_fma_n(v16 a, v16 b, v16 c, size_t n)
{
	return _mm512_mask3_fmadd_ps(a, b, c, v16_first(n));
}

static inline v16 v16_add(v16 a, v16 b)
{
	return _mm512_add_ps(a, b);
}

static inline v16 v16_sub(v16 a, v16 b)
{
	return _mm512_sub_ps(a, b);
}

static inline v16 v16_mul(v16 a, v16 b)
{
	return _mm512_mul_ps(a, b);
}

static inline v16 v16_div(v16 a, v16 b)
{
	return _mm512_div_ps(a, b);
}

static inline v16 v16_max(v16 a, v16 b)
{
	return _mm512_max_ps(a, b);
}

static inline v16 v16_min(v16 a, v16 b)
{
	return _mm512_min_ps(a, b);
}

static inline float v16_fold_add(v16 a)
{
	__m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
	__m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));

	c = _mm_add_ps(c, _mm_movehl_ps(c, c));
	return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

static inline float v16_fold_max(v16 a)
{
	__m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
	__m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));

	c = _mm_max_ps(c, _mm_movehl_ps(c, c));
	return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

static inline v16 v16_nan_where(v16 test, v16 a)
{
	__mmask16 nan = _mm512_cmp_ps_mask(test, test, _CMP_UNORD_Q);

	return _mm512_mask_mov_ps(a, nan, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)));
}

static inline v16 v16_scale_pow2(v16 p, v16 t)
{
	const __m512i bias = _mm512_set1_epi32(127);
	__m512i n = _mm512_sub_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(0x4b400000));
	__m512i half = _mm512_srai_epi32(n, 1), rest = _mm512_sub_epi32(n, half);

	p = _mm512_mul_ps(p, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23)));
	return _mm512_mul_ps(p, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(rest, bias), 23)));
}

static inline void v16_store_i8(int8_t *p, v16 a)
{
	_mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}

static inline void v16_store_i8x4(int8_t *p, const v16 a[4])
{
	const __m512i low = _mm512_set1_epi32(255);
	__m512i w = _mm512_slli_epi32(_mm512_cvtps_epi32(a[3]), 8);

	w = _mm512_slli_epi32(_mm512_or_si512(w, _mm512_and_si512(_mm512_cvtps_epi32(a[2]), low)), 8);
	w = _mm512_slli_epi32(_mm512_or_si512(w, _mm512_and_si512(_mm512_cvtps_epi32(a[1]), low)), 8);
	_mm512_storeu_si512(p, _mm512_or_si512(w, _mm512_and_si512(_mm512_cvtps_epi32(a[0]), low)));
}

#ifdef __AVX512VBMI__
typedef __m512 v16t;

static inline v16t v16t_of(enum od_dtype t, v16 scale)
{
	return _mm512_mul_ps(_mm512_loadu_ps(t == OD_U4B8 ? od_u4b8_values : od_e2m1_values), scale);
}

/* All 16 codes are in each word of 8 bytes: lane i takes 8 bits from 4i on, and a permutation looks at the lower 4. */
static inline v16 v16_of_4bit(__m512i words, v16t table)
{
	const __m512i from = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60);

	return _mm512_permutexvar_ps(_mm512_multishift_epi64_epi8(from, words), table);
}

static inline v16 v16_load_4bit_n(const void *p, size_t n, v16t table)
{
	return v16_of_4bit(_mm512_broadcastq_epi64(_mm_maskz_loadu_epi8(v16_first((n + 1) / 2), p)), table);
}

static inline v16 v16_load_4bit(const void *p, v16t table)
{
	return v16_of_4bit(_mm512_broadcastq_epi64(_mm_loadl_epi64(p)), table);
}

/* v16_load_4bit with lanes in another order (v16_interleave), which needs one permutation less: lane 2i takes the lower
 * 32 bits, lane 2i + 1 the upper ones, each from bit 4i on. */
#define V16_LOADS_INTERLEAVED
static inline v16 v16_load_4bit_interleaved(const void *p, v16t table)
{
	const __m512i from = _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);

	return _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_broadcastq_epi64(_mm_loadl_epi64(p)), from), table);
}

static inline v16 v16_interleave(v16 x)
{
	return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15), x);
}

static inline v16 v16_deinterleave(v16 x)
{
	return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15), x);
}

/* E4M3 without sign as BF16: its upper bytes, and its lower ones. The first 8 are subnormals, the last one is NaN. */
#define V16_ROW(b) b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b
#define V16_ROW_LOW 0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0
static const uint8_t v16_e4m3_high[128] = {
	0x00,	       0x3b,	      0x3b,	     0x3b,	    0x3c,	   0x3c,	  0x3c, 0x3c,
	0x3c,	       0x3c,	      0x3c,	     0x3c,	    0x3c,	   0x3c,	  0x3c, 0x3c,
	V16_ROW(0x3d), V16_ROW(0x3e), V16_ROW(0x3f), V16_ROW(0x40), V16_ROW(0x41), V16_ROW(0x42), 0x43, 0x43,
	0x43,	       0x43,	      0x43,	     0x43,	    0x43,	   0x43,	  0x43, 0x43,
	0x43,	       0x43,	      0x43,	     0x43,	    0x43,	   0x7f,
};
static const uint8_t v16_e4m3_low[128] = {
	0x00,	     0x00, 0x80,	0xc0, 0x00,	   0x20, 0x40,	      0x60, 0x80,	 0x90,
	0xa0,	     0xb0, 0xc0,	0xd0, 0xe0,	   0xf0, V16_ROW_LOW, 0xf0, V16_ROW_LOW, 0xf0,
	V16_ROW_LOW, 0xf0, V16_ROW_LOW, 0xf0, V16_ROW_LOW, 0xf0, V16_ROW_LOW, 0xf0, V16_ROW_LOW, 0xc0,
};

static inline __m512i v16_look_up(const uint8_t *table, __m512i codes) /* by their lower 7 bits */
{
	return _mm512_permutex2var_epi8(_mm512_loadu_si512(table), codes, _mm512_loadu_si512(table + 64));
}

/* 64 of E4M3, in order. Unpacking works in each quarter of a register by itself, twice: bytes to words, words to the
 * upper halves of floats. So quarter q begins with weights 4q to 4q + 3 of each 16. */
#define V16_LOADS_64_E4M3
static inline void v16_load_64_e4m3(const void *p, v16 *w)
{
	const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
	const __m512i zero = _mm512_setzero_si512(), sign = _mm512_set1_epi8(-128);
	__m512i b = _mm512_permutexvar_epi32(order, _mm512_loadu_si512(p)), low = v16_look_up(v16_e4m3_low, b), words;
	/* f8: high | (b & sign) */
	__m512i high = _mm512_ternarylogic_epi32(v16_look_up(v16_e4m3_high, b), b, sign, 0xf8);

	words = _mm512_unpacklo_epi8(low, high);
	w[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, words));
	w[1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, words));
	words = _mm512_unpackhi_epi8(low, high);
	w[2] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, words));
	w[3] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, words));
}
#endif

#ifdef __AVX512VNNI__
typedef __m512i v64;

static inline v64 v64_load(const void *p)
{
	return _mm512_loadu_si512(p);
}

static inline v64 v64_load_n(const void *p, size_t n)
{
	return _mm512_maskz_loadu_epi8(n < 64 ? ((__mmask64)1 << n) - 1 : ~(__mmask64)0, p);
}

static inline v64 v64_of_nf4(__m512i codes) /* in the low halves of the bytes */
{
	__m512i values = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)od_nf4_int8));

	return _mm512_shuffle_epi8(values, _mm512_and_si512(codes, _mm512_set1_epi8(15)));
}

static inline v64 v64_nf4_low(const void *p)
{
	return v64_of_nf4(_mm512_loadu_si512(p));
}

static inline v64 v64_nf4_high(const void *p)
{
	return v64_of_nf4(_mm512_srli_epi16(_mm512_loadu_si512(p), 4));
}

/* The instruction wants one side without sign: 128 more in every weight, which adds 128 times the sum of a, taken off
 * beforehand. That work the compiler shares among the rows of weights that meet the same a. */
static inline v16 v64_dot(v64 w, v64 a)
{
	const __m512i bias = _mm512_set1_epi8(-128);
	__m512i more = _mm512_dpbusd_epi32(_mm512_setzero_si512(), bias, a);

	return _mm512_cvtepi32_ps(
		_mm512_dpbusd_epi32(_mm512_sub_epi32(_mm512_setzero_si512(), more), _mm512_xor_si512(w, bias), a));
}
#endif

#endif

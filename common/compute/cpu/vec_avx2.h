/* vec_avx2.h - the 16 lanes of vec_scalar.h as two ymm registers; the operations are described there. */
#ifndef OD_COMPUTE_VEC_AVX2_H
#define OD_COMPUTE_VEC_AVX2_H

#include <immintrin.h>

#include "common/compute/dtype.h"
#include "common/compute/quant.h"

typedef struct {
	__m256 lo, hi;
} v16;

/* Rows of weights that meet 1, 2, 4 rows of x: 8 of the 16 registers are sums. A sum is a chain of FMAs of 4
 * cycles, two of which can start per cycle, so 8 keep the unit busy; more would spill. */
#define V16_OUTS_OF_1 4
#define V16_4BIT_OUTS_OF_1 2 /* codes take registers too: a third faster than 4 */
#define V16_OUTS_OF_2 2
#define V16_OUTS_OF_4 1

/* Lanes [0, n) all ones: a window on 16 ones and 16 zeros. */
static const int32_t v16_window[32] = { -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1 };

static inline __m256i v16_first_lo(size_t n)
{
	return _mm256_loadu_si256((const __m256i *)(const void *)(v16_window + 16 - n));
}

static inline __m256i v16_first_hi(size_t n)
{
	return _mm256_loadu_si256((const __m256i *)(const void *)(v16_window + 24 - n));
}

static inline v16 v16_set1(float a)
{
	return (v16){ _mm256_set1_ps(a), _mm256_set1_ps(a) };
}

static inline v16 v16_load_n(const float *p, size_t n)
{
	return (v16){ _mm256_maskload_ps(p, v16_first_lo(n)), _mm256_maskload_ps(p + 8, v16_first_hi(n)) };
}

static inline v16 v16_load(const float *p)
{
	return (v16){ _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8) };
}

static inline __m256 v16_half_of_bf16(__m128i h)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

static inline v16 v16_load_bf16(const void *p)
{
	const __m128i *h = p;

	return (v16){ v16_half_of_bf16(_mm_loadu_si128(h)), v16_half_of_bf16(_mm_loadu_si128(h + 1)) };
}

static inline v16 v16_load_bf16_n(const void *p, size_t n)
{
	uint16_t h[16] = { 0 };

	memcpy(h, p, n * sizeof(h[0]));
	return v16_load_bf16(h);
}

static inline v16 v16_load_f16(const void *p)
{
	const __m128i *h = p;

	return (v16){ _mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1)) };
}

static inline void v16_load_32_bf16(const void *p, v16 *first, v16 *second)
{
	*first = v16_load_bf16(p);
	*second = v16_load_bf16((const uint16_t *)p + 16);
}

static inline v16 v16_load_f16_n(const void *p, size_t n)
{
	uint16_t h[16] = { 0 };

	memcpy(h, p, n * sizeof(h[0]));
	return v16_load_f16(h);
}

static inline v16 v16_of_i8(__m128i b)
{
	return (v16){ _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)),
		      _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(b, b))) };
}

static inline v16 v16_load_i8(const void *p)
{
	return v16_of_i8(_mm_loadu_si128(p));
}

static inline v16 v16_load_i8_n(const void *p, size_t n)
{
	int8_t b[16] = { 0 };

	memcpy(b, p, n);
	return v16_load_i8(b);
}

static inline v16 v16_of_f16(__m256i h)
{
	return (v16){ _mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)) };
}

/* With F16's bits an E4M3 number is 256 times too small (F16's bias is 15, not 7), subnormals too, and its NaNs, 3f80
 * there, look like numbers: they become all ones. */
static inline v16 v16_of_e4m3(__m128i b)
{
	const __m256i nan = _mm256_set1_epi16(0x3f80), bits = _mm256_set1_epi16((short)0xbf80);
	__m256i h = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(b), 7), bits);
	v16 r = v16_of_f16(_mm256_or_si256(h, _mm256_cmpeq_epi16(_mm256_and_si256(h, nan), nan)));

	return (v16){ _mm256_mul_ps(r.lo, _mm256_set1_ps(256)), _mm256_mul_ps(r.hi, _mm256_set1_ps(256)) };
}

static inline v16 v16_load_e4m3(const void *p)
{
	return v16_of_e4m3(_mm_loadu_si128(p));
}

static inline v16 v16_load_e4m3_n(const void *p, size_t n)
{
	uint8_t b[16] = { 0 };

	memcpy(b, p, n);
	return v16_load_e4m3(b);
}

static inline v16 v16_load_e5m2(const void *p)
{
	return v16_of_f16(_mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(p)), 8));
}

static inline v16 v16_load_e5m2_n(const void *p, size_t n)
{
	uint8_t b[16] = { 0 };

	memcpy(b, p, n);
	return v16_load_e5m2(b);
}

static inline v16 v16_load_i8_flipped(const void *p, uint8_t flip)
{
	return v16_of_i8(_mm_xor_si128(_mm_loadu_si128(p), _mm_set1_epi8((char)flip)));
}

static inline v16 v16_load_i8_flipped_n(const void *p, size_t n, uint8_t flip)
{
	uint8_t b[16] = { 0 };

	memcpy(b, p, n);
	return v16_load_i8_flipped(b, flip);
}

static inline __m256 v16_half_e8m0(__m128i b)
{
	const __m256i half = _mm256_set1_epi32(0x00400000); /* 2^-127, and with all ones above it NaN */
	__m256i u = _mm256_slli_epi32(_mm256_cvtepu8_epi32(b), 23);
	__m256i nan = _mm256_and_si256(_mm256_cmpeq_epi32(u, _mm256_set1_epi32(0x7f800000)), half);

	return _mm256_castsi256_ps(_mm256_or_si256(_mm256_max_epu32(u, half), nan));
}

static inline v16 v16_load_e8m0(const void *p)
{
	__m128i b = _mm_loadu_si128(p);

	return (v16){ v16_half_e8m0(b), v16_half_e8m0(_mm_unpackhi_epi64(b, b)) };
}

static inline v16 v16_load_e8m0_n(const void *p, size_t n)
{
	uint8_t b[16] = { 0 };

	memcpy(b, p, n);
	return v16_load_e8m0(b);
}

typedef struct {
	__m128i e5m2; /* the upper halves of F16s */
	__m256 scale;
} v16t;

static inline v16t v16t_of(enum od_dtype t, v16 scale)
{
	const uint8_t *e5m2 = t == OD_U4B8 ? od_u4b8_e5m2 : od_e2m1_e5m2;

	return (v16t){ _mm_loadu_si128((const __m128i *)(const void *)e5m2), scale.lo };
}

static inline v16 v16_load_4bit(const void *p, v16t table)
{
	__m128i b = _mm_loadl_epi64(p), codes = _mm_unpacklo_epi8(b, _mm_srli_epi16(b, 4)), zero = _mm_setzero_si128();

	b = _mm_shuffle_epi8(table.e5m2, _mm_and_si128(codes, _mm_set1_epi8(15)));
	return (v16){ _mm256_mul_ps(_mm256_cvtph_ps(_mm_unpacklo_epi8(zero, b)), table.scale),
		      _mm256_mul_ps(_mm256_cvtph_ps(_mm_unpackhi_epi8(zero, b)), table.scale) };
}

static inline v16 v16_load_4bit_n(const void *p, size_t n, v16t table)
{
	uint8_t b[8] = { 0 };

	memcpy(b, p, (n + 1) / 2);
	return v16_load_4bit(b, table);
}

typedef struct {
	__m256i lo, hi;
} v16w;

static inline v16w v16w_load(const void *p)
{
	const __m256i *w = p;

	return (v16w){ _mm256_loadu_si256(w), _mm256_loadu_si256(w + 1) };
}

static inline v16w v16w_shift4(v16w c)
{
	return (v16w){ _mm256_srli_epi32(c.lo, 4), _mm256_srli_epi32(c.hi, 4) };
}

static inline v16w v16w_shift8(v16w c)
{
	return (v16w){ _mm256_srli_epi32(c.lo, 8), _mm256_srli_epi32(c.hi, 8) };
}

/* A permutation looks at 3 bits: one for either half of the values, and bit 3, moved to the sign, chooses. */
static inline __m256 v16_half_nf4(__m256i c)
{
	__m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(od_nf4_values), c);
	__m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(od_nf4_values + 8), c);

	return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(c, 28)));
}

static inline v16 v16_nf4(v16w c)
{
	return (v16){ v16_half_nf4(c.lo), v16_half_nf4(c.hi) };
}

static inline void v16_store_n(float *p, v16 a, size_t n)
{
	_mm256_maskstore_ps(p, v16_first_lo(n), a.lo);
	_mm256_maskstore_ps(p + 8, v16_first_hi(n), a.hi);
}

static inline void v16_store(float *p, v16 a)
{
	_mm256_storeu_ps(p, a.lo);
	_mm256_storeu_ps(p + 8, a.hi);
}

static inline __m256i v16_half_bf16_bits(__m256 a) /* od_f32_bf16, in the low half of each lane */
{
	__m256i u = _mm256_castps_si256(a), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
	__m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
	__m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
	__m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));

	return _mm256_srli_epi32(_mm256_blendv_epi8(r, quiet, nan), 16);
}

static inline void v16_store_bf16(uint16_t *p, v16 a)
{
	__m256i packed = _mm256_packus_epi32(v16_half_bf16_bits(a.lo), v16_half_bf16_bits(a.hi));

	/* packus works on 128-bit halves: put the middle quarters in order. */
	_mm256_storeu_si256((__m256i *)(void *)p, _mm256_permute4x64_epi64(packed, 0xd8));
}

static inline void v16_store_bf16_n(uint16_t *p, v16 a, size_t n)
{
	uint16_t h[16];

	v16_store_bf16(h, a);
	memcpy(p, h, n * sizeof(h[0]));
}

static inline v16 v16_round_bf16(v16 a)
{
	return (v16){ _mm256_castsi256_ps(_mm256_slli_epi32(v16_half_bf16_bits(a.lo), 16)),
		      _mm256_castsi256_ps(_mm256_slli_epi32(v16_half_bf16_bits(a.hi), 16)) };
}

static inline v16 v16_fma(v16 a, v16 b, v16 c)
{
	return (v16){ _mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi) };
}

static inline v16 v16_fma_n(v16 a, v16 b, v16 c, size_t n)
{
	v16 r = v16_fma(a, b, c);

	return (v16){ _mm256_blendv_ps(c.lo, r.lo, _mm256_castsi256_ps(v16_first_lo(n))),
		      _mm256_blendv_ps(c.hi, r.hi, _mm256_castsi256_ps(v16_first_hi(n))) };
}

static inline v16 v16_add(v16 a, v16 b)
{
	return (v16){ _mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi) };
}

static inline v16 v16_sub(v16 a, v16 b)
{
	return (v16){ _mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi) };
}

static inline v16 v16_mul(v16 a, v16 b)
{
	return (v16){ _mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi) };
}

static inline v16 v16_div(v16 a, v16 b)
{
	return (v16){ _mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi) };
}

static inline v16 v16_max(v16 a, v16 b)
{
	return (v16){ _mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi) };
}

static inline v16 v16_min(v16 a, v16 b)
{
	return (v16){ _mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi) };
}

static inline float v16_fold_add(v16 a)
{
	__m256 b = _mm256_add_ps(a.lo, a.hi);
	__m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));

	c = _mm_add_ps(c, _mm_movehl_ps(c, c));
	return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

static inline float v16_fold_max(v16 a)
{
	__m256 b = _mm256_max_ps(a.lo, a.hi);
	__m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));

	c = _mm_max_ps(c, _mm_movehl_ps(c, c));
	return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

static inline __m256 v16_half_nan_where(__m256 test, __m256 a)
{
	const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));

	return _mm256_blendv_ps(a, nan, _mm256_cmp_ps(test, test, _CMP_UNORD_Q));
}

static inline v16 v16_nan_where(v16 test, v16 a)
{
	return (v16){ v16_half_nan_where(test.lo, a.lo), v16_half_nan_where(test.hi, a.hi) };
}

static inline __m256 v16_half_scale_pow2(__m256 p, __m256 t)
{
	const __m256i bias = _mm256_set1_epi32(127);
	__m256i n = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(0x4b400000));
	__m256i half = _mm256_srai_epi32(n, 1), rest = _mm256_sub_epi32(n, half);

	p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
	return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}

static inline v16 v16_scale_pow2(v16 p, v16 t)
{
	return (v16){ v16_half_scale_pow2(p.lo, t.lo), v16_half_scale_pow2(p.hi, t.hi) };
}

typedef struct {
	__m256i lo, hi;
} v64;

static inline v64 v64_load(const void *p)
{
	const __m256i *b = p;

	return (v64){ _mm256_loadu_si256(b), _mm256_loadu_si256(b + 1) };
}

static inline v64 v64_load_n(const void *p, size_t n)
{
	int8_t b[64] = { 0 };

	memcpy(b, p, n);
	return v64_load(b);
}

static inline __m256i v64_half_nf4(__m256i codes) /* in the low halves of the bytes */
{
	__m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)od_nf4_int8));

	return _mm256_shuffle_epi8(values, _mm256_and_si256(codes, _mm256_set1_epi8(15)));
}

static inline v64 v64_nf4_low(const void *p)
{
	v64 c = v64_load(p);

	return (v64){ v64_half_nf4(c.lo), v64_half_nf4(c.hi) };
}

static inline v64 v64_nf4_high(const void *p)
{
	v64 c = v64_load(p);

	return (v64){ v64_half_nf4(_mm256_srli_epi16(c.lo, 4)), v64_half_nf4(_mm256_srli_epi16(c.hi, 4)) };
}

/* The instruction wants one side without sign: w gives its sign to a. Its 16-bit sums of two saturate, but do not get
 * there: |w| <= 128 and |a| <= 127 make 2 * 128 * 127 = 32512 at most. */
static inline __m256 v64_half_dot(__m256i w, __m256i a)
{
	__m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));

	return _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

static inline v16 v64_dot(v64 w, v64 a)
{
	return (v16){ v64_half_dot(w.lo, a.lo), v64_half_dot(w.hi, a.hi) };
}

static inline void v16_store_i8(int8_t *p, v16 a)
{
	__m256i h = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));

	h = _mm256_permute4x64_epi64(h, 0xd8); /* as in v16_store_bf16 */
	_mm_storeu_si128((__m128i *)(void *)p,
			 _mm_packs_epi16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
}

static inline __m256i v16_half_i8x4(__m256 a, __m256 b, __m256 c, __m256 d)
{
	const __m256i low = _mm256_set1_epi32(255);
	__m256i ab = _mm256_or_si256(_mm256_and_si256(_mm256_cvtps_epi32(a), low),
				     _mm256_slli_epi32(_mm256_and_si256(_mm256_cvtps_epi32(b), low), 8));
	__m256i cd = _mm256_or_si256(_mm256_and_si256(_mm256_cvtps_epi32(c), low),
				     _mm256_slli_epi32(_mm256_cvtps_epi32(d), 8));

	return _mm256_or_si256(ab, _mm256_slli_epi32(cd, 16));
}

static inline void v16_store_i8x4(int8_t *p, const v16 a[4])
{
	__m256i *out = (__m256i *)(void *)p;

	_mm256_storeu_si256(out, v16_half_i8x4(a[0].lo, a[1].lo, a[2].lo, a[3].lo));
	_mm256_storeu_si256(out + 1, v16_half_i8x4(a[0].hi, a[1].hi, a[2].hi, a[3].hi));
}

#endif

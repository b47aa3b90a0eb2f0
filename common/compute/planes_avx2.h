/* planes_avx2.h - the 64 exponents of planes_scalar.h as two registers. */
#ifndef OD_COMPUTE_PLANES_AVX2_H
#define OD_COMPUTE_PLANES_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "common/compute/planes_spread.h"

typedef struct {
	__m256i lo, hi;
} x64;

typedef struct {
	__m256i of; /* by code, in each half; 0 for the escape */
} x64_symbols;

static inline x64_symbols x64_symbols_of(const uint8_t *symbol)
{
	return (x64_symbols){ _mm256_set1_epi32(symbol[0] | symbol[1] << 8 | symbol[2] << 16) };
}

static inline x64 x64_load(const void *p)
{
	const __m256i *v = p;

	return (x64){ _mm256_loadu_si256(v), _mm256_loadu_si256(v + 1) };
}

static inline void x64_store(void *p, x64 e)
{
	__m256i *v = p;

	_mm256_storeu_si256(v, e.lo);
	_mm256_storeu_si256(v + 1, e.hi);
}

/* Of both planes in each half of `planes`, bits [8 * first, 8 * first + 32) to bytes: 0 or 1. */
static inline __m256i planes_bits(__m256i planes, const int first)
{
	const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201ull);
	const __m256i byte = _mm256_add_epi8(_mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
								 0x0303030303030303), _mm256_set1_epi8((char)first));

	return _mm256_min_epu8(_mm256_and_si256(_mm256_shuffle_epi8(planes, byte), bit), _mm256_set1_epi8(1));
}

static inline __m256i planes_lookup(x64_symbols s, __m256i planes, const int first)
{
	__m256i high = planes_bits(planes, first + 8);

	return _mm256_shuffle_epi8(s.of, _mm256_add_epi8(planes_bits(planes, first), _mm256_add_epi8(high, high)));
}

/* The next bytes of below to where the 8 bits of mask are set, 0 elsewhere. */
static inline __m128i planes_spread_8(uint64_t mask, const uint8_t *below)
{
	__m128i from = _mm_loadl_epi64((const __m128i *)(const void *)(planes_spread + (uint8_t)mask));

	return _mm_shuffle_epi8(_mm_loadl_epi64((const __m128i *)(const void *)below), from);
}

/* The same of 32 bits. *below moves on. */
static inline __m256i planes_spread_32(uint64_t mask, const uint8_t **below)
{
	const uint8_t *b1 = *below + __builtin_popcountll(mask & 0xff), *b2 = *below + __builtin_popcountll(mask & 0xffff);
	const uint8_t *b3 = *below + __builtin_popcountll(mask & 0xffffff);
	__m128i lo = _mm_unpacklo_epi64(planes_spread_8(mask, *below), planes_spread_8(mask >> 8, b1));
	__m128i hi = _mm_unpacklo_epi64(planes_spread_8(mask >> 16, b2), planes_spread_8(mask >> 24, b3));

	*below += __builtin_popcountll(mask & 0xffffffff);
	return _mm256_inserti128_si256(_mm256_castsi128_si256(lo), hi, 1);
}

static inline x64 x64_decode(x64_symbols s, const void *planes, const uint8_t *below)
{
	__m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128(planes));
	uint64_t plane[2];
	x64 r;

	memcpy(plane, planes, sizeof(plane));
	r.lo = _mm256_or_si256(planes_lookup(s, both, 0), planes_spread_32(plane[0] & plane[1], &below));
	r.hi = _mm256_or_si256(planes_lookup(s, both, 4), planes_spread_32((plane[0] & plane[1]) >> 32, &below));
	return r;
}

/* 32 weights: the unpack instructions work in each half by itself, so the quarters are put in their places first. */
static inline void merge_32(uint16_t *w, __m256i low, __m256i e)
{
	__m256i *out = (__m256i *)(void *)w, a, b;

	low = _mm256_permute4x64_epi64(low, 0xd8);
	e = _mm256_permute4x64_epi64(e, 0xd8);
	a = _mm256_unpacklo_epi8(low, e);
	b = _mm256_unpackhi_epi8(low, e);
	_mm256_storeu_si256(out, _mm256_or_si256(_mm256_srli_epi16(a, 1), _mm256_slli_epi16(a, 15)));
	_mm256_storeu_si256(out + 1, _mm256_or_si256(_mm256_srli_epi16(b, 1), _mm256_slli_epi16(b, 15)));
}

static inline void x64_merge(uint16_t *w, const uint8_t *sm, x64 e)
{
	x64 low = x64_load(sm);

	merge_32(w, low.lo, e.lo);
	merge_32(w + 32, low.hi, e.hi);
}

#endif

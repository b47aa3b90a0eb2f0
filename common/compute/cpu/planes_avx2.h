/* planes_avx2.h - the 64 exponents of planes_scalar.h as two registers. */
#ifndef OD_COMPUTE_PLANES_AVX2_H
#define OD_COMPUTE_PLANES_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "common/compute/cpu/planes_codes.h"

typedef struct {
	__m256i lo, hi;
} x64;

typedef struct {
	__m256i first, second, third;
} x64_symbols;

static inline x64_symbols x64_symbols_of(const uint8_t *symbol)
{
	return (x64_symbols){ _mm256_set1_epi8((char)symbol[0]), _mm256_set1_epi8((char)symbol[1]),
			      _mm256_set1_epi8((char)symbol[2]) };
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

/* Bits [8 * first, 8 * first + 32) of both planes, in each half of `planes`, to bytes: 0 or -1. */
static inline __m256i planes_mask(__m256i planes, const int first)
{
	const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201ull);
	const __m256i byte =
		_mm256_add_epi8(_mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303),
				_mm256_set1_epi8((char)first));

	return _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(planes, byte), bit), bit);
}

/* How many bytes of each half are set up to and with each one; mask: 0 or -1. A product sums four bytes (they cannot
 * carry), two shuffles take the sums on to the next four and the next eight. gcc must not know the factor: the shifts
 * and sums that it makes of the product take longer. */
static inline __m256i planes_ranks(__m256i mask)
{
	const __m256i fours =
		_mm256_setr_epi64x(0x03030303ffffffff, 0x0b0b0b0bffffffff, 0x03030303ffffffff, 0x0b0b0b0bffffffff);
	const __m256i eights = _mm256_setr_epi64x(-1, 0x0707070707070707, -1, 0x0707070707070707);
	__m256i each = _mm256_set1_epi8(1), n = _mm256_and_si256(mask, each);

	__asm__("" : "+x"(each));
	n = _mm256_mullo_epi32(n, each);
	n = _mm256_add_epi8(n, _mm256_shuffle_epi8(n, fours));
	return _mm256_add_epi8(n, _mm256_shuffle_epi8(n, eights));
}

/* 32 codes from byte `first` of the planes on. What the first 16 and the next 16 escape to is packed at below and at
 * next, where 16 bytes each can be read. */
static inline __m256i planes_decode_32(x64_symbols s, __m256i planes, const int first, const uint8_t *below,
				       const uint8_t *next)
{
	__m256i low = planes_mask(planes, first), high = planes_mask(planes, first + 8),
		escaped = _mm256_and_si256(low, high);
	__m256i packed =
		_mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)below)),
					_mm_loadu_si128((const __m128i *)(const void *)next), 1);
	__m256i e = _mm256_blendv_epi8(_mm256_blendv_epi8(s.first, s.second, low), s.third, high);

	packed = _mm256_shuffle_epi8(packed, _mm256_add_epi8(planes_ranks(escaped), escaped));
	return _mm256_blendv_epi8(e, packed, escaped);
}

static inline x64 x64_decode(x64_symbols s, x64_codes c, const size_t g, uint64_t escaped, const uint8_t *below)
{
	__m256i planes =
		_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(c.planes + 16 * g)));
	const uint8_t *b1 = below + __builtin_popcountll(escaped & 0xffff);
	const uint8_t *b2 = below + __builtin_popcountll(escaped & 0xffffffff);
	const uint8_t *b3 = below + __builtin_popcountll(escaped << 16);

	return (x64){ planes_decode_32(s, planes, 0, below, b1), planes_decode_32(s, planes, 4, b2, b3) };
}

/* 32 weights: the unpack instructions work in each half by itself, so the quarters are put in order first. */
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

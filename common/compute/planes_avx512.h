/* planes_avx512.h - the 64 exponents of planes_scalar.h as one register. Runs only where
 * od_cpu_expands_bytes. */
#ifndef OD_COMPUTE_PLANES_AVX512_H
#define OD_COMPUTE_PLANES_AVX512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef __m512i x64;

typedef struct {
	__m512i of; /* by code, in each quarter */
} x64_symbols;

static inline x64_symbols x64_symbols_of(const uint8_t *symbol)
{
	return (x64_symbols){ _mm512_set1_epi32(symbol[0] | symbol[1] << 8 | symbol[2] << 16) };
}

static inline x64 x64_load(const void *p)
{
	return _mm512_loadu_si512(p);
}

static inline void x64_store(void *p, x64 e)
{
	_mm512_storeu_si512(p, e);
}

/* The planes' bits to bytes by a product of bit matrices: in eighth q the matrix has byte q of either plane as its last
 * two rows, and byte i of what it is multiplied with is 1 << i, so byte i of the product is code 8 q + i. Three masks,
 * one for each symbol, take longer. */
static inline x64 x64_codes(const void *planes)
{
	const __m512i rows = _mm512_setr_epi64(0x0008ffffffffffff, 0x0109ffffffffffff, 0x020affffffffffff,
					       0x030bffffffffffff, 0x040cffffffffffff, 0x050dffffffffffff,
					       0x060effffffffffff, 0x070fffffffffffff);
	const __m512i bit = _mm512_set1_epi64((long long)0x8040201008040201ull);
	__m512i both = _mm512_zextsi128_si512(_mm_loadu_si128(planes));

	return _mm512_gf2p8affine_epi64_epi8(bit, _mm512_permutexvar_epi8(rows, both), 0);
}

static inline x64 x64_decode(x64_symbols s, const void *planes, const uint8_t *below)
{
	__m512i e = _mm512_shuffle_epi8(s.of, x64_codes(planes));
	uint64_t plane[2];

	memcpy(plane, planes, sizeof(plane));
	return _mm512_mask_expand_epi8(e, plane[0] & plane[1], _mm512_loadu_si512(below));
}

/* The unpack instructions work in each quarter by itself, so the eighths are put in their places first. */
static inline void x64_merge(uint16_t *w, const uint8_t *sm, x64 e)
{
	const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
	__m512i low = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(sm)), a, b;

	e = _mm512_permutexvar_epi64(order, e);
	a = _mm512_unpacklo_epi8(low, e);
	b = _mm512_unpackhi_epi8(low, e);
	_mm512_storeu_si512(w, _mm512_shrdi_epi16(a, a, 1));
	_mm512_storeu_si512(w + 32, _mm512_shrdi_epi16(b, b, 1));
}

#endif

/* planes_avx512.h - the 64 exponents of planes_scalar.h as one register. Needs VBMI2, VBMI and GFNI.
 *
 * Shuffles are scarce (one a cycle on Zen 4, as are products of bit matrices; an expansion takes 1.3), so the codes of
 * four groups are brought to bytes together: 3.4 cycles a group in the cache, and 4.6 one by one. */
#ifndef OD_COMPUTE_PLANES_AVX512_H
#define OD_COMPUTE_PLANES_AVX512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef __m512i x64;

typedef struct {
	__m512i of[3]; /* by the code in bits 0 and 1, 2 and 3, 4 and 5 of an index of six bits */
} x64_symbols;

static inline x64_symbols x64_symbols_of(const uint8_t *symbol)
{
	const __m512i by_low = _mm512_set1_epi32(symbol[0] | symbol[1] << 8 | symbol[2] << 16);
	const __m512i index =
		_mm512_setr_epi64(0x0101010100000000, 0x0303030302020202, 0x0101010100000000, 0x0303030302020202,
				  0x0101010100000000, 0x0303030302020202, 0x0101010100000000, 0x0303030302020202);
	const __m512i quarter = _mm512_setr_epi64(0, 0, 0x0101010101010101, 0x0101010101010101, 0x0202020202020202,
						  0x0202020202020202, 0x0303030303030303, 0x0303030303030303);

	return (x64_symbols){ { by_low, _mm512_shuffle_epi8(by_low, index), _mm512_shuffle_epi8(by_low, quarter) } };
}

static inline x64 x64_load(const void *p)
{
	return _mm512_loadu_si512(p);
}

static inline void x64_store(void *p, x64 e)
{
	_mm512_storeu_si512(p, e);
}

/* Bits 2 g and 2 g + 1 of byte i: code i of group g. */
typedef struct {
	__m512i of;
	const uint8_t *planes;
} x64_codes;

/* The planes' bits to bytes by a product of bit matrices: in eighth q the matrix's rows are bytes q of the planes, the
 * last group's second plane first, and byte i of what it is multiplied with is 1 << i, so byte i of the product has
 * code 8 q + i of each group. */
static inline x64_codes x64_codes_of(const uint8_t *planes, const size_t groups)
{
	const __m512i rows =
		_mm512_setr_epi64(0x0008101820283038, 0x0109111921293139, 0x020a121a222a323a, 0x030b131b232b333b,
				  0x040c141c242c343c, 0x050d151d252d353d, 0x060e161e262e363e, 0x070f171f272f373f);
	const __m512i bit = _mm512_set1_epi64((long long)0x8040201008040201ull);
	__m512i all = groups == 1 ? _mm512_zextsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)planes)) :
				    _mm512_loadu_si512(planes);

	return (x64_codes){ _mm512_gf2p8affine_epi64_epi8(bit, _mm512_permutexvar_epi8(rows, all), 0), planes };
}

static inline x64 x64_decode(x64_symbols s, x64_codes c, const size_t g, uint64_t escaped, const uint8_t *below)
{
	__m512i e = g < 3 ? _mm512_permutexvar_epi8(c.of, s.of[g]) :
			    _mm512_permutexvar_epi8(_mm512_srli_epi16(c.of, 2), s.of[2]);

	return _mm512_mask_expand_epi8(e, escaped, _mm512_loadu_si512(below));
}

/* The unpack instructions work in each quarter by itself, so the eighths are put in order first. */
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

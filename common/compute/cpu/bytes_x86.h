/* bytes_x86.h - 16 bytes as one xmm register, for decoders of blocks (cpu_blocks.h). After a vec_*.h. */
#ifndef OD_COMPUTE_BYTES_X86_H
#define OD_COMPUTE_BYTES_X86_H

#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>

typedef __m128i b16;

static inline b16 b16_set1(uint8_t a)
{
	return _mm_set1_epi8((char)a);
}

static inline b16 b16_load(const uint8_t *p)
{
	return _mm_loadu_si128((const __m128i *)(const void *)p);
}

static inline b16 b16_of_64(uint64_t low, uint64_t high)
{
	return _mm_set_epi64x((long long)high, (long long)low);
}

static inline b16 b16_and(b16 a, b16 b)
{
	return _mm_and_si128(a, b);
}

static inline b16 b16_or(b16 a, b16 b)
{
	return _mm_or_si128(a, b);
}

static inline b16 b16_xor(b16 a, b16 b)
{
	return _mm_xor_si128(a, b);
}

static inline b16 b16_add(b16 a, b16 b)
{
	return _mm_add_epi8(a, b);
}

static inline b16 b16_sub(b16 a, b16 b)
{
	return _mm_sub_epi8(a, b);
}

static inline b16 b16_shr(b16 a, unsigned n)
{
	return b16_and(_mm_srl_epi16(a, _mm_cvtsi32_si128((int)n)), b16_set1((uint8_t)(0xff >> n)));
}

static inline b16 b16_shl4(b16 a) /* a: bytes below 16 */
{
	return _mm_slli_epi16(a, 4);
}

/* value where a byte is at least b (unsigned), else 0 */
static inline b16 b16_where_least(b16 a, b16 b, b16 value)
{
	return b16_and(_mm_cmpeq_epi8(_mm_max_epu8(a, b), a), value);
}

/* value where the byte has this bit, else 0 */
static inline b16 b16_where_bit(b16 a, uint8_t bit, b16 value)
{
	return b16_and(_mm_cmpeq_epi8(b16_and(a, b16_set1(bit)), b16_set1(bit)), value);
}

/* value in byte i where bit i of 16 is set, else 0 */
static inline b16 b16_where_bits(unsigned bits, b16 value)
{
	const b16 each = b16_of_64(0x8040201008040201u, 0x8040201008040201u);
	const b16 bytes = _mm_shuffle_epi8(_mm_cvtsi32_si128((int)bits), b16_of_64(0, 0x0101010101010101u));

	return b16_and(_mm_cmpeq_epi8(b16_and(bytes, each), each), value);
}

/* table[index] of each byte; index below 16 */
static inline b16 b16_lookup(b16 table, b16 index)
{
	return _mm_shuffle_epi8(table, index);
}

static inline v16 v16_of_bytes(b16 a) /* signed */
{
	return v16_of_i8(a);
}

#endif

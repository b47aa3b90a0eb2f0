/* bytes_neon.h - the 16 bytes of bytes_x86.h as one NEON register. After vec_neon.h. */
#ifndef OD_COMPUTE_BYTES_NEON_H
#define OD_COMPUTE_BYTES_NEON_H

#include <arm_neon.h>

#include <stddef.h>
#include <stdint.h>

typedef uint8x16_t b16;

static inline b16 b16_set1(uint8_t a)
{
	return vdupq_n_u8(a);
}

static inline b16 b16_load(const uint8_t *p)
{
	return vld1q_u8(p);
}

static inline b16 b16_of_64(uint64_t low, uint64_t high)
{
	return vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(low), vcreate_u64(high)));
}

static inline b16 b16_and(b16 a, b16 b)
{
	return vandq_u8(a, b);
}

static inline b16 b16_or(b16 a, b16 b)
{
	return vorrq_u8(a, b);
}

static inline b16 b16_xor(b16 a, b16 b)
{
	return veorq_u8(a, b);
}

static inline b16 b16_add(b16 a, b16 b)
{
	return vaddq_u8(a, b);
}

static inline b16 b16_sub(b16 a, b16 b)
{
	return vsubq_u8(a, b);
}

static inline b16 b16_shr(b16 a, unsigned n)
{
	return vshlq_u8(a, vdupq_n_s8((int8_t) - (int)n));
}

static inline b16 b16_shl4(b16 a)
{
	return vshlq_n_u8(a, 4);
}

static inline b16 b16_where_least(b16 a, b16 b, b16 value)
{
	return vandq_u8(vcgeq_u8(a, b), value);
}

static inline b16 b16_where_bit(b16 a, uint8_t bit, b16 value)
{
	return vandq_u8(vtstq_u8(a, vdupq_n_u8(bit)), value);
}

static inline b16 b16_where_bits(unsigned bits, b16 value)
{
	const b16 each = b16_of_64(0x8040201008040201u, 0x8040201008040201u);
	const b16 bytes = vcombine_u8(vdup_n_u8((uint8_t)bits), vdup_n_u8((uint8_t)(bits >> 8)));

	return vandq_u8(vtstq_u8(bytes, each), value);
}

static inline b16 b16_lookup(b16 table, b16 index)
{
	return vqtbl1q_u8(table, index);
}

static inline v16 v16_of_bytes(b16 a)
{
	return v16_of_i8(vreinterpretq_s8_u8(a));
}

#endif

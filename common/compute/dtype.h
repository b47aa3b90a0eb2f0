/* dtype.h - number formats of weights and rows, and the exact conversions between them. Thread: any. */
#ifndef OD_COMPUTE_DTYPE_H
#define OD_COMPUTE_DTYPE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/compute/formats/format_list.h"

/* Pinned: the numbers are stored in packs and sent on the wire. FP8: OCP's "8-bit Floating Point Specification"; E5M2
 * is the upper half of an F16; E4M3 (bias 7) has no infinities, and NaN only as 7f and ff; BF16 holds every value of
 * both. The last four types occur only with scales (quant.h): U4B8 and U8B128 are integers stored with 8 and 128 added;
 * F4_E2M1 and F8_E8M0 are OCP's "Microscaling Formats". Two 4-bit values share a byte, the first in the low half;
 * quant.h specifies OD_NF4. Not all types have a safetensors name; the readers of checkpoints and packs decide which
 * types a tensor may have. */
enum od_dtype {
#define OD_DTYPE_ENTRY(NAME, name, number, ...) OD_##NAME = number,
	OD_FORMATS(OD_DTYPE_ENTRY)
#undef OD_DTYPE_ENTRY
};

/* The values of the 16 codes of the 4-bit types; code 8 of E2M1 is -0. */
extern const float od_u4b8_values[16], od_e2m1_values[16];
extern const uint8_t od_u4b8_e5m2[16], od_e2m1_e5m2[16]; /* in E5M2, which holds all these values */

static inline float od_bits_f32(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static inline uint32_t od_f32_bits(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

static inline float od_bf16_f32(uint16_t h)
{
	return od_bits_f32((uint32_t)h << 16);
}

/* Round to nearest even; NaN stays NaN (quiet). */
static inline uint16_t od_f32_bf16(float f)
{
	uint32_t u = od_f32_bits(f);

	if ((u & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)(u >> 16 | 0x40u);
	return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static inline float od_f16_f32(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000u) << 16, mant = h & 0x3ffu, exp = h >> 10 & 0x1fu;

	if (exp == 0x1f)
		return od_bits_f32(sign | 0x7f800000u | mant << 13);
	if (exp != 0)
		return od_bits_f32(sign | (exp + 112u) << 23 | mant << 13);
	/* Zero and subnormals: mant * 2^-24, exact in f32. */
	return od_bits_f32(sign | od_f32_bits((float)mant * 0x1p-24f));
}

static inline float od_e5m2_f32(uint8_t b)
{
	return od_f16_f32((uint16_t)(b << 8));
}

static inline float od_e4m3_f32(uint8_t b)
{
	uint32_t sign = (uint32_t)(b & 0x80u) << 24, mant = b & 7u, exp = b >> 3 & 15u;

	if (exp == 15 && mant == 7)
		return od_bits_f32(sign | 0x7fc00000u);
	if (exp != 0)
		return od_bits_f32(sign | (exp + 120u) << 23 | mant << 20);
	return od_bits_f32(sign | od_f32_bits((float)mant * 0x1p-9f));
}

/* 2^(b - 127): b is the exponent field of the f32, except for 2^-127 (subnormal) and NaN. */
static inline float od_e8m0_f32(uint8_t b)
{
	return od_bits_f32(b == 0 ? 0x00400000u : b == 255 ? 0x7fc00000u : (uint32_t)b << 23);
}

#endif

/* planes_neon.h - the 64 exponents of planes_scalar.h as four registers. */
#ifndef OD_COMPUTE_PLANES_NEON_H
#define OD_COMPUTE_PLANES_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "common/compute/cpu/planes_codes.h"

typedef uint8x16x4_t x64;

typedef struct {
	uint8x16_t of; /* by code; 0 for the escape */
} x64_symbols;

static inline x64_symbols x64_symbols_of(const uint8_t *symbol)
{
	uint32_t codes = symbol[0] | (uint32_t)symbol[1] << 8 | (uint32_t)symbol[2] << 16;

	return (x64_symbols){ vreinterpretq_u8_u32(vdupq_n_u32(codes)) };
}

static inline x64 x64_load(const void *p)
{
	const uint8_t *b = p;

	return (x64){ { vld1q_u8(b), vld1q_u8(b + 16), vld1q_u8(b + 32), vld1q_u8(b + 48) } };
}

static inline void x64_store(void *p, x64 e)
{
	for (int i = 0; i < 4; i++)
		vst1q_u8((uint8_t *)p + 16 * i, e.val[i]);
}

/* 16 codes from bit 0 of the planes on. */
static inline uint8x16_t planes_lookup(x64_symbols s, uint64_t low, uint64_t high)
{
	const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
	uint8x16_t one = vcombine_u8(vdup_n_u8((uint8_t)low), vdup_n_u8((uint8_t)(low >> 8)));
	uint8x16_t two = vcombine_u8(vdup_n_u8((uint8_t)high), vdup_n_u8((uint8_t)(high >> 8)));

	one = vandq_u8(vtstq_u8(one, bit), vdupq_n_u8(1));
	return vqtbl1q_u8(s.of, vorrq_u8(one, vandq_u8(vtstq_u8(two, bit), vdupq_n_u8(2))));
}

/* Byte i of entry m: how many bits of m lie below bit i when that is set, else 0x80, from which shuffles make 0. */
#define SPREAD_BYTE(m, i) ((uint64_t)((m) >> (i)&1 ? __builtin_popcount((m) & ((1 << (i)) - 1)) : 0x80) << (8 * (i)))
#define SPREAD_1(m) \
	(SPREAD_BYTE(m, 0) | SPREAD_BYTE(m, 1) | SPREAD_BYTE(m, 2) | SPREAD_BYTE(m, 3) | SPREAD_BYTE(m, 4) | \
	 SPREAD_BYTE(m, 5) | SPREAD_BYTE(m, 6) | SPREAD_BYTE(m, 7))
#define SPREAD_4(m) SPREAD_1(m), SPREAD_1((m) + 1), SPREAD_1((m) + 2), SPREAD_1((m) + 3)
#define SPREAD_16(m) SPREAD_4(m), SPREAD_4((m) + 4), SPREAD_4((m) + 8), SPREAD_4((m) + 12)
#define SPREAD_64(m) SPREAD_16(m), SPREAD_16((m) + 16), SPREAD_16((m) + 32), SPREAD_16((m) + 48)

static const uint64_t planes_spread[256] = { SPREAD_64(0), SPREAD_64(64), SPREAD_64(128), SPREAD_64(192) };

/* The next bytes of below to where the 8 bits of mask are set, 0 elsewhere. */
static inline uint8x8_t planes_spread_8(uint64_t mask, const uint8_t *below)
{
	return vtbl1_u8(vld1_u8(below), vcreate_u8(planes_spread[(uint8_t)mask]));
}

static inline x64 x64_decode(x64_symbols s, x64_codes c, const size_t g, uint64_t escaped, const uint8_t *below)
{
	uint64_t plane[2], upto;
	x64 r;

	memcpy(plane, c.planes + g * sizeof(plane), sizeof(plane));
	/* Byte i: set bits of the escapes' bytes up to i. No sum of bytes carries: there are 64 bits at most. */
	upto = vget_lane_u64(vreinterpret_u64_u8(vcnt_u8(vcreate_u8(escaped))), 0) * 0x0101010101010101;

	for (int i = 0; i < 4; i++) {
		const uint8_t *first = below + (i > 0 ? upto >> (16 * i - 8) & 255 : 0),
			      *second = below + (upto >> 16 * i & 255);
		uint8x16_t next = vcombine_u8(planes_spread_8(escaped >> 16 * i, first),
					      planes_spread_8(escaped >> (16 * i + 8), second));

		r.val[i] = vorrq_u8(next, planes_lookup(s, plane[0] >> 16 * i, plane[1] >> 16 * i));
	}
	return r;
}

static inline void x64_merge(uint16_t *w, const uint8_t *sm, x64 e)
{
	x64 low = x64_load(sm);

	for (int i = 0; i < 4; i++) {
		uint16x8_t a = vreinterpretq_u16_u8(vzip1q_u8(low.val[i], e.val[i]));
		uint16x8_t b = vreinterpretq_u16_u8(vzip2q_u8(low.val[i], e.val[i]));

		vst1q_u16(w + 16 * i, vsriq_n_u16(vshlq_n_u16(a, 15), a, 1));
		vst1q_u16(w + 16 * i + 8, vsriq_n_u16(vshlq_n_u16(b, 15), b, 1));
	}
}

#endif

/* planes_scalar.h - 64 exponents in plain C: the meaning of every operation of the planes_*.h.
 *
 * cpu_planes.h is written over these names; planes_avx2.h, planes_avx512.h and planes_neon.h give the same bytes
 * faster. Pointers need no alignment. Thread: any. */
#ifndef OD_COMPUTE_PLANES_SCALAR_H
#define OD_COMPUTE_PLANES_SCALAR_H

#include <stdint.h>
#include <string.h>

#include "common/compute/cpu/planes_codes.h"

typedef struct {
	uint8_t b[64];
} x64;

/* The three symbols of a level, as decoding likes them. */
typedef struct {
	uint64_t first, second, third; /* eight times the first; what turns it into the others */
} x64_symbols;

static inline x64_symbols x64_symbols_of(const uint8_t *symbol)
{
	const uint64_t each = 0x0101010101010101;

	return (x64_symbols){ each * symbol[0], each * (symbol[0] ^ symbol[1]), each * (symbol[0] ^ symbol[2]) };
}

static inline x64 x64_load(const void *p)
{
	x64 r;

	memcpy(r.b, p, sizeof(r.b));
	return r;
}

static inline void x64_store(void *p, x64 e)
{
	memcpy(p, e.b, sizeof(e.b));
}

/* Bits 0 to 7 to eight bytes, 0 or 255: each byte keeps its bit, and has its top bit set if there was one. */
static inline uint64_t x64_mask_8(uint64_t bits)
{
	uint64_t kept = (bits & 255) * 0x0101010101010101 & 0x8040201008040201;

	return ((kept + 0x7f7f7f7f7f7f7f7f) >> 7 & 0x0101010101010101) * 255;
}

/* Group g. escaped: where both of its bits are set; these take the next bytes of below, of which 64 can be read. */
static inline x64 x64_decode(x64_symbols s, x64_codes c, const size_t g, uint64_t escaped, const uint8_t *below)
{
	uint64_t plane[2];
	x64 r;

	memcpy(plane, c.planes + g * sizeof(plane), sizeof(plane));
	for (int i = 0; i < 64; i += 8) {
		uint64_t eight =
			s.first ^ (x64_mask_8(plane[0] >> i) & s.second) ^ (x64_mask_8(plane[1] >> i) & s.third);

		memcpy(r.b + i, &eight, sizeof(eight));
	}
	for (; escaped != 0; escaped &= escaped - 1)
		r.b[__builtin_ctzll(escaped)] = *below++;
	return r;
}

/* 64 BF16 of exponents and SM bytes; sm may overlap w from its middle on. */
static inline void x64_merge(uint16_t *w, const uint8_t *sm, x64 e)
{
	x64 low = x64_load(sm);

	for (int i = 0; i < 64; i++) {
		uint16_t r = (uint16_t)(e.b[i] << 8 | low.b[i]);

		w[i] = (uint16_t)(r >> 1 | r << 15);
	}
}

#endif

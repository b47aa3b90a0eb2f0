/* planes_spread.h - how packed bytes are spread over the set bits of a mask of 8: for byte shuffles that take no mask. */
#ifndef OD_COMPUTE_PLANES_SPREAD_H
#define OD_COMPUTE_PLANES_SPREAD_H

#include <stdint.h>

/* Byte i of entry m: how many bits of m lie below bit i when that is set, else 0x80, from which shuffles make 0. */
#define SPREAD_BYTE(m, i) \
	((uint64_t)((m) >> (i) & 1 ? __builtin_popcount((m) & ((1 << (i)) - 1)) : 0x80) << (8 * (i)))
#define SPREAD_1(m) \
	(SPREAD_BYTE(m, 0) | SPREAD_BYTE(m, 1) | SPREAD_BYTE(m, 2) | SPREAD_BYTE(m, 3) | SPREAD_BYTE(m, 4) | \
	 SPREAD_BYTE(m, 5) | SPREAD_BYTE(m, 6) | SPREAD_BYTE(m, 7))
#define SPREAD_4(m) SPREAD_1(m), SPREAD_1((m) + 1), SPREAD_1((m) + 2), SPREAD_1((m) + 3)
#define SPREAD_16(m) SPREAD_4(m), SPREAD_4((m) + 4), SPREAD_4((m) + 8), SPREAD_4((m) + 12)
#define SPREAD_64(m) SPREAD_16(m), SPREAD_16((m) + 16), SPREAD_16((m) + 32), SPREAD_16((m) + 48)

static const uint64_t planes_spread[256] = { SPREAD_64(0), SPREAD_64(64), SPREAD_64(128), SPREAD_64(192) };

#endif

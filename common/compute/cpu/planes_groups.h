/* planes_groups.h - groups of 64 codes of a level of planes (planes.h), over the 64 exponents of a planes_*.h that is
 * included before. Thread: pure functions. */
#ifndef OD_COMPUTE_PLANES_GROUPS_H
#define OD_COMPUTE_PLANES_GROUPS_H

#include <string.h>

#define PLANES_GROUP 64u /* codes; a quarter of it are the bytes of their planes */
#define PLANES_FOUR 256u /* codes of the four groups that x64_codes_of takes at once */

/* Group g of c. *below: what its codes escape to, moved on. */
static ALWAYS_INLINE x64 planes_group(x64_symbols s, x64_codes c, const size_t g, const uint8_t **below)
{
	uint64_t low, high;
	x64 e;

	memcpy(&low, c.planes + g * PLANES_GROUP / 4, sizeof(low));
	memcpy(&high, c.planes + g * PLANES_GROUP / 4 + sizeof(low), sizeof(high));
	e = x64_decode(s, c, g, low & high, *below);
	*below += __builtin_popcountll(low & high);
	return e;
}

/* One group, or four, to out. */
static ALWAYS_INLINE void planes_put_groups(const size_t groups, x64_symbols s, const uint8_t *level,
					    const uint8_t **below, uint8_t *out)
{
	const x64_codes c = x64_codes_of(level, groups);

	V16_UNROLL(4)
	for (size_t g = 0; g < groups; g++)
		x64_store(out + g * PLANES_GROUP, planes_group(s, c, g, below));
}

/* The last codes of a level, fewer than 64. What follows their planes is readable, and cut off. */
static inline x64 planes_last(x64_symbols s, const uint8_t *level, size_t codes, const uint8_t *below)
{
	uint64_t plane[2];

	memcpy(&plane[0], level, sizeof(plane[0]));
	memcpy(&plane[1], level + (codes + 7) / 8, sizeof(plane[1]));
	plane[0] &= ((uint64_t)1 << codes) - 1;
	plane[1] &= ((uint64_t)1 << codes) - 1;
	return planes_group(s, x64_codes_of((const uint8_t *)plane, 1), 0, &below);
}

#endif

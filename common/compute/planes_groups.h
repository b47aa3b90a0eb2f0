/* planes_groups.h - 64 codes of a level of planes (planes.h), over the 64 exponents of a planes_*.h that is included
 * before. Thread: pure functions. */
#ifndef OD_COMPUTE_PLANES_GROUPS_H
#define OD_COMPUTE_PLANES_GROUPS_H

#include <string.h>

/* The group of 64 codes whose planes these are. *below: what they escape to, moved on. */
static ALWAYS_INLINE x64 planes_group(x64_symbols s, const uint8_t *planes, const uint8_t **below)
{
	x64 e = x64_decode(s, planes, *below);
	uint64_t plane[2];

	memcpy(plane, planes, sizeof(plane));
	*below += __builtin_popcountll(plane[0] & plane[1]);
	return e;
}

/* The last codes of a level, fewer than 64. What follows their planes is readable, and cut off. */
static inline x64 planes_last(x64_symbols s, const uint8_t *level, size_t codes, const uint8_t *below)
{
	uint64_t plane[2];

	memcpy(&plane[0], level, sizeof(plane[0]));
	memcpy(&plane[1], level + (codes + 7) / 8, sizeof(plane[1]));
	plane[0] &= ((uint64_t)1 << codes) - 1;
	plane[1] &= ((uint64_t)1 << codes) - 1;
	return x64_decode(s, plane, below);
}

#endif

/* planes_codes.h - codes of one or four groups for the planes_*.h that gain nothing by bringing them to bytes together.
 * Of each group two words of 64 bits; bit i of the first and of the second is code i. The planes are only borrowed.
 * Thread: pure functions. */
#ifndef OD_COMPUTE_PLANES_CODES_H
#define OD_COMPUTE_PLANES_CODES_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
	const uint8_t *planes;
} x64_codes;

static inline x64_codes x64_codes_of(const uint8_t *planes, const size_t groups)
{
	(void)groups;
	return (x64_codes){ planes };
}

#endif

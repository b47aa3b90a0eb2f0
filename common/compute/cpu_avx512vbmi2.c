/* Decoding of planes where AVX-512 can expand bytes; compiled with the flags in rules.mk, called by
 * od_cpu_planes_decode_avx512 and its like. */
#include "common/compute/cpu_tables.h"

#include <string.h>

#include "common/compute/planes_avx512.h"

#include "common/compute/cpu_planes.h"

void od_cpu_planes_decode_vbmi2(const uint8_t *chunk, size_t n, size_t row, size_t b, uint8_t *e)
{
	planes_decode(chunk, n, row, b, e);
}

void od_cpu_planes_merge_vbmi2(const uint8_t *chunk, size_t n, size_t row, size_t b, const uint8_t *sm, uint16_t *w)
{
	planes_merge(chunk, n, row, b, sm, w);
}

void od_cpu_merge_bf16_vbmi2(const uint8_t *e, const uint8_t *sm, size_t n, uint16_t *w)
{
	merge_bf16(e, sm, n, w);
}

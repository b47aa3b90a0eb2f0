/* Few rows with weights that stay planes: sums of 16 lanes as everywhere in class "fma16". Runs only where
 * od_cpu_expands_bytes. */
#include "common/compute/cpu_tables.h"
#include "common/compute/vec_avx512.h"

#include <string.h>

/* Unpacking works in each quarter of a register by itself, twice: bytes to words, words to the upper halves of floats.
 * So quarter q begins with weights 4q to 4q + 3 of each 16. */
#define FUSED_ORDER _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)
#define FUSED_PARTS 4u

typedef v16 row_part;

static ALWAYS_INLINE row_part load_row_part(const float *x, size_t part)
{
	return v16_load(x + 16 * part);
}

static ALWAYS_INLINE v16 add_part(v16 sum, const __m512i *words, size_t part, row_part x)
{
	const __m512i w = words[part / 2], zero = _mm512_setzero_si512();

	return v16_fma(_mm512_castsi512_ps(part % 2 == 0 ? _mm512_unpacklo_epi16(zero, w) : _mm512_unpackhi_epi16(zero, w)), x,
		       sum);
}

#include "common/compute/cpu_planes_fused.h"

void od_cpu_matmul_fused_avx512(const struct od_mat *w, const float *x, size_t x_stride, float *y, size_t y_stride,
				size_t n_rows, size_t o_begin, size_t o_end, od_matmul_fn *rest)
{
	fused_matmul(w, x, x_stride, y, y_stride, n_rows, o_begin, o_end, rest);
}

/* Few rows with weights that stay planes, with BF16 dot instructions: sums as in cpu_avx512bf16.c, class "bf16dot".
 * Runs only where od_cpu_expands_bytes too. */
#include "common/compute/cpu_tables.h"
#include "common/compute/vec_avx512.h"

#include <string.h>

/* Unpacking bytes to words works in each quarter of a register by itself: quarter q begins with weights 8q to 8q + 7 of
 * each 32. */
#define FUSED_ORDER _mm512_setr_epi32(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15)
#define FUSED_PARTS 2u

typedef __m512bh row_part;

static ALWAYS_INLINE row_part load_row_part(const float *x, size_t part)
{
	return _mm512_cvtne2ps_pbh(v16_load(x + 32 * part + 16), v16_load(x + 32 * part));
}

static ALWAYS_INLINE v16 add_part(v16 sum, const __m512i *words, size_t part, row_part x)
{
	return _mm512_dpbf16_ps(sum, (__m512bh)words[part], x);
}

#include "common/compute/cpu_planes_fused.h"

void od_cpu_matmul_fused_avx512bf16(const struct od_mat *w, const float *x, size_t x_stride, float *y, size_t y_stride,
				    size_t n_rows, size_t o_begin, size_t o_end, od_matmul_fn *rest)
{
	fused_matmul(w, x, x_stride, y, y_stride, n_rows, o_begin, o_end, rest);
}

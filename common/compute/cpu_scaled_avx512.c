/* Weights that were published with scales, for both AVX-512 tables: sums of 16 lanes as everywhere in class "fma16".
 * Compiled with the flags in rules.mk; runs only where od_cpu_expands_bytes. */
#include "common/compute/vec_avx512.h"

#include "common/compute/cpu_scaled_dots.h"

void od_cpu_matmul_scaled_vbmi2(const struct od_mat *w, const float *x, size_t x_stride, float *y, size_t y_stride,
				size_t n_rows, size_t o_begin, size_t o_end)
{
	matmul_scaled(w, x, x_stride, y, y_stride, n_rows, o_begin, o_end);
}

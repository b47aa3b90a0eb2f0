/* matmul_int8 with the dot products of four bytes. Compiled with the flags in rules.mk; runs only where cpu_neon.c found
 * that the processor has them. */
#include "common/compute/vec_neon.h"

#include "common/compute/cpu_int8_dots.h"

void od_cpu_matmul_int8_neondot(const struct od_mat *w, const struct od_act8 *x, float *y, size_t y_stride,
				size_t n_rows, size_t o_begin, size_t o_end)
{
	matmul_int8(w, x, y, y_stride, n_rows, o_begin, o_end);
}

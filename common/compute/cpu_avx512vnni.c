/* matmul_int8 with VNNI. Compiled with the flags in rules.mk; runs only where od_cpu_matmul_int8_avx512 found it. */
#include "common/compute/vec_avx512.h"

#include "common/compute/cpu_int8_dots.h"

void od_cpu_matmul_int8_vnni(const struct od_mat *w, const struct od_act8 *x, float *y, size_t y_stride, size_t n_rows,
			     size_t o_begin, size_t o_end)
{
	matmul_int8(w, x, y, y_stride, n_rows, o_begin, o_end);
}

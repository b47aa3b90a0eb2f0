/* NEON and FMA belong to every aarch64 processor: no flags, nothing to ask at run time but for the dot products of four
 * bytes. */
#include "common/compute/planes_neon.h"
#include "common/compute/vec_neon.h"

#include <sys/auxv.h>

#include "common/compute/cpu_int8_dots.h"

static void matmul_int8_best(const struct od_mat *w, const struct od_act8 *x, float *y, size_t y_stride, size_t n_rows,
			     size_t o_begin, size_t o_end)
{
	if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP)
		od_cpu_matmul_int8_neondot(w, x, y, y_stride, n_rows, o_begin, o_end);
	else
		matmul_int8(w, x, y, y_stride, n_rows, o_begin, o_end);
}

#define OD_MATMUL_INT8 matmul_int8_best
#define OD_TABLE od_cpu_table_neon
#define OD_TABLE_NAME "neon"
#define OD_TABLE_CLASS "fma16"
#include "common/compute/cpu_kernels.h"

/* The oracle: no instruction set beyond what the compiler was told, so libm's fmaf where that has no FMA. */
#undef OD_SMALL_KERNELS
#define OD_SMALL_KERNELS
#include "common/compute/planes_scalar.h"
#include "common/compute/vec_scalar.h"

#define OD_TABLE od_cpu_table_scalar
#define OD_TABLE_NAME "scalar"
#define OD_TABLE_CLASS "fma16"
#include "common/compute/cpu_kernels.h"

float od_exp(float x)
{
	return exp16(v16_set1(x)).f[0];
}

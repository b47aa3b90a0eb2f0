/* The oracle: no instruction set beyond what the compiler was told, so libm's fmaf where that has no FMA. */
#include "common/compute/cpu/cpu_scalar.h"

#undef OD_SMALL_KERNELS
#define OD_SMALL_KERNELS
#include "common/compute/cpu/planes_scalar.h"
#include "common/compute/cpu/vec_scalar.h"

#include "common/compute/cpu/cpu_int8_dots.h"
#include "common/compute/cpu/cpu_kernels.h"
#include "common/compute/cpu/cpu_planes.h"
#include "common/compute/cpu/cpu_scaled_dots.h"
#include "common/compute/cpu/matmul.h"

static od_decode_fn *decoder_of(enum od_dtype t)
{
	return od_format(t)->decode;
}

#include "common/compute/cpu/cpu_block_dots.h"

void od_cpu_put_scalar(struct od_backend *t)
{
	lane_kernels(t);
	block_kernels(t);
	planes_kernels(t);
	t->matmul_int8 = matmul_int8;
	t->matmul_scaled = matmul_scaled;
	t->matmul_planes = od_matmul_merged;
}

float od_exp(float x)
{
	return exp16(v16_set1(x)).f[0];
}

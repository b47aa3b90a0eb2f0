/* Compiled with the flags in rules.mk; runs only where the CPU has AVX2, FMA and F16C. */
#include "common/compute/cpu/planes_avx2.h"
#include "common/compute/cpu/vec_avx2.h"

#include "common/compute/cpu/bytes_x86.h"
#include "common/compute/cpu/cpu_blocks.h"
#include "common/compute/cpu/cpu_block_dots.h"
#include "common/compute/cpu/cpu_int8_dots.h"
#include "common/compute/cpu/cpu_kernels.h"
#include "common/compute/cpu/cpu_planes.h"
#include "common/compute/cpu/cpu_scaled_dots.h"
#include "common/compute/cpu/matmul.h"

void od_cpu_put_avx2(struct od_backend *t)
{
	lane_kernels(t);
	block_kernels(t);
	planes_kernels(t);
	t->matmul_int8 = matmul_int8;
	t->matmul_scaled = matmul_scaled;
	t->matmul_planes = od_matmul_merged;
}

/* Compiled with the flags in rules.mk; runs only where the CPU has AVX-512 F, BW, VL and DQ. */
#include "common/compute/cpu/vec_avx512.h"

#include "common/compute/cpu/bytes_x86.h"
#include "common/compute/cpu/cpu_blocks.h"
#include "common/compute/cpu/cpu_block_dots.h"
#include "common/compute/cpu/cpu_kernels.h"

void od_cpu_put_avx512(struct od_backend *t)
{
	lane_kernels(t);
	block_kernels(t);
}

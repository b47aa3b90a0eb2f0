/* Rows in INT8. Compiled with the flags in rules.mk; runs only where the CPU has AVX-512 with VNNI. */
#include "common/compute/cpu/vec_avx512.h"

#include "common/compute/cpu/cpu_int8_dots.h"

void od_cpu_put_avx512vnni(struct od_backend *t)
{
	t->matmul_int8 = matmul_int8;
}

/* Rows in INT8 with the dot products of four bytes. Compiled with the flags in rules.mk; runs only where the CPU has
 * them. */
#include "common/compute/cpu/vec_neon.h"

#include "common/compute/cpu/cpu_int8_dots.h"

void od_cpu_put_neondot(struct od_backend *t)
{
	t->matmul_int8 = matmul_int8;
}

/* Compiled with the flags in rules.mk; runs only where od_backend_cpu found AVX2, FMA and F16C. */
#include "common/compute/planes_avx2.h"
#include "common/compute/vec_avx2.h"

#define OD_TABLE od_cpu_table_avx2
#define OD_TABLE_NAME "avx2"
#define OD_TABLE_CLASS "fma16"
#include "common/compute/cpu_kernels.h"

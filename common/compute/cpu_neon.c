/* NEON and FMA belong to every aarch64 processor: no flags, nothing to ask at run time. */
#include "common/compute/vec_neon.h"

#define OD_TABLE od_cpu_table_neon
#define OD_TABLE_NAME "neon"
#define OD_TABLE_CLASS "fma16"
#include "common/compute/cpu_kernels.h"

/* Compiled with the flags in rules.mk; runs only where od_backend_cpu found AVX-512 F, BW, VL and DQ. */
#include "common/compute/vec_avx512.h"

#define OD_MATMUL_INT8 od_cpu_matmul_int8_avx512
#define OD_MATMUL_SCALED od_cpu_matmul_scaled_avx512
#define OD_PLANES_DECODE od_cpu_planes_decode_avx512
#define OD_PLANES_MERGE od_cpu_planes_merge_avx512
#define OD_MERGE_BF16 od_cpu_merge_bf16_avx512
#define OD_FUSED od_cpu_matmul_fused_avx512
#define OD_TABLE od_cpu_table_avx512
#define OD_TABLE_NAME "avx512"
#define OD_TABLE_CLASS "fma16"
#include "common/compute/cpu_kernels.h"

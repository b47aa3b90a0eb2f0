/* cpu_tables.h - the CPU tables that this build has. Only for cpu*.c: callers go through od_backend_cpu,
 * which knows what the processor can run. OD_X86_TABLES comes from rules.mk, which lists their sources. */
#ifndef OD_COMPUTE_CPU_TABLES_H
#define OD_COMPUTE_CPU_TABLES_H

#include "common/compute/backend.h"

extern const struct od_backend od_cpu_table_scalar;
#ifdef OD_X86_TABLES
extern const struct od_backend od_cpu_table_avx2;
extern const struct od_backend od_cpu_table_avx512;
extern const struct od_backend od_cpu_table_avx512bf16;
#endif

#endif

/* cpu_tables.h - a list: cpu.c composes tables of these. Callers go through od_backend_cpu (cpu.h), which knows what
 * the processor can run.
 *
 * Each cpu_*.c is compiled for the instruction set in its name (rules.mk) and defines the function od_cpu_put_* of that
 * name, which puts its kernels into a table, in place of those that are there. Thread: any. */
#ifndef OD_COMPUTE_CPU_TABLES_H
#define OD_COMPUTE_CPU_TABLES_H

#include "common/compute/backend.h"

#define OD_LINE_BYTES 64u /* a line of the cache */

/* All kernels. */
void od_cpu_put_scalar(struct od_backend *t);
void od_cpu_put_avx2(struct od_backend *t);
void od_cpu_put_neon(struct od_backend *t);
/* Rows in INT8. */
void od_cpu_put_neondot(struct od_backend *t);
void od_cpu_put_avx512vnni(struct od_backend *t);
/* Kernels that are written over 16 lanes: all but INT8 rows, weights with scales, planes. */
void od_cpu_put_avx512(struct od_backend *t);
/* Weights with scales; planes. */
void od_cpu_put_avx512vbmi2(struct od_backend *t);
/* Weights that are BF16 or become it exactly, in class OD_CLASS_BF16DOT; and planes. */
void od_cpu_put_avx512bf16(struct od_backend *t);
void od_cpu_put_avx512bf16vbmi2(struct od_backend *t);

#endif

/* cpu_tables.h - what cpu.c composes tables of. Callers go through od_backend_cpu, which knows what the processor can
 * run.
 *
 * Each cpu_*.c is compiled for the instruction set in its name (rules.mk) and has a function that puts its kernels into
 * a table, in place of those that are there. Thread: any. */
#ifndef OD_COMPUTE_CPU_TABLES_H
#define OD_COMPUTE_CPU_TABLES_H

#include "common/compute/backend.h"

#define OD_LINE_BYTES 64u /* a line of the cache */

/* Instruction sets that come together here; a virtual machine may hide any of them. */
struct od_cpu_features {
	bool avx2; /* with FMA and F16C */
	bool avx512; /* F, BW, VL, DQ; and avx2 */
	bool vnni; /* dot products of four bytes; with avx512, as the next two */
	bool vbmi2; /* VBMI2, which expands bytes, VBMI and GFNI */
	bool bf16; /* dot products of two BF16 */
	bool neon;
	bool neon_dot; /* dot products of four bytes */
};
struct od_cpu_features od_cpu_features(void); /* features of this processor */

/* Has a processor with these features what the table needs? */
bool od_cpu_has(const struct od_cpu_features *f, enum od_cpu cpu);
/* The table, where od_cpu_has; cpu is not OD_CPU_AUTO. */
struct od_backend od_cpu_table(enum od_cpu cpu, const struct od_cpu_features *f);

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

/* An od_matmul_planes_fn for any table: some rows of w at a time are merged to BF16, in the cache, and meet all rows of
 * x there. */
void od_matmul_merged(const struct od_backend *be, const struct od_mat *w, const float *x, size_t x_stride, float *y,
		      size_t y_stride, size_t n_rows, size_t o_begin, size_t o_end);

#endif

/* cpu.h - chooses the table of kernels (backend.h) for this processor, and composes it from the list in cpu_tables.h.
 *
 * Thread: any. */
#ifndef OD_COMPUTE_CPU_H
#define OD_COMPUTE_CPU_H

#include "common/compute/backend.h"

/* The table for a CPU (OD_CPU_AUTO: the best one supported here) and a profile. OD_ERR_UNSUPPORTED names the
 * missing instruction set. In profile f32 every table has class OD_CLASS_FMA16. */
OD_MUST_CHECK int od_backend_cpu(const struct od_backend **out, enum od_cpu cpu, enum od_profile profile,
				 struct od_err *err);

/* ---- for compute/ and its tests ---- */

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

#endif

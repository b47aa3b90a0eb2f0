/* cpu_delta.h - the operations of gated delta rules (ops.h, OD_OP_DELTA) on CPUs, and gates of many elements.
 *
 * Thread: as od_cpu_exec_run. */
#ifndef OD_COMPUTE_CPU_DELTA_H
#define OD_COMPUTE_CPU_DELTA_H

#include "common/compute/cpu/cpu_exec.h"

void od_cpu_delta_in(const struct od_cpu_exec *x, const struct od_op *op);
void od_cpu_delta(const struct od_cpu_exec *x, const struct od_op *op);
/* y *= sigmoid(gate) */
void od_cpu_gate(const struct od_backend *be, float *y, const float *gate, size_t n);

#endif

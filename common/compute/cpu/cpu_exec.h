/* cpu_exec.h - operations (ops.h) carried out by a table of CPU kernels and a team of threads. The devices that compute
 * on this machine's CPUs share it; they differ in where their buffers are.
 * Thread: one at a time per od_cpu_exec; what the queue of loads takes (device.h) any, at any time. */
#ifndef OD_COMPUTE_CPU_EXEC_H
#define OD_COMPUTE_CPU_EXEC_H

#include "common/compute/ops.h"

struct od_cpu_exec {
	const struct od_backend *backend[2]; /* index profile - 1 */
	struct od_pool *pool;
	void *(*address)(struct od_ref r); /* where a place is for the executing thread; NULL for nowhere */
};

OD_MUST_CHECK int od_cpu_exec_init(struct od_cpu_exec *x, enum od_cpu cpu, unsigned n_threads, const char *name,
				   struct od_err *err);
void od_cpu_exec_fini(struct od_cpu_exec *x);
/* What d says of itself; kind: "cpu". */
void od_cpu_exec_describe(const struct od_cpu_exec *x, const char *kind, struct od_device *d);
/* OD_ERR_RANGE: a choice of experts is not one that OD_OP_ROUTE makes. */
OD_MUST_CHECK int od_cpu_exec_run(const struct od_cpu_exec *x, const struct od_op *op, struct od_err *err);

#endif

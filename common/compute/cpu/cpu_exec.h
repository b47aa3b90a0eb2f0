/* cpu_exec.h - runs operations (ops.h) with a table of CPU kernels and a thread pool. Shared by the devices that
 * compute on CPUs; they differ in where their buffers are.
 *
 * Thread: one at a time per od_cpu_exec; operations of the load queue (device.h) from any thread, at any time. */
#ifndef OD_COMPUTE_CPU_EXEC_H
#define OD_COMPUTE_CPU_EXEC_H

#include "common/compute/ops.h"

struct od_cpu_exec {
	const struct od_backend *backend[2]; /* index profile - 1 */
	struct od_pool *pool;
	void *(*address)(struct od_ref r); /* the address of r for the executing thread; NULL for nowhere */
};

OD_MUST_CHECK int od_cpu_exec_init(struct od_cpu_exec *x, enum od_cpu cpu, unsigned n_threads, const char *name,
				   struct od_err *err);
void od_cpu_exec_fini(struct od_cpu_exec *x);
/* Fills d's name and properties; kind: "cpu". */
void od_cpu_exec_describe(const struct od_cpu_exec *x, const char *kind, struct od_device *d);
/* OD_ERR_RANGE: invalid expert choices (an index out of range, or an expert twice in a row). */
OD_MUST_CHECK int od_cpu_exec_run(const struct od_cpu_exec *x, const struct od_op *op, struct od_err *err);

#endif

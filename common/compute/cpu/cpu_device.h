/* cpu_device.h - this machine's CPUs as a device: memory is the process's own, queued work is done at once by the caller
 * and its team of threads. Every buffer is mapped, so nothing is copied that need not be.
 *
 * Operations may also read buffers of another CPU device of this process, as long as no thread writes to them. So several
 * threads, each with its own device, compute with one copy of a model's weights. */
#ifndef OD_COMPUTE_CPU_DEVICE_H
#define OD_COMPUTE_CPU_DEVICE_H

#include "common/compute/backend.h"
#include "common/compute/device.h"

/* n_threads counts the caller; name shows in ps (at most 12 characters). OD_ERR_UNSUPPORTED: the CPU lacks cpu. */
OD_MUST_CHECK int od_device_cpu_new(struct od_device **out, enum od_cpu cpu, unsigned n_threads, const char *name,
				    struct od_err *err);

#endif

/* cpu_device.h - this machine's CPUs as a device: buffers are process memory, and the caller runs queued work at once
 * with a thread pool. All buffers are mapped, so put and get need no extra copy.
 *
 * Operations may also read buffers of another CPU device of this process while no thread writes to them. So several
 * threads, each with its own device, can share one copy of a model's weights.
 * Thread and owner: as device.h. */
#ifndef OD_COMPUTE_CPU_DEVICE_H
#define OD_COMPUTE_CPU_DEVICE_H

#include "common/compute/backend.h"
#include "common/compute/device.h"

/* n_threads counts the caller; name shows in ps (at most 12 characters). OD_ERR_UNSUPPORTED: the CPU lacks cpu. */
OD_MUST_CHECK int od_device_cpu_new(struct od_device **out, enum od_cpu cpu, unsigned n_threads, const char *name,
				    struct od_err *err);

#endif

/* open_device.h - from a name, as --device has it, to a device (device.h).
 *
 * Thread: any. Owner: the caller, of each device that is opened (od_device_free). */
#ifndef OD_COMPUTE_OPEN_DEVICE_H
#define OD_COMPUTE_OPEN_DEVICE_H

#include "common/compute/device.h"

/* Opens a device: "cpu"; "cuda" or "cuda:N", a GPU (cuda/cuda_plugin.h); "cuda:N,M", several as one (cards.h); "auto",
 * the first GPU if there is one, else cpu. NULL: what $OD_DEVICE names, else cpu. cpu: its kernels; n_threads counts
 * the caller; name is the threads' name in ps (at most 12 characters). OD_ERR_ARG: unknown device; OD_ERR_UNSUPPORTED:
 * it is not there, or has no such kernels. */
#define OD_DEVICE_HELP \
	"where to compute: cpu (default), cuda or cuda:N (a GPU), cuda:N,M (main, or a shadow: split by layers over several), auto (a GPU if there is one and it has the memory)"
OD_MUST_CHECK int od_device_open(struct od_device **out, const char *device, enum od_cpu cpu, unsigned n_threads,
				 const char *name, struct od_err *err);
/* OD_ERR_ARG: --device can have no such name; NULL ok */
OD_MUST_CHECK int od_device_check(const char *device, struct od_err *err);
/* Where "auto" has chosen a GPU whose own memory is too small for what is to be computed (rc: OD_ERR_NOMEM, with err),
 * opens the CPUs in its place, with the GPU's kernel class unless cpu names another, logs that, and returns OD_OK: the
 * caller tries again. Else returns rc. All buffers of *d have been freed. *d is NULL only if the CPUs cannot be
 * opened. */
OD_MUST_CHECK int od_device_fall_back(struct od_device **d, int rc, enum od_cpu cpu, unsigned n_threads,
				      const char *name, struct od_err *err);
/* The CPUs, with kernels whose results are those of d in this profile, to the bit. OD_ERR_UNSUPPORTED: there are none,
 * or cpu names others. */
OD_MUST_CHECK int od_device_open_beside(struct od_device **out, const struct od_device *d, enum od_profile profile,
					enum od_cpu cpu, unsigned n_threads, const char *name, struct od_err *err);
bool od_device_is_auto(const struct od_device *d); /* a GPU that "auto" has chosen */
bool od_device_can_fall_back(const struct od_device *d); /* "auto" has chosen a GPU with memory of its own */

#endif

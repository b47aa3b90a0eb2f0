/* far_device.h - a device for tests that computes on the CPUs but behaves like a GPU with its own memory. Code that
 * runs on it relies on nothing beyond device.h's contract.
 *
 * Each buffer is mapped twice: the address in its handle cannot be accessed, the other one is known only to the
 * device's thread. Work runs only when a wait requires it, so a put reads its source as late as allowed, and a get's
 * target holds a fill pattern until the wait. It grants no mapping. Slow (make check-far). Programs open it as the
 * plugin libod_far.so (far_plugin.c).
 * Thread and owner: as device.h. */
#ifndef OD_TESTS_FAR_DEVICE_H
#define OD_TESTS_FAR_DEVICE_H

#include "common/compute/backend.h"
#include "common/compute/device.h"

/* As od_device_cpu_new. */
OD_MUST_CHECK int od_device_far_new(struct od_device **out, enum od_cpu cpu, unsigned n_threads, const char *name,
				    struct od_err *err);

#endif

/* far_device.h - a device that computes on this machine's CPUs and behaves as if it were far away: to prove, without a GPU,
 * that one fits. What runs on it runs on any device that keeps device.h's contract to the letter.
 *
 * Each buffer is mapped twice: the address that its handle has can never be read or written, the other is known to the
 * device's own thread alone. Work is done when somebody waits for it, and not before: so a put reads its source as late as
 * it may, and a get's target has a pattern until its wait. It grants no mapping.
 * Slow; for tests (make check-far). */
#ifndef OD_COMPUTE_FAR_DEVICE_H
#define OD_COMPUTE_FAR_DEVICE_H

#include "common/compute/backend.h"
#include "common/compute/device.h"

/* As od_device_cpu_new. */
OD_MUST_CHECK int od_device_far_new(struct od_device **out, enum od_cpu cpu, unsigned n_threads, const char *name,
				    struct od_err *err);

#endif

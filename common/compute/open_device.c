#include "common/compute/cpu/cpu_device.h"
#include "common/compute/far/far_device.h"

#include <stdlib.h>
#include <string.h>

int od_device_open(struct od_device **out, enum od_cpu cpu, unsigned n_threads, const char *name, struct od_err *err)
{
	const char *device = getenv("OD_DEVICE");

	*out = NULL;
	if (device == NULL || strcmp(device, "cpu") == 0)
		return od_device_cpu_new(out, cpu, n_threads, name, err);
	if (strcmp(device, "far") == 0)
		return od_device_far_new(out, cpu, n_threads, name, err);
	return od_fail(err, OD_ERR_ARG, "$OD_DEVICE: expected cpu or far, found \"%.64s\": unset it to compute on the CPUs", device);
}

/* The entry of libod_far.so: with $OD_CUDA_PLUGIN naming it, --device cuda is a far device (far_device.h), whatever the
 * GPU's number. */
#include "common/compute/cuda/cuda_plugin.h"
#include "tests/gpu/far_device.h"

static int open_device(struct od_device **out, unsigned index, enum od_cpu cpu, unsigned n_threads, const char *name,
		       struct od_err *err)
{
	(void)index;
	return od_device_far_new(out, cpu, n_threads, name, err);
}

__attribute__((visibility("default"))) const struct od_cuda_plugin od_cuda_plugin = {
	.version = OD_CUDA_PLUGIN_VERSION,
	.open = open_device,
};

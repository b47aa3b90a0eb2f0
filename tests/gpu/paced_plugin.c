/* The entry of libod_paced.so: with $OD_CUDA_PLUGIN naming it, --device cuda is a paced device (paced_device.h) of the
 * words in $OD_PACED, whatever the GPU's number. */
#include "common/compute/cuda/cuda_plugin.h"
#include "tests/gpu/paced_device.h"

#include <stdlib.h>

static int open_device(struct od_device **out, unsigned index, enum od_cpu cpu, unsigned n_threads, const char *name,
		       struct od_err *err)
{
	const char *words = getenv("OD_PACED");

	(void)index;
	return od_device_paced_new(out, words != NULL ? words : "", cpu, n_threads, name, err);
}

__attribute__((visibility("default"))) const struct od_cuda_plugin od_cuda_plugin = {
	.version = OD_CUDA_PLUGIN_VERSION,
	.open = open_device,
};

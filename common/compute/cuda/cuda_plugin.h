/* cuda_plugin.h - the plugin libod_cuda.so: a device (device.h) that computes on a GPU. Its results have the bits of
 * the kernel class OD_CLASS_FMA16 in both profiles.
 *
 * The plugin is opened at run time (open_device.c), so that one build serves machines with and without a GPU. Tests
 * have plugins of their own (tests/gpu).
 * Thread: as device.h says. */
#ifndef OD_COMPUTE_CUDA_PLUGIN_H
#define OD_COMPUTE_CUDA_PLUGIN_H

#include "common/compute/device.h"
#include "plugin_version.h"

#define OD_CUDA_PLUGIN_SYMBOL "od_cuda_plugin"

/* The plugin's only export. */
struct od_cuda_plugin {
	uint32_t version; /* OD_CUDA_PLUGIN_VERSION (plugin_version.h, which make writes): the first field for good */
	/* index: which GPU of those that the process may use; the others as od_device_open got them, for a device that
	 * leaves work to CPUs. */
	int (*open)(struct od_device **out, unsigned index, enum od_cpu cpu, unsigned n_threads, const char *name,
		    struct od_err *err);
};

#endif

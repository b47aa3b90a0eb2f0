#include "common/base/log.h"
#include "common/compute/cpu/cpu_device.h"
#include "common/compute/cuda/cuda_device.h"
#include "common/compute/device_internal.h"
#include "common/compute/far/far_device.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLUGIN "libod_cuda.so"
#define MAX_GPU 1023

/* $OD_CUDA_PLUGIN, or beside the programs: as installed, or as built. */
static void *open_plugin(const char **path)
{
	static const char *const places[] = { "/../lib/od-moe/" PLUGIN, "/../lib/" PLUGIN };
	static char found[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", found, sizeof(found) - sizeof("/../lib/od-moe/" PLUGIN));
	char *folder_end;
	void *library = NULL;

	*path = getenv("OD_CUDA_PLUGIN");
	if (*path != NULL)
		return dlopen(*path, RTLD_NOW | RTLD_LOCAL);
	*path = PLUGIN;
	found[n > 0 ? n : 0] = '\0';
	folder_end = strrchr(found, '/');
	for (size_t i = 0; library == NULL && folder_end != NULL && i < sizeof(places) / sizeof(places[0]); i++) {
		memcpy(folder_end, places[i], strlen(places[i]) + 1);
		if (access(found, F_OK) == 0) {
			*path = found;
			return dlopen(found, RTLD_NOW | RTLD_LOCAL);
		}
	}
	return dlopen(PLUGIN, RTLD_NOW | RTLD_LOCAL);
}

/* The plugin stays open: its code may run until the process ends. */
static int open_cuda(struct od_device **out, unsigned index, struct od_err *err)
{
	const char *path;
	void *library = open_plugin(&path);
	const struct od_cuda_plugin *p = library != NULL ? dlsym(library, OD_CUDA_PLUGIN_SYMBOL) : NULL;

	if (library == NULL)
		return od_fail(err, OD_ERR_UNSUPPORTED, "cuda: the GPU plugin cannot be opened (it is built by make CUDA=1): %s", dlerror());
	if (p == NULL || p->version != OD_CUDA_PLUGIN_VERSION || p->device_bytes != sizeof(struct od_device))
		return od_fail(err, OD_ERR_MISMATCH, "cuda: %s is of another version than this program: install both from one build", path);
	return p->open(out, index, err);
}

/* "cuda" or "cuda:N"; -1: neither. */
static int gpu_of(const char *device)
{
	char *end;
	long n;

	if (strcmp(device, "cuda") == 0)
		return 0;
	if (strncmp(device, "cuda:", 5) != 0 || device[5] < '0' || device[5] > '9')
		return -1;
	n = strtol(device + 5, &end, 10);
	return *end == '\0' && n <= MAX_GPU ? (int)n : -1;
}

static int open_any(struct od_device **out, enum od_cpu cpu, unsigned n_threads, const char *name, struct od_err *err)
{
	struct od_err why;

	if (open_cuda(out, 0, &why) == OD_OK)
		return OD_OK;
	od_log(OD_LOG_INFO, "computing on the CPUs: %s", why.msg);
	return od_device_cpu_new(out, cpu, n_threads, name, err);
}

int od_device_open(struct od_device **out, const char *device, enum od_cpu cpu, unsigned n_threads, const char *name,
		   struct od_err *err)
{
	const char *what = device != NULL ? "--device" : "$OD_DEVICE";

	*out = NULL;
	device = device != NULL ? device : getenv("OD_DEVICE");
	if (device == NULL || strcmp(device, "cpu") == 0)
		return od_device_cpu_new(out, cpu, n_threads, name, err);
	if (strcmp(device, "far") == 0)
		return od_device_far_new(out, cpu, n_threads, name, err);
	if (strcmp(device, "auto") == 0)
		return open_any(out, cpu, n_threads, name, err);
	if (gpu_of(device) >= 0)
		return open_cuda(out, (unsigned)gpu_of(device), err);
	return od_fail(err, OD_ERR_ARG, "%s: expected auto, cpu, cuda or cuda:N, found \"%.64s\"", what, device);
}

#include "common/compute/open_device.h"

#include "common/base/log.h"
#include "common/compute/cards.h"
#include "common/compute/cpu/cpu.h"
#include "common/compute/cpu/cpu_device.h"
#include "common/compute/cuda/cuda_plugin.h"
#include "common/compute/device_internal.h"

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
	static const char *const paths[] = { "/../lib/od-moe/" PLUGIN, "/../lib/" PLUGIN };
	static char found[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", found, sizeof(found) - sizeof("/../lib/od-moe/" PLUGIN));
	char *folder_end;

	*path = getenv("OD_CUDA_PLUGIN");
	if (*path != NULL && **path != '\0') /* dlopen takes no name for the program itself */
		return dlopen(*path, RTLD_NOW | RTLD_LOCAL);
	*path = PLUGIN;
	found[n > 0 ? n : 0] = '\0';
	folder_end = strrchr(found, '/');
	if (folder_end == NULL)
		return dlopen(PLUGIN, RTLD_NOW | RTLD_LOCAL);
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		memcpy(folder_end, paths[i], strlen(paths[i]) + 1);
		if (access(found, F_OK) == 0) {
			*path = found;
			return dlopen(found, RTLD_NOW | RTLD_LOCAL);
		}
	}
	return dlopen(PLUGIN, RTLD_NOW | RTLD_LOCAL);
}

/* The plugin stays open: its code may run until the process ends. */
static int open_cuda(struct od_device **out, unsigned index, enum od_cpu cpu, unsigned n_threads, const char *name,
		     struct od_err *err)
{
	const char *path;
	void *library = open_plugin(&path);
	const struct od_cuda_plugin *p = library != NULL ? dlsym(library, OD_CUDA_PLUGIN_SYMBOL) : NULL;

	if (library == NULL)
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "cuda: the GPU plugin cannot be opened (it is built by make CUDA=1): %s", dlerror());
	if (p == NULL || p->version != OD_CUDA_PLUGIN_VERSION)
		return od_fail(err, OD_ERR_MISMATCH,
			       "cuda: %s is of another version than this program: install both from one build", path);
	return p->open(out, index, cpu, n_threads, name, err);
}

/* "cuda", "cuda:N" or "cuda:N,M": fills gpu [OD_MAX_CARDS] and returns how many; 0: none of these. */
static unsigned gpus_of(const char *device, unsigned *gpu)
{
	const char *at = device + 4;
	unsigned n = 0;

	if (strncmp(device, "cuda", 4) != 0)
		return 0;
	gpu[0] = 0;
	if (*at == '\0')
		return 1;
	while (n < OD_MAX_CARDS && *at == (n == 0 ? ':' : ',') && at[1] >= '0' && at[1] <= '9') {
		char *end;
		const unsigned long index = strtoul(at + 1, &end, 10);

		if (index > MAX_GPU)
			return 0;
		gpu[n++] = (unsigned)index;
		at = end;
	}
	return *at == '\0' ? n : 0;
}

/* As gpus_of; of other devices 0. what: who named it. */
static int read_name(const char *device, const char *what, unsigned *gpu, unsigned *n, struct od_err *err)
{
	*n = gpus_of(device, gpu);
	if (*n == 0 && strcmp(device, "cpu") != 0 && strcmp(device, "auto") != 0)
		return od_fail(
			err, OD_ERR_ARG,
			"%s: expected auto, cpu, cuda, cuda:N or cuda:N,M (N to %d, at most %d GPUs), found \"%.64s\"",
			what, MAX_GPU, OD_MAX_CARDS, device);
	for (unsigned i = 0; i < *n; i++)
		for (unsigned j = 0; j < i; j++)
			if (gpu[j] == gpu[i])
				return od_fail(err, OD_ERR_ARG, "%s: cuda:%u is named twice", what, gpu[i]);
	return OD_OK;
}

int od_device_check(const char *device, struct od_err *err)
{
	unsigned gpu[OD_MAX_CARDS], n;

	return device == NULL ? OD_OK : read_name(device, "--device", gpu, &n, err);
}

static int open_cards(struct od_device **out, const unsigned *gpu, unsigned n, enum od_cpu cpu, unsigned n_threads,
		      const char *name, struct od_err *err)
{
	struct od_device *card[OD_MAX_CARDS] = { NULL };
	int rc = OD_OK;

	for (unsigned i = 0; rc == OD_OK && i < n; i++)
		rc = open_cuda(&card[i], gpu[i], cpu, n_threads, name, err);
	if (rc == OD_OK)
		rc = od_device_cards_new(out, card, n, err);
	if (rc != OD_OK)
		for (unsigned i = 0; i < n; i++)
			od_device_free(card[i]);
	return rc;
}

/* With the kernel class of GPUs, if none is asked for: other processes of the cluster may have found room on the same
 * GPU. */
static int open_cpus_instead(struct od_device **out, enum od_cpu cpu, unsigned n_threads, const char *name,
			     struct od_err *err)
{
	const struct od_backend *best;
	int rc = od_backend_cpu(&best, cpu, OD_PROFILE_BF16, err);

	*out = NULL;
	if (rc != OD_OK)
		return rc;
	if (cpu == OD_CPU_AUTO && strcmp(best->kernel_class, OD_CLASS_FMA16) != 0)
		cpu = OD_CPU_AVX512; /* all that OD_CPU_AVX512_BF16 has, but the class */
	return od_device_cpu_new(out, cpu, n_threads, name, err);
}

static int open_any(struct od_device **out, enum od_cpu cpu, unsigned n_threads, const char *name, struct od_err *err)
{
	struct od_err why;
	const int rc = open_cuda(out, 0, cpu, n_threads, name, &why);

	if (rc == OD_OK) {
		od_log(OD_LOG_INFO, "computing on %s", od_device_name(*out));
		(*out)->is_auto = true;
		return OD_OK;
	}
	od_log(OD_LOG_INFO, "computing on the CPUs: %s", why.msg);
	if (rc == OD_ERR_NOMEM)
		return open_cpus_instead(out, cpu, n_threads, name, err);
	return od_device_cpu_new(out, cpu, n_threads, name, err);
}

int od_device_open(struct od_device **out, const char *device, enum od_cpu cpu, unsigned n_threads, const char *name,
		   struct od_err *err)
{
	const char *what = device != NULL ? "--device" : "$OD_DEVICE";
	unsigned gpu[OD_MAX_CARDS], n;
	int rc;

	*out = NULL;
	device = device != NULL ? device : getenv("OD_DEVICE");
	device = device != NULL ? device : "cpu";
	rc = read_name(device, what, gpu, &n, err);
	if (rc != OD_OK)
		return rc;
	if (strcmp(device, "cpu") == 0)
		return od_device_cpu_new(out, cpu, n_threads, name, err);
	if (strcmp(device, "auto") == 0)
		return open_any(out, cpu, n_threads, name, err);
	return n == 1 ? open_cuda(out, gpu[0], cpu, n_threads, name, err) :
			open_cards(out, gpu, n, cpu, n_threads, name, err);
}

bool od_device_is_auto(const struct od_device *d)
{
	return d->is_auto;
}

bool od_device_can_fall_back(const struct od_device *d)
{
	return d->is_auto && od_device_has_memory(d);
}

int od_device_fall_back(struct od_device **d, int rc, enum od_cpu cpu, unsigned n_threads, const char *name,
			struct od_err *err)
{
	if (rc != OD_ERR_NOMEM || !od_device_can_fall_back(*d))
		return rc;
	od_log(OD_LOG_WARN, "computing on the CPUs instead of %s: %s", od_device_name(*d), err->msg);
	od_device_free(*d);
	return open_cpus_instead(d, cpu, n_threads, name, err);
}

int od_device_open_beside(struct od_device **out, const struct od_device *d, enum od_profile profile, enum od_cpu cpu,
			  unsigned n_threads, const char *name, struct od_err *err)
{
	const char *asked = od_device_kernel_class(d, profile), *found;
	int rc = open_cpus_instead(out, cpu, n_threads, name, err);

	if (rc != OD_OK)
		return rc;
	found = od_device_kernel_class(*out, profile);
	if (strcmp(found, asked) == 0)
		return OD_OK;
	rc = od_fail(err, OD_ERR_UNSUPPORTED, "%s computes as %s, %s as %s", od_device_name(*out), found,
		     od_device_name(d), asked);
	od_device_free(*out);
	*out = NULL;
	return rc;
}

/* lose_gpu.c - a preloaded library that makes a process lose its real GPU: when the file $LOSE_GPU appears, a kernel of
 * the process traps in the primary context, which every program that uses CUDA's runtime shares. From then on each of
 * its calls fails, as it does after a fault of the program's own kernels, or of the card. The process goes on; what it
 * makes of that is for tests to see.
 *
 * Neither CUDA's headers nor libraries are needed to build it: the driver's functions are found by name.
 * Thread: one of its own, from the start of the process. */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char kernel[] =
	".version 6.0\n.target sm_60\n.address_size 64\n.visible .entry fault()\n{\n\ttrap;\n\tret;\n}\n";

/* The driver's function: int name(...), as cuda.h declares it; NULL: none. */
static void *driver(const char *name)
{
	static void *lib;

	if (lib == NULL)
		lib = dlopen("libcuda.so.1", RTLD_NOW);
	return lib == NULL ? NULL : dlsym(lib, name);
}

/* The first error, 0 if there was none; the last call must have one. */
static int fault(void)
{
	int (*init)(unsigned) = (int (*)(unsigned))driver("cuInit");
	int (*retain)(void **, int) = (int (*)(void **, int))driver("cuDevicePrimaryCtxRetain");
	int (*set)(void *) = (int (*)(void *))driver("cuCtxSetCurrent");
	int (*load)(void **, const void *) = (int (*)(void **, const void *))driver("cuModuleLoadData");
	int (*find)(void **, void *, const char *) =
		(int (*)(void **, void *, const char *))driver("cuModuleGetFunction");
	int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
		      void **) = (int (*)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
					  void *, void **, void **))driver("cuLaunchKernel");
	int (*wait)(void) = (int (*)(void))driver("cuCtxSynchronize");
	void *context, *module, *function;
	int rc;

	if (init == NULL || retain == NULL || set == NULL || load == NULL || find == NULL || launch == NULL ||
	    wait == NULL)
		return -1;
	if ((rc = init(0)) != 0 || (rc = retain(&context, 0)) != 0 || (rc = set(context)) != 0 ||
	    (rc = load(&module, kernel)) != 0 || (rc = find(&function, module, "fault")) != 0 ||
	    (rc = launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)) != 0)
		return rc;
	return wait() != 0 ? 0 : -2;
}

static void *watch(void *file)
{
	int rc;

	while (access(file, F_OK) != 0)
		usleep(2000);
	rc = fault();
	if (rc != 0)
		fprintf(stderr, "lose_gpu: the GPU was not lost: %d\n", rc);
	return NULL;
}

__attribute__((constructor)) static void begin(void)
{
	char *file = getenv("LOSE_GPU");
	pthread_t t;

	if (file != NULL && pthread_create(&t, NULL, watch, file) == 0)
		pthread_detach(t);
}

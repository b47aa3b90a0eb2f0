/* wrong_driver.c - an NVIDIA driver for tests that is too old, or finds no GPU: $OD_DRIVER is "VERSION ERROR", the CUDA
 * version that it supports, as 12020, and what cuInit returns. CUDA's runtime finds it as libcuda.so.1. All else that a
 * driver offers fails.
 *
 * Thread: any; it has no state. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ERROR_UNKNOWN 999

#define DRIVER __attribute__((visibility("default")))

DRIVER int cuInit(unsigned flags);
DRIVER int cuDriverGetVersion(int *version);
DRIVER int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

/* Number i of $OD_DRIVER. */
static int setting(int i)
{
	const char *text = getenv("OD_DRIVER");
	int value[2] = { 0, ERROR_UNKNOWN };

	if (text != NULL)
		(void)!sscanf(text, "%d %d", &value[0], &value[1]);
	return value[i];
}

int cuInit(unsigned flags)
{
	(void)flags;
	return setting(1);
}

int cuDriverGetVersion(int *version)
{
	*version = setting(0);
	return 0;
}

static int fail(void)
{
	return ERROR_UNKNOWN;
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
	(void)version;
	(void)flags;
	*function = strcmp(name, "cuInit") == 0					       ? (void *)cuInit :
		    strcmp(name, "cuDriverGetVersion") == 0			       ? (void *)cuDriverGetVersion :
		    strncmp(name, "cuGetProcAddress", strlen("cuGetProcAddress")) == 0 ? (void *)cuGetProcAddress_v2 :
											 (void *)fail;
	if (status != NULL)
		*status = 0;
	return 0;
}

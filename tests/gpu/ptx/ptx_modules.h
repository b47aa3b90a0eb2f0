/* ptx_modules.h - a PTX file: what its kernels share, for the parser of one.
 *
 * Thread: that which holds the lock of ptx_find(). Owner: ptx_modules.c; modules stay until the process ends. */
#ifndef OD_TESTS_PTX_MODULES_H
#define OD_TESTS_PTX_MODULES_H

#include "tests/gpu/ptx/ptx_code.h"

#define PTX_MOST_SOURCES 64u
#define PTX_MOST_CONSTANTS 8u

struct ptx_constant { /* a table in constant memory, or in global memory */
	char *name;
	unsigned char *bytes;
};

struct ptx_module {
	char *path, *text;
	char *source[PTX_MOST_SOURCES]; /* names by the numbers of .file */
	struct ptx_constant constant[PTX_MOST_CONSTANTS];
	unsigned n_constants;
	bool has_shared; /* extern: gpu_shared_bytes */
};

/* Parses its text (ptx_parse.c). */
void ptx_parse(struct ptx_kernel *k);

#endif

#include "common/compute/dtype.h"

/* Index: enum od_dtype. */
static const char *const names[] = { "unknown", "BF16", "F16", "F32", "I8" };

#define N_NAMES (sizeof(names) / sizeof(names[0]))

const char *od_dtype_name(enum od_dtype t)
{
	return (size_t)t < N_NAMES ? names[t] : names[0];
}

enum od_dtype od_dtype_parse(const char *name)
{
	for (size_t i = 1; i < N_NAMES; i++)
		if (strcmp(name, names[i]) == 0)
			return (enum od_dtype)i;
	return (enum od_dtype)0;
}

#include "common/compute/dtype.h"

/* Index: enum od_dtype. */
static const char *const names[OD_DTYPE_LAST + 1] = {
	[OD_BF16] = "BF16",	  [OD_F16] = "F16",	    [OD_F32] = "F32",	[OD_INT8] = "I8",
	[OD_F8_E4M3] = "F8_E4M3", [OD_F8_E5M2] = "F8_E5M2", [OD_U4B8] = "U4B8", [OD_U8B128] = "U8B128",
	[OD_F4_E2M1] = "F4_E2M1", [OD_F8_E8M0] = "F8_E8M0",
};

const float od_u4b8_values[16] = { -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7 };
const float od_e2m1_values[16] = { 0.0f, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6 };

const uint8_t od_u4b8_e5m2[16] = { 0xc8, 0xc7, 0xc6, 0xc5, 0xc4, 0xc2, 0xc0, 0xbc,
				   0x00, 0x3c, 0x40, 0x42, 0x44, 0x45, 0x46, 0x47 };
const uint8_t od_e2m1_e5m2[16] = { 0x00, 0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46,
				   0x80, 0xb8, 0xbc, 0xbe, 0xc0, 0xc2, 0xc4, 0xc6 };

const char *od_dtype_name(enum od_dtype t)
{
	return (size_t)t <= OD_DTYPE_LAST && names[t] != NULL ? names[t] : "unknown";
}

enum od_dtype od_dtype_parse(const char *name)
{
	for (size_t i = 0; i <= OD_DTYPE_LAST; i++)
		if (names[i] != NULL && strcmp(name, names[i]) == 0)
			return (enum od_dtype)i;
	return (enum od_dtype)0;
}

#include "common/compute/quant.h"

/* Quantiles of the normal distribution scaled to [-1, 1]: eight positive, zero, seven negative. The decimals are those
 * with which the format is in use (bitsandbytes), each exactly an f32. */
const float od_nf4_values[16] = {
	-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
	-0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
	0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
	0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f,
};

const int8_t od_nf4_int8[16] = { -127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127 };

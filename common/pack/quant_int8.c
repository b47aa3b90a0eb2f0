#include "common/pack/quant_int8.h"

#define F32_INF_BITS 0x7f800000u
#define ROUND_MAGIC 12582912.0f /* 1.5 * 2^23: adding it leaves no bits below one, rounded to nearest even */

static void widen_row(enum od_dtype dtype, const void *src, size_t n, float *restrict dst)
{
	const uint16_t *half = src;

	if (dtype == OD_F32)
		memcpy(dst, src, n * sizeof(float));
	else if (dtype == OD_BF16)
		for (size_t i = 0; i < n; i++)
			dst[i] = od_bf16_f32(half[i]);
	else
		for (size_t i = 0; i < n; i++)
			dst[i] = od_f16_f32(half[i]);
}

/* Magnitudes order like their bits, and NaN is above infinity: integers need no care for either. */
static uint32_t absmax_bits(const float *x, size_t n)
{
	uint32_t most = 0;

	for (size_t i = 0; i < n; i++) {
		uint32_t bits = od_f32_bits(x[i]) & 0x7fffffffu;

		most = bits > most ? bits : most;
	}
	return most;
}

static void quantise(const float *restrict x, size_t n, float scale, int8_t *restrict q)
{
	for (size_t i = 0; i < n; i++) {
		float v = x[i] / scale;

		v = v > 127.0f ? 127.0f : v < -127.0f ? -127.0f : v;
		q[i] = (int8_t)((v + ROUND_MAGIC) - ROUND_MAGIC);
	}
}

int od_quant_int8(enum od_dtype dtype, const void *rows, size_t n_rows, size_t n_in, int8_t *q, float *scale,
		  float *scratch, size_t *bad_row)
{
	const char *src = rows;

	*bad_row = 0;
	for (size_t r = 0; r < n_rows; r++) {
		uint32_t most;

		widen_row(dtype, src + r * n_in * od_dtype_bytes(dtype), n_in, scratch);
		most = absmax_bits(scratch, n_in);
		if (most >= F32_INF_BITS) {
			*bad_row = r;
			return OD_ERR_RANGE;
		}
		scale[r] = od_bits_f32(most) / 127.0f;
		if (scale[r] > 0)
			quantise(scratch, n_in, scale[r], q + r * n_in);
		else
			memset(q + r * n_in, 0, n_in);
	}
	return OD_OK;
}

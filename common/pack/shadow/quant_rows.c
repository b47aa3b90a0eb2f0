#include "common/pack/shadow/quant_rows.h"

#define F32_INF_BITS 0x7f800000u
#define F16_INF 0x7c00u
#define ROUND_MAGIC 12582912.0f /* 1.5 * 2^23: adding it leaves no bits below one, rounded to nearest even */

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

static float round_to_127(float v)
{
	v = v > 127.0f ? 127.0f : v < -127.0f ? -127.0f : v;
	return (v + ROUND_MAGIC) - ROUND_MAGIC;
}

/* ---- INT8 ---- */

static void quant_int8(const float *restrict x, size_t n, float *scale, int8_t *restrict q)
{
	const float s = od_bits_f32(absmax_bits(x, n)) / 127.0f;

	*scale = s;
	if (s > 0)
		for (size_t i = 0; i < n; i++)
			q[i] = (int8_t)round_to_127(x[i] / s);
	else
		memset(q, 0, n);
}

/* ---- FP16 ---- */

/* Magnitude bits of an f32 to those of an f16, to nearest even; too much is infinity or worse. Both ways are taken and
 * one is kept, so that the compiler can make vectors of it. */
static uint32_t half_bits(uint32_t bits)
{
	const float half = 0.5f; /* its last bit is worth 2^-24, as a subnormal f16's is: the addition rounds to that */
	uint32_t small = od_f32_bits(od_bits_f32(bits) + half) - od_f32_bits(half);
	uint32_t normal = (bits - (112u << 23) + 0xfffu + (bits >> 13 & 1u)) >> 13;

	return bits < 113u << 23 ? small : normal;
}

/* The largest magnitude. */
static uint32_t quant_fp16(const float *restrict x, size_t n, uint16_t *restrict h)
{
	uint32_t most = 0;

	for (size_t i = 0; i < n; i++) {
		uint32_t bits = od_f32_bits(x[i]), half = half_bits(bits & 0x7fffffffu);

		most = half > most ? half : most;
		h[i] = (uint16_t)(half | (bits >> 16 & 0x8000u));
	}
	return most;
}

/* ---- NF4 ---- */

/* The largest f32 that is no further from value k than from value k + 1: what is greater belongs to the latter. */
static void nf4_limits(float limit[15])
{
	for (int k = 0; k < 15; k++) {
		double middle = ((double)od_nf4_values[k] + (double)od_nf4_values[k + 1]) / 2; /* exact */
		float f = (float)middle;

		limit[k] = (double)f > middle ? nextafterf(f, -1.0f) : f;
	}
}

static void quant_nf4(const float *restrict x, size_t n, const float *restrict limit, float *scale,
		      uint8_t *restrict code)
{
	const float s = od_bits_f32(absmax_bits(x, n));

	*scale = s;
	memset(code, OD_NF4_ZERO, OD_QUANT_GROUP);
	if (s > 0)
		for (size_t i = 0; i < n; i++) {
			const float v = x[i] / s;
			uint32_t c = 0;

			for (int k = 0; k < 15; k++)
				c += v > limit[k];
			code[i] = (uint8_t)c;
		}
}

/* Two blocks of codes to the 64 bytes of a piece: 16 words of four bytes. */
static void pack_nf4(const uint8_t code[OD_NF4_PIECE], uint8_t *out)
{
	for (size_t word = 0; word < 16; word++)
		for (size_t b = 0; b < 4; b++) {
			const uint8_t *low = &code[16 * b + word];

			out[4 * word + b] = (uint8_t)(low[0] | low[OD_QUANT_GROUP] << 4);
		}
}

static void quant_nf4_row(const float *x, size_t n, const float *limit, float *scale, uint8_t *out)
{
	for (size_t at = 0; at < n; at += OD_NF4_PIECE, out += OD_NF4_PIECE / 2) {
		uint8_t code[OD_NF4_PIECE];

		memset(code, OD_NF4_ZERO, sizeof(code));
		for (size_t i = at; i < n && i < at + OD_NF4_PIECE; i += OD_QUANT_GROUP)
			quant_nf4(x + i, n - i < OD_QUANT_GROUP ? n - i : OD_QUANT_GROUP, limit, scale++,
				  code + (i - at));
		pack_nf4(code, out);
	}
}

/* ---- all ---- */

int od_quant_rows(enum od_precision precision, const struct od_mat *rows, void *data, float *scale, float *scratch,
		  size_t *bad_row)
{
	const size_t n_in = rows->n_in;
	const size_t row_bytes = od_shadow_row_bytes(precision, n_in),
		     row_scales = od_shadow_row_scales(precision, n_in);
	char *dst = data;
	float limit[15];

	nf4_limits(limit);
	for (size_t r = 0; r < rows->n_out; r++, dst += row_bytes, scale += row_scales) {
		*bad_row = r;
		od_dequant_row(rows, r, scratch);
		if (absmax_bits(scratch, n_in) >= F32_INF_BITS)
			return OD_ERR_RANGE;
		switch (precision) {
		case OD_PRECISION_INT8: quant_int8(scratch, n_in, scale, (int8_t *)dst); break;
		case OD_PRECISION_FP16:
			if (quant_fp16(scratch, n_in, (uint16_t *)(void *)dst) >= F16_INF)
				return OD_ERR_UNSUPPORTED;
			break;
		case OD_PRECISION_NF4: quant_nf4_row(scratch, n_in, limit, scale, (uint8_t *)dst); break;
		case OD_PRECISION_BF16: return OD_ERR_INTERNAL; /* has no file */
		}
	}
	*bad_row = 0;
	return OD_OK;
}

#include "common/compute/formats/format.h"

#include "common/compute/formats/blocks.h"
#include "common/compute/quant.h"

const float od_u4b8_values[16] = { -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7 };
const float od_e2m1_values[16] = { 0.0f, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6 };

const uint8_t od_u4b8_e5m2[16] = { 0xc8, 0xc7, 0xc6, 0xc5, 0xc4, 0xc2, 0xc0, 0xbc,
				   0x00, 0x3c, 0x40, 0x42, 0x44, 0x45, 0x46, 0x47 };
const uint8_t od_e2m1_e5m2[16] = { 0x00, 0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46,
				   0x80, 0xb8, 0xbc, 0xbe, 0xc0, 0xc2, 0xc4, 0xc6 };

/* ---- Values ---- */

#define DECODE_EACH(name, element, value) \
	static void od_decode_##name(const void *blocks, size_t n, float *restrict out) \
	{ \
		const element *w = blocks; \
\
		for (size_t i = 0; i < n; i++) \
			out[i] = value; \
	}

DECODE_EACH(bf16, uint16_t, od_bf16_f32(w[i]))
DECODE_EACH(f16, uint16_t, od_f16_f32(w[i]))
DECODE_EACH(f32, float, w[i])
DECODE_EACH(int8, int8_t, (float)w[i])
DECODE_EACH(e4m3, uint8_t, od_e4m3_f32(w[i]))
DECODE_EACH(e5m2, uint8_t, od_e5m2_f32(w[i]))
DECODE_EACH(u4b8, uint8_t, od_u4b8_values[w[i / 2] >> 4 * (i % 2) & 15u])
DECODE_EACH(u8b128, uint8_t, (float)(w[i] - 128))
DECODE_EACH(e2m1, uint8_t, od_e2m1_values[w[i / 2] >> 4 * (i % 2) & 15u])
DECODE_EACH(e8m0, uint8_t, od_e8m0_f32(w[i]))
/* quant.h says where a code is; here in bytes, of which each has the codes of two weights 64 apart. */
DECODE_EACH(nf4, uint8_t, od_nf4_values[w[i / 128 * 64 + i % 16 * 4 + i % 64 / 16] >> i % 128 / 64 * 4 & 15u])

/* ---- Table ---- */

static const struct od_format formats[OD_DTYPE_LAST + 1] = {
#define ROW(NAME, name, number, text, weights, bytes, rule, uses) [OD_##NAME] = { text, rule, uses, od_decode_##name },
	OD_FORMATS(ROW)
#undef ROW
};

const struct od_format *od_format(enum od_dtype t)
{
	return (size_t)t <= OD_DTYPE_LAST && formats[t].decode != NULL ? &formats[t] : NULL;
}

const char *od_dtype_name(enum od_dtype t)
{
	const struct od_format *f = od_format(t);

	return f != NULL && f->text != NULL ? f->text : "unknown";
}

enum od_dtype od_dtype_parse(const char *text)
{
	for (size_t i = 0; i <= OD_DTYPE_LAST; i++)
		if (formats[i].text != NULL && strcmp(text, formats[i].text) == 0)
			return (enum od_dtype)i;
	return (enum od_dtype)0;
}

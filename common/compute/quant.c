#include "common/compute/quant.h"

#include "common/compute/backend.h"

/* Quantiles of the normal distribution scaled to [-1, 1]: eight positive, zero, seven negative. The decimals are those
 * with which the format is in use (bitsandbytes), each exactly an f32. */
const float od_nf4_values[16] = {
	-1.0f,
	-0.6961928009986877f,
	-0.5250730514526367f,
	-0.39491748809814453f,
	-0.28444138169288635f,
	-0.18477343022823334f,
	-0.09105003625154495f,
	0.0f,
	0.07958029955625534f,
	0.16093020141124725f,
	0.24611230194568634f,
	0.33791524171829224f,
	0.44070982933044434f,
	0.5626170039176941f,
	0.7229568362236023f,
	1.0f,
};

const int8_t od_nf4_int8[16] = { -127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127 };

static void widen_codes(enum od_dtype t, const void *row, size_t n, float *restrict out)
{
	const uint16_t *half = row;
	const uint8_t *byte = row;
	const float *values = t == OD_U4B8 ? od_u4b8_values : od_e2m1_values;

	switch (t) {
	case OD_BF16:
		for (size_t i = 0; i < n; i++)
			out[i] = od_bf16_f32(half[i]);
		break;
	case OD_F16:
		for (size_t i = 0; i < n; i++)
			out[i] = od_f16_f32(half[i]);
		break;
	case OD_F32: memcpy(out, row, n * sizeof(float)); break;
	case OD_INT8:
		for (size_t i = 0; i < n; i++)
			out[i] = (float)(int8_t)byte[i];
		break;
	case OD_F8_E4M3:
		for (size_t i = 0; i < n; i++)
			out[i] = od_e4m3_f32(byte[i]);
		break;
	case OD_F8_E5M2:
		for (size_t i = 0; i < n; i++)
			out[i] = od_e5m2_f32(byte[i]);
		break;
	case OD_U8B128:
		for (size_t i = 0; i < n; i++)
			out[i] = (float)(byte[i] - 128);
		break;
	case OD_U4B8:
	case OD_F4_E2M1:
		for (size_t i = 0; i < n; i++)
			out[i] = values[byte[i / 2] >> 4 * (i % 2) & 15u];
		break;
	case OD_NF4:
	case OD_F8_E8M0: memset(out, 0, n * sizeof(float)); break; /* not published as weights */
	}
}

void od_dequant_row(const struct od_mat *w, size_t row, float *out)
{
	const struct od_scales *s = &w->scales;
	size_t n = w->n_in, groups;

	widen_codes(w->dtype, (const char *)w->data + row * od_row_bytes(w->dtype, n), n, out);
	if (s->at == NULL)
		return;
	groups = od_scale_groups(s, n);
	for (size_t g = 0; g < groups; g++) {
		size_t begin = g * s->group, end = n - begin < s->group ? n : begin + s->group;
		float scale = od_scale_f32(s->dtype, s->at, row * groups + g);

		scale = s->divisor != NULL ? scale / *s->divisor : scale;
		for (size_t i = begin; i < end; i++)
			out[i] *= scale;
	}
}

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

float od_scale_f32(enum od_dtype t, const void *at, size_t i)
{
	const struct od_format *f = od_format(t);
	float scale = NAN;

	if (f != NULL && (f->uses & OD_USE_SCALE) != 0)
		f->decode((const char *)at + i * od_dtype_bytes(t), 1, &scale);
	return scale;
}

void od_dequant_row(const struct od_mat *w, size_t row, float *out)
{
	const struct od_scales *s = &w->scales;
	size_t n = w->n_in, groups;

	od_format(w->dtype)->decode((const char *)w->data + row * od_row_bytes(w->dtype, n), n, out);
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

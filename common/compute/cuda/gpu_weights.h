/* gpu_weights.h - one weight of a published matrix (struct gpu_mat), of any alignment. Not for a shadow's.
 *
 * Thread: device code. */
#ifndef OD_COMPUTE_GPU_WEIGHTS_H
#define OD_COMPUTE_GPU_WEIGHTS_H

#include "common/compute/cuda/gpu_math.h"
#include "common/compute/cuda/kernels.h"

GPU_FN bool gpu_is_scaled(const unsigned form)
{
	return form >= GPU_SCALED_I8;
}

/* The code of weight i of a row, without scale. */
GPU_FN float gpu_code_at(const unsigned form, const unsigned char *row, size_t i)
{
	switch (form) {
	case GPU_BF16: return gpu_bf16(((const uint16_t *)(const void *)row)[i]);
	case GPU_F16: return gpu_f16(((const uint16_t *)(const void *)row)[i]);
	case GPU_F32: return ((const float *)(const void *)row)[i];
	case GPU_E4M3:
	case GPU_SCALED_E4M3: return gpu_e4m3(row[i]);
	case GPU_E5M2:
	case GPU_SCALED_E5M2: return gpu_e5m2(row[i]);
	case GPU_SCALED_I8: return (float)(int8_t)row[i];
	case GPU_SCALED_U8: return (float)((int)row[i] - 128);
	case GPU_SCALED_U4: return (float)((int)(row[i / 2] >> 4 * (i % 2) & 15u) - 8);
	case GPU_SCALED_E2M1: return gpu_e2m1(row[i / 2] >> 4 * (i % 2) & 15u);
	default: return 0;
	}
}

/* Scale i of all. */
GPU_FN float gpu_scale_at(const struct gpu_mat *w, size_t i)
{
	float s;

	switch (w->scale_dtype) {
	case OD_F32: s = ((const float *)w->scales)[i]; break;
	case OD_BF16: s = gpu_bf16(((const uint16_t *)w->scales)[i]); break;
	case OD_F16: s = gpu_f16(((const uint16_t *)w->scales)[i]); break;
	case OD_F8_E4M3: s = gpu_e4m3(((const uint8_t *)w->scales)[i]); break;
	default: s = gpu_e8m0(((const uint8_t *)w->scales)[i]); break;
	}
	return w->divisor != NULL ? s / *w->divisor : s;
}

#endif

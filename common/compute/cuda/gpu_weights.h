/* gpu_weights.h - codes of weights (enum gpu_coding), but for NF4: their values, one of any alignment, or some read
 * together; and scales of published matrices (struct gpu_mat). Elements of keys and values are codes, too.
 *
 * Thread: device code. */
#ifndef OD_COMPUTE_GPU_WEIGHTS_H
#define OD_COMPUTE_GPU_WEIGHTS_H

#include "common/compute/cuda/gpu_math.h"
#include "common/compute/cuda/kernels.h"

GPU_FN bool gpu_is_scaled(const unsigned coding)
{
	return coding >= GPU_SCALED_I8;
}

GPU_FN unsigned gpu_code_bits(const unsigned coding)
{
	switch (coding) {
	case GPU_F32: return 32;
	case GPU_BF16:
	case GPU_F16: return 16;
	case GPU_SCALED_U4:
	case GPU_SCALED_E2M1: return 4;
	default: return 8;
	}
}

GPU_FN size_t gpu_codes_bytes(const unsigned coding, size_t n) /* n codes, which are whole bytes */
{
	return n * gpu_code_bits(coding) / 8;
}

/* Value of a code, without scale. */
GPU_FN float gpu_code(const unsigned coding, uint32_t code)
{
	switch (coding) {
	case GPU_BF16: return gpu_bf16(code);
	case GPU_F16: return gpu_f16(code);
	case GPU_F32: return gpu_bits_float(code);
	case GPU_E4M3:
	case GPU_SCALED_E4M3: return gpu_e4m3(code);
	case GPU_E5M2:
	case GPU_SCALED_E5M2: return gpu_e5m2(code);
	case GPU_SCALED_U8: return gpu_code_minus(code, 128);
	case GPU_SCALED_U4: return gpu_code_minus(code, 8);
	case GPU_SCALED_E2M1: return gpu_e2m1(code);
	default: return gpu_code_minus(code ^ 128u, 128); /* INT8 of all kinds */
	}
}

/* The code of weight i of a row. */
GPU_FN uint32_t gpu_raw_at(const unsigned bits, const unsigned char *row, size_t i)
{
	switch (bits) {
	case 32: return ((const uint32_t *)(const void *)row)[i];
	case 16: return ((const uint16_t *)(const void *)row)[i];
	case 4: return row[i / 2] >> 4 * (i % 2) & 15u;
	default: return row[i];
	}
}

/* Value of code i of a row, without scale. */
GPU_FN float gpu_code_at(const unsigned coding, const unsigned char *row, size_t i)
{
	return gpu_code(coding, gpu_raw_at(gpu_code_bits(coding), row, i));
}

/* Codes as they are read: 1, 2, 4, 8 or 16 bytes, aligned to that. */
struct gpu_raw {
	uint32_t w[4];
};

/* From any memory. */
GPU_FN struct gpu_raw gpu_read_raw(const unsigned bytes, const unsigned char *at)
{
	struct gpu_raw r = { { 0, 0, 0, 0 } };

	gpu_check_aligned(at, bytes);
	if (bytes == 16) {
		const gpu_u4 v = gpu_shared_16(at);

		r.w[0] = v.x, r.w[1] = v.y, r.w[2] = v.z, r.w[3] = v.w;
	} else if (bytes == 8) {
		const gpu_u2 v = *(const gpu_u2 *)(const void *)at;

		r.w[0] = v.x, r.w[1] = v.y;
	} else if (bytes == 4) {
		r.w[0] = *(const uint32_t *)(const void *)at;
	} else if (bytes == 2) {
		r.w[0] = *(const uint16_t *)(const void *)at;
	} else {
		r.w[0] = *at;
	}
	return r;
}

GPU_FN bool gpu_is_int8(const unsigned coding)
{
	return coding == GPU_INT8 || coding == GPU_SCALED_I8 || coding == GPU_SCALED_U8;
}

/* gpu_code of byte i of four, with fewer instructions. */
GPU_FN float gpu_int8(const unsigned coding, uint32_t four, unsigned i)
{
	const uint32_t from_zero = coding == GPU_SCALED_U8 ? four : four ^ 0x80808080u;

	return gpu_bits_float(gpu_pick_bytes(from_zero, 0x4b000000u, 0x7440u | i)) - (0x1p23f + 128);
}

/* x [n]: the first n codes. */
GPU_FN void gpu_decode(const unsigned coding, const unsigned n, const struct gpu_raw r, float *x)
{
	const unsigned bits = gpu_code_bits(coding), each = 32 / bits;

	GPU_UNROLL
	for (unsigned i = 0; i < n; i++)
		x[i] = gpu_is_int8(coding) ?
			       gpu_int8(coding, r.w[i / each], i % each) :
			       gpu_code(coding, r.w[i / each] >> bits * (i % each) & 0xffffffffu >> (32 - bits));
}

GPU_FN unsigned gpu_scale_bytes(unsigned dtype)
{
	return dtype == OD_F32 ? 4 : dtype == OD_BF16 || dtype == OD_F16 ? 2 : 1;
}

/* A published scale, without the divisor. */
GPU_FN float gpu_scale_code(unsigned dtype, const void *at)
{
	switch (dtype) {
	case OD_F32: return *(const float *)at;
	case OD_BF16: return gpu_bf16(*(const uint16_t *)at);
	case OD_F16: return gpu_f16(*(const uint16_t *)at);
	case OD_F8_E4M3: return gpu_e4m3(*(const uint8_t *)at);
	default: return gpu_e8m0(*(const uint8_t *)at);
	}
}

/* Scale i of all. */
GPU_FN float gpu_scale_at(const struct gpu_mat *w, size_t i)
{
	const float s = gpu_scale_code(w->scale_dtype, (const char *)w->scales + i * gpu_scale_bytes(w->scale_dtype));

	return w->divisor != NULL ? s / *w->divisor : s;
}

#endif

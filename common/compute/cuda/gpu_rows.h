/* gpu_rows.h - sums over a row, and norms, by a block. Sums have the 16 lanes of backend.h: a row's first 16 threads have one each.
 *
 * All threads of the block call these; they begin and end with the block together. Shared memory: GPU_NORM_SHARED of kernels.h.
 * Thread: device code. */
#ifndef OD_COMPUTE_GPU_ROWS_H
#define OD_COMPUTE_GPU_ROWS_H

#include "common/compute/act.h"
#include "common/compute/cuda/gpu_math.h"
#include "common/compute/cuda/kernels.h"

/* A vector may begin at any byte. */
GPU_FN float gpu_vector_at(const struct gpu_vector *v, size_t i)
{
	const unsigned char *b = (const unsigned char *)v->at + i * (v->dtype == OD_F32 ? 4 : 2);
	const uint32_t half = b[0] | (uint32_t)b[1] << 8;

	if (v->dtype == OD_F32)
		return gpu_bits_float(half | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24);
	return v->dtype == OD_BF16 ? gpu_bf16(half) : gpu_f16(half);
}

GPU_FN float gpu_activation(uint32_t act, float g, float u, float limit)
{
	switch (act) {
	case OD_ACT_SILU: return gpu_silu_mul(g, u);
	case OD_ACT_GELU: return gpu_gelu_mul(g, u);
	default: return gpu_clamped_mul(g, u, limit);
	}
}

/* How a sum takes an element. */
enum gpu_sum { GPU_SUM, GPU_SQUARES, GPU_SQUARES_FROM };

/* The sum of x, of x^2, or of (x - from)^2; every lane of a warp gets it, if its first 16 lanes, and its last, all do the same. */
GPU_FN float gpu_lanes_sum(const enum gpu_sum how, const float *x, unsigned n, float from)
{
	float sum = 0;

	for (unsigned i = gpu_lane() % GPU_LANES; i < n; i += GPU_LANES) {
		const float d = how == GPU_SQUARES_FROM ? x[i] - from : x[i];

		sum = how == GPU_SUM ? sum + d : fmaf(d, d, sum);
	}
	return gpu_fold_each(sum);
}

/* For the whole block: the first warp computes it. */
GPU_FN float gpu_block_sum(const enum gpu_sum how, const float *x, unsigned n, float from)
{
	float *shared = (float *)(void *)gpu_shared(), sum;

	gpu_sync();
	if (gpu_warp() == 0) {
		sum = gpu_lanes_sum(how, x, n, from);
		if (gpu_lane() == 0)
			shared[0] = sum;
	}
	gpu_sync();
	return shared[0];
}

/* y = x / sqrt(mean(x^2) + eps) * w; y may be x; w NULL: ones. */
GPU_FN void gpu_block_rmsnorm(float *y, const float *x, const float *w, unsigned n, float eps)
{
	const float by = 1.0f / sqrtf(gpu_canonical(gpu_block_sum(GPU_SQUARES, x, n, 0)) / (float)n + eps);

	for (unsigned i = gpu_thread(); i < n; i += gpu_threads()) {
		const float v = x[i] * by;

		y[i] = gpu_canonical(w != NULL ? v * w[i] : v);
	}
	gpu_sync();
}

GPU_FN void gpu_block_layernorm(float *y, const float *x, const float *w, const float *b, unsigned n, float eps)
{
	const float mean = gpu_block_sum(GPU_SUM, x, n, 0) / (float)n;
	const float by = 1.0f / sqrtf(gpu_block_sum(GPU_SQUARES_FROM, x, n, mean) / (float)n + eps);

	for (unsigned i = gpu_thread(); i < n; i += gpu_threads())
		y[i] = gpu_canonical((x[i] - mean) * by * w[i] + b[i]);
	gpu_sync();
}

/* The norms of n_rows rows of n side by side, in place: each by a half of a warp. */
GPU_FN void gpu_groups_rmsnorm(float *u, unsigned n_rows, unsigned n, const float *w, float eps)
{
	const unsigned groups = gpu_threads() / GPU_LANES, mine = gpu_thread() / GPU_LANES;

	for (unsigned first = 0; first < n_rows; first += groups) {
		/* Both halves of a warp go along, for what they do together. */
		const unsigned row = first + mine < n_rows ? first + mine : n_rows - 1;
		float *x = u + (size_t)row * n;
		const float by = 1.0f / sqrtf(gpu_canonical(gpu_lanes_sum(GPU_SQUARES, x, n, 0)) / (float)n + eps);

		gpu_sync();
		for (unsigned i = gpu_lane() % GPU_LANES; first + mine < n_rows && i < n; i += GPU_LANES) {
			const float v = x[i] * by;

			x[i] = gpu_canonical(w != NULL ? v * w[i] : v);
		}
		gpu_sync();
	}
}

#endif

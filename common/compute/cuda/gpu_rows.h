/* gpu_rows.h - sums over a row, and norms, by a block. Sums have the 16 lanes of backend.h: a row's first 16 threads
 * have one each.
 *
 * All threads of the block call these; they begin and end with the block together. Shared memory: gpu_row_shared of
 * kernels.h.
 * Thread: device code. */
#ifndef OD_COMPUTE_GPU_ROWS_H
#define OD_COMPUTE_GPU_ROWS_H

#include "common/compute/act.h"
#include "common/compute/cuda/gpu_math.h"
#include "common/compute/cuda/kernels.h"

/* A row of a stream. */
GPU_FN unsigned char *gpu_kv_row(const struct gpu_kv *s, uint32_t table, uint32_t position)
{
	const uint32_t page = s->tables[(size_t)table * s->table_pages + position / GPU_KV_PAGE];

	return s->pages + page * s->page_bytes + position % GPU_KV_PAGE * s->row_bytes;
}

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

#define GPU_EACH 8u /* elements of a thread, whose loads are under way together */

GPU_FN float gpu_sum_with(const enum gpu_sum how, float sum, float x, float from)
{
	const float d = how == GPU_SQUARES_FROM ? x - from : x;

	return how == GPU_SUM ? sum + d : fmaf(d, d, sum);
}

/* Elements begin, begin + step, ... of x [n], GPU_EACH of them; begin < n. Of those behind the last one any. */
GPU_FN void gpu_read_each(const float *x, unsigned n, unsigned begin, unsigned step, float *v)
{
	GPU_UNROLL
	for (unsigned e = 0; e < GPU_EACH; e++)
		v[e] = x[begin + e * step < n ? begin + e * step : begin];
}

/* This thread's lane of a sum over x [n] that has come to `sum`; x begins with the first lane. The additions wait for
 * each other, so the next elements are read meanwhile. */
GPU_FN float gpu_lane_sum(const enum gpu_sum how, const float *x, unsigned n, float from, float sum)
{
	const unsigned step = GPU_EACH * GPU_LANES, lane = gpu_lane() % GPU_LANES;
	const unsigned whole = n / step * step;
	const float *at = x + lane;
	float v[GPU_EACH], next[GPU_EACH];

	if (whole > 0) {
		gpu_read_each(at, step, 0, GPU_LANES, v);
		GPU_UNROLL_N(2)
		for (unsigned begin = step; begin < whole; begin += step, at += step) {
			gpu_read_each(at + step, step, 0, GPU_LANES, next);
			GPU_UNROLL
			for (unsigned e = 0; e < GPU_EACH; e++)
				sum = gpu_sum_with(how, sum, v[e], from);
			GPU_UNROLL
			for (unsigned e = 0; e < GPU_EACH; e++)
				v[e] = next[e];
		}
		GPU_UNROLL
		for (unsigned e = 0; e < GPU_EACH; e++)
			sum = gpu_sum_with(how, sum, v[e], from);
	}
	if (whole + lane >= n)
		return sum;
	gpu_read_each(x, n, whole + lane, GPU_LANES, v);
	GPU_UNROLL
	for (unsigned e = 0; e < GPU_EACH; e++)
		if (whole + lane + e * GPU_LANES < n)
			sum = gpu_sum_with(how, sum, v[e], from);
	return sum;
}

/* The sum of x, of x^2, or of (x - from)^2; every lane of a warp gets it, if its first 16 lanes, and its last, all do
 * the same. */
GPU_FN float gpu_lanes_sum(const enum gpu_sum how, const float *x, unsigned n, float from)
{
	return gpu_fold_each(gpu_lane_sum(how, x, n, from, 0));
}

/* In shared memory: a sum, then a piece of a row. */
GPU_FN float *gpu_row_piece(void)
{
	return (float *)(void *)(gpu_shared() + GPU_ROW_HEAD);
}

/* x += add (unless NULL) on the way. */
GPU_FN void gpu_copy_piece(float *x, const float *add, unsigned n)
{
	float *to = gpu_row_piece();

	GPU_NO_UNROLL
	for (unsigned begin = gpu_thread(); begin < n; begin += GPU_EACH * gpu_threads()) {
		float v[GPU_EACH], more[GPU_EACH];

		gpu_read_each(x, n, begin, gpu_threads(), v);
		if (add != NULL) {
			gpu_read_each(add, n, begin, gpu_threads(), more);
			GPU_UNROLL
			for (unsigned e = 0; e < GPU_EACH; e++) {
				v[e] += more[e];
				if (begin + e * gpu_threads() < n)
					x[begin + e * gpu_threads()] = v[e];
			}
		}
		GPU_UNROLL
		for (unsigned e = 0; e < GPU_EACH; e++)
			if (begin + e * gpu_threads() < n)
				to[begin + e * gpu_threads()] = v[e];
	}
}

/* For the whole block. All threads bring the row to shared memory, since 16 lanes alone would wait for each of their
 * loads; the first warp adds. A row of one piece stays there until the next barrier but one. First x += add (unless
 * NULL). */
GPU_FN float gpu_block_sum(const enum gpu_sum how, float *x, const float *add, unsigned n, float from)
{
	float *result = (float *)(void *)gpu_shared(), sum = 0;

	GPU_NO_UNROLL
	for (unsigned at = 0; at < n; at += GPU_ROW_PIECE) {
		const unsigned some = n - at < GPU_ROW_PIECE ? n - at : GPU_ROW_PIECE;

		gpu_sync(); /* all have used what shared memory had: the piece before, or the caller's */
		gpu_copy_piece(x + at, add != NULL ? add + at : NULL, some);
		gpu_sync(); /* the piece is there */
		if (gpu_warp() == 0)
			sum = gpu_lane_sum(how, gpu_row_piece(), some, from, sum);
	}
	if (gpu_warp() == 0) {
		sum = gpu_fold_each(sum);
		if (gpu_lane() == 0)
			result[0] = sum;
	}
	gpu_sync(); /* the sum is there, for all warps */
	return result[0];
}

/* The sum of x in shared memory, where gpu_block_sum has left all of it. */
GPU_FN float gpu_block_sum_again(const enum gpu_sum how, unsigned n, float from)
{
	float *result = (float *)(void *)gpu_shared();

	gpu_sync(); /* all have read the sum before: this one takes its memory */
	if (gpu_warp() == 0) {
		const float sum = gpu_lanes_sum(how, gpu_row_piece(), n, from);

		if (gpu_lane() == 0)
			result[0] = sum;
	}
	gpu_sync();
	return result[0];
}

/* Where gpu_block_sum has left x [n]. */
GPU_FN const float *gpu_row_left(const float *x, unsigned n)
{
	return n <= GPU_ROW_PIECE ? gpu_row_piece() : x;
}

/* Weights and biases for a thread's next elements. */
struct gpu_scales {
	float w[GPU_EACH], b[GPU_EACH];
};

GPU_FN void gpu_read_scales(const float *w, const float *b, unsigned n, unsigned begin, unsigned step,
			    struct gpu_scales *s)
{
	GPU_UNROLL
	for (unsigned e = 0; e < GPU_EACH; e++)
		s->w[e] = 1, s->b[e] = 0;
	if (w != NULL && begin < n)
		gpu_read_each(w, n, begin, step, s->w);
	if (b != NULL && begin < n)
		gpu_read_each(b, n, begin, step, s->b);
}

/* y = (x - mean) * by * w + b; w NULL: ones; b NULL: none, and no mean. y may be x. Elements first, first + step, ...;
 * s has scales of the first ones. */
GPU_FN void gpu_scale_row(float *y, const float *x, float mean, float by, const float *w, const float *b, unsigned n,
			  unsigned first, unsigned step, struct gpu_scales *s)
{
	GPU_NO_UNROLL
	for (unsigned begin = first; begin < n; begin += GPU_EACH * step) {
		float v[GPU_EACH];

		if (begin > first)
			gpu_read_scales(w, b, n, begin, step, s);
		gpu_read_each(x, n, begin, step, v);
		GPU_UNROLL
		for (unsigned e = 0; e < GPU_EACH; e++)
			if (begin + e * step < n)
				y[begin + e * step] = gpu_canonical(b != NULL ? (v[e] - mean) * by * s->w[e] + s->b[e] :
										v[e] * by * s->w[e]);
	}
}

/* The block's first scales, to be read early: they may come from memory. */
GPU_FN void gpu_block_scales(const float *w, const float *b, unsigned n, struct gpu_scales *s)
{
	gpu_read_scales(w, b, n, gpu_thread(), gpu_threads(), s);
}

/* x += add (unless NULL); y = x / sqrt(mean(x^2) + eps) * w; y may be x; w NULL: ones. s: of gpu_block_scales. */
GPU_FN void gpu_block_rmsnorm_by(float *y, float *x, const float *add, const float *w, unsigned n, float eps,
				 struct gpu_scales *s)
{
	const float by = 1.0f / sqrtf(gpu_canonical(gpu_block_sum(GPU_SQUARES, x, add, n, 0)) / (float)n + eps);

	gpu_scale_row(y, gpu_row_left(x, n), 0, by, w, NULL, n, gpu_thread(), gpu_threads(), s);
	gpu_sync(); /* the caller reads what others have normed */
}

GPU_FN void gpu_block_rmsnorm(float *y, float *x, const float *w, unsigned n, float eps)
{
	struct gpu_scales s;

	gpu_block_scales(w, NULL, n, &s);
	gpu_block_rmsnorm_by(y, x, NULL, w, n, eps, &s);
}

GPU_FN void gpu_block_layernorm_by(float *y, float *x, const float *add, const float *w, const float *b, unsigned n,
				   float eps, struct gpu_scales *s)
{
	float mean, by;

	mean = gpu_block_sum(GPU_SUM, x, add, n, 0) / (float)n;
	by = n <= GPU_ROW_PIECE ? gpu_block_sum_again(GPU_SQUARES_FROM, n, mean) :
				  gpu_block_sum(GPU_SQUARES_FROM, x, NULL, n, mean);
	by = 1.0f / sqrtf(by / (float)n + eps);
	gpu_scale_row(y, gpu_row_left(x, n), mean, by, w, b, n, gpu_thread(), gpu_threads(), s);
	gpu_sync(); /* the caller reads what others have normed */
}

/* The norms of n_rows rows of n side by side, in place: each by a half of a warp. */
GPU_FN void gpu_groups_rmsnorm(float *u, unsigned n_rows, unsigned n, const float *w, float eps)
{
	const unsigned groups = gpu_threads() / GPU_LANES, mine = gpu_thread() / GPU_LANES;

	for (unsigned first = 0; first < n_rows; first += groups) {
		/* Both halves of a warp go along, for what they do together. */
		const bool is_one = first + mine < n_rows;
		float *x = u + (size_t)(is_one ? first + mine : n_rows - 1) * n;
		struct gpu_scales s;
		float by;

		gpu_read_scales(w, NULL, n, gpu_lane() % GPU_LANES, GPU_LANES, &s);
		by = 1.0f / sqrtf(gpu_canonical(gpu_lanes_sum(GPU_SQUARES, x, n, 0)) / (float)n + eps);
		gpu_sync(); /* halves without a row have read the last one, which its own now changes */
		gpu_scale_row(x, x, 0, by, w, NULL, is_one ? n : 0, gpu_lane() % GPU_LANES, GPU_LANES, &s);
		gpu_sync(); /* the caller reads what others have normed */
	}
}

#endif

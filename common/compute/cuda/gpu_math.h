/* gpu_math.h - the arithmetic of the kernels: the same bits as cpu_kernels.h and vec_scalar.h, whose functions these
 * are for one lane.
 *
 * A sum of a dot product has 16 lanes (backend.h). Here a thread has some of them, and its neighbours have the others;
 * gpu_fold folds them in the fixed tree.
 * Thread: device code. */
#ifndef OD_COMPUTE_GPU_MATH_H
#define OD_COMPUTE_GPU_MATH_H

#include "common/compute/cuda/gpu.h"

#define GPU_NAN_BITS 0x7fc00000u
#define GPU_LANES 16u /* lanes of a sum */

GPU_FN float gpu_canonical(float a)
{
	return a != a ? gpu_bits_float(GPU_NAN_BITS) : a;
}

/* As x86's instructions: b when one is NaN. */
GPU_FN float gpu_max(float a, float b)
{
	return a > b ? a : b;
}

GPU_FN float gpu_min(float a, float b)
{
	return a < b ? a : b;
}

/* exp16 of cpu_kernels.h. */
GPU_FN float gpu_exp(float x)
{
	const float magic = 0x1.8p23f, c = gpu_max(gpu_min(x, 90.0f), -110.0f);
	const float t = fmaf(c, 0x1.715476p+0f, magic), n = t - magic;
	const float r = fmaf(n, 0x1.05c61p-29f, fmaf(n, -0x1.62e43p-1f, c));
	const int32_t i = (int32_t)(gpu_float_bits(t) - 0x4b400000u), half = i >> 1;
	float p = 1.0f / 5040;

	p = fmaf(p, r, 1.0f / 720);
	p = fmaf(p, r, 1.0f / 120);
	p = fmaf(p, r, 1.0f / 24);
	p = fmaf(p, r, 1.0f / 6);
	p = fmaf(p, r, 0.5f);
	p = fmaf(p, r, 1.0f);
	p = fmaf(p, r, 1.0f);
	/* Two factors, since i goes from -159 to 130, and at either end f32 has no 2^i. */
	p *= gpu_bits_float((uint32_t)(half + 127) << 23);
	p *= gpu_bits_float((uint32_t)(i - half + 127) << 23);
	return x != x ? gpu_bits_float(GPU_NAN_BITS) : p;
}

GPU_FN float gpu_sigmoid(float x)
{
	return 1 / (1 + gpu_exp(-x));
}

GPU_FN float gpu_silu_mul(float g, float u)
{
	return gpu_canonical(g / (1 + gpu_exp(0 - g)) * u);
}

GPU_FN float gpu_gelu_mul(float g, float u)
{
	const float two_z = g * fmaf(g * g, 0x1.2444f2p-4f, 0x1.988454p+0f);

	return gpu_canonical(g / (1 + gpu_exp(0 - two_z)) * u);
}

GPU_FN float gpu_clamped_mul(float g, float u, float limit)
{
	const float low = gpu_min(g, limit), mid = gpu_max(gpu_min(u, limit), 0 - limit);
	const float a = (mid + 1) * (low / (1 + gpu_exp(low * -1.702f)));

	return g != g || u != u ? gpu_bits_float(GPU_NAN_BITS) : gpu_canonical(a);
}

GPU_FN float gpu_soft_cap(float x, float cap)
{
	const float z = gpu_max(gpu_min(x / cap, 20), -20), e = gpu_exp(z * -2);

	return x != x ? gpu_bits_float(GPU_NAN_BITS) : cap * ((1 - e) / (1 + e));
}

/* ---- Number formats (dtype.h) ---- */

GPU_FN float gpu_bf16(uint32_t h)
{
	return gpu_bits_float(h << 16);
}

GPU_FN uint16_t gpu_to_bf16(float f)
{
	const uint32_t u = gpu_float_bits(f);

	return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

GPU_FN float gpu_round_bf16(float f)
{
	return gpu_bf16(gpu_to_bf16(f));
}

/* A number of fewer bits is one of f32 times a power of two, when its exponent and mantissa are put where f32 has them:
 * numbers below the least normal one, too. Products by powers of two are exact. Infinities and NaN are others. */
GPU_FN float gpu_f16(uint32_t h)
{
	const uint32_t sign = (h & 0x8000u) << 16, rest = (h & 0x7fffu) << 13;
	const float f = gpu_bits_float(sign | rest) * 0x1p112f;

	return rest < 0x0f800000u ? f : gpu_bits_float(sign | rest | 0x7f800000u);
}

GPU_FN float gpu_e5m2(uint32_t b)
{
	return gpu_f16(b << 8);
}

GPU_FN float gpu_e4m3(uint32_t b)
{
	const int32_t top = (int32_t)(b << 24); /* four copies of the sign after the shift, of which one stays */
	const float f = gpu_bits_float((uint32_t)(top >> 4) & 0x87f00000u) * 0x1p120f;

	return fabsf(f) <= 448 ? f : gpu_bits_float(GPU_NAN_BITS);
}

GPU_FN float gpu_e8m0(uint32_t b)
{
	return gpu_bits_float(b == 0 ? 0x00400000u : b == 255 ? GPU_NAN_BITS : b << 23);
}

/* 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. */
GPU_FN float gpu_e2m1(uint32_t code)
{
	return gpu_bits_float((code & 8u) << 28 | (code & 7u) << 22) * 0x1p126f;
}

/* code [0, 2^23) minus `by`. */
GPU_FN float gpu_code_minus(uint32_t code, float by)
{
	return gpu_bits_float(0x4b000000u | code) - (0x1p23f + by);
}

/* ---- Sums ---- */

/* lane [n]: a thread's lanes of a sum, thread i of 16 / n that are `apart` from each other has [i * n, i * n + n). All
 * of them get the sum. n and apart are constants; all lanes of the warp call this. The tree is that of backend.h, and
 * another would give other bits; threads that exchange what they have add the same two numbers. */
GPU_FN float gpu_fold_apart(const float *lane, const unsigned n, const unsigned apart)
{
	float a[GPU_LANES];

	GPU_UNROLL
	for (unsigned i = 0; i < n; i++)
		a[i] = lane[i];
	GPU_UNROLL
	for (unsigned half = 8; half > 0; half /= 2) {
		GPU_UNROLL
		for (unsigned i = 0; i < n; i++) {
			if (half >= n)
				a[i] += gpu_shuffle_xor(a[i], half / n * apart);
			else if (i < half)
				a[i] += a[i + half];
		}
	}
	return a[0];
}

/* gpu_fold_apart for neighbours. */
GPU_FN float gpu_fold(const float *lane, const unsigned n)
{
	return gpu_fold_apart(lane, n, 1);
}

/* Folds 16 lanes that neighbours have, one each. */
GPU_FN float gpu_fold_each(float a)
{
	return gpu_fold(&a, 1);
}

/* The sum of v over the lanes of the warp up to this one; all of them call this. */
GPU_FN uint32_t gpu_sum_up(uint32_t v)
{
	GPU_UNROLL
	for (unsigned by = 1; by < GPU_WARP; by *= 2)
		v = gpu_add_up_u32(v, by);
	return v;
}

/* The greatest of 16 values of neighbours; NaN loses. */
GPU_FN float gpu_fold_max_each(float a)
{
	GPU_UNROLL
	for (unsigned half = 8; half > 0; half /= 2) {
		const float b = gpu_shuffle_xor(a, half);

		/* With NaN, or 0 and -0, the order decides: on both sides the lower lane's comes first. */
		a = gpu_lane() & half ? gpu_max(b, a) : gpu_max(a, b);
	}
	return a;
}

#endif

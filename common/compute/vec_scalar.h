/* vec_scalar.h - 16 float lanes in plain C: the meaning of every operation of the vector headers.
 *
 * cpu_kernels.h is written over these names; vec_avx2.h, vec_avx512.h and vec_neon.h give the same bits
 * faster. *_n variants touch only the first n lanes and only n elements of memory. Pointers need no
 * alignment. Thread: any. */
#ifndef OD_COMPUTE_VEC_SCALAR_H
#define OD_COMPUTE_VEC_SCALAR_H

#include "common/compute/dtype.h"

typedef struct {
	float f[16];
} v16;

/* How many rows of weights meet 1, 2, 4 rows of x in registers. Nothing is gained here, so little code. */
#define V16_OUTS_OF_1 1
#define V16_OUTS_OF_2 1
#define V16_OUTS_OF_4 1
#define V16_UNROLL(n)

#define V16_EACH for (int i = 0; i < 16; i++)

static inline v16 v16_set1(float a)
{
	v16 r;

	V16_EACH r.f[i] = a;
	return r;
}

static inline v16 v16_load_n(const float *p, size_t n) /* other lanes: 0 */
{
	v16 r = { { 0 } };

	memcpy(r.f, p, n * sizeof(float));
	return r;
}

static inline v16 v16_load(const float *p)
{
	return v16_load_n(p, 16);
}

static inline v16 v16_load_bf16_n(const void *p, size_t n)
{
	uint16_t h[16] = { 0 };
	v16 r;

	memcpy(h, p, n * sizeof(h[0]));
	V16_EACH r.f[i] = od_bf16_f32(h[i]);
	return r;
}

static inline v16 v16_load_bf16(const void *p)
{
	return v16_load_bf16_n(p, 16);
}

static inline v16 v16_load_f16_n(const void *p, size_t n)
{
	uint16_t h[16] = { 0 };
	v16 r;

	memcpy(h, p, n * sizeof(h[0]));
	V16_EACH r.f[i] = od_f16_f32(h[i]);
	return r;
}

static inline v16 v16_load_f16(const void *p)
{
	return v16_load_f16_n(p, 16);
}

static inline v16 v16_load_i8_n(const void *p, size_t n)
{
	int8_t b[16] = { 0 };
	v16 r;

	memcpy(b, p, n);
	V16_EACH r.f[i] = (float)b[i];
	return r;
}

static inline v16 v16_load_i8(const void *p)
{
	return v16_load_i8_n(p, 16);
}

static inline void v16_store_n(float *p, v16 a, size_t n)
{
	memcpy(p, a.f, n * sizeof(float));
}

static inline void v16_store(float *p, v16 a)
{
	v16_store_n(p, a, 16);
}

static inline void v16_store_bf16_n(uint16_t *p, v16 a, size_t n) /* rounds as od_f32_bf16 */
{
	for (size_t i = 0; i < n; i++)
		p[i] = od_f32_bf16(a.f[i]);
}

static inline void v16_store_bf16(uint16_t *p, v16 a)
{
	v16_store_bf16_n(p, a, 16);
}

static inline v16 v16_round_bf16(v16 a)
{
	V16_EACH a.f[i] = od_bf16_f32(od_f32_bf16(a.f[i]));
	return a;
}

static inline v16 v16_fma(v16 a, v16 b, v16 c) /* a * b + c, rounded once */
{
	V16_EACH c.f[i] = fmaf(a.f[i], b.f[i], c.f[i]);
	return c;
}

static inline v16 v16_fma_n(v16 a, v16 b, v16 c, size_t n) /* other lanes: c */
{
	for (size_t i = 0; i < n; i++)
		c.f[i] = fmaf(a.f[i], b.f[i], c.f[i]);
	return c;
}

static inline v16 v16_add(v16 a, v16 b)
{
	V16_EACH a.f[i] += b.f[i];
	return a;
}

static inline v16 v16_sub(v16 a, v16 b)
{
	V16_EACH a.f[i] -= b.f[i];
	return a;
}

static inline v16 v16_mul(v16 a, v16 b)
{
	V16_EACH a.f[i] *= b.f[i];
	return a;
}

static inline v16 v16_div(v16 a, v16 b)
{
	V16_EACH a.f[i] /= b.f[i];
	return a;
}

/* a > b ? a : b, so b when one is NaN: what x86's max and min instructions do. */
static inline v16 v16_max(v16 a, v16 b)
{
	V16_EACH a.f[i] = a.f[i] > b.f[i] ? a.f[i] : b.f[i];
	return a;
}

static inline v16 v16_min(v16 a, v16 b)
{
	V16_EACH a.f[i] = a.f[i] < b.f[i] ? a.f[i] : b.f[i];
	return a;
}

/* The fixed trees: lane i takes i + 8, then + 4, + 2, + 1. */
static inline float v16_fold_add(v16 a)
{
	for (int half = 8; half > 0; half /= 2)
		for (int i = 0; i < half; i++)
			a.f[i] += a.f[i + half];
	return a.f[0];
}

static inline float v16_fold_max(v16 a)
{
	for (int half = 8; half > 0; half /= 2)
		for (int i = 0; i < half; i++)
			a.f[i] = a.f[i] > a.f[i + half] ? a.f[i] : a.f[i + half];
	return a.f[0];
}

/* Where test is NaN the one NaN that we write (0x7fc00000), else a. */
static inline v16 v16_nan_where(v16 test, v16 a)
{
	V16_EACH a.f[i] = test.f[i] != test.f[i] ? od_bits_f32(0x7fc00000u) : a.f[i];
	return a;
}

/* p * 2^n, where t = n + 1.5 * 2^23 holds n in its low bits; |n| < 250. Two steps, because 2^n alone may be
 * no normal number; only the second can round. */
static inline v16 v16_scale_pow2(v16 p, v16 t)
{
	V16_EACH {
		int32_t n = (int32_t)(od_f32_bits(t.f[i]) - 0x4b400000u), half = n >> 1;

		p.f[i] *= od_bits_f32((uint32_t)(half + 127) << 23);
		p.f[i] *= od_bits_f32((uint32_t)(n - half + 127) << 23);
	}
	return p;
}

#endif

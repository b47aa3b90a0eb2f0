/* vec_scalar.h - 16 float lanes in plain C: the meaning of every operation of the vector headers.
 *
 * cpu_kernels.h is written over these names; vec_avx2.h, vec_avx512.h and vec_neon.h give the same bits
 * faster. *_n variants touch only the first n lanes and only n elements of memory. Pointers need no
 * alignment. Thread: any. */
#ifndef OD_COMPUTE_VEC_SCALAR_H
#define OD_COMPUTE_VEC_SCALAR_H

#include "common/compute/dtype.h"
#include "common/compute/quant.h"

typedef struct {
	float f[16];
} v16;

/* How many rows of weights meet 1, 2, 4 rows of x in registers. Nothing is gained here, so little code. */
#define V16_OUTS_OF_1 1
#define V16_4BIT_OUTS_OF_1 1
#define V16_OUTS_OF_2 1
#define V16_OUTS_OF_4 1

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

static inline void v16_load_32_bf16(const void *p, v16 *first, v16 *second)
{
	*first = v16_load_bf16(p);
	*second = v16_load_bf16((const uint16_t *)p + 16);
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

static inline v16 v16_load_e4m3_n(const void *p, size_t n)
{
	uint8_t b[16] = { 0 };
	v16 r;

	memcpy(b, p, n);
	V16_EACH r.f[i] = od_e4m3_f32(b[i]);
	return r;
}

static inline v16 v16_load_e4m3(const void *p)
{
	return v16_load_e4m3_n(p, 16);
}

static inline v16 v16_load_e5m2_n(const void *p, size_t n)
{
	uint8_t b[16] = { 0 };
	v16 r;

	memcpy(b, p, n);
	V16_EACH r.f[i] = od_e5m2_f32(b[i]);
	return r;
}

static inline v16 v16_load_e5m2(const void *p)
{
	return v16_load_e5m2_n(p, 16);
}

/* INT8 whose bytes have some bits flipped: with 0x80 they have 128 added. */
static inline v16 v16_load_i8_flipped_n(const void *p, size_t n, uint8_t flip)
{
	uint8_t b[16] = { 0 };

	memcpy(b, p, n);
	V16_EACH b[i] ^= flip;
	return v16_load_i8_n(b, 16);
}

static inline v16 v16_load_i8_flipped(const void *p, uint8_t flip)
{
	return v16_load_i8_flipped_n(p, 16, flip);
}

static inline v16 v16_load_e8m0_n(const void *p, size_t n)
{
	uint8_t b[16] = { 0 };
	v16 r;

	memcpy(b, p, n);
	V16_EACH r.f[i] = od_e8m0_f32(b[i]);
	return r;
}

static inline v16 v16_load_e8m0(const void *p)
{
	return v16_load_e8m0_n(p, 16);
}

/* Values of the codes of OD_U4B8 or OD_F4_E2M1 times a scale, the same in all lanes; the products are rounded. */
typedef struct {
	float f[16];
} v16t;

static inline v16t v16t_of(enum od_dtype t, v16 scale)
{
	const float *values = t == OD_U4B8 ? od_u4b8_values : od_e2m1_values;
	v16t r;

	V16_EACH r.f[i] = values[i] * scale.f[i];
	return r;
}

static inline v16 v16_load_4bit_n(const void *p, size_t n, v16t table) /* reads (n + 1) / 2 bytes; other lanes: any */
{
	uint8_t b[8] = { 0 };
	v16 r;

	memcpy(b, p, (n + 1) / 2);
	V16_EACH r.f[i] = table.f[b[i / 2] >> 4 * (i % 2) & 15];
	return r;
}

static inline v16 v16_load_4bit(const void *p, v16t table)
{
	return v16_load_4bit_n(p, 16, table);
}

/* 16 words with codes of NF4, as a piece of 64 bytes has them (quant.h). */
typedef struct {
	uint32_t w[16];
} v16w;

static inline v16w v16w_load(const void *p)
{
	v16w r;

	memcpy(r.w, p, sizeof(r.w));
	return r;
}

static inline v16w v16w_shift4(v16w c) /* right, by 4 bits; the next one by 8 */
{
	V16_EACH c.w[i] >>= 4;
	return c;
}

static inline v16w v16w_shift8(v16w c)
{
	V16_EACH c.w[i] >>= 8;
	return c;
}

static inline v16 v16_nf4(v16w c) /* the values of the lowest codes; higher bits do not count */
{
	v16 r;

	V16_EACH r.f[i] = od_nf4_values[c.w[i] & 15u];
	return r;
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
	V16_EACH
	{
		int32_t n = (int32_t)(od_f32_bits(t.f[i]) - 0x4b400000u), half = n >> 1;

		p.f[i] *= od_bits_f32((uint32_t)(half + 127) << 23);
		p.f[i] *= od_bits_f32((uint32_t)(n - half + 127) << 23);
	}
	return p;
}

/* 64 INT8. */
typedef struct {
	int8_t b[64];
} v64;

static inline v64 v64_load_n(const void *p, size_t n) /* others: 0 */
{
	v64 r = { { 0 } };

	memcpy(r.b, p, n);
	return r;
}

static inline v64 v64_load(const void *p)
{
	return v64_load_n(p, 64);
}

/* od_nf4_int8 of the low halves of 64 bytes, which are the first block of a piece; high: of the high halves. */
static inline v64 v64_nf4_low(const void *p)
{
	v64 r = v64_load(p);

	for (int i = 0; i < 64; i++)
		r.b[i] = od_nf4_int8[(uint8_t)r.b[i] & 15u];
	return r;
}

static inline v64 v64_nf4_high(const void *p)
{
	v64 r = v64_load(p);

	for (int i = 0; i < 64; i++)
		r.b[i] = od_nf4_int8[(uint8_t)r.b[i] >> 4];
	return r;
}

/* Lane i: the sum of four products, 4i to 4i + 3. a is within -127..127, so the sum is exact. */
static inline v16 v64_dot(v64 w, v64 a)
{
	v16 r;

	V16_EACH
	{
		int32_t sum = 0;

		for (int j = 4 * i; j < 4 * i + 4; j++)
			sum += w.b[j] * a.b[j];
		r.f[i] = (float)sum;
	}
	return r;
}

/* To the nearest, ties to even; lanes are within -127..127. Adding 1.5 * 2^23 leaves no bits below one. */
static inline void v16_store_i8(int8_t *p, v16 a)
{
	V16_EACH p[i] = (int8_t)((a.f[i] + 0x1.8p23f) - 0x1.8p23f);
}

/* Stores four, interleaved: byte 4i + m is lane i of a[m]. */
static inline void v16_store_i8x4(int8_t *p, const v16 a[4])
{
	int8_t b[16];

	for (int m = 0; m < 4; m++) {
		v16_store_i8(b, a[m]);
		V16_EACH p[4 * i + m] = b[i];
	}
}

#endif

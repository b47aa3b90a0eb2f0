/* vec_neon.h - the 16 lanes of vec_scalar.h as four NEON registers; the operations are described there.
 *
 * Only what every aarch64 processor has, and dot products of four bytes where the compiler may use them. Maximum and
 * minimum are compare and select, because NEON's own ones pass NaNs on where the oracle drops them. */
#ifndef OD_COMPUTE_VEC_NEON_H
#define OD_COMPUTE_VEC_NEON_H

#include <arm_neon.h>

#include "common/compute/dtype.h"
#include "common/compute/quant.h"

typedef struct {
	float32x4_t a, b, c, d; /* lanes 0 to 3, 4 to 7, 8 to 11, 12 to 15; an array would not stay in registers */
} v16;

/* Rows of weights that meet 1, 2, 4 rows of x. 8 sums are what two pipes for FMAs of 4 cycles can use, and with more
 * than 16 of the 32 registers the decoding of quantised weights would spill. */
#define V16_OUTS_OF_1 2
#define V16_4BIT_OUTS_OF_1 2
#define V16_OUTS_OF_2 2
#define V16_OUTS_OF_4 1

/* Lanes [0, n) all ones: a window on 16 ones and 16 zeros. */
static const uint32_t v16_window[32] = {
	~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u
};

static inline v16 v16_set1(float x)
{
	float32x4_t q = vdupq_n_f32(x);

	return (v16){ q, q, q, q };
}

static inline v16 v16_load(const float *p)
{
	return (v16){ vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12) };
}

static inline v16 v16_load_n(const float *p, size_t n)
{
	float f[16] = { 0 };

	memcpy(f, p, n * sizeof(f[0]));
	return v16_load(f);
}

static inline float32x4_t v16_quarter_of_bf16(uint16x4_t h)
{
	return vreinterpretq_f32_u32(vshll_n_u16(h, 16));
}

static inline v16 v16_load_bf16(const void *p)
{
	uint16x8_t lo = vld1q_u16(p), hi = vld1q_u16((const uint16_t *)p + 8);

	return (v16){ v16_quarter_of_bf16(vget_low_u16(lo)), v16_quarter_of_bf16(vget_high_u16(lo)),
		      v16_quarter_of_bf16(vget_low_u16(hi)), v16_quarter_of_bf16(vget_high_u16(hi)) };
}

static inline v16 v16_load_bf16_n(const void *p, size_t n)
{
	uint16_t h[16] = { 0 };

	memcpy(h, p, n * sizeof(h[0]));
	return v16_load_bf16(h);
}

static inline v16 v16_of_f16(uint16x8_t lo, uint16x8_t hi)
{
	float16x8_t l = vreinterpretq_f16_u16(lo), h = vreinterpretq_f16_u16(hi);

	return (v16){ vcvt_f32_f16(vget_low_f16(l)), vcvt_high_f32_f16(l), vcvt_f32_f16(vget_low_f16(h)),
		      vcvt_high_f32_f16(h) };
}

static inline v16 v16_load_f16(const void *p)
{
	return v16_of_f16(vld1q_u16(p), vld1q_u16((const uint16_t *)p + 8));
}

static inline void v16_load_32_bf16(const void *p, v16 *first, v16 *second)
{
	*first = v16_load_bf16(p);
	*second = v16_load_bf16((const uint16_t *)p + 16);
}

static inline v16 v16_load_f16_n(const void *p, size_t n)
{
	uint16_t h[16] = { 0 };

	memcpy(h, p, n * sizeof(h[0]));
	return v16_load_f16(h);
}

static inline v16 v16_of_i8(int8x16_t b)
{
	int16x8_t lo = vmovl_s8(vget_low_s8(b)), hi = vmovl_high_s8(b);

	return (v16){ vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))), vcvtq_f32_s32(vmovl_high_s16(lo)),
		      vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))), vcvtq_f32_s32(vmovl_high_s16(hi)) };
}

static inline v16 v16_load_i8(const void *p)
{
	return v16_of_i8(vld1q_s8(p));
}

static inline v16 v16_load_i8_n(const void *p, size_t n)
{
	int8_t b[16] = { 0 };

	memcpy(b, p, n);
	return v16_load_i8(b);
}

/* With F16's bits an E4M3 number is 256 times too small (F16's bias is 15, not 7), subnormals too, and its NaNs, 3f80
 * there, look like numbers: they become all ones. */
static inline uint16x8_t v16_half_of_e4m3(int8x8_t b)
{
	const uint16x8_t nan = vdupq_n_u16(0x3f80);
	uint16x8_t wide = vreinterpretq_u16_s16(vshll_n_s8(b, 7));

	return vorrq_u16(vandq_u16(wide, vdupq_n_u16(0xbf80)), vceqq_u16(vandq_u16(wide, nan), nan));
}

static inline v16 v16_load_e4m3(const void *p)
{
	int8x16_t b = vld1q_s8(p);
	v16 r = v16_of_f16(v16_half_of_e4m3(vget_low_s8(b)), v16_half_of_e4m3(vget_high_s8(b)));

	return (v16){ vmulq_n_f32(r.a, 256), vmulq_n_f32(r.b, 256), vmulq_n_f32(r.c, 256), vmulq_n_f32(r.d, 256) };
}

static inline v16 v16_load_e4m3_n(const void *p, size_t n)
{
	uint8_t b[16] = { 0 };

	memcpy(b, p, n);
	return v16_load_e4m3(b);
}

static inline v16 v16_load_e5m2(const void *p)
{
	uint8x16_t b = vld1q_u8(p);

	return v16_of_f16(vshll_n_u8(vget_low_u8(b), 8), vshll_high_n_u8(b, 8));
}

static inline v16 v16_load_e5m2_n(const void *p, size_t n)
{
	uint8_t b[16] = { 0 };

	memcpy(b, p, n);
	return v16_load_e5m2(b);
}

static inline v16 v16_load_i8_flipped(const void *p, uint8_t flip)
{
	return v16_of_i8(vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p), vdupq_n_u8(flip))));
}

static inline v16 v16_load_i8_flipped_n(const void *p, size_t n, uint8_t flip)
{
	uint8_t b[16] = { 0 };

	memcpy(b, p, n);
	return v16_load_i8_flipped(b, flip);
}

static inline float32x4_t v16_quarter_e8m0(uint16x4_t b)
{
	const uint32x4_t half = vdupq_n_u32(0x00400000u); /* 2^-127, and with all ones above it NaN */
	uint32x4_t u = vshlq_n_u32(vmovl_u16(b), 23);
	uint32x4_t nan = vandq_u32(vceqq_u32(u, vdupq_n_u32(0x7f800000u)), half);

	return vreinterpretq_f32_u32(vorrq_u32(vmaxq_u32(u, half), nan));
}

static inline v16 v16_load_e8m0(const void *p)
{
	uint8x16_t b = vld1q_u8(p);
	uint16x8_t lo = vmovl_u8(vget_low_u8(b)), hi = vmovl_high_u8(b);

	return (v16){ v16_quarter_e8m0(vget_low_u16(lo)), v16_quarter_e8m0(vget_high_u16(lo)),
		      v16_quarter_e8m0(vget_low_u16(hi)), v16_quarter_e8m0(vget_high_u16(hi)) };
}

static inline v16 v16_load_e8m0_n(const void *p, size_t n)
{
	uint8_t b[16] = { 0 };

	memcpy(b, p, n);
	return v16_load_e8m0(b);
}

typedef struct {
	uint8x16_t e5m2; /* the upper halves of F16s */
	float32x4_t scale;
} v16t;

static inline v16t v16t_of(enum od_dtype t, v16 scale)
{
	return (v16t){ vld1q_u8(t == OD_U4B8 ? od_u4b8_e5m2 : od_e2m1_e5m2), scale.a };
}

static inline v16 v16_load_4bit(const void *p, v16t table)
{
	uint8x8_t b = vld1_u8(p);
	uint8x8x2_t codes = vzip_u8(vand_u8(b, vdup_n_u8(15)), vshr_n_u8(b, 4));
	uint8x16_t e5m2 = vqtbl1q_u8(table.e5m2, vcombine_u8(codes.val[0], codes.val[1]));
	v16 r = v16_of_f16(vshll_n_u8(vget_low_u8(e5m2), 8), vshll_high_n_u8(e5m2, 8));

	return (v16){ vmulq_f32(r.a, table.scale), vmulq_f32(r.b, table.scale), vmulq_f32(r.c, table.scale),
		      vmulq_f32(r.d, table.scale) };
}

static inline v16 v16_load_4bit_n(const void *p, size_t n, v16t table)
{
	uint8_t b[8] = { 0 };

	memcpy(b, p, (n + 1) / 2);
	return v16_load_4bit(b, table);
}

typedef struct {
	uint32x4_t a, b, c, d;
} v16w;

static inline v16w v16w_load(const void *p)
{
	const uint8_t *b = p;

	return (v16w){ vreinterpretq_u32_u8(vld1q_u8(b)), vreinterpretq_u32_u8(vld1q_u8(b + 16)),
		       vreinterpretq_u32_u8(vld1q_u8(b + 32)), vreinterpretq_u32_u8(vld1q_u8(b + 48)) };
}

static inline v16w v16w_shift4(v16w c)
{
	return (v16w){ vshrq_n_u32(c.a, 4), vshrq_n_u32(c.b, 4), vshrq_n_u32(c.c, 4), vshrq_n_u32(c.d, 4) };
}

static inline v16w v16w_shift8(v16w c)
{
	return (v16w){ vshrq_n_u32(c.a, 8), vshrq_n_u32(c.b, 8), vshrq_n_u32(c.c, 8), vshrq_n_u32(c.d, 8) };
}

/* 16 floats are a table of 64 bytes: a code's four are at 4 * code and behind. */
static inline float32x4_t v16_quarter_nf4(uint32x4_t c)
{
	uint32x4_t code = vandq_u32(c, vdupq_n_u32(15));
	uint32x4_t at = vmlaq_u32(vdupq_n_u32(0x03020100), code, vdupq_n_u32(0x04040404));
	uint8x16x4_t table = vld1q_u8_x4((const uint8_t *)od_nf4_values);

	return vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(at)));
}

static inline v16 v16_nf4(v16w c)
{
	return (v16){ v16_quarter_nf4(c.a), v16_quarter_nf4(c.b), v16_quarter_nf4(c.c), v16_quarter_nf4(c.d) };
}

static inline void v16_store(float *p, v16 x)
{
	vst1q_f32(p, x.a);
	vst1q_f32(p + 4, x.b);
	vst1q_f32(p + 8, x.c);
	vst1q_f32(p + 12, x.d);
}

static inline void v16_store_n(float *p, v16 x, size_t n)
{
	float f[16];

	v16_store(f, x);
	memcpy(p, f, n * sizeof(f[0]));
}

static inline uint32x4_t v16_quarter_bf16_bits(float32x4_t x) /* od_f32_bf16, in the low half of each lane */
{
	uint32x4_t u = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
	uint32x4_t r = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
	uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));

	return vshrq_n_u32(vbslq_u32(vceqq_f32(x, x), r, quiet), 16);
}

static inline void v16_store_bf16(uint16_t *p, v16 x)
{
	vst1q_u16(p, vmovn_high_u32(vmovn_u32(v16_quarter_bf16_bits(x.a)), v16_quarter_bf16_bits(x.b)));
	vst1q_u16(p + 8, vmovn_high_u32(vmovn_u32(v16_quarter_bf16_bits(x.c)), v16_quarter_bf16_bits(x.d)));
}

static inline void v16_store_bf16_n(uint16_t *p, v16 x, size_t n)
{
	uint16_t h[16];

	v16_store_bf16(h, x);
	memcpy(p, h, n * sizeof(h[0]));
}

static inline float32x4_t v16_quarter_round_bf16(float32x4_t x)
{
	return vreinterpretq_f32_u32(vshlq_n_u32(v16_quarter_bf16_bits(x), 16));
}

static inline v16 v16_round_bf16(v16 x)
{
	return (v16){ v16_quarter_round_bf16(x.a), v16_quarter_round_bf16(x.b), v16_quarter_round_bf16(x.c),
		      v16_quarter_round_bf16(x.d) };
}

static inline v16 v16_fma(v16 x, v16 y, v16 z)
{
	return (v16){ vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
		      vfmaq_f32(z.d, x.d, y.d) };
}

static inline v16 v16_fma_n(v16 x, v16 y, v16 z, size_t n)
{
	const uint32_t *first = v16_window + 16 - n;
	v16 r = v16_fma(x, y, z);

	return (v16){ vbslq_f32(vld1q_u32(first), r.a, z.a), vbslq_f32(vld1q_u32(first + 4), r.b, z.b),
		      vbslq_f32(vld1q_u32(first + 8), r.c, z.c), vbslq_f32(vld1q_u32(first + 12), r.d, z.d) };
}

static inline v16 v16_add(v16 x, v16 y)
{
	return (v16){ vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b), vaddq_f32(x.c, y.c), vaddq_f32(x.d, y.d) };
}

static inline v16 v16_sub(v16 x, v16 y)
{
	return (v16){ vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b), vsubq_f32(x.c, y.c), vsubq_f32(x.d, y.d) };
}

static inline v16 v16_mul(v16 x, v16 y)
{
	return (v16){ vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b), vmulq_f32(x.c, y.c), vmulq_f32(x.d, y.d) };
}

static inline v16 v16_div(v16 x, v16 y)
{
	return (v16){ vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b), vdivq_f32(x.c, y.c), vdivq_f32(x.d, y.d) };
}

static inline float32x4_t v16_quarter_max(float32x4_t x, float32x4_t y)
{
	return vbslq_f32(vcgtq_f32(x, y), x, y);
}

static inline v16 v16_max(v16 x, v16 y)
{
	return (v16){ v16_quarter_max(x.a, y.a), v16_quarter_max(x.b, y.b), v16_quarter_max(x.c, y.c),
		      v16_quarter_max(x.d, y.d) };
}

static inline float32x4_t v16_quarter_min(float32x4_t x, float32x4_t y)
{
	return vbslq_f32(vcltq_f32(x, y), x, y);
}

static inline v16 v16_min(v16 x, v16 y)
{
	return (v16){ v16_quarter_min(x.a, y.a), v16_quarter_min(x.b, y.b), v16_quarter_min(x.c, y.c),
		      v16_quarter_min(x.d, y.d) };
}

static inline float v16_fold_add(v16 x)
{
	float32x4_t q = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
	float32x2_t h = vadd_f32(vget_low_f32(q), vget_high_f32(q));

	return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}

static inline float v16_fold_max(v16 x)
{
	float32x4_t q = v16_quarter_max(v16_quarter_max(x.a, x.c), v16_quarter_max(x.b, x.d));

	q = v16_quarter_max(q, vextq_f32(q, q, 2));
	return vgetq_lane_f32(v16_quarter_max(q, vextq_f32(q, q, 1)), 0);
}

static inline float32x4_t v16_quarter_nan_where(float32x4_t test, float32x4_t x)
{
	return vbslq_f32(vceqq_f32(test, test), x, vreinterpretq_f32_u32(vdupq_n_u32(0x7fc00000u)));
}

static inline v16 v16_nan_where(v16 test, v16 x)
{
	return (v16){ v16_quarter_nan_where(test.a, x.a), v16_quarter_nan_where(test.b, x.b),
		      v16_quarter_nan_where(test.c, x.c), v16_quarter_nan_where(test.d, x.d) };
}

static inline float32x4_t v16_quarter_scale_pow2(float32x4_t p, float32x4_t t)
{
	const int32x4_t bias = vdupq_n_s32(127);
	int32x4_t n = vsubq_s32(vreinterpretq_s32_f32(t), vdupq_n_s32(0x4b400000)), half = vshrq_n_s32(n, 1);
	int32x4_t rest = vsubq_s32(n, half);

	p = vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23)));
	return vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23)));
}

static inline v16 v16_scale_pow2(v16 p, v16 t)
{
	return (v16){ v16_quarter_scale_pow2(p.a, t.a), v16_quarter_scale_pow2(p.b, t.b),
		      v16_quarter_scale_pow2(p.c, t.c), v16_quarter_scale_pow2(p.d, t.d) };
}

typedef struct {
	int8x16_t a, b, c, d;
} v64;

static inline v64 v64_load(const void *p)
{
	const int8_t *b = p;

	return (v64){ vld1q_s8(b), vld1q_s8(b + 16), vld1q_s8(b + 32), vld1q_s8(b + 48) };
}

static inline v64 v64_load_n(const void *p, size_t n)
{
	int8_t b[64] = { 0 };

	memcpy(b, p, n);
	return v64_load(b);
}

static inline int8x16_t v64_quarter_nf4(uint8x16_t codes) /* 0 to 15 */
{
	return vqtbl1q_s8(vld1q_s8(od_nf4_int8), codes);
}

static inline v64 v64_nf4_low(const void *p)
{
	const uint8x16_t low = vdupq_n_u8(15);
	const uint8_t *b = p;

	return (v64){ v64_quarter_nf4(vandq_u8(vld1q_u8(b), low)), v64_quarter_nf4(vandq_u8(vld1q_u8(b + 16), low)),
		      v64_quarter_nf4(vandq_u8(vld1q_u8(b + 32), low)),
		      v64_quarter_nf4(vandq_u8(vld1q_u8(b + 48), low)) };
}

static inline v64 v64_nf4_high(const void *p)
{
	const uint8_t *b = p;

	return (v64){ v64_quarter_nf4(vshrq_n_u8(vld1q_u8(b), 4)), v64_quarter_nf4(vshrq_n_u8(vld1q_u8(b + 16), 4)),
		      v64_quarter_nf4(vshrq_n_u8(vld1q_u8(b + 32), 4)),
		      v64_quarter_nf4(vshrq_n_u8(vld1q_u8(b + 48), 4)) };
}

#ifdef __ARM_FEATURE_DOTPROD
static inline float32x4_t v64_quarter_dot(int8x16_t w, int8x16_t x)
{
	return vcvtq_f32_s32(vdotq_s32(vdupq_n_s32(0), w, x));
}
#else
static inline float32x4_t v64_quarter_dot(int8x16_t w, int8x16_t x) /* two products, 2 * 128 * 127, fit into 16 bits */
{
	int16x8_t pairs = vpaddq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)), vmull_high_s8(w, x));

	return vcvtq_f32_s32(vpaddlq_s16(pairs));
}
#endif

static inline v16 v64_dot(v64 w, v64 x)
{
	return (v16){ v64_quarter_dot(w.a, x.a), v64_quarter_dot(w.b, x.b), v64_quarter_dot(w.c, x.c),
		      v64_quarter_dot(w.d, x.d) };
}

static inline int8x16_t v16_i8(v16 x) /* to the nearest, ties to even */
{
	int16x8_t lo = vmovn_high_s32(vmovn_s32(vcvtnq_s32_f32(x.a)), vcvtnq_s32_f32(x.b));
	int16x8_t hi = vmovn_high_s32(vmovn_s32(vcvtnq_s32_f32(x.c)), vcvtnq_s32_f32(x.d));

	return vmovn_high_s16(vmovn_s16(lo), hi);
}

static inline void v16_store_i8(int8_t *p, v16 x)
{
	vst1q_s8(p, v16_i8(x));
}

static inline void v16_store_i8x4(int8_t *p, const v16 x[4])
{
	vst4q_s8(p, (int8x16x4_t){ { v16_i8(x[0]), v16_i8(x[1]), v16_i8(x[2]), v16_i8(x[3]) } });
}

#endif

/* cpu_blocks.h - decoders of GGUF's formats of blocks (OD_BLOCK_FORMATS).
 *
 * formats/blocks.c says what a block has where, in plain C; here 16 neighbours are decoded together. A weight is an
 * exact product of a scale and a code of a signed byte, less a minimum in some formats: so the values are those of
 * blocks.c, bit for bit, in whatever way scale and code are multiplied. Only for cpu*.c, behind their vec_*.h and
 * bytes_*.h. */
#ifndef OD_COMPUTE_CPU_BLOCKS_H
#define OD_COMPUTE_CPU_BLOCKS_H

#include "common/compute/cpu/cpu_tiles.h"
#include "common/compute/formats/codebooks.h"

/* ---- What all have ---- */

static inline unsigned half_word(const uint8_t *p)
{
	uint16_t w;

	memcpy(&w, p, sizeof(w));
	return w;
}

static inline uint32_t word(const uint8_t *p)
{
	uint32_t w;

	memcpy(&w, p, sizeof(w));
	return w;
}

static inline float half(const uint8_t *p)
{
	return od_f16_f32((uint16_t)half_word(p));
}

static ALWAYS_INLINE b16 low_nibbles(b16 a)
{
	return b16_and(a, b16_set1(15));
}

static ALWAYS_INLINE b16 nibbles(b16 a, size_t upper)
{
	return upper != 0 ? b16_shr(a, 4) : low_nibbles(a);
}

static ALWAYS_INLINE b16 pairs_of_bits(b16 a, size_t i) /* bits 2 i and 2 i + 1 of each byte */
{
	return b16_and(b16_shr(a, (unsigned)(2 * i)), b16_set1(3));
}

static ALWAYS_INLINE b16 of_32(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
	return b16_of_64((uint64_t)b << 32 | a, (uint64_t)d << 32 | c);
}

static ALWAYS_INLINE b16 table_of(const int8_t *table)
{
	return b16_load((const uint8_t *)table);
}

static ALWAYS_INLINE void put(float *out, b16 codes, float scale)
{
	v16_store(out, v16_mul(v16_of_bytes(codes), v16_set1(scale)));
}

static ALWAYS_INLINE void put_less(float *out, b16 codes, float scale, float min)
{
	v16_store(out, v16_sub(v16_mul(v16_of_bytes(codes), v16_set1(scale)), v16_set1(min)));
}

static ALWAYS_INLINE void put_plus(float *out, b16 codes, float scale, float more)
{
	v16_store(out, v16_add(v16_mul(v16_of_bytes(codes), v16_set1(scale)), v16_set1(more)));
}

/* scale[16] = d * the 16 bytes */
static ALWAYS_INLINE void scales_of(float *scale, b16 bytes, float d)
{
	v16_store(scale, v16_mul(v16_of_bytes(bytes), v16_set1(d)));
}

/* ---- Blocks of 32 ---- */

static ALWAYS_INLINE void block_q4_0(const uint8_t *b, float *out)
{
	for (size_t r = 0; r < 2; r++)
		put(out + 16 * r, b16_sub(nibbles(b16_load(b + 2), r), b16_set1(8)), half(b));
}

static ALWAYS_INLINE void block_q4_1(const uint8_t *b, float *out)
{
	for (size_t r = 0; r < 2; r++)
		put_plus(out + 16 * r, nibbles(b16_load(b + 4), r), half(b), half(b + 2));
}

static ALWAYS_INLINE b16 five_bits(b16 a, size_t upper, unsigned fifth)
{
	return b16_or(nibbles(a, upper), b16_where_bits(fifth, b16_set1(16)));
}

static ALWAYS_INLINE void block_q5_0(const uint8_t *b, float *out)
{
	for (size_t r = 0; r < 2; r++)
		put(out + 16 * r, b16_sub(five_bits(b16_load(b + 6), r, half_word(b + 2 + 2 * r)), b16_set1(16)),
		    half(b));
}

static ALWAYS_INLINE void block_q5_1(const uint8_t *b, float *out)
{
	for (size_t r = 0; r < 2; r++)
		put_plus(out + 16 * r, five_bits(b16_load(b + 8), r, half_word(b + 4 + 2 * r)), half(b), half(b + 2));
}

static ALWAYS_INLINE void block_q8_0(const uint8_t *b, float *out)
{
	for (size_t r = 0; r < 2; r++)
		put(out + 16 * r, b16_load(b + 2 + 16 * r), half(b));
}

/* ---- K-quants: run r has 16 weights ---- */

static ALWAYS_INLINE void block_q2_k(const uint8_t *b, float *out)
{
	float scale[16], min[16];

	scales_of(scale, low_nibbles(b16_load(b)), half(b + 80));
	scales_of(min, b16_shr(b16_load(b), 4), half(b + 82));
	V16_UNROLL(16)
	for (size_t r = 0; r < 16; r++)
		put_less(out + 16 * r, pairs_of_bits(b16_load(b + 16 + r / 8 * 32 + r % 2 * 16), r / 2 % 4), scale[r],
			 min[r]);
}

static ALWAYS_INLINE void block_q3_k(const uint8_t *b, float *out)
{
	const uint32_t low = word(b + 96), more = word(b + 100), high = word(b + 104), four = 0x0f0f0f0f,
		       two = 0x03030303;
	const b16 scales =
		of_32((low & four) | (high & two) << 4, (more & four) | (high >> 2 & two) << 4,
		      (low >> 4 & four) | (high >> 4 & two) << 4, (more >> 4 & four) | (high >> 6 & two) << 4);
	float scale[16];

	scales_of(scale, b16_sub(scales, b16_set1(32)), half(b + 108));
	V16_UNROLL(16)
	for (size_t r = 0; r < 16; r++) {
		const b16 q = pairs_of_bits(b16_load(b + 32 + r / 8 * 32 + r % 2 * 16), r / 2 % 4);
		const b16 third = b16_where_bit(b16_load(b + r % 2 * 16), (uint8_t)(1u << r / 2), b16_set1(4));

		put(out + 16 * r, b16_sub(b16_or(q, third), b16_set1(4)), scale[r]);
	}
}

/* scale[16]: 8 scales, 8 minimums; those of the first 8 are f32(d * scale), those of the others f32(dmin * min). */
static ALWAYS_INLINE void scales_and_mins(const uint8_t *b, float *scale)
{
	const uint32_t s = word(b + 4), m = word(b + 8), last = word(b + 12), six = 0x3f3f3f3f, four = 0x0f0f0f0f,
		       two = 0x03030303;
	const b16 bytes =
		of_32(s & six, (last & four) | (s >> 6 & two) << 4, m & six, (last >> 4 & four) | (m >> 6 & two) << 4);
	float both[16], min[16];

	scales_of(both, bytes, half(b));
	scales_of(min, bytes, half(b + 2));
	memcpy(scale, both, 8 * sizeof(*scale));
	memcpy(scale + 8, min + 8, 8 * sizeof(*scale));
}

static ALWAYS_INLINE void block_q4_k(const uint8_t *b, float *out)
{
	float scale[16];

	scales_and_mins(b, scale);
	V16_UNROLL(16)
	for (size_t r = 0; r < 16; r++)
		put_less(out + 16 * r, nibbles(b16_load(b + 16 + r / 4 * 32 + r % 2 * 16), r / 2 % 2), scale[r / 2],
			 scale[8 + r / 2]);
}

static ALWAYS_INLINE void block_q5_k(const uint8_t *b, float *out)
{
	float scale[16];

	scales_and_mins(b, scale);
	V16_UNROLL(16)
	for (size_t r = 0; r < 16; r++) {
		const b16 fifth = b16_where_bit(b16_load(b + 16 + r % 2 * 16), (uint8_t)(1u << r / 2), b16_set1(16));

		put_less(out + 16 * r, b16_or(nibbles(b16_load(b + 48 + r / 4 * 32 + r % 2 * 16), r / 2 % 2), fifth),
			 scale[r / 2], scale[8 + r / 2]);
	}
}

static ALWAYS_INLINE void block_q6_k(const uint8_t *b, float *out)
{
	float scale[16];

	scales_of(scale, b16_load(b + 192), half(b + 208));
	V16_UNROLL(16)
	for (size_t r = 0; r < 16; r++) {
		const b16 low = nibbles(b16_load(b + r / 8 * 64 + r % 4 * 16), r / 4 % 2);
		const b16 high = pairs_of_bits(b16_load(b + 128 + r / 8 * 32 + r % 2 * 16), r / 2 % 4);

		put(out + 16 * r, b16_sub(b16_or(low, b16_shl4(high)), b16_set1(32)), scale[r]);
	}
}

/* ---- Ternary ---- */

static ALWAYS_INLINE b16 thrice(b16 a)
{
	return b16_add(b16_add(a, a), a);
}

/* The integer part of 3 a / 256, less 1. */
static ALWAYS_INLINE b16 trit(b16 a)
{
	const b16 one = b16_set1(1);

	return b16_sub(b16_add(b16_where_least(a, b16_set1(86), one), b16_where_least(a, b16_set1(171), one)), one);
}

static ALWAYS_INLINE void block_tq1_0(const uint8_t *b, float *out)
{
	const float d = half(b + 52);
	b16 q[3];
	uint32_t w[4];

	for (size_t i = 0; i < 3; i++)
		q[i] = b16_load(b + 16 * i);
	for (size_t digit = 0; digit < 5; digit++) {
		for (size_t i = 0; i < 3; i++) {
			put(out + (i < 2 ? 32 * digit + 16 * i : 160 + 16 * digit), trit(q[i]), d);
			q[i] = thrice(q[i]);
		}
	}
	/* Each byte keeps what a multiplication by 3 leaves of it. */
	w[0] = word(b + 48);
	for (size_t i = 1; i < 4; i++)
		w[i] = (3 * (w[i - 1] & 0x00ff00ff) & 0x00ff00ff) |
		       ((3 * (w[i - 1] >> 8 & 0x00ff00ff) & 0x00ff00ff) << 8);
	put(out + 240, trit(of_32(w[0], w[1], w[2], w[3])), d);
}

static ALWAYS_INLINE void block_tq2_0(const uint8_t *b, float *out)
{
	const float d = half(b + 64);

	V16_UNROLL(16)
	for (size_t r = 0; r < 16; r++)
		put(out + 16 * r, b16_sub(pairs_of_bits(b16_load(b + r / 8 * 32 + r % 2 * 16), r / 2 % 4), b16_set1(1)),
		    d);
}

/* ---- FP4 ---- */

static const int8_t twice_e2m1[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

static ALWAYS_INLINE void block_mxfp4(const uint8_t *b, float *out)
{
	const float half_scale = od_bits_f32(b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23);

	for (size_t r = 0; r < 2; r++)
		put(out + 16 * r, b16_lookup(table_of(twice_e2m1), nibbles(b16_load(b + 1), r)), half_scale);
}

static ALWAYS_INLINE void block_nvfp4(const uint8_t *b, float *out)
{
	const uint64_t four = 0x0f0f0f0f0f0f0f0f;

	for (size_t r = 0; r < 4; r++) {
		const unsigned exp = b[r] >> 3 & 15u, mant = b[r] & 7u;
		const float scale = b[r] == 0x7f ? 0 :
				    exp == 0	 ? (float)mant * 0x1p-10f :
						   od_bits_f32((exp + 119u) << 23 | mant << 20);
		uint64_t q;

		memcpy(&q, b + 4 + 8 * r, sizeof(q));
		put(out + 16 * r, b16_lookup(table_of(twice_e2m1), b16_of_64(q & four, q >> 4 & four)), scale);
	}
}

/* ---- Codebooks ---- */

static const int8_t nl_values[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };

static ALWAYS_INLINE void block_iq4_nl(const uint8_t *b, float *out)
{
	for (size_t r = 0; r < 2; r++)
		put(out + 16 * r, b16_lookup(table_of(nl_values), nibbles(b16_load(b + 2), r)), half(b));
}

static ALWAYS_INLINE void block_iq4_xs(const uint8_t *b, float *out)
{
	const float d = half(b);
	const unsigned high = half_word(b + 2);

	for (size_t g = 0; g < 8; g++) {
		const int s = (int)((b[4 + g / 2] >> 4 * (g % 2) & 15u) | (high >> 2 * g & 3u) << 4) - 32;

		for (size_t r = 0; r < 2; r++)
			put(out + 32 * g + 16 * r,
			    b16_lookup(table_of(nl_values), nibbles(b16_load(b + 8 + 16 * g), r)), d * (float)s);
	}
}

/* The bytes, negative where a bit is set. */
static ALWAYS_INLINE b16 with_signs(b16 a, unsigned signs)
{
	const b16 mask = b16_where_bits(signs, b16_set1(0xff));

	return b16_sub(b16_xor(a, mask), mask);
}

/* 16 signs of two groups of 7 bits: the eighth of a group makes their number even. */
static inline unsigned signs_of_14(unsigned low, unsigned high)
{
	low &= 127u, high &= 127u;
	return low | (unsigned)__builtin_parity(low) << 7 | high << 8 | (unsigned)__builtin_parity(high) << 15;
}

static ALWAYS_INLINE void block_iq2_xxs(const uint8_t *b, float *out)
{
	const float d = half(b) * 0.25f;

	for (size_t g = 0; g < 8; g++) {
		const uint8_t *e = b + 2 + 8 * g;
		const uint32_t w = word(e + 4);
		const float scale = d * (0.5f + (float)(w >> 28));

		for (size_t r = 0; r < 2; r++, e += 2)
			put(out + 32 * g + 16 * r,
			    with_signs(b16_of_64(od_iq2_xxs_grid[e[0]], od_iq2_xxs_grid[e[1]]),
				       signs_of_14(w >> 14 * r, w >> (14 * r + 7))),
			    scale);
	}
}

static ALWAYS_INLINE void block_iq2_xs(const uint8_t *b, float *out)
{
	const float d = half(b) * 0.25f;

	for (size_t r = 0; r < 16; r++) {
		const unsigned e = half_word(b + 2 + 4 * r), f = half_word(b + 4 + 4 * r);

		put(out + 16 * r,
		    with_signs(b16_of_64(od_iq2_xs_grid[e & 511u], od_iq2_xs_grid[f & 511u]),
			       signs_of_14(e >> 9, f >> 9)),
		    d * (0.5f + (float)(b[66 + r / 2] >> r % 2 * 4 & 15u)));
	}
}

static ALWAYS_INLINE void block_iq2_s(const uint8_t *b, float *out)
{
	const float d = half(b) * 0.25f;

	for (size_t r = 0; r < 16; r++) {
		const unsigned high = (unsigned)b[66 + r / 2] >> r % 2 * 4;
		const unsigned e = b[2 + 2 * r] | (high & 3u) << 8, f = b[3 + 2 * r] | (high >> 2 & 3u) << 8;

		put(out + 16 * r, with_signs(b16_of_64(od_iq2_s_grid[e], od_iq2_s_grid[f]), half_word(b + 34 + 2 * r)),
		    d * (0.5f + (float)(b[74 + r / 2] >> r % 2 * 4 & 15u)));
	}
}

static ALWAYS_INLINE void block_iq3_xxs(const uint8_t *b, float *out)
{
	const float d = half(b) * 0.5f;
	const uint8_t *e = b + 2;

	for (size_t g = 0; g < 8; g++) {
		const uint32_t w = word(b + 66 + 4 * g);
		const float scale = d * (0.5f + (float)(w >> 28));

		for (size_t r = 0; r < 2; r++, e += 4)
			put(out + 32 * g + 16 * r,
			    with_signs(of_32(od_iq3_xxs_grid[e[0]], od_iq3_xxs_grid[e[1]], od_iq3_xxs_grid[e[2]],
					     od_iq3_xxs_grid[e[3]]),
				       signs_of_14(w >> 14 * r, w >> (14 * r + 7))),
			    scale);
	}
}

static ALWAYS_INLINE void block_iq3_s(const uint8_t *b, float *out)
{
	const float d = half(b);
	const uint8_t *e = b + 2;

	for (size_t r = 0; r < 16; r++, e += 4) {
		const unsigned high = (unsigned)b[66 + r / 2] >> r % 2 * 4;

		put(out + 16 * r,
		    with_signs(of_32(od_iq3_s_grid[e[0] | (high & 1u) << 8], od_iq3_s_grid[e[1] | (high & 2u) << 7],
				     od_iq3_s_grid[e[2] | (high & 4u) << 6], od_iq3_s_grid[e[3] | (high & 8u) << 5]),
			       half_word(b + 74 + 2 * r)),
		    d * (float)(1 + 2 * (b[106 + r / 4] >> r / 2 % 2 * 4 & 15u)));
	}
}

/* Eighths of weights: 8 a + 1, or 8 a - 1 where a bit is set. */
static ALWAYS_INLINE b16 shifted(b16 a, bool low, bool high)
{
	const uint64_t plus = 0x0101010101010101, minus = ~(uint64_t)0;

	a = b16_add(a, a);
	a = b16_add(a, a);
	return b16_add(b16_add(a, a), b16_of_64(low ? minus : plus, high ? minus : plus));
}

static ALWAYS_INLINE void block_iq1_s(const uint8_t *b, float *out)
{
	const float d = half(b) * 0.125f;

	for (size_t g = 0; g < 8; g++) {
		const unsigned h = half_word(b + 34 + 2 * g);
		const float scale = d * (float)(2 * (h >> 12 & 7u) + 1);

		for (size_t r = 0; r < 2; r++) {
			const uint8_t *e = b + 2 + 4 * g + 2 * r;
			const b16 a = b16_of_64(od_iq1_s_grid[e[0] | (h >> 6 * r & 7u) << 8],
						od_iq1_s_grid[e[1] | (h >> (6 * r + 3) & 7u) << 8]);

			put(out + 32 * g + 16 * r, shifted(a, h >> 15, h >> 15), scale);
		}
	}
}

static ALWAYS_INLINE void block_iq1_m(const uint8_t *b, float *out)
{
	const uint8_t *s = b + 48;
	const float d = od_f16_f32((uint16_t)(half_word(s) >> 12 | (half_word(s + 2) >> 8 & 0xf0u) |
					      (half_word(s + 4) >> 4 & 0xf00u) | (half_word(s + 6) & 0xf000u))) *
			0.125f;

	for (size_t r = 0; r < 16; r++) {
		const unsigned h = b[32 + r];
		const b16 a = b16_of_64(od_iq1_s_grid[b[2 * r] | (h & 7u) << 8],
					od_iq1_s_grid[b[2 * r + 1] | (h >> 4 & 7u) << 8]);

		put(out + 16 * r, shifted(a, h & 8u, h & 128u),
		    d * (float)(2 * (half_word(s + r / 4 * 2) >> r % 4 * 3 & 7u) + 1));
	}
}

/* ---- Rows ---- */

/* od_format's decode of whole blocks */
#define DECODE_BLOCKS(NAME, name, number, text, weights, bytes, rule, uses) \
	static void decode_##name(const void *blocks, size_t n, float *restrict out) \
	{ \
		const uint8_t *b = blocks; \
\
		for (size_t i = 0; i < n; i += (weights), b += (bytes)) \
			block_##name(b, out + i); \
	}
OD_BLOCK_FORMATS(DECODE_BLOCKS)
#undef DECODE_BLOCKS

static od_decode_fn *decoder_of(enum od_dtype t)
{
	static od_decode_fn *const decoders[OD_DTYPE_LAST + 1] = {
#define DECODER(NAME, name, number, ...) [number] = decode_##name,
		OD_BLOCK_FORMATS(DECODER)
#undef DECODER
	};

	return decoders[t];
}

#endif

/* The exact values of the block formats of GGUF files, as llama.cpp defines them: plain C, one block after the other.
 * These are the oracle of all other decoders. Values are f32 throughout; products of a block's scales are exact, and
 * each weight is rounded at most once, where a minimum is subtracted or added. */
#include "common/compute/formats/blocks.h"

#include "common/compute/dtype.h"
#include "common/compute/formats/codebooks.h"

#include <string.h>

static float half_at(const uint8_t *p)
{
	return od_f16_f32((uint16_t)(p[0] | p[1] << 8));
}

static uint32_t word_at(const uint8_t *p)
{
	return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static unsigned half_word_at(const uint8_t *p)
{
	return p[0] | (unsigned)p[1] << 8;
}

static unsigned nibble(const uint8_t *p, size_t half, size_t i) /* low halves of all bytes, then the high ones */
{
	return p[i] >> 4 * half & 15u;
}

/* ---- Blocks of 32: half d[, half m][, uint32 of fifth bits], nibbles: weights 0 to 15 in the low halves ---- */

static void q4_0(const uint8_t *b, float *out)
{
	const float d = half_at(b);

	for (size_t i = 0; i < 32; i++)
		out[i] = d * (float)((int)nibble(b + 2, i / 16, i % 16) - 8);
}

static void q4_1(const uint8_t *b, float *out)
{
	const float d = half_at(b), m = half_at(b + 2);

	for (size_t i = 0; i < 32; i++)
		out[i] = d * (float)nibble(b + 4, i / 16, i % 16) + m;
}

static void q5_0(const uint8_t *b, float *out)
{
	const float d = half_at(b);
	const uint32_t high = word_at(b + 2);

	for (size_t i = 0; i < 32; i++)
		out[i] = d * (float)((int)(nibble(b + 6, i / 16, i % 16) | (high >> i & 1u) << 4) - 16);
}

static void q5_1(const uint8_t *b, float *out)
{
	const float d = half_at(b), m = half_at(b + 2);
	const uint32_t high = word_at(b + 4);

	for (size_t i = 0; i < 32; i++)
		out[i] = d * (float)(nibble(b + 8, i / 16, i % 16) | (high >> i & 1u) << 4) + m;
}

static void q8_0(const uint8_t *b, float *out)
{
	const float d = half_at(b);

	for (size_t i = 0; i < 32; i++)
		out[i] = d * (float)(int8_t)b[2 + i];
}

/* ---- Blocks of 256 with scales for each 16 or 32: K-quants ---- */

/* uint8 scales[16] (low half: scale, high half: minimum), codes of 2 bits [64], half d, half dmin */
static void q2_k(const uint8_t *b, float *out)
{
	const float d = half_at(b + 80), dmin = half_at(b + 82);

	for (size_t i = 0; i < 256; i++) {
		const unsigned s = b[i / 16], q = b[16 + i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3u;

		out[i] = d * (float)(s & 15u) * (float)q - dmin * (float)(s >> 4);
	}
}

/* third bits [32], codes of 2 bits [64], scales of 6 bits [12], half d */
static void q3_k(const uint8_t *b, float *out)
{
	const float d = half_at(b + 108);

	for (size_t i = 0; i < 256; i++) {
		const size_t g = i / 16;
		const unsigned low = nibble(b + 96, g / 8, g % 8), high = b[104 + g % 4] >> g / 4 * 2 & 3u;
		const unsigned q = b[32 + i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3u;
		const int minus = (b[i % 32] >> i / 32 & 1u) != 0 ? 0 : 4;

		out[i] = d * (float)((int)(low | high << 4) - 32) * (float)((int)q - minus);
	}
}

/* Scale and minimum g of 8 from 12 bytes: 6 bits each, those of the last four in two pieces. */
static void scale_and_min(const uint8_t *s, size_t g, unsigned *scale, unsigned *min)
{
	*scale = g < 4 ? s[g] & 63u : (s[g + 4] & 15u) | (unsigned)(s[g - 4] >> 6 << 4);
	*min = g < 4 ? s[g + 4] & 63u : (unsigned)(s[g + 4] >> 4 | s[g] >> 6 << 4);
}

/* half d, half dmin, scales [12], [Q5_K: fifth bits [32]], nibbles [128]: 32 in the low halves, 32 in the high ones */
static void q4_k(const uint8_t *b, float *out)
{
	const float d = half_at(b), dmin = half_at(b + 2);

	for (size_t i = 0; i < 256; i++) {
		unsigned scale, min;

		scale_and_min(b + 4, i / 32, &scale, &min);
		out[i] = d * (float)scale * (float)nibble(b + 16 + i / 64 * 32, i / 32 % 2, i % 32) - dmin * (float)min;
	}
}

static void q5_k(const uint8_t *b, float *out)
{
	const float d = half_at(b), dmin = half_at(b + 2);

	for (size_t i = 0; i < 256; i++) {
		const unsigned fifth = b[16 + i % 32] >> i / 32 & 1u;
		unsigned scale, min;

		scale_and_min(b + 4, i / 32, &scale, &min);
		out[i] = d * (float)scale * (float)(nibble(b + 48 + i / 64 * 32, i / 32 % 2, i % 32) | fifth << 4) -
			 dmin * (float)min;
	}
}

/* nibbles [128]: 64 in the low halves, 64 in the high ones; upper 2 bits [64]; int8 scales[16], half d */
static void q6_k(const uint8_t *b, float *out)
{
	const float d = half_at(b + 208);

	for (size_t i = 0; i < 256; i++) {
		const unsigned low = nibble(b + i / 128 * 64, i / 64 % 2, i % 64);
		const unsigned high = b[128 + i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3u;

		out[i] = d * (float)(int8_t)b[192 + i / 16] * (float)((int)(low | high << 4) - 32);
	}
}

/* ---- Ternary ---- */

/* Five numbers of base 3 a byte, as a fraction of 256: a multiplication by 3 carries the next one out. [48] bytes have
 * the weights 0 to 159 (32 bytes) and 160 to 239 (16), [4] with four each the last 16; half d */
static void tq1_0(const uint8_t *b, float *out)
{
	static const uint8_t power[] = { 1, 3, 9, 27, 81 };
	const float d = half_at(b + 52);

	for (size_t i = 0; i < 256; i++) {
		const uint8_t byte = i < 160 ? b[i % 32] : i < 240 ? b[32 + (i - 160) % 16] : b[48 + i % 4];
		const size_t digit = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;

		out[i] = d * (float)((int)((unsigned)(uint8_t)(byte * power[digit]) * 3u >> 8) - 1);
	}
}

/* codes of 2 bits [64], half d */
static void tq2_0(const uint8_t *b, float *out)
{
	const float d = half_at(b + 64);

	for (size_t i = 0; i < 256; i++)
		out[i] = d * (float)((int)(b[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3u) - 1);
}

/* ---- FP4: E2M1 doubled, and half a scale; code 8 is +0 ---- */

static const int8_t twice_e2m1[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

/* E8M0 scale, 255 is a number; nibbles [16] */
static void mxfp4(const uint8_t *b, float *out)
{
	const float half_scale = od_bits_f32(b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23);

	for (size_t i = 0; i < 32; i++)
		out[i] = half_scale * (float)twice_e2m1[nibble(b + 1, i / 16, i % 16)];
}

/* E4M3 scales [4] without sign (the bit is not looked at), 0x7f is zero; for each 16 weights nibbles [8] */
static void nvfp4(const uint8_t *b, float *out)
{
	for (size_t i = 0; i < 64; i++) {
		const unsigned s = b[i / 16], exp = s >> 3 & 15u, mant = s & 7u;
		const float scale = s == 0x7f ? 0 :
				    exp == 0  ? (float)mant * 0x1p-10f :
						od_bits_f32((exp + 119u) << 23 | mant << 20);

		out[i] = scale * (float)twice_e2m1[nibble(b + 4 + i / 16 * 8, i / 8 % 2, i % 8)];
	}
}

/* ---- Codebooks ---- */

static const int8_t nl_values[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };

static void iq4_nl(const uint8_t *b, float *out)
{
	const float d = half_at(b);

	for (size_t i = 0; i < 32; i++)
		out[i] = d * (float)nl_values[nibble(b + 2, i / 16, i % 16)];
}

/* half d, upper 2 bits of 8 scales [2], lower 4 bits [4], nibbles [128] */
static void iq4_xs(const uint8_t *b, float *out)
{
	const float d = half_at(b);

	for (size_t i = 0; i < 256; i++) {
		const size_t g = i / 32;
		const unsigned s = (b[4 + g / 2] >> 4 * (g % 2) & 15u) | (half_word_at(b + 2) >> 2 * g & 3u) << 4;

		out[i] = d * (float)((int)s - 32) * (float)nl_values[nibble(b + 8 + g * 16, i / 16 % 2, i % 16)];
	}
}

/* The sign of weight i of 8, of which 7 signs are stored: the eighth makes their number even. */
static float sign_of_7(unsigned seven, size_t i)
{
	const unsigned eight = seven | (unsigned)__builtin_parity(seven) << 7;

	return (eight >> i & 1u) != 0 ? -1.0f : 1.0f;
}

static float sign_of(unsigned eight, size_t i)
{
	return (eight >> i & 1u) != 0 ? -1.0f : 1.0f;
}

static float of_8(uint64_t entry, size_t i)
{
	return (float)(int8_t)(uint8_t)(entry >> 8 * i);
}

static float of_4(uint32_t entry, size_t i)
{
	return (float)(int8_t)(uint8_t)(entry >> 8 * i);
}

/* half d; for each 32 weights: entries [4], then a word: 4 times 7 signs, scale of 4 bits */
static void iq2_xxs(const uint8_t *b, float *out)
{
	const float d = half_at(b);

	for (size_t i = 0; i < 256; i++) {
		const uint8_t *g = b + 2 + i / 32 * 8;
		const size_t e = i / 8 % 4;
		const uint32_t word = word_at(g + 4);

		out[i] = d * (0.5f + (float)(word >> 28)) * 0.25f * of_8(od_iq2_xxs_grid[g[e]], i % 8) *
			 sign_of_7(word >> 7 * e & 127u, i % 8);
	}
}

/* half d, for each 8 weights 2 bytes: entry of 9 bits, 7 signs; scales of 4 bits [8], each for 16 weights */
static void iq2_xs(const uint8_t *b, float *out)
{
	const float d = half_at(b);

	for (size_t i = 0; i < 256; i++) {
		const unsigned e = half_word_at(b + 2 + i / 8 * 2), s = b[66 + i / 32] >> i / 16 % 2 * 4 & 15u;

		out[i] = d * (0.5f + (float)s) * 0.25f * of_8(od_iq2_xs_grid[e & 511u], i % 8) *
			 sign_of_7(e >> 9, i % 8);
	}
}

/* half d, entries [32], signs [32], upper 2 bits of the entries [8], scales [8] as above */
static void iq2_s(const uint8_t *b, float *out)
{
	const float d = half_at(b);

	for (size_t i = 0; i < 256; i++) {
		const unsigned e = b[2 + i / 8] | (b[66 + i / 32] >> i / 8 % 4 * 2 & 3u) << 8;
		const unsigned s = b[74 + i / 32] >> i / 16 % 2 * 4 & 15u;

		out[i] = d * (0.5f + (float)s) * 0.25f * of_8(od_iq2_s_grid[e], i % 8) * sign_of(b[34 + i / 8], i % 8);
	}
}

/* half d, for each 4 weights an entry [64], for each 32 a word [8]: 4 times 7 signs, scale of 4 bits */
static void iq3_xxs(const uint8_t *b, float *out)
{
	const float d = half_at(b);

	for (size_t i = 0; i < 256; i++) {
		const uint32_t word = word_at(b + 66 + i / 32 * 4);

		out[i] = d * (0.5f + (float)(word >> 28)) * 0.5f * of_4(od_iq3_xxs_grid[b[2 + i / 4]], i % 4) *
			 sign_of_7(word >> i / 8 % 4 * 7 & 127u, i % 8);
	}
}

/* half d, entries [64], their ninth bits [8], signs [32], scales of 4 bits [4], each for 32 weights */
static void iq3_s(const uint8_t *b, float *out)
{
	const float d = half_at(b);

	for (size_t i = 0; i < 256; i++) {
		const unsigned e = b[2 + i / 4] | (b[66 + i / 32] >> i / 4 % 8 & 1u) << 8;
		const unsigned s = b[106 + i / 64] >> i / 32 % 2 * 4 & 15u;

		out[i] = d * (float)(1 + 2 * s) * of_4(od_iq3_s_grid[e], i % 4) * sign_of(b[74 + i / 8], i % 8);
	}
}

/* half d, entries [32], for each 32 weights 2 bytes: 4 times upper 3 bits, scale of 3 bits, sign of the shift */
static void iq1_s(const uint8_t *b, float *out)
{
	const float d = half_at(b);

	for (size_t i = 0; i < 256; i++) {
		const unsigned h = half_word_at(b + 34 + i / 32 * 2), e = b[2 + i / 8] | (h >> i / 8 % 4 * 3 & 7u) << 8;

		out[i] = d * (float)(2 * (h >> 12 & 7u) + 1) *
			 (of_8(od_iq1_s_grid[e], i % 8) + ((h & 0x8000u) != 0 ? -0.125f : 0.125f));
	}
}

/* entries [32], for each a nibble [16]: upper 3 bits, sign of the shift; 4 times 2 bytes: 4 scales of 3 bits, each for
 * 16 weights, and 4 bits of half d */
static void iq1_m(const uint8_t *b, float *out)
{
	uint16_t bits = 0;
	float d;

	for (size_t i = 0; i < 4; i++)
		bits = (uint16_t)(bits | half_word_at(b + 48 + 2 * i) >> 12 << 4 * i);
	d = od_f16_f32(bits);
	for (size_t i = 0; i < 256; i++) {
		const unsigned h = b[32 + i / 16] >> i / 8 % 2 * 4 & 15u, e = b[i / 8] | (h & 7u) << 8;
		const unsigned s = half_word_at(b + 48 + i / 64 * 2) >> i / 16 % 4 * 3 & 7u;

		out[i] = d * (float)(2 * s + 1) * (of_8(od_iq1_s_grid[e], i % 8) + ((h & 8u) != 0 ? -0.125f : 0.125f));
	}
}

/* ---- Rows ---- */

/* A row's last block may be cut: its values go to a block of their own first. */
#define DECODE_ROW(NAME, name, number, text, weights, bytes, rule, uses) \
	void od_decode_##name(const void *blocks, size_t n, float *restrict out) \
	{ \
		const uint8_t *b = blocks; \
		float last[weights]; \
\
		for (; n >= (weights); n -= (weights), b += (bytes), out += (weights)) \
			name(b, out); \
		if (n > 0) { \
			name(b, last); \
			memcpy(out, last, n * sizeof(*out)); \
		} \
	}
OD_BLOCK_FORMATS(DECODE_ROW)

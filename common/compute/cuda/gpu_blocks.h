/* gpu_blocks.h - weights of GGUF's formats of blocks (OD_BLOCK_FORMATS): their values, one or eight neighbours.
 *
 * A format's function is that of formats/blocks.c for one weight: weight i of its block b. Factors are multiplied in
 * the same order, so zeros have the same signs. When the remainder of i by 8 is a constant, a compiler reads and works
 * out once what eight neighbours share. Blocks need no alignment: all reads are of bytes. Each file that includes this
 * has the codebooks.
 *
 * Thread: device code. */
#ifndef OD_COMPUTE_GPU_BLOCKS_H
#define OD_COMPUTE_GPU_BLOCKS_H

#include "common/compute/cuda/gpu_math.h"
#include "common/compute/dtype.h"

#define OD_CODEBOOK(type, name, n) GPU_TABLE type gpu_##name[n]
#include "common/compute/formats/codebook_data.h"

#define GPU_RUN 8u /* neighbours that gpu_block_run decodes */

GPU_FN uint32_t gpu_byte_pair(const unsigned char *p)
{
	return p[0] | (uint32_t)p[1] << 8;
}

GPU_FN uint32_t gpu_four_bytes(const unsigned char *p)
{
	return gpu_byte_pair(p) | gpu_byte_pair(p + 2) << 16;
}

GPU_FN float gpu_half_at(const unsigned char *p)
{
	return gpu_f16(gpu_byte_pair(p));
}

GPU_FN uint32_t gpu_nibble(const unsigned char *p, uint32_t half,
			   uint32_t i) /* low halves of all bytes, then the high ones */
{
	return p[i] >> 4 * half & 15u;
}

GPU_FN float gpu_whole(uint32_t code) /* below 2^23; a conversion would take longer */
{
	return gpu_code_minus(code, 0);
}

GPU_FN float gpu_signed_byte(uint32_t byte) /* its lowest 8 bits */
{
	return gpu_code_minus((byte & 255u) ^ 128u, 128);
}

/* ---- Blocks of 32 ---- */

GPU_FN float gpu_q4_0(const unsigned char *b, uint32_t i)
{
	return gpu_half_at(b) * gpu_code_minus(gpu_nibble(b + 2, i / 16, i % 16), 8);
}

GPU_FN float gpu_q4_1(const unsigned char *b, uint32_t i)
{
	return gpu_half_at(b) * gpu_whole(gpu_nibble(b + 4, i / 16, i % 16)) + gpu_half_at(b + 2);
}

GPU_FN float gpu_q5_0(const unsigned char *b, uint32_t i)
{
	const uint32_t fifth = b[2 + i / 8] >> i % 8 & 1u;

	return gpu_half_at(b) * gpu_code_minus(gpu_nibble(b + 6, i / 16, i % 16) | fifth << 4, 16);
}

GPU_FN float gpu_q5_1(const unsigned char *b, uint32_t i)
{
	const uint32_t fifth = b[4 + i / 8] >> i % 8 & 1u;

	return gpu_half_at(b) * gpu_whole(gpu_nibble(b + 8, i / 16, i % 16) | fifth << 4) + gpu_half_at(b + 2);
}

GPU_FN float gpu_q8_0(const unsigned char *b, uint32_t i)
{
	return gpu_half_at(b) * gpu_signed_byte(b[2 + i]);
}

/* ---- K-quants ---- */

GPU_FN uint32_t gpu_two_bits(const unsigned char *p, uint32_t i) /* four times 32 of 32 bytes, then of the next ones */
{
	return p[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3u;
}

GPU_FN float gpu_q2_k(const unsigned char *b, uint32_t i)
{
	const uint32_t s = b[i / 16];

	return gpu_half_at(b + 80) * gpu_whole(s & 15u) * gpu_whole(gpu_two_bits(b + 16, i)) -
	       gpu_half_at(b + 82) * gpu_whole(s >> 4);
}

GPU_FN float gpu_q3_k(const unsigned char *b, uint32_t i)
{
	const uint32_t g = i / 16, low = gpu_nibble(b + 96, g / 8, g % 8), high = b[104 + g % 4] >> g / 4 * 2 & 3u;
	const float minus = (b[i % 32] >> i / 32 & 1u) != 0 ? 0.0f : 4.0f;

	return gpu_half_at(b + 108) * gpu_code_minus(low | high << 4, 32) *
	       gpu_code_minus(gpu_two_bits(b + 32, i), minus);
}

GPU_FN uint32_t gpu_scale_of_8(const unsigned char *s, uint32_t g)
{
	return g < 4 ? s[g] & 63u : (s[g + 4] & 15u) | (uint32_t)s[g - 4] >> 6 << 4;
}

GPU_FN uint32_t gpu_min_of_8(const unsigned char *s, uint32_t g)
{
	return g < 4 ? s[g + 4] & 63u : (uint32_t)s[g + 4] >> 4 | (uint32_t)s[g] >> 6 << 4;
}

/* Weight i with this code: scales and minimums as Q4_K and Q5_K have them. */
GPU_FN float gpu_k_scaled(const unsigned char *b, uint32_t i, uint32_t code)
{
	return gpu_half_at(b) * gpu_whole(gpu_scale_of_8(b + 4, i / 32)) * gpu_whole(code) -
	       gpu_half_at(b + 2) * gpu_whole(gpu_min_of_8(b + 4, i / 32));
}

GPU_FN float gpu_q4_k(const unsigned char *b, uint32_t i)
{
	return gpu_k_scaled(b, i, gpu_nibble(b + 16 + i / 64 * 32, i / 32 % 2, i % 32));
}

GPU_FN float gpu_q5_k(const unsigned char *b, uint32_t i)
{
	const uint32_t fifth = b[16 + i % 32] >> i / 32 & 1u;

	return gpu_k_scaled(b, i, gpu_nibble(b + 48 + i / 64 * 32, i / 32 % 2, i % 32) | fifth << 4);
}

GPU_FN float gpu_q6_k(const unsigned char *b, uint32_t i)
{
	const uint32_t low = gpu_nibble(b + i / 128 * 64, i / 64 % 2, i % 64), high = gpu_two_bits(b + 128, i);

	return gpu_half_at(b + 208) * gpu_signed_byte(b[192 + i / 16]) * gpu_code_minus(low | high << 4, 32);
}

/* ---- Ternary ---- */

GPU_FN float gpu_tq1_0(const unsigned char *b, uint32_t i)
{
	const uint32_t byte = i < 160 ? b[i % 32] : i < 240 ? b[32 + i % 16] : b[48 + i % 4];
	const uint32_t digit = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
	const uint32_t power = digit == 0 ? 1 : digit == 1 ? 3 : digit == 2 ? 9 : digit == 3 ? 27 : 81;

	return gpu_half_at(b + 52) * gpu_code_minus((byte * power & 255u) * 3 >> 8, 1);
}

GPU_FN float gpu_tq2_0(const unsigned char *b, uint32_t i)
{
	return gpu_half_at(b + 64) * gpu_code_minus(gpu_two_bits(b, i), 1);
}

/* ---- FP4 ---- */

/* E2M1 doubled; code 8 is +0. */
GPU_FN float gpu_twice_e2m1(uint32_t code)
{
	return gpu_e2m1(code) * 2 + 0.0f;
}

GPU_FN float gpu_mxfp4(const unsigned char *b, uint32_t i)
{
	const float half_scale = gpu_bits_float(b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23);

	return half_scale * gpu_twice_e2m1(gpu_nibble(b + 1, i / 16, i % 16));
}

GPU_FN float gpu_nvfp4(const unsigned char *b, uint32_t i)
{
	const uint32_t s = b[i / 16], exp = s >> 3 & 15u, mant = s & 7u;
	const float scale = s == 0x7f ? 0 :
			    exp == 0  ? gpu_whole(mant) * 0x1p-10f :
					gpu_bits_float((exp + 119u) << 23 | mant << 20);

	return scale * gpu_twice_e2m1(gpu_nibble(b + 4 + i / 16 * 8, i / 8 % 2, i % 8));
}

/* ---- Codebooks ---- */

GPU_TABLE uint8_t gpu_nl_and_128[16] = { 1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241 };

GPU_FN float gpu_nl_value(uint32_t code)
{
	return gpu_code_minus(gpu_nl_and_128[code], 128);
}

GPU_FN float gpu_iq4_nl(const unsigned char *b, uint32_t i)
{
	return gpu_half_at(b) * gpu_nl_value(gpu_nibble(b + 2, i / 16, i % 16));
}

GPU_FN float gpu_iq4_xs(const unsigned char *b, uint32_t i)
{
	const uint32_t g = i / 32, low = b[4 + g / 2] >> 4 * (g % 2) & 15u, high = b[2 + g / 4] >> g % 4 * 2 & 3u;

	return gpu_half_at(b) * gpu_code_minus(low | high << 4, 32) *
	       gpu_nl_value(gpu_nibble(b + 8 + g * 16, i / 16 % 2, i % 16));
}

/* Weight i of 8 of an entry, and of 4, with its sign. An entry with signs has no zero. */
GPU_FN float gpu_of_8(uint64_t entry, uint32_t i, uint32_t signs)
{
	const float v = gpu_signed_byte((uint32_t)(entry >> 8 * (i % 8)));

	return (signs >> i % 8 & 1u) != 0 ? -v : v;
}

GPU_FN float gpu_of_4(uint32_t entry, uint32_t i, uint32_t signs)
{
	const float v = gpu_signed_byte(entry >> 8 * (i % 4));

	return (signs >> i % 8 & 1u) != 0 ? -v : v;
}

GPU_FN uint32_t gpu_8_signs(uint32_t seven) /* the eighth makes their number even; higher bits are not used */
{
	return (seven & 127u) | (uint32_t)gpu_popcount(seven & 127u) % 2 << 7;
}

GPU_FN float gpu_iq2_xxs(const unsigned char *b, uint32_t i)
{
	const unsigned char *g = b + 2 + i / 32 * 8;
	const uint32_t e = i / 8 % 4, word = gpu_four_bytes(g + 4);

	return gpu_half_at(b) * (0.5f + gpu_whole(word >> 28)) * 0.25f *
	       gpu_of_8(gpu_od_iq2_xxs_grid[g[e]], i, gpu_8_signs(word >> 7 * e));
}

GPU_FN float gpu_iq2_xs(const unsigned char *b, uint32_t i)
{
	const uint32_t e = gpu_byte_pair(b + 2 + i / 8 * 2), s = b[66 + i / 32] >> i / 16 % 2 * 4 & 15u;

	return gpu_half_at(b) * (0.5f + gpu_whole(s)) * 0.25f *
	       gpu_of_8(gpu_od_iq2_xs_grid[e & 511u], i, gpu_8_signs(e >> 9));
}

GPU_FN float gpu_iq2_s(const unsigned char *b, uint32_t i)
{
	const uint32_t e = b[2 + i / 8] | (b[66 + i / 32] >> i / 8 % 4 * 2 & 3u) << 8,
		       s = b[74 + i / 32] >> i / 16 % 2 * 4 & 15u;

	return gpu_half_at(b) * (0.5f + gpu_whole(s)) * 0.25f * gpu_of_8(gpu_od_iq2_s_grid[e], i, b[34 + i / 8]);
}

GPU_FN float gpu_iq3_xxs(const unsigned char *b, uint32_t i)
{
	const uint32_t word = gpu_four_bytes(b + 66 + i / 32 * 4);

	return gpu_half_at(b) * (0.5f + gpu_whole(word >> 28)) * 0.5f *
	       gpu_of_4(gpu_od_iq3_xxs_grid[b[2 + i / 4]], i, gpu_8_signs(word >> i / 8 % 4 * 7));
}

GPU_FN float gpu_iq3_s(const unsigned char *b, uint32_t i)
{
	const uint32_t e = b[2 + i / 4] | (b[66 + i / 32] >> i / 4 % 8 & 1u) << 8,
		       s = b[106 + i / 64] >> i / 32 % 2 * 4 & 15u;

	return gpu_half_at(b) * gpu_whole(1 + 2 * s) * gpu_of_4(gpu_od_iq3_s_grid[e], i, b[74 + i / 8]);
}

GPU_FN float gpu_iq1_s(const unsigned char *b, uint32_t i)
{
	const uint32_t h = gpu_byte_pair(b + 34 + i / 32 * 2), e = b[2 + i / 8] | (h >> i / 8 % 4 * 3 & 7u) << 8;

	return gpu_half_at(b) * gpu_whole(2 * (h >> 12 & 7u) + 1) *
	       (gpu_of_8(gpu_od_iq1_s_grid[e], i, 0) + ((h & 0x8000u) != 0 ? -0.125f : 0.125f));
}

GPU_FN float gpu_iq1_m(const unsigned char *b, uint32_t i)
{
	const unsigned char *s = b + 48;
	const uint32_t h = b[32 + i / 16] >> i / 8 % 2 * 4 & 15u, e = b[i / 8] | (h & 7u) << 8;
	const uint32_t scale = gpu_byte_pair(s + i / 64 * 2) >> i / 16 % 4 * 3 & 7u;
	const float d = gpu_f16((uint32_t)s[1] >> 4 | (s[3] & 0xf0u) | (s[5] & 0xf0u) << 4 | (s[7] & 0xf0u) << 8);

	return d * gpu_whole(2 * scale + 1) *
	       (gpu_of_8(gpu_od_iq1_s_grid[e], i, 0) + ((h & 8u) != 0 ? -0.125f : 0.125f));
}

/* ---- Rows ---- */

/* Weight i of a row. */
GPU_FN float gpu_block_at(uint32_t format, const unsigned char *row, uint32_t i)
{
	switch (format) {
#define GPU_VALUE(NAME, name, number, text, weights, bytes, ...) \
	case OD_##NAME: return gpu_##name(row + (size_t)(i / (weights)) * (bytes), i % (weights));
		OD_BLOCK_FORMATS(GPU_VALUE)
#undef GPU_VALUE
	default: return 0; /* there are no others */
	}
}

/* w[GPU_RUN]: weights of a row from GPU_RUN * run on. */
GPU_FN void gpu_block_run(uint32_t format, const unsigned char *row, uint32_t run, float *w)
{
	run = gpu_now(run); /* else a loop around this keeps in registers what all formats make of it */
	switch (format) {
#define GPU_VALUES(NAME, name, number, text, weights, bytes, ...) \
	case OD_##NAME: \
		GPU_UNROLL \
		for (uint32_t n = 0; n < GPU_RUN; n++) \
			w[n] = gpu_##name(row + (size_t)(run / ((weights) / GPU_RUN)) * (bytes), \
					  run % ((weights) / GPU_RUN) * GPU_RUN + n); \
		break;
		OD_BLOCK_FORMATS(GPU_VALUES)
#undef GPU_VALUES
	default: break; /* there are no others */
	}
}

#endif

/* quant.h - quantised weights and activations: layout in memory and in packs, and products specified to the bit.
 *
 * Weights are quantised along the input dimension: INT8 symmetric (absmax / 127, round to nearest even), one scale per
 * output row; NF4 (QLoRA, arXiv 2305.14314, appendix E) with absmax scales per group of 64. Scales are f32;
 * docs/PACK-FORMAT.md specifies the bits. Products, bit-identical on every CPU:
 *
 * F32 rows (OD_ACT_F32). INT8: the 16 lanes of backend.h over the codes, then times the scale. NF4: within a group lane
 * i takes the products k = i (mod 16) in order by fma from 0; then lane = fma(group sum, group scale, lane) for all 16
 * lanes, even those for which a short last group has no products.
 *
 * Rows rounded to INT8 in blocks of 64 (OD_ACT_INT8). A block's scale is absmax / 127; q = x / scale to nearest, ties
 * to even, within -127..127; all f32. If the scale is 0 (zeros or tiny numbers), q is 0; with an infinity or a NaN, q
 * is 0 and the scale NaN, so that the row's results are NaN. NF4 weights use od_nf4_int8 with the group's scale / 127.
 * Within a block lane i sums four products as integers, exactly: for INT8 the products 4i to 4i + 3, for NF4 those i,
 * 16 + i, 32 + i, 48 + i (q is in that order: byte 4i + m is of 16m + i). Then lane = fma(sum, q's scale * the scale of
 * the weights, lane).
 *
 * Weights published with scales (struct od_scales in backend.h), as I8, U4B8, U8B128, F4_E2M1 or FP8: a weight is the
 * f32 value of its code times its group's scale, rounded once; with a divisor the scale is f32(scale / divisor). A
 * product is that of the same weights as F32, on every CPU and in both profiles.
 * Thread: pure functions. */
#ifndef OD_COMPUTE_QUANT_H
#define OD_COMPUTE_QUANT_H

#include <stddef.h>
#include <stdint.h>

#include "common/compute/formats/format.h"

#define OD_QUANT_GROUP 64u /* weights per scale */
/* A row of NF4: pieces of 64 bytes, each 16 little-endian 32-bit words. Bits [4j, 4j + 4) of word i are the code of
 * weight 16 (j / 2) + 64 (j % 2) + i of the piece. So one shift of the words yields 16 adjacent weights; the low
 * nibbles of all bytes are the first block of 64, the high nibbles the second. Codes beyond n_in are OD_NF4_ZERO. */
#define OD_NF4_PIECE 128u /* weights of a row per 64-byte piece */

extern const float od_nf4_values[16]; /* increasing, -1 to 1; [7] is 0 */
extern const int8_t od_nf4_int8[16]; /* od_nf4_values times 127, rounded; for products with INT8 activations */
#define OD_NF4_ZERO 7u

static inline size_t od_quant_groups(size_t n_in) /* per row; the last one may be short */
{
	return (n_in + OD_QUANT_GROUP - 1) / OD_QUANT_GROUP;
}

/* Element i of an array of scales, converted exactly; NaN when t is not a type of scales. */
float od_scale_f32(enum od_dtype t, const void *at, size_t i);

/* A row of a published matrix, with or without scales, as f32: out[w->n_in]. Not for a shadow's matrices (OD_NF4, and
 * OD_INT8 without scales.at), nor for planes. */
struct od_mat;
void od_dequant_row(const struct od_mat *w, size_t row, float *out);

#endif

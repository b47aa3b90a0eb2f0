/* quant.h - how quantised weight matrices lie in memory and in a pack, and what INT8 activations are.
 *
 * Weights are quantised along the input dimension: INT8 symmetric (absmax / 127, round to nearest even), one scale per
 * output row or one per group of 64; NF4 (QLoRA, arXiv 2305.14314, appendix E) with absmax scales per block of 64. Scales
 * are f32, or in turn 8-bit codes around their mean (double quantisation, QLoRA section 3). docs/PACK-FORMAT.md has it to
 * the bit. An unquantised row may meet any of them; with OD_ACT_INT8 it is first rounded to INT8 per block of 64, and
 * products within a block are summed as integers, so that every CPU gives the same bits.
 * Thread: pure functions. */
#ifndef OD_COMPUTE_QUANT_H
#define OD_COMPUTE_QUANT_H

#include <stddef.h>
#include <stdint.h>

#define OD_QUANT_GROUP 64u	 /* weights under one scale */
#define OD_NF4_PIECE 128u	 /* weights of a row that are stored together, in 64 bytes */
#define OD_SCALE_GROUP 256u	 /* scales under one step of double quantisation, counted over the whole matrix */

extern const float od_nf4_values[16]; /* growing, -1 to 1; [7] is 0 */
extern const int8_t od_nf4_int8[16];  /* 127 times these, to the nearest: what meets INT8 activations */
#define OD_NF4_ZERO 7u

static inline size_t od_quant_groups(size_t n_in) /* of a row; the last one may be short */
{
	return (n_in + OD_QUANT_GROUP - 1) / OD_QUANT_GROUP;
}

/* A row of NF4: pieces of 64 bytes. Taken as 16 little-endian 32-bit words, bits [4j, 4j + 4) of word i are the code of
 * weight 16 (j / 2) + 64 (j % 2) + i of the piece: shifting the words brings 16 neighbours into place, and the low halves
 * of all bytes are the first block of 64, the high halves the second. What is beyond n_in is OD_NF4_ZERO. */
static inline size_t od_nf4_row_bytes(size_t n_in)
{
	return (n_in + OD_NF4_PIECE - 1) / OD_NF4_PIECE * (OD_NF4_PIECE / 2);
}

#endif

/* format.h - what is known of a number format (enum od_dtype): the size of its blocks, the rule of its products, its
 * exact values. Other code asks here, so that a new format is a row of format_list.h.
 *
 * Thread: pure functions. */
#ifndef OD_COMPUTE_FORMAT_H
#define OD_COMPUTE_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/compute/dtype.h"

/* How a product of f32 rows with weights in this format is computed. With published scales it is OD_RULE_F32. quant.h
 * specifies each rule to the bit. */
enum od_rule {
	OD_RULE_F32 = 1, /* as with the same weights as F32: each is rounded to f32 once */
	OD_RULE_BF16, /* as with the same weights as BF16, which holds all values of the format */
	OD_RULE_ROW, /* sums of codes; then the scale of the row of weights */
	OD_RULE_GROUP, /* sums of codes within a group; then the scale of the group */
};

/* A checkpoint may use a format for: */
#define OD_USE_ALONE 1u /* weights of a matrix without scales beside them */
#define OD_USE_SCALED 2u /* weights of a matrix with scales (struct od_scales in backend.h) */
#define OD_USE_SCALE 4u /* scales of such a matrix */
#define OD_USE_VECTOR 8u /* vectors; embeddings, of which single rows are read */
/* Kernels decode it block by block (OD_BLOCK_FORMATS): the f32 values of some weights, then products of OD_RULE_F32.
 * Rows are whole blocks, so a piece of columns ends at a multiple of OD_MOST_BLOCK. */
#define OD_USE_BLOCKS 16u
#define OD_MOST_BLOCK 256u /* weights of the largest block */

/* The first n weights of a row, without the scales beside it. blocks need no alignment beyond that of their
 * elements. */
typedef void od_decode_fn(const void *blocks, size_t n, float *restrict out);

struct od_format {
	const char *text; /* its name in checkpoints and packs; NULL: it occurs in neither */
	enum od_rule rule;
	unsigned uses; /* set of OD_USE_* */
	od_decode_fn *decode; /* exact values: what every other decoder must give, bit for bit */
};

/* NULL: there is no such format. */
const struct od_format *od_format(enum od_dtype t);

struct od_block {
	uint16_t weights, bytes;
};

/* Here, so that kernels know them when they are compiled. */
static const struct od_block od_blocks[OD_DTYPE_LAST + 1] = {
#define OD_BLOCK_ROW(NAME, name, number, text, weights, bytes, rule, uses) [number] = { weights, bytes },
	OD_FORMATS(OD_BLOCK_ROW)
#undef OD_BLOCK_ROW
};

static inline struct od_block od_block_of(enum od_dtype t) /* weights 0: there is no such format */
{
	return (size_t)t <= OD_DTYPE_LAST ? od_blocks[t] : od_blocks[0];
}

static inline size_t od_dtype_bytes(enum od_dtype t) /* bytes of a weight; 0: unknown, or a block has several */
{
	const struct od_block b = od_block_of(t);

	return b.weights == 1 ? b.bytes : 0;
}

/* A row of n_in weights: whole blocks. */
static inline size_t od_row_bytes(enum od_dtype t, size_t n_in)
{
	const struct od_block b = od_block_of(t);

	return b.weights == 0 ? 0 : (n_in / b.weights + (n_in % b.weights != 0)) * b.bytes;
}

const char *od_dtype_name(enum od_dtype t); /* "BF16", its text; "unknown" */
enum od_dtype od_dtype_parse(const char *text); /* 0 when unknown */

#endif

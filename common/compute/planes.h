/* planes.h - exponents of BF16 weights as nested 2-bit planes: a lossless code that is cheap enough to compute on.
 *
 * The exponents of trained weights have about 2.6 bits of entropy (ZipMoE, arXiv 2601.21198, section 2). Here a weight's
 * exponent byte is one of the chunk's three commonest (code 0 to 2) or escapes (code 3) to a second level that knows the
 * next three, that one to a third, and that to a plain byte: about 2.7 bits. The codes of a level stand as two bit
 * planes, so 64 of them are decoded by a few instructions on masks, and what escapes lies packed, to be expanded.
 * docs/PACK-FORMAT.md has it to the bit.
 *
 * A chunk has the exponents of n weights, whole rows of `row` weights. Its blocks stand by themselves: each has whole
 * rows of together at most OD_PLANES_BLOCK weights, or a piece of one row that is longer.
 * Thread: pure functions. Owner: the caller owns every buffer; a chunk is followed by OD_PAD_BYTES readable bytes. */
#ifndef OD_COMPUTE_PLANES_H
#define OD_COMPUTE_PLANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define OD_PLANES_BLOCK 16384u
#define OD_PLANES_LEVELS 3u
#define OD_PLANES_SYMBOLS 3u /* of a level */
#define OD_PLANES_ESCAPE 3u

/* Where a block lies in its chunk, once od_planes_check has seen the chunk. */
struct od_planes_block {
	const uint8_t *plain; /* raw: [weights], else [escapes of level 2] */
	const uint8_t *level[OD_PLANES_LEVELS]; /* NULL when raw */
	size_t n[OD_PLANES_LEVELS];	/* codes of each level; [0]: the block's weights */
	bool raw;
};

/* Blocks of a chunk, and the weights of block b of it: [*first, *first + *weights). n is a multiple of row, row > 0. */
size_t od_planes_blocks(size_t n, size_t row);
void od_planes_span(size_t n, size_t row, size_t b, size_t *first, size_t *weights);

/* e [n] to out, which has room for od_planes_bound; returns the chunk's bytes. n < 2^31. */
size_t od_planes_bound(size_t n, size_t row);
size_t od_planes_encode(const uint8_t *e, size_t n, size_t row, uint8_t *out);

/* Is this the chunk of n exponents that an encoder might have made? Every offset and count is held against its planes;
 * after OD_OK nothing that reads the chunk reads beyond it. OD_ERR_CORRUPT says what is wrong. */
OD_MUST_CHECK int od_planes_check(const uint8_t *chunk, size_t bytes, size_t n, size_t row, struct od_err *err);

/* The nine symbols, level after level. */
static inline const uint8_t *od_planes_symbols(const uint8_t *chunk)
{
	return chunk;
}
/* Block b of a checked chunk. */
struct od_planes_block od_planes_at(const uint8_t *chunk, size_t n, size_t row, size_t b);

/* Bytes that n codes of a level take: both planes. */
static inline size_t od_planes_level_bytes(size_t n)
{
	return n / 64 * 16 + (n % 64 + 7) / 8 * 2;
}

#endif

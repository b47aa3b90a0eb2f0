/* planes.h - exponents of BF16 weights as nested 2-bit planes: a lossless code that matmul kernels decode on the fly.
 *
 * The exponents of trained weights have about 2.6 bits of entropy (ZipMoE, arXiv 2601.21198, section 2). Here codes 0
 * to 2 are the chunk's three most common exponent bytes; code 3 escapes to a second level with the next three, then to
 * a third, then to a plain byte: about 2.7 bits. The codes of a level are two bit planes, so a few mask instructions
 * decode 64 of them; escapes are packed and expanded. docs/PACK-FORMAT.md specifies the bits.
 *
 * A chunk holds the exponents of n weights, whole rows of `row` weights. Its blocks are independent: each holds whole
 * rows of at most OD_PLANES_BLOCK weights together, or a piece of one longer row.
 * Thread: pure functions. Owner: the caller owns every buffer; a chunk is followed by OD_PAD_BYTES readable bytes. */
#ifndef OD_COMPUTE_PLANES_H
#define OD_COMPUTE_PLANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define OD_PLANES_BLOCK 16384u
#define OD_PLANES_LEVELS 3u
#define OD_PLANES_SYMBOLS 3u /* symbols of a level */
#define OD_PLANES_ESCAPE 3u

/* The fields of a block in a chunk that od_planes_check has accepted. */
struct od_planes_block {
	const uint8_t *plain; /* raw: [weights], else [escapes of level 2] */
	const uint8_t *level[OD_PLANES_LEVELS]; /* NULL when raw */
	size_t n[OD_PLANES_LEVELS]; /* codes of each level; [0]: the block's weights */
	bool raw;
};

/* The number of blocks of a chunk; the weights of block b: [*first, *first + *weights). n is a multiple of row, row >
 * 0. */
size_t od_planes_blocks(size_t n, size_t row);
void od_planes_span(size_t n, size_t row, size_t b, size_t *first, size_t *weights);

/* Encodes e [n] to out, which has room for od_planes_bound bytes; returns the chunk's bytes. n < 2^31. */
size_t od_planes_bound(size_t n, size_t row);
size_t od_planes_encode(const uint8_t *e, size_t n, size_t row, uint8_t *out);

/* Validates a chunk of n exponents: every offset and count against its planes. After OD_OK no decoder reads beyond the
 * chunk. OD_ERR_CORRUPT names the fault. */
OD_MUST_CHECK int od_planes_check(const uint8_t *chunk, size_t bytes, size_t n, size_t row, struct od_err *err);

/* The nine symbols, level after level. */
static inline const uint8_t *od_planes_symbols(const uint8_t *chunk)
{
	return chunk;
}
/* Block b of a checked chunk. */
struct od_planes_block od_planes_at(const uint8_t *chunk, size_t n, size_t row, size_t b);

/* Bytes of n codes of a level, both planes. */
static inline size_t od_planes_level_bytes(size_t n)
{
	return n / 64 * 16 + (n % 64 + 7) / 8 * 2;
}

#endif

/* dense_piece.h - reads a dense matrix in pieces: some rows at a time, in the matrix's order, without its scales.
 *
 * Thread: any, each with a reader of its own. Owner: the caller has the reader and its stage; the pack outlives it. */
#ifndef OD_PACK_DENSE_PIECE_H
#define OD_PACK_DENSE_PIECE_H

#include "common/pack/manifest.h"
#include "common/pack/pack.h"

struct od_dense_reader {
	const struct od_pack *pack;
	bool direct; /* past the page cache, where the data is open that way */
	uint8_t *stage; /* od_dense_piece_stage_bytes of all its matrices */
};

/* Rows of a piece: about a mebibyte, and whole runs of rows that the file has in another order. */
uint64_t od_dense_piece_rows(const struct od_dense_tensor *t);
uint64_t od_dense_piece_stage_bytes(const struct od_dense_tensor *t);
/* Rows [row, row + n), at most those of a piece, unchecked. Fastest if `to` has the same position within a page as the
 * bytes have in the file. */
OD_MUST_CHECK int od_dense_piece_read(const struct od_dense_reader *r, const struct od_dense_tensor *t, uint64_t row,
				      uint64_t n, uint8_t *to, struct od_err *err);

#endif

/* mat_type.h - the published type of a matrix: the dtype of its weights or codes, and their scales; its size in a pack
 * and in memory (docs/PACK-FORMAT.md, Weights with scales).
 *
 * A pack stores scales as published: one per block_rows x block_cols weights. In memory each row of weights has its own
 * row of scales, so that code that computes on some rows needs no block boundaries.
 * Thread: pure functions. */
#ifndef OD_PACK_MAT_TYPE_H
#define OD_PACK_MAT_TYPE_H

#include "common/compute/ops.h"

#define OD_SCALE_BLOCK_MIN 16u /* weights of a row under one scale, at least */
#define OD_MAT_TYPE_CHARS 64

struct od_mat_type {
	enum od_dtype dtype; /* type of weights, or of codes */
	enum od_dtype scale; /* 0: none. OD_F8_E4M3: divided by one number (the divisor) for the whole matrix */
	uint32_t block_rows, block_cols; /* weights per scale, powers of two; 0: the whole column, the whole row */
};

/* True: this type is allowed for a matrix with rows of n_in. */
bool od_mat_type_ok(const struct od_mat_type *t, uint64_t n_in);
bool od_mat_type_same(const struct od_mat_type *a, const struct od_mat_type *b);
/* "BF16", "U4B8*BF16[1,128]"; pinned: part of the fingerprint. */
const char *od_mat_type_text(const struct od_mat_type *t, char buf[OD_MAT_TYPE_CHARS]);

/* ---- as published, and in a pack ---- */

uint64_t od_mat_row_bytes(const struct od_mat_type *t, uint64_t n_in); /* weights or codes, without scales */
/* The row of scales for a row of weights; the number of rows of scales for weight rows [row, row + n_rows). */
uint64_t od_mat_scale_row(const struct od_mat_type *t, uint64_t row);
uint64_t od_mat_scale_rows(const struct od_mat_type *t, uint64_t row, uint64_t n_rows);
uint64_t od_mat_scale_row_bytes(const struct od_mat_type *t, uint64_t n_in); /* one row of scales */
uint64_t od_mat_divisor_bytes(const struct od_mat_type *t);
/* Bytes of rows [row, row + n_rows): weights, divisor, rows of scales. */
uint64_t od_mat_bytes(const struct od_mat_type *t, uint64_t n_in, uint64_t row, uint64_t n_rows);

/* ---- in memory ---- */

/* A matrix of n_rows in memory, aligned to OD_PAD_BYTES: its weights, then its divisor and scales, each padded. */
uint64_t od_mat_memory_bytes(const struct od_mat_type *t, uint64_t n_rows, uint64_t n_in);
void od_mat_bind(struct od_mat *w, const struct od_mat_type *t, uint64_t n_rows, uint64_t n_in, const void *memory);
/* od_mat_bind for memory on a device. */
void od_weight_bind(struct od_weight *w, const struct od_mat_type *t, uint64_t n_rows, uint64_t n_in,
		    struct od_ref memory);
/* Its weights in one place, divisor and scales, as they are in od_mat_memory_bytes behind the weights, in another. */
void od_weight_bind_apart(struct od_weight *w, const struct od_mat_type *t, uint64_t n_rows, uint64_t n_in,
			  struct od_ref weights, struct od_ref scales);
uint64_t od_mat_scale_memory_bytes(const struct od_mat_type *t, uint64_t n_rows, uint64_t n_in);
/* Copies divisor and scales of rows [row, row + n) from `from` (as laid out by od_mat_bytes, after the weights) to rows
 * [at, at + n) of memory, a matrix of n_rows. The divisor is written only with row 0 of memory, so that several threads
 * can fill one matrix. */
void od_mat_put_scales(const struct od_mat_type *t, uint64_t n_rows, uint64_t n_in, void *memory, uint64_t at,
		       uint64_t row, uint64_t n, const uint8_t *from);
/* Copies divisor and scales of all rows to a place of their own. */
void od_mat_put_scales_apart(const struct od_mat_type *t, uint64_t n_rows, uint64_t n_in, void *memory,
			     const uint8_t *from);

#endif

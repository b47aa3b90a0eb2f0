/* mat_type.h - of what a matrix is made as it was published: the type of its weights and, where these are codes, the
 * scales beside them; and how many bytes that takes in a pack and in memory (docs/PACK-FORMAT.md, Weights with scales).
 *
 * In a pack scales stand as published: one for block_rows x block_cols weights. In memory each row of weights has its own
 * row of them, so that whoever computes on some rows need not know where blocks begin.
 * Thread: pure functions. */
#ifndef OD_PACK_MAT_TYPE_H
#define OD_PACK_MAT_TYPE_H

#include "common/compute/ops.h"

#define OD_SCALE_BLOCK_MIN 16u	/* weights of a row under one scale, at least */
#define OD_MAT_TYPE_CHARS 64

struct od_mat_type {
	enum od_dtype dtype; /* of weights, or of codes */
	enum od_dtype scale; /* 0: none. OD_F8_E4M3: they are divided by one number for the whole matrix */
	uint32_t block_rows, block_cols; /* weights under one scale, powers of two; 0: the whole column, the whole row */
};

/* May a matrix of rows of n_in be of this type? */
bool od_mat_type_ok(const struct od_mat_type *t, uint64_t n_in);
bool od_mat_type_same(const struct od_mat_type *a, const struct od_mat_type *b);
/* "BF16", "U4B8*BF16[1,128]"; the fingerprint's, so pinned. */
const char *od_mat_type_text(const struct od_mat_type *t, char buf[OD_MAT_TYPE_CHARS]);

/* ---- as published, and in a pack ---- */

uint64_t od_mat_row_bytes(const struct od_mat_type *t, uint64_t n_in); /* of weights or codes */
/* Rows of scales for weight rows [row, row + n_rows), and the first of them. */
uint64_t od_mat_scale_row(const struct od_mat_type *t, uint64_t row);
uint64_t od_mat_scale_rows(const struct od_mat_type *t, uint64_t row, uint64_t n_rows);
uint64_t od_mat_scale_row_bytes(const struct od_mat_type *t, uint64_t n_in); /* of a row of scales */
uint64_t od_mat_divisor_bytes(const struct od_mat_type *t);
/* Of rows [row, row + n_rows): weights, divisor, rows of scales. */
uint64_t od_mat_bytes(const struct od_mat_type *t, uint64_t n_in, uint64_t row, uint64_t n_rows);

/* ---- in memory ---- */

/* A matrix of n_rows in memory, aligned to OD_PAD_BYTES: its weights and, padded, its divisor and scales. */
uint64_t od_mat_memory_bytes(const struct od_mat_type *t, uint64_t n_rows, uint64_t n_in);
void od_mat_bind(struct od_mat *w, const struct od_mat_type *t, uint64_t n_rows, uint64_t n_in, const void *memory);
/* The same of memory on a device. */
void od_weight_bind(struct od_weight *w, const struct od_mat_type *t, uint64_t n_rows, uint64_t n_in, struct od_ref memory);
/* What od_mat_bytes has behind the weights of rows [row, row + n) to rows [at, at + n) of memory, which holds n_rows; the
 * divisor only with the first of these, so that several threads may fill one memory. */
void od_mat_put_scales(const struct od_mat_type *t, uint64_t n_rows, uint64_t n_in, void *memory, uint64_t at, uint64_t row,
		       uint64_t n, const uint8_t *from);

#endif

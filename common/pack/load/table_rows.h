/* table_rows.h - an embedding table that stays in the pack's file: a step needs only its tokens' rows.
 *
 * The whole table is read once, to check it like any other tensor. A checksum of each row is kept, so that a row that
 * is read later is known to be the one that was checked.
 * Thread: od_table_rows_read: any. Owner: the caller of open; the pack outlives it. */
#ifndef OD_PACK_TABLE_ROWS_H
#define OD_PACK_TABLE_ROWS_H

#include "common/pack/manifest.h"
#include "common/pack/pack.h"

struct od_table_rows;

/* t: a matrix without scales, in the pack's manifest. */
OD_MUST_CHECK int od_table_rows_open(struct od_table_rows **out, const struct od_pack *p,
				     const struct od_dense_tensor *t, struct od_err *err);
void od_table_rows_close(struct od_table_rows *r); /* NULL ok */
/* Memory that an open table takes. */
uint64_t od_table_rows_bytes(const struct od_dense_tensor *t);
/* The read function of an od_row_reader (weights.h) whose arg is a struct od_table_rows. A read that fails, or gives
 * other bytes than those that were checked, is tried again before it is an error. */
OD_MUST_CHECK int od_table_rows_read(void *arg, uint32_t row, void *to, struct od_err *err);

#endif

/* dense_load.h - loads a pack's dense weights into device memory and checks them. Embedding tables can stay in the
 * file.
 *
 * Thread: the one of the device's compute queue. Owner: od_dense_load's caller. */
#ifndef OD_PACK_DENSE_LOAD_H
#define OD_PACK_DENSE_LOAD_H

#include "common/compute/card_split.h"
#include "common/pack/pack.h"

struct od_dense_store;

enum od_dense_choice {
	OD_DENSE_ALL,
	OD_DENSE_UNQUANTISED, /* without the matrices that a shadow stores in its own precision (od_role_quantised) */
	OD_DENSE_WITHOUT_TABLES, /* embedding tables stay in the file, unless they are the head as well */
};

/* Tables that stay in the file have a reader instead (weights.h); p outlives it. */
OD_MUST_CHECK int od_dense_load(struct od_dense_store **out, const struct od_pack *p, struct od_device *d,
				enum od_dense_choice choice, struct od_err *err);
void od_dense_free(struct od_dense_store *s); /* NULL ok */
const struct od_dense *od_dense_get(const struct od_dense_store *s); /* borrowed */
/* The memory that od_dense_load will take. */
uint64_t od_dense_need_bytes(const struct od_pack *p, enum od_dense_choice choice);
/* Adds the same where it belongs. */
void od_dense_split(const struct od_pack *p, enum od_dense_choice choice, struct od_split *s);
/* Bytes of a row of the table with this role, if it stays in the file; else 0. */
uint64_t od_dense_row_bytes(const struct od_pack *p, enum od_dense_choice choice, enum od_role role);
/* Bytes that a token reads: all weights, but only one row of the embedding. A tied embedding is also read in full, as
 * head. */
uint64_t od_dense_token_bytes(const struct od_pack *p);

#endif

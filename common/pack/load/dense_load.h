/* dense_load.h - loads a pack's dense weights into device memory and checks them. Embedding tables can stay in the
 * file.
 *
 * Thread: the one of the device's compute queue. Owner: od_dense_load's caller. */
#ifndef OD_PACK_DENSE_LOAD_H
#define OD_PACK_DENSE_LOAD_H

#include "common/compute/card_split.h"
#include "common/pack/load/dense_plan.h"
#include "common/pack/load/dense_stream.h"
#include "common/pack/pack.h"

struct od_dense_store;

enum od_dense_choice {
	OD_DENSE_ALL,
	OD_DENSE_UNQUANTISED, /* without the matrices that a shadow stores in its own precision (od_role_quantised) */
	OD_DENSE_WITHOUT_TABLES, /* embedding tables stay in the file, unless they are the head as well */
	/* So do these, and of the matrices of layers and the head what has no room: steps read it (dense_stream.h). The
	 * head is in pieces. */
	OD_DENSE_STREAMED,
};

/* Tables that stay in the file have a reader instead (weights.h); p outlives it. */
OD_MUST_CHECK int od_dense_load(struct od_dense_store **out, const struct od_pack *p, struct od_device *d,
				enum od_dense_choice choice, struct od_err *err);
struct od_dense_room {
	uint64_t bytes; /* for the ring, and for matrices that stay */
	uint64_t host_bytes; /* beside a device with memory of its own: for those that do not stay there */
	bool direct; /* reads in steps go past the page cache, where the file system supports it */
};
/* With OD_DENSE_STREAMED; d is one card. OD_ERR_NOMEM: not even the ring fits. */
OD_MUST_CHECK int od_dense_load_streamed(struct od_dense_store **out, struct od_pack *p, struct od_device *d,
					 const struct od_dense_room *room, struct od_err *err);
/* The room that od_dense_load_streamed needs, and the one that holds all of them. *least is what od_dense_need_bytes
 * and od_dense_split count. */
OD_MUST_CHECK int od_dense_stream_room(const struct od_pack *p, uint64_t *least, uint64_t *most, struct od_err *err);
/* The choice, and what reads weights in steps; NULL: not OD_DENSE_STREAMED. */
const struct od_dense_plan *od_dense_chosen(const struct od_dense_store *s);
const struct od_dense_stream *od_dense_streamed(const struct od_dense_store *s);
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

/* wire_rows.h - the rows of RUNs and of their outputs as they go over the wire: in the profile's number format, each
 * row of a RUN once.
 *
 * Thread: the engine thread. Owner: the caller; memory is allocated by odm_wire_rows_init. */
#ifndef ODM_WIRE_ROWS_H
#define ODM_WIRE_ROWS_H

#include "common/compute/backend.h"
#include "common/model/forward_open.h"
#include "common/net/wire.h"
#include "main-node/cluster/layer_pieces.h"

struct odm_wire_rows {
	const struct od_backend *backend; /* rows to and from the wire's BF16 */
	enum od_profile profile;
	size_t hidden, row_bytes;
	uint32_t top_k;
	/* Scratch of one RUN. */
	Od__RunExpert *expert; /* [n_experts] */
	Od__RunExpert **expert_list; /* [n_experts] */
	uint32_t *row_slot; /* [max_rows]: row of the call -> row of the RUN */
	uint32_t *indices; /* [max_rows * top_k]: RunExpert.rows */
	uint8_t *rows; /* [max_rows][row_bytes] */
};

size_t odm_wire_rows_each(const struct od_config *cfg, enum od_profile profile); /* bytes of a row */
/* The limit of rows of a RUN, and so of a step. */
uint32_t odm_wire_rows_most(const struct od_config *cfg, enum od_profile profile);

OD_MUST_CHECK int odm_wire_rows_init(struct odm_wire_rows *w, const struct od_forward_opts *o, struct od_err *err);
void odm_wire_rows_fini(struct odm_wire_rows *w); /* all zero is fine */

/* The experts of a RUN of these pieces [n] of work, to expert_list, and its rows, to rows. Returns how many rows these
 * are. */
uint32_t odm_wire_rows_run(struct odm_wire_rows *w, const struct od_moe_call *call, const struct odm_pieces *work,
			   struct odm_piece *const *piece, size_t n);
/* A row of an output; bytes need not be aligned. */
void odm_wire_rows_take(struct odm_wire_rows *w, const uint8_t *bytes, float *y);

#endif

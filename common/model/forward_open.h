/* forward_open.h - opens a forward pass over a model, and tells what memory it takes.
 *
 * Thread: as forward.h. Owner: the caller of new; opts and what they point to outlive it. */
#ifndef OD_MODEL_FORWARD_OPEN_H
#define OD_MODEL_FORWARD_OPEN_H

#include "common/model/forward.h"

struct od_forward_opts {
	const struct od_config *config;
	const struct od_dense *dense;
	struct od_device *device;
	struct od_state_pool *state; /* holds all sequences of the rows; made for config and profile; borrowed */
	enum od_profile profile;
	size_t max_rows;
	size_t max_logits; /* rows per od_forward_logits, at most max_rows; 0 is 1 */
	/* Bytes of a row of the embeddings that stay in a file, as dense has them; 0: in memory. */
	uint64_t embed_row_bytes, layer_embed_row_bytes;
	bool head_in_pieces; /* as dense has it */
};

OD_MUST_CHECK int od_forward_new(struct od_forward **out, const struct od_forward_opts *opts, struct od_err *err);
void od_forward_free(struct od_forward *f); /* NULL ok; waits */
/* Memory that od_forward_new will take. state NULL: without the page tables, 2 * od_state_pages(ctx) uint32_t per
 * sequence. device NULL: without the host's copies where it does not map. */
uint64_t od_forward_bytes(const struct od_forward_opts *opts);
void od_forward_split(const struct od_forward_opts *opts, struct od_split *s); /* adds it */

#endif

/* seq_state.h - what a sequence remembers: per layer, keys and values of each position (design section 9).
 *
 * Keys are stored after RoPE. f32 in profile f32, BF16 in profile bf16. Positions [0, length) are committed
 * and never change until truncated.
 * Thread: the one that runs the forward pass. Owner: od_seq_state_new's caller. */
#ifndef OD_MODEL_SEQ_STATE_H
#define OD_MODEL_SEQ_STATE_H

#include "common/compute/backend.h"
#include "common/model/config.h"

struct od_seq_state;

/* Memory of one sequence of ctx positions, in bytes. */
uint64_t od_seq_state_bytes(const struct od_config *cfg, enum od_profile profile, uint32_t ctx);
OD_MUST_CHECK int od_seq_state_new(struct od_seq_state **out, const struct od_config *cfg, enum od_profile profile,
				   uint32_t ctx, struct od_err *err);
void od_seq_state_free(struct od_seq_state *s); /* NULL ok */

uint32_t od_seq_state_ctx(const struct od_seq_state *s);
uint32_t od_seq_state_length(const struct od_seq_state *s);
void od_seq_state_set_length(struct od_seq_state *s, uint32_t length); /* commit, or truncate */

/* Rows as they are stored: [kv_dim] of od_seq_state_dtype each; positions are adjacent, stride
 * od_seq_state_row_bytes. position < ctx, layer < n_layers. */
void *od_seq_state_k(struct od_seq_state *s, uint32_t layer, uint32_t position);
void *od_seq_state_v(struct od_seq_state *s, uint32_t layer, uint32_t position);
enum od_dtype od_seq_state_dtype(const struct od_seq_state *s);
size_t od_seq_state_row_bytes(const struct od_seq_state *s); /* of K or V at one position: kv_dim * dtype */

#endif

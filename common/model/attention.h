/* attention.h - rotary positions and grouped-query attention of one layer, for the rows of a step.
 *
 * Shapes are the configuration's: q and out [n_rows][n_heads * head_dim], k and v [n_rows][kv_dim].
 * Thread: the forward pass's; work is cut over its pool by whole rows and heads. Owner: the caller's buffers. */
#ifndef OD_MODEL_ATTENTION_H
#define OD_MODEL_ATTENTION_H

#include "common/base/pool.h"
#include "common/model/forward.h"

/* inv_freq [head_dim / 2], as Hugging Face has it: 1 / theta^(2i / head_dim), rounded to f32 at each step. */
void od_rope_frequencies(const struct od_config *cfg, float *inv_freq);

/* cos_sin [head_dim]: head_dim / 2 cosines, then as many sines, of position * inv_freq. */
void od_rope_angles(const struct od_config *cfg, const float *inv_freq, uint32_t position, float *cos_sin);

struct od_attention {
	const struct od_backend *backend;
	struct od_pool *pool;
	const struct od_config *config;
	uint32_t layer;
	const struct od_row *rows;
	size_t n_rows;
	float *q, *k, *v;     /* projected rows; q and k are turned in place */
	const float *cos_sin; /* [n_rows][head_dim], of each row's position */
	float *out;
};

/* Turns q and k, writes k and v into the rows' sequence states (rounded to BF16 where they store that), then
 * attends: row i sees its sequence up to and including its own position, the other rows of this step too. */
void od_attention_run(const struct od_attention *a);

#endif

/* weights.h - a model's dense weights on a device, for the forward pass.
 *
 * Thread: immutable once filled. Owner: the store that filled it (pack/dense_load.h, pack/shadow/shadow_load.h), which
 * also owns the buffers. */
#ifndef OD_MODEL_WEIGHTS_H
#define OD_MODEL_WEIGHTS_H

#include "common/compute/ops.h"
#include "common/model/family.h"

struct od_layer_weights {
	/* data nowhere: no such tensor. Vectors: data [n_out], converted to f32 (exact) */
	struct od_weight w[OD_N_ROLES];
};

/* Reads a row of a table that stays in a file. */
struct od_row_reader {
	/* to: [od_row_bytes], the row as it is stored */
	int (*read)(void *arg, uint32_t row, void *to, struct od_err *err);
	void *arg;
};

/* For weights that do not all stay in memory. Stages: the layers, then the pieces of the head. */
struct od_weight_stream {
	/* Waits until the stage's weights are where struct od_dense says. Those of one stage at a time. */
	int (*take)(void *arg, uint32_t stage, struct od_err *err);
	/* All work that uses them is queued. */
	void (*give)(void *arg, uint32_t stage);
	void *arg;
};

struct od_dense {
	struct od_weight embed, head; /* equal when tied; head: data nowhere if it is in pieces */
	struct od_weight *head_piece; /* [n_head_pieces], of its rows in order */
	uint32_t n_head_pieces; /* 0: it is in one */
	struct od_weight_stream stream; /* take NULL: all weights stay */
	struct od_ref final_norm, final_norm_bias, head_bias; /* biases: nowhere if there are none */
	struct od_weight layer_embed, layer_project; /* inputs of layers; data nowhere if there are none */
	struct od_ref layer_project_norm;
	/* For a table that stays in a file: data of its weight is nowhere. read NULL: it is in memory. */
	struct od_row_reader embed_reader, layer_embed_reader;
	struct od_layer_weights *layer; /* [n_layers] */
};

#endif

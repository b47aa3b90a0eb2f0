/* weights.h - weights in memory, as the forward pass and the expert FFN want them.
 *
 * Thread: immutable once filled. Owner: whoever filled it (pack/dense_load.h, the shadow's emulator); the
 * pointers are borrowed from one allocation there. */
#ifndef OD_MODEL_WEIGHTS_H
#define OD_MODEL_WEIGHTS_H

#include "common/compute/backend.h"
#include "common/model/family.h"

struct od_layer_weights {
	const float *attn_norm, *ffn_norm; /* [hidden], widened to f32 (exact) */
	struct od_mat q, k, v, o, router;
};

struct od_dense {
	struct od_mat embed, head; /* head.data == embed.data when tied */
	const float *final_norm;
	struct od_layer_weights *layer; /* [n_layers] */
};

/* The matrices of one expert: [intermediate][hidden], [intermediate][hidden], [hidden][intermediate]. */
struct od_expert {
	struct od_mat mat[OD_N_EXPERT_MATS];
};

#endif

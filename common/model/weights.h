/* weights.h - a model's dense weights on a device, as the forward pass wants them.
 *
 * Thread: immutable once filled. Owner: whoever filled it (pack/dense_load.h, pack/shadow/shadow_load.h); the handles are
 * borrowed from buffers there. */
#ifndef OD_MODEL_WEIGHTS_H
#define OD_MODEL_WEIGHTS_H

#include "common/compute/ops.h"
#include "common/model/family.h"

struct od_layer_weights {
	struct od_weight w[OD_N_ROLES]; /* data nowhere: the layer has none. Vectors: data [n_out], widened to f32 (exact) */
};

struct od_dense {
	struct od_weight embed, head; /* the same place when tied */
	struct od_ref final_norm;
	struct od_layer_weights *layer; /* [n_layers] */
};

#endif

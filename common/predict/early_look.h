/* early_look.h - a layer's router shown a row before its time: as the row is after an earlier layer's attention. The
 * residual stream changes slowly, so that says something about where the row will go.
 *
 * The row is normed as the layer that is asked norms it. Thread: one at a time for each struct. Owner: the caller's. */
#ifndef OD_PREDICT_EARLY_LOOK_H
#define OD_PREDICT_EARLY_LOOK_H

#include "common/base/pool.h"
#include "common/model/weights.h"

struct od_early_look {
	const struct od_config *config;
	const struct od_dense *dense;
	const struct od_backend *backend;
	struct od_pool *pool; /* NULL: the caller's thread only */
	float *x;	      /* [hidden], scratch */
};

/* probability [n_experts] by the router of layer at; residual [hidden]: what goes on to the next layer but for the
 * experts' outputs. */
static inline void od_early_look(const struct od_early_look *l, uint32_t at, const float *residual, float *probability)
{
	const struct od_layer_weights *w = &l->dense->layer[at];

	l->backend->rmsnorm(l->x, residual, w->ffn_norm, l->config->hidden, l->config->rms_eps);
	od_matmul(l->backend, l->pool, &w->router, l->x, probability, 1);
	l->backend->softmax(probability, l->config->n_experts);
}

#endif

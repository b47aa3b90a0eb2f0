/* router.h - from router logits to the chosen experts and their weights. Thread: any. */
#ifndef OD_MODEL_ROUTER_H
#define OD_MODEL_ROUTER_H

#include "common/compute/backend.h"
#include "common/model/config.h"

/* logits [n_experts] (overwritten by probabilities) -> expert [top_k] best first, weight [top_k], margin:
 * probability of the k-th less that of the next. Ties go to the lower expert index. */
void od_router_choose(const struct od_backend *be, const struct od_config *cfg, float *logits, uint16_t *expert,
		      float *weight, float *margin);

/* The n (at most n_experts) experts with the greatest scores, best first; ties go to the lower index. Whatever the scores
 * are, NaN included, the experts differ from each other. */
void od_router_rank(const float *score, size_t n_experts, uint16_t *expert, size_t n);

#endif

/* random_predictor.h - experts drawn at random: the baseline of a prefetch without knowledge (OD-MoE section 4.2, case
 * 5).
 * Thread: pure. */
#ifndef OD_BENCH_RANDOM_PREDICTOR_H
#define OD_BENCH_RANDOM_PREDICTOR_H

#include "common/predict/predictor.h"

/* k different experts of n_experts (k <= n_experts), the same for the same step and layer. */
void od_predict_random(uint64_t step, uint32_t layer, uint32_t n_experts, uint32_t k, uint16_t *expert);

od_predictor_make_fn od_random_new;

#endif

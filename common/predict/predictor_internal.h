/* predictor_internal.h - what the predictors share: the step they are in, and how scores become a prediction.
 *
 * Thread: the predictor's. Owner: every predictor begins with a struct od_predictor_base. */
#ifndef OD_PREDICT_PREDICTOR_INTERNAL_H
#define OD_PREDICT_PREDICTOR_INTERNAL_H

#include "common/predict/predictor.h"

struct od_predictor_base {
	struct od_predictor p; /* first */
	struct od_predictor_opts o;
	struct od_predict_step step;
};

/* Emits what the scores [n_experts] say of (row, m): the candidates with the greatest ones, and each one's share of the
 * sum of all as its probability. Scores are not negative; when all are 0 nothing is known and nothing said. */
void od_predictor_say(const struct od_predictor_base *b, size_t row, uint32_t m, const float *score);

/* The kinds. *out is NULL unless OD_OK. */
typedef int od_predictor_make_fn(struct od_predictor **out, const struct od_predictor_opts *opts, struct od_err *err);
od_predictor_make_fn od_next_gate_new, od_multi_gate_new, od_popularity_new, od_history_new, od_trajectory_new,
	od_random_new;

#endif

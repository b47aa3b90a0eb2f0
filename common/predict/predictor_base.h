/* predictor_base.h - what the predictors share: how scores become a prediction.
 *
 * Thread: the predictor's. Owner: every predictor begins with a struct od_predictor_base. */
#ifndef OD_PREDICT_PREDICTOR_BASE_H
#define OD_PREDICT_PREDICTOR_BASE_H

#include "common/predict/predictor.h"

struct od_predictor_base {
	struct od_predictor p; /* first */
	struct od_predictor_opts o;
};

/* Emits what the scores [n_experts] say of (row, m): the candidates with the greatest ones, and each one's share of the
 * sum of all as its probability. Scores are not negative; when all are 0 nothing is known and nothing said. */
void od_predictor_say(const struct od_predictor_base *b, const struct od_predict_row *row, uint32_t m, const float *score);

#endif

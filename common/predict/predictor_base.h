/* predictor_base.h - shared by the predictors: turns scores into a prediction.
 *
 * Thread: the predictor's. Owner: every predictor begins with a struct od_predictor_base. */
#ifndef OD_PREDICT_PREDICTOR_BASE_H
#define OD_PREDICT_PREDICTOR_BASE_H

#include "common/predict/predictor.h"

struct od_predictor_base {
	struct od_predictor p; /* first */
	struct od_predictor_opts o;
};

/* Emits a prediction for (row, m): the experts with the highest scores [n_experts], each with its share of the sum of
 * all scores as probability. Scores are not negative; if all are 0, nothing is emitted. */
void od_predictor_say(const struct od_predictor_base *b, const struct od_predict_row *row, uint32_t m,
		      const float *score);

#endif

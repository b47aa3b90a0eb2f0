/* prediction.h - the predicted experts of one row at one MoE layer.
 *
 * It belongs to (sequence, position, token, m), whichever step runs that position and whichever other rows are in it.
 * Experts are listed best first with predicted router probabilities. The first top_k are the prediction, the rest its
 * runners-up. Main decides which ones to load.
 * Thread: plain data; pointers are borrowed for the length of a call. */
#ifndef OD_PREDICT_PREDICTION_H
#define OD_PREDICT_PREDICTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/model/config.h"

#define OD_MAX_RUNNERS_UP 6
#define OD_MAX_CANDIDATES (OD_MAX_TOP_K + OD_MAX_RUNNERS_UP)

struct od_prediction {
	uint64_t sequence;
	uint32_t position;
	int32_t token; /* assumed at that position */
	float margin; /* the token's, if the shadow drew it: see od_sampler_sample; else 0 */
	uint32_t m;
	size_t n; /* top_k to OD_MAX_CANDIDATES */
	const uint16_t *expert; /* [n], all different, best first */
	const float *probability; /* [n], in descending order; NULL: unknown */
	bool stand_in; /* from main's own predictor beside a shadow: used until the shadow predicts the row */
};

/* Checks that the layer and the experts exist in the model, that n is in range, and that no expert repeats. Reads
 * expert [n], at most OD_MAX_CANDIDATES of them. */
OD_MUST_CHECK int od_prediction_check(const struct od_prediction *p, const struct od_config *c, struct od_err *err);

/* Number of experts in a prediction: top-k and OD_MAX_RUNNERS_UP runners-up, or all experts of a small model. */
static inline size_t od_prediction_candidates(const struct od_config *cfg)
{
	size_t n = cfg->top_k + OD_MAX_RUNNERS_UP;

	return n < cfg->n_experts ? n : cfg->n_experts;
}

#endif

/* prediction.h - one row's experts at one MoE layer, as somebody who has not seen main's router expects them.
 *
 * It belongs to (sequence, position, token, m), whichever step main runs that position in and whoever else is there.
 * Whoever predicts says how sure it is: experts stand best first with the router probabilities that they were given,
 * the first top_k are the prediction and the rest its runners-up. Main decides what is loaded.
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
	int32_t token; /* that it assumes there */
	uint32_t m;
	size_t n;		  /* top_k at least, OD_MAX_CANDIDATES at most */
	const uint16_t *expert;	  /* [n], all different, best first */
	const float *probability; /* [n], not growing; NULL: the predictor cannot tell */
	bool stand_in; /* of main's own predictor beside the shadow: it counts while the shadow has said nothing of the row */
};

/* Layer and experts are the model's, and as many as a prediction has; none stands there twice. expert: n of them, or
 * OD_MAX_CANDIDATES when n is greater. */
OD_MUST_CHECK int od_prediction_check(const struct od_prediction *p, const struct od_config *c, struct od_err *err);

/* How many experts a prediction names: all of a small model, top-k and some runners-up of a large one. */
static inline size_t od_prediction_candidates(const struct od_config *cfg)
{
	size_t n = cfg->top_k + OD_MAX_RUNNERS_UP;

	return n < cfg->n_experts ? n : cfg->n_experts;
}

#endif

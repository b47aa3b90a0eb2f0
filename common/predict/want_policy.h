/* want_policy.h - from what was predicted for a row at a layer to the experts to want: the prediction, and *hedges*,
 * runners-up that are likely to be needed instead.
 *
 * Noise. The shadow's router errs by a noise on its logits that is the same from token to token but grows from layer to
 * layer. Main sees the true logits a moment later, so it learns the noise sigma(m) of every layer. How likely runner-up j
 * is needed in place of the k-th expert follows from z = (logit of the k-th - logit of j) / sigma(m) alone: no other
 * measure of a margin orders misses better.
 *
 * Budget. Runners-up are hedges while their z is below a threshold. The threshold follows a budget of wasted loads per
 * expert use. Wrong predictions are paid from it as well, and no hedge is made that could not be paid.
 *
 * Thread: its owner's. Owner: od_want_policy_new's caller; no memory is taken later. */
#ifndef OD_PREDICT_WANT_POLICY_H
#define OD_PREDICT_WANT_POLICY_H

#include <stdbool.h>

#include "common/base/status.h"
#include "common/predict/prediction.h"

#define OD_MAX_HEDGES 4 /* of a row at a layer */

/* The experts that a prediction names, best first. */
struct od_candidates {
	uint16_t n; /* 0: there is no prediction */
	bool has_logit;
	uint16_t expert[OD_MAX_CANDIDATES];
	float logit[OD_MAX_CANDIDATES]; /* logarithms of the probabilities */
};

/* The experts to want of it. */
struct od_wanted {
	uint16_t n_predicted, n;
	uint16_t expert[OD_MAX_TOP_K + OD_MAX_HEDGES]; /* the prediction, best first; then hedges, the likeliest first */
};

struct od_want_policy;

/* hedge: the budget, wasted loads over expert uses; 0: no hedges. *out is NULL unless OD_OK. */
OD_MUST_CHECK int od_want_policy_new(struct od_want_policy **out, double hedge, uint32_t n_moe, uint32_t top_k,
				     struct od_err *err);
void od_want_policy_free(struct od_want_policy *p); /* NULL ok */

/* The prediction's numbers are in range; probabilities may be anything. */
void od_candidates_set(struct od_candidates *c, const struct od_prediction *p);

/* *w: what was wanted of the row until now, or all zero; gets what is wanted now. The budget of its hedges is reserved
 * until the row is decided again, learnt from or given up. */
void od_want_decide(struct od_want_policy *p, uint32_t m, const struct od_candidates *c, struct od_wanted *w);
/* The row is void: another token was chosen. *w becomes empty. */
void od_want_give_up(struct od_want_policy *p, struct od_wanted *w);
/* The router has spoken: probability [n_experts] by its softmax, NULL: not known. *w becomes empty. */
void od_want_learn(struct od_want_policy *p, uint32_t m, const struct od_candidates *c, const float *probability,
		   struct od_wanted *w);
/* Of a layer that is over: uses of experts by all its rows, and experts that were wanted of any worker and not used. What may
 * be saved up, or spent ahead, and how fast the threshold moves is by the row. */
void od_want_spent(struct od_want_policy *p, size_t uses, size_t wasted);

double od_want_sigma(const struct od_want_policy *p, uint32_t m); /* noise of a layer's logits as learnt; 0: not yet */
double od_want_threshold(const struct od_want_policy *p);

#endif

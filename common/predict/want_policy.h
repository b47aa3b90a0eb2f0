/* want_policy.h - chooses the experts to prefetch for a row at a layer: the prediction, and hedges (runners-up that are
 * likely to be needed instead).
 *
 * Noise. The logits of the shadow's router have noise with a constant spread over tokens that grows from layer to
 * layer. Main sees the true logits a moment later and so learns the noise sigma(m) of every layer. The probability that
 * runner-up j replaces the k-th expert depends only on z = (logit of the k-th - logit of j) / sigma(m): no other
 * measure of the margin orders misses better.
 *
 * Budget. Runners-up with z below a threshold become hedges. The threshold follows a budget of wasted loads per expert
 * use. Wrong predictions are charged to the same budget, and a hedge that exceeds it is not made.
 *
 * Thread: the owner's. Owner: od_want_policy_new's caller; no allocation later. */
#ifndef OD_PREDICT_WANT_POLICY_H
#define OD_PREDICT_WANT_POLICY_H

#include <stdbool.h>

#include "common/base/status.h"
#include "common/predict/prediction.h"

#define OD_MAX_HEDGES 4 /* per row and layer */

/* The experts of a prediction, best first. */
struct od_candidates {
	uint16_t n; /* 0: no prediction */
	bool has_logit;
	uint16_t expert[OD_MAX_CANDIDATES];
	float logit[OD_MAX_CANDIDATES]; /* logarithms of the probabilities */
};

/* The experts to prefetch for it. */
struct od_wanted {
	uint16_t n_predicted, n;
	/* the prediction, best first; then hedges, the likeliest first */
	uint16_t expert[OD_MAX_TOP_K + OD_MAX_HEDGES];
};

struct od_want_policy;

/* hedge: the budget, wasted loads per expert use; 0: no hedges. *out is NULL unless OD_OK. */
OD_MUST_CHECK int od_want_policy_new(struct od_want_policy **out, double hedge, uint32_t n_moe, uint32_t top_k,
				     struct od_err *err);
void od_want_policy_free(struct od_want_policy *p); /* NULL ok */

/* The caller has checked the prediction's numbers (od_prediction_check); probabilities may be anything. */
void od_candidates_set(struct od_candidates *c, const struct od_prediction *p);

/* *w: in: the row's previous choice, or all zero; out: the new one. Reserves budget for its hedges until the row's next
 * od_want_decide, od_want_learn or od_want_give_up. */
void od_want_decide(struct od_want_policy *p, uint32_t m, const struct od_candidates *c, struct od_wanted *w);
/* The row is void: another token was chosen. *w becomes empty. */
void od_want_give_up(struct od_want_policy *p, struct od_wanted *w);
/* The router has chosen. probability [n_experts]: its own, NULL: unknown. *w becomes empty. */
void od_want_learn(struct od_want_policy *p, uint32_t m, const struct od_candidates *c, const float *probability,
		   struct od_wanted *w);
/* A layer has finished. uses: expert uses of all its rows; wasted: experts wanted from any worker and not used. The
 * limits on saved and overdrawn budget, and the threshold's speed, are per row. */
void od_want_spent(struct od_want_policy *p, size_t uses, size_t wasted);

/* learnt noise of a layer's logits; 0: not learnt yet */
double od_want_sigma(const struct od_want_policy *p, uint32_t m);
double od_want_threshold(const struct od_want_policy *p);

#endif

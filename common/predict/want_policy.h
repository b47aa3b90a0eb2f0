/* want_policy.h - from what is known about a row at a layer to the experts to want: the prediction, corrected, and what
 * is wanted beside it in case it errs.
 *
 * How sure. The shadow's router errs by a noise on its logits that is the same from token to token but grows from layer to
 * layer. Main sees the truth a moment later, so it learns the noise sigma(m) of every layer. How likely expert j is
 * needed in place of the k-th then follows from z = (logit of the k-th - logit of j) / sigma(m) alone: no other measure
 * of a margin orders misses better.
 *
 * Hedging. Candidates behind the prediction are wanted too while their z is below a threshold. The threshold follows a
 * budget: loads in vain over uses of experts. Wrong predictions are paid from it as well, and no hedge is made that could
 * not be paid.
 *
 * Correcting. What main's own next-gate says of a layer ahead is far less right than the shadow. But the shadow can ask
 * the same question of its own row (struct od_prediction, early): the difference of the two answers shows what the
 * shadow's row has gone wrong by. So corrected logit = shadow's + weight(m, lead) * (main's early - shadow's early), with
 * weights by least squares, and a sigma of its own, both learnt on the way.
 *
 * Thread: its owner's. Owner: od_want_policy_new's caller; no memory is taken later. */
#ifndef OD_PREDICT_WANT_POLICY_H
#define OD_PREDICT_WANT_POLICY_H

#include <stdbool.h>

#include "common/base/status.h"
#include "common/predict/prediction.h"

#define OD_MAX_HEDGES 4 /* of a row at a layer */

struct od_want_opts {
	double hedge; /* loads in vain over uses that hedging may bring them up to; 0: none */
	bool correct; /* by the second opinion */
};

/* What somebody said about a row at a layer. */
struct od_said {
	uint16_t n; /* 0: nothing */
	uint16_t n_early;
	bool has_logit;
	uint16_t expert[OD_MAX_CANDIDATES]; /* best first */
	float logit[OD_MAX_CANDIDATES];	    /* logarithms of the probabilities */
	float early[OD_MAX_EARLY][OD_MAX_CANDIDATES]; /* [i]: of the row as it was i + 1 layers before, n_early of them */
};

/* All that is known about a row at a layer. */
struct od_row_said {
	struct od_said first;
	struct od_said second[OD_MAX_EARLY]; /* [i]: said i + 1 layers before, the last: or earlier; not known when: [0] */
};

/* What to want of it. */
struct od_wanted {
	uint16_t n_predicted, n;
	uint16_t expert[OD_MAX_TOP_K + OD_MAX_HEDGES]; /* the prediction, best first; then hedges, the likeliest first */
	bool corrected; /* the prediction is another set than the first opinion's */
	bool stands_in; /* it is not the first opinion's at all */
};

struct od_want_policy;

/* *out is NULL unless OD_OK. */
OD_MUST_CHECK int od_want_policy_new(struct od_want_policy **out, const struct od_want_opts *opts, uint32_t n_layers,
				     uint32_t top_k, struct od_err *err);
void od_want_policy_free(struct od_want_policy *p); /* NULL ok */

/* The prediction's numbers are in range; probabilities may be anything. */
void od_said_set(struct od_said *s, const struct od_prediction *p);
void od_row_said_add(struct od_row_said *r, const struct od_prediction *p);

/* *w: what was wanted of the row until now, or all zero; gets what is wanted now. Every hedge in it is set aside for, until
 * the row is decided again, learnt from or given up. */
void od_want_decide(struct od_want_policy *p, uint32_t m, const struct od_row_said *said, struct od_wanted *w);
/* The row is void: another token was chosen. *w becomes empty. */
void od_want_give_up(struct od_want_policy *p, struct od_wanted *w);
/* The router has spoken: probability [n_experts] by its softmax, NULL: not known. *w becomes empty. */
void od_want_learn(struct od_want_policy *p, uint32_t m, const struct od_row_said *said, const float *probability,
		   struct od_wanted *w);
/* Of a layer that is over: uses of experts, and experts that were wanted of any worker and not used. */
void od_want_spent(struct od_want_policy *p, size_t uses, size_t in_vain);

/* The noise of a layer's logits as learnt; 0: not yet. lead 0: of the first opinion, else corrected with that lead. */
double od_want_sigma(const struct od_want_policy *p, uint32_t m, uint32_t lead);
double od_want_weight(const struct od_want_policy *p, uint32_t m, uint32_t lead);
double od_want_threshold(const struct od_want_policy *p);

#endif

/* predictions.h - what is predicted for the steps under way, where it is being loaded, and how good it was.
 *
 * A table of (step, m): what the shadow (or main's own predictor) predicted for each row, which experts are wanted for it
 * (common/predict/want_policy.h decides), the worker that each of them was WANTed from, and what the router then chose.
 * Predictions for a step may come before main begins it (the shadow runs ahead on its own token); they are kept with the
 * token they assumed and discarded if main's differs.
 * Thread: a monitor (mutex inside, no I/O and no callback under it). The loop thread records predictions and sends
 * WANTs; the engine thread begins steps and resolves layers. */
#ifndef ODM_PREDICTIONS_H
#define ODM_PREDICTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/predict/prediction.h"
#include "common/predict/recall.h"
#include "common/predict/want_policy.h"
#include "main-node/engine/figures.h"

#define ODM_STEPS_KEPT 8 /* steps in the table; the newest wins */

struct odm_predictions;

struct odm_predictions_opts {
	uint32_t n_moe, n_experts, top_k;
	uint32_t max_rows;   /* of a decode step */
	uint32_t max_tokens; /* token indices that recall is kept for */
	double hedge;	     /* budget of wasted loads over expert uses; 0: no hedges */
};

/* The experts that are wanted of a layer: the prediction in order of rank, then hedges. */
struct odm_want {
	uint64_t step;
	uint32_t m, version; /* grows with each want of the same (step, m) */
	size_t n_predicted, n;
	uint16_t *expert; /* [n_experts], the caller's */
	uint32_t *worker; /* the same: where each is on its way so far (ODM_NOBODY: nowhere yet) */
};

OD_MUST_CHECK int odm_predictions_new(struct odm_predictions **out, const struct odm_predictions_opts *opts,
				      struct od_err *err);
void odm_predictions_free(struct odm_predictions *p); /* NULL ok */

/* Loop thread (the shadow) or engine thread (predictors of main's own). True when a WANT should follow:
 * odm_predictions_take_want. False: late, stale, for a token that was not chosen, or nothing that changes what is wanted.
 * A stand-in is heard while the shadow has said nothing of the row. Its layer and experts have been checked
 * (od_prediction_check). */
bool odm_predictions_add(struct odm_predictions *p, const struct od_prediction *pred);

/* Any thread: the shadow has not spoken of this step nor of the two before it, of a text. */
bool odm_predictions_shadow_silent(struct odm_predictions *p, uint64_t step);

/* Engine thread: step begins with these tokens [n_rows] (-1: predictions may assume any); token_index: which generated
 * token the rows are. scored: recall is counted (decode). */
void odm_predictions_begin(struct odm_predictions *p, uint64_t step, const int32_t *token, size_t n_rows,
			   uint32_t token_index, bool scored);

/* Engine thread: experts that will certainly be needed at (step, m), without scoring (prefill). */
void odm_predictions_require(struct odm_predictions *p, uint64_t step, uint32_t m, const uint16_t *expert, size_t n);

/* The same of every expert of the layer. */
void odm_predictions_require_all(struct odm_predictions *p, uint64_t step, uint32_t m);

/* Loop thread: the next (step, m) whose WANTs have changed. False when there is none. */
bool odm_predictions_take_want(struct odm_predictions *p, struct odm_want *w);
/* Loop thread: its WANTs are sent; w->worker says where each expert is wanted now (members' ids, stable over epochs). False:
 * the router has spoken meanwhile, and whoever asked where they are may have missed these. */
bool odm_predictions_placed(struct odm_predictions *p, const struct odm_want *w);

/* Engine thread: the router has spoken. used [n_rows that the step began with][top_k]. No WANT for (step, m) will be taken
 * any more: odm_predictions_where is what dealing needs. */
void odm_predictions_resolve(struct odm_predictions *p, uint64_t step, uint32_t m, const uint16_t *used);
/* Engine thread, after that, and before anything is predicted from this router: counts recall and learns. probability
 * [n_rows][n_experts] by its softmax, NULL: not known. It may wait until the RUNs are sent. */
void odm_predictions_learn(struct odm_predictions *p, uint64_t step, uint32_t m, const float *probability);
/* Engine thread: the member where an expert was wanted; ODM_NOBODY. */
uint32_t odm_predictions_where(struct odm_predictions *p, uint64_t step, uint32_t m, uint16_t expert);
/* Engine thread, after odm_predictions_resolve: the same if its WANT had been sent when the router spoke. */
uint32_t odm_predictions_ordered(struct odm_predictions *p, uint64_t step, uint32_t m, uint16_t expert);

/* Engine thread, between steps: what was counted in scored steps since the last call is added to c, and to r in detail
 * (od_recall_init; NULL: not wanted). Recall leaves out what a stand-in predicted: it says how good the shadow is on a
 * machine of any speed. first_ns: how long after the beginning of a step, when its STEP is sent, its first prediction with
 * the right token came (negative: the shadow had run ahead); of the OD_C_FIRST_PREDICTIONS steps, 0 without any.
 * What still comes late for those steps is not counted. */
void odm_predictions_take(struct odm_predictions *p, uint64_t *c, struct odm_spread *first_ns, struct od_recall *r);

#endif

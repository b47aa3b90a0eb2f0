/* predictions.h - what is predicted for the steps under way, where it is being loaded, and how good it was.
 *
 * A table of (step, m): the shadow's (or another predictor's) experts per row, the worker that each of them was
 * WANTed from, and what the router then chose. Predictions for a step may come before main begins it (the shadow runs
 * ahead on its own token); they are kept with the token they assumed and discarded if main's differs.
 * Thread: a monitor (mutex inside, no I/O and no callback under it). The loop thread records predictions and sends
 * WANTs; the engine thread begins steps and resolves layers. */
#ifndef ODM_PREDICTIONS_H
#define ODM_PREDICTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/predict/prediction.h"
#include "common/predict/recall.h"

#define ODM_STEPS_KEPT 8 /* steps in the table; the newest wins */

struct odm_predictions;

/* When predictions came, over the steps that were scored. */
struct odm_prediction_times {
	/* From the beginning of the step, when its STEP is sent, to its first prediction with the right token: negative
	 * where the shadow had run ahead. */
	uint64_t steps; /* that had one */
	int64_t first_min_ns, first_median_ns, first_max_ns;
	/* At each router of a layer that was predicted in time: layers from it to the newest one that was predicted. */
	uint64_t lead_layers, lead_routers; /* sum, and of how many */
};

struct odm_predictions_opts {
	uint32_t n_layers, n_experts, top_k;
	uint32_t max_rows;   /* of a decode step */
	uint32_t max_tokens; /* token indices that recall is kept for */
};

OD_MUST_CHECK int odm_predictions_new(struct odm_predictions **out, const struct odm_predictions_opts *opts,
				      struct od_err *err);
void odm_predictions_free(struct odm_predictions *p); /* NULL ok */

/* Loop thread (the shadow) or engine thread (predictors of main's own). True when a WANT should follow:
 * odm_predictions_take_want. False: late, stale, for a token that was not chosen, nothing new, or a second opinion where
 * there is a first. */
bool odm_predictions_add(struct odm_predictions *p, const struct od_prediction *pred);

/* Engine thread: step begins with these tokens [n_rows] (-1: predictions may assume any); token_index: which generated token the rows are.
 * scored: recall is counted (decode). */
void odm_predictions_begin(struct odm_predictions *p, uint64_t step, const int32_t *token, size_t n_rows,
			   uint32_t token_index, bool scored);

/* Engine thread: experts that will certainly be needed at (step, m), without scoring (prefill). */
void odm_predictions_require(struct odm_predictions *p, uint64_t step, uint32_t m, const uint16_t *expert, size_t n);

/* The same of every expert of the layer. */
void odm_predictions_require_all(struct odm_predictions *p, uint64_t step, uint32_t m);

/* Loop thread: the next (step, m) whose WANTs have changed. False when there is none.
 * wanted [n_experts] gets the experts in order of rank, *n their number; worker [n] where each is wanted so far
 * (ODM_NOBODY: not yet); *version grows with each call for the same (step, m). */
bool odm_predictions_take_want(struct odm_predictions *p, uint64_t *step, uint32_t *m, uint32_t *version,
			       uint16_t *wanted, uint32_t *worker, size_t *n, bool *prefill);
/* Loop thread: where they are wanted now (members' ids, stable over epochs). */
void odm_predictions_placed(struct odm_predictions *p, uint64_t step, uint32_t m, const uint16_t *expert,
			    const uint32_t *worker, size_t n);

/* Engine thread: the router has spoken; counts recall of every row. used [n_rows][top_k]. No WANT for (step, m) will
 * be taken any more. */
void odm_predictions_resolve(struct odm_predictions *p, uint64_t step, uint32_t m, const uint16_t *used,
			     size_t n_rows);
/* Engine thread: the member where an expert was wanted; ODM_NOBODY. */
uint32_t odm_predictions_where(struct odm_predictions *p, uint64_t step, uint32_t m, uint16_t expert);

/* Engine thread, between steps: figures since the last call. Recall is added to r (od_recall_init). What still comes late
 * for those steps is not counted. */
void odm_predictions_take_figures(struct odm_predictions *p, struct od_recall *r, struct odm_prediction_times *times);

#endif

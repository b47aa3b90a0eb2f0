/* prediction_wants.h - the WANTs of the table of predictions (predictions.h): experts that are wanted, or certain to be
 * needed, and where they are loaded.
 *
 * Thread: as each function says; the table is a monitor. Owner: the table. */
#ifndef ODM_PREDICTION_WANTS_H
#define ODM_PREDICTION_WANTS_H

#include "main-node/predict/predictions.h"

/* The experts wanted for a layer: predictions of the first rows of all sequences in order of rank, then of the second
 * rows, and so on; then hedges. */
struct odm_want {
	uint64_t step;
	uint32_t m, version; /* grows with each want of the same (step, m) */
	bool prompt;
	uint32_t rows; /* about as many for each expert; 0: not known */
	size_t n_predicted, n;
	uint16_t *expert; /* [n_experts], the caller's, as the other arrays are */
	uint32_t *worker; /* [n_experts]: worker where each is in flight; ODM_NOBODY: none */
	uint8_t *rank; /* [n_experts]: in the prediction of its row; top_k: a hedge. NULL: not needed */
	/* The placement of the previous version: a worker whose list is unchanged gets no new WANT. */
	size_t n_before;
	uint16_t *expert_before;
	uint32_t *worker_before;
	/* in: the caller's epoch of the previous placement, 0: none; out: the caller sets its current one */
	uint64_t epoch;
};

/* Engine thread: experts [n] that are certain to be needed at (step, m) of a prefill step; not scored. worker [n]: the
 * members that they are dealt to; NULL: it is not known yet. */
void odm_predictions_require(struct odm_predictions *p, uint64_t step, uint32_t m, const uint16_t *expert,
			     const uint32_t *worker, size_t n);

/* odm_predictions_require for all experts of the layer, each with about so many rows. */
void odm_predictions_require_all(struct odm_predictions *p, uint64_t step, uint32_t m, uint32_t rows);

/* Loop thread: the next (step, m) whose WANTs have changed. False when there is none. */
bool odm_predictions_take_want(struct odm_predictions *p, struct odm_want *w);
/* Loop thread: its WANTs are sent; w->worker has the worker of each expert (members' ids, stable over epochs). False:
 * the router's choice arrived meanwhile, so odm_predictions_where may have been called before this placement. */
bool odm_predictions_placed(struct odm_predictions *p, const struct odm_want *w);

/* Engine thread: the member where the expert was wanted; ODM_NOBODY: none. */
uint32_t odm_predictions_where(struct odm_predictions *p, uint64_t step, uint32_t m, uint16_t expert);
/* Engine thread, after odm_predictions_resolve: the same, only if its WANT was sent before the router chose. */
uint32_t odm_predictions_ordered(struct odm_predictions *p, uint64_t step, uint32_t m, uint16_t expert);

#endif

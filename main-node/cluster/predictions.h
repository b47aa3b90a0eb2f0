/* predictions.h - what is predicted for the steps under way, where it is being loaded, and how good it was.
 *
 * A prediction belongs to (sequence, position, token, m): it stands while that token stands at that position, whoever joins
 * or leaves the step. The table knows which rows the decode step under way has, so it finds the step of a prediction by
 * itself: that one, or the next, for the position behind a sequence's last row (the shadow runs ahead on its own token).
 * What was predicted ahead is kept with the token that it assumed and voided, alone, if main's differs.
 * For a step and layer the table has what the predictions of its rows want (common/predict/want_policy.h decides), their
 * union, the worker that each expert was WANTed from, and what the router then chose.
 *
 * Steps are numbered by main. Of decode steps the table holds the one under way, the one before and the next. A prefill
 * step, which has no rows here, is open beside them: one at a time.
 * Recall and the like are counted for each sequence. What the union of the rows costs (hedges, wasted WANTs) belongs to the
 * step.
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

struct odm_predictions;

struct odm_predictions_opts {
	uint32_t n_moe, n_experts, top_k;
	uint32_t max_sequences; /* open at a time */
	uint32_t max_rows;	/* of a decode step */
	uint32_t max_tokens;	/* token indices that recall is kept for, of each sequence */
	double hedge;		/* budget of wasted loads over expert uses; 0: no hedges */
};

/* A row of a decode step. */
struct odm_predicted_row {
	uint64_t sequence;
	uint32_t position;
	uint32_t prompt_tokens; /* of the sequence: where its generated tokens begin */
	int32_t token;		/* -1: predictions may assume any */
};

/* The experts that are wanted of a layer: the predictions in order of rank, then hedges. */
struct odm_want {
	uint64_t step;
	uint32_t m, version; /* grows with each want of the same (step, m) */
	bool prompt;
	size_t n_predicted, n;
	uint16_t *expert; /* [n_experts], the caller's, as the other arrays are */
	uint32_t *worker; /* the same: where each is on its way so far (ODM_NOBODY: nowhere yet) */
	/* What the version before placed: whoever got the same list then need not hear of this one. */
	size_t n_before;
	uint16_t *expert_before;
	uint32_t *worker_before;
	uint64_t epoch; /* the caller's, when it placed that; 0: nothing was placed. It sets its own. */
};

/* Predictions (of one row at one layer) that were kept and then voided, by reason. */
struct odm_voided {
	uint64_t token;	   /* main chose another token there */
	uint64_t position; /* the next step had no row there */
	uint64_t ended;	   /* the sequence ended first */
	uint64_t replaced; /* by one that assumed another token, or by the shadow's where main's own stood */
};

OD_MUST_CHECK int odm_predictions_new(struct odm_predictions **out, const struct odm_predictions_opts *opts,
				      struct od_err *err);
void odm_predictions_free(struct odm_predictions *p); /* NULL ok */

/* Loop thread (the shadow) or engine thread (predictors of main's own). True when a WANT should follow:
 * odm_predictions_take_want. False: late, of no step that the table holds, for a token that was not chosen, or nothing that
 * changes what is wanted. A stand-in is heard while the shadow has said nothing of the row. Its layer and experts have been
 * checked (od_prediction_check); its sequence and position may be anything. */
bool odm_predictions_add(struct odm_predictions *p, const struct od_prediction *pred);

/* Engine thread: which rows [n_rows] of the decode step under way have a sequence of which the shadow has said nothing, in
 * this step and the two before that it was in. Returns how many; 0, and none, when it is another step. */
size_t odm_predictions_shadow_silent(struct odm_predictions *p, uint64_t step, bool *silent, size_t n_rows);

/* Engine thread: a step begins. A decode step (scored: recall is counted) has these rows: those of a sequence side by side,
 * in order of position, without gaps; a sequence is known from its first row on. next_step: the number that the decode step
 * after it will have, 0: not known. A prefill step (not scored) has none here. */
void odm_predictions_begin(struct odm_predictions *p, uint64_t step, uint64_t next_step, const struct odm_predicted_row *row,
			   size_t n_rows, bool scored);

/* Engine thread: the sequence is over: what was predicted ahead for it is void. Its figures are kept until they are taken or
 * another sequence needs the place. True when WANTs should follow. */
bool odm_predictions_close(struct odm_predictions *p, uint64_t sequence);

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
 * [n_rows][n_experts] by its softmax, NULL: not known. c [OD_N_COUNTERS], NULL: the step's, to which hedges and wasted WANTs
 * of the layer are added. It may wait until the RUNs are sent. */
void odm_predictions_learn(struct odm_predictions *p, uint64_t step, uint32_t m, const float *probability, uint64_t *c);
/* Engine thread: the member where an expert was wanted; ODM_NOBODY. */
uint32_t odm_predictions_where(struct odm_predictions *p, uint64_t step, uint32_t m, uint16_t expert);
/* Engine thread, after odm_predictions_resolve: the same if its WANT had been sent when the router spoke. */
uint32_t odm_predictions_ordered(struct odm_predictions *p, uint64_t step, uint32_t m, uint16_t expert);

/* Engine thread, between steps: what was counted for a sequence since the last call is added to c, and to r in detail
 * (od_recall_init; NULL: not wanted). Recall leaves out what a stand-in predicted: it says how good the shadow is on a
 * machine of any speed. first_ns: how long after the beginning of a step, when its STEP is sent, its first prediction for the
 * sequence with the right token came (negative: the shadow had run ahead); of the OD_C_FIRST_PREDICTIONS steps, 0 without any.
 * What still comes late for those steps is not counted. */
void odm_predictions_take(struct odm_predictions *p, uint64_t sequence, uint64_t *c, struct odm_spread *first_ns,
			  struct od_recall *r);

/* Any thread: of all sequences, since the beginning. */
struct odm_voided odm_predictions_voided(struct odm_predictions *p);

#endif

/* predictions.h - table of the predictions for the current steps: the wanted experts, where they are loaded, and
 * recall.
 *
 * A prediction belongs to (sequence, position, token, m). It is valid while main has that token at that position,
 * whichever other sequences join or leave the step. The table knows the rows of the current decode step, so it finds
 * the step of a prediction: the current one, or for positions after a sequence's last row the next one, or a later one
 * (the shadow runs ahead on its own tokens). A prediction made ahead keeps the token that it assumed. If main's
 * differs, it is voided, and so is what the shadow predicted for the positions behind it.
 * For each step and layer the table has the experts that each row wants (chosen by common/predict/want_policy.h), their
 * union, the worker of each WANT, and the router's choice.
 *
 * Main numbers the steps. The table holds three decode steps: the previous, the current and the next. A prefill step,
 * which has no rows here, may be open beside them: one at a time.
 * Recall and lead are counted per sequence. Costs of the union of the rows (hedges, wasted WANTs) are counted per step.
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
#include "main-node/step/figures.h"
#include "main-node/step/step.h"

struct odm_predictions;

struct odm_predictions_opts {
	uint32_t n_moe, n_experts, top_k;
	uint32_t max_sequences; /* open at a time */
	uint32_t max_rows; /* rows of a decode step */
	uint32_t max_draft; /* a sequence has up to 1 + max_draft rows in a step, and as many are predicted ahead */
	uint32_t max_tokens; /* token indices with separate recall, per sequence */
	double hedge; /* budget: wasted loads per expert use; 0: no hedges */
};

/* A row of a decode step. */
struct odm_predicted_row {
	uint64_t sequence;
	uint32_t position;
	uint32_t prompt_tokens; /* the sequence's: position of its first generated token */
	int32_t token; /* -1: predictions may assume any */
	/* Rows that a sequence may have in the next step; set in its first row. WANTs of that step are for the first of
	 * them, and for those behind it as far as the outlook says. 1: the shadow runs one row ahead. More: predictions
	 * further ahead, for up to max_draft + 1 rows in all, are kept for later steps. */
	uint32_t ahead;
	struct odm_outlook outlook; /* set in a sequence's first row */
};

/* Predictions (one row at one layer each) that are void, by reason. The first four were kept. */
struct odm_voided {
	uint64_t token; /* main chose another token at the position, or at one before it */
	uint64_t position; /* the next step had no row there */
	uint64_t ended; /* the sequence ended first */
	/* by a prediction for another token there or before it, or main's own prediction by the shadow's */
	uint64_t replaced;
	/* the shadow's, never kept: of no open sequence, or for no row of a step in the table or after it */
	uint64_t unknown;
};

OD_MUST_CHECK int odm_predictions_new(struct odm_predictions **out, const struct odm_predictions_opts *opts,
				      struct od_err *err);
void odm_predictions_free(struct odm_predictions *p); /* NULL ok */

/* Loop thread (the shadow's predictions) or engine thread (main's own predictors). True: a WANT should follow
 * (odm_predictions_take_want). False: it is late, for no step in the table, for a token that main did not choose, or it
 * does not change the wanted experts. A stand-in counts only while the shadow has sent nothing for the row. The caller
 * has checked layer and experts (od_prediction_check); sequence and position may be anything. */
bool odm_predictions_add(struct odm_predictions *p, const struct od_prediction *pred);

/* Engine thread: sets silent[i] for rows [n_rows] of the current decode step whose sequence got no prediction from the
 * shadow in this step and its two previous steps. Returns their number. Another step: 0, and all are false. */
size_t odm_predictions_shadow_silent(struct odm_predictions *p, uint64_t step, bool *silent, size_t n_rows);

/* Engine thread: a step begins. A decode step (scored: recall is counted) has these rows; rows of one sequence are
 * adjacent, in order of position, without gaps. A sequence is added with its first row. next_step: the number of the
 * next decode step, 0: unknown. A prefill step (not scored) has no rows here. */
void odm_predictions_begin(struct odm_predictions *p, uint64_t step, uint64_t next_step,
			   const struct odm_predicted_row *row, size_t n_rows, bool scored);

/* Engine thread: the sequence has ended; its predictions ahead become void. Its figures are kept until they are taken
 * or another sequence needs the cell. True: WANTs should follow. */
bool odm_predictions_close(struct odm_predictions *p, uint64_t sequence);

/* Engine thread, after a step and before the next one begins: main undoes the sequence's rows at positions from
 * `length` on, but not its first row. What was counted for them becomes undone_uses and undone_recalled, what was
 * predicted for them and behind them is void, and later predictions for them are not counted. True: WANTs should
 * follow. */
bool odm_predictions_truncate(struct odm_predictions *p, uint64_t sequence, uint32_t length);

/* Engine thread: the router has chosen. used [rows of the step][top_k]. No WANT for (step, m) is taken after this call;
 * odm_predictions_where then gives the placement that dealing needs. */
void odm_predictions_resolve(struct odm_predictions *p, uint64_t step, uint32_t m, const uint16_t *used);
/* Engine thread, after odm_predictions_resolve and before any prediction from this router: counts recall and updates
 * the policy. May be called after the RUNs are sent. probability [n_rows][n_experts]: the router's, NULL: unknown. c
 * [OD_N_COUNTERS]: the step's counters (NULL ok); hedges and wasted WANTs of the layer are added. */
void odm_predictions_learn(struct odm_predictions *p, uint64_t step, uint32_t m, const float *probability, uint64_t *c);
/* Engine thread, after odm_predictions_learn: adds what was predicted for the layer to the step's record, if it has
 * one. */
void odm_predictions_record(struct odm_predictions *p, const struct odm_step *step, uint32_t m);
/* Engine thread, between steps: adds the sequence's counts since the last call to c, and in detail to r
 * (od_recall_init; NULL ok). Recall leaves out stand-in predictions, so that it measures the shadow on a machine of any
 * speed. first_ns: time from the beginning of a step (when its STEP is sent) to its first prediction for the sequence
 * with the right token; negative: the shadow had run ahead. It covers OD_C_FIRST_PREDICTIONS steps; 0 without any.
 * Predictions that arrive late for these steps after this call are not counted. */
void odm_predictions_take(struct odm_predictions *p, uint64_t sequence, uint64_t *c, struct odm_spread *first_ns,
			  struct od_recall *r);

/* Any thread: adds what is counted of sequences that odm_predictions_take was not called for: what only grows. */
void odm_predictions_count_open(struct odm_predictions *p, uint64_t *c);

/* Any thread: voided predictions of all sequences since the start. */
struct odm_voided odm_predictions_voided(struct odm_predictions *p);

#endif

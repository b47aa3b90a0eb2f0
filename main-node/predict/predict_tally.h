/* predict_tally.h - statistics of the predictions for one sequence: recall and lead.
 *
 * Thread: one at a time. Owner: odm_tally_init ... odm_tally_fini by the caller; no allocation in between. */
#ifndef ODM_PREDICT_TALLY_H
#define ODM_PREDICT_TALLY_H

#include "common/predict/recall.h"
#include "main-node/step/figures.h"

struct odm_tally {
	struct od_recall recall; /* the shadow's, or without one that of main's own predictor */
	struct od_recall_cell stood_in; /* main's own predictor while the shadow is silent */
	struct od_recall_cell undone; /* uses of draft rows that were undone; they are in no other figure */
	/* [recall.n_tokens]: time from a step's begin to its first prediction; not kept for later steps */
	int64_t *first_ns;
	uint64_t n_first, lead_sum, lead_routers;
};

/* max_tokens: number of token indices with detail. *t is empty unless OD_OK. */
OD_MUST_CHECK int odm_tally_init(struct odm_tally *t, uint32_t n_moe, uint32_t max_tokens, struct od_err *err);
void odm_tally_fini(struct odm_tally *t); /* all zero is fine */
void odm_tally_reset(struct odm_tally *t);

/* Records a step's first prediction, after_ns after the step began. */
void odm_tally_first(struct odm_tally *t, int64_t after_ns);

/* Adds to c what only grows: all totals but that of missing predictions, which may still come late. */
void odm_tally_count(const struct odm_tally *t, uint64_t *c);
/* Adds the totals to c [OD_N_COUNTERS] and the detail to r (NULL ok). Sorts first_ns. */
void odm_tally_add(struct odm_tally *t, uint64_t *c, struct odm_spread *first_ns, struct od_recall *r);

#endif

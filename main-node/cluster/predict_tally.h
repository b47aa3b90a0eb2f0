/* predict_tally.h - how good and how early the predictions for one sequence were.
 *
 * Thread: its owner's. Owner: odm_tally_init ... odm_tally_fini by the caller; nothing is allocated between. */
#ifndef ODM_PREDICT_TALLY_H
#define ODM_PREDICT_TALLY_H

#include "common/predict/recall.h"
#include "main-node/engine/figures.h"

struct odm_tally {
	struct od_recall recall;	/* of the shadow, or of main's own predictor where there is none */
	struct od_recall_cell stood_in; /* of main's own predictor beside the shadow */
	int64_t *first_ns; /* [recall.n_tokens]: from a step's begin to its first prediction; of later steps it is not kept */
	uint64_t n_first, lead_sum, lead_routers;
};

/* max_tokens: token indices that detail is kept for. *t is empty unless OD_OK. */
OD_MUST_CHECK int odm_tally_init(struct odm_tally *t, uint32_t n_moe, uint32_t max_tokens, struct od_err *err);
void odm_tally_fini(struct odm_tally *t); /* one that is all zero, too */
void odm_tally_reset(struct odm_tally *t);

/* A step that began has a prediction: so long after its beginning. */
void odm_tally_first(struct odm_tally *t, int64_t after_ns);

/* Adds it all to c [OD_N_COUNTERS] and, in detail, to r (NULL: not wanted). Sorts what it has of first_ns. */
void odm_tally_add(struct odm_tally *t, uint64_t *c, struct odm_spread *first_ns, struct od_recall *r);

#endif

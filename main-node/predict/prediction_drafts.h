/* prediction_drafts.h - what the table of predictions (predictions.h) says of a draft.
 *
 * Thread: as each function says; the table is a monitor. Owner: the table. */
#ifndef ODM_PREDICTION_DRAFTS_H
#define ODM_PREDICTION_DRAFTS_H

#include "main-node/predict/predictions.h"

/* Engine thread, between steps. The draft behind (position, token): writes to out and margin, each [max], what the
 * shadow predicted for position + 1 and so on, and returns how many. 0: the shadow predicted another token for
 * `position`, or none. Position: after the sequence's rows. */
size_t odm_predictions_draft(struct odm_predictions *p, uint64_t sequence, uint32_t position, int32_t token,
			     int32_t *out, float *margin, size_t max);
/* Engine thread, between steps: an estimate of what a longer draft costs. experts [n]: entry i is the number of
 * experts, over all layers, that the sequence's rows at `position` to position + i need together if predictions are
 * right. A row without a prediction at a layer counts as top_k experts of its own. */
void odm_predictions_union(struct odm_predictions *p, uint64_t sequence, uint32_t position, size_t n,
			   uint32_t *experts);

#endif

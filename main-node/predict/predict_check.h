/* predict_check.h - validates a shadow's PREDICT before its numbers are used, and adds its rows to the table of
 * predictions (predictions.h).
 *
 * Thread: odm_check_predict is a pure function; odm_add_predict: the loop thread. Owner: nothing is kept of the
 * message. */
#ifndef ODM_PREDICT_CHECK_H
#define ODM_PREDICT_CHECK_H

#include "common/net/wire.h"
#include "main-node/predict/predictions.h"

/* max_rows: rows of a decode step. OD_ERR_RANGE: no rows or too many, a layer, an expert or a token that the model does
 * not have, an expert that repeats, too few or too many experts; OD_ERR_SHAPE: not one probability for each expert. A
 * PREDICT with one bad row is bad as a whole. */
OD_MUST_CHECK int odm_check_predict(const Od__Predict *p, const struct od_config *config, uint32_t max_rows,
				    struct od_err *err);
/* Adds the rows of a PREDICT that odm_check_predict accepted. True: a WANT may follow from it. */
bool odm_add_predict(struct odm_predictions *table, const Od__Predict *p);

#endif

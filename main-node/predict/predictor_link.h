/* predictor_link.h - drives main's own predictor (common/predict/predictor.h) with main's steps: adds its predictions
 * to the table and says when WANTs should follow. With a shadow it predicts only for sequences on which the shadow
 * is silent (stand-in, struct od_prediction).
 *
 * A prefill step and a decode step may be open together. Their owner calls step before the layers, and routed
 * for each layer after its RUNs were sent, so that the predictor works while the workers compute.
 * Thread: the engine thread. Owner: the caller. */
#ifndef ODM_PREDICTOR_LINK_H
#define ODM_PREDICTOR_LINK_H

#include "common/base/id_table.h"
#include "common/model/forward_open.h"
#include "common/predict/predictor.h"
#include "main-node/predict/predictions.h"

struct odm_predictor_link_opts {
	const struct od_predictor_kind *kind; /* NULL: none; all calls do nothing */
	struct odm_predictions *predictions; /* borrowed */
	bool shadow; /* it stands in for a shadow */
	uint32_t max_sequences;
	void (*wants)(void *arg); /* predictions have changed what is wanted: WANTs should follow */
	void *arg;
};

struct odm_predictor_link {
	struct odm_predictor_link_opts o;
	const struct od_config *config;
	struct od_predictor *predictor; /* NULL: none */
	struct od_device *device; /* the engine's */
	struct odm_linked_step {
		struct od_predict_step s;
		struct od_predict_row *row; /* [max_rows]: s.row */
		uint64_t *counters;
	} step[2]; /* open steps, by enum odm_phase */
	struct od_id_table sequences; /* known to the predictor */
	struct od_routed_row *rows; /* [max_rows] */
	size_t n_routed; /* how many the current layer has so far */
	bool *silent; /* [max_rows]: the shadow is silent on the row's sequence */
	bool needed; /* in the current layer */
	bool wants; /* there are predictions whose WANTs are not sent yet */
};

OD_MUST_CHECK int odm_predictor_link_open(struct odm_predictor_link *l, const struct odm_predictor_link_opts *opts,
					  const struct od_forward_opts *fo, struct od_err *err);
void odm_predictor_link_close(struct odm_predictor_link *l); /* all zero is fine */

/* Begins a step, after odm_predictions_begin. */
void odm_predictor_link_step(struct odm_predictor_link *l, const struct odm_step *step);
/* Before each odm_predictor_link_routed: the results of the layer that it will read (OD_FETCH_); 0: none. */
unsigned odm_predictor_link_needs(struct odm_predictor_link *l, const struct odm_step *step);
/* A layer has been routed; the call has the results that were needed. */
void odm_predictor_link_routed(struct odm_predictor_link *l, const struct od_moe_call *call);
void odm_predictor_link_close_sequence(struct odm_predictor_link *l, uint64_t sequence);

#endif

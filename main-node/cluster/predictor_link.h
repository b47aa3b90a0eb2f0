/* predictor_link.h - a predictor of main's own (common/predict/predictor.h), driven by main's steps: what it says goes
 * into the table of predictions, and the loop thread is told to send WANTs. Beside a shadow it stands in (struct
 * od_prediction) for the rows of sequences of which that is silent; of the others it is asked nothing.
 *
 * A prefill step and a decode step may be under way together.
 * Thread: the engine thread. Owner: the cluster service, which calls begin_step before the layers and routed for each
 * layer when its RUNs have gone out, so that the predictor thinks while the workers compute. */
#ifndef ODM_PREDICTOR_LINK_H
#define ODM_PREDICTOR_LINK_H

#include "common/base/id_table.h"
#include "common/predict/predictor.h"
#include "main-node/cluster/cluster.h"
#include "main-node/engine/expert_service.h"

struct odm_predictor_link {
	struct odm_cluster *cluster;
	struct od_predictor *predictor; /* NULL: none, and every call does nothing */
	struct od_device *device;	/* the engine's */
	struct odm_linked_step {
		struct od_predict_step s;
		struct od_predict_row *row; /* [max_rows]: s.row */
		uint64_t *counters;
	} step[2];			  /* under way, by enum odm_phase */
	struct od_id_table sequences;	  /* that the predictor is in */
	struct od_routed_row *rows;	  /* [max_rows] */
	bool *silent;			  /* [max_rows] */
	bool needed;			  /* in the layer under way */
	bool wants;			  /* something has been said that is not sent yet */
};

/* The one that the cluster's options name. */
OD_MUST_CHECK int odm_predictor_link_open(struct odm_predictor_link *l, struct odm_cluster *c,
					  const struct od_forward_opts *fo, struct od_err *err);
void odm_predictor_link_close(struct odm_predictor_link *l); /* one that is all zero, too */

/* A step begins; odm_predictions_begin knows of it. */
void odm_predictor_link_step(struct odm_predictor_link *l, const struct odm_step *step);
/* Before each odm_predictor_link_routed: what of the layer it will read (OD_FETCH_); 0: it will do nothing. */
unsigned odm_predictor_link_needs(struct odm_predictor_link *l, const struct odm_step *step);
/* A layer's router has spoken; the call has what was needed. */
void odm_predictor_link_routed(struct odm_predictor_link *l, const struct od_moe_call *call);
void odm_predictor_link_close_sequence(struct odm_predictor_link *l, uint64_t sequence);

#endif

/* tiered_service.h - the expert service of a machine that holds a part of the experts: they are loaded from the pack
 * when they are needed, or before if main's own predictor names them, and the most useful ones are kept
 * (common/residency/). No cluster.
 *
 * Thread: the engine thread; load threads and the one that follows free memory come in by a lock. Owner: the
 * engine. */
#ifndef ODM_TIERED_SERVICE_H
#define ODM_TIERED_SERVICE_H

#include "main-node/engine/model.h"
#include "main-node/step/expert_service.h"
#include "common/predict/predictor.h"

struct odm_tiered_opts {
	const struct od_predictor_kind *own; /* NULL: nothing is loaded ahead */
	bool always; /* also where it does not pay */
	double hedge; /* as in odm_predictions_opts */
};

/* For a model that was loaded with engine_opts.tiered. *out is NULL unless OD_OK. */
OD_MUST_CHECK int odm_tiered_service_new(struct odm_expert_service **out, struct odm_model *model,
					 const struct odm_tiered_opts *o, struct od_err *err);

#endif

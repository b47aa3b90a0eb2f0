/* resident_service.h - the expert service of --resident: every expert in this process, nothing to schedule.
 *
 * Thread: the engine thread. Owner: the engine. */
#ifndef ODM_RESIDENT_SERVICE_H
#define ODM_RESIDENT_SERVICE_H

#include "main-node/engine/model.h"
#include "main-node/step/expert_service.h"
#include "common/model/forward_open.h"

/* Loads all experts of the model, which was loaded with engine_opts.resident, and shows how far it is unless the
 * options say quiet. *out is NULL unless OD_OK. */
OD_MUST_CHECK int odm_resident_service_new(struct odm_expert_service **out, const struct odm_model *model,
					   struct od_err *err);

#endif

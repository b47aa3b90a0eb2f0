/* resident_service.h - the expert service of --resident: every expert in this process, nothing to schedule.
 *
 * Thread: the engine thread. Owner: the engine. */
#ifndef ODM_RESIDENT_SERVICE_H
#define ODM_RESIDENT_SERVICE_H

#include "main-node/step/expert_service.h"
#include "common/model/forward_open.h"

/* experts: borrowed, all of the model's. */
OD_MUST_CHECK int odm_resident_service_new(struct odm_expert_service **out, const struct od_forward_opts *opts,
					   const struct od_expert *experts, struct od_err *err);

#endif

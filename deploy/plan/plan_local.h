/* plan_local.h - this machine, measured in a second: how fast it multiplies weights, and reads stored experts.
 *
 * Thread: the one of the device's compute queue. Owner: the caller; plain data. */
#ifndef ODP_PLAN_LOCAL_H
#define ODP_PLAN_LOCAL_H

#include "common/compute/device.h"
#include "deploy/plan/model_cost.h"

/* Fills in memory, speed, many, and read_rate where the model is a pack or a GGUF file; else that is 0. */
OD_MUST_CHECK int odp_measure_here(struct odp_machine *out, const struct odp_model *m, struct od_device *d,
				   struct od_err *err);

#endif

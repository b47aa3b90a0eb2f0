/* resident.h - an expert runner with every expert in the memory of the forward pass's device: the baseline for speed, the
 * oracle for tokens; also what the shadow's emulator runs on. Thread: one at a time. */
#ifndef OD_MODEL_RESIDENT_H
#define OD_MODEL_RESIDENT_H

#include "common/model/forward.h"

/* experts: [n_moe][n_experts], borrowed. out is a runner to pass to od_forward_experts. */
OD_MUST_CHECK int od_resident_new(struct od_expert_runner **out, const struct od_forward_opts *opts,
				  const struct od_expert *experts, struct od_err *err);
void od_resident_free(struct od_expert_runner *r); /* NULL ok */
uint64_t od_resident_bytes(const struct od_forward_opts *opts); /* memory it will take beside the experts */

#endif

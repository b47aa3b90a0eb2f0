/* resident.h - an expert runner with all experts in the memory of the forward pass's device: the baseline for speed and
 * the reference for tokens; the shadow's emulator uses it too.
 *
 * Thread: the one of the forward pass. Owner: od_resident_new's caller. */
#ifndef OD_MODEL_RESIDENT_H
#define OD_MODEL_RESIDENT_H

#include "common/model/forward.h"
#include "common/model/forward_open.h"

/* experts: [n_moe][n_experts], borrowed. *out is a runner for od_forward_experts. */
OD_MUST_CHECK int od_resident_new(struct od_expert_runner **out, const struct od_forward_opts *opts,
				  const struct od_expert *experts, struct od_err *err);
void od_resident_free(struct od_expert_runner *r); /* NULL ok */
uint64_t od_resident_bytes(const struct od_forward_opts *opts); /* memory besides the experts */

/* For other runners on a device: queues a call's experts. expert [n_experts]: the layer's; choice [n_rows][top_k]: the
 * call's, or with OD_NO_EXPERT for those that are left out; scratch: as od_experts_scratch_bytes. */
void od_resident_run(const struct od_forward_opts *o, const struct od_moe_call *call, const struct od_expert *expert,
		     struct od_ref choice, struct od_ref scratch);

#endif

/* state_plan.h - how much memory the texts of a model get on its device: pages of the KV cache for texts in progress
 * and for ended ones, and snapshots of fixed state; with these, the context and the form of experts.
 *
 * Thread: one at a time; odm_state_plan_page_bytes and odm_state_plan_fits: any. Owner: the model. */
#ifndef ODM_STATE_PLAN_H
#define ODM_STATE_PLAN_H

#include "main-node/engine/model.h"

/* Before a device is opened: the context, until it is known what fits. Refuses one that is longer than the model's. */
OD_MUST_CHECK int odm_state_plan_ctx(struct odm_model *m, struct od_err *err);
/* Turns the prefix cache off where it would be of no use. */
void odm_state_plan_cache(struct odm_model *m);
/* Chooses the numbers and the form for the model's device. OD_ERR_NOMEM: it does not fit; err has the numbers. */
OD_MUST_CHECK int odm_state_plan_make(struct odm_model *m, struct od_err *err);

uint64_t odm_state_plan_page_bytes(const struct odm_model *m); /* a page of the KV cache */
/* OD_OK: a text of this many positions fits when it is alone; else OD_ERR_NOMEM. */
OD_MUST_CHECK int odm_state_plan_fits(const struct odm_model *m, uint32_t positions, struct od_err *err);

#endif

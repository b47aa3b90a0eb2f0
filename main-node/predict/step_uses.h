/* step_uses.h - what the rows of a decode step have used. With drafts, uses are counted when it is known which rows
 * stand, and those of the others apart: counters are shown meanwhile, and never fall.
 *
 * Thread: the engine thread. Owner: the caller; memory is allocated by odm_step_uses_init. */
#ifndef ODM_STEP_USES_H
#define ODM_STEP_USES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "main-node/step/step.h"

struct odm_step_uses {
	uint32_t n_moe, n_experts, top_k;
	size_t max_rows, n_rows; /* rows of the step; 0: it has no drafts, and its uses count at once */
	uint32_t *served; /* [max_rows]: uses served in time */
	uint16_t *route; /* [n_moe][max_rows][top_k] */
	bool *loaded; /* [n_moe][n_experts]: for a RUN of the step */
	bool *stands; /* [max_rows]; scratch */
};

OD_MUST_CHECK int odm_step_uses_init(struct odm_step_uses *u, const struct od_config *c, size_t max_rows,
				     struct od_err *err);
void odm_step_uses_fini(struct odm_step_uses *u);

void odm_step_uses_begin(struct odm_step_uses *u, const struct odm_step *step);
/* expert: [n_rows][top_k]; c: the step's counters */
void odm_step_uses_routed(struct odm_step_uses *u, uint32_t m, const uint16_t *expert, size_t n_rows, uint64_t *c);
void odm_step_uses_served(struct odm_step_uses *u, size_t row, uint64_t *c); /* one use in time */
void odm_step_uses_loaded(struct odm_step_uses *u, uint32_t m, uint16_t expert);
/* Counts the uses of a step with drafts. kept: as odm_expert_service.kept. */
void odm_step_uses_settle(const struct odm_step_uses *u, const struct odm_step *step, const uint32_t *kept);

#endif

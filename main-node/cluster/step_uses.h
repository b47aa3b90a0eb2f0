/* step_uses.h - what each row of a decode step with drafts has used, until it is known which rows stand. Uses of undone rows
 * are then counted apart.
 *
 * Thread: the engine thread. Owner: the caller; memory is allocated by odm_step_uses_init. */
#ifndef ODM_STEP_USES_H
#define ODM_STEP_USES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "main-node/engine/expert_service.h"

struct odm_step_uses {
	uint32_t n_moe, n_experts, top_k;
	size_t max_rows, n_rows; /* of the step; 0: it has no drafts, and nothing is recorded */
	uint32_t *served; /* [max_rows]: uses served in time */
	uint16_t *route;  /* [n_moe][max_rows][top_k] */
	bool *loaded;	  /* [n_moe][n_experts]: for a RUN of the step */
	bool *stands;	  /* [max_rows]; scratch */
};

OD_MUST_CHECK int odm_step_uses_init(struct odm_step_uses *u, const struct od_config *c, size_t max_rows, struct od_err *err);
void odm_step_uses_fini(struct odm_step_uses *u);

void odm_step_uses_begin(struct odm_step_uses *u, const struct odm_step *step);
void odm_step_uses_routed(struct odm_step_uses *u, uint32_t m, const uint16_t *expert); /* [n_rows][top_k] */
void odm_step_uses_served(struct odm_step_uses *u, size_t row);
void odm_step_uses_loaded(struct odm_step_uses *u, uint32_t m, uint16_t expert);
/* Moves what only undone rows used to counters of their own. kept: as odm_expert_service.kept. */
void odm_step_uses_settle(const struct odm_step_uses *u, const struct odm_step *step, const uint32_t *kept);

#endif

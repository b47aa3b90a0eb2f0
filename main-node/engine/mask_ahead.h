/* mask_ahead.h - finds the masks of constrained texts while their step is computed.
 *
 * Between odm_mask_ahead_start and odm_mask_ahead_wait the constraints belong to its thread. Masks stay in the
 * constraints (constraint.h), where sampling finds them.
 * Thread: the engine thread. Owner: odm_mask_ahead_new's caller. */
#ifndef ODM_MASK_AHEAD_H
#define ODM_MASK_AHEAD_H

#include "common/grammar/constraint.h"

struct odm_mask_ahead;

OD_MUST_CHECK int odm_mask_ahead_new(struct odm_mask_ahead **out, size_t max_texts, struct od_err *err);
void odm_mask_ahead_free(struct odm_mask_ahead *m); /* NULL ok */
/* Adds the state of a text and the tokens [n] of its draft, which are borrowed until odm_mask_ahead_wait. */
void odm_mask_ahead_add(struct odm_mask_ahead *m, struct od_constraint *c, uint32_t state, const int32_t *draft,
			size_t n);
void odm_mask_ahead_start(struct odm_mask_ahead *m); /* with what was added; nothing: does nothing */
void odm_mask_ahead_wait(struct odm_mask_ahead *m);

#endif

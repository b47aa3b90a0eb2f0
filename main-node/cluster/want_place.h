/* want_place.h - which worker each WANT of a layer goes to.
 *
 * Predicted experts are dealt like the layer's work (placement.h), and what is on its way already stays where it is. What
 * is wanted in case the prediction errs (a hedge) comes behind them: to the member of the layer's group that has least to
 * do, among equals to the one that has the last predicted expert, because the two are hardly ever needed together; and
 * only where a slot of that worker is left.
 * Thread: its owner's. Owner: odm_want_place_init ... odm_want_place_fini by the caller. */
#ifndef ODM_WANT_PLACE_H
#define ODM_WANT_PLACE_H

#include "common/base/status.h"
#include "main-node/cluster/placement.h"
#include "main-node/cluster/predictions.h"

struct odm_want_place {
	struct odm_want want; /* with room for every expert */
	uint16_t *sorted;     /* [n_experts] */
	uint32_t *deal;	      /* [n_experts] */
	uint32_t *keep;	      /* [n_experts]: by expert */
	uint32_t *scratch;    /* odm_deal's */
	uint32_t *n;	      /* [max_workers]: experts of the layer that each has */
};

OD_MUST_CHECK int odm_want_place_init(struct odm_want_place *p, uint32_t n_experts, uint32_t max_workers,
				      struct od_err *err);
void odm_want_place_fini(struct odm_want_place *p); /* one that is all zero, too */

/* p->want.worker: in: the worker (0 to n_workers - 1) where each expert is on its way, ODM_NOBODY: not yet; out: where
 * each goes. Hedges that find no place leave the list. slots [n_workers]: of each worker. */
void odm_want_place(struct odm_want_place *p, const struct odm_groups *g, const uint32_t *slots);

#endif

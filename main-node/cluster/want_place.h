/* want_place.h - which worker each WANT of a layer goes to, and who must hear of it.
 *
 * Predicted experts are dealt like the layer's work (placement.h), and what is on its way already stays where it is. What
 * is wanted in case the prediction errs (a hedge) comes behind them: to the member of the layer's group that has least to
 * do, among equals to the one that has the last predicted expert, because the two are hardly ever needed together; and
 * only where a slot of that worker is left.
 * A worker whose list is the same as before, in the same order, need not hear of a new version.
 * Thread: its owner's. Owner: odm_want_place_init ... odm_want_place_fini by the caller. */
#ifndef ODM_WANT_PLACE_H
#define ODM_WANT_PLACE_H

#include "common/base/status.h"
#include "main-node/cluster/placement.h"
#include "main-node/cluster/predictions.h"

/* Experts by worker: those of worker w are expert[begin[w]] to expert[begin[w + 1] - 1], in order of rank. */
struct odm_want_lists {
	uint16_t *expert; /* [n_experts] */
	uint32_t *begin;  /* [max_workers + 1] */
};

struct odm_want_place {
	struct odm_want want; /* with room for every expert */
	uint16_t *sorted;     /* [n_experts] */
	uint32_t *deal;	      /* [n_experts] */
	uint32_t *keep;	      /* [n_experts]: by expert */
	uint32_t *scratch;    /* odm_deal's */
	uint32_t *n;	      /* [max_workers]: experts of the layer that each has */
	struct odm_want_lists list, before;
};

OD_MUST_CHECK int odm_want_place_init(struct odm_want_place *p, uint32_t n_experts, uint32_t max_workers,
				      struct od_err *err);
void odm_want_place_fini(struct odm_want_place *p); /* one that is all zero, too */

/* p->want.worker: in: the worker (0 to n_workers - 1) where each expert is on its way, ODM_NOBODY: not yet; out: where
 * each goes. Hedges that find no place leave the list. slots [n_workers]: of each worker. p->list: what each gets. */
void odm_want_place(struct odm_want_place *p, const struct odm_groups *g, const uint32_t *slots);

/* After it: the worker's list differs from what p->want.expert_before and worker_before (numbers as in worker; ODM_NOBODY:
 * somebody who has left) say that it got before. */
bool odm_want_changed(const struct odm_want_place *p, uint32_t worker);
/* It has something now, or had. */
bool odm_want_concerns(const struct odm_want_place *p, uint32_t worker);

#endif

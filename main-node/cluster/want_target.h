/* want_target.h - chooses the worker of each WANT of a layer, and the workers that need a new list.
 *
 * Predicted experts are placed like the layer's work (placement.h); prefetches in flight stay on their worker. Hedges
 * (prefetches of runners-up) come after them, only into free slots: on the least loaded worker of the layer's group,
 * ties to the one with the last predicted expert, because the two are rarely needed together.
 * Workers are dealt experts by when they have loaded what was ordered before (want_backlog.h).
 * A worker whose list is unchanged, including its order, gets no new version.
 * Thread: one at a time. Owner: odm_want_target_init ... odm_want_target_fini by the caller. */
#ifndef ODM_WANT_TARGET_H
#define ODM_WANT_TARGET_H

#include "common/base/status.h"
#include "main-node/cluster/placement.h"
#include "main-node/cluster/want_backlog.h"
#include "main-node/predict/prediction_wants.h"
#include "main-node/predict/predictions.h"

/* Experts by worker: those of worker w are expert[begin[w]] to expert[begin[w + 1] - 1], in order of rank. */
struct odm_want_lists {
	uint16_t *expert; /* [n_experts] */
	uint32_t *begin; /* [max_workers + 1] */
};

struct odm_want_target {
	struct odm_want want; /* with room for every expert */
	uint16_t *sorted; /* [n_experts] */
	uint32_t *deal; /* [n_experts] */
	uint32_t *rows; /* [n_experts] */
	uint32_t *keep; /* [n_experts]: by expert */
	uint32_t *scratch; /* for odm_deal */
	uint32_t max_workers;
	uint32_t *n; /* [max_workers]: experts of the layer on each worker */
	struct odm_backlog backlog;
	struct odm_deal_times *times; /* [max_workers] */
	struct odm_want_lists list, before;
};

OD_MUST_CHECK int odm_want_target_init(struct odm_want_target *p, uint32_t n_experts, uint32_t max_workers,
				       struct od_err *err);
void odm_want_target_fini(struct odm_want_target *p); /* all zero is fine */

/* p->want.worker: in: the worker (0 to n_workers - 1) where the expert is in flight, ODM_NOBODY: nowhere; out: its
 * worker. Hedges without a free slot are removed. slots [n_workers]: slots of each worker. p->list: the new list of
 * each worker. */
void odm_want_target_choose(struct odm_want_target *p, const struct odm_groups *g, const uint32_t *slots, uint64_t now);

/* After odm_want_target_choose, of any worker of the view, also one that gets no experts: true when the worker's list
 * differs from the previous one, given by p->want.expert_before and worker_before (indices as in worker; ODM_NOBODY: a
 * worker that has left). */
bool odm_want_changed(const struct odm_want_target *p, uint32_t worker);
/* True: the worker's list, or its previous one, is not empty. */
bool odm_want_concerns(const struct odm_want_target *p, uint32_t worker);

#endif

/* want_gate.h - whether loading a predicted expert ahead is worth its bytes. A wrong load delays the right ones and
 * makes the cache no better, so an expert that is not in memory is loaded ahead only where such predictions have
 * mostly been right. How often they are depends on the expert's rank in its row's prediction, and on how much the
 * cache keeps: it keeps what is easy to predict. So precision is learnt for each rank, of experts that were not kept
 * when they were predicted, whether they were loaded or not.
 *
 * Thread: the engine thread. Owner: the caller; memory is allocated by odm_want_gate_init. */
#ifndef ODM_WANT_GATE_H
#define ODM_WANT_GATE_H

#include "common/model/config.h"
#include "main-node/predict/prediction_wants.h"

#define ODM_GATE_STEPS 2 /* predictions are of the decode step under way and of the next one */

struct odm_want_gate {
	uint32_t n_moe, n_experts;
	struct odm_gate_rank {
		uint32_t n_cases; /* recent ones */
		double precision;
	} rank[OD_MAX_TOP_K + 1]; /* by rank; [top_k]: hedges */
	uint64_t *step; /* [n_moe][ODM_GATE_STEPS]: of the layer's latest WANTs; 0: none */
	uint8_t *predicted; /* [n_moe][ODM_GATE_STEPS][n_experts]: rank + 1; 0: not predicted, or kept */
};

OD_MUST_CHECK int odm_want_gate_init(struct odm_want_gate *g, const struct od_config *c, struct od_err *err);
void odm_want_gate_fini(struct odm_want_gate *g); /* all zero is fine */

/* Takes experts out of *w that are not worth a load. w->rank is not NULL; kept [w->n]: the cache keeps the expert. */
void odm_want_gate_filter(struct odm_want_gate *g, struct odm_want *w, const bool *kept);
/* The router has chosen experts [n] at (step, m); the first call for them counts. */
void odm_want_gate_routed(struct odm_want_gate *g, uint64_t step, uint32_t m, const uint16_t *expert, size_t n);

#endif

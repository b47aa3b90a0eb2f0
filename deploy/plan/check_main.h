/* check_main.h - measures main's part of a model on this machine: steps of few and many rows, with experts that give
 * zeros.
 *
 * Thread: the one of the model's compute queue. Owner: nothing is kept. */
#ifndef ODP_CHECK_MAIN_H
#define ODP_CHECK_MAIN_H

#include "deploy/plan/check_facts.h"
#include "main-node/engine/model.h"

/* Weights of all layers' dense parts, and of the head: as often as each row is multiplied with them. */
struct odp_dense_weights {
	double layers, head;
};
struct odp_dense_weights odp_dense_weights(const struct odm_model *model);

OD_MUST_CHECK int odp_check_main(struct odp_rates *r, const struct odm_model *model, uint64_t budget_ns,
				 struct od_err *err);

#endif

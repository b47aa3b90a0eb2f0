/* check_shadow.h - measures a shadow, or several that hold a model together: the time of a layer, from the predictions
 * of a made-up text, which is closed again.
 *
 * Thread: one at a time. Owner: the caller. */
#ifndef ODP_CHECK_SHADOW_H
#define ODP_CHECK_SHADOW_H

#include "deploy/plan/check_hosts.h"

struct odp_shadow_check {
	struct odp_meeting *meeting;
	const struct odm_cluster_opts *cluster;
	/* Means of a layer: dense weights, and those of an expert in a layer with experts. */
	double dense_weights, expert_weights;
	uint64_t budget_ns;
};

/* view: the connected shadows. part [n_parts]: the further ones, in the order of view->part. Adds to c, and to each
 * part. */
void odp_check_shadow(struct odp_checked *c, struct odp_checked *const *part, struct odm_view *view,
		      const struct odp_shadow_check *o);

/* A layer with experts. odp_layer_ns: its time with `rows` rows, which choose experts at random. */
struct odp_layer_cost {
	double dense_weights, expert_weights; /* expert_weights: one expert's */
	uint32_t n_experts, top_k;
};
double odp_layer_ns(const struct odp_layer_cost *l, double speed, double many, double rows);
/* The rate of arithmetic with which a layer takes so long; at least speed. */
double odp_fit_many(const struct odp_layer_cost *l, double speed, double rows, double ns);

#endif

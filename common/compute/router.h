/* router.h - how a router makes weights of its logits, as data (OD_OP_ROUTE in ops.h; a layer's in layer_spec.h).
 *
 * Thread: any; plain data. */
#ifndef OD_COMPUTE_ROUTER_H
#define OD_COMPUTE_ROUTER_H

#include <stdbool.h>
#include <stdint.h>

/* Scores are softmax probabilities. */
struct od_router_spec {
	uint32_t n_groups, top_groups; /* choose only experts of the top_groups best of n_groups groups; n_groups 0: of all */
	bool renormalise;	       /* weights are divided by their sum */
	float scale;		       /* factor of weights */
};

#endif

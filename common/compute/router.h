/* router.h - how a router makes weights of its logits, as data (OD_OP_ROUTE in ops.h; a layer's in layer_spec.h).
 *
 * Thread: any; plain data. */
#ifndef OD_COMPUTE_ROUTER_H
#define OD_COMPUTE_ROUTER_H

#include <stdbool.h>
#include <stdint.h>

#define OD_MAX_EXPERTS 4096 /* experts of a layer */

enum od_router_score {
	OD_SCORE_SOFTMAX, /* probability among all experts */
	OD_SCORE_SIGMOID, /* each logit's alone (DeepSeek-V3, arXiv 2412.19437, section 2.1.2) */
	OD_SCORE_LOGIT, /* the logit itself; weights are a softmax over the chosen ones only (gpt-oss) */
	/* SparseMixer (GRIN, arXiv 2409.12136) outside of training: the logit s itself. The weight of the best expert
	 * is its softmax among those with (best - s) / max(|s|, best) <= band. Then it is taken out, and so on. */
	OD_SCORE_MIXER,
};

/* Experts are chosen by their score, or by score + bias; weights are made of the scores alone. */
struct od_router_spec {
	/* choose only experts of the top_groups best of n_groups groups; n_groups 0: of all */
	uint32_t n_groups, top_groups;
	enum od_router_score score;
	float scale; /* factor of weights */
	float logit_scale; /* factor of logits; 0: none */
	float sum_eps;
	float band; /* OD_SCORE_MIXER's; it uses none of the other settings */
	bool renormalise; /* weights are divided by their sum + sum_eps */
	bool bias; /* each expert has one */
	bool logit_bias; /* so has each logit: the router is a linear layer with a bias */
	bool norm; /* the router norms the row itself; else it sees that of the experts */
	bool factors; /* each expert has one, of its weights */
	bool group_two; /* a group is as good as its two best experts together; else as its best */
	uint8_t zero[2]; /* instead of padding: a GPU compares specs byte by byte */
};

#endif

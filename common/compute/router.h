/* router.h - how a router makes weights of its logits, as data (OD_OP_ROUTE in ops.h; a layer's in layer_spec.h).
 *
 * Thread: any; plain data. */
#ifndef OD_COMPUTE_ROUTER_H
#define OD_COMPUTE_ROUTER_H

#include <stdbool.h>
#include <stddef.h>
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

/* Cache-aware routing: the cache prior of "Mixture of Cache-Conditional Experts" (arXiv 2412.00099, section 3.3). The
 * `recent` experts that the rows before of the same text used last count as cached. What decides for them, and for the
 * `keep` best, is raised by lambda times the mean range (largest minus smallest) of what decided in the text's rows so
 * far; the range is that of logits for a softmax without bias, OD_SCORE_LOGIT and OD_SCORE_MIXER. Weights stay those
 * of the scores. The paper's cache is that of the machine; this one is the text's own, so that tokens depend on the
 * text alone. */
struct od_cache_prior {
	uint32_t recent; /* 0: off */
	uint32_t keep; /* at most top-k: the best experts are chosen in any case, before all others */
	float lambda; /* 0 to 1 */
};

/* A text keeps one of these for each row of a layer: it is the row's after the row has been routed. */
struct od_recent {
	float range; /* mean of this row and all before */
	uint16_t expert[]; /* [recent]: used last, newest first; of one row's, the one of the least weight first */
};
#define OD_NO_EXPERT UINT16_MAX /* fewer have been used */

static inline size_t od_recent_bytes(uint32_t recent)
{
	return (sizeof(struct od_recent) + recent * sizeof(uint16_t) + 3) / 4 * 4;
}

#endif

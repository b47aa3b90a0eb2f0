/* synthetic_routes.h - routes, predictions and draft tokens drawn by a seed, where nothing is recorded.
 *
 * An expert's logit at a layer is its popularity there, plus a part of its logit at the token before (locality), plus a
 * new part; the top-k are used. The shadow's logits are main's with noise, as much as gives the recall that is asked
 * for; so are next-gate's. A draft token is right with the probability that is asked for; wrong ones have smaller
 * margins.
 * Thread: one at a time. Owner: odp_synthetic_new's caller. */
#ifndef ODP_SYNTHETIC_ROUTES_H
#define ODP_SYNTHETIC_ROUTES_H

#include "common/pack/shadow/shadow_layout.h"
#include "deploy/plan/routes.h"

struct odp_synthetic_opts {
	uint32_t n_moe, n_experts, top_k;
	uint64_t seed;
	double skew; /* standard deviation of popularities, in that of what is new in a logit */
	double locality; /* 0 to below 1: correlation of a logit with that of the token before */
	double recall; /* share of the used experts that the shadow predicts, 0 to 1 */
	double gate_recall; /* share that next-gate predicts of layers that it predicts at all */
	double draft_right; /* probability that a token the shadow assumes is main's */
	/* One with the same options, whose noise is taken, because it takes long to find; NULL: none. Borrowed by
	 * odp_synthetic_new. */
	const struct odp_synthetic *like;
};

/* Fills in what was measured on talebook-fine (10 layers, 4 of 32 experts): skew and locality, with which as many of a
 * token's experts are used by the next one (0.235) and by tokens of other texts (0.143; 0.125 at random) as in 1,536
 * tokens of 24 texts; recall and draft_right of a shadow of this precision, greedy; next-gate's recall: 61.4 % of all
 * uses (BENCHMARKS.md, rivals), of which it predicts nine layers in ten. Other models have others. */
void odp_synthetic_defaults(struct odp_synthetic_opts *o, enum od_precision precision);

struct odp_synthetic;

/* *out is NULL unless OD_OK. */
OD_MUST_CHECK int odp_synthetic_new(struct odp_synthetic **out, const struct odp_synthetic_opts *o, struct od_err *err);
void odp_synthetic_free(struct odp_synthetic *s); /* NULL ok */
struct odp_routes odp_synthetic_routes(struct odp_synthetic *s); /* borrows s */

#endif

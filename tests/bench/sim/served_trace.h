/* served_trace.h - the decode steps of one recorded prompt, as a source of routes for a simulated cluster
 * (deploy/plan/sim.h): one text whose prompt is done, a position a step.
 *
 * Thread: plain data. Owner: the caller; the arrays are borrowed. */
#ifndef OD_BENCH_SERVED_TRACE_H
#define OD_BENCH_SERVED_TRACE_H

#include "deploy/plan/routes.h"

/* Arrays are [step][layer] unless said otherwise. */
struct served_trace {
	uint32_t n_moe, n_experts, top_k;
	uint32_t n_steps;
	const int32_t *token; /* [n_steps]: main's */
	const uint16_t *used; /* [step][layer][top_k] */
	const float *probability; /* [step][layer][n_experts], of main's routers; NULL: not known */
	const struct odp_view *shadow; /* predictions for main's token; NULL: no shadow */
	/* [n_steps]: the token that a shadow running ahead assumes; NULL: never ahead */
	const int32_t *guess;
	const struct odp_view *ahead; /* its predictions where guess is not main's token; NULL: it makes none */
};

struct odp_routes served_trace_routes(struct served_trace *t); /* borrows t */

#endif

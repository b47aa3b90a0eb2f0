/* cpu_route.h - OD_OP_ROUTE of a row on the CPU.
 *
 * Thread: any. Owner: the caller owns every buffer. */
#ifndef OD_COMPUTE_CPU_ROUTE_H
#define OD_COMPUTE_CPU_ROUTE_H

#include "common/compute/ops.h"

/* A row's text keeps this of the routes of its rows. */
struct od_cpu_recent {
	const struct od_recent *before; /* NULL: it is the text's first row */
	struct od_recent *after; /* NULL: routing without a prior */
	uint32_t position;
};

/* bias, factor: NULL: none. logits [n_experts] become probabilities; choice and weight [top_k]; margin [1]. */
void od_cpu_route_row(const struct od_backend *be, const struct od_op_route *o, const float *bias, const float *factor,
		      const struct od_cpu_recent *recent, float *logits, uint16_t *choice, float *weight,
		      float *margin);

#endif

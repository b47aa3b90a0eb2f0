/* routing_service.h - an expert service in this process that chooses experts by a policy (route_policy.h), or takes
 * those of the router, and counts what a cache of each layer would miss.
 *
 * One text at a time, on the CPU, whose memory it changes. Thread: the engine's. Owner: the engine. */
#ifndef OD_BENCH_ROUTING_SERVICE_H
#define OD_BENCH_ROUTING_SERVICE_H

#include "main-node/engine/model.h"
#include "main-node/step/expert_service.h"
#include "tests/bench/live/route_policy.h"

struct routing_totals {
	uint64_t n_rows, n_uses, n_misses; /* rows of all layers */
};

/* room: experts of a layer in the cache. *out is NULL unless OD_OK. */
OD_MUST_CHECK int routing_service_new(struct odm_expert_service **out, const struct odm_model *model,
				      const struct route_policy *policy, uint32_t room, struct od_err *err);
/* Before a text: all caches are empty. */
void routing_service_begin(struct odm_expert_service *s);
struct routing_totals routing_service_totals(const struct odm_expert_service *s); /* since begin */

#endif

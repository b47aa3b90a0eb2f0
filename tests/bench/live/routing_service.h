/* routing_service.h - an expert service in this process that chooses experts by a policy (route_policy.h), or takes
 * those of the router, and counts what a cache of each layer would miss.
 *
 * One text at a time, on the CPU, whose memory it changes. Thread: the engine's. Owner: the engine. */
#ifndef OD_BENCH_ROUTING_SERVICE_H
#define OD_BENCH_ROUTING_SERVICE_H

#include "main-node/engine/model.h"
#include "main-node/step/expert_service.h"
#include "tests/bench/live/route_policy.h"

/* room: experts of a layer in the cache. *out is NULL unless OD_OK. */
OD_MUST_CHECK int routing_service_new(struct odm_expert_service **out, const struct odm_model *model,
				      const struct route_policy *policy, uint32_t room, struct od_err *err);
/* Before a text: all caches are empty, or, with a seed above 0, full of random experts. */
void routing_service_begin(struct odm_expert_service *s, uint64_t seed);
/* Adds what was counted since begin, of all layers. */
OD_MUST_CHECK int routing_service_add_counts(const struct odm_expert_service *s, struct route_counts *to,
					     struct od_err *err);

#endif

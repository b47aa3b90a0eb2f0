/* cluster_service.h - the expert service of a cluster: sends RUNs, receives RESULTs, recovers from lost workers.
 *
 * A layer's experts are placed (placement.h), and each worker gets one RUN with all its experts, each row once. So a
 * worker loads an expert once for all its rows, even with few slots, and answers for each expert as soon as it has run.
 * After the loss of a worker only its unanswered work is sent again. Main keeps the rows until every output has
 * arrived, so the tokens do not change.
 * Thread: the engine thread. Owner: the engine. */
#ifndef ODM_CLUSTER_SERVICE_H
#define ODM_CLUSTER_SERVICE_H

#include "main-node/cluster/cluster.h"
#include "common/model/forward_open.h"
#include "main-node/step/expert_service.h"

/* Takes ownership of the cluster, which is closed with the service. */
OD_MUST_CHECK int odm_cluster_service_new(struct odm_expert_service **out, struct odm_cluster *c,
					  const struct od_forward_opts *opts, struct od_err *err);

#endif

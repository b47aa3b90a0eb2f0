/* cluster_service.h - the expert service of a cluster: RUNs out, RESULTs back, whatever happens to workers meanwhile.
 *
 * A layer's experts are dealt (placement.h), and each worker gets one RUN: all of its experts, each row once. So a worker
 * loads an expert once for all its rows, however few slots it has, and answers each as soon as it has run. Only what a lost
 * worker owed is sent again; main keeps the rows until every output is there, so the tokens do not change.
 * Thread: the engine thread. */
#ifndef ODM_CLUSTER_SERVICE_H
#define ODM_CLUSTER_SERVICE_H

#include "main-node/cluster/cluster.h"
#include "main-node/engine/expert_service.h"

/* Rows of one RUN at most, and so of a step: what workers take. */
uint32_t odm_run_rows(const struct od_config *cfg, enum od_profile profile);

/* Takes the cluster: it is closed with the service. backend as in opts. */
OD_MUST_CHECK int odm_cluster_service_new(struct odm_expert_service **out, struct odm_cluster *c,
					  const struct od_forward_opts *opts, struct od_err *err);

#endif

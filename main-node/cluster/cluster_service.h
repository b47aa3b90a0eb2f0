/* cluster_service.h - the expert service of a cluster: RUNs out, RESULTs back, whatever happens to workers meanwhile.
 *
 * Decode: a layer's experts are dealt over its group, one RUN per worker. Prefill: all experts over all workers,
 * expert by expert, in batches of rows, at most two unanswered per worker (OD-MoE section 3.3), so that a worker
 * computes while the next rows travel. main keeps the rows until every output is there: what a lost worker owed is
 * sent to another, so the tokens do not change.
 * Thread: the engine thread. */
#ifndef ODM_CLUSTER_SERVICE_H
#define ODM_CLUSTER_SERVICE_H

#include "main-node/cluster/cluster.h"
#include "main-node/engine/expert_service.h"

/* Rows of one RUN at most: a prefill batch travels while the one before it is computed. Fewer when rows are so long that
 * a worker would not take them. */
uint32_t odm_run_rows(const struct od_config *cfg, enum od_profile profile);

/* Takes the cluster: it is closed with the service. backend as in opts. */
OD_MUST_CHECK int odm_cluster_service_new(struct odm_expert_service **out, struct odm_cluster *c,
					  const struct od_forward_opts *opts, struct od_err *err);

#endif

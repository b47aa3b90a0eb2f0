/* cluster.h - main's loop thread: membership, predictions in, WANTs out.
 *
 * Thread: odm_cluster_open starts the loop thread, odm_cluster_close joins it; the rest from the engine thread.
 * Only main decides who loads what (design section 3, "One scheduler"). */
#ifndef ODM_CLUSTER_H
#define ODM_CLUSTER_H

#include "common/predict/predictor.h"
#include "main-node/cluster/cluster_opts.h"
#include "main-node/cluster/members.h"
#include "main-node/cluster/placement.h"
#include "main-node/cluster/predictions.h"

struct odm_cluster;

/* Connects and waits until every host is here. */
OD_MUST_CHECK int odm_cluster_open(struct odm_cluster **out, const struct odm_cluster_opts *opts, struct od_err *err);
void odm_cluster_close(struct odm_cluster *c); /* NULL ok */

struct odm_members *odm_cluster_members(struct odm_cluster *c);
struct odm_predictions *odm_cluster_predictions(struct odm_cluster *c);
void *odm_cluster_zmq(struct odm_cluster *c);
int odm_cluster_changed_fd(const struct odm_cluster *c); /* eventfd: membership changed */
uint64_t odm_cluster_connect_by(const struct odm_cluster *c); /* until when everybody must be here, at the start */
const struct odm_cluster_opts *odm_cluster_opts(const struct odm_cluster *c);
/* Those of the workers in a view; what an expert costs them is left out: it belongs to the thread that has the view. */
struct odm_groups odm_cluster_groups(const struct odm_cluster *c, const struct odm_view *view);

/* Have the loop thread send the WANTs that odm_predictions_add or _require left behind. */
void odm_cluster_flush_wants(struct odm_cluster *c);
/* CLOSE (step, m) to every worker: nothing of the step up to m is needed any more. */
void odm_cluster_close_step(struct odm_cluster *c, uint64_t step, uint32_t m);
/* Behind the CLOSEs so far: have every worker asked for its counters (odm_members_ask). */
void odm_cluster_ask(struct odm_cluster *c);
/* CLOSE (step, m) to the workers where a WANT of it went that no RUN took (used_member: by id). */
void odm_cluster_close_unused(struct odm_cluster *c, uint64_t step, uint32_t m, const bool *used_member);

#endif

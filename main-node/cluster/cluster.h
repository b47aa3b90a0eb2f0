/* cluster.h - main's loop thread: manages membership, receives predictions, sends WANTs. Main is the only scheduler: it
 * decides which worker loads which expert.
 *
 * Thread: odm_cluster_open starts the loop thread, odm_cluster_close joins it; the rest from the engine thread.
 * Owner: odm_cluster_open's caller. */
#ifndef ODM_CLUSTER_H
#define ODM_CLUSTER_H

#include "common/predict/predictor.h"
#include "main-node/cluster/cluster_opts.h"
#include "main-node/cluster/members.h"
#include "main-node/cluster/placement.h"
#include "main-node/predict/predictions.h"

struct odm_cluster;

/* Connects and waits for the hosts (odm_members_wait). */
OD_MUST_CHECK int odm_cluster_open(struct odm_cluster **out, const struct odm_cluster_opts *opts, struct od_err *err);
void odm_cluster_close(struct odm_cluster *c); /* NULL ok */

struct odm_members *odm_cluster_members(struct odm_cluster *c);
struct odm_predictions *odm_cluster_predictions(struct odm_cluster *c);
void *odm_cluster_zmq(struct odm_cluster *c);
int odm_cluster_changed_fd(const struct odm_cluster *c); /* eventfd: membership changed */
/* at the start: then it goes on without those that have not joined */
uint64_t odm_cluster_connect_by(const struct odm_cluster *c);
const struct odm_cluster_opts *odm_cluster_opts(const struct odm_cluster *c);
/* The groups of a view's workers. cost and times are not set: they belong to the thread that owns the view. */
struct odm_groups odm_cluster_groups(const struct odm_cluster *c, const struct odm_view *view);

/* PREDICTs of the shadow since the start that were dropped: numbers out of range. */
uint64_t odm_cluster_dropped_predicts(const struct odm_cluster *c);

/* The router of this layer of a decode step has chosen. stall_ns: the longest wait for a load in the layer before. */
void odm_cluster_reached(struct odm_cluster *c, uint64_t step, uint32_t m, uint64_t stall_ns);
/* Makes the loop thread send the WANTs that odm_predictions_add or _require queued. */
void odm_cluster_flush_wants(struct odm_cluster *c);
/* Sends CLOSE (step, m) to every worker: the step's WANTs up to layer m are obsolete. */
void odm_cluster_close_step(struct odm_cluster *c, uint64_t step, uint32_t m);
/* After the CLOSEs sent so far: requests the counters of every worker (odm_members_ask). */
void odm_cluster_ask(struct odm_cluster *c);
/* Sends CLOSE (step, m) to the workers that received a WANT of it but no RUN (used_member [member id]: had a RUN). */
void odm_cluster_close_unused(struct odm_cluster *c, uint64_t step, uint32_t m, const bool *used_member);

#endif

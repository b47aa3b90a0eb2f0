/* check_hosts.h - connects to the hosts of a hosts file as od-main does (members.h), while od-plan --check asks and
 * measures.
 *
 * Thread: one at a time; a loop thread of its own has the control sockets. Owner: odp_meeting_open's caller. */
#ifndef ODP_CHECK_HOSTS_H
#define ODP_CHECK_HOSTS_H

#include "deploy/plan/check_facts.h"
#include "main-node/cluster/members_look.h"

struct odp_meeting;

/* o: as od-main's; it outlives the meeting. */
OD_MUST_CHECK int odp_meeting_open(struct odp_meeting **out, const struct odm_cluster_opts *o, struct od_err *err);
void odp_meeting_close(struct odp_meeting *m); /* says BYE; NULL ok */

struct odm_members *odp_meeting_members(struct odp_meeting *m);
void *odp_meeting_zmq(struct odp_meeting *m);

/* Returns when each host can be used, has refused, or has not come within this time. */
void odp_meeting_wait(struct odp_meeting *m, uint64_t timeout_ns);

/* When the predictions of this sequence for its row at `position` came, at each MoE layer: at_ns [n_moe], 0: not yet.
 * Begins to listen for them. */
void odp_meeting_listen(struct odp_meeting *m, uint64_t sequence, uint32_t position);
/* Waits until those of `n` layers have come. False: not within this time. */
bool odp_meeting_heard(struct odp_meeting *m, uint32_t n, uint64_t timeout_ns, uint64_t *at_ns);

/* The round trip of a PING with so much padding each way. False: no answer within a second. */
bool odp_meeting_ping(struct odp_meeting *m, uint32_t member, uint32_t padding, double *ns);

#endif

/* members_look.h - members as other threads see them: who is connected, what they have reported, and what the engine
 * found out of them.
 *
 * Thread: any, or the engine thread where it is said; a monitor (members.h). Owner: the cluster. */
#ifndef ODM_MEMBERS_LOOK_H
#define ODM_MEMBERS_LOOK_H

#include "main-node/cluster/members.h"

/* Counts n_few and n_many again after workers were left out of the view. If no worker is left to get experts, all get
 * them. */
void odm_view_count(struct odm_view *v);

/* The index of a worker in the view by its id; UINT32_MAX: not in the view. */
uint32_t odm_view_find(const struct odm_view *v, uint32_t id);

bool odm_view_has_spool(const struct odm_view *v); /* at least one worker has a spool */
bool odm_view_has_cache(const struct odm_view *v); /* at least one worker has a cache */
/* not every expert costs every worker a whole load (odm_members_cost) */
bool odm_view_has_costs(const struct odm_view *v);

/* Any thread. */
uint32_t odm_members_count(struct odm_members *ms);
uint64_t odm_members_epoch(struct odm_members *ms);
void odm_members_view(struct odm_members *ms, struct odm_view *v); /* v->worker: room for OD_MAX_HOSTS */
bool odm_members_alive(struct odm_members *ms, uint32_t id, uint64_t session);
/* False: no such member. */
bool odm_members_stats(struct odm_members *ms, uint32_t id, struct odm_member_stats *s, char *name, size_t size);
/* As odm_cost_fn, from the worker's last report. A worker with a spool lacks the experts that it has not reported, one
 * with a pack those that it had found damaged when the view was made: within a step the costs of these do not
 * change. */
void odm_members_cost(struct odm_members *ms, const struct odm_member *worker, uint32_t m, const uint16_t *expert,
		      size_t n, uint8_t *cost);
/* Engine thread: this incarnation has answered on its data port. Raises the epoch. */
void odm_members_attached(struct odm_members *ms, uint32_t id, uint64_t session);
/* Engine thread: this incarnation has answered RUNs for a while; resets its distrust count. */
void odm_members_served(struct odm_members *ms, uint32_t id, uint64_t session);
/* Engine thread: this incarnation cannot load an expert of its pack; others are asked for it from the next step on.
 * Raises the epoch. Nothing for a worker with a spool, which pulls the expert again. */
void odm_members_damaged(struct odm_members *ms, uint32_t id, uint64_t session, uint32_t m, uint32_t expert);
/* Engine thread: this incarnation sends heartbeats but does not work (its data socket is dead): disconnect and start
 * over. odm_members_explain reports it as lost at once, even before the loop thread has dropped it. */
void odm_members_distrust(struct odm_members *ms, uint32_t id, uint64_t session, const char *why);

/* Engine thread, once per request: waits for odm_members_ask and the answers, at most timeout_ns. Then adds to c what
 * the workers had counted by then while in this cluster; a lost worker counts up to its last report. */
void odm_members_counters(struct odm_members *ms, uint64_t timeout_ns, uint64_t *c);

/* Any thread: waits until all hosts of the hosts file are connected, or until the time is over and those that are can
 * run every expert. At once, with its code, if a host refuses for a reason that needs an operator: a mistake in the
 * cluster should not look like a host that is down. Else OD_ERR_UNREACHABLE. err names each missing host and the
 * reason. */
OD_MUST_CHECK int odm_members_wait(struct odm_members *ms, uint64_t timeout_ns, struct od_err *err);
/* Engine thread: the start has ended. Returns when the log says which hosts are missing; from now on it says, too, who
 * comes. */
void odm_members_started(struct odm_members *ms);
/* Any thread: OD_OK, or why a step would have to wait for a worker: there is none, or one that is missing has experts
 * that no other has or gets. OD_ERR_UNREACHABLE. */
OD_MUST_CHECK int odm_members_ready(struct odm_members *ms, struct od_err *err);
/* Any thread: a worker of the hosts file is not connected, and may still come. */
bool odm_members_awaited(struct odm_members *ms);
/* Any thread: each worker was a process of main's that has ended, and is not started again. */
bool odm_members_all_gone(struct odm_members *ms);
/* Any thread: "worker 10.0.0.2:5701: no answer for 1.5 s; ...", for all hosts that are not connected. */
void odm_members_explain(struct odm_members *ms, char *buf, size_t size);

#endif

/* members.h - cluster membership: control sockets, handshakes, heartbeats, loss and return of hosts.
 *
 * A member keeps its id while its line (host and role) is in the hosts file; later another may get that id. Its session
 * changes with every incarnation (reconnect). Every change raises the epoch and writes to the eventfd of the options.
 * Thread: the loop thread owns the table; functions marked so from other threads (a monitor: no I/O and no callback
 * under its mutex). Owner: the cluster. */
#ifndef ODM_MEMBERS_H
#define ODM_MEMBERS_H

#include <stdatomic.h>
#include <uv.h>

#include "common/base/counters.h"
#include "common/net/hosts.h"
#include "common/net/liveness.h"
#include "common/net/wire.h"
#include "main-node/cluster/cluster_opts.h"
#include "main-node/cluster/link_cost.h"
#include "main-node/cluster/placement.h"

struct odm_members;

struct odm_member {
	uint32_t id;
	enum od_node_kind role;
	uint64_t session; /* 0: not connected */
	bool attached; /* a worker that the engine can send RUNs to: odm_members_attached */
	char host[256]; /* numeric */
	const struct od_key_pair *own; /* ours, for links with keys; NULL: without */
	uint8_t key[OD_KEY_BYTES]; /* the only key that it may have */
	uint16_t port, data_port;
	uint32_t slots; /* of a worker */
	uint32_t first_layer, end_layer; /* of a shadow: the layers that it holds */
	uint64_t others; /* of the first of several shadows in a view: says which incarnations of the others; else 0 */
	bool spool; /* the worker may lack experts (odm_members_cost) */
	bool sealed; /* and it never gets those that it lacks */
	bool cache; /* the worker caches experts (odm_members_cost) */
	bool passed[ODM_N_DEALS]; /* the worker is connected and gets no experts of this kind (link_cost.h) */
	uint32_t n_damaged; /* experts of its pack that it could not load in this session (odm_members_cost) */
};

/* A member's last report. */
struct odm_member_stats {
	bool alive, busy;
	bool passed; /* the worker gets no experts: layers are quicker without it */
	uint64_t pongs; /* heartbeats answered in this session */
	uint32_t slots;
	uint64_t c[OD_N_COUNTERS]; /* of its process, since it started */
};

/* The connected members, workers in the order of the hosts file, except that those come last that get experts of decode
 * steps only, and then those that get none because layers are quicker without them. */
struct odm_view {
	uint64_t epoch;
	uint32_t n_workers;
	uint32_t n_few, n_many; /* the first ones of them, which get experts of decode steps; of prompts */
	struct odm_member *worker; /* [max members], the caller's */
	/* The shadow: one that holds all layers, or the first of several which hold them together. */
	bool has_shadow;
	struct odm_member shadow;
	uint32_t n_parts; /* the others, in the order of their layers */
	struct odm_member part[OD_MAX_SHADOWS];
};

/* Counts n_few and n_many again after workers were left out of the view. If no worker is left to get experts, all get
 * them. */
void odm_view_count(struct odm_view *v);

/* The index of a worker in the view by its id; UINT32_MAX: not in the view. */
uint32_t odm_view_find(const struct odm_view *v, uint32_t id);

bool odm_view_has_spool(const struct odm_view *v); /* at least one worker has a spool */
bool odm_view_has_cache(const struct odm_view *v); /* at least one worker has a cache */
/* not every expert costs every worker a whole load (odm_members_cost) */
bool odm_view_has_costs(const struct odm_view *v);

struct odm_members_opts {
	const struct odm_cluster_opts *cluster; /* borrowed */
	void *zmq_context;
	int changed_fd; /* eventfd */
	/* Called for other control messages (PREDICT). Loop thread. */
	void (*message)(void *arg, uint32_t member, const struct od_msg *m);
	void *arg;
};

OD_MUST_CHECK int odm_members_new(struct odm_members **out, const struct odm_members_opts *opts, uv_loop_t *loop,
				  struct od_err *err);
/* Loop thread: sends BYE and closes everything; the handles close in the next turn of the loop. */
void odm_members_stop(struct odm_members *ms);
void odm_members_free(struct odm_members *ms); /* NULL ok */

/* Loop thread: applies a new hosts file: connects to new hosts, removes those no longer listed. */
OD_MUST_CHECK int odm_members_follow(struct odm_members *ms, const struct od_hosts *hosts, struct od_err *err);

/* Loop thread: sends to one member's control socket; does nothing if it is not connected. */
void odm_members_send(struct odm_members *ms, uint32_t id, Od__Header *header);

/* Loop thread: requests the counters of every worker, after all messages sent before. */
void odm_members_ask(struct odm_members *ms);
/* Engine thread, once per request: waits for odm_members_ask and the answers, at most timeout_ns. Then adds to c what
 * the workers had counted by then while in this cluster; a lost worker counts up to its last report. */
void odm_members_counters(struct odm_members *ms, uint64_t timeout_ns, uint64_t *c);

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

/* Engine thread: how long n experts with so many rows and bytes (both ways) should take this worker. */
double odm_members_expect(struct odm_members *ms, uint32_t id, enum odm_deal_kind kind, uint32_t n, uint32_t pairs,
			  double bytes);
/* Engine thread: they took this long there, without the link. */
void odm_members_worked(struct odm_members *ms, uint32_t id, enum odm_deal_kind kind, uint32_t n, uint32_t pairs,
			double took_ns);
/* Engine thread: row bytes of RUNs on their way to it; heartbeats wait behind them. */
void odm_members_in_flight(struct odm_members *ms, uint32_t id, uint64_t bytes);
/* Engine thread: its answer for n experts with so many rows is late. took_ns: for so long that nothing excuses it; 0:
 * only by what its link should take. True: it is late indeed, for a heartbeat is, too, or took_ns is given. It is
 * passed over. Raises the epoch. */
bool odm_members_late(struct odm_members *ms, uint32_t id, uint64_t session, enum odm_deal_kind kind, uint32_t n,
		      uint32_t pairs, double took_ns);
/* Engine thread: row bytes, both ways, that its link carries in half a second. */
uint64_t odm_members_window(struct odm_members *ms, uint32_t id);

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

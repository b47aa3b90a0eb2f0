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
	uint32_t slots; /* a worker's */
	uint32_t first_layer, end_layer; /* layers that a shadow holds */
	/* set in the first of several shadows in a view: says which incarnations of the others; else 0 */
	uint64_t others;
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
	uint64_t c[OD_N_COUNTERS]; /* its process's, since it started */
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

struct odm_members_opts {
	const struct odm_cluster_opts *cluster; /* borrowed */
	void *zmq_context;
	int changed_fd; /* eventfd */
	/* Called for other control messages (PREDICT). Loop thread. */
	void (*message)(void *arg, uint32_t member, const struct od_msg *m);
	/* Called for the answer to each PING. Loop thread. NULL: it is not wanted. */
	void (*pong)(void *arg, uint32_t member, uint64_t sequence);
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

/* Loop thread: sends a PING with so much padding each way, and returns its sequence number in the session; 0: the
 * member is not connected. */
uint64_t odm_members_ping(struct odm_members *ms, uint32_t id, uint32_t padding);

/* Loop thread: requests the counters of every worker, after all messages sent before. */
void odm_members_ask(struct odm_members *ms);
#endif

/* members.h - who is in the cluster: control sockets, handshakes, heartbeats, deaths and returns (design section 7).
 *
 * Thread: the loop thread owns the table; odm_members_view, _stats and _wait from any thread (a monitor: mutex
 * inside, no I/O and no callback under it). A member's id stays while its line, host and role, is in the hosts file;
 * another may have it afterwards. Its session changes with every incarnation. Changes raise the epoch and write to the eventfd
 * given at the start. */
#ifndef ODM_MEMBERS_H
#define ODM_MEMBERS_H

#include <stdatomic.h>
#include <uv.h>

#include "common/base/counters.h"
#include "common/net/hosts.h"
#include "common/net/liveness.h"
#include "common/net/wire.h"
#include "main-node/cluster/cluster_opts.h"
#include "main-node/cluster/placement.h"

struct odm_members;

struct odm_member {
	uint32_t id;
	enum od_node_kind role;
	uint64_t session; /* 0: not here */
	bool attached;	  /* a worker that the engine can send RUNs to: odm_members_attached */
	char host[256];	  /* numeric */
	uint16_t port, data_port;
	uint32_t slots; /* of a worker */
	bool spool;	/* a worker that may lack experts, */
	bool cache;	/* or keeps some: odm_members_cost */
};

/* What a member last said about itself. */
struct odm_member_stats {
	bool alive, busy;
	uint64_t pongs; /* heartbeats answered in this session */
	uint32_t slots;
	uint64_t c[OD_N_COUNTERS]; /* of its process, since that started */
};

/* The members that are here now, workers in the order of the hosts file. */
struct odm_view {
	uint64_t epoch;
	uint32_t n_workers;
	struct odm_member *worker; /* [max members], the caller's */
	bool has_shadow;
	struct odm_member shadow;
};

/* The index in the view of a worker by its id; UINT32_MAX when it is not there. */
uint32_t odm_view_find(const struct odm_view *v, uint32_t id);

bool odm_view_has_spool(const struct odm_view *v); /* a worker there has one, */
bool odm_view_has_cache(const struct odm_view *v);

struct odm_members_opts {
	const struct odm_cluster_opts *cluster; /* borrowed */
	void *zmq_context;
	int changed_fd; /* eventfd */
	/* Control messages that are not membership's: PREDICT. Loop thread. */
	void (*message)(void *arg, uint32_t member, const struct od_msg *m);
	void *arg;
};

OD_MUST_CHECK int odm_members_new(struct odm_members **out, const struct odm_members_opts *opts, uv_loop_t *loop,
				  struct od_err *err);
/* Loop thread: says BYE and closes everything; the handles are gone after the loop has run on. */
void odm_members_stop(struct odm_members *ms);
void odm_members_free(struct odm_members *ms); /* NULL ok */

/* Loop thread: hosts that are new in the file join, those that are no longer in it are let go. */
OD_MUST_CHECK int odm_members_follow(struct odm_members *ms, const struct od_hosts *hosts, struct od_err *err);

/* Loop thread: to one member's control socket; silently nothing when it is not here. */
void odm_members_send(struct odm_members *ms, uint32_t id, Od__Header *header);

/* Loop thread: every worker is asked for its counters, behind all that was sent to it before. */
void odm_members_ask(struct odm_members *ms);
/* Engine thread, once after each time that was to happen: waits for it and the answers, at most so long. Then adds what the
 * workers had counted then, while they were in this cluster: one that was lost counts as far as it had said. */
void odm_members_counters(struct odm_members *ms, uint64_t timeout_ns, uint64_t *c);

/* Any thread. */
uint32_t odm_members_count(struct odm_members *ms);
uint64_t odm_members_epoch(struct odm_members *ms);
void odm_members_view(struct odm_members *ms, struct odm_view *v); /* v->worker: room for OD_MAX_HOSTS */
bool odm_members_alive(struct odm_members *ms, uint32_t id, uint64_t session);
/* False: there is no such member (any more). */
bool odm_members_stats(struct odm_members *ms, uint32_t id, struct odm_member_stats *s, char *name, size_t size);
/* As odm_cost_fn, by what the worker has said last. One with a spool lacks what it has not named. */
void odm_members_cost(struct odm_members *ms, const struct odm_member *worker, uint32_t m, const uint16_t *expert, size_t n,
		      uint8_t *cost);
/* Engine thread: this incarnation has answered on its data port. Raises the epoch. */
void odm_members_attached(struct odm_members *ms, uint32_t id, uint64_t session);
/* Engine thread: it has answered a RUN, so what it was distrusted for before is forgiven. */
void odm_members_served(struct odm_members *ms, uint32_t id, uint64_t session);
/* Engine thread: this incarnation does not work although it answers (its data socket is dead): start over with it. */
/* Until the loop thread has dropped it, odm_members_explain already counts it as gone. */
void odm_members_distrust(struct odm_members *ms, uint32_t id, uint64_t session, const char *why);

/* Wait until everybody in the hosts file is here. OD_ERR_UNREACHABLE or the refusal's code otherwise, naming each
 * host and why. */
OD_MUST_CHECK int odm_members_wait(struct odm_members *ms, uint64_t timeout_ns, struct od_err *err);
/* "worker 10.0.0.2:5701: no answer for 1.5 s; ..." of all that are not here, for a last error. */
void odm_members_explain(struct odm_members *ms, char *buf, size_t size);

#endif

/* daemon.h - what od-worker and od-shadow have in common: libuv loop, control socket, handshake, one main at a time,
 * heartbeats, signals, and exit with the parent process (--local).
 *
 * A session begins with an accepted HELLO. It ends with BYE, when main is silent for OD_DEAD_AFTER_NS, or with a new
 * HELLO of the same main after a reconnect (same connection, or the old session id in the header). While one main is
 * alive, another is refused (OD_ERR_BUSY). Messages of other peers or sessions are dropped and logged (rate-limited).
 * Thread: od_daemon_run's thread is the loop thread and runs every callback; od_daemon_post, od_daemon_session and
 * od_daemon_stop from any thread. Owner: the caller owns ops and arg. */
#ifndef OD_NET_DAEMON_H
#define OD_NET_DAEMON_H

#include <sys/types.h>
#include <uv.h>

#include "common/daemon/data_port.h"
#include "common/net/keys.h"
#include "common/net/wire.h"

struct od_daemon;

struct od_daemon_ops {
	/* A HELLO whose protocol version, role and fingerprint match. Accept: fill w (its strings must live until the
	 * next call; session, role, host_name, pid and data_port are filled in afterwards) and store what the session
	 * needs (profile, ...). Refuse: set *field to the field that differs and err to the expected and found
	 * values. */
	int (*accept)(void *arg, const Od__Hello *hello, Od__Welcome *w, const char **field, struct od_err *err);
	/* The session begins (before WELCOME is sent); it has ended: release everything held for it. */
	void (*begin)(void *arg, uint64_t session);
	void (*end)(void *arg, uint64_t session);
	/* Any control message of the session's main except HELLO, PING and BYE, including kinds that main must not
	 * send. OD_ERR_PROTOCOL or OD_ERR_RANGE: it is dropped and err is logged. */
	int (*message)(void *arg, const struct od_msg *m, struct od_err *err);
	/* Fill a PONG (sequence is set) and add this process's counters to c (rss_bytes and peak_rss_bytes are already
	 * set). */
	void (*pong)(void *arg, Od__Pong *p, uint64_t *c);
	/* The last PONG could not be sent: its one-time contents must be sent again. NULL: a PONG has none. */
	void (*unsent)(void *arg);
	/* For the service's watchdog: has every thread that works for main got on since the last call? Wakes those that
	 * sleep, so that they show it at the next call. */
	bool (*alive)(void *arg);
	/* Asked with every heartbeat. Not OD_OK: this process has become of no use; it says BYE, and od_daemon_run
	 * returns the code and why. NULL: that cannot be. */
	int (*failed)(void *arg, struct od_err *why);
	/* After SIGTERM: from the first call on no more work is taken. True: none is left. NULL: there is nothing to
	 * finish. */
	bool (*drained)(void *arg);
};

struct od_daemon_opts {
	const char *role; /* "worker", "shadow" */
	const char *listen; /* address; NULL: 127.0.0.1, or 0.0.0.0 with insecure or keys */
	bool insecure; /* allow an address that is not loopback: traffic is not encrypted */
	const struct od_keys *keys; /* encrypt, and serve only their peers; borrowed; NULL: anybody, in the clear */
	uint16_t port, data_port; /* 0: any free port */
	int ready_fd; /* od_daemon_run writes "PORT\n" there; always closed by the daemon; -1: none */
	pid_t parent; /* exit when it, of od_tie_to_parent(), does; 0: none */
	uint8_t fingerprint[32];
	const char *folder; /* borrowed; WELCOME tells how much room is left where it is */
};

/* At the start of a process that is to end with its parent, before it loads anything: it gets SIGTERM when the parent's
 * thread that has started it ends. `parent` comes from the parent: of a child whose parent has died already, getppid()
 * is the process that adopted it. OD_ERR_CANCELLED: another process is the parent. */
OD_MUST_CHECK int od_tie_to_parent(pid_t parent, struct od_err *err);

/* Binds both sockets. *data_port is for the engine thread; the daemon owns and frees it. */
OD_MUST_CHECK int od_daemon_new(struct od_daemon **out, const struct od_daemon_opts *opts,
				const struct od_daemon_ops *ops, void *arg, struct od_data_port **data_port,
				struct od_err *err);
/* Runs until SIGINT, SIGTERM, od_daemon_stop, failed() or the parent's exit, and tells the service manager how it is.
 * At SIGTERM the work of the session is finished first, for 30 s at most; a second signal ends that. Then sends BYE to
 * main and waits for its BYE, at most 250 ms. With keys SIGHUP reads the peers' file again; in a service it never ends
 * the process. */
OD_MUST_CHECK int od_daemon_run(struct od_daemon *d, struct od_err *err);
void od_daemon_stop(struct od_daemon *d); /* any thread */
void od_daemon_free(struct od_daemon *d); /* after od_daemon_run returned; NULL ok */

/* Sends to the session's main, from any thread: packs header at once (session and epoch are filled in) and queues it
 * for the loop. Dropped silently if the session has ended by then. OD_ERR_BUSY: the bounded queue is full. */
OD_MUST_CHECK int od_daemon_post(struct od_daemon *d, uint64_t session, Od__Header *header);
uint64_t od_daemon_session(const struct od_daemon *d); /* 0: none */
uint16_t od_daemon_port(const struct od_daemon *d);

#endif

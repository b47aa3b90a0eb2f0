/* daemon.h - what od-worker and od-shadow have in common: a libuv loop, the control socket, the handshake, one main
 * at a time, heartbeats, signals, and dying with a parent that started us (--local).
 *
 * A session begins with an accepted HELLO and ends with BYE, with silence of main (OD_DEAD_AFTER_NS), or with a new
 * HELLO from the same main process after it reconnected (on the same connection, or with its old session in the
 * header). While one main is alive, another is refused (OD_ERR_BUSY).
 * Messages from anybody else, or of another session, are dropped and logged (rate-limited); the daemon lives on.
 * Thread: od_daemon_run's thread is the loop thread and runs every callback; od_daemon_post and
 * od_daemon_session from any thread. Owner: the caller owns ops and arg. */
#ifndef OD_NET_DAEMON_H
#define OD_NET_DAEMON_H

#include <uv.h>

#include "common/net/data_port.h"
#include "common/net/wire.h"

struct od_daemon;

struct od_daemon_ops {
	/* HELLO with our protocol version, role and fingerprint. Fill w (its strings must live until the next call;
	 * session, role, host_name, pid and data_port are filled in afterwards) and take what the session needs
	 * (profile, ...); or refuse: *field names what differs, err says expected and found. */
	int (*accept)(void *arg, const Od__Hello *hello, Od__Welcome *w, const char **field, struct od_err *err);
	/* The session is open (before WELCOME is sent), is over. Everything held for it must go. */
	void (*begin)(void *arg, uint64_t session);
	void (*end)(void *arg, uint64_t session);
	/* Any control message of the session's main but HELLO, PING and BYE, also kinds that main never sends.
	 * OD_ERR_PROTOCOL or OD_ERR_RANGE drops it and logs why. */
	int (*message)(void *arg, const struct od_msg *m, struct od_err *err);
	/* Fill a PONG (sequence is set) and add what this process has counted since it started (peak_rss_bytes is there). */
	void (*pong)(void *arg, Od__Pong *p, uint64_t *c);
	/* Main has not been sent the last PONG: what was told in it must be told again. NULL: nothing is told only once. */
	void (*unsent)(void *arg);
};

struct od_daemon_opts {
	const char *role;	  /* "worker", "shadow" */
	const char *listen;	  /* address; NULL: 127.0.0.1, or 0.0.0.0 with insecure */
	bool insecure;		  /* allow an address that is not loopback: traffic is not encrypted */
	uint16_t port, data_port; /* 0: free ones */
	int ready_fd;		  /* -1, or: od_daemon_run writes "PORT\n" there; closed by us in any case */
	bool die_with_parent;	  /* end when the process that started us does */
	uint8_t fingerprint[32];
};

/* Binds both sockets. *data_port is the engine thread's to use (owned by the daemon, freed with it). */
OD_MUST_CHECK int od_daemon_new(struct od_daemon **out, const struct od_daemon_opts *opts,
				const struct od_daemon_ops *ops, void *arg, struct od_data_port **data_port,
				struct od_err *err);
/* Until SIGINT, SIGTERM, od_daemon_stop or the parent's end. Says BYE to main and waits a quarter of a second at most
 * for its BYE. */
OD_MUST_CHECK int od_daemon_run(struct od_daemon *d, struct od_err *err);
void od_daemon_stop(struct od_daemon *d); /* any thread */
void od_daemon_free(struct od_daemon *d); /* after od_daemon_run returned; NULL ok */

/* Send to the session's main: header (its session and epoch are filled in) is packed at once and queued for the loop
 * (any thread). session: dropped silently if it is over by then. OD_ERR_BUSY when the bounded queue is full. */
OD_MUST_CHECK int od_daemon_post(struct od_daemon *d, uint64_t session, Od__Header *header);
uint64_t od_daemon_session(const struct od_daemon *d); /* 0: none */
uint16_t od_daemon_port(const struct od_daemon *d);

#endif

#include "common/daemon/daemon.h"

#include "common/base/descriptors.h"
#include "common/base/file.h"
#include "common/base/hangup.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/notify.h"
#include "common/base/version.h"
#include "common/net/endpoint.h"
#include "common/net/gate.h"
#include "common/net/liveness.h"
#include "common/net/uv_socket.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MAX_POSTS 4096
#define POSTS_PER_TURN 256
#define BYE_PATIENCE_MS 250 /* how long a daemon that stops waits for the BYE that answers its own */
#define DRAIN_NS (30 * OD_NS_PER_S) /* for the work of the session, after SIGTERM */
#define DRAIN_LOOK_MS 10
#define LOOPBACK "127.0.0.1"
#define EVERYWHERE "0.0.0.0"

struct post {
	uint64_t session;
	zmq_msg_t packed;
};

struct od_daemon {
	const char *role;
	uint8_t fingerprint[32];
	const struct od_daemon_ops *ops;
	void *arg;
	pid_t parent; /* 0: none */
	int ready_fd;
	char host_name[256], boot_id[OD_BOOT_ID];
	const char *folder;

	void *context, *socket;
	struct od_uv_socket *control; /* owns socket once it exists */
	struct od_data_port *data;
	uint16_t port;
	struct od_gate *gate; /* NULL: no keys */
	const char *peers_path;

	uv_loop_t loop;
	bool has_loop;
	uv_async_t wake;
	uv_timer_t tick, patience, drain, watchdog;
	uint64_t drain_until_ns; /* 0: it is not ending */
	bool was_drained; /* at the last look */
	uv_signal_t on_int, on_term, on_hup;
	atomic_bool stopping;
	int failed; /* result of od_daemon_run */
	struct od_err why;

	/* The session: changed by the loop thread only. */
	bool leaving; /* BYE was sent, or there is no session */
	_Atomic uint64_t session;
	uint64_t ended; /* the session before: what is still on its way from there is no stranger's */
	struct od_route route;
	_Atomic uint64_t epoch; /* the newest that main told us; goes back with all we send */
	char main_name[64];
	uint64_t main_id; /* 0: it has none */
	uint64_t begun_ns;
	struct od_liveness main;

	pthread_mutex_t lock; /* guards what follows */
	struct post *posts; /* [MAX_POSTS], a ring */
	size_t first, n_posts;
};

uint64_t od_daemon_session(const struct od_daemon *d)
{
	return atomic_load(&d->session);
}

uint16_t od_daemon_port(const struct od_daemon *d)
{
	return d->port;
}

/* For the service manager. */
static void tell_status(const struct od_daemon *d)
{
	if (atomic_load(&d->session) != 0)
		od_notify_status("listening on port %u; serves main \"%s\"", d->port, d->main_name);
	else
		od_notify_status("listening on port %u; no main has connected", d->port);
}

static void end_session(struct od_daemon *d, const char *why)
{
	uint64_t session = atomic_load(&d->session);

	if (session == 0)
		return;
	od_log(OD_LOG_INFO, "session with main \"%s\" ended: %s", d->main_name, why);
	od_data_port_set_session(d->data, 0);
	atomic_store(&d->session, 0);
	d->ended = session;
	d->route.len = 0;
	d->ops->end(d->arg, session);
	if (d->drain_until_ns == 0)
		tell_status(d);
}

static int send_to(struct od_daemon *d, const struct od_route *route, Od__Header *header)
{
	header->session = atomic_load(&d->session);
	header->epoch = atomic_load(&d->epoch);
	return od_uv_socket_send(d->control, route, header, NULL, 0);
}

/* ping NULL: it answers none. */
static int send_pong(struct od_daemon *d, const Od__Ping *ping)
{
	Od__Header header = OD__HEADER__INIT;
	Od__Pong body = OD__PONG__INIT;
	uint64_t c[OD_N_COUNTERS] = { 0 };
	static const uint8_t padding[OD_MAX_PADDING];
	struct od_pong_counters list;
	int rc;

	body.sequence = ping != NULL ? ping->sequence : 0;
	d->ops->pong(d->arg, &body, c);
	/* Behind what the daemon adds: sums of counters take gauges from the last summand. */
	c[OD_C_PEAK_RSS_BYTES] = od_peak_rss_bytes();
	c[OD_C_RSS_BYTES] = od_rss_bytes();
	if (ping != NULL && ping->answer_bytes <= sizeof(padding) &&
	    body.holds.len + body.cached.len <= sizeof(padding))
		body.padding = (ProtobufCBinaryData){ .data = (uint8_t *)padding, .len = ping->answer_bytes };
	c[OD_C_REFUSED_CONNECTIONS] = od_gate_refused(d->gate);
	od_pong_put(&body, &list, c);
	header.body_case = OD__HEADER__BODY_PONG;
	header.pong = &body;
	rc = send_to(d, &d->route, &header);
	if (rc != OD_OK && d->ops->unsent != NULL)
		d->ops->unsent(d->arg);
	return rc;
}

/* Main pings a session that has ended here meanwhile: main was suspended, or cut off. So it need not wait for our
 * silence. (One that a newer session has replaced is no news.) */
static void say_ended(struct od_daemon *d, const struct od_msg *m)
{
	Od__Header header = OD__HEADER__INIT;
	Od__Bye body = OD__BYE__INIT;

	od_log(OD_LOG_DEBUG, "dropped %s of a session that has ended", od_body_name(m->header->body_case));
	if (m->header->body_case != OD__HEADER__BODY_PING || atomic_load(&d->session) != 0)
		return;
	body.reason = (char *)"that session has ended";
	header.session = d->ended;
	header.epoch = atomic_load(&d->epoch);
	header.body_case = OD__HEADER__BODY_BYE;
	header.bye = &body;
	if (od_uv_socket_send(d->control, &m->route, &header, NULL, 0) != OD_OK)
		od_log(OD_LOG_DEBUG, "main had ended before it was told");
}

static int send_bye(struct od_daemon *d)
{
	Od__Header header = OD__HEADER__INIT;
	Od__Bye body = OD__BYE__INIT;

	header.body_case = OD__HEADER__BODY_BYE;
	header.bye = &body;
	return send_to(d, &d->route, &header);
}

/* ---- Handshake ---- */

static void refuse(struct od_daemon *d, const struct od_route *route, const char *field, const struct od_err *why)
{
	Od__Header header = OD__HEADER__INIT;
	Od__Refuse body = OD__REFUSE__INIT;
	int rc;

	body.code = why->code;
	body.field = (char *)field;
	body.reason = (char *)why->msg;
	body.program_version = (char *)OD_VERSION;
	if (why->code == OD_ERR_BUSY && atomic_load(&d->session) != 0) {
		body.main_name = d->main_name;
		body.served_ns = od_now_ns() - d->begun_ns;
	}
	header.body_case = OD__HEADER__BODY_REFUSE;
	header.refuse = &body;
	/* Not send_to: whom we refuse must not learn the session. */
	rc = od_uv_socket_send(d->control, route, &header, NULL, 0);
	od_log_limited(OD_LOG_WARN, "refused a session: %s%s", why->msg,
		       rc == OD_OK ? "" : " (main has already disconnected)");
}

static const char *short_hex(const uint8_t *bytes, char hex[13])
{
	return sodium_bin2hex(hex, 13, bytes, 6);
}

static int check_fingerprint(const struct od_daemon *d, const ProtobufCBinaryData *theirs, struct od_err *err)
{
	char expected[13], found[13];

	if (theirs->len != sizeof(d->fingerprint))
		return od_fail(err, OD_ERR_MISMATCH, "fingerprint: expected %zu bytes, found %zu",
			       sizeof(d->fingerprint), theirs->len);
	if (memcmp(theirs->data, d->fingerprint, sizeof(d->fingerprint)) != 0)
		return od_fail(err, OD_ERR_MISMATCH,
			       "fingerprint: expected %s, found %s: the packs are of different models; give main and "
			       "this daemon packs of one checkpoint",
			       short_hex(d->fingerprint, expected), short_hex(theirs->data, found));
	return OD_OK;
}

static int check_hello(const struct od_daemon *d, const Od__Header *h, const char **field, struct od_err *err)
{
	char found[32];

	*field = "version";
	if (od_check_version(h, err) != OD_OK)
		return err->code;
	*field = "role";
	if (strcmp(h->hello->role, d->role) != 0)
		return od_fail(err, OD_ERR_MISMATCH, "role: expected %s, found \"%s\"", d->role,
			       od_peer_text(h->hello->role, found, sizeof(found)));
	*field = "fingerprint";
	return check_fingerprint(d, &h->hello->fingerprint, err);
}

/* Is the session's main another process than this message's, and still connected? ROUTER_MANDATORY tells whether
 * the connection of a killed main is gone, long before its silence does. */
static bool taken(struct od_daemon *d, const struct od_msg *m)
{
	uint64_t session = atomic_load(&d->session);

	if (session == 0 || m->header->session == session || od_route_equal(&m->route, &d->route))
		return false;
	return send_pong(d, NULL) != OD_ERR_UNREACHABLE;
}

/* The session's main may know this daemon by two addresses, which only an operator can change. */
static void say_taken(const struct od_daemon *d, const Od__Hello *hello, struct od_err *err)
{
	if (hello->main_id != 0 && hello->main_id == d->main_id)
		od_fail(err, OD_ERR_MISMATCH,
			"session: main \"%s\" uses this %s already, by another address: two lines of its hosts "
			"file are the same daemon; remove one",
			d->main_name, d->role);
	else
		od_fail(err, OD_ERR_BUSY, "session: this %s is in use by main \"%s\"", d->role, d->main_name);
}

static void begin_session(struct od_daemon *d, const struct od_msg *m)
{
	uint64_t session;

	do {
		randombytes_buf(&session, sizeof(session));
	} while (session == 0);
	d->route = m->route;
	atomic_store(&d->epoch, m->header->epoch);
	od_peer_text(m->header->hello->main_name, d->main_name, sizeof(d->main_name));
	d->main_id = m->header->hello->main_id;
	d->begun_ns = od_now_ns();
	od_liveness_start(&d->main, d->begun_ns);
	atomic_store(&d->session, session);
	od_log(OD_LOG_INFO, "session with main \"%s\" started", d->main_name);
	d->ops->begin(d->arg, session);
	od_data_port_set_session(d->data, session);
	tell_status(d);
}

/* od-plan --check shows an operator this machine. */
static void describe_machine(const struct od_daemon *d, Od__Welcome *w)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	w->program_version = (char *)OD_VERSION;
	w->wall_clock_ns = (uint64_t)now.tv_sec * OD_NS_PER_S + (uint64_t)now.tv_nsec;
	w->boot_id = (char *)d->boot_id;
	w->ram_bytes = od_ram_bytes();
	w->free_ram_bytes = od_available_ram_bytes();
	if (d->folder == NULL || od_free_bytes(d->folder, &w->free_disk_bytes, NULL) != OD_OK)
		w->free_disk_bytes = 0;
}

static void on_hello(struct od_daemon *d, const struct od_msg *m)
{
	Od__Header header = OD__HEADER__INIT;
	Od__Welcome body = OD__WELCOME__INIT;
	struct od_err err = { 0 };
	const char *field = "";

	if (check_hello(d, m->header, &field, &err) != OD_OK) {
		refuse(d, &m->route, field, &err);
		return;
	}
	if (taken(d, m)) {
		say_taken(d, m->header->hello, &err);
		refuse(d, &m->route, "session", &err);
		return;
	}
	end_session(d, "a new one begins");
	if (d->ops->accept(d->arg, m->header->hello, &body, &field, &err) != OD_OK) {
		refuse(d, &m->route, field, &err);
		return;
	}
	begin_session(d, m);
	body.session = atomic_load(&d->session);
	body.role = (char *)d->role;
	body.host_name = d->host_name;
	body.pid = (uint32_t)getpid();
	body.data_port = od_data_port_number(d->data);
	describe_machine(d, &body);
	header.body_case = OD__HEADER__BODY_WELCOME;
	header.welcome = &body;
	if (send_to(d, &d->route, &header) != OD_OK)
		end_session(d, "it is gone before WELCOME");
}

/* ---- Messages ---- */

static void drop(const struct od_msg *m, const char *why)
{
	od_log_limited(OD_LOG_WARN, "control socket: dropped %s: %s", od_body_name(m->header->body_case), why);
}

/* BYE answers BYE, so that either side knows when it may close: ZeroMQ throws away what was not read before the
 * connection ended. */
static void on_bye(struct od_daemon *d)
{
	if (d->leaving)
		uv_stop(&d->loop);
	else if (send_bye(d) != OD_OK)
		od_log(OD_LOG_DEBUG, "main had ended before its BYE was answered");
	end_session(d, "main sent BYE");
}

static void on_session_message(struct od_daemon *d, struct od_msg *m)
{
	struct od_err err = { 0 };
	int rc;

	od_liveness_heard(&d->main, od_now_ns());
	if (m->header->epoch > atomic_load(&d->epoch)) /* heartbeats have none */
		atomic_store(&d->epoch, m->header->epoch);
	if (m->header->body_case == OD__HEADER__BODY_PING) {
		rc = send_pong(d, m->header->ping);
		if (rc != OD_OK)
			od_log_limited(OD_LOG_WARN, "cannot answer PING: %s", od_status_text(rc));
	} else if (m->header->body_case == OD__HEADER__BODY_BYE) {
		on_bye(d);
	} else if (d->ops->message(d->arg, m, &err) != OD_OK) {
		drop(m, err.msg);
	}
}

static void on_message(void *arg, struct od_msg *m)
{
	struct od_daemon *d = arg;
	uint64_t session = atomic_load(&d->session);
	struct od_err err = { 0 };

	if (m->header->body_case == OD__HEADER__BODY_HELLO && !d->leaving && d->drain_until_ns == 0)
		on_hello(d, m);
	else if (od_check_version(m->header, &err) != OD_OK)
		drop(m, err.msg);
	else if (m->header->session != 0 && m->header->session == d->ended)
		say_ended(d, m);
	else if (session == 0 || m->header->session != session)
		drop(m, "its session is not the current one");
	else if (!od_route_equal(&m->route, &d->route))
		drop(m, "another connection than the session's");
	else
		on_session_message(d, m);
}

static void on_garbage(void *arg, const struct od_route *route, const struct od_err *why)
{
	(void)arg;
	(void)route;
	od_log_limited(OD_LOG_WARN, "control socket: dropped %s", why->msg);
}

static const struct od_uv_socket_ops socket_ops = { .message = on_message, .garbage = on_garbage };

/* ---- What other threads ask for ---- */

int od_daemon_post(struct od_daemon *d, uint64_t session, Od__Header *header)
{
	zmq_msg_t packed;
	int rc;

	header->session = session;
	header->epoch = atomic_load(&d->epoch);
	rc = od_wire_pack(header, &packed);
	if (rc != OD_OK)
		return rc;
	pthread_mutex_lock(&d->lock);
	if (d->n_posts < MAX_POSTS) {
		struct post *p = &d->posts[(d->first + d->n_posts++) % MAX_POSTS];

		p->session = session;
		zmq_msg_init(&p->packed);
		zmq_msg_move(&p->packed, &packed);
	} else {
		rc = OD_ERR_BUSY;
	}
	pthread_mutex_unlock(&d->lock);
	zmq_msg_close(&packed); /* empty when it was moved */
	if (rc == OD_OK)
		uv_async_send(&d->wake);
	return rc;
}

static bool take_post(struct od_daemon *d, struct post *out)
{
	bool got;

	pthread_mutex_lock(&d->lock);
	got = d->n_posts > 0;
	if (got) {
		struct post *p = &d->posts[d->first];

		out->session = p->session;
		zmq_msg_init(&out->packed);
		zmq_msg_move(&out->packed, &p->packed);
		d->first = (d->first + 1) % MAX_POSTS;
		d->n_posts--;
	}
	pthread_mutex_unlock(&d->lock);
	return got;
}

static void send_post(struct od_daemon *d, struct post *p)
{
	int rc = OD_OK;

	if (p->session != 0 && p->session == atomic_load(&d->session))
		rc = od_uv_socket_send_packed(d->control, &d->route, &p->packed);
	if (rc != OD_OK)
		od_log_limited(OD_LOG_WARN, "control socket: could not send to main: %s", od_status_text(rc));
	zmq_msg_close(&p->packed); /* empty when it was sent */
}

static void on_patience(uv_timer_t *h)
{
	uv_stop(h->loop);
}

/* Main learns of a clean end at once, instead of from our silence. */
static void leave(struct od_daemon *d)
{
	d->leaving = true;
	uv_timer_stop(&d->drain);
	if (atomic_load(&d->session) != 0 && send_bye(d) == OD_OK)
		uv_timer_start(&d->patience, on_patience, BYE_PATIENCE_MS, 0);
	else
		uv_stop(&d->loop);
}

static void on_wake(uv_async_t *h)
{
	struct od_daemon *d = h->data;
	struct post p;

	for (int i = 0; i < POSTS_PER_TURN; i++) {
		if (!take_post(d, &p))
			break;
		send_post(d, &p);
		if (i + 1 == POSTS_PER_TURN) /* timers and main's messages get their turn in between */
			uv_async_send(&d->wake);
	}
	if (atomic_load(&d->stopping) && !d->leaving)
		leave(d);
}

void od_daemon_stop(struct od_daemon *d)
{
	atomic_store(&d->stopping, true);
	uv_async_send(&d->wake);
}

/* ---- Time and signals ---- */

static void end_if_failed(struct od_daemon *d)
{
	d->failed = d->ops->failed(d->arg, &d->why);
	if (d->failed == OD_OK)
		return;
	od_notify_stopping(0);
	od_daemon_stop(d);
}

static void on_tick(uv_timer_t *h)
{
	struct od_daemon *d = h->data;

	if (d->parent != 0 && getppid() != d->parent) {
		od_log(OD_LOG_INFO, "parent process exited: stopping");
		od_daemon_stop(d);
	}
	if (d->failed == OD_OK && d->ops->failed != NULL)
		end_if_failed(d);
	od_descriptors_watch();
	if (atomic_load(&d->session) != 0 && od_liveness_check(&d->main, od_now_ns()) != OD_ALIVE)
		end_session(d, "it is silent");
}

static void on_watchdog(uv_timer_t *h)
{
	struct od_daemon *d = h->data;

	if (d->ops->alive(d->arg))
		od_notify_alive();
	else
		od_log_limited(OD_LOG_ERROR, "a thread makes no progress: the watchdog is not fed");
}

/* BYE leaves one look after the last RESULT: they travel on different connections, and with BYE main gives up the
 * RESULT's. */
static void on_drain(uv_timer_t *h)
{
	struct od_daemon *d = h->data;
	const bool drained = d->ops->drained(d->arg), done = drained && d->was_drained;

	d->was_drained = drained;
	if (!done && od_now_ns() < d->drain_until_ns)
		return;
	if (!done)
		od_log(OD_LOG_WARN, "stopping with work that is not finished; main gives it to others");
	leave(d);
}

static void on_signal(uv_signal_t *h, int number)
{
	struct od_daemon *d = h->data;
	const bool drain = number == SIGTERM && d->drain_until_ns == 0 && d->ops->drained != NULL;

	od_log(OD_LOG_INFO, "%s: stopping", number == SIGINT ? "SIGINT" : "SIGTERM");
	od_notify_stopping(DRAIN_NS);
	d->drain_until_ns = od_now_ns() + DRAIN_NS;
	if (drain)
		uv_timer_start(&d->drain, on_drain, 0, DRAIN_LOOK_MS);
	else
		od_daemon_stop(d);
}

/* Connections that exist stay: ZeroMQ cannot end one of them. */
static void reload_peers(struct od_daemon *d)
{
	struct od_peers peers;
	struct od_err err;
	int rc = od_peers_load(&peers, d->peers_path, &err);

	if (rc == OD_OK)
		rc = od_gate_admit_peers(d->gate, &peers, d->peers_path, &err);
	if (rc == OD_OK)
		od_log(OD_LOG_INFO, "%s read again: %zu keys; connections that exist stay", d->peers_path, peers.n);
	else
		od_log(OD_LOG_ERROR, "%s; the keys are unchanged", err.msg);
	od_peers_fini(&peers);
}

static void on_hangup(uv_signal_t *h, int number)
{
	struct od_daemon *d = h->data;

	(void)number;
	od_notify_reloading();
	if (d->gate != NULL)
		reload_peers(d);
	else
		od_log(OD_LOG_INFO, "SIGHUP: nothing to read again, because this daemon uses no keys");
	od_notify_reloaded();
}

static int start_watchdog(struct od_daemon *d)
{
	const uint64_t ms = od_notify_watchdog_ns() / OD_NS_PER_MS;

	return ms > 0 ? uv_timer_start(&d->watchdog, on_watchdog, ms, ms) : 0;
}

static int start_handles(struct od_daemon *d, struct od_err *err)
{
	int rc = uv_loop_init(&d->loop);

	if (rc != 0)
		return od_fail(err, OD_ERR_IO, "event loop: %s", uv_strerror(rc));
	d->has_loop = true;
	d->wake.data = d->tick.data = d->drain.data = d->watchdog.data = d;
	d->on_int.data = d->on_term.data = d->on_hup.data = d;
	rc = uv_async_init(&d->loop, &d->wake, on_wake);
	if (rc == 0)
		rc = uv_timer_init(&d->loop, &d->tick);
	if (rc == 0)
		rc = uv_timer_start(&d->tick, on_tick, OD_PING_EVERY_NS / OD_NS_PER_MS,
				    OD_PING_EVERY_NS / OD_NS_PER_MS);
	if (rc == 0)
		rc = uv_timer_init(&d->loop, &d->patience);
	if (rc == 0)
		rc = uv_timer_init(&d->loop, &d->drain);
	if (rc == 0)
		rc = uv_timer_init(&d->loop, &d->watchdog);
	if (rc == 0)
		rc = start_watchdog(d);
	if (rc == 0)
		rc = uv_signal_init(&d->loop, &d->on_int);
	if (rc == 0)
		rc = uv_signal_start(&d->on_int, on_signal, SIGINT);
	if (rc == 0)
		rc = uv_signal_init(&d->loop, &d->on_term);
	if (rc == 0)
		rc = uv_signal_start(&d->on_term, on_signal, SIGTERM);
	if (rc == 0)
		rc = uv_signal_init(&d->loop, &d->on_hup);
	if (rc == 0 && (d->gate != NULL || od_notify_on()))
		rc = uv_signal_start(&d->on_hup, on_hangup, SIGHUP);
	od_hangup_listened();
	return rc == 0 ? OD_OK : od_fail(err, OD_ERR_IO, "event loop: %s", uv_strerror(rc));
}

/* ---- Life ---- */

static int choose_address(const struct od_daemon_opts *o, const char **host, struct od_err *err)
{
	*host = o->listen != NULL ? o->listen : o->insecure || o->keys != NULL ? EVERYWHERE : LOOPBACK;
	if (o->insecure || o->keys != NULL || od_is_loopback(*host))
		return OD_OK;
	return od_fail(err, OD_ERR_ARG,
		       "--listen %s is not a loopback address: give this node a key (--key), or --insecure, or "
		       "listen on " LOOPBACK,
		       *host);
}

int od_tie_to_parent(pid_t parent, struct od_err *err)
{
	if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot watch the parent process");
	if (getppid() != parent)
		return od_fail(err, OD_ERR_CANCELLED, "the parent process %d exited during the start", (int)parent);
	return OD_OK;
}

static int open_gate(struct od_daemon *d, const struct od_keys *keys, struct od_err *err)
{
	int rc = od_gate_new(&d->gate, d->context, &keys->own, err);

	if (rc != OD_OK)
		return rc;
	d->peers_path = keys->peers_path;
	return od_gate_admit_peers(d->gate, &keys->peers, keys->peers_path, err);
}

static int open_sockets(struct od_daemon *d, const struct od_daemon_opts *o, const char *host, struct od_err *err)
{
	int rc;

	d->context = od_zmq_context();
	if (d->context == NULL)
		return od_fail(err, OD_ERR_NOMEM, "cannot create a ZeroMQ context: %s", zmq_strerror(errno));
	rc = o->keys != NULL ? open_gate(d, o->keys, err) : OD_OK;
	if (rc == OD_OK)
		rc = od_bind_router(d->context, host, o->port, d->gate, &d->socket, &d->port, err);
	if (rc != OD_OK)
		return rc;
	rc = od_data_port_new(&d->data, d->context, host, o->data_port, d->gate, err);
	if (rc != OD_OK)
		return od_fail_within(err, "data socket (--data-port)");
	return d->gate != NULL ? od_gate_start(d->gate, err) : OD_OK;
}

static int open_daemon(struct od_daemon *d, const struct od_daemon_opts *o, struct od_err *err)
{
	const char *host;
	int rc = choose_address(o, &host, err);

	if (rc != OD_OK)
		return rc;
	if (sodium_init() < 0)
		return od_fail(err, OD_ERR_INTERNAL, "cannot get random numbers for the session id");
	d->posts = calloc(MAX_POSTS, sizeof(*d->posts));
	if (d->posts == NULL)
		return od_fail(err, OD_ERR_NOMEM, "queue of messages to main");
	signal(SIGPIPE, SIG_IGN);
	rc = open_sockets(d, o, host, err);
	if (rc == OD_OK)
		rc = start_handles(d, err);
	if (rc == OD_OK)
		rc = od_uv_socket_new(&d->control, &d->loop, d->socket, true, &socket_ops, d, err);
	return rc;
}

int od_daemon_new(struct od_daemon **out, const struct od_daemon_opts *opts, const struct od_daemon_ops *ops, void *arg,
		  struct od_data_port **data_port, struct od_err *err)
{
	struct od_daemon *d;
	int rc;

	*out = NULL;
	*data_port = NULL;
	d = calloc(1, sizeof(*d));
	if (d == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s", opts->role);
	pthread_mutex_init(&d->lock, NULL);
	d->role = opts->role;
	d->ops = ops;
	d->arg = arg;
	d->ready_fd = opts->ready_fd;
	d->parent = opts->parent;
	d->folder = opts->folder;
	memcpy(d->fingerprint, opts->fingerprint, sizeof(d->fingerprint));
	if (gethostname(d->host_name, sizeof(d->host_name) - 1) != 0)
		d->host_name[0] = '\0';
	od_boot_id(d->boot_id);
	rc = open_daemon(d, opts, err);
	if (rc != OD_OK) {
		od_daemon_free(d);
		return rc;
	}
	*data_port = d->data;
	*out = d;
	return OD_OK;
}

static int say_ready(struct od_daemon *d, struct od_err *err)
{
	char line[16];
	int n, rc = OD_OK;

	if (d->ready_fd < 0)
		return OD_OK;
	n = snprintf(line, sizeof(line), "%u\n", (unsigned)d->port);
	if (write(d->ready_fd, line, (size_t)n) != n)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot write the port to --ready-fd %d", d->ready_fd);
	close(d->ready_fd);
	d->ready_fd = -1;
	return rc;
}

int od_daemon_run(struct od_daemon *d, struct od_err *err)
{
	int rc = say_ready(d, err);

	if (rc != OD_OK)
		return rc;
	od_notify_ready("listening on port %u; no main has connected", d->port);
	uv_run(&d->loop, UV_RUN_DEFAULT);
	end_session(d, "stopping");
	if (d->failed != OD_OK) {
		od_notify_status("ended: %s", d->why.msg);
		*err = d->why;
	}
	return d->failed;
}

static void close_handle(uv_handle_t *h, void *arg)
{
	(void)arg;
	if (!uv_is_closing(h))
		uv_close(h, NULL);
}

void od_daemon_free(struct od_daemon *d)
{
	struct post p;

	if (d == NULL)
		return;
	od_gate_free(d->gate); /* before its sockets */
	if (d->control != NULL)
		od_uv_socket_close(d->control);
	else
		od_close_socket(d->socket);
	if (d->has_loop) {
		uv_walk(&d->loop, close_handle, NULL);
		uv_run(&d->loop, UV_RUN_DEFAULT);
		uv_loop_close(&d->loop);
	}
	while (take_post(d, &p))
		zmq_msg_close(&p.packed);
	od_data_port_free(d->data);
	while (d->context != NULL && zmq_ctx_term(d->context) != 0 && errno == EINTR)
		;
	if (d->ready_fd >= 0)
		close(d->ready_fd);
	pthread_mutex_destroy(&d->lock);
	free(d->posts);
	free(d);
}

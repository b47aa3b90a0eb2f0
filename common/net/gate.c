#include "common/net/gate.h"

#include "common/base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#define HANDLER "inproc://zeromq.zap.01"
/* Without it ZeroMQ lets any key in while there is no handler. zmq.h declares it for drafts only; the library always
 * has it. */
#define ZAP_ENFORCE_DOMAIN 93
#define WATCHED \
	(ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | \
	 ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL)
#define MAX_LOGGED 64
#define ADDRESS 64
/* ZeroMQ sends these to a client whose key is not admitted: greeting, WELCOME, ERROR. An admitted one gets READY (67
 * bytes). */
#define BYTES_WITHOUT_KEY (64 + 170 + 12)

/* A connection that may not have shown a key yet. */
struct pending {
	int fd; /* ZeroMQ's: it may be closed, and be another connection's by now */
	struct sockaddr_storage peer;
};

/* The newest connections of a ROUTER, oldest first. */
struct pendings {
	struct pending conn[OD_GATE_PENDING];
	unsigned n;
	uint64_t cut; /* ended here, and ZeroMQ has not told so yet */
	const char *failed; /* why the connection that ends next was refused */
};

struct od_gate {
	void *context, *handler;
	void *router[OD_GATE_SOCKETS], *watch[OD_GATE_SOCKETS]; /* watch: the monitor */
	unsigned n_watch, n_urls;
	struct od_key_pair own;
	int wake_fd;
	pthread_t thread;
	bool started;
	_Atomic uint64_t refused;
	void (*forged)(void *arg, const char *address); /* NULL: it is logged */
	void *forged_arg;

	pthread_mutex_t lock; /* guards what follows */
	uint8_t *key; /* [n_keys][OD_KEY_BYTES] */
	size_t n_keys;
	char where[PATH_MAX];

	/* The gate thread's. */
	struct {
		char address[ADDRESS];
		char reason[160];
	} logged[MAX_LOGGED];
	unsigned next_logged;
	struct pendings pending[OD_GATE_SOCKETS];
};

/* ---- the log ---- */

/* Once for each address and reason, as long as they are among the newest. */
static void refuse(struct od_gate *g, const char *address, const char *reason)
{
	atomic_fetch_add(&g->refused, 1);
	for (unsigned i = 0; i < MAX_LOGGED; i++) {
		if (strcmp(g->logged[i].address, address) == 0 && strcmp(g->logged[i].reason, reason) == 0)
			return;
	}
	snprintf(g->logged[g->next_logged].address, ADDRESS, "%s", address);
	snprintf(g->logged[g->next_logged].reason, sizeof(g->logged[0].reason), "%s", reason);
	g->next_logged = (g->next_logged + 1) % MAX_LOGGED;
	od_log_limited(OD_LOG_WARN, "refused a connection from %s: %s", address, reason);
}

/* ---- keys ---- */

static bool is_admitted(struct od_gate *g, const uint8_t *key)
{
	bool found = false;

	pthread_mutex_lock(&g->lock);
	for (size_t i = 0; i < g->n_keys && !found; i++)
		found = memcmp(g->key + i * OD_KEY_BYTES, key, OD_KEY_BYTES) == 0;
	pthread_mutex_unlock(&g->lock);
	return found;
}

static void refuse_key(struct od_gate *g, const char *address, const uint8_t *key)
{
	char text[OD_KEY_CHARS + 1], reason[160];

	pthread_mutex_lock(&g->lock);
	snprintf(reason, sizeof(reason), "its key %s is not in %s", od_key_text(key, text), g->where);
	pthread_mutex_unlock(&g->lock);
	refuse(g, address, reason);
}

/* ---- ZAP ---- */

enum {
	ZAP_VERSION,
	ZAP_REQUEST,
	ZAP_DOMAIN_NAME,
	ZAP_ADDRESS,
	ZAP_ROUTING_ID,
	ZAP_MECHANISM,
	ZAP_CREDENTIALS,
	ZAP_FRAMES
};

struct zap_frame {
	char bytes[256];
	size_t len; /* cut to the buffer */
};

/* A whole message; frames beyond ZAP_FRAMES are read and counted. 0: there is none. */
static int receive(void *handler, struct zap_frame frame[ZAP_FRAMES])
{
	int more = 1, n = 0;

	while (more) {
		struct zap_frame extra, *f = n < ZAP_FRAMES ? &frame[n] : &extra;
		size_t size = sizeof(more);
		int len = zmq_recv(handler, f->bytes, sizeof(f->bytes), ZMQ_DONTWAIT);

		if (len < 0 || zmq_getsockopt(handler, ZMQ_RCVMORE, &more, &size) != 0)
			return 0;
		f->len = (size_t)len < sizeof(f->bytes) ? (size_t)len : sizeof(f->bytes);
		n++;
	}
	return n;
}

static bool says(const struct zap_frame *f, const char *text)
{
	return f->len == strlen(text) && memcmp(f->bytes, text, f->len) == 0;
}

static void answer(void *handler, const struct zap_frame *request, bool admit)
{
	const struct {
		const char *bytes;
		size_t len;
	} frame[] = { { "1.0", 3 },
		      { request->bytes, request->len },
		      { admit ? "200" : "400", 3 },
		      { admit ? "OK" : "unknown key", admit ? 2 : 11 },
		      { "", 0 },
		      { "", 0 } };
	const size_t n = sizeof(frame) / sizeof(frame[0]);

	for (size_t i = 0; i < n; i++) {
		if (zmq_send(handler, frame[i].bytes, frame[i].len, i + 1 < n ? ZMQ_SNDMORE : 0) < 0)
			return; /* the asking thread is gone */
	}
}

static bool take_request(struct od_gate *g)
{
	struct zap_frame f[ZAP_FRAMES];
	char address[ADDRESS];
	int n = receive(g->handler, f);
	bool curve, admit;

	if (n == 0)
		return false;
	curve = n == ZAP_FRAMES && says(&f[ZAP_VERSION], "1.0") && says(&f[ZAP_MECHANISM], "CURVE") &&
		f[ZAP_CREDENTIALS].len == OD_KEY_BYTES;
	admit = curve && is_admitted(g, (const uint8_t *)f[ZAP_CREDENTIALS].bytes);
	if (!admit) {
		snprintf(address, sizeof(address), "%.*s", (int)f[ZAP_ADDRESS].len, f[ZAP_ADDRESS].bytes);
		if (curve)
			refuse_key(g, address, (const uint8_t *)f[ZAP_CREDENTIALS].bytes);
		else
			refuse(g, address, "it does not use keys");
	}
	if (n >= ZAP_REQUEST + 1)
		answer(g->handler, &f[ZAP_REQUEST], admit);
	return true;
}

/* ---- connections that never show a key ---- */

/* IPv4 that comes in by an IPv6 socket is shown as what it is. */
static const char *address_of(const struct pending *p, char *to)
{
	const struct sockaddr *a = (const struct sockaddr *)&p->peer;
	const struct in6_addr *v6 = &((const struct sockaddr_in6 *)a)->sin6_addr;

	if (a->sa_family == AF_INET &&
	    inet_ntop(AF_INET, &((const struct sockaddr_in *)a)->sin_addr, to, ADDRESS) != NULL)
		return to;
	if (a->sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(v6) &&
	    inet_ntop(AF_INET, &v6->s6_addr[12], to, ADDRESS) != NULL)
		return to;
	if (a->sa_family == AF_INET6 && inet_ntop(AF_INET6, v6, to, ADDRESS) != NULL)
		return to;
	return "an unknown address";
}

static void forget(struct pendings *w, unsigned at)
{
	w->n--;
	memmove(&w->conn[at], &w->conn[at + 1], (w->n - at) * sizeof(w->conn[0]));
}

/* It is still this connection, and its client has not been admitted. */
static bool is_waiting(const struct pending *p)
{
	struct sockaddr_storage now = { 0 };
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(now);

	if (getpeername(p->fd, (struct sockaddr *)&now, &len) != 0 || memcmp(&now, &p->peer, sizeof(now)) != 0)
		return false;
	len = sizeof(info);
	return getsockopt(p->fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0 || info.tcpi_bytes_acked <= BYTES_WITHOUT_KEY;
}

/* The oldest makes room: with a key a handshake takes milliseconds, so what has none by now is most likely a
 * stranger's. ZeroMQ notices the end and closes it. */
static void make_room(struct od_gate *g, struct pendings *w)
{
	const struct pending *p = &w->conn[0];
	char address[ADDRESS];

	if (is_waiting(p) && shutdown(p->fd, SHUT_RDWR) == 0) {
		w->cut++;
		refuse(g, address_of(p, address), "too many others have connected since, and it has not shown a key");
	}
	forget(w, 0);
}

static void remember(struct od_gate *g, struct pendings *w, int fd)
{
	struct pending p = { .fd = fd };
	socklen_t len = sizeof(p.peer);

	if (fd < 0 || getpeername(fd, (struct sockaddr *)&p.peer, &len) != 0)
		return; /* it is gone already */
	if (w->n == OD_GATE_PENDING)
		make_room(g, w);
	w->conn[w->n++] = p;
}

static const char forged[] = "it expects another key of this node, or its handshake is forged";

static void refuse_handshake(struct od_gate *g, const char *address, const char *failed)
{
	if (failed != forged || g->forged == NULL) {
		refuse(g, address, failed);
		return;
	}
	atomic_fetch_add(&g->refused, 1);
	g->forged(g->forged_arg, address);
}

/* An end without a failure is that of an admitted client. */
static void ended(struct od_gate *g, struct pendings *w, int fd)
{
	const char *failed = w->failed;
	char address[ADDRESS];
	unsigned at = 0;

	w->failed = NULL;
	while (at < w->n && w->conn[at].fd != fd)
		at++;
	if (failed != NULL && at == w->n && w->cut > 0)
		w->cut--;
	else if (failed != NULL)
		refuse_handshake(g, at < w->n ? address_of(&w->conn[at], address) : "an unknown address", failed);
	if (at < w->n)
		forget(w, at);
}

static const char *why(uint16_t event, uint32_t value)
{
	if (event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL)
		return "it broke off the handshake: it may not use keys";
	switch (value) {
	case ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH: return "it does not use keys";
	case ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC: return forged;
	default: return "its handshake is malformed";
	}
}

/* The failure comes first and does not say of which connection; then that connection ends. */
static void take_event(struct od_gate *g, struct pendings *w, uint16_t event, uint32_t value)
{
	if (event == ZMQ_EVENT_ACCEPTED)
		remember(g, w, (int)value);
	else if (event == ZMQ_EVENT_DISCONNECTED)
		ended(g, w, (int)value);
	else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL || event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL)
		w->failed = why(event, value);
}

static bool take_watch(struct od_gate *g, unsigned socket)
{
	uint8_t head[6];
	char endpoint[256];
	uint16_t event;
	uint32_t value;

	if (zmq_recv(g->watch[socket], head, sizeof(head), ZMQ_DONTWAIT) != (int)sizeof(head))
		return false;
	if (zmq_recv(g->watch[socket], endpoint, sizeof(endpoint), ZMQ_DONTWAIT) < 0)
		return false;
	memcpy(&event, head, sizeof(event));
	memcpy(&value, head + sizeof(event), sizeof(value));
	take_event(g, &g->pending[socket], event, value);
	return true;
}

/* ---- the thread ---- */

static void *gate_main(void *arg)
{
	struct od_gate *g = arg;
	zmq_pollitem_t item[OD_GATE_SOCKETS + 2] = { { .fd = g->wake_fd, .events = ZMQ_POLLIN },
						     { .socket = g->handler, .events = ZMQ_POLLIN } };

	for (unsigned i = 0; i < g->n_watch; i++)
		item[i + 2] = (zmq_pollitem_t){ .socket = g->watch[i], .events = ZMQ_POLLIN };
	for (;;) {
		if (zmq_poll(item, (int)g->n_watch + 2, -1) < 0 && errno != EINTR)
			break;
		if (item[0].revents != 0)
			break;
		while (take_request(g))
			;
		for (unsigned i = 0; i < g->n_watch; i++) {
			while (take_watch(g, i))
				;
		}
	}
	return NULL;
}

int od_gate_start(struct od_gate *g, struct od_err *err)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all); /* signals belong to other threads */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&g->thread, NULL, gate_main, g);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc != 0)
		return od_fail(err, OD_ERR_NOMEM, "cannot start the thread that checks keys: %s", strerror(rc));
	pthread_setname_np(g->thread, "od-gate");
	g->started = true;
	return OD_OK;
}

/* ---- life ---- */

static void *open_socket(struct od_gate *g, int type)
{
	const int zero = 0;
	void *s = zmq_socket(g->context, type);

	if (s != NULL &&
	    (zmq_setsockopt(s, ZMQ_LINGER, &zero, sizeof(zero)) != 0 ||
	     zmq_setsockopt(s, ZMQ_RCVHWM, &zero, sizeof(zero)) != 0)) { /* nothing here may block an I/O thread */
		zmq_close(s);
		s = NULL;
	}
	return s;
}

int od_gate_new(struct od_gate **out, void *zmq_context, const struct od_key_pair *own, struct od_err *err)
{
	struct od_gate *g = calloc(1, sizeof(*g));

	*out = NULL;
	if (g == NULL)
		return od_fail(err, OD_ERR_NOMEM, "key check");
	pthread_mutex_init(&g->lock, NULL);
	g->context = zmq_context;
	g->own = *own;
	g->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	g->handler = open_socket(g, ZMQ_REP);
	if (g->wake_fd < 0 || g->handler == NULL || zmq_bind(g->handler, HANDLER) != 0) {
		int rc = od_fail(err, OD_ERR_INTERNAL, "cannot set up the check of keys: %s", zmq_strerror(errno));

		od_gate_free(g);
		return rc;
	}
	*out = g;
	return OD_OK;
}

static bool set_server(const struct od_gate *g, void *router)
{
	const int on = 1;

	return zmq_setsockopt(router, ZMQ_CURVE_SERVER, &on, sizeof(on)) == 0 &&
	       zmq_setsockopt(router, ZMQ_CURVE_SECRETKEY, g->own.secret_key, OD_KEY_BYTES) == 0 &&
	       zmq_setsockopt(router, ZAP_ENFORCE_DOMAIN, &on, sizeof(on)) == 0;
}

int od_gate_guard(struct od_gate *g, void *router, struct od_err *err)
{
	char url[64];
	void *watch;

	if (g->n_watch == OD_GATE_SOCKETS || g->started)
		return od_fail(err, OD_ERR_INTERNAL, "the check of keys has too many sockets");
	if (!set_server(g, router))
		return od_fail(err, OD_ERR_UNSUPPORTED, "this ZeroMQ cannot check keys: %s", zmq_strerror(errno));
	snprintf(url, sizeof(url), "inproc://od-gate-%u", g->n_urls++);
	watch = zmq_socket_monitor(router, url, WATCHED) == 0 ? open_socket(g, ZMQ_PAIR) : NULL;
	if (watch == NULL || zmq_connect(watch, url) != 0) {
		int rc = od_fail(err, OD_ERR_INTERNAL, "cannot watch connections: %s", zmq_strerror(errno));

		zmq_socket_monitor(router, NULL, 0);
		if (watch != NULL)
			zmq_close(watch);
		return rc;
	}
	g->router[g->n_watch] = router;
	g->watch[g->n_watch++] = watch;
	return OD_OK;
}

void od_gate_on_forged(struct od_gate *g, void (*call)(void *arg, const char *address), void *arg)
{
	g->forged = call;
	g->forged_arg = arg;
}

/* The monitor ends before its events have no receiver: that would block ZeroMQ's I/O thread. */
static void end_watch(struct od_gate *g, unsigned i)
{
	zmq_socket_monitor(g->router[i], NULL, 0);
	zmq_close(g->watch[i]);
}

void od_gate_release(struct od_gate *g, void *router)
{
	for (unsigned i = 0; i < g->n_watch; i++) {
		if (g->router[i] != router)
			continue;
		end_watch(g, i);
		g->n_watch--;
		g->router[i] = g->router[g->n_watch];
		g->watch[i] = g->watch[g->n_watch];
		return;
	}
}

int od_gate_admit(struct od_gate *g, const uint8_t *key, size_t n, const char *where, struct od_err *err)
{
	uint8_t *copy = malloc(n * OD_KEY_BYTES + 1), *before;

	if (copy == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%zu keys", n);
	memcpy(copy, key, n * OD_KEY_BYTES);
	pthread_mutex_lock(&g->lock);
	before = g->key;
	g->key = copy;
	g->n_keys = n;
	snprintf(g->where, sizeof(g->where), "%s", where);
	pthread_mutex_unlock(&g->lock);
	free(before);
	return OD_OK;
}

int od_gate_admit_peers(struct od_gate *g, const struct od_peers *peers, const char *where, struct od_err *err)
{
	uint8_t *key = malloc(peers->n * OD_KEY_BYTES + 1);
	int rc;

	if (key == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%zu keys", peers->n);
	for (size_t i = 0; i < peers->n; i++)
		memcpy(key + i * OD_KEY_BYTES, peers->peer[i].key, OD_KEY_BYTES);
	rc = od_gate_admit(g, key, peers->n, where, err);
	free(key);
	return rc;
}

uint64_t od_gate_refused(struct od_gate *g)
{
	return g == NULL ? 0 : atomic_load(&g->refused);
}

void od_gate_free(struct od_gate *g)
{
	if (g == NULL)
		return;
	if (g->started) {
		eventfd_write(g->wake_fd, 1);
		pthread_join(g->thread, NULL);
	}
	for (unsigned i = 0; i < g->n_watch; i++)
		end_watch(g, i);
	if (g->handler != NULL)
		zmq_close(g->handler);
	if (g->wake_fd >= 0)
		close(g->wake_fd);
	pthread_mutex_destroy(&g->lock);
	free(g->key);
	sodium_memzero(&g->own, sizeof(g->own));
	free(g);
}

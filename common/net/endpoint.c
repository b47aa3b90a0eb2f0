#include "common/net/endpoint.h"

#include "common/net/gate.h"
#include "common/net/handshake.h"
#include "common/net/store_wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

/* With a domain set, ZeroMQ disconnects peers of ZMTP 1 and 2. Without a gate the domain has no other effect. Reason:
 * version 4.3.4 aborts when such a peer connects to a ROUTER while it is closed (process_routing_id_msg in
 * zmtp_engine.cpp). */
#define ZAP_DOMAIN "od-moe"
/* four for each of OD_MAX_HOSTS daemons while they connect, and the dead ones are being replaced */
#define MAX_SOCKETS 8192

/* The numbers and their reasons are in docs/PROTOCOL.md. */
static const struct {
	int option, value;
	const char *name;
} common_options[] = {
	{ ZMQ_LINGER, 0, "LINGER" },
	{ ZMQ_IMMEDIATE, 1, "IMMEDIATE" },
	{ ZMQ_SNDHWM, 10000, "SNDHWM" },
	{ ZMQ_RECONNECT_IVL, 10, "RECONNECT_IVL" },
	{ ZMQ_RECONNECT_IVL_MAX, 1000, "RECONNECT_IVL_MAX" },
	{ ZMQ_CONNECT_TIMEOUT, 2000, "CONNECT_TIMEOUT" },
	{ ZMQ_HANDSHAKE_IVL, 2000, "HANDSHAKE_IVL" },
	{ ZMQ_TCP_MAXRT, 10000, "TCP_MAXRT" },
	{ ZMQ_TCP_KEEPALIVE, 1, "TCP_KEEPALIVE" },
	{ ZMQ_TCP_KEEPALIVE_IDLE, 10, "TCP_KEEPALIVE_IDLE" },
	{ ZMQ_TCP_KEEPALIVE_INTVL, 5, "TCP_KEEPALIVE_INTVL" },
	{ ZMQ_TCP_KEEPALIVE_CNT, 3, "TCP_KEEPALIVE_CNT" },
};

/* Limits on what a peer can make us hold: frames, and messages that wait. */
struct bounds {
	int64_t frame_bytes;
	int messages;
};

static const struct bounds usual = { OD_MAX_FRAME_BYTES, 10000 };
static const struct bounds store = { OD_MAX_HEADER_BYTES, 1000 }; /* gets headers only */
static const struct bounds store_client = { OD_STORE_PIECE_BYTES, 2 * OD_STORE_MAX_OPEN };

void *od_zmq_context(void)
{
	void *context = zmq_ctx_new();

	if (context != NULL && zmq_ctx_set(context, ZMQ_MAX_SOCKETS, MAX_SOCKETS) != 0) {
		zmq_ctx_term(context);
		return NULL;
	}
	return context;
}

static int set_options(void *socket, int type, bool ipv6, const struct bounds *b, struct od_err *err)
{
	int on = 1;

	for (size_t i = 0; i < sizeof(common_options) / sizeof(common_options[0]); i++) {
		if (zmq_setsockopt(socket, common_options[i].option, &common_options[i].value, sizeof(int)) != 0)
			return od_fail(err, OD_ERR_INTERNAL, "ZeroMQ option %s: %s", common_options[i].name,
				       zmq_strerror(errno));
	}
	if (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &b->frame_bytes, sizeof(b->frame_bytes)) != 0 ||
	    zmq_setsockopt(socket, ZMQ_RCVHWM, &b->messages, sizeof(b->messages)) != 0 ||
	    zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, ZAP_DOMAIN, sizeof(ZAP_DOMAIN) - 1) != 0 ||
	    (type == ZMQ_ROUTER && zmq_setsockopt(socket, ZMQ_ROUTER_MANDATORY, &on, sizeof(on)) != 0) ||
	    (ipv6 && zmq_setsockopt(socket, ZMQ_IPV6, &on, sizeof(on)) != 0))
		return od_fail(err, OD_ERR_INTERNAL, "ZeroMQ options: %s", zmq_strerror(errno));
	return OD_OK;
}

static int open_socket(void *context, int type, bool ipv6, const struct bounds *b, void **socket, struct od_err *err)
{
	void *s = zmq_socket(context, type);
	int rc;

	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "cannot create a ZeroMQ socket: %s", zmq_strerror(errno));
	rc = set_options(s, type, ipv6, b, err);
	if (rc != OD_OK) {
		zmq_close(s);
		return rc;
	}
	*socket = s;
	return OD_OK;
}

struct address {
	char url[128]; /* tcp://NUMERIC:PORT */
	bool ipv6;
};

/* IPv4 goes first: our default listening addresses are IPv4. turn: which of them, and after the last the first
 * again. */
static const struct addrinfo *choose(const struct addrinfo *list, unsigned turn)
{
	unsigned n = 0;

	for (const struct addrinfo *a = list; a != NULL; a = a->ai_next)
		n++;
	turn %= n;
	for (int ipv4 = 1; ipv4 >= 0; ipv4--) {
		for (const struct addrinfo *a = list; a != NULL; a = a->ai_next)
			if ((a->ai_family == AF_INET) == ipv4 && turn-- == 0)
				return a;
	}
	return list;
}

/* Names become numbers here, because ZeroMQ would ask the name server on its I/O thread, where an answer that does
 * not come holds up every other connection. */
static int resolve(const char *host, uint16_t port, unsigned turn, struct address *out, struct od_err *err)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
	const struct addrinfo *chosen;
	struct addrinfo *list = NULL;
	char numeric[100]; /* an IPv6 address with the name of its interface */
	int rc = getaddrinfo(host, NULL, &hints, &list);

	if (rc != 0)
		return od_fail(err, OD_ERR_UNREACHABLE, "host \"%s\" has no address: %s", host,
			       rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
	chosen = choose(list, turn);
	out->ipv6 = chosen->ai_family == AF_INET6;
	rc = getnameinfo(chosen->ai_addr, chosen->ai_addrlen, numeric, sizeof(numeric), NULL, 0, NI_NUMERICHOST);
	freeaddrinfo(list);
	if (rc != 0)
		return od_fail(err, OD_ERR_UNREACHABLE, "host \"%s\": %s", host, gai_strerror(rc));
	snprintf(out->url, sizeof(out->url), out->ipv6 ? "tcp://[%s]:%u" : "tcp://%s:%u", numeric, (unsigned)port);
	return OD_OK;
}

static int bound_number(void *socket, uint16_t *port, struct od_err *err)
{
	char url[128];
	size_t size = sizeof(url);
	char *colon = NULL;

	if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, url, &size) == 0)
		colon = strrchr(url, ':');
	if (colon == NULL)
		return od_fail(err, OD_ERR_INTERNAL, "ZeroMQ does not report the port that it bound");
	*port = (uint16_t)strtoul(colon + 1, NULL, 10);
	return OD_OK;
}

static int bind_router(void *context, const char *host, uint16_t port, struct od_gate *gate, const struct bounds *b,
		       void **socket, uint16_t *bound_port, struct od_err *err)
{
	struct address to;
	void *s = NULL;
	int rc;

	*socket = NULL;
	*bound_port = 0;
	rc = resolve(host, port, 0, &to, err);
	if (rc == OD_OK)
		rc = open_socket(context, ZMQ_ROUTER, to.ipv6, b, &s, err);
	if (rc != OD_OK)
		return rc;
	rc = gate != NULL ? od_gate_guard(gate, s, err) : OD_OK;
	if (rc != OD_OK)
		goto fail;
	if (zmq_bind(s, to.url) != 0) {
		rc = errno == EADDRINUSE ?
			     od_fail(err, OD_ERR_BUSY,
				     "cannot listen on %s port %u: another program uses it; choose another port (--port, "
				     "or in the address of --serve-store)",
				     host, (unsigned)port) :
			     od_fail(err, OD_ERR_IO, "cannot listen on %s port %u: %s", host, (unsigned)port,
				     zmq_strerror(errno));
		goto fail;
	}
	rc = bound_number(s, bound_port, err);
	if (rc != OD_OK)
		goto fail;
	*socket = s;
	return OD_OK;
fail:
	if (gate != NULL)
		od_gate_release(gate, s);
	od_close_socket(s);
	return rc;
}

int od_bind_router(void *context, const char *host, uint16_t port, struct od_gate *gate, void **socket,
		   uint16_t *bound_port, struct od_err *err)
{
	return bind_router(context, host, port, gate, &usual, socket, bound_port, err);
}

int od_bind_store(void *context, const char *host, uint16_t port, struct od_gate *gate, void **socket,
		  uint16_t *bound_port, struct od_err *err)
{
	return bind_router(context, host, port, gate, &store, socket, bound_port, err);
}

static int set_curve(void *socket, const struct od_curve *c, struct od_err *err)
{
	if (c == NULL)
		return OD_OK;
	if (zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, c->server, OD_KEY_BYTES) == 0 &&
	    zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, c->own->public_key, OD_KEY_BYTES) == 0 &&
	    zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, c->own->secret_key, OD_KEY_BYTES) == 0)
		return OD_OK;
	return od_fail(err, OD_ERR_UNSUPPORTED, "this ZeroMQ cannot use keys: %s", zmq_strerror(errno));
}

/* once: no second attempt. */
static int connect_dealer(void *context, const char *host, uint16_t port, unsigned turn, const struct od_curve *curve,
			  const struct bounds *b, bool once, void **socket, void **watch, struct od_err *err)
{
	const int never = -1;
	struct address to;
	void *s = NULL;
	int rc;

	*socket = NULL;
	rc = resolve(host, port, turn, &to, err);
	if (rc == OD_OK)
		rc = open_socket(context, ZMQ_DEALER, to.ipv6, b, &s, err);
	if (rc == OD_OK)
		rc = set_curve(s, curve, err);
	if (rc == OD_OK && once && zmq_setsockopt(s, ZMQ_RECONNECT_IVL, &never, sizeof(never)) != 0)
		rc = od_fail(err, OD_ERR_INTERNAL, "ZeroMQ option RECONNECT_IVL: %s", zmq_strerror(errno));
	if (rc == OD_OK && watch != NULL)
		*watch = od_handshake_watch(context, s);
	if (rc == OD_OK && zmq_connect(s, to.url) != 0)
		rc = od_fail(err, OD_ERR_UNREACHABLE, "cannot connect to %s port %u: %s", host, (unsigned)port,
			     zmq_strerror(errno));
	if (rc != OD_OK) {
		if (watch != NULL)
			od_handshake_end(*watch, s);
		od_close_socket(s);
		return rc;
	}
	*socket = s;
	return OD_OK;
}

static int connect_watched(void *context, const char *host, uint16_t port, const struct od_curve *curve,
			   const struct bounds *b, bool once, void **socket, void **watch, struct od_err *err)
{
	int rc;

	*watch = NULL;
	rc = connect_dealer(context, host, port, 0, curve, b, once, socket, watch, err);
	if (rc != OD_OK)
		*watch = NULL;
	return rc;
}

int od_connect_watched(void *context, const char *host, uint16_t port, const struct od_curve *curve, void **socket,
		       void **watch, struct od_err *err)
{
	return connect_watched(context, host, port, curve, &usual, false, socket, watch, err);
}

int od_connect_once(void *context, const char *host, uint16_t port, const struct od_curve *curve, void **socket,
		    void **watch, struct od_err *err)
{
	return connect_watched(context, host, port, curve, &store, true, socket, watch, err);
}

int od_connect_dealer(void *context, const char *host, uint16_t port, const struct od_curve *curve, void **socket,
		      struct od_err *err)
{
	return connect_dealer(context, host, port, 0, curve, &usual, false, socket, NULL, err);
}

int od_connect_store(void *context, const char *host, uint16_t port, unsigned turn, const struct od_curve *curve,
		     void **socket, struct od_err *err)
{
	return connect_dealer(context, host, port, turn, curve, &store_client, false, socket, NULL, err);
}

void od_close_socket(void *socket)
{
	if (socket != NULL)
		zmq_close(socket);
}

bool od_is_loopback(const char *host)
{
	struct in6_addr v6;
	struct in_addr v4;

	if (inet_pton(AF_INET, host, &v4) == 1)
		return ntohl(v4.s_addr) >> 24 == 127;
	if (inet_pton(AF_INET6, host, &v6) == 1)
		return IN6_IS_ADDR_LOOPBACK(&v6);
	return strcasecmp(host, "localhost") == 0;
}

/* endpoint.h - opens ZeroMQ sockets with the options of PROTOCOL.md, "Socket options": LINGER 0, IMMEDIATE, MAXMSGSIZE,
 * ROUTER_MANDATORY, reconnect after 10 ms up to 1 s, no ZeroMQ heartbeats.
 *
 * Thread: a socket belongs to one thread, the context to the process. Owner: the caller closes sockets. */
#ifndef OD_NET_ENDPOINT_H
#define OD_NET_ENDPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/net/keys.h"

struct od_gate;

/* Encrypts a connection and authenticates both ends; a NULL pointer to it: neither. */
struct od_curve {
	const struct od_key_pair *own;
	const uint8_t *server; /* [OD_KEY_BYTES]: the only key that the other side may have */
};

/* One ZeroMQ I/O thread. NULL when out of memory. */
void *od_zmq_context(void);

/* A ROUTER bound to host:port ("127.0.0.1", "0.0.0.0", "::", a name of this machine); port 0: any free port.
 * *bound_port is the port in use. If another program uses the port, err names the option that changes it. gate: who may
 * connect, and it encrypts; NULL: anybody, in the clear. */
OD_MUST_CHECK int od_bind_router(void *context, const char *host, uint16_t port, struct od_gate *gate, void **socket,
				 uint16_t *bound_port, struct od_err *err);

/* A DEALER that connects (and keeps reconnecting) to host:port; host may be a name or an IPv6 address. */
OD_MUST_CHECK int od_connect_dealer(void *context, const char *host, uint16_t port, const struct od_curve *curve,
				    void **socket, struct od_err *err);

/* Like od_connect_dealer, with a watch that says why it does not connect (handshake.h); *watch may be NULL. */
OD_MUST_CHECK int od_connect_watched(void *context, const char *host, uint16_t port, const struct od_curve *curve,
				     void **socket, void **watch, struct od_err *err);

/* Like od_connect_watched for one attempt: the socket never connects again, and takes headers only. For pairing, whose
 * other side counts attempts. */
OD_MUST_CHECK int od_connect_once(void *context, const char *host, uint16_t port, const struct od_curve *curve,
				  void **socket, void **watch, struct od_err *err);

/* Like od_bind_router and od_connect_dealer for the store (store_wire.h), with tighter bounds on the memory that an
 * unknown peer can make us hold. turn chooses among the addresses that the name has; the first follows the last. */
OD_MUST_CHECK int od_bind_store(void *context, const char *host, uint16_t port, struct od_gate *gate, void **socket,
				uint16_t *bound_port, struct od_err *err);
OD_MUST_CHECK int od_connect_store(void *context, const char *host, uint16_t port, unsigned turn,
				   const struct od_curve *curve, void **socket, struct od_err *err);

void od_close_socket(void *socket); /* NULL ok */

/* True for 127.0.0.0/8, ::1 and "localhost". */
bool od_is_loopback(const char *host);

#endif

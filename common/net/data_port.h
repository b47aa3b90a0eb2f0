/* data_port.h - a daemon's data socket: a ROUTER that listens to one main at a time.
 *
 * The first message on a connection must be ATTACH with the session that WELCOME gave; it is answered with ATTACHED.
 * What comes from other connections, or with another session, is dropped and logged (rate-limited).
 * Thread: the engine thread owns the socket; od_data_port_set_session and od_data_port_wake from any thread. */
#ifndef OD_NET_DATA_PORT_H
#define OD_NET_DATA_PORT_H

#include "common/net/wire.h"

struct od_data_port;

OD_MUST_CHECK int od_data_port_new(struct od_data_port **out, void *zmq_context, const char *host, uint16_t port,
				   struct od_err *err);
void od_data_port_free(struct od_data_port *p); /* by the thread that used it last, after a join; NULL ok */
uint16_t od_data_port_number(const struct od_data_port *p);

/* 0: nobody. Takes effect for the next message; the old connection is forgotten. Wakes the engine. */
void od_data_port_set_session(struct od_data_port *p, uint64_t session);
uint64_t od_data_port_session(const struct od_data_port *p);
/* Makes od_data_port_wait return. */
void od_data_port_wake(struct od_data_port *p);

/* Sleep until there may be a message, a wake, or timeout_ms passed (-1: no limit). */
void od_data_port_wait(struct od_data_port *p, int timeout_ms);
/* A message of the attached main, of the current session; OD_ERR_BUSY when there is none. Never blocks.
 * ATTACH is answered here and not returned. */
OD_MUST_CHECK int od_data_port_recv(struct od_data_port *p, struct od_msg *m);
/* To the attached main. OD_ERR_UNREACHABLE: nobody is attached or it is gone, or header->session is neither 0 nor the
 * attached one (an answer to a main that is gone must not reach its successor). Waits while the queue is full, at
 * most a second (then OD_ERR_TIMEOUT). session and version are filled in. */
OD_MUST_CHECK int od_data_port_send(struct od_data_port *p, Od__Header *header, const struct od_out_frame *frames,
				    size_t n_frames);

#endif

/* data_port.h - a daemon's data socket: a ROUTER that serves one main at a time.
 *
 * The first message on a connection must be ATTACH with the session id of WELCOME; the answer is ATTACHED. Messages of
 * other connections or sessions are dropped and logged (rate-limited).
 * Thread: the engine thread owns the socket; od_data_port_set_session and od_data_port_wake from any thread.
 * Owner: od_data_port_new's caller. */
#ifndef OD_NET_DATA_PORT_H
#define OD_NET_DATA_PORT_H

#include "common/net/wire.h"

struct od_data_port;
struct od_gate;

/* gate: as od_bind_router's. */
OD_MUST_CHECK int od_data_port_new(struct od_data_port **out, void *zmq_context, const char *host, uint16_t port,
				   struct od_gate *gate, struct od_err *err);
void od_data_port_free(struct od_data_port *p); /* after its thread has been joined; NULL ok */
uint16_t od_data_port_number(const struct od_data_port *p);

/* 0: no session. Takes effect from the next message on and detaches the old connection. Wakes the engine. */
void od_data_port_set_session(struct od_data_port *p, uint64_t session);
uint64_t od_data_port_session(const struct od_data_port *p);
/* Makes od_data_port_wait return. */
void od_data_port_wake(struct od_data_port *p);

/* Sleeps until there may be a message, od_data_port_wake was called, or timeout_ms passed (-1: no limit). */
void od_data_port_wait(struct od_data_port *p, int timeout_ms);
/* Returns a message of the attached main and current session; OD_ERR_BUSY: there is none. Never blocks. Answers ATTACH
 * itself. */
OD_MUST_CHECK int od_data_port_recv(struct od_data_port *p, struct od_msg *m);
/* Sends to the attached main; session and version are filled in. OD_ERR_UNREACHABLE: no main is attached or it
 * disconnected, or header->session is neither 0 nor the attached one (an answer for an earlier main must not reach its
 * successor). Waits while the queue is full, at most 1 s (then OD_ERR_TIMEOUT). */
OD_MUST_CHECK int od_data_port_send(struct od_data_port *p, Od__Header *header, const struct od_out_frame *frames,
				    size_t n_frames);

#endif

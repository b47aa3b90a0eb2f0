/* wire.h - one message: a protobuf header and raw tensor frames, over a ZeroMQ socket (design section 7).
 *
 * Thread: the one that owns the socket. Owner: od_msg_init/od_wire_recv ... od_msg_fini by the caller; frames
 * are zmq_msg_t, so tensor bytes are neither copied by protobuf nor by us on receipt. */
#ifndef OD_NET_WIRE_H
#define OD_NET_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#include "common/base/counters.h"
#include "common/base/status.h"
#include "proto/od.pb-c.h"

#define OD_PROTOCOL_VERSION 3
#define OD_MAX_FRAMES 3			  /* header and two tensors */
#define OD_MAX_HEADER_BYTES (256u * 1024u)
#define OD_MAX_FRAME_BYTES (64u * 1024u * 1024u) /* ZMQ_MAXMSGSIZE of every socket */

/* One RUN at most: what a worker sets memory aside for. Main cuts its rows so that neither is passed. */
#define OD_MAX_RUN_ROWS 4096u
#define OD_MAX_RUN_BYTES (8u * 1024u * 1024u) /* of its rows */
/* Of the rows of a worker's RUNs that have not had all their answers: main sends no more. */
#define OD_MAX_HELD_BYTES (2 * OD_MAX_RUN_BYTES)
/* The most rows of so many bytes that a RUN may have, whatever HELLO says; at least 1. */
static inline uint32_t od_max_run_rows(size_t row_bytes)
{
	const size_t rows = OD_MAX_RUN_BYTES / row_bytes;

	return rows == 0 ? 1 : rows < OD_MAX_RUN_ROWS ? (uint32_t)rows : OD_MAX_RUN_ROWS;
}

/* A routing id as ROUTER sockets make them (automatic: 5 bytes; others are refused). */
struct od_route {
	uint8_t id[8];
	uint8_t len;
};

static inline bool od_route_equal(const struct od_route *a, const struct od_route *b)
{
	return a->len == b->len && __builtin_memcmp(a->id, b->id, a->len) == 0;
}

struct od_msg {
	struct od_route route;		  /* ROUTER sockets only: from whom */
	Od__Header *header;		  /* unpacked; NULL after od_msg_fini */
	zmq_msg_t frame[OD_MAX_FRAMES - 1]; /* tensors */
	size_t n_frames;
};

static inline const void *od_msg_frame(const struct od_msg *m, size_t i, size_t *bytes)
{
	*bytes = i < m->n_frames ? zmq_msg_size(&m->frame[i]) : 0;
	return i < m->n_frames ? zmq_msg_data((zmq_msg_t *)&m->frame[i]) : NULL;
}

/* Receive without blocking. OD_OK: *m is filled; its version may be another one (see od_check_version).
 * OD_ERR_BUSY: nothing there. OD_ERR_PROTOCOL: something that is no message of ours (too many frames, a header
 * that does not unpack, no body); it was consumed, m->route says from whom, err why. Other codes: the socket is
 * broken. */
OD_MUST_CHECK int od_wire_recv(void *socket, bool is_router, struct od_msg *m, struct od_err *err);
void od_msg_fini(struct od_msg *m); /* frees; fine to call twice */

/* OD_ERR_MISMATCH names both versions. Only the handshake may look at a header that fails this. */
OD_MUST_CHECK int od_check_version(const Od__Header *header, struct od_err *err);

/* A tensor frame to send. With done NULL the bytes are copied; else they are sent in place and done(bytes, hint)
 * is called once they are no longer needed, perhaps on a ZeroMQ thread. When the send fails it is not called. */
struct od_out_frame {
	const void *bytes;
	size_t len;
	void (*done)(void *bytes, void *hint);
	void *hint;
};

/* Send without blocking; route NULL on DEALER sockets. version is filled in. OD_ERR_BUSY: the queue is full (or the
 * other side is not connected: sockets are IMMEDIATE); OD_ERR_UNREACHABLE: the route is gone; OD_ERR_RANGE: more
 * than a message may hold. Nothing was sent. */
OD_MUST_CHECK int od_wire_send(void *socket, const struct od_route *route, Od__Header *header,
			       const struct od_out_frame *frames, size_t n_frames);

/* The same in two halves, for a header that is packed on one thread and sent on another. od_wire_send_packed takes
 * *packed only when it returns OD_OK; else the caller closes it. */
OD_MUST_CHECK int od_wire_pack(Od__Header *header, zmq_msg_t *packed);
OD_MUST_CHECK int od_wire_send_packed(void *socket, const struct od_route *route, zmq_msg_t *packed,
				      const struct od_out_frame *frames, size_t n_frames);

/* The counters of a PONG, by their names. Into it: those that are not 0, from the caller's list until it is sent. Out of it:
 * of any peer's; what is unknown is left out, what is missing is 0. */
struct od_pong_counters {
	Od__Counter entry[OD_N_COUNTERS], *list[OD_N_COUNTERS];
};
void od_pong_put(Od__Pong *p, struct od_pong_counters *list, const uint64_t *c);
void od_pong_get(const Od__Pong *p, uint64_t *c);

/* "RUN", for logs. */
const char *od_body_name(Od__Header__BodyCase body);
/* A peer's string made fit for a log line: cut to size, and only printable ASCII. Returns buf. */
const char *od_peer_text(const char *text, char *buf, size_t size);

#endif

/* wire.h - sends and receives messages over ZeroMQ: a protobuf header and raw tensor frames (docs/PROTOCOL.md).
 *
 * Frames are zmq_msg_t, so tensor bytes are not copied on receipt.
 * Thread: the one that owns the socket. Owner: the caller, from od_wire_recv to od_msg_fini. */
#ifndef OD_NET_WIRE_H
#define OD_NET_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#include "common/base/counters.h"
#include "common/base/status.h"
#include "proto/od.pb-c.h"

#if PROTOBUF_C_VERSION_NUMBER < 1004000 /* as in Ubuntu 22.04 */
#define _OD__HEADER__BODY__CASE_IS_INT_SIZE _OD__HEADER__BODY_IS_INT_SIZE
#endif

#define OD_PROTOCOL_VERSION 5
#define OD_MAX_FRAMES 4 /* header and three tensors: STATE of a MoE layer with recent experts */
#define OD_MAX_REQUESTS_BYTES 1024 /* RUN.requests with its end; longer lists are cut */
#define OD_MAX_PONG_SUMS 256u /* experts of which a PONG has checksums (9 KB); fewer: the sender has no more now */
#define OD_MAX_HEADER_BYTES (256u * 1024u)
#define OD_MAX_FRAME_BYTES (64u * 1024u * 1024u) /* ZMQ_MAXMSGSIZE of every socket */

/* Limits of one RUN, for which a worker reserves memory. Main splits its rows to stay within both. */
#define OD_MAX_PADDING (64u * 1024u) /* bytes, in a PING or a PONG */
#define OD_MAX_RUN_ROWS 4096u
#define OD_MAX_RUN_BYTES (8u * 1024u * 1024u) /* all rows of a RUN */
/* all rows of a RUN */
#define OD_MAX_HELD_BYTES (2 * OD_MAX_RUN_BYTES)
/* The largest number of rows of row_bytes each in a RUN, whatever HELLO says; at least 1. */
static inline uint32_t od_max_run_rows(size_t row_bytes)
{
	const size_t rows = OD_MAX_RUN_BYTES / row_bytes;

	return rows == 0 ? 1 : rows < OD_MAX_RUN_ROWS ? (uint32_t)rows : OD_MAX_RUN_ROWS;
}

/* A ROUTER socket's routing id of a peer. Only automatic ids (5 bytes) are accepted. */
struct od_route {
	uint8_t id[8];
	uint8_t len;
};

static inline bool od_route_equal(const struct od_route *a, const struct od_route *b)
{
	return a->len == b->len && __builtin_memcmp(a->id, b->id, a->len) == 0;
}

struct od_msg {
	struct od_route route; /* ROUTER sockets only: the sender */
	Od__Header *header; /* unpacked; NULL after od_msg_fini */
	zmq_msg_t frame[OD_MAX_FRAMES - 1]; /* tensors */
	size_t n_frames;
};

static inline const void *od_msg_frame(const struct od_msg *m, size_t i, size_t *bytes)
{
	*bytes = i < m->n_frames ? zmq_msg_size(&m->frame[i]) : 0;
	return i < m->n_frames ? zmq_msg_data((zmq_msg_t *)&m->frame[i]) : NULL;
}

/* Receives without blocking. OD_OK: *m is filled; its protocol version may differ (see od_check_version). OD_ERR_BUSY:
 * no message. OD_ERR_PROTOCOL: a malformed message (too many frames, a header that does not unpack, no body) was
 * dropped; m->route is the sender, err the reason. Other codes: the socket is broken. */
OD_MUST_CHECK int od_wire_recv(void *socket, bool is_router, struct od_msg *m, struct od_err *err);
void od_msg_fini(struct od_msg *m); /* frees; may be called twice */

/* OD_ERR_MISMATCH names both versions. Only the handshake may read a header that fails this check. */
OD_MUST_CHECK int od_check_version(const Od__Header *header, struct od_err *err);

/* A tensor frame to send. done NULL: the bytes are copied. Otherwise they are sent in place, and done(bytes, hint) is
 * called when ZeroMQ no longer needs them, possibly on a ZeroMQ thread; it is not called when the send fails. */
struct od_out_frame {
	const void *bytes;
	size_t len;
	void (*done)(void *bytes, void *hint);
	void *hint;
};

/* Sends without blocking; route is NULL on DEALER sockets; version is filled in. OD_ERR_BUSY: the queue is full, or the
 * peer is not connected (sockets are IMMEDIATE). OD_ERR_UNREACHABLE: the peer of the route disconnected. OD_ERR_RANGE:
 * the message is too large. On an error nothing was sent. */
OD_MUST_CHECK int od_wire_send(void *socket, const struct od_route *route, Od__Header *header,
			       const struct od_out_frame *frames, size_t n_frames);

/* od_wire_send in two steps, to pack a header on one thread and send it on another. od_wire_send_packed takes *packed
 * only when it returns OD_OK; otherwise the caller closes it. */
OD_MUST_CHECK int od_wire_pack(Od__Header *header, zmq_msg_t *packed);
OD_MUST_CHECK int od_wire_send_packed(void *socket, const struct od_route *route, zmq_msg_t *packed,
				      const struct od_out_frame *frames, size_t n_frames);

/* The counters of a PONG, by name. put: adds those that are not 0; p points into *list, which must live until p is
 * sent. get: reads a peer's; unknown names are ignored, missing counters are 0. */
struct od_pong_counters {
	Od__Counter entry[OD_N_COUNTERS], *list[OD_N_COUNTERS];
};
void od_pong_put(Od__Pong *p, struct od_pong_counters *list, const uint64_t *c);
void od_pong_get(const Od__Pong *p, uint64_t *c);

/* The name of a message kind for logs: "RUN". */
const char *od_body_name(Od__Header__BodyCase body);
/* Copies a peer's string for a log line: cut to size, printable ASCII only. Returns buf. */
const char *od_peer_text(const char *text, char *buf, size_t size);

#endif

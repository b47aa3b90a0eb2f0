/* uv_socket.h - a ZeroMQ socket on a libuv loop.
 *
 * ZMQ_FD is edge-triggered and our own sends change its state too. So the wrapper receives until the socket is empty,
 * and checks it again after every send.
 * Thread: the loop's. Owner: the wrapper owns the socket and closes it; if od_uv_socket_new fails, the caller closes
 * it. */
#ifndef OD_NET_UV_SOCKET_H
#define OD_NET_UV_SOCKET_H

#include <uv.h>

#include "common/net/wire.h"

struct od_uv_socket;

struct od_uv_socket_ops {
	/* A valid message, borrowed for the call. The callback may close the socket. */
	void (*message)(void *arg, struct od_msg *m);
	/* A malformed message was dropped. route is empty on DEALERs. */
	void (*garbage)(void *arg, const struct od_route *route, const struct od_err *why);
};

OD_MUST_CHECK int od_uv_socket_new(struct od_uv_socket **out, uv_loop_t *loop, void *zmq_socket, bool is_router,
				   const struct od_uv_socket_ops *ops, void *arg, struct od_err *err);
/* Closes the ZeroMQ socket at once and the handles on the next turn of the loop. NULL ok. */
void od_uv_socket_close(struct od_uv_socket *s);
OD_MUST_CHECK int od_uv_socket_send(struct od_uv_socket *s, const struct od_route *route, Od__Header *header,
				    const struct od_out_frame *frames, size_t n_frames);
/* See od_wire_send_packed. */
OD_MUST_CHECK int od_uv_socket_send_packed(struct od_uv_socket *s, const struct od_route *route, zmq_msg_t *packed);

#endif

#include "common/net/uv_socket.h"

#include "common/base/log.h"
#include "common/net/endpoint.h"

#include <stdlib.h>

#define MESSAGES_AT_ONCE 64 /* twice in a turn of the loop at most; then timers and the other sockets get theirs */

struct od_uv_socket {
	void *socket; /* NULL once closed */
	bool is_router;
	const struct od_uv_socket_ops *ops;
	void *arg;
	uv_poll_t poll; /* the descriptor that says "look" */
	uv_idle_t more; /* runs while there is something that the descriptor will not announce again */
	int n_handles;
};

static void on_more(uv_idle_t *h);

static bool readable(struct od_uv_socket *s)
{
	int events = 0;
	size_t size = sizeof(events);

	return zmq_getsockopt(s->socket, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN) != 0;
}

/* Sending and receiving swallow the edge for what came in meanwhile. */
static void look_again(struct od_uv_socket *s)
{
	if (readable(s))
		uv_idle_start(&s->more, on_more);
	else
		uv_idle_stop(&s->more);
}

static void drain(struct od_uv_socket *s)
{
	for (int i = 0; i < MESSAGES_AT_ONCE && s->socket != NULL; i++) {
		struct od_err err = { 0 };
		struct od_msg m;
		int rc = od_wire_recv(s->socket, s->is_router, &m, &err);

		if (rc == OD_OK) {
			s->ops->message(s->arg, &m);
			od_msg_fini(&m);
		} else if (rc == OD_ERR_PROTOCOL) {
			s->ops->garbage(s->arg, &m.route, &err);
		} else {
			if (rc != OD_ERR_BUSY)
				od_log_limited(OD_LOG_ERROR, "control socket: %s", err.msg);
			break;
		}
	}
	if (s->socket != NULL) /* a callback may have closed it */
		look_again(s);
}

static void on_poll(uv_poll_t *h, int status, int events)
{
	(void)status; /* ZMQ_EVENTS tells the truth either way */
	(void)events;
	drain(h->data);
}

static void on_more(uv_idle_t *h)
{
	drain(h->data);
}

int od_uv_socket_new(struct od_uv_socket **out, uv_loop_t *loop, void *zmq_socket, bool is_router,
		     const struct od_uv_socket_ops *ops, void *arg, struct od_err *err)
{
	struct od_uv_socket *s;
	size_t size = sizeof(int);
	int fd, rc;

	*out = NULL;
	if (zmq_getsockopt(zmq_socket, ZMQ_FD, &fd, &size) != 0)
		return od_fail(err, OD_ERR_INTERNAL, "ZeroMQ socket: cannot get its descriptor: %s",
			       zmq_strerror(errno));
	s = calloc(1, sizeof(*s));
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "control socket");
	rc = uv_poll_init(loop, &s->poll, fd);
	if (rc != 0) {
		free(s);
		return od_fail(err, OD_ERR_IO, "control socket: %s", uv_strerror(rc));
	}
	uv_idle_init(loop, &s->more); /* it and the starts below cannot fail */
	uv_poll_start(&s->poll, UV_READABLE, on_poll);
	s->socket = zmq_socket;
	s->is_router = is_router;
	s->ops = ops;
	s->arg = arg;
	s->n_handles = 2;
	s->poll.data = s;
	s->more.data = s;
	look_again(s); /* messages that came before now had their edge already */
	*out = s;
	return OD_OK;
}

static void on_closed(uv_handle_t *h)
{
	struct od_uv_socket *s = h->data;

	if (--s->n_handles == 0)
		free(s);
}

void od_uv_socket_close(struct od_uv_socket *s)
{
	if (s == NULL || s->socket == NULL)
		return;
	/* The descriptor is ZeroMQ's and goes with its socket: the loop must have let go of it before. */
	uv_close((uv_handle_t *)&s->poll, on_closed);
	uv_close((uv_handle_t *)&s->more, on_closed);
	od_close_socket(s->socket);
	s->socket = NULL;
}

int od_uv_socket_send_packed(struct od_uv_socket *s, const struct od_route *route, zmq_msg_t *packed)
{
	int rc = od_wire_send_packed(s->socket, route, packed, NULL, 0);

	look_again(s);
	return rc;
}

int od_uv_socket_send(struct od_uv_socket *s, const struct od_route *route, Od__Header *header,
		      const struct od_out_frame *frames, size_t n_frames)
{
	int rc = od_wire_send(s->socket, route, header, frames, n_frames);

	look_again(s);
	return rc;
}

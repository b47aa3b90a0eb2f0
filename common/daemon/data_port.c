#include "common/daemon/data_port.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/net/endpoint.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define DROPS_PER_RECV 64 /* strangers must not keep the engine from its other work */
#define SEND_PATIENCE_NS OD_NS_PER_S
#define SEND_RETRY_NS OD_NS_PER_MS

struct od_data_port {
	void *socket;
	int wake_fd;
	uint16_t number;
	_Atomic uint64_t session;
	_Atomic uint64_t ended; /* the one before it */
	/* The engine thread's. */
	struct od_route route; /* Used by the engine thread only. */
	uint64_t attached; /* the session it attached with */
};

int od_data_port_new(struct od_data_port **out, void *zmq_context, const char *host, uint16_t port,
		     struct od_gate *gate, struct od_err *err)
{
	struct od_data_port *p;
	int rc;

	*out = NULL;
	p = calloc(1, sizeof(*p));
	if (p == NULL)
		return od_fail(err, OD_ERR_NOMEM, "data port");
	p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = p->wake_fd >= 0 ? od_bind_router(zmq_context, host, port, gate, &p->socket, &p->number, err) :
			       od_fail_errno(err, OD_ERR_IO, "data port: cannot create an eventfd");
	if (rc != OD_OK) {
		od_data_port_free(p);
		return rc;
	}
	*out = p;
	return OD_OK;
}

void od_data_port_free(struct od_data_port *p)
{
	if (p == NULL)
		return;
	od_close_socket(p->socket);
	if (p->wake_fd >= 0)
		close(p->wake_fd);
	free(p);
}

uint16_t od_data_port_number(const struct od_data_port *p)
{
	return p->number;
}

void od_data_port_set_session(struct od_data_port *p, uint64_t session)
{
	uint64_t before = atomic_exchange(&p->session, session);

	if (before != 0)
		atomic_store(&p->ended, before);
	od_data_port_wake(p);
}

uint64_t od_data_port_session(const struct od_data_port *p)
{
	return atomic_load(&p->session);
}

void od_data_port_wake(struct od_data_port *p)
{
	eventfd_write(p->wake_fd, 1); /* fails only when it is full of wakes already */
}

void od_data_port_wait(struct od_data_port *p, int timeout_ms)
{
	zmq_pollitem_t item[] = { { .socket = p->socket, .events = ZMQ_POLLIN },
				  { .fd = p->wake_fd, .events = ZMQ_POLLIN } };
	eventfd_t n;

	if (zmq_poll(item, 2, timeout_ms) > 0 && item[1].revents != 0)
		eventfd_read(p->wake_fd, &n);
}

/* Forgets a main whose session is over. */
static bool attached(struct od_data_port *p)
{
	if (p->attached != atomic_load(&p->session))
		p->route.len = 0;
	return p->route.len > 0;
}

/* The newest connection that knows the session wins: main's socket may have reconnected. */
static void attach(struct od_data_port *p, const struct od_msg *m)
{
	Od__Header header = OD__HEADER__INIT;
	Od__Attached body = OD__ATTACHED__INIT;
	int rc;

	p->route = m->route;
	p->attached = m->header->session;
	header.session = p->attached;
	header.epoch = m->header->epoch;
	header.body_case = OD__HEADER__BODY_ATTACHED;
	header.attached = &body;
	rc = od_wire_send(p->socket, &p->route, &header, NULL, 0);
	if (rc == OD_OK)
		return;
	od_log_limited(OD_LOG_WARN, "data socket: cannot answer ATTACH: %s", od_status_text(rc));
	p->route.len = 0;
}

/* True when the message is the caller's. */
static bool admit(struct od_data_port *p, const struct od_msg *m, struct od_err *err)
{
	uint64_t session = atomic_load(&p->session);

	if (od_check_version(m->header, err) != OD_OK)
		return false;
	if (session == 0 || m->header->session != session) {
		od_fail(err, OD_ERR_PROTOCOL, "its session is not the current one");
		return false;
	}
	if (m->header->body_case == OD__HEADER__BODY_ATTACH || (attached(p) && od_route_equal(&m->route, &p->route)))
		return true;
	od_fail(err, OD_ERR_PROTOCOL, "its connection has not sent ATTACH");
	return false;
}

/* From the session before: it was on its way when that ended. */
static bool is_late(const struct od_data_port *p, const struct od_msg *m)
{
	return m->header->session != 0 && m->header->session == atomic_load(&p->ended);
}

int od_data_port_recv(struct od_data_port *p, struct od_msg *m)
{
	struct od_err err = { 0 };

	for (int drops = 0; drops < DROPS_PER_RECV; drops++) {
		int rc = od_wire_recv(p->socket, true, m, &err);

		if (rc == OD_ERR_PROTOCOL) {
			od_log_limited(OD_LOG_WARN, "data socket: dropped %s", err.msg);
			continue;
		}
		if (rc == OD_ERR_IO)
			od_log_limited(OD_LOG_ERROR, "data socket: %s", err.msg);
		if (rc != OD_OK)
			return rc;
		if (!admit(p, m, &err))
			od_log_limited(is_late(p, m) ? OD_LOG_DEBUG : OD_LOG_WARN, "data socket: dropped %s: %s",
				       od_body_name(m->header->body_case), err.msg);
		else if (m->header->body_case == OD__HEADER__BODY_ATTACH)
			attach(p, m);
		else
			return OD_OK;
		od_msg_fini(m);
	}
	return OD_ERR_BUSY;
}

int od_data_port_send(struct od_data_port *p, Od__Header *header, const struct od_out_frame *frames, size_t n_frames)
{
	const struct timespec pause = { .tv_nsec = SEND_RETRY_NS };
	uint64_t asked = header->session, begun_ns = 0;
	int rc;

	for (;;) {
		if (!attached(p) || (asked != 0 && asked != p->attached))
			return OD_ERR_UNREACHABLE;
		header->session = p->attached;
		rc = od_wire_send(p->socket, &p->route, header, frames, n_frames);
		if (rc != OD_ERR_BUSY)
			return rc;
		/* POLLOUT of a ROUTER is about any connection, not about this one; so look again after a pause. */
		if (begun_ns == 0)
			begun_ns = od_now_ns();
		else if (od_now_ns() - begun_ns > SEND_PATIENCE_NS)
			return OD_ERR_TIMEOUT;
		nanosleep(&pause, NULL);
	}
}

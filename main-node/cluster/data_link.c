#include "main-node/cluster/data_link.h"

#include "common/base/log.h"
#include "common/net/endpoint.h"

#define DROPPED_AT_ONCE 64 /* messages that are nobody's; then the caller looks after the others */

static int send_attach(struct odm_link *l)
{
	Od__Attach attach = OD__ATTACH__INIT;
	Od__Header h = OD__HEADER__INIT;

	h.session = l->session;
	h.body_case = OD__HEADER__BODY_ATTACH;
	h.attach = &attach;
	return od_wire_send(l->socket, NULL, &h, NULL, 0);
}

static int wait_for(void *socket, short events, uint64_t until_ns)
{
	zmq_pollitem_t item = { .socket = socket, .events = events };
	uint64_t now = od_now_ns();

	if (now >= until_ns)
		return OD_ERR_TIMEOUT;
	zmq_poll(&item, 1, (long)((until_ns - now) / OD_NS_PER_MS) + 1);
	return OD_OK;
}

/* ATTACH until it can be sent, then ATTACHED. */
static int attach(struct odm_link *l, uint64_t until_ns)
{
	int rc;

	while ((rc = send_attach(l)) == OD_ERR_BUSY) {
		rc = wait_for(l->socket, ZMQ_POLLOUT, until_ns);
		if (rc != OD_OK)
			return rc;
	}
	while (rc == OD_OK) {
		struct od_msg m;

		rc = odm_link_recv(l, &m);
		if (rc == OD_OK) {
			bool done = m.header->body_case == OD__HEADER__BODY_ATTACHED;

			od_msg_fini(&m);
			if (done)
				return OD_OK;
		} else if (rc == OD_ERR_BUSY) {
			rc = wait_for(l->socket, ZMQ_POLLIN, until_ns);
		}
	}
	return rc;
}

int odm_link_open(struct odm_link *l, void *zmq_context, const struct odm_member *m, int timeout_ms,
		  struct od_err *err)
{
	int rc;

	odm_link_close(l);
	rc = od_connect_dealer(zmq_context, m->host, m->data_port, &l->socket, err);
	if (rc != OD_OK)
		return rc;
	l->member = m->id;
	l->session = m->session;
	rc = attach(l, od_now_ns() + (uint64_t)timeout_ms * OD_NS_PER_MS);
	if (rc != OD_OK) {
		odm_link_close(l);
		return od_fail(err, rc, "no answer on its data port %u (%s); is the port open?", m->data_port,
			       od_status_text(rc));
	}
	l->last_ns = od_now_ns();
	return OD_OK;
}

void odm_link_close(struct odm_link *l)
{
	od_close_socket(l->socket);
	*l = (struct odm_link){ .member = l->member };
}

int odm_link_send(struct odm_link *l, uint64_t epoch, Od__Header *header, const struct od_out_frame *frames,
		  size_t n_frames)
{
	header->session = l->session;
	header->epoch = epoch;
	return od_wire_send(l->socket, NULL, header, frames, n_frames);
}

int odm_link_recv(struct odm_link *l, struct od_msg *m)
{
	for (int i = 0; i < DROPPED_AT_ONCE; i++) {
		struct od_err err;
		int rc = od_wire_recv(l->socket, false, m, &err);

		if (rc == OD_ERR_PROTOCOL) {
			od_log_limited(OD_LOG_WARN, "data socket: %s", err.msg);
			continue;
		}
		if (rc != OD_OK)
			return rc;
		if (m->header->session == l->session && m->header->version == OD_PROTOCOL_VERSION)
			return OD_OK;
		od_msg_fini(m); /* an older incarnation's */
	}
	return OD_ERR_BUSY;
}

void odm_link_reattach(struct odm_link *l)
{
	if (send_attach(l) != OD_OK)
		return; /* not connected: the heartbeats decide */
}

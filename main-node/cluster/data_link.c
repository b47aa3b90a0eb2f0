#include "main-node/cluster/data_link.h"

#include "common/base/log.h"
#include "common/net/endpoint.h"

#define ATTACH_TIMEOUT_NS (2 * OD_NS_PER_S)
#define ATTACH_AGAIN_NS (250 * OD_NS_PER_MS) /* the connection may have broken under it */
#define DROPPED_AT_ONCE 64 /* malformed messages in a row; then the caller serves the other sockets */

static int send_attach(struct odm_link *l)
{
	Od__Attach attach = OD__ATTACH__INIT;
	Od__Header h = OD__HEADER__INIT;

	h.session = l->session;
	h.body_case = OD__HEADER__BODY_ATTACH;
	h.attach = &attach;
	return od_wire_send(l->socket, NULL, &h, NULL, 0);
}

int odm_link_open(struct odm_link *l, void *zmq_context, const struct odm_member *m, struct od_err *err)
{
	const struct od_curve curve = { .own = m->own, .server = m->key };
	int rc;

	odm_link_close(l);
	rc = od_connect_dealer(zmq_context, m->host, m->data_port, m->own != NULL ? &curve : NULL, &l->socket, err);
	if (rc != OD_OK)
		return rc;
	l->member = m->id;
	l->session = m->session;
	l->others = m->others;
	l->begun_ns = l->looked_ns = od_now_ns();
	return OD_OK;
}

static void look_for_attached(struct odm_link *l)
{
	struct od_msg m;

	while (!l->attached && odm_link_recv(l, &m) == OD_OK) {
		l->attached = m.header->body_case == OD__HEADER__BODY_ATTACHED;
		od_msg_fini(&m);
	}
}

int odm_link_attach(struct odm_link *l)
{
	const uint64_t now = od_now_ns(), away_ns = now - l->looked_ns;

	l->looked_ns = now;
	if (away_ns > ATTACH_AGAIN_NS) /* main did not poll meanwhile: do not count it against the daemon */
		l->begun_ns += away_ns;
	look_for_attached(l);
	if (l->attached)
		return OD_OK;
	if (now - l->asked_ns > ATTACH_AGAIN_NS && send_attach(l) == OD_OK)
		l->asked_ns = now;
	return now > l->begun_ns + ATTACH_TIMEOUT_NS ? OD_ERR_TIMEOUT : OD_ERR_BUSY;
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

int odm_link_send_parts(struct odm_link *l, uint64_t epoch, struct odm_member *m, uint32_t n)
{
	Od__Part part[OD_MAX_SHADOWS], *list[OD_MAX_SHADOWS];
	Od__Parts body = OD__PARTS__INIT;
	Od__Header header = OD__HEADER__INIT;

	if (n == 0)
		return OD_OK;
	for (uint32_t i = 0; i < n; i++) {
		od__part__init(&part[i]);
		part[i].host = m[i].host;
		part[i].data_port = m[i].data_port;
		part[i].session = m[i].session;
		if (m[i].own != NULL)
			part[i].key = (ProtobufCBinaryData){ .data = m[i].key, .len = sizeof(m[i].key) };
		part[i].first_layer = m[i].first_layer;
		part[i].end_layer = m[i].end_layer;
		list[i] = &part[i];
	}
	body.parts = list;
	body.n_parts = n;
	header.body_case = OD__HEADER__BODY_PARTS;
	header.parts = &body;
	return odm_link_send(l, epoch, &header, NULL, 0);
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

#include "common/net/wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ROUTE_BYTES 5 /* a zero byte and ZeroMQ's counter */
#define MAX_PONG_COUNTERS 256 /* counters that are read: a newer peer may have more than we know, but not without end */

_Static_assert(sizeof(((struct od_route *)0)->id) >= ROUTE_BYTES, "a route holds an automatic routing id");

static int socket_error(int error)
{
	if (error == EAGAIN)
		return OD_ERR_BUSY;
	if (error == EHOSTUNREACH)
		return OD_ERR_UNREACHABLE;
	return OD_ERR_IO;
}

static int recv_frame(void *socket, zmq_msg_t *f)
{
	int rc;

	zmq_msg_init(f);
	do {
		rc = zmq_msg_recv(f, socket, ZMQ_DONTWAIT);
	} while (rc < 0 && errno == EINTR);
	if (rc >= 0)
		return OD_OK;
	rc = socket_error(errno);
	zmq_msg_close(f);
	return rc;
}

/* A message's frames arrive together or not at all, so once the first is here this cannot wait for long. */
static size_t drain(void *socket, bool more)
{
	zmq_msg_t f;
	size_t n = 0;

	while (more && recv_frame(socket, &f) == OD_OK) {
		more = zmq_msg_more(&f);
		zmq_msg_close(&f);
		n++;
	}
	return n;
}

static int take_route(void *socket, struct od_route *route, bool *more)
{
	zmq_msg_t f;
	size_t len;
	int rc = recv_frame(socket, &f);

	if (rc != OD_OK)
		return rc;
	len = zmq_msg_size(&f);
	*more = zmq_msg_more(&f);
	/* A peer may choose its own routing id; those that ZeroMQ makes begin with a zero byte. */
	if (len == ROUTE_BYTES && *(const uint8_t *)zmq_msg_data(&f) == 0) {
		memcpy(route->id, zmq_msg_data(&f), len);
		route->len = ROUTE_BYTES;
	}
	zmq_msg_close(&f);
	return OD_OK;
}

static int unpack(const zmq_msg_t *f, struct od_msg *m, struct od_err *err)
{
	size_t len = zmq_msg_size(f);

	if (len > OD_MAX_HEADER_BYTES)
		return od_fail(err, OD_ERR_PROTOCOL, "header: expected at most %u bytes, found %zu",
			       OD_MAX_HEADER_BYTES, len);
	m->header = od__header__unpack(NULL, len, zmq_msg_data((zmq_msg_t *)f));
	if (m->header == NULL)
		return od_fail(err, OD_ERR_PROTOCOL, "header: %zu bytes that protobuf cannot decode", len);
	if (m->header->hello == NULL) /* or any other of the union */
		return od_fail(err, OD_ERR_PROTOCOL, "header: expected a body that this version knows");
	return OD_OK;
}

static int broken(struct od_err *err)
{
	return od_fail(err, OD_ERR_IO, "receiving: %s", zmq_strerror(errno)); /* not strerror: ZeroMQ has its own */
}

int od_wire_recv(void *socket, bool is_router, struct od_msg *m, struct od_err *err)
{
	zmq_msg_t head;
	size_t n_more;
	bool more = true;
	int rc;

	memset(m, 0, sizeof(*m));
	if (is_router) {
		rc = take_route(socket, &m->route, &more);
		if (rc != OD_OK)
			return rc == OD_ERR_BUSY ? rc : broken(err);
	}
	rc = more ? recv_frame(socket, &head) : OD_ERR_PROTOCOL;
	if (rc == OD_ERR_PROTOCOL)
		return od_fail(err, rc, "message: expected frames, found none");
	if (rc != OD_OK)
		return rc == OD_ERR_BUSY && !is_router ? rc : broken(err);
	more = zmq_msg_more(&head);
	while (more && m->n_frames < OD_MAX_FRAMES - 1 && recv_frame(socket, &m->frame[m->n_frames]) == OD_OK)
		more = zmq_msg_more(&m->frame[m->n_frames++]);
	n_more = drain(socket, more);

	if (n_more > 0)
		rc = od_fail(err, OD_ERR_PROTOCOL, "frames: expected at most %d, found %zu", OD_MAX_FRAMES,
			     OD_MAX_FRAMES + n_more);
	else if (is_router && m->route.len == 0)
		rc = od_fail(err, OD_ERR_PROTOCOL,
			     "routing id: expected one chosen by ZeroMQ, found one chosen by the peer");
	else
		rc = unpack(&head, m, err);
	zmq_msg_close(&head);
	if (rc != OD_OK)
		od_msg_fini(m);
	return rc;
}

void od_msg_fini(struct od_msg *m)
{
	if (m->header != NULL)
		od__header__free_unpacked(m->header, NULL);
	m->header = NULL;
	while (m->n_frames > 0)
		zmq_msg_close(&m->frame[--m->n_frames]);
}

int od_check_version(const Od__Header *header, struct od_err *err)
{
	if (header->version == OD_PROTOCOL_VERSION)
		return OD_OK;
	return od_fail(err, OD_ERR_MISMATCH, "protocol version: expected %d, found %u", OD_PROTOCOL_VERSION,
		       header->version);
}

/* Between the caller's done and ZeroMQ, which calls it for a frame that was never sent too. */
struct lease {
	void (*done)(void *bytes, void *hint); /* NULL: the caller keeps the bytes */
	void *hint;
};

static void end_lease(void *bytes, void *hint)
{
	struct lease *l = hint;

	if (l->done != NULL)
		l->done(bytes, l->hint);
	free(l);
}

static int make_frame(zmq_msg_t *f, const struct od_out_frame *src, struct lease **lease)
{
	struct lease *l;

	*lease = NULL;
	if (src->len > OD_MAX_FRAME_BYTES)
		return OD_ERR_RANGE;
	if (src->done == NULL) {
		if (zmq_msg_init_size(f, src->len) != 0)
			return OD_ERR_NOMEM;
		if (src->len > 0)
			memcpy(zmq_msg_data(f), src->bytes, src->len);
		return OD_OK;
	}
	l = malloc(sizeof(*l));
	if (l == NULL)
		return OD_ERR_NOMEM;
	*l = (struct lease){ .done = src->done, .hint = src->hint };
	if (zmq_msg_init_data(f, (void *)src->bytes, src->len, end_lease, l) != 0) {
		free(l);
		return OD_ERR_NOMEM;
	}
	*lease = l;
	return OD_OK;
}

static int send_frame(void *socket, zmq_msg_t *f, bool more)
{
	int rc;

	do {
		rc = zmq_msg_send(f, socket, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0));
	} while (rc < 0 && errno == EINTR);
	return rc < 0 ? socket_error(errno) : OD_OK;
}

static int send_route(void *socket, const struct od_route *route)
{
	int rc;

	if (route->len == 0)
		return OD_ERR_UNREACHABLE;
	do {
		rc = zmq_send(socket, route->id, route->len, ZMQ_DONTWAIT | ZMQ_SNDMORE);
	} while (rc < 0 && errno == EINTR);
	return rc < 0 ? socket_error(errno) : OD_OK;
}

int od_wire_pack(Od__Header *header, zmq_msg_t *packed)
{
	size_t len;

	header->version = OD_PROTOCOL_VERSION;
	len = od__header__get_packed_size(header);
	if (len > OD_MAX_HEADER_BYTES)
		return OD_ERR_RANGE;
	if (zmq_msg_init_size(packed, len) != 0)
		return OD_ERR_NOMEM;
	od__header__pack(header, zmq_msg_data(packed));
	return OD_OK;
}

int od_wire_send_packed(void *socket, const struct od_route *route, zmq_msg_t *packed,
			const struct od_out_frame *frames, size_t n_frames)
{
	zmq_msg_t message[OD_MAX_FRAMES - 1];
	struct lease *lease[OD_MAX_FRAMES - 1];
	size_t made = 0;
	int rc = n_frames < OD_MAX_FRAMES ? OD_OK : OD_ERR_RANGE;

	/* Everything is ready before the first frame goes out: a message cannot be taken back half-way. */
	while (rc == OD_OK && made < n_frames) {
		rc = make_frame(&message[made], &frames[made], &lease[made]);
		made += rc == OD_OK;
	}
	if (rc == OD_OK && route != NULL)
		rc = send_route(socket, route);
	if (rc == OD_OK)
		rc = send_frame(socket, packed, n_frames > 0);
	if (rc != OD_OK)
		goto fail;
	/* From here only the connection's end can fail a frame, and then ZeroMQ discards the whole message; but it
	 * must see all frames of it, or it would take the next message for the rest of this one. */
	for (size_t i = 0; i < n_frames; i++) {
		if (send_frame(socket, &message[i], i + 1 < n_frames) != OD_OK)
			zmq_msg_close(&message[i]);
	}
	return OD_OK;
fail:
	while (made > 0) {
		if (lease[--made] != NULL)
			lease[made]->done = NULL;
		zmq_msg_close(&message[made]);
	}
	return rc;
}

int od_wire_send(void *socket, const struct od_route *route, Od__Header *header, const struct od_out_frame *frames,
		 size_t n_frames)
{
	zmq_msg_t packed;
	int rc = od_wire_pack(header, &packed);

	if (rc != OD_OK)
		return rc;
	rc = od_wire_send_packed(socket, route, &packed, frames, n_frames);
	if (rc != OD_OK)
		zmq_msg_close(&packed);
	return rc;
}

void od_pong_put(Od__Pong *p, struct od_pong_counters *list, const uint64_t *c)
{
	p->counters = list->list;
	for (int i = 0; i < OD_N_COUNTERS; i++) {
		Od__Counter *entry = &list->entry[p->n_counters];

		if (c[i] == 0)
			continue;
		od__counter__init(entry);
		entry->name = (char *)od_counter_info[i].name;
		entry->value = c[i];
		list->list[p->n_counters++] = entry;
	}
}

void od_pong_get(const Od__Pong *p, uint64_t *c)
{
	memset(c, 0, OD_N_COUNTERS * sizeof(*c));
	for (size_t i = 0; i < p->n_counters && i < MAX_PONG_COUNTERS; i++) {
		int counter = od_counter_find(p->counters[i]->name);

		if (counter >= 0)
			c[counter] = p->counters[i]->value;
	}
}

const char *od_body_name(Od__Header__BodyCase body)
{
	switch (body) {
	case OD__HEADER__BODY_HELLO: return "HELLO";
	case OD__HEADER__BODY_WELCOME: return "WELCOME";
	case OD__HEADER__BODY_REFUSE: return "REFUSE";
	case OD__HEADER__BODY_PING: return "PING";
	case OD__HEADER__BODY_PONG: return "PONG";
	case OD__HEADER__BODY_BYE: return "BYE";
	case OD__HEADER__BODY_WANT: return "WANT";
	case OD__HEADER__BODY_CLOSE: return "CLOSE";
	case OD__HEADER__BODY_PREDICT: return "PREDICT";
	case OD__HEADER__BODY_PLACE: return "PLACE";
	case OD__HEADER__BODY_ATTACH: return "ATTACH";
	case OD__HEADER__BODY_ATTACHED: return "ATTACHED";
	case OD__HEADER__BODY_RUN: return "RUN";
	case OD__HEADER__BODY_RESULT: return "RESULT";
	case OD__HEADER__BODY_STEP: return "STEP";
	case OD__HEADER__BODY_STATE: return "STATE";
	case OD__HEADER__BODY_STATE_REQUEST: return "STATE_REQUEST";
	case OD__HEADER__BODY_SEQ_TRUNCATE: return "SEQ_TRUNCATE";
	case OD__HEADER__BODY_SEQ_CLOSE: return "SEQ_CLOSE";
	case OD__HEADER__BODY_SEQ_OPEN: return "SEQ_OPEN";
	case OD__HEADER__BODY_TOKENS: return "TOKENS";
	case OD__HEADER__BODY_TOKENS_REQUEST: return "TOKENS_REQUEST";
	case OD__HEADER__BODY_PARTS: return "PARTS";
	case OD__HEADER__BODY_PART_OPEN: return "PART_OPEN";
	case OD__HEADER__BODY_PART_READY: return "PART_READY";
	case OD__HEADER__BODY_PART_RUN: return "PART_RUN";
	case OD__HEADER__BODY_PART_LAYER: return "PART_LAYER";
	case OD__HEADER__BODY_PART_RESULT: return "PART_RESULT";
	case OD__HEADER__BODY_PART_STATE: return "PART_STATE";
	case OD__HEADER__BODY_PART_COMMIT: return "PART_COMMIT";
	case OD__HEADER__BODY_STORE_HELLO: return "STORE_HELLO";
	case OD__HEADER__BODY_STORE_WELCOME: return "STORE_WELCOME";
	case OD__HEADER__BODY_FETCH: return "FETCH";
	case OD__HEADER__BODY_CHUNK: return "CHUNK";
	case OD__HEADER__BODY__NOT_SET:
	case _OD__HEADER__BODY__CASE_IS_INT_SIZE: break;
	}
	return "nothing";
}

const char *od_peer_text(const char *text, char *buf, size_t size)
{
	size_t i;

	/* Control bytes could rewrite a terminal or fake a log line. */
	for (i = 0; i + 1 < size && text[i] != '\0'; i++)
		buf[i] = text[i] >= 0x20 && text[i] <= 0x7e ? text[i] : '?';
	if (size > 0)
		buf[i] = '\0';
	return buf;
}

#include "common/pair/pair_client.h"

#include "common/base/clock.h"
#include "common/net/endpoint.h"
#include "common/net/handshake.h"
#include "common/net/wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define HANDSHAKE_NS (10 * OD_NS_PER_S)
#define ANSWER_NS \
	(60 * OD_NS_PER_S) /* main may fetch a model, and its disk be slow: a main that is gone is seen at once */
#define LOOK_MS 20 /* between looks at what became of the connection */
#define LEAVE_MS 1000

_Static_assert((int)OD_MEMBER_SAME == OD__PAIR__MEMBER__CHANGE__NONE &&
		       (int)OD_MEMBER_ADDED == OD__PAIR__MEMBER__CHANGE__ADDED &&
		       (int)OD_MEMBER_NEW_KEY == OD__PAIR__MEMBER__CHANGE__NEW_KEY &&
		       (int)OD_MEMBER_NEW_ADDRESS == OD__PAIR__MEMBER__CHANGE__NEW_ADDRESS,
	       "changes travel by their numbers");

struct od_pair_client {
	void *context, *socket, *watch;
	const struct od_pair_main *main;
};

static int why_not(const struct od_pair_client *c, struct od_err *err)
{
	const struct od_pair_main *m = c->main;

	switch (od_handshake_why(c->watch)) {
	case OD_HANDSHAKE_OPEN: return OD_OK;
	case OD_HANDSHAKE_BROKEN:
	case OD_HANDSHAKE_REFUSED: return od_fail(err, OD_ERR_MISMATCH, "main at %s shows other words", m->address);
	case OD_HANDSHAKE_UNREACHED:
		return od_fail(
			err, OD_ERR_UNREACHABLE,
			"main answers at %s, but TCP port %u cannot be reached there: does a firewall let it in?",
			m->address, (unsigned)m->port);
	case OD_HANDSHAKE_ENDED:
		return od_fail(err, OD_ERR_UNREACHABLE, "main at %s has ended the pairing", m->address);
	case OD_HANDSHAKE_SILENT:
		return od_fail(err, OD_ERR_TIMEOUT, "main at %s, TCP port %u, is too slow to answer: join again",
			       m->address, (unsigned)m->port);
	case OD_HANDSHAKE_UNLIKE: break;
	}
	return od_fail(err, OD_ERR_PROTOCOL, "what listens at %s, TCP port %u, is no od-main pair", m->address,
		       (unsigned)m->port);
}

/* Waits for the socket's events: ZMQ_POLLOUT once the handshake is done, ZMQ_POLLIN for a message. */
static int wait_for(const struct od_pair_client *c, short events, uint64_t limit_ns, struct od_err *err)
{
	const uint64_t end = od_now_ns() + limit_ns;
	zmq_pollitem_t item = { .socket = c->socket, .events = events };
	int rc = OD_OK;

	while (rc == OD_OK) {
		if (zmq_poll(&item, 1, LOOK_MS) > 0)
			return OD_OK;
		rc = why_not(c, err);
		if (rc == OD_OK && od_now_ns() >= end)
			rc = od_fail(err, OD_ERR_TIMEOUT, "main at %s does not answer", c->main->address);
	}
	return rc;
}

int od_pair_client_open(struct od_pair_client **out, const struct od_pair_main *to, const struct od_pair_keys *keys,
			struct od_err *err)
{
	const struct od_curve curve = { .own = &keys->joiner, .server = keys->main.public_key };
	struct od_pair_client *c = calloc(1, sizeof(*c));
	int rc = OD_OK;

	*out = NULL;
	if (c == NULL)
		return od_fail(err, OD_ERR_NOMEM, "pairing");
	c->main = to;
	c->context = od_zmq_context();
	if (c->context == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "pairing");
	if (rc == OD_OK)
		rc = od_connect_once(c->context, to->address, to->port, &curve, &c->socket, &c->watch, err);
	if (rc == OD_OK)
		rc = wait_for(c, ZMQ_POLLOUT, HANDSHAKE_NS, err);
	if (rc != OD_OK) {
		od_pair_client_close(c);
		return rc;
	}
	*out = c;
	return OD_OK;
}

void od_pair_client_close(struct od_pair_client *c)
{
	const int leave_ms = LEAVE_MS;

	if (c == NULL)
		return;
	if (c->socket != NULL) {
		od_handshake_end(c->watch, c->socket);
		zmq_setsockopt(c->socket, ZMQ_LINGER, &leave_ms, sizeof(leave_ms));
		od_close_socket(c->socket);
	}
	if (c->context != NULL)
		zmq_ctx_term(c->context);
	free(c);
}

int od_pair_client_tell(struct od_pair_client *c, Od__Pair__Join *join, struct od_err *err)
{
	Od__Pair__Message m = OD__PAIR__MESSAGE__INIT;
	uint8_t bytes[OD_PAIR_MAX_BYTES];
	size_t len;

	m.body_case = OD__PAIR__MESSAGE__BODY_JOIN;
	m.join = join;
	len = od_pair_pack(&m, bytes);
	if (len == 0 || zmq_send(c->socket, bytes, len, ZMQ_DONTWAIT) < 0)
		return od_fail(err, OD_ERR_UNREACHABLE, "main at %s has ended the pairing", c->main->address);
	return OD_OK;
}

static int take_answer(const Od__Pair__Message *m, struct od_pair_member *out, struct od_err *err)
{
	char reason[OD_PAIR_REASON];

	if (m->body_case == OD__PAIR__MESSAGE__BODY_REFUSAL)
		return od_fail(err, OD_ERR_ARG, "main refuses: %s",
			       od_peer_text(m->refusal->reason, reason, sizeof(reason)));
	if (m->body_case != OD__PAIR__MESSAGE__BODY_MEMBER)
		return od_fail(err, OD_ERR_PROTOCOL, "main sent another message than an answer");
	memcpy(out->key, m->member->key.data, OD_KEY_BYTES);
	od_pair_plain_name(m->member->host_name, out->name);
	out->change = (enum od_member_change)m->member->change;
	return OD_OK;
}

int od_pair_client_ask(struct od_pair_client *c, Od__Pair__Join *join, struct od_pair_member *out, struct od_err *err)
{
	uint8_t bytes[OD_PAIR_MAX_BYTES + 1];
	Od__Pair__Message *m;
	int len, rc = od_pair_client_tell(c, join, err);

	memset(out, 0, sizeof(*out));
	if (rc == OD_OK)
		rc = wait_for(c, ZMQ_POLLIN, ANSWER_NS, err);
	if (rc != OD_OK)
		return rc;
	len = zmq_recv(c->socket, bytes, sizeof(bytes), 0);
	if (len < 0)
		return od_fail(err, OD_ERR_IO, "pairing: %s", zmq_strerror(errno));
	/* longer ones are cut, and too long even so */
	rc = od_pair_unpack(&m, bytes, (size_t)len < sizeof(bytes) ? (size_t)len : sizeof(bytes), err);
	if (rc == OD_OK) {
		rc = take_answer(m, out, err);
		od_pair_free(m);
	}
	return rc == OD_OK || rc == OD_ERR_ARG ? rc : od_fail_within(err, "main at %s", c->main->address);
}

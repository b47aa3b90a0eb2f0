#include "main-node/pair_host.h"

#include "common/net/endpoint.h"
#include "common/net/gate.h"
#include "common/pair/pair_keys.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ADDRESS 100
#define MAX_ROUTE 255 /* bytes of a routing id */

enum { ITEM_QUESTIONS, ITEM_ROUTER, ITEM_FORGED };

/* A host of the hosts file, as it was written; joined tells of it once. */
struct paired {
	struct od_host host;
	char name[OD_PAIR_NAME];
	enum od_member_change change;
	bool told;
};

struct odm_pair_host {
	struct odm_pair_host_opts opts;
	char name[OD_PAIR_NAME];
	uint8_t salt[OD_PAIR_SALT_BYTES];
	struct od_pair_keys keys;
	void *context, *router;
	struct od_gate *gate;
	uint16_t port;
	int questions; /* UDP */
	int forged[2]; /* a pipe from the gate's thread: an address [ADDRESS] for each attempt */
	unsigned tries;
	struct paired *paired; /* [OD_MAX_HOSTS] */
	size_t n_paired;
};

/* ---- the pairing socket ---- */

static struct paired *find_paired(struct odm_pair_host *h, const struct od_host *host)
{
	for (size_t i = 0; i < h->n_paired; i++) {
		struct paired *p = &h->paired[i];

		if (p->host.role == host->role && p->host.port == host->port &&
		    memcmp(p->host.key, host->key, OD_KEY_BYTES) == 0)
			return p;
	}
	return NULL;
}

/* The first change counts: a host that asks again after a failure is not new any more. */
static void note_paired(struct odm_pair_host *h, const struct od_host *host, const char *name,
			enum od_member_change change)
{
	struct paired *p = find_paired(h, host);

	if (p == NULL) {
		p = &h->paired[h->n_paired++]; /* write_host has checked that there is room */
		*p = (struct paired){ .change = change };
	} else if (p->change == OD_MEMBER_SAME) {
		p->change = change;
	}
	p->host = *host;
	snprintf(p->name, sizeof(p->name), "%s", name);
}

/* All that is written can be told of. */
static int write_host(struct odm_pair_host *h, const struct od_host *host, const char *name,
		      enum od_member_change *change, struct od_err *err)
{
	int rc = OD_OK;

	if (h->n_paired == OD_MAX_HOSTS && find_paired(h, host) == NULL)
		rc = od_fail(err, OD_ERR_ARG, "%d hosts have joined: for others, start od-main pair again",
			     OD_MAX_HOSTS);
	if (rc == OD_OK)
		rc = od_hosts_put(h->opts.hosts_path, host, name, change, err);
	if (rc == OD_OK)
		note_paired(h, host, name, *change);
	return rc;
}

/* address: as the connection has it. */
static void read_join(const Od__Pair__Join *join, const char *address, struct od_host *host, char name[OD_PAIR_NAME])
{
	const bool shadow = strcmp(join->role, od_node_names[OD_NODE_SHADOW]) == 0;

	*host = (struct od_host){ .role = shadow ? OD_NODE_SHADOW : OD_NODE_WORKER,
				  .port = (uint16_t)join->port,
				  .has_key = true };
	snprintf(host->host, sizeof(host->host), "%s", address);
	memcpy(host->key, join->key.data, OD_KEY_BYTES);
	od_pair_plain_name(join->host_name, name);
}

static void on_done(struct odm_pair_host *h, const struct od_host *host)
{
	struct paired *p = find_paired(h, host);

	if (p == NULL || p->told)
		return;
	p->told = true;
	h->opts.ops.joined(h->opts.arg, &p->host, p->name, p->change);
}

/* Fills the answer, or says in err why the host is refused. False: there is no answer. */
static bool on_join(struct odm_pair_host *h, const Od__Pair__Join *join, const char *address, Od__Pair__Member *member,
		    struct od_err *err)
{
	enum od_member_change change = OD_MEMBER_SAME;
	char name[OD_PAIR_NAME];
	struct od_host host;

	read_join(join, address, &host, name);
	if (join->stage == OD__PAIR__JOIN__STAGE__DONE) {
		on_done(h, &host);
		return false;
	}
	if (join->stage == OD__PAIR__JOIN__STAGE__WRITE)
		(void)!write_host(h, &host, name, &change, err);
	member->key = (ProtobufCBinaryData){ OD_KEY_BYTES, h->opts.key };
	member->host_name = h->name;
	member->change = (Od__Pair__Member__Change)change;
	return true;
}

static void send_answer(struct odm_pair_host *h, zmq_msg_t *route, Od__Pair__Message *m)
{
	uint8_t bytes[OD_PAIR_MAX_BYTES];
	const size_t len = od_pair_pack(m, bytes);

	/* a host that is gone needs no answer */
	if (len > 0 && zmq_send(h->router, zmq_msg_data(route), zmq_msg_size(route), ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0)
		(void)!zmq_send(h->router, bytes, len, ZMQ_DONTWAIT);
}

static void refuse(struct odm_pair_host *h, zmq_msg_t *route, const char *address, const struct od_err *why)
{
	Od__Pair__Message m = OD__PAIR__MESSAGE__INIT;
	Od__Pair__Refusal refusal = OD__PAIR__REFUSAL__INIT;
	char reason[OD_PAIR_REASON];

	snprintf(reason, sizeof(reason), "%s", why->msg);
	refusal.reason = reason;
	m.body_case = OD__PAIR__MESSAGE__BODY_REFUSAL;
	m.refusal = &refusal;
	send_answer(h, route, &m);
	h->opts.ops.refused(h->opts.arg, address, why->msg);
}

static void on_message(struct odm_pair_host *h, zmq_msg_t *route, const char *address, const uint8_t *bytes, size_t len)
{
	Od__Pair__Message answer = OD__PAIR__MESSAGE__INIT, *m;
	Od__Pair__Member member = OD__PAIR__MEMBER__INIT;
	struct od_err err = { 0 };

	if (od_pair_unpack(&m, bytes, len, &err) != OD_OK) {
		refuse(h, route, address, &err);
		return;
	}
	if (m->body_case == OD__PAIR__MESSAGE__BODY_JOIN && on_join(h, m->join, address, &member, &err)) {
		answer.body_case = OD__PAIR__MESSAGE__BODY_MEMBER;
		answer.member = &member;
		if (err.code == OD_OK)
			send_answer(h, route, &answer);
		else
			refuse(h, route, address, &err);
	}
	od_pair_free(m);
}

/* An IPv4 address that came in by an IPv6 socket is shown as what it is. */
static const char *address_of(zmq_msg_t *m)
{
	static const char mapped[] = "::ffff:";
	const char *address = zmq_msg_gets(m, "Peer-Address");

	if (address == NULL)
		return "";
	if (strncmp(address, mapped, sizeof(mapped) - 1) == 0 && strchr(address, '.') != NULL)
		return address + sizeof(mapped) - 1;
	return address;
}

/* A message of other frames than two, a routing id and a body, is dropped. */
static bool take_message(struct odm_pair_host *h)
{
	zmq_msg_t frame[2], extra;
	int n = 0, more = 1;

	zmq_msg_init(&frame[0]);
	zmq_msg_init(&frame[1]);
	zmq_msg_init(&extra);
	while (more) {
		zmq_msg_t *to = n < 2 ? &frame[n] : &extra;

		if (zmq_msg_recv(to, h->router, ZMQ_DONTWAIT) < 0)
			break;
		more = zmq_msg_more(to);
		n++;
	}
	if (n == 2 && zmq_msg_size(&frame[0]) <= MAX_ROUTE && address_of(&frame[1])[0] != '\0')
		on_message(h, &frame[0], address_of(&frame[1]), zmq_msg_data(&frame[1]), zmq_msg_size(&frame[1]));
	zmq_msg_close(&frame[0]);
	zmq_msg_close(&frame[1]);
	zmq_msg_close(&extra);
	return n > 0;
}

/* ---- wrong attempts ---- */

/* On the gate's thread. A pipe that is full has more attempts than are needed. */
static void on_forged(void *arg, const char *address)
{
	const struct odm_pair_host *h = arg;
	char entry[ADDRESS] = "";

	snprintf(entry, sizeof(entry), "%s", address);
	(void)!write(h->forged[1], entry, sizeof(entry));
}

static void take_forged(struct odm_pair_host *h)
{
	char entry[ADDRESS];

	while (h->tries > 0 && read(h->forged[0], entry, sizeof(entry)) == (ssize_t)sizeof(entry)) {
		h->tries--;
		h->opts.ops.wrong(h->opts.arg, entry, h->tries);
	}
}

/* ---- questions ---- */

static uint16_t port_of(const struct sockaddr_storage *a)
{
	return ntohs(a->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)a)->sin6_port :
						((const struct sockaddr_in *)a)->sin_port);
}

/* A joiner asks from a port that the kernel chooses. What comes from OD_PAIR_PORT is another main's: mains of other
 * versions would answer each other's answers for ever. */
static bool take_question(struct odm_pair_host *h)
{
	uint8_t bytes[OD_PAIR_MAX_BYTES + 1], out[OD_PAIR_MAX_BYTES];
	struct sockaddr_storage from;
	socklen_t size = sizeof(from);
	const ssize_t len = recvfrom(h->questions, bytes, sizeof(bytes), 0, (struct sockaddr *)&from, &size);
	Od__Pair__Message answer = OD__PAIR__MESSAGE__INIT, *m = NULL;
	Od__Pair__Answer a = OD__PAIR__ANSWER__INIT;
	struct od_err err;
	size_t n;
	int rc;

	if (len < 0)
		return false;
	if (port_of(&from) == OD_PAIR_PORT)
		return true;
	rc = od_pair_unpack(&m, bytes, (size_t)len, &err);
	if (rc == OD_ERR_MISMATCH || (rc == OD_OK && m->body_case == OD__PAIR__MESSAGE__BODY_QUESTION)) {
		a.salt = (ProtobufCBinaryData){ sizeof(h->salt), h->salt };
		a.port = h->port;
		a.tries = h->tries;
		a.host_name = h->name;
		answer.body_case = OD__PAIR__MESSAGE__BODY_ANSWER;
		answer.answer = &a;
		n = od_pair_pack(&answer, out);
		if (n <= (size_t)len)
			(void)!sendto(h->questions, out, n, 0, (struct sockaddr *)&from, size);
	}
	od_pair_free(m);
	return true;
}

/* ---- poll ---- */

void odm_pair_host_items(const struct odm_pair_host *h, zmq_pollitem_t item[ODM_PAIR_ITEMS])
{
	item[ITEM_QUESTIONS] = (zmq_pollitem_t){ .fd = h->questions, .events = ZMQ_POLLIN };
	item[ITEM_ROUTER] = (zmq_pollitem_t){ .socket = h->router, .events = ZMQ_POLLIN };
	item[ITEM_FORGED] = (zmq_pollitem_t){ .fd = h->forged[0], .events = ZMQ_POLLIN };
}

#define AT_ONCE 64 /* messages, before the caller gets its turn */

void odm_pair_host_take(struct odm_pair_host *h, const zmq_pollitem_t item[ODM_PAIR_ITEMS])
{
	if (item[ITEM_FORGED].revents != 0)
		take_forged(h);
	for (int i = 0; i < AT_ONCE && item[ITEM_ROUTER].revents != 0 && h->tries > 0 && take_message(h); i++)
		;
	for (int i = 0; i < AT_ONCE && item[ITEM_QUESTIONS].revents != 0 && take_question(h); i++)
		;
}

unsigned odm_pair_host_unfinished(const struct odm_pair_host *h,
				  void (*each)(void *arg, const struct od_host *host, const char *name))
{
	unsigned n = 0;

	for (size_t i = 0; h != NULL && i < h->n_paired; i++) {
		const struct paired *p = &h->paired[i];

		if (p->told || p->change == OD_MEMBER_SAME)
			continue;
		each(h->opts.arg, &p->host, p->name);
		n++;
	}
	return n;
}

unsigned odm_pair_host_tries(const struct odm_pair_host *h)
{
	return h->tries;
}

/* ---- life ---- */

/* UDP, on IPv6 and IPv4; where there is no IPv6, on IPv4. */
static int open_questions(struct odm_pair_host *h, struct od_err *err)
{
	const struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(OD_PAIR_PORT) };
	const struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(OD_PAIR_PORT) };
	const int off = 0;
	int rc;

	h->questions = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (h->questions >= 0) {
		setsockopt(h->questions, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
		rc = bind(h->questions, (const struct sockaddr *)&v6, sizeof(v6));
	} else {
		h->questions = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		rc = h->questions < 0 ? -1 : bind(h->questions, (const struct sockaddr *)&v4, sizeof(v4));
	}
	if (rc != 0 && errno == EADDRINUSE)
		return od_fail(err, OD_ERR_BUSY,
			       "UDP port %d is in use: does another od-main pair run on this machine?", OD_PAIR_PORT);
	return rc == 0 ? OD_OK : od_fail_errno(err, OD_ERR_IO, "cannot listen on UDP port %d", OD_PAIR_PORT);
}

static int open_router(struct odm_pair_host *h, struct od_err *err)
{
	int rc;

	h->context = od_zmq_context();
	if (h->context == NULL)
		return od_fail(err, OD_ERR_NOMEM, "pairing");
	rc = od_gate_new(&h->gate, h->context, &h->keys.main, err);
	if (rc != OD_OK)
		return rc;
	od_gate_on_forged(h->gate, on_forged, h);
	rc = od_bind_store(h->context, "::", OD_PAIR_PORT, h->gate, &h->router, &h->port, err);
	if (rc != OD_OK && rc != OD_ERR_BUSY)
		rc = od_bind_store(h->context, "0.0.0.0", OD_PAIR_PORT, h->gate, &h->router, &h->port, err);
	if (rc == OD_ERR_BUSY)
		rc = od_fail(err, rc, "TCP port %d is in use: does another od-main pair run on this machine?",
			     OD_PAIR_PORT);
	if (rc == OD_OK)
		rc = od_gate_start(h->gate, err);
	return rc == OD_OK ? od_gate_admit(h->gate, h->keys.joiner.public_key, 1, "this pairing", err) : rc;
}

int odm_pair_host_open(struct odm_pair_host **out, const struct odm_pair_host_opts *opts, struct od_err *err)
{
	struct odm_pair_host *h = calloc(1, sizeof(*h));
	int rc;

	*out = NULL;
	if (h == NULL)
		return od_fail(err, OD_ERR_NOMEM, "pairing");
	h->opts = *opts;
	h->tries = ODM_PAIR_TRIES;
	h->questions = h->forged[0] = h->forged[1] = -1;
	od_pair_own_name(h->name);
	randombytes_buf(h->salt, sizeof(h->salt));
	h->paired = calloc(OD_MAX_HOSTS, sizeof(*h->paired));
	rc = h->paired != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "pairing");
	if (rc == OD_OK && pipe2(h->forged, O_CLOEXEC | O_NONBLOCK) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "pairing");
	if (rc == OD_OK)
		rc = od_pair_keys_derive(&h->keys, opts->words, h->salt, err);
	h->opts.words = NULL;
	if (rc == OD_OK)
		rc = open_questions(h, err);
	if (rc == OD_OK)
		rc = open_router(h, err);
	if (rc != OD_OK) {
		odm_pair_host_close(h);
		return rc;
	}
	*out = h;
	return OD_OK;
}

void odm_pair_host_close(struct odm_pair_host *h)
{
	if (h == NULL)
		return;
	od_gate_free(h->gate); /* before its ROUTER */
	od_close_socket(h->router);
	if (h->context != NULL)
		zmq_ctx_term(h->context);
	for (unsigned i = 0; i < 2; i++) {
		if (h->forged[i] >= 0)
			close(h->forged[i]);
	}
	if (h->questions >= 0)
		close(h->questions);
	od_pair_keys_clear(&h->keys);
	free(h->paired);
	free(h);
}

#include "worker-node/pull/store_client.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/net/endpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define GREET_NS (2 * OD_NS_PER_S)
#define RETRY_NS (200 * OD_NS_PER_MS)
#define REFUSED_NS (5 * OD_NS_PER_S)
#define PATIENCE_NS (2 * OD_NS_PER_S) /* silence while something is open; doubled when it was too short */
#define MAX_PATIENCE_NS (60 * OD_NS_PER_S)
#define FIRST_COMPLAINT_NS (3 * OD_NS_PER_S)
#define COMPLAIN_NS (60 * OD_NS_PER_S)

enum store_state { CLOSED, CONNECTING, GREETED, READY };

struct open_fetch {
	uint64_t request, tag; /* request 0: free */
	uint32_t bytes, got, file;
	uint64_t offset;
	uint8_t *whole; /* [bytes] of one that is asked for piece by piece, the next one when one has come; else NULL */
};

struct odw_store {
	struct od_host address;
	bool told_silent; /* the log says that it was, and not that it is back */
	unsigned turn; /* logged as silent, and not as back */
	struct od_curve curve; /* own NULL: no keys */
	char name[300], host_name[64];
	void *context, *socket;
	enum store_state state;
	uint64_t life, session, last_request;
	uint64_t retry_ns, greeted_ns /* in CONNECTING: connected at */, heard_ns, away_since_ns, complained_ns,
		patience_ns;
	struct odw_store_info info;
	struct open_fetch open[OD_STORE_MAX_OPEN];
	unsigned n_open;
	uint64_t open_bytes;
	uint8_t *handed; /* bytes of the last one that was handed out, when it came in pieces */
};

/* ---- lives ---- */

static void end_life(struct odw_store *s, uint64_t pause_ns)
{
	const uint64_t now = od_now_ns();

	od_close_socket(s->socket);
	s->socket = NULL;
	if (s->state == READY)
		s->away_since_ns = now;
	s->state = CLOSED;
	s->retry_ns = now + pause_ns;
	for (unsigned i = 0; i < OD_STORE_MAX_OPEN; i++)
		free(s->open[i].whole);
	memset(s->open, 0, sizeof(s->open));
	s->n_open = 0;
	s->open_bytes = 0;
	s->life++;
}

/* No store is at this address. */
static void try_next(struct odw_store *s, uint64_t pause_ns)
{
	s->turn++;
	end_life(s, pause_ns);
}

void odw_store_rest(struct odw_store *s)
{
	end_life(s, 0);
}

static void complain(struct odw_store *s, uint64_t now)
{
	const uint64_t away = now - s->away_since_ns;

	if (away < FIRST_COMPLAINT_NS || (s->complained_ns >= s->away_since_ns && now - s->complained_ns < COMPLAIN_NS))
		return;
	s->complained_ns = now;
	od_log(OD_LOG_WARN,
	       "store %s does not answer (for %.0f s): check that od-main runs there with --serve-store "
	       "and that the address is right%s. Still trying",
	       s->name, od_seconds(away),
	       s->curve.own == NULL ?
		       "" :
		       ", that this node's key is in the peers file or hosts file of main, and that its key is "
		       "the one in the peers file here");
}

static void greet(struct odw_store *s, uint64_t now)
{
	Od__Header h = OD__HEADER__INIT;
	Od__StoreHello hello = OD__STORE_HELLO__INIT;

	hello.host_name = s->host_name;
	h.body_case = OD__HEADER__BODY_STORE_HELLO;
	h.store_hello = &hello;
	if (od_wire_send(s->socket, NULL, &h, NULL, 0) != OD_OK)
		return; /* not connected yet */
	s->state = GREETED;
	s->greeted_ns = now;
}

static void connect_to(struct odw_store *s, uint64_t now)
{
	struct od_err err;

	if (od_connect_store(s->context, s->address.host, s->address.port, s->turn,
			     s->curve.own != NULL ? &s->curve : NULL, &s->socket, &err) != OD_OK) {
		od_log_limited(OD_LOG_WARN, "store: %s", err.msg);
		s->retry_ns = now + REFUSED_NS;
		return;
	}
	s->state = CONNECTING;
	s->greeted_ns = now;
}

void odw_store_tick(struct odw_store *s)
{
	const uint64_t now = od_now_ns();

	if (s->state == CLOSED && now >= s->retry_ns)
		connect_to(s, now);
	if (s->state == CONNECTING)
		greet(s, now);
	/* ZeroMQ gives up for good when the store refuses our key, which may be admitted later; and the name may have
	 * other addresses. */
	if ((s->state == CONNECTING || s->state == GREETED) && now - s->greeted_ns > GREET_NS)
		try_next(s, RETRY_NS);
	if (s->state != READY) {
		complain(s, now);
		return;
	}
	if (s->n_open == 0 || now - s->heard_ns < s->patience_ns)
		return;
	od_log(OD_LOG_WARN, "store %s has been silent for %.0f s: reconnecting", s->name,
	       od_seconds(now - s->heard_ns));
	s->told_silent = true;
	if (s->patience_ns < MAX_PATIENCE_NS)
		s->patience_ns *= 2;
	end_life(s, 0);
}

bool odw_store_ready(const struct odw_store *s)
{
	return s->state == READY;
}

const struct odw_store_info *odw_store_info(const struct odw_store *s)
{
	return &s->info;
}

uint64_t odw_store_life(const struct odw_store *s)
{
	return s->life;
}

uint64_t odw_store_away_ns(const struct odw_store *s)
{
	return s->state == READY ? 0 : od_now_ns() - s->away_since_ns;
}

const char *odw_store_name(const struct odw_store *s)
{
	return s->name;
}

unsigned odw_store_open_fetches(const struct odw_store *s, uint64_t *bytes)
{
	*bytes = s->open_bytes;
	return s->n_open;
}

/* ---- asking ---- */

/* More than a share may have to wait for other workers, so nothing of more is asked for at a time. */
static uint32_t piece_bytes(const struct open_fetch *o)
{
	return o->bytes - o->got < OD_STORE_SHARE_BYTES ? o->bytes - o->got : OD_STORE_SHARE_BYTES;
}

/* The next piece, under a number of its own. */
static int ask(struct odw_store *s, struct open_fetch *o)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Fetch fetch = OD__FETCH__INIT;
	int rc;

	fetch.request = s->last_request + 1;
	fetch.file = o->file;
	fetch.offset = o->offset + o->got;
	fetch.bytes = piece_bytes(o);
	h.session = s->session;
	h.body_case = OD__HEADER__BODY_FETCH;
	h.fetch = &fetch;
	rc = od_wire_send(s->socket, NULL, &h, NULL, 0);
	if (rc == OD_OK)
		o->request = ++s->last_request;
	return rc;
}

int odw_store_fetch(struct odw_store *s, uint32_t file, uint64_t offset, uint32_t bytes, uint64_t tag)
{
	struct open_fetch *o = s->open, fresh = { .tag = tag, .bytes = bytes, .file = file, .offset = offset };
	int rc;

	if (s->state != READY || s->n_open == OD_STORE_MAX_OPEN)
		return OD_ERR_BUSY;
	if (bytes > OD_STORE_SHARE_BYTES) {
		fresh.whole = malloc(bytes);
		if (fresh.whole == NULL)
			return OD_ERR_NOMEM;
	}
	rc = ask(s, &fresh);
	if (rc != OD_OK) {
		free(fresh.whole);
		if (s->n_open == 0) /* the connection is gone, and no silence will tell */
			end_life(s, RETRY_NS);
		return rc;
	}
	while (o->request != 0)
		o++;
	*o = fresh;
	if (s->n_open++ == 0)
		s->heard_ns = od_now_ns(); /* the silence begins now */
	s->open_bytes += bytes;
	return OD_OK;
}

/* ---- what comes ---- */

static bool take_sizes(struct odw_store_info *info, const Od__StoreWelcome *w)
{
	memset(info->bytes, 0, sizeof(info->bytes));
	for (size_t i = 0; i < w->n_files; i++) {
		if (w->files[i]->file > OD_STORE_EXPERTS)
			return false;
		info->bytes[w->files[i]->file] = w->files[i]->bytes;
	}
	return info->bytes[OD_STORE_SUMS] > 0 && info->bytes[OD_STORE_EXPERTS] > 0;
}

static void on_welcome(struct odw_store *s, const Od__Header *h)
{
	const Od__StoreWelcome *w = h->store_welcome;
	struct od_err err;

	if (s->state != GREETED)
		return;
	if (od_check_version(h, &err) != OD_OK) {
		od_log_limited(OD_LOG_WARN, "store %s: %s", s->name, err.msg);
		try_next(s, REFUSED_NS);
		return;
	}
	if (w->session == 0 || w->fingerprint.len != sizeof(s->info.fingerprint) ||
	    w->sums_sha256.len != sizeof(s->info.sums_sha256) || !take_sizes(&s->info, w)) {
		od_log_limited(OD_LOG_WARN, "store %s: its STORE_WELCOME is malformed", s->name);
		try_next(s, REFUSED_NS);
		return;
	}
	memcpy(s->info.fingerprint, w->fingerprint.data, sizeof(s->info.fingerprint));
	memcpy(s->info.sums_sha256, w->sums_sha256.data, sizeof(s->info.sums_sha256));
	s->session = w->session;
	s->state = READY;
	s->heard_ns = od_now_ns();
	if (s->complained_ns >= s->away_since_ns || s->told_silent)
		od_log(OD_LOG_INFO, "connected to store %s", s->name);
	s->told_silent = false;
}

static struct open_fetch *find_open(struct odw_store *s, uint64_t request)
{
	if (request != 0)
		for (unsigned i = 0; i < OD_STORE_MAX_OPEN; i++) {
			if (s->open[i].request == request)
				return &s->open[i];
		}
	return NULL;
}

/* True: another piece is on its way. */
static bool take_piece(struct odw_store *s, struct open_fetch *o, struct odw_fetched *f)
{
	const uint32_t len = piece_bytes(o);

	memcpy(o->whole + o->got, f->bytes, len);
	o->got += len;
	f->bytes = o->whole;
	if (o->got == o->bytes)
		return false;
	if (ask(s, o) == OD_OK)
		return true;
	f->code = OD_ERR_BUSY; /* the connection is gone; the caller tries again */
	return false;
}

static bool on_chunk(struct odw_store *s, struct od_msg *m, struct odw_fetched *f)
{
	const Od__Chunk *c = m->header->chunk;
	struct open_fetch *o = s->state == READY && m->header->session == s->session ? find_open(s, c->request) : NULL;
	size_t len;

	if (o == NULL)
		return false; /* answer to an earlier session, or never asked for */
	s->heard_ns = od_now_ns();
	if (c->code == OD_ERR_MISMATCH) { /* another store process than we greeted */
		end_life(s, 0);
		return false;
	}
	*f = (struct odw_fetched){ .tag = o->tag, .code = c->code, .xxh3 = c->xxh3 };
	od_peer_text(c->reason, f->reason, sizeof(f->reason));
	f->bytes = od_msg_frame(m, 0, &len);
	if (c->code == OD_OK && m->n_frames != 1) {
		f->code = OD_ERR_PROTOCOL;
		snprintf(f->reason, sizeof(f->reason), "it sent %zu frames, expected 1", m->n_frames);
	} else if (c->code == OD_OK && len != piece_bytes(o)) {
		f->code = OD_ERR_PROTOCOL;
		snprintf(f->reason, sizeof(f->reason), "it sent %zu bytes, expected %u", len, piece_bytes(o));
	} else if (c->code != OD_OK && f->reason[0] == '\0') {
		snprintf(f->reason, sizeof(f->reason), "%s", od_status_text(c->code));
	}
	if (f->code == OD_OK && o->whole != NULL && take_piece(s, o, f))
		return false;
	free(s->handed);
	s->handed = o->whole;
	s->n_open--;
	s->open_bytes -= o->bytes;
	*o = (struct open_fetch){ 0 };
	return true;
}

bool odw_store_take(struct odw_store *s, struct od_msg *m, struct odw_fetched *f)
{
	if (m->header->body_case == OD__HEADER__BODY_STORE_WELCOME) {
		on_welcome(s, m->header);
	} else if (m->header->version == OD_PROTOCOL_VERSION && m->header->body_case == OD__HEADER__BODY_CHUNK) {
		return on_chunk(s, m, f);
	} else {
		od_log_limited(OD_LOG_WARN, "store %s sent %s, which a store must not send", s->name,
			       od_body_name(m->header->body_case));
	}
	return false;
}

bool odw_store_next(struct odw_store *s, struct odw_fetched *f)
{
	while (s->socket != NULL) {
		struct od_err err = { 0 };
		struct od_msg m;
		int rc = od_wire_recv(s->socket, false, &m, &err);

		if (rc == OD_ERR_PROTOCOL) {
			od_log_limited(OD_LOG_WARN, "store %s: dropped %s", s->name, err.msg);
			continue;
		}
		if (rc != OD_OK)
			return false;
		if (odw_store_take(s, &m, f)) {
			f->msg = m;
			return true;
		}
		od_msg_fini(&m);
	}
	return false;
}

void odw_store_wait(struct odw_store *s, int wake_fd, int timeout_ms)
{
	zmq_pollitem_t item[2];
	int n = 0;
	eventfd_t count;

	if (wake_fd >= 0)
		item[n++] = (zmq_pollitem_t){ .fd = wake_fd, .events = ZMQ_POLLIN };
	if (s->socket != NULL) /* and when it connects, to greet at once */
		item[n++] =
			(zmq_pollitem_t){ .socket = s->socket,
					  .events = (short)(ZMQ_POLLIN | (s->state == CONNECTING ? ZMQ_POLLOUT : 0)) };
	if (zmq_poll(item, n, timeout_ms) > 0 && wake_fd >= 0 && item[0].revents != 0)
		eventfd_read(wake_fd, &count);
}

/* ---- life ---- */

int odw_store_open(struct odw_store **out, const struct od_host *address, const struct od_curve *curve,
		   struct od_err *err)
{
	struct odw_store *s = calloc(1, sizeof(*s));

	*out = NULL;
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "store");
	s->address = *address;
	if (curve != NULL)
		s->curve = *curve;
	snprintf(s->name, sizeof(s->name), strchr(address->host, ':') != NULL ? "[%s]:%u" : "%s:%u", address->host,
		 address->port);
	if (gethostname(s->host_name, sizeof(s->host_name) - 1) != 0)
		s->host_name[0] = '\0';
	s->patience_ns = PATIENCE_NS;
	s->away_since_ns = od_now_ns();
	s->context = od_zmq_context();
	if (s->context == NULL) {
		odw_store_close(s);
		return od_fail(err, OD_ERR_NOMEM, "cannot create a ZeroMQ context: %s", zmq_strerror(errno));
	}
	*out = s;
	return OD_OK;
}

void odw_store_close(struct odw_store *s)
{
	if (s == NULL)
		return;
	od_close_socket(s->socket);
	for (unsigned i = 0; i < OD_STORE_MAX_OPEN; i++)
		free(s->open[i].whole);
	free(s->handed);
	while (s->context != NULL && zmq_ctx_term(s->context) != 0 && errno == EINTR)
		;
	free(s);
}

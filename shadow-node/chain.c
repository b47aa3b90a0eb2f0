#include "shadow-node/chain.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/net/endpoint.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define ATTACH_NS (2 * OD_NS_PER_S)
#define RETRY_NS OD_NS_PER_S
#define ANSWER_NS (60 * OD_NS_PER_S) /* limit for a layer's answer; a lost part shows at once */
#define SLICE_MS 50
#define UNASKED_BYTES (8u << 20) /* limit of KV rows sent since a part's last answer */

struct shadow_part {
	char host[256];
	uint16_t port;
	uint64_t session;
	uint8_t key[OD_KEY_BYTES];
	uint32_t begin, end; /* layers */
	void *socket, *monitor;
	struct ods_chain_room room;
	uint64_t unasked_bytes;
};

struct ods_chain {
	struct ods_chain_opts o;
	void *zmq;
	uint32_t n_parts;
	struct shadow_part part[ODS_MAX_PARTS];
	bool up, complained;
	uint64_t retry_ns;

	/* The run. */
	uint64_t run;
	uint32_t layer, at; /* at: the part whose layer it is; n_parts: all are done */
	bool routed;
	size_t n_rows, n_tables, max_tables;
	Od__PartTable *table, **tables; /* [max_tables] */
	uint32_t *page; /* [n_pages] of all tables */
	size_t n_pages, max_pages;
	int32_t *token; /* [max_rows] */
	float *x, *probability; /* [max_rows][hidden], [max_rows][n_experts] */
	size_t max_rows;
};

static int lost(struct ods_chain *c, struct shadow_part *p, int rc, struct od_err *err)
{
	char why[sizeof(err->msg)];

	c->up = false;
	c->retry_ns = od_now_ns() + RETRY_NS;
	snprintf(why, sizeof(why), "%.600s", err->msg);
	return od_fail(err, rc, "shadow %s, which holds layers %u-%u: %s", p->host, p->begin, p->end - 1, why);
}

/* ---- sockets ---- */

static void close_part(struct shadow_part *p)
{
	if (p->monitor != NULL) {
		zmq_socket_monitor(p->socket, NULL, 0);
		zmq_close(p->monitor);
	}
	od_close_socket(p->socket);
	p->socket = p->monitor = NULL;
}

/* Tells when an established connection ends; NULL: cannot be known. */
static void *watch_end(struct ods_chain *c, struct shadow_part *p)
{
	const int zero = 0;
	static atomic_uint n_watched;
	char url[64];
	void *monitor;

	/* A name of its own each time: ZeroMQ gives one back only some time after it was closed. */
	snprintf(url, sizeof(url), "inproc://od-part-%u", atomic_fetch_add(&n_watched, 1));
	if (zmq_socket_monitor(p->socket, url, ZMQ_EVENT_DISCONNECTED) != 0)
		return NULL;
	monitor = zmq_socket(c->zmq, ZMQ_PAIR);
	if (monitor != NULL && zmq_setsockopt(monitor, ZMQ_LINGER, &zero, sizeof(zero)) == 0 &&
	    zmq_connect(monitor, url) == 0)
		return monitor;
	if (monitor != NULL)
		zmq_close(monitor);
	zmq_socket_monitor(p->socket, NULL, 0);
	return NULL;
}

static int send_to(struct ods_chain *c, struct shadow_part *p, Od__Header *header, const struct od_out_frame *frames,
		   size_t n, struct od_err *err)
{
	const uint64_t end = od_now_ns() + ATTACH_NS;
	int rc;

	header->session = p->session;
	while ((rc = od_wire_send(p->socket, NULL, header, frames, n)) == OD_ERR_BUSY && od_now_ns() < end) {
		zmq_pollitem_t item = { .socket = p->socket, .events = ZMQ_POLLOUT };

		if (c->o.interrupted(c->o.arg))
			break;
		zmq_poll(&item, 1, SLICE_MS);
	}
	if (rc == OD_ERR_BUSY)
		return od_fail(err, OD_ERR_UNREACHABLE, "it cannot be reached");
	return rc == OD_OK ?
		       OD_OK :
		       od_fail(err, rc, "cannot send %s: %s", od_body_name(header->body_case), od_status_text(rc));
}

/* A message of this session, of whatever kind. */
static int receive(struct ods_chain *c, struct shadow_part *p, uint64_t patience_ns, struct od_msg *m,
		   struct od_err *err)
{
	const uint64_t end = od_now_ns() + patience_ns;

	for (;;) {
		zmq_pollitem_t item[] = { { .socket = p->socket, .events = ZMQ_POLLIN },
					  { .socket = p->monitor, .events = ZMQ_POLLIN } };
		int rc = od_wire_recv(p->socket, false, m, err);

		if (rc == OD_OK && m->header->session == p->session && m->header->version == OD_PROTOCOL_VERSION)
			return OD_OK;
		if (rc == OD_OK) {
			od_msg_fini(m);
			continue;
		}
		if (rc != OD_ERR_BUSY)
			return rc;
		if (item[1].socket != NULL && zmq_poll(&item[1], 1, 0) > 0)
			return od_fail(err, OD_ERR_UNREACHABLE, "the connection has ended");
		if (c->o.interrupted(c->o.arg))
			return od_fail(err, OD_ERR_CANCELLED, "interrupted");
		if (od_now_ns() > end)
			return od_fail(err, OD_ERR_TIMEOUT, "no answer");
		zmq_poll(item, p->monitor != NULL ? 2 : 1, SLICE_MS);
	}
}

static int ask(struct ods_chain *c, struct shadow_part *p, Od__Header *header, Od__Header__BodyCase answer,
	       uint64_t patience_ns, struct od_msg *m, struct od_err *err)
{
	int rc = send_to(c, p, header, NULL, 0, err);

	if (rc == OD_OK)
		rc = receive(c, p, patience_ns, m, err);
	if (rc == OD_OK && m->header->body_case != answer) {
		rc = od_fail(err, OD_ERR_PROTOCOL, "expected %s, found %s", od_body_name(answer),
			     od_body_name(m->header->body_case));
		od_msg_fini(m);
	}
	if (rc == OD_OK)
		p->unasked_bytes = 0;
	return rc;
}

/* ---- PART_OPEN ---- */

static int take_ready(struct shadow_part *p, const Od__PartReady *r, struct od_err *err)
{
	if (r->first_layer != p->begin || r->end_layer != p->end)
		return od_fail(err, OD_ERR_MISMATCH, "layers: expected %u-%u, found %u-%u", p->begin, p->end - 1,
			       r->first_layer, r->end_layer - 1);
	if (r->max_rows == 0 || r->max_sequences == 0 || r->pages == 0)
		return od_fail(err, OD_ERR_RANGE,
			       "room for %u rows, %u sequences, %u pages: expected at least 1 of each", r->max_rows,
			       r->max_sequences, r->pages);
	p->room = (struct ods_chain_room){ r->max_rows, r->max_sequences, r->pages };
	return OD_OK;
}

static int ask_ready(struct ods_chain *c, struct shadow_part *p, bool begin, struct od_err *err)
{
	Od__PartOpen body = OD__PART_OPEN__INIT;
	Od__Header header = OD__HEADER__INIT;
	struct od_msg m;
	int rc;

	header.body_case = OD__HEADER__BODY_PART_OPEN;
	header.part_open = &body;
	body.begin = begin;
	rc = ask(c, p, &header, OD__HEADER__BODY_PART_READY, ANSWER_NS, &m, err);
	if (rc != OD_OK)
		return rc;
	rc = take_ready(p, m.header->part_ready, err);
	od_msg_fini(&m);
	return rc;
}

static int open_part(struct ods_chain *c, struct shadow_part *p, struct od_err *err)
{
	const struct od_curve curve = { .own = c->o.keys != NULL ? &c->o.keys->own : NULL, .server = p->key };
	Od__Attach body = OD__ATTACH__INIT;
	Od__Header header = OD__HEADER__INIT;
	struct od_msg m;
	int rc;

	close_part(p);
	rc = od_connect_dealer(c->zmq, p->host, p->port, c->o.keys != NULL ? &curve : NULL, &p->socket, err);
	if (rc != OD_OK)
		return rc;
	p->monitor = watch_end(c, p);
	header.body_case = OD__HEADER__BODY_ATTACH;
	header.attach = &body;
	rc = ask(c, p, &header, OD__HEADER__BODY_ATTACHED, ATTACH_NS, &m, err);
	if (rc != OD_OK)
		return rc;
	od_msg_fini(&m);
	return ask_ready(c, p, true, err);
}

static int open_parts(struct ods_chain *c, struct od_err *err)
{
	for (uint32_t i = 0; i < c->n_parts; i++) {
		int rc = open_part(c, &c->part[i], err);

		if (rc != OD_OK)
			return lost(c, &c->part[i], rc, err);
	}
	return OD_OK;
}

bool ods_chain_up(struct ods_chain *c, uint64_t now_ns, bool *fresh)
{
	struct od_err err;

	*fresh = false;
	if (c->up || now_ns < c->retry_ns)
		return c->up;
	*fresh = c->up = open_parts(c, &err) == OD_OK;
	if (!c->up && !c->complained)
		od_log(OD_LOG_WARN, "no predictions: %s%s. Still trying", err.msg,
		       c->o.keys != NULL ? "; check that this shadow's key is in the peers file there" : "");
	c->complained = !c->up;
	return c->up;
}

uint64_t ods_chain_deadline(const struct ods_chain *c)
{
	return c->up ? UINT64_MAX : c->retry_ns;
}

static size_t smaller(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* ---- life ---- */

static int read_part(struct ods_chain *c, const Od__Part *from, struct shadow_part *p, struct od_err *err)
{
	const uint32_t expected = p == c->part ? od_config_end(c->o.config) : p[-1].end;

	snprintf(p->host, sizeof(p->host), "%s", from->host);
	if (from->data_port == 0 || from->data_port > UINT16_MAX || from->host[0] == '\0')
		return od_fail(err, OD_ERR_RANGE, "part %td: an address, found \"%.100s\", port %u", p - c->part,
			       p->host, from->data_port);
	if (from->first_layer != expected || from->end_layer <= expected || from->end_layer > c->o.config->n_layers)
		return od_fail(err, OD_ERR_RANGE, "part %td: expected layers from %u to at most %u, found [%u, %u)",
			       p - c->part, expected, c->o.config->n_layers - 1, from->first_layer, from->end_layer);
	if (c->o.keys != NULL && from->key.len != OD_KEY_BYTES)
		return od_fail(err, OD_ERR_MISMATCH, "part %td: expected a key, as this shadow has keys", p - c->part);
	if (from->key.len == OD_KEY_BYTES)
		memcpy(p->key, from->key.data, OD_KEY_BYTES);
	p->port = (uint16_t)from->data_port;
	p->session = from->session;
	p->begin = from->first_layer;
	p->end = from->end_layer;
	return OD_OK;
}

static int read_parts(struct ods_chain *c, const Od__Parts *parts, struct od_err *err)
{
	if (parts->n_parts == 0 || parts->n_parts > ODS_MAX_PARTS)
		return od_fail(err, OD_ERR_RANGE, "parts: expected 1 to %d, found %zu", ODS_MAX_PARTS, parts->n_parts);
	for (size_t i = 0; i < parts->n_parts; i++) {
		int rc = read_part(c, parts->parts[i], &c->part[i], err);

		if (rc != OD_OK)
			return rc;
	}
	if (c->part[parts->n_parts - 1].end != c->o.config->n_layers)
		return od_fail(err, OD_ERR_RANGE, "parts end with layer %u, the model has %u",
			       c->part[parts->n_parts - 1].end - 1, c->o.config->n_layers);
	c->n_parts = (uint32_t)parts->n_parts;
	return OD_OK;
}

int ods_chain_new(struct ods_chain **out, const struct ods_chain_opts *o, const Od__Parts *parts, struct od_err *err)
{
	struct ods_chain *c = calloc(1, sizeof(*c));
	int rc = OD_OK;

	*out = NULL;
	if (c == NULL)
		return od_fail(err, OD_ERR_NOMEM, "chain");
	c->o = *o;
	c->zmq = od_zmq_context();
	if (c->zmq == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "chain");
	if (rc == OD_OK)
		rc = read_parts(c, parts, err);
	if (rc != OD_OK) {
		ods_chain_free(c);
		return rc;
	}
	*out = c;
	return OD_OK;
}

void ods_chain_free(struct ods_chain *c)
{
	if (c == NULL)
		return;
	for (uint32_t i = 0; i < c->n_parts; i++)
		close_part(&c->part[i]);
	if (c->zmq != NULL)
		zmq_ctx_term(c->zmq);
	free(c->table);
	free(c->tables);
	free(c->page);
	od_free(c->token);
	od_free(c->x);
	od_free(c->probability);
	free(c);
}

/* Memory for runs, once it is known how large they are. */
static int open_buffers(struct ods_chain *c, const struct ods_chain_room *room, struct od_err *err)
{
	if (c->max_rows > 0)
		return OD_OK;
	c->max_tables = 2 * room->max_sequences;
	c->table = calloc(c->max_tables, sizeof(*c->table));
	c->tables = calloc(c->max_tables, sizeof(*c->tables));
	c->token = od_alloc_array(room->max_rows, sizeof(*c->token));
	c->x = od_alloc_array(room->max_rows, c->o.config->hidden * sizeof(*c->x));
	c->probability = od_alloc_array(room->max_rows, c->o.config->n_experts * sizeof(*c->probability));
	if (c->table == NULL || c->tables == NULL || c->token == NULL || c->x == NULL || c->probability == NULL)
		return od_fail(err, OD_ERR_NOMEM, "chain: no memory for %zu rows", room->max_rows);
	c->max_rows = room->max_rows;
	return OD_OK;
}

int ods_chain_room(struct ods_chain *c, struct ods_chain_room *room, struct od_err *err)
{
	for (uint32_t i = 0; i < c->n_parts; i++) {
		const struct ods_chain_room *r = &c->part[i].room;

		room->max_rows = smaller(room->max_rows, r->max_rows);
		room->max_sequences = smaller(room->max_sequences, r->max_sequences);
		room->n_pages = (uint32_t)smaller(room->n_pages, r->n_pages);
	}
	return open_buffers(c, room, err);
}

/* ---- a run ---- */

/* To the part at the cursor, with the rows in c->x. */
static int send_run(struct ods_chain *c, struct od_err *err)
{
	struct shadow_part *p = &c->part[c->at];
	const struct od_out_frame frames[] = {
		{ .bytes = c->x, .len = c->n_rows * c->o.config->hidden * sizeof(float) },
		{ .bytes = c->page, .len = c->n_pages * sizeof(*c->page) },
	};
	Od__PartRun body = OD__PART_RUN__INIT;
	Od__Header header = OD__HEADER__INIT;
	int rc;

	body.run = c->run;
	body.tables = c->tables;
	body.n_tables = c->n_tables;
	body.tokens = c->token;
	body.n_tokens = c->n_rows;
	header.body_case = OD__HEADER__BODY_PART_RUN;
	header.part_run = &body;
	rc = send_to(c, p, &header, frames, 2, err);
	return rc == OD_OK ? OD_OK : lost(c, p, rc, err);
}

static bool add_pages(struct ods_chain *c, const uint32_t *page, uint32_t n)
{
	if (c->n_pages + n > c->max_pages) {
		const size_t most = 2 * (c->n_pages + n);
		uint32_t *more = realloc(c->page, most * sizeof(*more));

		if (more == NULL)
			return false;
		c->page = more;
		c->max_pages = most;
	}
	memcpy(c->page + c->n_pages, page, n * sizeof(*page));
	c->n_pages += n;
	return true;
}

static int add_table(struct ods_chain *c, const struct ods_chain_rows *rows, struct od_err *err)
{
	const struct od_seq_mirror m = od_seq_state_mirror_of(rows->seq);
	Od__PartTable *t = &c->table[c->n_tables];

	if (!add_pages(c, m.page, m.n_pages))
		return od_fail(err, OD_ERR_NOMEM, "chain: no memory for %u pages", m.n_pages);
	od__part_table__init(t);
	t->place = od_seq_state_index(rows->seq);
	t->n_rows = rows->n;
	t->length = m.length;
	t->n_pages = m.n_pages;
	t->is_long = m.is_long;
	t->committed = m.committed;
	t->next = m.next;
	c->tables[c->n_tables++] = t;
	c->n_rows += rows->n;
	return OD_OK;
}

int ods_chain_begin(struct ods_chain *c, uint64_t run, const struct ods_chain_rows *rows, size_t n,
		    const int32_t *token, const float *x, struct od_err *err)
{
	c->run = run;
	c->at = 0;
	c->layer = c->part[0].begin;
	c->routed = false;
	c->n_rows = c->n_tables = c->n_pages = 0;
	if (n > c->max_tables)
		return od_fail(err, OD_ERR_RANGE, "chain: %zu sequences in a run, expected at most %zu", n,
			       c->max_tables);
	for (size_t i = 0; i < n; i++) {
		int rc = add_table(c, &rows[i], err);

		if (rc != OD_OK)
			return rc;
	}
	if (c->n_rows > c->max_rows)
		return od_fail(err, OD_ERR_RANGE, "chain: %zu rows in a run, expected at most %zu", c->n_rows,
			       c->max_rows);
	memcpy(c->token, token, c->n_rows * sizeof(*token));
	memcpy(c->x, x, c->n_rows * c->o.config->hidden * sizeof(*x));
	return send_run(c, err);
}

uint32_t ods_chain_layer(const struct ods_chain *c)
{
	return c->layer;
}

bool ods_chain_routed(const struct ods_chain *c)
{
	return c->routed;
}

const float *ods_chain_probabilities_of(const struct ods_chain *c, size_t row)
{
	return c->probability + row * c->o.config->n_experts;
}

/* A result with n floats, or with none if to is NULL. */
static int take_result(struct ods_chain *c, const struct od_msg *m, float *to, size_t n, struct od_err *err)
{
	const Od__PartResult *r = m->header->part_result;
	const size_t expected = to != NULL ? n * sizeof(*to) : 0;
	char why[400];
	size_t bytes;
	const void *from = od_msg_frame(m, 0, &bytes);

	if (r->code != OD_OK)
		return od_fail(err, r->code < 0 ? r->code : OD_ERR_PROTOCOL, "%s",
			       od_peer_text(r->reason, why, sizeof(why)));
	if (r->run != c->run || r->layer != c->layer || m->n_frames != (to != NULL) || bytes != expected)
		return od_fail(err, OD_ERR_PROTOCOL,
			       "layer %u of run %llu with %zu bytes: expected layer %u of run %llu with %zu", r->layer,
			       (unsigned long long)r->run, bytes, c->layer, (unsigned long long)c->run, expected);
	if (to != NULL)
		memcpy(to, from, bytes);
	return OD_OK;
}

static int ask_layer(struct ods_chain *c, const uint32_t *keep, size_t n_keep, bool probabilities, float *to, size_t n,
		     struct od_err *err)
{
	struct shadow_part *p = &c->part[c->at];
	Od__PartLayer body = OD__PART_LAYER__INIT;
	Od__Header header = OD__HEADER__INIT;
	struct od_msg m;
	int rc;

	body.run = c->run;
	body.layer = c->layer;
	body.probabilities = probabilities;
	body.keep = (uint32_t *)keep;
	body.n_keep = n_keep;
	header.body_case = OD__HEADER__BODY_PART_LAYER;
	header.part_layer = &body;
	rc = ask(c, p, &header, OD__HEADER__BODY_PART_RESULT, ANSWER_NS, &m, err);
	if (rc == OD_OK) {
		rc = take_result(c, &m, to, n, err);
		od_msg_fini(&m);
	}
	return rc == OD_OK ? OD_OK : lost(c, p, rc, err);
}

/* The rows behind a part's last layer, to c->x. */
static int fetch_rows(struct ods_chain *c, struct od_err *err)
{
	return ask_layer(c, NULL, 0, false, c->x, c->n_rows * c->o.config->hidden, err);
}

int ods_chain_attention(struct ods_chain *c, bool probabilities, const uint32_t *keep, size_t n_keep,
			struct od_err *err)
{
	const bool routed = od_config_layer(c->o.config, c->layer)->ffn == OD_FFN_MOE;
	int rc = OD_OK;

	if (c->layer == c->part[c->at].end) { /* the next part's first layer */
		rc = fetch_rows(c, err);
		if (rc != OD_OK)
			return rc;
		c->at++;
		rc = send_run(c, err);
	}
	if (rc == OD_OK)
		rc = ask_layer(c, keep, n_keep, probabilities, probabilities && routed ? c->probability : NULL,
			       c->n_rows * c->o.config->n_experts, err);
	if (rc != OD_OK)
		return rc;
	c->routed = routed;
	c->layer += !routed;
	return OD_OK;
}

void ods_chain_experts(struct ods_chain *c)
{
	c->routed = false;
	c->layer++;
}

int ods_chain_output(struct ods_chain *c, const float **x, struct od_err *err)
{
	*x = c->x;
	return fetch_rows(c, err);
}

int ods_chain_commit(struct ods_chain *c, const uint32_t *kept, size_t n, struct od_err *err)
{
	for (uint32_t i = 0; i < c->n_parts; i++) {
		Od__PartCommit body = OD__PART_COMMIT__INIT;
		Od__Header header = OD__HEADER__INIT;
		int rc;

		body.run = c->run;
		body.kept = (uint32_t *)kept;
		body.n_kept = n;
		header.body_case = OD__HEADER__BODY_PART_COMMIT;
		header.part_commit = &body;
		rc = send_to(c, &c->part[i], &header, NULL, 0, err);
		if (rc != OD_OK)
			return lost(c, &c->part[i], rc, err);
	}
	return OD_OK;
}

/* ---- main's rows ---- */

static struct shadow_part *part_of(struct ods_chain *c, uint32_t layer)
{
	struct shadow_part *p = c->part;

	while (layer >= p->end)
		p++;
	return p;
}

int ods_chain_put(struct ods_chain *c, const struct od_seq_state *seq, uint32_t layer, uint32_t begin, uint32_t n,
		  const struct od_out_frame *frames, size_t n_frames, struct od_err *err)
{
	const uint32_t *page = od_seq_state_pages(seq), first = begin / OD_KV_PAGE,
		       n_pages = (begin + n - 1) / OD_KV_PAGE - first + 1;
	struct shadow_part *p = part_of(c, layer);
	Od__PartRows *rows = calloc(n_pages, sizeof(*rows)), **list = calloc(n_pages, sizeof(Od__PartRows *));
	Od__PartState body = OD__PART_STATE__INIT;
	Od__Header header = OD__HEADER__INIT;
	int rc = rows != NULL && list != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "%u pages", n_pages);

	if (rc == OD_OK)
		for (uint32_t i = 0, at = begin; i < n_pages; at += rows[i++].n) {
			const uint32_t left = OD_KV_PAGE - at % OD_KV_PAGE, rest = begin + n - at;

			od__part_rows__init(&rows[i]);
			rows[i].page = page[first + i];
			rows[i].first = at % OD_KV_PAGE;
			rows[i].n = left < rest ? left : rest;
			list[i] = &rows[i];
		}
	body.layer = layer;
	body.rows = list;
	body.n_rows = n_pages;
	header.body_case = OD__HEADER__BODY_PART_STATE;
	header.part_state = &body;
	if (rc == OD_OK)
		rc = send_to(c, p, &header, frames, n_frames, err);
	free(rows);
	free(list);
	for (size_t i = 0; i < n_frames; i++)
		p->unasked_bytes += frames[i].len;
	if (rc == OD_OK && p->unasked_bytes > UNASKED_BYTES) /* it must not pile up */
		rc = ask_ready(c, p, false, err);
	return rc == OD_OK ? OD_OK : lost(c, p, rc, err);
}

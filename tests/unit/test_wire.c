/* Headers against Google's own encoder, and frames over real ROUTERs and DEALERs. */
#include "tests/unit/wire_client.h"

#include <sched.h>
#include <stdatomic.h>

/* Made by Google's protoc (--encode=od.Header proto/od.proto) from
 *   version: 5 session: 11400714819323198485 epoch: 3
 *   run { step: 70000 m: 5 request: 99 n_rows: 2 closes: true
 *     experts { expert: 7 rows: 0 rows: 1 } experts { expert: 300 rank: 1 rows: 1 last: true } } */
static const uint8_t google_run[] = {
	0x08, 0x05, 0x10, 0x95, 0xf8, 0xa9, 0xfa, 0x97, 0xb7, 0xde, 0x9b, 0x9e, 0x01, 0x18, 0x03, 0x82, 0x02,
	0x20, 0x08, 0xf0, 0xa2, 0x04, 0x10, 0x05, 0x18, 0x63, 0x20, 0x02, 0x2a, 0x06, 0x08, 0x07, 0x1a, 0x02,
	0x00, 0x01, 0x2a, 0x0a, 0x08, 0xac, 0x02, 0x10, 0x01, 0x1a, 0x01, 0x01, 0x20, 0x01, 0x30, 0x01,
};
/*   version: 5 session: 1 epoch: 2
 *   predict { m: 31
 *             rows { sequence: 4 position: 4095 token: -1 experts: 2 experts: 129 probabilities: 0.5
 *                    probabilities: 0.15625 }
 *             rows { sequence: 300 token: 7 margin: 1.5 } } */
static const uint8_t google_predict[] = {
	0x08, 0x05, 0x10, 0x01, 0x18, 0x02, 0x92, 0x01, 0x26, 0x30, 0x1f, 0x5a, 0x16, 0x08, 0x04, 0x10,
	0xff, 0x1f, 0x18, 0x01, 0x22, 0x03, 0x02, 0x81, 0x01, 0x2a, 0x08, 0x00, 0x00, 0x00, 0x3f, 0x00,
	0x00, 0x20, 0x3e, 0x5a, 0x0a, 0x08, 0xac, 0x02, 0x18, 0x0e, 0x35, 0x00, 0x00, 0xc0, 0x3f,
};

struct pair {
	void *context, *router, *dealer;
	uint16_t port;
};

static void pair_open(struct pair *p)
{
	struct od_err err;

	p->context = od_zmq_context();
	assert_non_null(p->context);
	assert_ok(od_bind_router(p->context, "127.0.0.1", 0, NULL, &p->router, &p->port, &err), &err);
	assert_true(p->port != 0);
	p->dealer = connect_to(p->context, p->port);
}

static void pair_close(struct pair *p)
{
	od_close_socket(p->dealer);
	od_close_socket(p->router);
	zmq_ctx_term(p->context);
}

static void set_ping(Od__Header *h, Od__Ping *b, uint64_t sequence)
{
	od__header__init(h);
	od__ping__init(b);
	h->body_case = OD__HEADER__BODY_PING;
	h->ping = b;
	b->sequence = sequence;
}

static int send_ping(void *socket, const struct od_route *route, uint64_t sequence)
{
	Od__Header h;
	Od__Ping b;

	set_ping(&h, &b, sequence);
	return od_wire_send(socket, route, &h, NULL, 0);
}

static void test_bytes_are_protobuf(void **state)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Run run = OD__RUN__INIT;
	Od__RunExpert e[2] = { OD__RUN_EXPERT__INIT, OD__RUN_EXPERT__INIT }, *list[2] = { &e[0], &e[1] };
	uint32_t rows[] = { 0, 1 };
	const Od__PredictRow *row;
	struct pair p;
	struct od_msg m;
	zmq_msg_t packed;

	(void)state;
	run.step = 70000;
	run.m = 5;
	run.request = 99;
	run.n_rows = 2;
	run.closes = true;
	run.n_experts = 2;
	run.experts = list;
	e[0].expert = 7;
	e[0].n_rows = 2;
	e[0].rows = rows;
	e[1].expert = 300;
	e[1].rank = 1;
	e[1].n_rows = 1;
	e[1].rows = rows + 1;
	e[1].last = true;
	h.session = 11400714819323198485u;
	h.epoch = 3;
	h.body_case = OD__HEADER__BODY_RUN;
	h.run = &run;
	assert_int_equal(od_wire_pack(&h, &packed), OD_OK);
	assert_int_equal(zmq_msg_size(&packed), sizeof(google_run));
	assert_memory_equal(zmq_msg_data(&packed), google_run, sizeof(google_run));
	zmq_msg_close(&packed);

	pair_open(&p);
	put_raw(p.dealer, google_predict, sizeof(google_predict), false);
	get_msg(p.router, true, &m);
	assert_int_equal(m.header->version, 5);
	assert_int_equal(m.header->session, 1);
	assert_int_equal(m.header->epoch, 2);
	assert_int_equal(m.header->body_case, OD__HEADER__BODY_PREDICT);
	assert_int_equal(m.header->predict->m, 31);
	assert_int_equal(m.header->predict->n_rows, 2);
	row = m.header->predict->rows[0];
	assert_int_equal(row->sequence, 4);
	assert_int_equal(row->position, 4095);
	assert_int_equal(row->token, -1);
	assert_int_equal(row->n_experts, 2);
	assert_int_equal(row->experts[0], 2);
	assert_int_equal(row->experts[1], 129);
	assert_int_equal(row->n_probabilities, 2);
	assert_true(row->probabilities[0] == 0.5f && row->probabilities[1] == 0.15625f);
	row = m.header->predict->rows[1];
	assert_int_equal(row->sequence, 300);
	assert_int_equal(row->position, 0);
	assert_int_equal(row->token, 7);
	assert_int_equal(row->n_experts, 0);
	assert_true(row->margin == 1.5f);
	od_msg_fini(&m);
	od_msg_fini(&m);
	assert_null(m.header);
	pair_close(&p);
}

static void test_frames_both_ways(void **state)
{
	uint8_t a[5000], b[3] = { 9, 8, 7 };
	struct od_out_frame out[] = { { .bytes = a, .len = sizeof(a) }, { .bytes = b, .len = sizeof(b) } };
	struct od_out_frame empty = { .bytes = NULL, .len = 0 };
	struct pair p;
	struct od_msg m, back;
	Od__Header h;
	Od__Ping ping;
	size_t n;

	(void)state;
	for (size_t i = 0; i < sizeof(a); i++)
		a[i] = (uint8_t)(i * i >> 3);
	pair_open(&p);
	set_ping(&h, &ping, 12);
	assert_int_equal(od_wire_send(p.dealer, NULL, &h, out, 2), OD_OK);
	get_msg(p.router, true, &m);
	assert_int_equal(m.route.len, 5);
	assert_int_equal(m.header->version, OD_PROTOCOL_VERSION);
	assert_int_equal(m.header->ping->sequence, 12);
	assert_int_equal(m.n_frames, 2);
	assert_memory_equal(od_msg_frame(&m, 0, &n), a, sizeof(a));
	assert_int_equal(n, sizeof(a));
	assert_memory_equal(od_msg_frame(&m, 1, &n), b, sizeof(b));
	assert_int_equal(n, sizeof(b));
	assert_null(od_msg_frame(&m, 2, &n));
	assert_int_equal(n, 0);

	set_ping(&h, &ping, 13);
	assert_int_equal(od_wire_send(p.router, &m.route, &h, &empty, 1), OD_OK);
	get_msg(p.dealer, false, &back);
	assert_int_equal(back.route.len, 0);
	assert_int_equal(back.header->ping->sequence, 13);
	assert_int_equal(back.n_frames, 1);
	od_msg_frame(&back, 0, &n);
	assert_int_equal(n, 0);
	od_msg_fini(&back);
	od_msg_fini(&m);

	assert_int_equal(od_wire_recv(p.router, true, &m, NULL), OD_ERR_BUSY);
	assert_null(m.header);
	assert_int_equal(od_wire_recv(p.dealer, false, &m, NULL), OD_ERR_BUSY);
	pair_close(&p);
}

static void expect_garbage(struct pair *p, const char *says)
{
	struct od_err err = { 0 };
	struct od_msg m;
	int rc;

	do {
		await(p->router, ZMQ_POLLIN);
		rc = od_wire_recv(p->router, true, &m, &err);
	} while (rc == OD_ERR_BUSY);
	assert_int_equal(rc, OD_ERR_PROTOCOL);
	assert_null(m.header);
	assert_int_equal(m.n_frames, 0);
	assert_int_equal(m.route.len, 5);
	assert_says(err.msg, says);

	/* Nothing of it is left in front of the next one. */
	assert_int_equal(send_ping(p->dealer, NULL, 5), OD_OK);
	get_msg(p->router, true, &m);
	assert_int_equal(m.header->ping->sequence, 5);
	od_msg_fini(&m);
}

static void test_garbage(void **state)
{
	static uint8_t huge[OD_MAX_HEADER_BYTES + 1];
	/* version 2, field 99: an empty message */
	static const uint8_t unknown_body[] = { 0x08, 0x02, 0x9a, 0x06, 0x00 };
	static const uint8_t not_ours[] = { 0xff, 0xff, 0xff, 0xff };
	struct pair p;

	(void)state;
	pair_open(&p);
	put_raw(p.dealer, "", 0, false);
	expect_garbage(&p, "header: expected a body that this version knows");
	put_raw(p.dealer, unknown_body, sizeof(unknown_body), false);
	expect_garbage(&p, "header: expected a body that this version knows");
	put_raw(p.dealer, not_ours, sizeof(not_ours), false);
	expect_garbage(&p, "header: 4 bytes that protobuf cannot decode");
	/* A prefix is refused too, or it says something else; here the last field's value is missing. */
	put_raw(p.dealer, google_run, sizeof(google_run) - 1, false);
	expect_garbage(&p, "header: 49 bytes that protobuf cannot decode");
	for (int n = 5; n <= 50; n += 45) {
		for (int i = 0; i < n; i++)
			put_raw(p.dealer, google_run, i == 0 ? sizeof(google_run) : (size_t)i % 7, i + 1 < n);
		expect_garbage(&p,
			       n == 5 ? "frames: expected at most 4, found 5" : "frames: expected at most 4, found 50");
	}
	put_raw(p.dealer, huge, sizeof(huge), false);
	expect_garbage(&p, "header: expected at most 262144 bytes, found 262145");
	pair_close(&p);
}

/* WANT with packed zeros up to the limit of a header: a byte becomes four, and no more than that. */
static void test_largest_header(void **state)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Want want = OD__WANT__INIT;
	uint32_t *experts = calloc(OD_MAX_HEADER_BYTES, sizeof(*experts));
	struct pair p;
	struct od_msg m;
	zmq_msg_t packed;

	(void)state;
	assert_non_null(experts);
	want.experts = experts;
	want.n_experts = OD_MAX_HEADER_BYTES - 11; /* two tags, two lengths of three bytes; version */
	h.body_case = OD__HEADER__BODY_WANT;
	h.want = &want;
	assert_int_equal(od_wire_pack(&h, &packed), OD_OK);
	assert_int_equal(zmq_msg_size(&packed), OD_MAX_HEADER_BYTES);
	zmq_msg_close(&packed);
	pair_open(&p);
	assert_int_equal(od_wire_send(p.dealer, NULL, &h, NULL, 0), OD_OK);
	get_msg(p.router, true, &m);
	assert_int_equal(m.header->want->n_experts, want.n_experts);
	od_msg_fini(&m);
	want.n_experts++;
	assert_int_equal(od_wire_send(p.dealer, NULL, &h, NULL, 0), OD_ERR_RANGE);
	pair_close(&p);
	free(experts);
}

/* An id that the peer chose could be that of a connection which is gone, or one that main will get. */
static void test_chosen_route_is_refused(void **state)
{
	static const char *const ids[] = { "m", "main!", "a longer name" };
	struct pair p;
	char url[64];

	(void)state;
	pair_open(&p);
	snprintf(url, sizeof(url), "tcp://127.0.0.1:%u", (unsigned)p.port);
	for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
		void *s = zmq_socket(p.context, ZMQ_DEALER);
		struct od_err err = { 0 };
		struct od_msg m;
		int zero = 0, rc;

		assert_int_equal(zmq_setsockopt(s, ZMQ_ROUTING_ID, ids[i], strlen(ids[i])), 0);
		assert_int_equal(zmq_setsockopt(s, ZMQ_LINGER, &zero, sizeof(zero)), 0);
		assert_int_equal(zmq_connect(s, url), 0);
		put_raw(s, google_run, sizeof(google_run), false);
		do {
			await(p.router, ZMQ_POLLIN);
			rc = od_wire_recv(p.router, true, &m, &err);
		} while (rc == OD_ERR_BUSY);
		assert_int_equal(rc, OD_ERR_PROTOCOL);
		assert_int_equal(m.route.len, 0);
		assert_null(m.header);
		assert_says(err.msg, "routing id");
		zmq_close(s);
	}
	assert_int_equal(send_ping(p.router, &(struct od_route){ .len = 0 }, 1), OD_ERR_UNREACHABLE);
	pair_close(&p);
}

static void count_done(void *bytes, void *hint)
{
	(void)bytes;
	atomic_fetch_add((atomic_int *)hint, 1);
}

static void test_frames_in_place(void **state)
{
	static uint8_t a[100000];
	atomic_int done = 0;
	struct od_out_frame out[] = {
		{ .bytes = a, .len = sizeof(a), .done = count_done, .hint = &done },
		{ .bytes = a, .len = 10, .done = count_done, .hint = &done },
	};
	struct od_route nobody = { .id = { 0, 1, 2, 3, 4 }, .len = 5 };
	struct pair p;
	struct od_msg m;
	Od__Header h;
	Od__Ping ping;
	void *alone;
	size_t n;

	(void)state;
	for (size_t i = 0; i < sizeof(a); i++)
		a[i] = (uint8_t)(i * 31 >> 2);
	pair_open(&p);
	set_ping(&h, &ping, 1);
	assert_int_equal(od_wire_send(p.dealer, NULL, &h, out, 2), OD_OK);
	get_msg(p.router, true, &m);
	assert_memory_equal(od_msg_frame(&m, 0, &n), a, sizeof(a));
	assert_int_equal(n, sizeof(a));
	od_msg_frame(&m, 1, &n);
	assert_int_equal(n, 10);
	od_msg_fini(&m);

	/* The caller keeps the bytes of what could not be sent: no such peer, not connected, too much. */
	assert_int_equal(od_wire_send(p.router, &nobody, &h, out, 2), OD_ERR_UNREACHABLE);
	alone = zmq_socket(p.context, ZMQ_DEALER);
	assert_int_equal(od_wire_send(alone, NULL, &h, out, 2), OD_ERR_BUSY);
	zmq_close(alone);
	assert_int_equal(od_wire_send(p.dealer, NULL, &h, out, OD_MAX_FRAMES), OD_ERR_RANGE);
	out[1].len = OD_MAX_FRAME_BYTES + 1;
	assert_int_equal(od_wire_send(p.dealer, NULL, &h, out, 2), OD_ERR_RANGE);
	pair_close(&p); /* ZeroMQ is done with everything */
	assert_int_equal(done, 2);
}

/* A route whose queue is full takes nothing, and what it took arrives whole. */
static void test_full_queue(void **state)
{
	void *context = od_zmq_context();
	void *router = zmq_socket(context, ZMQ_ROUTER), *dealer = zmq_socket(context, ZMQ_DEALER);
	atomic_int done = 0;
	static uint8_t a[64] = { 1, 2, 3 };
	struct od_out_frame out[] = { { .bytes = a, .len = 64, .done = count_done, .hint = &done },
				      { .bytes = a, .len = 3 } };
	int on = 1, hwm = 3, sent = 0, rc;
	struct od_msg m;
	struct od_route to;
	Od__Header h;
	Od__Ping ping;

	(void)state;
	zmq_setsockopt(router, ZMQ_ROUTER_MANDATORY, &on, sizeof(on));
	zmq_setsockopt(router, ZMQ_SNDHWM, &hwm, sizeof(hwm));
	zmq_setsockopt(dealer, ZMQ_RCVHWM, &hwm, sizeof(hwm));
	assert_int_equal(zmq_bind(router, "inproc://full"), 0);
	assert_int_equal(zmq_connect(dealer, "inproc://full"), 0);
	assert_int_equal(send_ping(dealer, NULL, 0), OD_OK);
	get_msg(router, true, &m);
	to = m.route;
	od_msg_fini(&m);
	for (;;) {
		set_ping(&h, &ping, (uint64_t)sent);
		rc = od_wire_send(router, &to, &h, out, 2);
		if (rc != OD_OK)
			break;
		assert_true(++sent < 1000);
	}
	assert_int_equal(rc, OD_ERR_BUSY);
	assert_true(sent >= 3);
	for (int i = 0; i < sent; i++) {
		get_msg(dealer, false, &m);
		assert_int_equal(m.header->ping->sequence, i);
		assert_int_equal(m.n_frames, 2);
		od_msg_fini(&m);
	}
	assert_int_equal(od_wire_recv(dealer, false, &m, NULL), OD_ERR_BUSY);
	zmq_close(router);
	zmq_close(dealer);
	zmq_ctx_term(context);
	assert_int_equal(done, sent);
}

static void test_route_of_a_closed_peer(void **state)
{
	struct pair p;
	struct od_msg m;
	int rc;

	(void)state;
	pair_open(&p);
	assert_int_equal(send_ping(p.dealer, NULL, 1), OD_OK);
	get_msg(p.router, true, &m);
	od_close_socket(p.dealer);
	p.dealer = NULL;
	do { /* until ZeroMQ's thread has seen the end; until then its queue may become full */
		rc = send_ping(p.router, &m.route, 1);
		sched_yield();
	} while (rc == OD_OK || rc == OD_ERR_BUSY);
	assert_int_equal(rc, OD_ERR_UNREACHABLE);
	od_msg_fini(&m);
	pair_close(&p);
}

static void test_version(void **state)
{
	Od__Header h = OD__HEADER__INIT;
	struct od_err err;

	(void)state;
	h.version = OD_PROTOCOL_VERSION;
	assert_int_equal(od_check_version(&h, NULL), OD_OK);
	h.version = 0;
	assert_int_equal(od_check_version(&h, &err), OD_ERR_MISMATCH);
	assert_string_equal(err.msg, "protocol version: expected 5, found 0");
}

static void test_texts(void **state)
{
	char buf[8];

	(void)state;
	assert_string_equal(od_body_name(OD__HEADER__BODY_RUN), "RUN");
	assert_string_equal(od_body_name(OD__HEADER__BODY_STATE_REQUEST), "STATE_REQUEST");
	assert_string_equal(od_body_name((Od__Header__BodyCase)99), "nothing");
	for (const ProtobufCFieldDescriptor *f = od__header__descriptor.fields;
	     f < od__header__descriptor.fields + od__header__descriptor.n_fields; f++) {
		if (f->id >= 10) /* the body's */
			assert_int_equal(strcasecmp(od_body_name((Od__Header__BodyCase)f->id), f->name), 0);
	}
	assert_string_equal(od_peer_text("a\tb\x7f\xc3\xa9~", buf, sizeof(buf)), "a?b???~");
	assert_string_equal(od_peer_text("longer than that", buf, sizeof(buf)), "longer ");
	assert_string_equal(od_peer_text("x", buf, 1), "");
}

static void test_endpoints(void **state)
{
	char long_label[80];
	struct od_err err;
	struct pair p;
	void *s = (void *)1;
	uint16_t port = 1;

	(void)state;
	assert_true(od_is_loopback("127.0.0.1"));
	assert_true(od_is_loopback("127.255.3.4"));
	assert_true(od_is_loopback("::1"));
	assert_true(od_is_loopback("localhost"));
	assert_false(od_is_loopback("126.0.0.1"));
	assert_false(od_is_loopback("128.0.0.1"));
	assert_false(od_is_loopback("0.0.0.0"));
	assert_false(od_is_loopback("::"));
	assert_false(od_is_loopback("1270.0.0.1"));
	assert_false(od_is_loopback("127.0.0.1.example.org"));
	assert_false(od_is_loopback("localhost.example.org"));
	assert_false(od_is_loopback(""));

	pair_open(&p);
	assert_int_equal(od_bind_router(p.context, "127.0.0.1", p.port, NULL, &s, &port, &err), OD_ERR_BUSY);
	assert_null(s);
	assert_int_equal(port, 0);
	assert_says(err.msg, "127.0.0.1");
	assert_says(err.msg, "--port");
	/* not ours: TEST-NET */
	assert_int_equal(od_bind_router(p.context, "192.0.2.77", 0, NULL, &s, &port, &err), OD_ERR_IO);
	assert_says(err.msg, "cannot listen on 192.0.2.77");
	memset(long_label, 'a', sizeof(long_label) - 1); /* no name may be so long: nobody needs to be asked */
	long_label[sizeof(long_label) - 1] = '\0';
	assert_int_equal(od_connect_dealer(p.context, long_label, 1, NULL, &s, &err), OD_ERR_UNREACHABLE);
	assert_null(s);
	assert_says(err.msg, long_label);
	pair_close(&p);
}

/* A peer of ZMTP 1 (no greeting: its anonymous id, a message) or ZMTP 2 is hung up on and not heard. */
static void test_old_peers_are_refused(void **state)
{
	static const struct {
		const char *bytes;
		size_t len;
	} greeting[] = {
		{ "\x01\x00\x03\x00hi", 6 },
		{ "\xff\0\0\0\0\0\0\0\x01\x7f\x01\x05\0\0\0\x02hi", 18 },
	};
	struct sockaddr_in to = { .sin_family = AF_INET };
	struct pair p;
	struct od_msg m;

	(void)state;
	pair_open(&p);
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	to.sin_port = htons(p.port);
	for (size_t i = 0; i < sizeof(greeting) / sizeof(greeting[0]); i++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		struct pollfd item = { .fd = fd, .events = POLLIN };
		char byte;

		assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
		assert_int_equal(send(fd, greeting[i].bytes, greeting[i].len, MSG_NOSIGNAL), (int)greeting[i].len);
		do {
			assert_int_equal(poll(&item, 1, HANG_MS), 1);
		} while (recv(fd, &byte, 1, 0) == 1); /* its own greeting */
		close(fd);
	}
	assert_int_equal(od_wire_recv(p.router, true, &m, NULL), OD_ERR_BUSY);
	pair_close(&p);
}

/* Nothing is queued for a daemon that is not there: it would reach one that starts later. The port is taken, and
 * nobody listens. */
static void test_nothing_waits_for_a_connection(void **state)
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	socklen_t size = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	void *context = od_zmq_context(), *dealer;
	struct od_err err;

	(void)state;
	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &size), 0);
	assert_ok(od_connect_dealer(context, "127.0.0.1", ntohs(a.sin_port), NULL, &dealer, &err), &err);
	assert_int_equal(send_ping(dealer, NULL, 1), OD_ERR_BUSY);
	od_close_socket(dealer);
	zmq_ctx_term(context);
	close(fd);
}

static void test_ipv6(void **state)
{
	void *context = od_zmq_context(), *router, *dealer;
	struct od_err err;
	struct od_msg m;
	uint16_t port;

	(void)state;
	if (od_bind_router(context, "::1", 0, NULL, &router, &port, &err) != OD_OK) {
		zmq_ctx_term(context);
		skip(); /* this machine has no IPv6 */
	}
	assert_ok(od_connect_dealer(context, "::1", port, NULL, &dealer, &err), &err);
	await(dealer, ZMQ_POLLOUT);
	assert_int_equal(send_ping(dealer, NULL, 6), OD_OK);
	get_msg(router, true, &m);
	assert_int_equal(m.header->ping->sequence, 6);
	od_msg_fini(&m);
	od_close_socket(dealer);
	od_close_socket(router);
	zmq_ctx_term(context);
}

/* Frames above the limit cost their sender the connection; those at the limit arrive. */
static void test_too_large_frame(void **state)
{
	uint8_t *large = calloc(1, OD_MAX_FRAME_BYTES + 1);
	struct pair p;
	struct od_msg m;
	void *s, *monitor;
	size_t n;

	(void)state;
	assert_non_null(large);
	pair_open(&p);
	s = connect_to(p.context, p.port);
	assert_int_equal(zmq_socket_monitor(s, "inproc://watch", ZMQ_EVENT_DISCONNECTED), 0);
	monitor = zmq_socket(p.context, ZMQ_PAIR);
	assert_int_equal(zmq_connect(monitor, "inproc://watch"), 0);
	put_raw(s, google_run, sizeof(google_run), true);
	put_raw(s, large, OD_MAX_FRAME_BYTES + 1, false);
	await(monitor, ZMQ_POLLIN);
	zmq_close(monitor);
	zmq_socket_monitor(s, NULL, 0);
	od_close_socket(s);

	large[OD_MAX_FRAME_BYTES - 1] = 0x5a;
	put_raw(p.dealer, google_run, sizeof(google_run), true);
	put_raw(p.dealer, large, OD_MAX_FRAME_BYTES, false);
	get_msg(p.router, true, &m);
	assert_int_equal(m.header->body_case, OD__HEADER__BODY_RUN);
	assert_int_equal(((const uint8_t *)od_msg_frame(&m, 0, &n))[OD_MAX_FRAME_BYTES - 1], 0x5a);
	assert_int_equal(n, OD_MAX_FRAME_BYTES);
	od_msg_fini(&m);
	assert_int_equal(od_wire_recv(p.router, true, &m, NULL), OD_ERR_BUSY);
	pair_close(&p);
	free(large);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes_are_protobuf),
		cmocka_unit_test(test_frames_both_ways),
		cmocka_unit_test(test_garbage),
		cmocka_unit_test(test_largest_header),
		cmocka_unit_test(test_chosen_route_is_refused),
		cmocka_unit_test(test_frames_in_place),
		cmocka_unit_test(test_full_queue),
		cmocka_unit_test(test_route_of_a_closed_peer),
		cmocka_unit_test(test_version),
		cmocka_unit_test(test_texts),
		cmocka_unit_test(test_endpoints),
		cmocka_unit_test(test_old_peers_are_refused),
		cmocka_unit_test(test_nothing_waits_for_a_connection),
		cmocka_unit_test(test_ipv6),
		cmocka_unit_test(test_too_large_frame),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

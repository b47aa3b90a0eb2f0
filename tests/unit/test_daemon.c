/* The daemon's side of the handshake, sessions, heartbeats and the way out, over real sockets on loopback. */
#include "tests/unit/wire_client.h"

#include "common/daemon/daemon.h"
#include "common/net/liveness.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>

/* A ROUTER's queue to its peer is full for the next so many messages: what is sent so is the route in front of one. */
static atomic_int clogged;
static int (*real_send)(void *, const void *, size_t, int);

int zmq_send(void *s, const void *buf, size_t len, int flags)
{
	if (clogged > 0 && flags == (ZMQ_DONTWAIT | ZMQ_SNDMORE)) {
		clogged--;
		errno = EAGAIN;
		return -1;
	}
	return real_send(s, buf, len, flags);
}

/* However long this program stands still, main has spoken; but in the test of silence. */
static atomic_bool silence_counts;

enum od_verdict __real_od_liveness_check(struct od_liveness *l, uint64_t now_ns);
enum od_verdict __wrap_od_liveness_check(struct od_liveness *l, uint64_t now_ns);
enum od_verdict __wrap_od_liveness_check(struct od_liveness *l, uint64_t now_ns)
{
	return atomic_load(&silence_counts) ? __real_od_liveness_check(l, now_ns) : OD_ALIVE;
}

struct daemon_rig {
	struct od_daemon_opts opts;
	struct od_daemon *daemon;
	struct od_data_port *data;
	pthread_t thread;
	int run_rc;
	struct od_err run_err;
	void *context;
	atomic_int accepts, begins, ends, messages, unsent;
	atomic_ullong ended; /* the session of the last end */
	atomic_uint last_m; /* the newest WANT's */
};

static int on_accept(void *arg, const Od__Hello *hello, Od__Welcome *w, const char **field, struct od_err *err)
{
	struct daemon_rig *r = arg;

	r->accepts++;
	if (strcmp(hello->kernel_class, "fma16") != 0) {
		*field = "kernel_class";
		return od_fail(err, OD_ERR_MISMATCH, "kernel_class: expected fma16, found %s", hello->kernel_class);
	}
	w->kernel_class = (char *)"fma16";
	w->backend = (char *)"scalar";
	w->slots = 3;
	w->memory_bytes = 900u << 20;
	return OD_OK;
}

static void on_begin(void *arg, uint64_t session)
{
	struct daemon_rig *r = arg;

	assert_true(session != 0);
	r->begins++;
}

static void on_end(void *arg, uint64_t session)
{
	struct daemon_rig *r = arg;

	r->ended = session;
	r->ends++;
}

static int on_message(void *arg, const struct od_msg *m, struct od_err *err)
{
	struct daemon_rig *r = arg;

	if (m->header->body_case != OD__HEADER__BODY_WANT)
		return od_fail(err, OD_ERR_PROTOCOL, "only WANT is expected here");
	r->last_m = m->header->want->m;
	r->messages++;
	return OD_OK;
}

static void on_pong(void *arg, Od__Pong *p, uint64_t *c)
{
	(void)arg;
	p->progress = 41;
	p->busy = true;
	c[OD_C_SHADOW_STEPS] = UINT64_MAX;
}

static void on_unsent(void *arg)
{
	struct daemon_rig *r = arg;

	r->unsent++;
}

static const struct od_daemon_ops rig_ops = {
	.accept = on_accept,
	.begin = on_begin,
	.end = on_end,
	.message = on_message,
	.pong = on_pong,
	.unsent = on_unsent,
};

static void *run_daemon(void *arg)
{
	struct daemon_rig *r = arg;

	r->run_rc = od_daemon_run(r->daemon, &r->run_err);
	return NULL;
}

static void rig_init(struct daemon_rig *r)
{
	memset(r, 0, sizeof(*r));
	r->opts.role = "worker";
	r->opts.ready_fd = -1;
	for (size_t i = 0; i < sizeof(r->opts.fingerprint); i++)
		r->opts.fingerprint[i] = (uint8_t)(i * 7 + 1);
}

static void rig_open(struct daemon_rig *r)
{
	struct od_err err;

	assert_ok(od_daemon_new(&r->daemon, &r->opts, &rig_ops, r, &r->data, &err), &err);
	r->context = od_zmq_context();
	assert_non_null(r->context);
}

static void rig_run(struct daemon_rig *r)
{
	assert_int_equal(pthread_create(&r->thread, NULL, run_daemon, r), 0);
}

static void rig_start(struct daemon_rig *r)
{
	rig_init(r);
	rig_open(r);
	rig_run(r);
}

static void rig_join(struct daemon_rig *r)
{
	pthread_join(r->thread, NULL);
	assert_int_equal(r->run_rc, OD_OK);
	assert_int_equal(r->begins, r->ends);
	od_daemon_free(r->daemon);
}

static void rig_stop(struct daemon_rig *r)
{
	od_daemon_stop(r->daemon);
	rig_join(r);
	zmq_ctx_term(r->context);
}

static void *rig_connect(struct daemon_rig *r)
{
	return connect_to(r->context, od_daemon_port(r->daemon));
}

/* A HELLO that is right in everything, and its header. */
struct hello {
	Od__Header h;
	Od__Hello b;
};

static struct hello *good_hello(struct daemon_rig *r, struct hello *x)
{
	od__header__init(&x->h);
	od__hello__init(&x->b);
	x->h.version = OD_PROTOCOL_VERSION;
	x->h.epoch = 5;
	x->h.body_case = OD__HEADER__BODY_HELLO;
	x->h.hello = &x->b;
	x->b.role = (char *)"worker";
	x->b.fingerprint.data = r->opts.fingerprint;
	x->b.fingerprint.len = sizeof(r->opts.fingerprint);
	x->b.kernel_class = (char *)"fma16";
	x->b.main_name = (char *)"main\nof\x1b[31m tests";
	return x;
}

/* The session that WELCOME gives, 0 when it is REFUSE. */
static uint64_t greet(struct daemon_rig *r, void *s, uint64_t old_session)
{
	struct hello x;
	struct od_msg m;
	uint64_t session = 0;

	good_hello(r, &x)->h.session = old_session;
	put_any_version(s, &x.h);
	get_msg(s, false, &m);
	if (m.header->body_case == OD__HEADER__BODY_WELCOME) {
		session = m.header->welcome->session;
		assert_true(session != 0);
		assert_true(m.header->session == session);
	} else {
		assert_int_equal(m.header->body_case, OD__HEADER__BODY_REFUSE);
		assert_int_equal(m.header->refuse->code, OD_ERR_BUSY);
		assert_string_equal(m.header->refuse->field, "session");
		assert_string_equal(m.header->refuse->reason,
				    "session: this worker is in use by main \"main?of?[31m tests\"");
		assert_int_equal(m.header->session, 0);
	}
	od_msg_fini(&m);
	return session;
}

static void expect_refusal(void *s, const Od__Header *hello, int code, const char *field, const char *wanted)
{
	struct od_msg m;

	put_any_version(s, hello);
	get_kind(s, &m, OD__HEADER__BODY_REFUSE);
	assert_int_equal(m.header->version, OD_PROTOCOL_VERSION);
	assert_int_equal(m.header->refuse->code, code);
	assert_string_equal(m.header->refuse->field, field);
	assert_says(m.header->refuse->reason, wanted);
	od_msg_fini(&m);
}

static void put_ping(void *s, uint64_t session, uint64_t sequence)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Ping p = OD__PING__INIT;

	h.session = session;
	h.version = OD_PROTOCOL_VERSION;
	h.epoch = 9;
	h.body_case = OD__HEADER__BODY_PING;
	h.ping = &p;
	p.sequence = sequence;
	put_any_version(s, &h);
}

/* Every message before it on this connection has been handled when the PONG is here, and was not answered. */
static void expect_pong(void *s, uint64_t session, uint64_t sequence)
{
	uint64_t c[OD_N_COUNTERS];
	struct od_msg m;

	put_ping(s, session, sequence);
	get_kind(s, &m, OD__HEADER__BODY_PONG);
	assert_true(m.header->session == session);
	assert_int_equal(m.header->epoch, 9);
	assert_int_equal(m.header->pong->sequence, sequence);
	assert_int_equal(m.header->pong->progress, 41);
	assert_true(m.header->pong->busy);
	od_pong_get(m.header->pong, c);
	assert_true(c[OD_C_PEAK_RSS_BYTES] > 0);
	assert_int_equal(c[OD_C_SHADOW_STEPS], UINT64_MAX);
	assert_true(c[OD_C_RSS_BYTES] > 0);
	assert_int_equal(m.header->pong->n_counters, 3); /* counters that are not 0 */
	od_msg_fini(&m);
}

static void put_want(void *s, uint64_t session, uint32_t m, uint32_t version)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Want want = OD__WANT__INIT;
	uint32_t experts[] = { 3, 1, 7 };

	h.session = session;
	h.body_case = OD__HEADER__BODY_WANT;
	h.want = &want;
	want.m = m;
	want.experts = experts;
	want.n_experts = 3;
	h.version = version;
	put_any_version(s, &h);
}

static void put_bye(void *s, uint64_t session)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Bye b = OD__BYE__INIT;

	h.session = session;
	h.body_case = OD__HEADER__BODY_BYE;
	h.bye = &b;
	assert_int_equal(od_wire_send(s, NULL, &h, NULL, 0), OD_OK);
}

static void await_end(struct daemon_rig *r, int ends)
{
	const struct timespec pause = { .tv_nsec = 5000000 };

	for (int i = 0; i < HANG_MS / 5 && r->ends < ends; i++)
		nanosleep(&pause, NULL);
	assert_int_equal(r->ends, ends);
}

static void test_welcome(void **state)
{
	struct daemon_rig r;
	struct hello x;
	struct od_msg m;
	void *s;

	(void)state;
	rig_start(&r);
	s = rig_connect(&r);
	put_any_version(s, &good_hello(&r, &x)->h);
	get_kind(s, &m, OD__HEADER__BODY_WELCOME);
	assert_true(m.header->welcome->session != 0);
	assert_true(m.header->session == m.header->welcome->session);
	assert_true(od_daemon_session(r.daemon) == m.header->welcome->session);
	assert_true(od_data_port_session(r.data) == m.header->welcome->session);
	assert_int_equal(m.header->epoch, 5);
	assert_string_equal(m.header->welcome->role, "worker");
	assert_string_equal(m.header->welcome->kernel_class, "fma16");
	assert_string_equal(m.header->welcome->backend, "scalar");
	assert_true(m.header->welcome->host_name[0] != '\0');
	assert_int_equal(m.header->welcome->pid, getpid());
	assert_int_equal(m.header->welcome->data_port, od_data_port_number(r.data));
	assert_int_equal(m.header->welcome->slots, 3);
	assert_int_equal(r.begins, 1);
	expect_pong(s, m.header->session, 77);
	od_msg_fini(&m);
	od_close_socket(s);
	rig_stop(&r);
	assert_int_equal(r.ends, 1);
}

static void test_refusals(void **state)
{
	uint8_t other[32] = { 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67 };
	struct daemon_rig r;
	struct hello x;
	void *s;

	(void)state;
	rig_start(&r);
	s = rig_connect(&r);
	good_hello(&r, &x)->h.version = 7;
	expect_refusal(s, &x.h, OD_ERR_MISMATCH, "version", "protocol version: expected 5, found 7");
	good_hello(&r, &x)->b.role = (char *)"shadow\n";
	expect_refusal(s, &x.h, OD_ERR_MISMATCH, "role", "role: expected worker, found \"shadow?\"");
	good_hello(&r, &x)->b.fingerprint.data = other;
	/* 1, 8, 15, 22, ... are the rig's bytes. */
	expect_refusal(s, &x.h, OD_ERR_MISMATCH, "fingerprint", "expected 01080f161d24, found abcdef012345:");
	good_hello(&r, &x)->b.fingerprint.len = 5;
	expect_refusal(s, &x.h, OD_ERR_MISMATCH, "fingerprint", "expected 32 bytes, found 5");
	good_hello(&r, &x)->b.fingerprint.len = 0;
	expect_refusal(s, &x.h, OD_ERR_MISMATCH, "fingerprint", "expected 32 bytes, found 0");
	assert_int_equal(r.accepts, 0);
	good_hello(&r, &x)->b.kernel_class = (char *)"bf16dot";
	expect_refusal(s, &x.h, OD_ERR_MISMATCH, "kernel_class", "expected fma16, found bf16dot");
	assert_int_equal(r.accepts, 1);
	assert_int_equal(r.begins, 0);
	assert_true(od_daemon_session(r.daemon) == 0);
	assert_true(greet(&r, s, 0) != 0);
	od_close_socket(s);
	rig_stop(&r);
}

/* One main at a time; the same main may begin anew. A second main is refused while the first lives. */
static void test_one_main(void **state)
{
	uint64_t first, second, third;
	struct od_msg m;
	struct daemon_rig r;
	void *a, *b;

	(void)state;
	rig_start(&r);
	a = rig_connect(&r);
	b = rig_connect(&r);
	first = greet(&r, a, 0);
	assert_true(first != 0);
	assert_true(greet(&r, b, first ^ 1) == 0);
	/* A PONG that answers nothing asked whether the first one's connection still stands. */
	get_kind(a, &m, OD__HEADER__BODY_PONG);
	assert_int_equal(m.header->pong->sequence, 0);
	od_msg_fini(&m);
	expect_pong(a, first, 1);

	second = greet(&r, a, 0); /* HELLO twice on one connection */
	assert_true(second != 0 && second != first);
	assert_true(r.ended == first);
	third = greet(&r, b, second); /* main's new connection */
	assert_true(third != 0 && third != second);
	assert_true(r.ended == second);
	expect_pong(b, third, 2);
	put_ping(a, second, 3); /* the old connection, the old session */
	put_ping(a, third, 4); /* the old connection, the right session */
	assert_true(greet(&r, a, third ^ 1) == 0); /* so both have been seen */
	get_kind(b, &m, OD__HEADER__BODY_PONG);
	assert_int_equal(m.header->pong->sequence, 0);
	od_msg_fini(&m);
	expect_pong(b, third, 5);
	od_close_socket(a);
	od_close_socket(b);
	rig_stop(&r);
}

static void test_killed_main(void **state)
{
	struct daemon_rig r;
	void *a, *b;
	int tries = 0;

	(void)state;
	rig_start(&r);
	a = rig_connect(&r);
	assert_true(greet(&r, a, 0) != 0);
	od_close_socket(a);
	b = rig_connect(&r);
	while (greet(&r, b, 0) == 0)
		assert_true(++tries < 1000000);
	assert_int_equal(r.begins, 2);
	assert_int_equal(r.ends, 1);
	od_close_socket(b);
	rig_stop(&r);
}

static void test_messages(void **state)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Run run = OD__RUN__INIT;
	struct daemon_rig r;
	void *s;

	(void)state;
	rig_start(&r);
	s = rig_connect(&r);
	put_ping(s, 0, 1); /* before HELLO */
	put_ping(s, 12345, 1);
	put_want(s, 0, 10, OD_PROTOCOL_VERSION);
	h.session = greet(&r, s, 0);
	put_want(s, h.session, 11, OD_PROTOCOL_VERSION);
	expect_pong(s, h.session, 2);
	assert_int_equal(r.messages, 1);
	assert_int_equal(r.last_m, 11);

	put_want(s, h.session ^ 1, 12, OD_PROTOCOL_VERSION); /* another session */
	put_want(s, h.session, 13, OD_PROTOCOL_VERSION + 1); /* another version */
	h.version = OD_PROTOCOL_VERSION;
	h.body_case = OD__HEADER__BODY_RUN; /* belongs on the other socket */
	h.run = &run;
	put_any_version(s, &h);
	expect_pong(s, h.session, 3);
	assert_int_equal(r.messages, 1);
	od_close_socket(s);
	rig_stop(&r);
}

static void test_bye(void **state)
{
	struct daemon_rig r;
	uint64_t session;
	struct od_msg m;
	void *a, *b;

	(void)state;
	rig_start(&r);
	a = rig_connect(&r);
	b = rig_connect(&r);
	session = greet(&r, a, 0);
	put_bye(a, session);
	get_kind(a, &m, OD__HEADER__BODY_BYE);
	assert_true(m.header->session == session);
	od_msg_fini(&m);
	await_end(&r, 1);
	assert_true(r.ended == session);
	assert_true(od_daemon_session(r.daemon) == 0);
	assert_true(od_data_port_session(r.data) == 0);
	put_ping(a, session, 1);
	assert_true(greet(&r, b, 0) != 0);
	od_close_socket(a);
	od_close_socket(b);
	rig_stop(&r);
}

static void test_silence(void **state)
{
	struct daemon_rig r;
	struct od_msg m;
	uint64_t session;
	void *s;

	(void)state;
	rig_start(&r);
	s = rig_connect(&r);
	session = greet(&r, s, 0);
	atomic_store(&silence_counts, true);
	await_end(&r, 1);
	atomic_store(&silence_counts, false);
	assert_true(r.ended == session);
	assert_true(od_daemon_session(r.daemon) == 0);
	put_ping(s, session ^ 1, 1); /* a stranger's has no answer */
	put_ping(s, session, 2);
	get_kind(s, &m, OD__HEADER__BODY_BYE);
	assert_true(m.header->session == session);
	assert_string_equal(m.header->bye->reason, "that session has ended");
	od_msg_fini(&m);
	assert_true(greet(&r, s, session) != 0); /* it only slept */
	od_close_socket(s);
	rig_stop(&r);
}

static void make_bye(Od__Header *h, Od__Bye *b, const char *reason)
{
	od__header__init(h);
	od__bye__init(b);
	h->body_case = OD__HEADER__BODY_BYE;
	h->bye = b;
	b->reason = (char *)reason;
}

#define POSTS 10000

static void *post_many(void *arg)
{
	struct daemon_rig *r = arg;
	uint64_t session = od_daemon_session(r->daemon);
	Od__Header h;
	Od__Bye b;
	char text[32];

	for (int i = 0; i < POSTS; i++) {
		int rc;

		snprintf(text, sizeof(text), "message %d", i);
		make_bye(&h, &b, text);
		do {
			rc = od_daemon_post(r->daemon, i % 10 == 9 ? session ^ 1 : session, &h);
			if (rc == OD_ERR_BUSY)
				sched_yield();
		} while (rc == OD_ERR_BUSY);
		assert_int_equal(rc, OD_OK);
		snprintf(text, sizeof(text), "overwritten"); /* must not change what was posted */
	}
	return NULL;
}

static void test_post(void **state)
{
	pthread_t thread;
	struct od_msg m;
	struct daemon_rig r;
	char text[32];
	void *s;

	(void)state;
	rig_start(&r);
	s = rig_connect(&r);
	assert_true(greet(&r, s, 0) != 0);
	assert_int_equal(pthread_create(&thread, NULL, post_many, &r), 0);
	for (int i = 0; i < POSTS; i++) {
		if (i % 10 == 9) /* names an unknown session */
			continue;
		get_kind(s, &m, OD__HEADER__BODY_BYE);
		snprintf(text, sizeof(text), "message %d", i);
		assert_string_equal(m.header->bye->reason, text);
		assert_int_equal(m.header->epoch, 5); /* HELLO's; the signs of life below have none */
		od_msg_fini(&m);
		if (i % 100 == 0) /* a sign of life, however long this takes; it is not answered */
			put_want(s, od_daemon_session(r.daemon), (uint32_t)i, OD_PROTOCOL_VERSION);
	}
	pthread_join(thread, NULL);
	od_close_socket(s);
	rig_stop(&r);
}

static void test_post_is_bounded(void **state)
{
	Od__Header h;
	Od__Bye b;
	struct daemon_rig r;

	(void)state;
	rig_init(&r);
	rig_open(&r); /* nobody takes anything out */
	make_bye(&h, &b, "a text that does not fit into the message structure itself");
	for (int i = 0; i < 4096; i++)
		assert_int_equal(od_daemon_post(r.daemon, 1, &h), OD_OK);
	assert_int_equal(od_daemon_post(r.daemon, 1, &h), OD_ERR_BUSY);
	od_daemon_free(r.daemon);
	zmq_ctx_term(r.context);
}

static void test_addresses(void **state)
{
	struct od_daemon *d = (void *)1;
	struct od_data_port *p = (void *)1;
	char port[16];
	struct od_err err;
	struct daemon_rig r, other;

	(void)state;
	rig_init(&r);
	r.opts.listen = "0.0.0.0";
	assert_int_equal(od_daemon_new(&d, &r.opts, &rig_ops, &r, &p, &err), OD_ERR_ARG);
	assert_null(d);
	assert_null(p);
	assert_says(err.msg, "--listen 0.0.0.0");
	assert_says(err.msg, "--insecure");
	r.opts.listen = "0.0.0.0";
	r.opts.insecure = true;
	rig_open(&r);
	rig_run(&r);
	rig_stop(&r);

	rig_start(&r);
	rig_init(&other);
	other.opts.port = od_daemon_port(r.daemon);
	assert_int_equal(od_daemon_new(&d, &other.opts, &rig_ops, &other, &p, &err), OD_ERR_BUSY);
	snprintf(port, sizeof(port), "port %u:", (unsigned)other.opts.port);
	assert_says(err.msg, "127.0.0.1");
	assert_says(err.msg, port);
	assert_says(err.msg, "--port");
	rig_init(&other);
	other.opts.data_port = od_daemon_port(r.daemon);
	assert_int_equal(od_daemon_new(&d, &other.opts, &rig_ops, &other, &p, &err), OD_ERR_BUSY);
	assert_says(err.msg, "--data-port");
	rig_stop(&r);
}

static void test_ready(void **state)
{
	char text[32] = "", expected[32];
	struct daemon_rig r;
	int fd[2];

	(void)state;
	assert_int_equal(pipe(fd), 0);
	rig_init(&r);
	r.opts.ready_fd = fd[1];
	rig_open(&r);
	rig_run(&r);
	snprintf(expected, sizeof(expected), "%u\n", (unsigned)od_daemon_port(r.daemon));
	assert_int_equal(read(fd[0], text, sizeof(text) - 1), (int)strlen(expected));
	assert_string_equal(text, expected);
	assert_int_equal(read(fd[0], text, 1), 0); /* closed */
	close(fd[0]);
	rig_stop(&r);

	assert_int_equal(pipe(fd), 0);
	close(fd[0]); /* the parent is gone */
	rig_init(&r);
	r.opts.ready_fd = fd[1];
	rig_open(&r);
	assert_int_equal(od_daemon_run(r.daemon, &r.run_err), OD_ERR_IO);
	assert_says(r.run_err.msg, "ready");
	od_daemon_free(r.daemon);
	zmq_ctx_term(r.context);
}

static void test_signals(void **state)
{
	static const int number[] = { SIGTERM, SIGINT };

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct od_msg m;
		struct daemon_rig r;
		void *s;

		rig_start(&r);
		s = rig_connect(&r);
		assert_true(greet(&r, s, 0) != 0);
		assert_int_equal(kill(getpid(), SIGPIPE), 0);
		assert_int_equal(kill(getpid(), number[i]), 0);
		get_kind(s, &m, OD__HEADER__BODY_BYE);
		put_bye(s, m.header->session);
		od_msg_fini(&m);
		rig_join(&r);
		assert_int_equal(r.ends, 1);
		od_close_socket(s);
		zmq_ctx_term(r.context);
	}
}

static void be_daemon(int ready_fd, pid_t parent)
{
	struct od_err err;
	struct daemon_rig r;

	rig_init(&r);
	r.opts.ready_fd = ready_fd;
	r.opts.parent = parent;
	if (od_tie_to_parent(parent, &err) != OD_OK ||
	    od_daemon_new(&r.daemon, &r.opts, &rig_ops, &r, &r.data, &err) != OD_OK ||
	    od_daemon_run(r.daemon, &err) != OD_OK)
		_exit(1);
	od_daemon_free(r.daemon);
	_exit(0);
}

static void be_parent(int ready_fd)
{
	const pid_t parent = getpid();

	if (fork() == 0)
		be_daemon(ready_fd, parent);
	for (;;)
		pause();
}

/* This test -> parent -> daemon, which is the last to hold the pipe "alive". */
static void test_dies_with_parent(void **state)
{
	int ready[2], alive[2];
	struct pollfd p;
	char byte;
	pid_t parent;

	(void)state;
	assert_int_equal(pipe(ready), 0);
	assert_int_equal(pipe(alive), 0);
	parent = fork();
	assert_true(parent >= 0);
	if (parent == 0) {
		close(ready[0]);
		close(alive[0]);
		be_parent(ready[1]);
	}
	close(ready[1]);
	close(alive[1]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	kill(parent, SIGKILL);
	assert_int_equal(waitpid(parent, NULL, 0), parent);
	p = (struct pollfd){ .fd = alive[0], .events = POLLIN };
	assert_int_equal(poll(&p, 1, HANG_MS), 1);
	assert_int_equal(read(alive[0], &byte, 1), 0);
	close(ready[0]);
	close(alive[0]);
}

/* Its process number says whom the child must not outlive: the process that gets the child of a dead one is its parent,
 * too. */
static void test_has_lost_its_parent(void **state)
{
	int said[2];
	pid_t parent;
	struct od_err err;
	int rc;

	(void)state;
	assert_int_equal(pipe(said), 0);
	parent = fork();
	assert_true(parent >= 0);
	if (parent == 0) {
		const pid_t self = getpid();

		if (fork() != 0)
			_exit(0);
		while (getppid() == self)
			usleep(1000);
		rc = od_tie_to_parent(self, &err);
		_exit(write(said[1], &rc, sizeof(rc)) == sizeof(rc) ? 0 : 1);
	}
	close(said[1]);
	assert_int_equal(waitpid(parent, NULL, 0), parent);
	assert_int_equal(read(said[0], &rc, sizeof(rc)), sizeof(rc));
	assert_int_equal(rc, OD_ERR_CANCELLED);
	close(said[0]);
}

static void test_strangers(void **state)
{
	struct daemon_rig r;
	uint64_t session;
	void *s;

	(void)state;
	rig_start(&r);
	put_junk_tcp(od_daemon_port(r.daemon));
	put_garbage(r.context, od_daemon_port(r.daemon));
	s = rig_connect(&r);
	session = greet(&r, s, 0);
	expect_pong(s, session, 1);
	put_junk_tcp(od_daemon_port(r.daemon));
	expect_pong(s, session, 2); /* the session goes on */
	put_garbage(r.context, od_daemon_port(r.daemon));
	expect_pong(s, session, 3);
	assert_int_equal(r.messages, 0);
	assert_int_equal(r.begins, 1);
	od_close_socket(s);
	rig_stop(&r);
}

/* A PONG that could not be sent is sent again, whether main asked for it or not. */
static void test_unsent_pong(void **state)
{
	struct daemon_rig r;
	uint64_t session;
	void *s, *other;

	(void)state;
	rig_start(&r);
	s = rig_connect(&r);
	session = greet(&r, s, 0);
	expect_pong(s, session, 1);
	assert_int_equal(r.unsent, 0);
	clogged = 1;
	put_ping(s, session, 2);
	expect_pong(s, session, 3);
	assert_int_equal(r.unsent, 1);
	other = rig_connect(&r);
	clogged = 1; /* the PONG that says whether the session's main is still connected; it is */
	assert_true(greet(&r, other, 0) == 0);
	assert_int_equal(r.unsent, 2);
	expect_pong(s, session, 4);
	assert_int_equal(r.unsent, 2);
	od_close_socket(other);
	od_close_socket(s);
	rig_stop(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_dies_with_parent),
		cmocka_unit_test(test_has_lost_its_parent), /* first: it forks, and there are no threads yet */
		cmocka_unit_test(test_welcome),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_one_main),
		cmocka_unit_test(test_killed_main),
		cmocka_unit_test(test_messages),
		cmocka_unit_test(test_bye),
		cmocka_unit_test(test_silence),
		cmocka_unit_test(test_post),
		cmocka_unit_test(test_post_is_bounded),
		cmocka_unit_test(test_addresses),
		cmocka_unit_test(test_ready),
		cmocka_unit_test(test_signals),
		cmocka_unit_test(test_strangers),
		cmocka_unit_test(test_unsent_pong),
	};

	*(void **)&real_send = dlsym(RTLD_NEXT, "zmq_send"); /* before there are threads */
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A daemon's data socket: who may speak there, and what wakes the engine. This thread is the engine. */
#include "tests/unit/wire_client.h"

#include "common/daemon/data_port.h"

#include <pthread.h>

#define SESSION 0x1122334455667788u

struct data_port_rig {
	void *context;
	struct od_data_port *port;
	void *main; /* a connected DEALER */
};

static void *rig_connect(struct data_port_rig *r)
{
	return connect_to(r->context, od_data_port_number(r->port));
}

static void rig_open(struct data_port_rig *r)
{
	struct od_err err;

	r->context = od_zmq_context();
	assert_non_null(r->context);
	assert_ok(od_data_port_new(&r->port, r->context, "127.0.0.1", 0, NULL, &err), &err);
	r->main = rig_connect(r);
}

static void rig_close(struct data_port_rig *r)
{
	od_close_socket(r->main);
	od_data_port_free(r->port);
	zmq_ctx_term(r->context);
}

static void put_attach(void *s, uint64_t session)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Attach b = OD__ATTACH__INIT;

	h.version = OD_PROTOCOL_VERSION;
	h.session = session;
	h.epoch = 4;
	h.body_case = OD__HEADER__BODY_ATTACH;
	h.attach = &b;
	put_any_version(s, &h);
}

static void put_run(void *s, uint64_t session, uint64_t request)
{
	struct od_out_frame rows = { .bytes = "rows", .len = 4 };
	Od__Header h = OD__HEADER__INIT;
	Od__Run b = OD__RUN__INIT;

	h.session = session;
	h.body_case = OD__HEADER__BODY_RUN;
	h.run = &b;
	b.request = request;
	assert_int_equal(od_wire_send(s, NULL, &h, &rows, 1), OD_OK);
}

/* The engine's loop until it gets a message, or until main's socket has one (only when main is given). */
static bool engine_gets(struct data_port_rig *r, struct od_msg *m, void *main)
{
	for (int i = 0; i < HANG_MS / 10; i++) {
		int events = 0;
		size_t size = sizeof(events);

		if (od_data_port_recv(r->port, m) == OD_OK)
			return true;
		if (main != NULL && zmq_getsockopt(main, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN) != 0)
			return false;
		od_data_port_wait(r->port, 10);
	}
	fail_msg("nothing came");
	return false;
}

static void attach(struct data_port_rig *r, void *s, uint64_t session)
{
	struct od_msg m;

	put_attach(s, session);
	assert_false(engine_gets(r, &m, s));
	get_kind(s, &m, OD__HEADER__BODY_ATTACHED);
	assert_true(m.header->session == session);
	assert_int_equal(m.header->epoch, 4);
	od_msg_fini(&m);
}

/* The next message that the engine gets is this RUN: all that was sent before it has been dropped. */
static void expect_run(struct data_port_rig *r, uint64_t request)
{
	struct od_msg m;
	size_t n;

	assert_true(engine_gets(r, &m, NULL));
	assert_int_equal(m.header->body_case, OD__HEADER__BODY_RUN);
	assert_int_equal(m.header->run->request, request);
	assert_memory_equal(od_msg_frame(&m, 0, &n), "rows", 4);
	assert_int_equal(n, 4);
	od_msg_fini(&m);
}

static int send_result(struct data_port_rig *r, uint64_t session, const char *text)
{
	struct od_out_frame out = { .bytes = text, .len = strlen(text) };
	Od__Header h = OD__HEADER__INIT;
	Od__Result b = OD__RESULT__INIT;

	h.session = session;
	h.body_case = OD__HEADER__BODY_RESULT;
	h.result = &b;
	return od_data_port_send(r->port, &h, &out, 1);
}

static void expect_result(void *s, uint64_t session, const char *text)
{
	struct od_msg m;
	size_t n;

	get_kind(s, &m, OD__HEADER__BODY_RESULT);
	assert_true(m.header->session == session);
	assert_memory_equal(od_msg_frame(&m, 0, &n), text, strlen(text));
	assert_int_equal(n, strlen(text));
	od_msg_fini(&m);
}

static void test_attach_run_result(void **state)
{
	struct data_port_rig r;

	(void)state;
	rig_open(&r);
	assert_int_equal(send_result(&r, 0, "nobody"), OD_ERR_UNREACHABLE);
	od_data_port_set_session(r.port, SESSION);
	assert_true(od_data_port_session(r.port) == SESSION);
	assert_int_equal(send_result(&r, 0, "nobody yet"), OD_ERR_UNREACHABLE);
	attach(&r, r.main, SESSION);
	put_run(r.main, SESSION, 1);
	put_run(r.main, SESSION, 2);
	expect_run(&r, 1);
	expect_run(&r, 2);
	assert_int_equal(send_result(&r, 0, "filled in"), OD_OK);
	expect_result(r.main, SESSION, "filled in");
	assert_int_equal(send_result(&r, SESSION, "the same"), OD_OK);
	expect_result(r.main, SESSION, "the same");
	assert_int_equal(send_result(&r, SESSION ^ 1, "for another main"), OD_ERR_UNREACHABLE);
	rig_close(&r);
}

static void test_who_may_speak(void **state)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Attach b = OD__ATTACH__INIT;
	struct od_msg m;
	struct data_port_rig r;
	void *stranger;

	(void)state;
	rig_open(&r);
	stranger = rig_connect(&r);
	put_attach(r.main, 0); /* there is no session yet, and 0 is none */
	od_data_port_wait(r.port, -1);
	assert_int_equal(od_data_port_recv(r.port, &m), OD_ERR_BUSY);
	assert_int_equal(send_result(&r, 0, "nobody"), OD_ERR_UNREACHABLE);
	put_run(r.main, 0, 11);
	od_data_port_set_session(r.port, SESSION);
	put_run(r.main, SESSION, 12); /* ATTACH comes first */
	put_attach(r.main, SESSION ^ 1); /* another session */
	put_run(r.main, SESSION, 13);
	h.version = OD_PROTOCOL_VERSION + 1; /* another version */
	h.session = SESSION;
	h.body_case = OD__HEADER__BODY_ATTACH;
	h.attach = &b;
	put_any_version(r.main, &h);
	put_run(r.main, SESSION, 14);
	attach(&r, r.main, SESSION);
	put_run(r.main, SESSION ^ 1, 15);
	put_run(r.main, SESSION, 16);
	expect_run(&r, 16);

	/* A stranger that even knows the session must attach before it is heard, and then it is main. */
	put_run(stranger, SESSION, 17);
	attach(&r, stranger, SESSION);
	put_run(r.main, SESSION, 18);
	put_run(stranger, SESSION, 19);
	expect_run(&r, 19);
	assert_int_equal(send_result(&r, 0, "to the newest"), OD_OK);
	expect_result(stranger, SESSION, "to the newest");
	attach(&r, r.main, SESSION); /* by now RUN 18 was seen and dropped */
	od_close_socket(stranger);
	rig_close(&r);
}

static void test_stale_session(void **state)
{
	struct od_msg m;
	struct data_port_rig r;

	(void)state;
	rig_open(&r);
	od_data_port_set_session(r.port, SESSION);
	attach(&r, r.main, SESSION);
	put_run(r.main, SESSION, 1);
	expect_run(&r, 1);
	put_run(r.main, SESSION, 2); /* on its way when the session ends */
	od_data_port_set_session(r.port, 0);
	assert_int_equal(send_result(&r, 0, "too late"), OD_ERR_UNREACHABLE);
	od_data_port_set_session(r.port, SESSION + 1);
	assert_int_equal(send_result(&r, SESSION, "too late"), OD_ERR_UNREACHABLE);
	put_run(r.main, SESSION + 1, 3); /* the connection attached with the old one */
	attach(&r, r.main, SESSION + 1);
	put_run(r.main, SESSION + 1, 4);
	expect_run(&r, 4);
	assert_int_equal(send_result(&r, SESSION, "of the old one"), OD_ERR_UNREACHABLE);
	assert_int_equal(send_result(&r, SESSION + 1, "of the new one"), OD_OK);
	expect_result(r.main, SESSION + 1, "of the new one");
	assert_int_equal(od_data_port_recv(r.port, &m), OD_ERR_BUSY);
	rig_close(&r);
}

static void test_main_is_gone(void **state)
{
	struct data_port_rig r;
	int rc;

	(void)state;
	rig_open(&r);
	od_data_port_set_session(r.port, SESSION);
	attach(&r, r.main, SESSION);
	od_close_socket(r.main);
	r.main = NULL;
	do {
		rc = send_result(&r, SESSION, "anybody?");
		sched_yield();
	} while (rc == OD_OK);
	assert_int_equal(rc, OD_ERR_UNREACHABLE);
	rig_close(&r);
}

static void *wake(void *arg)
{
	od_data_port_wake(arg);
	return NULL;
}

static void *set_session(void *arg)
{
	od_data_port_set_session(arg, SESSION);
	return NULL;
}

/* Every wait below is without end: a wake that is lost hangs the test. */
static void test_wakes(void **state)
{
	pthread_t thread;
	struct od_msg m;
	struct data_port_rig r;

	(void)state;
	rig_open(&r);
	for (int i = 0; i < 100; i++) {
		assert_int_equal(pthread_create(&thread, NULL, wake, r.port), 0);
		od_data_port_wait(r.port, -1);
		pthread_join(thread, NULL);
	}
	od_data_port_wake(r.port); /* before the wait: it counts too, and twice is once */
	od_data_port_wake(r.port);
	od_data_port_wait(r.port, -1);
	assert_int_equal(pthread_create(&thread, NULL, set_session, r.port), 0);
	od_data_port_wait(r.port, -1);
	pthread_join(thread, NULL);
	assert_true(od_data_port_session(r.port) == SESSION);
	attach(&r, r.main, SESSION);
	put_run(r.main, SESSION, 8);
	while (od_data_port_recv(r.port, &m) != OD_OK)
		od_data_port_wait(r.port, -1);
	assert_int_equal(m.header->run->request, 8);
	od_msg_fini(&m);
	od_data_port_wait(r.port, 0); /* nothing to wait for, and no waiting */
	rig_close(&r);
}

static void test_strangers(void **state)
{
	struct data_port_rig r;

	(void)state;
	rig_open(&r);
	put_garbage(r.context, od_data_port_number(r.port));
	od_data_port_set_session(r.port, SESSION);
	attach(&r, r.main, SESSION);
	put_garbage(r.context, od_data_port_number(r.port));
	put_junk_tcp(od_data_port_number(r.port));
	put_run(r.main, SESSION, 1);
	expect_run(&r, 1);
	rig_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_attach_run_result),
		cmocka_unit_test(test_who_may_speak),
		cmocka_unit_test(test_stale_session),
		cmocka_unit_test(test_main_is_gone),
		cmocka_unit_test(test_wakes),
		cmocka_unit_test(test_strangers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A ZeroMQ socket on a libuv loop: no edge is lost, nobody starves, and closing is safe anywhere. */
#include "tests/unit/wire_client.h"

#include "common/net/uv_socket.h"

#include <uv.h>

struct rig {
	uv_loop_t loop;
	uv_timer_t hang;
	uv_timer_t timer;
	uv_check_t turn;
	void *context, *peer;
	struct od_uv_socket *socket;
	int zmq_fd;
	int got, garbage, wanted; /* the loop stops at wanted messages */
	int in_turn, most_in_turn;
	bool echo, close_at_wanted;
	struct od_route route; /* the newest message's */
	struct od_err why;
};

static void finished(struct rig *r)
{
	if (r->got < r->wanted)
		return;
	if (r->close_at_wanted) {
		od_uv_socket_close(r->socket);
		r->socket = NULL;
	}
	uv_stop(&r->loop);
}

static int send_ping(struct rig *r, void *peer, uint64_t sequence)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Ping b = OD__PING__INIT;

	h.body_case = OD__HEADER__BODY_PING;
	h.ping = &b;
	b.sequence = sequence;
	return peer != NULL ? od_wire_send(peer, NULL, &h, NULL, 0) :
			      od_uv_socket_send(r->socket, &r->route, &h, NULL, 0);
}

static void on_message(void *arg, struct od_msg *m)
{
	struct rig *r = arg;

	assert_non_null(r->socket); /* not after it was closed */
	assert_int_equal(m->header->ping->sequence, r->got);
	r->route = m->route;
	r->got++;
	r->in_turn++;
	if (r->in_turn > r->most_in_turn)
		r->most_in_turn = r->in_turn;
	if (r->echo)
		assert_int_equal(send_ping(r, NULL, m->header->ping->sequence), OD_OK);
	finished(r);
}

static void on_garbage(void *arg, const struct od_route *route, const struct od_err *why)
{
	struct rig *r = arg;

	r->garbage++;
	r->route = *route;
	r->why = *why;
}

static const struct od_uv_socket_ops ops = { .message = on_message, .garbage = on_garbage };

static void on_turn(uv_check_t *h) /* the last thing in a turn of the loop; timers come next */
{
	((struct rig *)h->data)->in_turn = 0;
}

static void on_hang(uv_timer_t *h)
{
	struct rig *r = h->data;

	fail_msg("the loop hangs: %d of %d messages", r->got, r->wanted);
}

/* A wrapped ROUTER and a DEALER that has sent `before` messages when it is wrapped. */
static void rig_open(struct rig *r, int before)
{
	struct od_err err;
	size_t size = sizeof(int);
	uint16_t port;
	void *router;

	memset(r, 0, sizeof(*r));
	uv_loop_init(&r->loop);
	uv_timer_init(&r->loop, &r->hang);
	uv_timer_init(&r->loop, &r->timer);
	uv_check_init(&r->loop, &r->turn);
	uv_check_start(&r->turn, on_turn);
	r->hang.data = r->timer.data = r->turn.data = r;
	uv_timer_start(&r->hang, on_hang, HANG_MS, 0);
	r->context = od_zmq_context();
	assert_ok(od_bind_router(r->context, "127.0.0.1", 0, NULL, &router, &port, &err), &err);
	r->peer = connect_to(r->context, port);
	assert_int_equal(zmq_getsockopt(router, ZMQ_FD, &r->zmq_fd, &size), 0);
	for (int i = 0; i < before; i++)
		assert_int_equal(send_ping(r, r->peer, (uint64_t)i), OD_OK);
	if (before > 0)
		await(router, ZMQ_POLLIN); /* takes the edge */
	assert_ok(od_uv_socket_new(&r->socket, &r->loop, router, true, &ops, r, &err), &err);
}

static void close_handle(uv_handle_t *h, void *arg)
{
	(void)arg;
	if (!uv_is_closing(h))
		uv_close(h, NULL);
}

static void rig_close(struct rig *r)
{
	od_uv_socket_close(r->socket);
	od_uv_socket_close(NULL);
	uv_walk(&r->loop, close_handle, NULL);
	uv_run(&r->loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&r->loop), 0); /* no handle was forgotten */
	od_close_socket(r->peer);
	zmq_ctx_term(r->context);
}

static void run_until(struct rig *r, int wanted)
{
	r->wanted = wanted;
	uv_run(&r->loop, UV_RUN_DEFAULT);
	assert_int_equal(r->got, wanted);
}

static void test_what_came_before(void **state)
{
	struct rig r;

	(void)state;
	rig_open(&r, 3);
	run_until(&r, 3);
	rig_close(&r);
}

/* Far more than one turn takes; the peer sends nothing more that could wake us, and timers get their turns. */
static void test_burst_is_fair(void **state)
{
	struct rig r;

	(void)state;
	rig_open(&r, 1000);
	run_until(&r, 1000);
	assert_true(r.most_in_turn > 1);
	assert_true(r.most_in_turn <= 128);
	rig_close(&r);
}

static void test_echo(void **state)
{
	struct od_msg m;
	struct rig r;

	(void)state;
	rig_open(&r, 0);
	r.echo = true;
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < 10; i++)
			assert_int_equal(send_ping(&r, r.peer, (uint64_t)(10 * round + i)), OD_OK);
		run_until(&r, 10 * (round + 1));
		for (int i = 0; i < 10; i++) {
			get_msg(r.peer, false, &m);
			assert_int_equal(m.header->ping->sequence, 10 * round + i);
			od_msg_fini(&m);
		}
	}
	rig_close(&r);
}

/* A message is announced on the descriptor; then we send until ZeroMQ has taken the announcement. */
static void on_send_over_edge(uv_timer_t *h)
{
	struct rig *r = h->data;
	struct pollfd fd = { .fd = r->zmq_fd, .events = POLLIN };

	assert_int_equal(send_ping(r, r->peer, 1), OD_OK);
	assert_int_equal(poll(&fd, 1, HANG_MS), 1);
	do {
		assert_int_equal(send_ping(r, NULL, 7), OD_OK);
	} while (poll(&fd, 1, 0) == 1);
}

static void test_sending_takes_the_edge(void **state)
{
	struct rig r;

	(void)state;
	rig_open(&r, 1);
	run_until(&r, 1); /* now there is a route */
	uv_timer_start(&r.timer, on_send_over_edge, 0, 0);
	run_until(&r, 2);
	rig_close(&r);
}

static void test_close_in_callback(void **state)
{
	struct rig r;

	(void)state;
	rig_open(&r, 10);
	r.close_at_wanted = true;
	run_until(&r, 4);
	assert_null(r.socket);
	uv_run(&r.loop, UV_RUN_NOWAIT);
	assert_int_equal(r.got, 4);
	rig_close(&r);

	rig_open(&r, 0); /* and at once */
	rig_close(&r);
}

static void test_garbage(void **state)
{
	struct rig r;

	(void)state;
	rig_open(&r, 0);
	put_raw(r.peer, "\xff\xff", 2, false);
	assert_int_equal(send_ping(&r, r.peer, 0), OD_OK);
	run_until(&r, 1);
	assert_int_equal(r.garbage, 1);
	assert_says(r.why.msg, "header: 2 bytes that protobuf cannot decode");
	rig_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_came_before),
		cmocka_unit_test(test_burst_is_fair),
		cmocka_unit_test(test_echo),
		cmocka_unit_test(test_sending_takes_the_edge),
		cmocka_unit_test(test_close_in_callback),
		cmocka_unit_test(test_garbage),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A worker's end of the store's protocol, against a store that this test plays. */
#include "worker-node/pull/store_client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/net/endpoint.h"

#define PATIENCE_NS (300 * OD_NS_PER_S) /* for what must come */

static void *context, *router;
static struct odw_store *client;
static struct od_msg last; /* the client's newest message */

static int setup(void **state)
{
	struct od_host at = { .host = "127.0.0.1" };
	struct od_err err;

	(void)state;
	od_log_init("test", OD_LOG_ERROR);
	context = od_zmq_context();
	if (od_bind_store(context, "127.0.0.1", 0, NULL, &router, &at.port, &err) != OD_OK)
		return -1;
	return odw_store_open(&client, &at, NULL, &err);
}

static int teardown(void **state)
{
	(void)state;
	od_msg_fini(&last);
	odw_store_close(client);
	od_close_socket(router);
	zmq_ctx_term(context);
	return 0;
}

/* The client's next message. */
static const Od__Header *receive(void)
{
	uint64_t end = od_now_ns() + PATIENCE_NS;
	struct od_err err;

	od_msg_fini(&last);
	while (od_wire_recv(router, true, &last, &err) != OD_OK) {
		assert_true(od_now_ns() < end);
		odw_store_tick(client);
		odw_store_wait(client, -1, 5);
	}
	return last.header;
}

/* receive(), while pieces come to the client. */
static const Od__Header *receive_while_pieces_come(void)
{
	uint64_t end = od_now_ns() + PATIENCE_NS;
	struct odw_fetched f;
	struct od_err err;

	od_msg_fini(&last);
	while (od_wire_recv(router, true, &last, &err) != OD_OK) {
		assert_true(od_now_ns() < end);
		assert_false(odw_store_next(client, &f));
		odw_store_wait(client, -1, 5);
	}
	return last.header;
}

static void answer(Od__Header *h, const void *bytes, size_t len)
{
	const struct od_out_frame frame = { .bytes = bytes, .len = len };

	assert_int_equal(od_wire_send(router, &last.route, h, &frame, bytes != NULL), OD_OK);
}

static void send_welcome(uint64_t session)
{
	static uint8_t fingerprint[32] = "fingerprint", sums[32] = "sums";
	Od__Header h = OD__HEADER__INIT;
	Od__StoreWelcome w = OD__STORE_WELCOME__INIT;
	Od__StoreFile file[2] = { OD__STORE_FILE__INIT, OD__STORE_FILE__INIT }, *list[2] = { &file[0], &file[1] };

	file[0].file = OD_STORE_SUMS;
	file[0].bytes = 300;
	file[1].file = OD_STORE_EXPERTS;
	file[1].bytes = 1 << 30;
	w.files = list;
	w.n_files = 2;
	w.session = session;
	w.fingerprint = (ProtobufCBinaryData){ 32, fingerprint };
	w.sums_sha256 = (ProtobufCBinaryData){ 32, sums };
	h.body_case = OD__HEADER__BODY_STORE_WELCOME;
	h.store_welcome = &w;
	answer(&h, NULL, 0);
}

static void send_chunk(uint64_t session, uint64_t request, int code, const void *bytes, size_t len)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Chunk c = OD__CHUNK__INIT;

	h.session = session;
	c.request = request;
	c.code = code;
	c.reason = code == OD_OK ? "" : "a\nreason";
	h.body_case = OD__HEADER__BODY_CHUNK;
	h.chunk = &c;
	answer(&h, bytes, len);
}

static void greet(uint64_t session)
{
	uint64_t end = od_now_ns() + PATIENCE_NS;
	struct odw_fetched f;

	assert_int_equal(receive()->body_case, OD__HEADER__BODY_STORE_HELLO);
	assert_false(odw_store_ready(client));
	assert_int_equal(odw_store_fetch(client, OD_STORE_SUMS, 0, 1, 1), OD_ERR_BUSY);
	send_welcome(session);
	while (!odw_store_ready(client)) {
		assert_true(od_now_ns() < end);
		odw_store_wait(client, -1, 5);
		assert_false(odw_store_next(client, &f));
	}
	assert_int_equal(odw_store_info(client)->bytes[OD_STORE_EXPERTS], 1 << 30);
	assert_memory_equal(odw_store_info(client)->sums_sha256, "sums", 5);
}

static void next(struct odw_fetched *f)
{
	uint64_t end = od_now_ns() + PATIENCE_NS;

	while (!odw_store_next(client, f)) {
		assert_true(od_now_ns() < end);
		odw_store_wait(client, -1, 5);
	}
}

static void pieces_come_in_any_order(void **state)
{
	struct odw_fetched f;
	uint64_t bytes;

	(void)state;
	greet(7);
	for (uint32_t i = 0; i < 3; i++) {
		const Od__Header *h;

		assert_int_equal(odw_store_fetch(client, OD_STORE_EXPERTS, 4096 * i, 10 + i, 50 + i), OD_OK);
		h = receive();
		assert_int_equal(h->body_case, OD__HEADER__BODY_FETCH);
		assert_int_equal(h->session, 7);
		assert_int_equal(h->fetch->request, i + 1);
		assert_int_equal(h->fetch->offset, 4096 * i);
		assert_int_equal(h->fetch->bytes, 10 + i);
		assert_int_equal(h->fetch->file, OD_STORE_EXPERTS);
	}
	assert_int_equal(odw_store_open_fetches(client, &bytes), 3);
	assert_int_equal(bytes, 33);
	send_chunk(7, 99, OD_OK, "nobody asked for it", 19);
	send_chunk(8, 2, OD_OK, "another session", 11);
	send_chunk(7, 3, OD_OK, "cccccccccccc", 12);
	send_chunk(7, 1, OD_ERR_IO, NULL, 0);
	send_chunk(7, 2, OD_OK, "bbbbbbbbbbb", 10); /* one short */
	next(&f);
	assert_int_equal(f.tag, 52);
	assert_int_equal(f.code, OD_OK);
	assert_memory_equal(f.bytes, "cccccccccccc", 12);
	od_msg_fini(&f.msg);
	next(&f);
	assert_int_equal(f.tag, 50);
	assert_int_equal(f.code, OD_ERR_IO);
	assert_string_equal(f.reason, "a?reason");
	od_msg_fini(&f.msg);
	next(&f);
	assert_int_equal(f.tag, 51);
	assert_int_equal(f.code, OD_ERR_PROTOCOL);
	od_msg_fini(&f.msg);
	assert_int_equal(odw_store_open_fetches(client, &bytes), 0);
	assert_int_equal(bytes, 0);
}

/* A bad answer is refused for what is wrong with it. */
static void bad_answers_are_told_apart(void **state)
{
	const struct od_out_frame frame[2] = { { .bytes = "aaaaaaaaaa", .len = 10 },
					       { .bytes = "aaaaaaaaaa", .len = 10 } };
	const struct {
		int code;
		size_t n_frames;
		uint32_t expected; /* bytes */
		const char *says;
	} bad[] = {
		{ OD_OK, 0, 10, "it sent 0 frames, expected 1" },
		{ OD_OK, 2, 10, "it sent 2 frames, expected 1" },
		{ OD_OK, 1, 11, "it sent 10 bytes, expected 11" },
		{ OD_ERR_IO, 0, 10, od_status_text(OD_ERR_IO) }, /* without a reason of its own */
	};

	(void)state;
	greet(7);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		Od__Header h = OD__HEADER__INIT;
		Od__Chunk c = OD__CHUNK__INIT;
		struct odw_fetched f;

		assert_int_equal(odw_store_fetch(client, OD_STORE_EXPERTS, 0, bad[i].expected, i), OD_OK);
		c.request = receive()->fetch->request;
		c.code = bad[i].code;
		h.session = 7;
		h.body_case = OD__HEADER__BODY_CHUNK;
		h.chunk = &c;
		assert_int_equal(od_wire_send(router, &last.route, &h, frame, bad[i].n_frames), OD_OK);
		next(&f);
		assert_int_equal(f.tag, i);
		assert_int_equal(f.code, bad[i].code == OD_OK ? OD_ERR_PROTOCOL : bad[i].code);
		assert_string_equal(f.reason, bad[i].says);
		od_msg_fini(&f.msg);
	}
}

static void another_store_process_begins_another_life(void **state)
{
	uint64_t life, bytes, end = od_now_ns() + PATIENCE_NS;
	struct odw_fetched f;

	(void)state;
	greet(7);
	life = odw_store_life(client);
	assert_int_equal(odw_store_fetch(client, OD_STORE_EXPERTS, 0, 10, 1), OD_OK);
	assert_int_equal(receive()->fetch->request, 1);
	send_chunk(7, 1, OD_ERR_MISMATCH, NULL, 0);
	while (odw_store_life(client) == life) {
		assert_true(od_now_ns() < end);
		odw_store_wait(client, -1, 5);
		assert_false(odw_store_next(client, &f));
	}
	assert_int_equal(odw_store_open_fetches(client, &bytes), 0);
	greet(8); /* by itself, on a new connection */
	assert_int_equal(odw_store_fetch(client, OD_STORE_EXPERTS, 0, 10, 1), OD_OK);
	assert_int_equal(receive()->session, 8);
}

static void so_many_at_a_time(void **state)
{
	(void)state;
	greet(7);
	for (int i = 0; i < OD_STORE_MAX_OPEN; i++)
		assert_int_equal(odw_store_fetch(client, OD_STORE_EXPERTS, 0, 1, 1), OD_OK);
	assert_int_equal(odw_store_fetch(client, OD_STORE_EXPERTS, 0, 1, 1), OD_ERR_BUSY);
}

#define SHARE OD_STORE_SHARE_BYTES
#define LARGE (2 * SHARE + 100)

/* FETCH number `request`, of a piece of what begins at 1000. */
static void expect_piece(uint64_t request, uint32_t at, uint32_t bytes)
{
	const Od__Header *h = receive_while_pieces_come();

	assert_int_equal(h->body_case, OD__HEADER__BODY_FETCH);
	assert_int_equal(h->fetch->request, request);
	assert_int_equal(h->fetch->file, OD_STORE_EXPERTS);
	assert_int_equal(h->fetch->offset, 1000 + at);
	assert_int_equal(h->fetch->bytes, bytes);
}

/* A store serves a share at once, and more when it can: so nothing larger is asked for at a time. */
static void what_is_large_comes_in_pieces(void **state)
{
	static uint8_t data[LARGE];
	struct odw_fetched f;
	uint64_t bytes;

	(void)state;
	for (uint32_t i = 0; i < LARGE; i++)
		data[i] = (uint8_t)(i / 251 + i);
	greet(7);
	assert_int_equal(odw_store_fetch(client, OD_STORE_EXPERTS, 1000, LARGE, 60), OD_OK);
	expect_piece(1, 0, SHARE);
	assert_int_equal(odw_store_open_fetches(client, &bytes), 1);
	assert_int_equal(bytes, LARGE);
	send_chunk(7, 1, OD_OK, data, SHARE);
	expect_piece(2, SHARE, SHARE);
	assert_int_equal(odw_store_fetch(client, OD_STORE_EXPERTS, 1000, SHARE, 61), OD_OK); /* is no piece of it */
	expect_piece(3, 0, SHARE);
	send_chunk(7, 3, OD_OK, data, SHARE);
	send_chunk(7, 2, OD_OK, data + SHARE, SHARE);
	next(&f);
	assert_int_equal(f.tag, 61);
	assert_memory_equal(f.bytes, data, SHARE);
	od_msg_fini(&f.msg);
	expect_piece(4, 2 * SHARE, 100);
	send_chunk(7, 4, OD_OK, data + 2 * SHARE, 100);
	next(&f);
	assert_int_equal(f.tag, 60);
	assert_int_equal(f.code, OD_OK);
	assert_memory_equal(f.bytes, data, LARGE);
	od_msg_fini(&f.msg);
	assert_int_equal(odw_store_open_fetches(client, &bytes), 0);
	assert_int_equal(bytes, 0);
	/* A piece that is refused, and one that is too short, are the whole's end. */
	for (uint64_t request = 5; request <= 7; request += 2) {
		assert_int_equal(odw_store_fetch(client, OD_STORE_EXPERTS, 1000, LARGE, 62), OD_OK);
		expect_piece(request, 0, SHARE);
		send_chunk(7, request, OD_OK, data, SHARE);
		expect_piece(request + 1, SHARE, SHARE);
		send_chunk(7, request + 1, request == 5 ? OD_ERR_IO : OD_OK, request == 5 ? NULL : data, 100);
		next(&f);
		assert_int_equal(f.tag, 62);
		assert_int_equal(f.code, request == 5 ? OD_ERR_IO : OD_ERR_PROTOCOL);
		od_msg_fini(&f.msg);
		assert_int_equal(odw_store_open_fetches(client, &bytes), 0);
	}
	/* Half of it is here when a life ends, and when the client does. */
	assert_int_equal(odw_store_fetch(client, OD_STORE_EXPERTS, 1000, LARGE, 63), OD_OK);
	expect_piece(9, 0, SHARE);
	send_chunk(7, 9, OD_OK, data, SHARE);
	expect_piece(10, SHARE, SHARE);
	odw_store_rest(client);
	assert_int_equal(odw_store_open_fetches(client, &bytes), 0);
	greet(8);
	assert_int_equal(odw_store_fetch(client, OD_STORE_EXPERTS, 1000, LARGE, 64), OD_OK);
	expect_piece(11, 0, SHARE);
}

/* Two seconds: the first patience there is. */
static void a_silent_store_is_given_up(void **state)
{
	uint64_t life, end = od_now_ns() + PATIENCE_NS;

	(void)state;
	greet(7);
	life = odw_store_life(client);
	assert_int_equal(odw_store_fetch(client, OD_STORE_EXPERTS, 0, 10, 1), OD_OK);
	while (odw_store_life(client) == life) {
		assert_true(od_now_ns() < end);
		odw_store_wait(client, -1, 20);
		odw_store_tick(client);
	}
	assert_true(odw_store_away_ns(client) > 0);
	assert_int_equal(receive()->body_case, OD__HEADER__BODY_FETCH); /* sent on the old connection */
	greet(7);
	assert_int_equal(odw_store_away_ns(client), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(pieces_come_in_any_order, setup, teardown),
		cmocka_unit_test_setup_teardown(bad_answers_are_told_apart, setup, teardown),
		cmocka_unit_test_setup_teardown(another_store_process_begins_another_life, setup, teardown),
		cmocka_unit_test_setup_teardown(so_many_at_a_time, setup, teardown),
		cmocka_unit_test_setup_teardown(what_is_large_comes_in_pieces, setup, teardown),
		cmocka_unit_test_setup_teardown(a_silent_store_is_given_up, setup, teardown),
	};

	return cmocka_run_group_tests_name("store client", tests, NULL, NULL);
}

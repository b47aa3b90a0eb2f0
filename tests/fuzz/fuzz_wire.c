/* Any frames at all go to od_wire_recv, as a daemon and as main would get them; what it takes for a message must
 * survive being sent on. Input: a byte (odd: to a ROUTER), then frames, each behind its length in two bytes. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "main-node/cluster/result_check.h"
#include "tests/fuzz/fuzz_sockets.h"

#define MAX_SENT_FRAMES 8

static void send_frames(void *socket, const uint8_t *data, size_t size)
{
	for (int i = 0; i < MAX_SENT_FRAMES; i++) {
		size_t len = size >= 2 ? (size_t)data[0] | (size_t)data[1] << 8 : 0, head = size >= 2 ? 2 : size;
		int more;

		data += head;
		size -= head;
		len = len < size ? len : size;
		more = len < size && i + 1 < MAX_SENT_FRAMES;
		check(zmq_send(socket, data, len, more ? ZMQ_SNDMORE : 0) == (int)len);
		data += len;
		size -= len;
		if (!more)
			return;
	}
}

static void expect_same(const struct od_msg *a, const struct od_msg *b)
{
	size_t len = od__header__get_packed_size(a->header), n, k;
	uint8_t *x = malloc(len), *y = malloc(len);

	check(od__header__get_packed_size(b->header) == len && a->n_frames == b->n_frames);
	od__header__pack(a->header, x);
	od__header__pack(b->header, y);
	check(memcmp(x, y, len) == 0);
	for (size_t i = 0; i < a->n_frames; i++) {
		const void *p = od_msg_frame(a, i, &n), *q = od_msg_frame(b, i, &k);

		check(n == k && memcmp(p, q, n) == 0);
	}
	free(x);
	free(y);
}

/* protobuf-c keeps fields that it does not know, and takes some for good (number 0) that it cannot send on. */
static int has_unknown_fields(const Od__Header *h)
{
	unsigned n = h->base.n_unknown_fields + ((const ProtobufCMessage *)h->hello)->n_unknown_fields; /* any body */

	if (h->body_case == OD__HEADER__BODY_RUN) {
		for (size_t i = 0; i < h->run->n_experts; i++)
			n += h->run->experts[i]->base.n_unknown_fields;
	} else if (h->body_case == OD__HEADER__BODY_PONG) {
		for (size_t i = 0; i < h->pong->n_counters; i++)
			n += h->pong->counters[i]->base.n_unknown_fields;
		for (size_t i = 0; i < h->pong->n_sums; i++)
			n += h->pong->sums[i]->base.n_unknown_fields;
	} else if (h->body_case == OD__HEADER__BODY_STEP) {
		for (size_t i = 0; i < h->step->n_rows; i++)
			n += h->step->rows[i]->base.n_unknown_fields;
	} else if (h->body_case == OD__HEADER__BODY_RESULT) {
		for (size_t i = 0; i < h->result->n_experts; i++)
			n += h->result->experts[i]->base.n_unknown_fields;
	}
	return n > 0;
}

/* Counters that were read go back as they are. */
static void try_counters(const Od__Pong *p)
{
	uint64_t c[OD_N_COUNTERS], again[OD_N_COUNTERS];
	Od__Pong back = OD__PONG__INIT;
	struct od_pong_counters list;

	od_pong_get(p, c);
	od_pong_put(&back, &list, c);
	od_pong_get(&back, again);
	check(memcmp(c, again, sizeof(c)) == 0);
}

/* A result that passes has as many rows as its frame. */
static void try_result(const struct od_msg *m)
{
	const Od__Result *r = m->header->result;
	const size_t n_experts = 8, row_bytes = 4;
	size_t n_rows = 0, bytes;

	od_msg_frame(m, 0, &bytes);
	if (odm_check_result(r, n_experts, row_bytes, m->n_frames, bytes, NULL) != OD_OK)
		return;
	check(r->n_experts >= 1 && r->n_experts <= n_experts);
	for (size_t i = 0; i < r->n_experts; i++)
		n_rows += r->experts[i]->rows;
	check(n_rows * row_bytes == bytes && m->n_frames == (n_rows > 0));
}

static void send_on(void *socket, const struct od_route *route, const struct od_msg *m, void *back, int back_is_router)
{
	struct od_out_frame out[OD_MAX_FRAMES - 1];
	struct od_msg again;

	for (size_t i = 0; i < m->n_frames; i++) {
		out[i] = (struct od_out_frame){ 0 };
		out[i].bytes = od_msg_frame(m, i, &out[i].len);
	}
	check(od_wire_send(socket, route, m->header, out, m->n_frames) == OD_OK);
	check(od_wire_recv(back, back_is_router, &again, NULL) == OD_OK);
	expect_same(m, &again);
	od_msg_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct od_err err = { 0 };
	struct od_msg m;
	int to_router, rc;

	if (router == NULL)
		open_sockets();
	if (size == 0)
		return 0;
	to_router = data[0] & 1;
	if (!to_router)
		check(zmq_send(router, to_dealer.id, to_dealer.len, ZMQ_SNDMORE) == to_dealer.len);
	send_frames(to_router ? dealer : router, data + 1, size - 1);
	rc = od_wire_recv(to_router ? router : dealer, to_router, &m, &err);
	check(rc == OD_OK || (rc == OD_ERR_PROTOCOL && err.msg[0] != '\0' && m.header == NULL && m.n_frames == 0));
	if (rc == OD_OK) {
		char text[40];

		check(od_body_name(m.header->body_case)[0] != 'n'); /* "nothing" */
		if (m.header->body_case == OD__HEADER__BODY_HELLO)
			check(strlen(od_peer_text(m.header->hello->main_name, text, sizeof(text))) < sizeof(text));
		if (m.header->body_case == OD__HEADER__BODY_PONG)
			try_counters(m.header->pong);
		if (m.header->body_case == OD__HEADER__BODY_RESULT)
			try_result(&m);
		if (to_router && !has_unknown_fields(m.header))
			send_on(router, &m.route, &m, dealer, 0);
		else if (!has_unknown_fields(m.header))
			send_on(dealer, NULL, &m, router, 1);
	}
	od_msg_fini(&m);
	check(od_wire_recv(router, true, &m, NULL) == OD_ERR_BUSY);
	check(od_wire_recv(dealer, false, &m, NULL) == OD_ERR_BUSY);
	return 0;
}

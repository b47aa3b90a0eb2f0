/* The store's protocol, both ends. Input: a byte (odd: what a worker sends, to the store's checks and queue; even: what
 * a store sends, to a worker that has asked for things), then messages, each a list of frames behind their lengths in
 * two bytes, a length of 0xffff ending the message. What the store lets pass lies within its files and its bounds; what
 * the worker hands out is what it asked for, in length. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "main-node/store/store_queue.h"
#include "tests/fuzz/fuzz_sockets.h"
#include "worker-node/pull/store_client.c" /* to begin in the middle of a conversation, without a socket */

#define MAX_FRAMES 4
#define SESSION 5
#define LARGE (2 * OD_STORE_SHARE_BYTES)

/* The next message of the input goes out; false: there is none. */
static int send_message(void *socket, const uint8_t **data, size_t *size)
{
	if (*size == 0)
		return 0;
	for (int i = 0; i < MAX_FRAMES; i++) {
		size_t len = *size >= 2 ? (size_t)(*data)[0] | (size_t)(*data)[1] << 8 : 0,
		       head = *size >= 2 ? 2 : *size;
		int ends = len == 0xffff;

		*data += head;
		*size -= head;
		len = ends ? 0 : len < *size ? len : *size;
		ends = ends || len == *size || i + 1 == MAX_FRAMES;
		check(zmq_send(socket, *data, len, ends ? 0 : ZMQ_SNDMORE) == (int)len);
		*data += len;
		*size -= len;
		if (ends)
			break;
	}
	return 1;
}

/* ---- the store's end ---- */

static void serve(struct odm_store_queue *q, int all)
{
	struct odm_store_request r;
	struct odm_store_worker *w;

	while ((w = odm_store_queue_take(q, &r)) != NULL) {
		check(w->sending <= ODM_STORE_WORKER_BYTES && odm_store_queue_sending(q) <= ODM_STORE_ALL_BYTES);
		odm_store_queue_done(w, r.bytes);
		if (!all)
			return;
	}
	check(!all || odm_store_queue_sending(q) == 0);
}

static void to_store(const uint8_t *data, size_t size)
{
	const uint64_t bytes[OD_STORE_EXPERTS + 1] = { [1] = 300, [2] = 1, [4] = 70000, [16] = (1ull << 62) + 9 };
	struct odm_store_queue *q = calloc(1, sizeof(*q));

	while (send_message(dealer, &data, &size)) {
		struct od_err err;
		struct od_msg m;

		if (od_wire_recv(router, true, &m, &err) != OD_OK)
			continue;
		if (m.header->body_case == OD__HEADER__BODY_FETCH &&
		    od_store_check_fetch(m.header->fetch, m.n_frames, bytes, &err) == OD_OK) {
			const Od__Fetch *f = m.header->fetch;
			const struct odm_store_request r = { f->request, f->offset, f->file, f->bytes };

			check(f->file <= OD_STORE_EXPERTS && f->bytes > 0 && f->bytes <= OD_STORE_PIECE_BYTES);
			check(f->offset < bytes[f->file] && f->bytes <= bytes[f->file] - f->offset);
			if (odm_store_queue_add(q, &m.route, &r) != OD_OK || f->request % 3 == 0)
				serve(q, f->request % 2);
		}
		od_msg_fini(&m);
	}
	serve(q, 1);
	free(q);
}

/* ---- the worker's end ---- */

/* It has greeted, or is in a session and waits for four pieces. */
static struct odw_store begin_client(int ready)
{
	struct odw_store s = {
		.name = "fuzz", .state = ready ? READY : GREETED, .session = SESSION, .last_request = 4
	};

	for (uint32_t i = 0; ready && i < 4; i++) {
		s.open[i] = (struct open_fetch){ .request = i + 1, .tag = 100 + i, .bytes = i * 7 };
		if (i == 3) { /* all but its last part has come */
			s.open[i].bytes = LARGE;
			s.open[i].got = LARGE - 3 * 7;
			s.open[i].whole = calloc(1, LARGE);
		}
		s.open_bytes += s.open[i].bytes;
		s.n_open++;
	}
	return s;
}

static void check_client(const struct odw_store *s)
{
	uint64_t bytes = 0;
	unsigned n = 0;

	for (unsigned i = 0; i < OD_STORE_MAX_OPEN; i++) {
		n += s->open[i].request != 0;
		bytes += s->open[i].bytes;
	}
	check(n == s->n_open && bytes == s->open_bytes);
	check(s->state != READY || s->session != 0);
}

static void to_worker(const uint8_t *data, size_t size)
{
	struct odw_store s = begin_client(size > 0 && data[size - 1] % 4 != 0);

	for (;;) {
		struct odw_fetched f;
		struct od_err err;
		struct od_msg m;

		check(size == 0 || zmq_send(router, to_dealer.id, to_dealer.len, ZMQ_SNDMORE) == to_dealer.len);
		if (!send_message(router, &data, &size))
			break;
		if (od_wire_recv(dealer, false, &m, &err) != OD_OK)
			continue;
		if (odw_store_take(&s, &m, &f)) {
			check(f.tag >= 100 && f.tag < 104);
			if (f.code == OD_OK) {
				size_t len;
				const void *piece = od_msg_frame(&m, 0, &len);

				check(len == (f.tag - 100) * 7);
				if (f.tag < 103)
					check(f.bytes == piece);
				else
					check(memcmp(f.bytes + LARGE - len, piece, len) == 0);
			}
			check(memchr(f.reason, '\0', sizeof(f.reason)) != NULL);
		}
		check_client(&s);
		od_msg_fini(&m);
	}
	end_life(&s, 0);
	free(s.handed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct od_msg m;

	if (router == NULL) {
		open_sockets();
		od_log_init("fuzz", OD_LOG_ERROR);
	}
	if (size == 0)
		return 0;
	if (data[0] & 1)
		to_store(data + 1, size - 1);
	else
		to_worker(data + 1, size - 1);
	check(od_wire_recv(router, true, &m, NULL) == OD_ERR_BUSY);
	check(od_wire_recv(dealer, false, &m, NULL) == OD_ERR_BUSY);
	return 0;
}

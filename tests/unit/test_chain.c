/* The first shadow's side of a chain (chain.h) with a part that is played here: what it takes, and that whatever a part
 * answers wrongly ends the run, and not more. */
#include "tests/unit/emulator_model.h"

#include "common/net/endpoint.h"
#include "shadow-node/chain.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#define MOST_TRIES 60000 /* a millisecond apart: only trips where another program has the port */
#define SESSION 77u
#define ROWS 2u

/* How the part answers. */
enum manner {
	WELL,
	OTHER_FIRST,
	OTHER_END,
	NO_ROWS,
	NO_SEQUENCES,
	NO_PAGES,
	READY_OF_ANOTHER_KIND,
	N_READY,
	FAILS = N_READY,
	FAILS_UPWARD,
	OTHER_RUN,
	OTHER_LAYER,
	NO_FRAME,
	SHORT_FRAME,
	LONG_FRAME,
	TWO_FRAMES,
	RESULT_OF_ANOTHER_KIND,
	OTHER_SESSION, /* is not heard */
	LEAVES,
	N_MANNERS
};

struct played_part {
	void *zmq;
	uint16_t port;
	pthread_t thread;
	atomic_int manner;
	atomic_bool stop, interrupt;
	pthread_mutex_t lock;
	pthread_cond_t ready;
	bool bound, failed;
	float row[ROWS * 64];
	atomic_uint runs, states, commits;
};

static void send_header(void *socket, const struct od_route *to, Od__Header *h, const struct od_out_frame *frames,
			size_t n)
{
	h->session = h->session != 0 ? h->session : SESSION;
	(void)!od_wire_send(socket, to, h, frames, n);
}

static void send_ready(struct played_part *p, void *socket, const struct od_route *to, int manner)
{
	Od__Header h = OD__HEADER__INIT;
	Od__PartReady r = OD__PART_READY__INIT;
	Od__Attached attached = OD__ATTACHED__INIT;

	(void)p;
	r.first_layer = manner == OTHER_FIRST ? 0 : 1;
	r.end_layer = manner == OTHER_END ? LAYERS - 1 : LAYERS;
	r.max_rows = manner == NO_ROWS ? 0 : 8;
	r.max_sequences = manner == NO_SEQUENCES ? 0 : UINT32_MAX;
	r.pages = manner == NO_PAGES ? 0 : 3;
	h.body_case = OD__HEADER__BODY_PART_READY;
	h.part_ready = &r;
	if (manner == READY_OF_ANOTHER_KIND) {
		h.body_case = OD__HEADER__BODY_ATTACHED;
		h.attached = &attached;
	}
	send_header(socket, to, &h, NULL, 0);
}

static void send_result(struct played_part *p, void *socket, const struct od_route *to, const Od__PartLayer *l,
			int manner)
{
	const size_t n = l->layer < LAYERS ? ROWS * EXPERTS : ROWS * config.hidden;
	struct od_out_frame frames[2] = { { .bytes = p->row, .len = n * sizeof(float) },
					  { .bytes = p->row, .len = 4 } };
	size_t n_frames = manner == NO_FRAME ? 0 : manner == TWO_FRAMES ? 2 : 1;
	Od__Header h = OD__HEADER__INIT;
	Od__PartResult r = OD__PART_RESULT__INIT;
	Od__PartOpen open = OD__PART_OPEN__INIT;

	r.run = l->run + (manner == OTHER_RUN);
	r.layer = l->layer + (manner == OTHER_LAYER);
	r.code = manner == FAILS ? OD_ERR_NOMEM : manner == FAILS_UPWARD ? 5 : 0;
	r.reason = (char *)"the reason";
	frames[0].len -= manner == SHORT_FRAME ? 4 : 0;
	frames[0].len += manner == LONG_FRAME ? 4 : 0;
	h.session = manner == OTHER_SESSION ? SESSION + 1 : 0;
	h.body_case = OD__HEADER__BODY_PART_RESULT;
	h.part_result = &r;
	if (manner == RESULT_OF_ANOTHER_KIND) {
		h.body_case = OD__HEADER__BODY_PART_OPEN;
		h.part_open = &open;
		n_frames = 0;
	}
	send_header(socket, to, &h, frames, n_frames);
	if (manner == OTHER_SESSION) { /* then the right one */
		h.session = 0;
		send_header(socket, to, &h, frames, n_frames);
	}
}

/* False: it leaves. */
static bool answer(struct played_part *p, void *socket, const struct od_msg *m)
{
	const int manner = atomic_load(&p->manner);
	Od__Header h = OD__HEADER__INIT;
	Od__Attached attached = OD__ATTACHED__INIT;
	const Od__Header__BodyCase kind = m->header->body_case;

	if (kind == OD__HEADER__BODY_ATTACH) {
		h.body_case = OD__HEADER__BODY_ATTACHED;
		h.attached = &attached;
		send_header(socket, &m->route, &h, NULL, 0);
	} else if (kind == OD__HEADER__BODY_PART_OPEN) {
		send_ready(p, socket, &m->route, manner < N_READY ? manner : WELL);
	} else if (kind == OD__HEADER__BODY_PART_LAYER) {
		if (manner == LEAVES)
			return false;
		send_result(p, socket, &m->route, m->header->part_layer, manner);
	}
	atomic_fetch_add(&p->runs, kind == OD__HEADER__BODY_PART_RUN);
	atomic_fetch_add(&p->states, kind == OD__HEADER__BODY_PART_STATE);
	atomic_fetch_add(&p->commits, kind == OD__HEADER__BODY_PART_COMMIT);
	return true;
}

static void *play(void *arg)
{
	struct played_part *p = arg;
	const uint16_t port = p->port; /* 0: any */
	void *socket = NULL;
	struct od_err err;
	bool stays = true;
	int tries = 0, rc;

	/* ZeroMQ closes a socket some time after it is asked to, so that one who comes back may have to wait for its
	 * own port. */
	while ((rc = od_bind_router(p->zmq, "127.0.0.1", port, NULL, &socket, &p->port, &err)) == OD_ERR_BUSY &&
	       port != 0 && tries++ < MOST_TRIES)
		usleep(1000);
	pthread_mutex_lock(&p->lock);
	p->bound = rc == OD_OK;
	p->failed = rc != OD_OK;
	pthread_cond_signal(&p->ready);
	pthread_mutex_unlock(&p->lock);
	if (rc != OD_OK)
		return NULL;
	while (stays && !atomic_load(&p->stop)) {
		zmq_pollitem_t item = { .socket = socket, .events = ZMQ_POLLIN };
		struct od_msg m;

		zmq_poll(&item, 1, 20);
		while (stays && od_wire_recv(socket, true, &m, &err) == OD_OK) {
			stays = answer(p, socket, &m);
			od_msg_fini(&m);
		}
	}
	od_close_socket(socket);
	return NULL;
}

static void begin_part(struct played_part *p)
{
	p->bound = p->failed = false;
	atomic_store(&p->stop, false);
	assert_int_equal(pthread_create(&p->thread, NULL, play, p), 0);
	pthread_mutex_lock(&p->lock);
	while (!p->bound && !p->failed)
		pthread_cond_wait(&p->ready, &p->lock);
	pthread_mutex_unlock(&p->lock);
	assert_false(p->failed);
}

static void end_part(struct played_part *p)
{
	atomic_store(&p->stop, true);
	pthread_join(p->thread, NULL);
}

static bool is_interrupted(void *arg)
{
	return atomic_load(&((struct played_part *)arg)->interrupt);
}

struct chain_world {
	struct model model;
	struct od_config first;
	struct played_part part;
	struct od_state_pool *pool;
	struct od_seq_state *seq;
	struct ods_chain *chain;
};

static struct ods_chain *make_chain(struct chain_world *w, struct od_err *err)
{
	const struct ods_chain_opts o = { .config = &w->first, .interrupted = is_interrupted, .arg = &w->part };
	Od__Part part = OD__PART__INIT, *list[] = { &part };
	Od__Parts parts = OD__PARTS__INIT;
	struct ods_chain *c;

	part.host = (char *)"127.0.0.1";
	part.data_port = w->part.port;
	part.session = SESSION;
	part.first_layer = 1;
	part.end_layer = LAYERS;
	parts.parts = list;
	parts.n_parts = 1;
	assert_int_equal(ods_chain_new(&c, &o, &parts, err), OD_OK);
	return c;
}

static void open_world(struct chain_world *w)
{
	struct od_err err;

	memset(w, 0, sizeof(*w));
	make_model(&w->model, 3);
	w->first = config;
	assert_int_equal(od_config_take_layers(&w->first, 0, 1, &err), OD_OK);
	assert_int_equal(od_state_pool_new(&w->pool, w->model.device, &w->first, OD_PROFILE_F32, CTX, 2, 3, &err),
			 OD_OK);
	assert_int_equal(od_seq_state_new(&w->seq, w->pool, &err), OD_OK);
	assert_int_equal(od_seq_state_promise(w->seq, CTX), OD_OK);
	reserve(w->seq, CTX);
	for (size_t i = 0; i < ROWS * 64; i++)
		w->part.row[i] = (float)i;
	w->part.zmq = od_zmq_context();
	pthread_mutex_init(&w->part.lock, NULL);
	pthread_cond_init(&w->part.ready, NULL);
	begin_part(&w->part);
	w->chain = make_chain(w, &err);
}

static void close_world(struct chain_world *w)
{
	ods_chain_free(w->chain);
	end_part(&w->part);
	zmq_ctx_term(w->part.zmq);
	pthread_mutex_destroy(&w->part.lock);
	pthread_cond_destroy(&w->part.ready);
	od_seq_state_free(w->seq);
	od_state_pool_free(w->pool);
	free_model(&w->model);
}

/* As if the time for it had come. */
static bool comes_up(struct chain_world *w)
{
	bool fresh, up = ods_chain_up(w->chain, UINT64_MAX, &fresh);

	assert_true(up == fresh);
	return up;
}

/* Its part is connected, and rows of runs have their memory. */
static void open_ready_world(struct chain_world *w)
{
	struct ods_chain_room room = { 100, 7, 100 };
	struct od_err err;

	open_world(w);
	assert_true(comes_up(w));
	assert_int_equal(ods_chain_room(w->chain, &room, &err), OD_OK);
}

static int run_layers(struct chain_world *w, uint64_t run, struct od_err *err)
{
	const struct ods_chain_rows rows = { w->seq, ROWS };
	const int32_t token[ROWS] = { 1, 2 };
	const uint32_t kept = 1;
	static float x[ROWS * 64];
	const float *out;
	int rc = ods_chain_begin(w->chain, run, &rows, 1, token, x, err);

	while (rc == OD_OK && ods_chain_layer(w->chain) < LAYERS) {
		rc = ods_chain_attention(w->chain, true, &kept, 1, err);
		if (rc == OD_OK && ods_chain_routed(w->chain))
			ods_chain_experts(w->chain);
	}
	if (rc == OD_OK)
		rc = ods_chain_output(w->chain, &out, err);
	if (rc == OD_OK)
		assert_memory_equal(out, w->part.row, ROWS * config.hidden * sizeof(float));
	return rc == OD_OK ? ods_chain_commit(w->chain, &kept, 1, err) : rc;
}

static void test_a_run(void **unused)
{
	const float state[2][64] = { { 1 } };
	struct ods_chain_room room = { 100, 7, 100 };
	struct chain_world w;
	struct od_err err;
	struct od_out_frame frames[2];

	(void)unused;
	open_world(&w);
	assert_true(ods_chain_deadline(w.chain) != UINT64_MAX);
	assert_true(comes_up(&w));
	assert_true(ods_chain_deadline(w.chain) == UINT64_MAX);
	assert_int_equal(ods_chain_room(w.chain, &room, &err), OD_OK);
	assert_int_equal(room.max_rows, 8);
	assert_int_equal(room.max_sequences, 7); /* whatever a part says */
	assert_int_equal(room.n_pages, 3);
	for (int i = 0; i < 2; i++)
		frames[i] = (struct od_out_frame){ .bytes = state[i], .len = 4 * 2 * 8 * sizeof(float) };
	assert_int_equal(ods_chain_put(w.chain, w.seq, 1, 62, 4, frames, 2, &err), OD_OK);
	assert_int_equal(run_layers(&w, 1, &err), OD_OK);
	assert_int_equal(run_layers(&w, 2, &err), OD_OK);
	assert_int_equal(atomic_load(&w.part.runs), 2);
	assert_int_equal(atomic_load(&w.part.states), 1);
	close_world(&w);
}

static void test_wrong_readiness(void **unused)
{
	struct chain_world w;

	(void)unused;
	open_world(&w);
	for (int manner = WELL + 1; manner < N_READY; manner++) {
		atomic_store(&w.part.manner, manner);
		assert_false(comes_up(&w));
		atomic_store(&w.part.manner, WELL);
		assert_true(comes_up(&w));
		ods_chain_free(w.chain);
		w.chain = make_chain(&w, &(struct od_err){ 0 });
	}
	close_world(&w);
}

static void test_wrong_results(void **unused)
{
	struct chain_world w;
	struct od_err err;

	(void)unused;
	open_ready_world(&w);
	for (int manner = FAILS; manner < N_MANNERS; manner++) {
		atomic_store(&w.part.manner, manner);
		if (manner == OTHER_SESSION) {
			assert_int_equal(run_layers(&w, 10, &err), OD_OK);
			continue;
		}
		assert_int_not_equal(run_layers(&w, 10 + (uint64_t)manner, &err), OD_OK);
		assert_non_null(strstr(err.msg, "shadow 127.0.0.1, which holds layers 1-2: "));
		if (manner == FAILS)
			assert_non_null(strstr(err.msg, "the reason"));
		if (manner == LEAVES) {
			assert_non_null(strstr(err.msg, "the connection has ended"));
			pthread_join(w.part.thread, NULL);
			begin_part(&w.part);
		}
		assert_true(ods_chain_deadline(w.chain) != UINT64_MAX);
		atomic_store(&w.part.manner, WELL);
		assert_true(comes_up(&w));
		assert_int_equal(run_layers(&w, 100 + (uint64_t)manner, &err), OD_OK);
	}
	close_world(&w);
}

static void test_interruption(void **unused)
{
	struct chain_world w;
	struct od_err err;

	(void)unused;
	open_ready_world(&w);
	end_part(&w.part); /* the part is gone: only the interruption ends the wait */
	atomic_store(&w.part.interrupt, true);
	assert_int_not_equal(run_layers(&w, 1, &err), OD_OK);
	begin_part(&w.part);
	close_world(&w);
}

static void test_wrong_parts(void **unused)
{
	static const struct {
		const char *host;
		uint32_t port, first, end, n;
	} cases[] = {
		{ "", 1, 1, LAYERS, 1 },
		{ "h", 0, 1, LAYERS, 1 },
		{ "h", 65536, 1, LAYERS, 1 },
		{ "h", 1, 0, LAYERS, 1 },
		{ "h", 1, 2, LAYERS, 1 },
		{ "h", 1, 1, 1, 1 },
		{ "h", 1, 1, LAYERS + 1, 1 },
		{ "h", 1, 1, 2, 1 },
		{ "h", 1, 1, LAYERS, 0 },
		{ "h", 1, 1, UINT32_MAX, 1 },
		{ "h", 1, 1, LAYERS, ODS_MAX_PARTS + 1 },
	};
	struct chain_world w;

	(void)unused;
	open_world(&w);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct ods_chain_opts o = { .config = &w.first, .interrupted = is_interrupted, .arg = &w.part };
		Od__Part part = OD__PART__INIT, *list[ODS_MAX_PARTS + 1];
		Od__Parts parts = OD__PARTS__INIT;
		struct ods_chain *c;
		struct od_err err;

		part.host = (char *)cases[i].host;
		part.data_port = cases[i].port;
		part.first_layer = cases[i].first;
		part.end_layer = cases[i].end;
		for (size_t j = 0; j <= ODS_MAX_PARTS; j++)
			list[j] = &part;
		parts.parts = list;
		parts.n_parts = cases[i].n;
		assert_int_not_equal(ods_chain_new(&c, &o, &parts, &err), OD_OK);
		assert_null(c);
	}
	close_world(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_run),	      cmocka_unit_test(test_wrong_readiness),
		cmocka_unit_test(test_wrong_results), cmocka_unit_test(test_interruption),
		cmocka_unit_test(test_wrong_parts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

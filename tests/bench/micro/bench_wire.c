/* bench_wire.c - od-bench wire: the round trip of a RUN and its RESULT over TCP on loopback, with keys and without, in
 * turns. */
#include "common/base/clock.h"
#include "common/net/gate.h"
#include "common/net/endpoint.h"
#include "common/net/wire.h"
#include "tests/bench/bench.h"
#include "tests/bench/report/bench_stats.h"
#include "tests/bench/report/bench_table.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPERTS 2u /* experts of a RUN: the top-k of Mixtral */
#define WARM_UP 5u
#define QUICK 0.1 /* the fastest tenth: what other load of the machine does least to */
#define STOP_LOOK_MS 100
#define MAX_TRIPS 100000u

/* Bytes of the rows each way. A row of Mixtral 8x7B has 8 KiB in bf16, 16 KiB in f32; the last is a part of a
 * prompt. */
static const size_t sizes[] = { 1 << 10, 8 << 10, 16 << 10, 128 << 10, 1 << 20, 2 << 20 };
enum { N_SIZES = sizeof(sizes) / sizeof(sizes[0]) };

/* A worker that computes nothing, and main's socket to it. */
struct link {
	bool keys;
	void *context, *client_context, *router, *dealer;
	struct od_gate *gate;
	struct od_key_pair worker, main;
	pthread_t thread;
	bool started;
	atomic_bool stop;
	double *us; /* [rounds * trips] of the size at hand */
	size_t n;
};

struct wire {
	uint64_t rounds, trips;
	struct link link[2]; /* without, with keys */
	uint8_t *bytes; /* the largest size */
};

static int send_run(void *socket, const struct od_route *to, bool result, const void *bytes, size_t len)
{
	const struct od_out_frame frame = { .bytes = bytes, .len = len };
	Od__Header h = OD__HEADER__INIT;
	Od__Run run = OD__RUN__INIT;
	Od__RunExpert run_expert[EXPERTS], *run_list[EXPERTS];
	Od__Result answer = OD__RESULT__INIT;
	Od__ExpertResult result_expert[EXPERTS], *result_list[EXPERTS];
	uint32_t row = 0;

	for (uint32_t i = 0; i < EXPERTS; i++) {
		od__run_expert__init(&run_expert[i]);
		od__expert_result__init(&result_expert[i]);
		run_expert[i].expert = result_expert[i].expert = 3 * i + 1;
		run_expert[i].rows = &row;
		run_expert[i].n_rows = result_expert[i].rows = 1;
		result_expert[i].wait_ns = result_expert[i].compute_ns = 123456;
		run_list[i] = &run_expert[i];
		result_list[i] = &result_expert[i];
	}
	run.step = answer.step = 1000;
	run.m = answer.m = 7;
	run.n_rows = 1;
	run.experts = run_list;
	answer.experts = result_list;
	run.n_experts = answer.n_experts = EXPERTS;
	h.session = 0x0123456789abcdef;
	h.body_case = result ? OD__HEADER__BODY_RESULT : OD__HEADER__BODY_RUN;
	if (result)
		h.result = &answer;
	else
		h.run = &run;
	return od_wire_send(socket, to, &h, &frame, 1);
}

static void *answer_all(void *arg)
{
	struct link *l = arg;
	zmq_pollitem_t item = { .socket = l->router, .events = ZMQ_POLLIN };

	while (!atomic_load(&l->stop)) {
		struct od_err err;
		struct od_msg m;
		size_t len;

		if (zmq_poll(&item, 1, STOP_LOOK_MS) <= 0 || od_wire_recv(l->router, true, &m, &err) != OD_OK)
			continue;
		const void *rows = od_msg_frame(&m, 0, &len);

		(void)!send_run(l->router, &m.route, true, rows, len); /* main would wait for ever, and say so */
		od_msg_fini(&m);
	}
	return NULL;
}

static int open_link(struct link *l, struct od_err *err)
{
	const struct od_curve curve = { &l->main, l->worker.public_key };
	uint16_t port;
	int rc = OD_OK;

	l->context = od_zmq_context();
	l->client_context = od_zmq_context();
	if (l->context == NULL || l->client_context == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no ZeroMQ context");
	if (l->keys)
		rc = od_key_pair_new(&l->worker, err);
	if (l->keys && rc == OD_OK)
		rc = od_key_pair_new(&l->main, err);
	if (l->keys && rc == OD_OK)
		rc = od_gate_new(&l->gate, l->context, &l->worker, err);
	if (l->keys && rc == OD_OK)
		rc = od_gate_admit(l->gate, l->main.public_key, 1, "the benchmark", err);
	if (rc == OD_OK)
		rc = od_bind_router(l->context, "127.0.0.1", 0, l->gate, &l->router, &port, err);
	if (l->keys && rc == OD_OK)
		rc = od_gate_start(l->gate, err);
	if (rc == OD_OK)
		rc = od_connect_dealer(l->client_context, "127.0.0.1", port, l->keys ? &curve : NULL, &l->dealer, err);
	if (rc == OD_OK && pthread_create(&l->thread, NULL, answer_all, l) != 0)
		rc = od_fail(err, OD_ERR_NOMEM, "no thread");
	l->started = rc == OD_OK;
	return rc;
}

static void close_link(struct link *l)
{
	atomic_store(&l->stop, true);
	if (l->started)
		pthread_join(l->thread, NULL);
	od_gate_free(l->gate);
	od_close_socket(l->router);
	od_close_socket(l->dealer);
	if (l->context != NULL)
		zmq_ctx_term(l->context);
	if (l->client_context != NULL)
		zmq_ctx_term(l->client_context);
	free(l->us);
}

static int wait_for(void *socket, short events, struct od_err *err)
{
	zmq_pollitem_t item = { .socket = socket, .events = events };

	return zmq_poll(&item, 1, 10000) == 1 ? OD_OK : od_fail(err, OD_ERR_TIMEOUT, "no answer for ten seconds");
}

static int trip(struct link *l, const void *bytes, size_t len, struct od_err *err)
{
	struct od_msg m;
	int rc = send_run(l->dealer, NULL, false, bytes, len);

	if (rc != OD_OK)
		return od_fail(err, rc, "cannot send");
	do {
		rc = wait_for(l->dealer, ZMQ_POLLIN, err);
		if (rc == OD_OK)
			rc = od_wire_recv(l->dealer, false, &m, err);
	} while (rc == OD_ERR_BUSY);
	if (rc == OD_OK)
		od_msg_fini(&m);
	return rc;
}

/* One link's turn. */
static int turn(const struct wire *w, struct link *l, size_t len, struct od_err *err)
{
	int rc = wait_for(l->dealer, ZMQ_POLLOUT, err);

	for (uint64_t i = 0; rc == OD_OK && i < WARM_UP + w->trips; i++) {
		const uint64_t begin_ns = od_now_ns();

		rc = trip(l, w->bytes, len, err);
		if (i >= WARM_UP)
			l->us[l->n++] = (double)(od_now_ns() - begin_ns) / 1e3;
	}
	return rc;
}

static double at(const struct link *l, double fraction)
{
	return l->us[(size_t)(fraction * (double)(l->n - 1))];
}

static int measure(struct wire *w, size_t len, struct od_table *table, struct od_err *err)
{
	struct link *plain = &w->link[0], *keys = &w->link[1];
	int rc = OD_OK;

	plain->n = keys->n = 0;
	for (uint64_t r = 0; rc == OD_OK && r < w->rounds; r++) {
		rc = turn(w, &w->link[r % 2], len, err); /* the links take turns in going first, too */
		if (rc == OD_OK)
			rc = turn(w, &w->link[1 - r % 2], len, err);
	}
	if (rc != OD_OK)
		return rc;
	od_stats_sort(plain->us, plain->n);
	od_stats_sort(keys->us, keys->n);
	od_table_row(table,
		     (const struct od_cell[]){ OD_BYTES(len), OD_REAL(at(plain, QUICK)), OD_REAL(at(keys, QUICK)),
					       OD_REAL(at(keys, QUICK) / at(plain, QUICK)), OD_REAL(at(plain, 0.5)),
					       OD_REAL(at(keys, 0.5)), OD_REAL(at(keys, 0.5) / at(plain, 0.5)) });
	return OD_OK;
}

static int report(struct wire *w, bool json, struct od_err *err)
{
	static const struct od_column columns[] = {
		{ "row_bytes", "rows each way", 0 },
		{ "plain_p10_us", "plain p10, us", 1 },
		{ "keys_p10_us", "keys p10, us", 1 },
		{ "ratio_p10", "ratio", 2 },
		{ "plain_us", "plain p50, us", 1 },
		{ "keys_us", "keys p50, us", 1 },
		{ "ratio", "ratio", 2 },
	};
	struct od_table *table;
	struct od_report *r;
	int rc = od_report_new(&r, "Round trips of a RUN and its RESULT", err);

	if (rc != OD_OK)
		return rc;
	od_report_fact(r, "rounds", "rounds", OD_INT(w->rounds), 0, NULL);
	od_report_fact(r, "trips", "round trips in a turn", OD_INT(w->trips), 0, NULL);
	table = od_report_table(r, "sizes", NULL, columns, sizeof(columns) / sizeof(columns[0]));
	for (size_t i = 0; rc == OD_OK && i < N_SIZES; i++)
		rc = measure(w, sizes[i], table, err);
	if (rc == OD_OK)
		rc = od_report_print(r, stdout, json, err);
	od_report_free(r);
	return rc;
}

static int run(struct wire *w, bool json, struct od_err *err)
{
	int rc = OD_OK;

	w->bytes = malloc(sizes[N_SIZES - 1]);
	if (w->bytes == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for rows");
	memset(w->bytes, 0x5a, sizes[N_SIZES - 1]);
	for (int i = 0; rc == OD_OK && i < 2; i++) {
		w->link[i].keys = i == 1;
		w->link[i].us = malloc(w->rounds * w->trips * sizeof(double));
		rc = w->link[i].us != NULL ? open_link(&w->link[i], err) :
					     od_fail(err, OD_ERR_NOMEM, "no memory for times");
	}
	if (rc == OD_OK)
		rc = report(w, json, err);
	close_link(&w->link[0]);
	close_link(&w->link[1]);
	free(w->bytes);
	return rc;
}

int od_bench_wire(int argc, char **argv, struct od_err *err)
{
	struct wire w = { .rounds = 100, .trips = 20 };
	bool help = false, json = false;
	const struct od_arg table[] = {
		{ "rounds", OD_ARG_UINT, &w.rounds, "N", "turns of each kind of link; default 100", 1, 1000, NULL },
		{ "trips", OD_ARG_UINT, &w.trips, "N", "round trips in a turn; default 20", 1, MAX_TRIPS, NULL },
		{ "json", OD_ARG_FLAG, &json, NULL, "the figures as JSON", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &help, NULL, "this text", 0, 0, NULL },
	};
	int rc = od_bench_options(
		table, sizeof(table) / sizeof(table[0]), argc, argv, &help, "wire [OPTIONS]",
		"Measures the round trip of a RUN and its RESULT over TCP on loopback, without computing\n"
		"anything: with keys and without, in turns. Prints the 10th percentile, which other\n"
		"load disturbs least, and the median.",
		err);

	if (rc != OD_OK || help)
		return rc;
	return run(&w, json, err);
}

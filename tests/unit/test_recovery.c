/* Recovery with a virtual clock: how long a layer waits when data ports die, and what is sent again. Workers, members
 * and links are played here; the bound is that of docs/ARCHITECTURE.md (3 s to notice, then one load). */
#include "main-node/cluster/members_links.h"
#include "main-node/cluster/members_look.h"
#include "main-node/cluster/recovery.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/alike_workers.h"

#define MAX_WORKERS 9
#define MS OD_NS_PER_MS
#define STEP_MS 10
#define TICK_MS 50 /* period of the loop thread */
#define HEARTBEAT_MS 250
#define LOAD_MS 400 /* from a RUN to its answer */

static uint64_t clock_ms;
static struct od_err error;

int __wrap_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t)
{
	(void)id;
	*t = (struct timespec){ .tv_sec = (time_t)(clock_ms / 1000), .tv_nsec = (long)(clock_ms % 1000 * MS) };
	return 0;
}

static struct recovery_worker {
	bool frozen; /* its data port: nothing comes or goes */
	bool answers_busy;
	uint64_t pulled;
	bool mute; /* it reads RUNs and never answers them */
	bool gone, distrusted;
	bool slow_link; /* its heartbeats are late, too */
	bool says_busy; /* whatever it does; else when it has something to do */
	unsigned attached; /* workers on their way */
	uint64_t pongs;
	unsigned n_runs, n_damaged;
	uint64_t last_request;
} worker[MAX_WORKERS];
static bool was_served; /* worker 0 */

static struct recovery_world {
	struct odm_links net;
	struct odm_link link[MAX_WORKERS];
	struct odm_pieces work[ODM_HALVES];
	struct odm_recovery recovery;
	struct od_moe_call call;
	struct odm_part part;
	struct odm_step step;
	uint64_t counters[OD_N_COUNTERS];
	uint64_t due_ms[MAX_WORKERS]; /* each answer's */
	uint64_t last_request;
	char why[200];
} w;

/* ---- What recovery.c asks of others ---- */

struct odm_members *odm_cluster_members(struct odm_cluster *c)
{
	(void)c;
	return NULL;
}

bool odm_members_stats(struct odm_members *ms, uint32_t id, struct odm_member_stats *s, char *name, size_t size)
{
	(void)ms;
	*s = (struct odm_member_stats){ .alive = !worker[id].gone,
					.pongs = worker[id].pongs,
					.busy = worker[id].says_busy || w.due_ms[id] != 0 };
	s->c[OD_C_PULLED_BYTES] = worker[id].pulled;
	snprintf(name, size, "worker %u", id);
	return true;
}

void odm_members_distrust(struct odm_members *ms, uint32_t id, uint64_t session, const char *why)
{
	(void)ms;
	assert_int_equal(session, id + 1);
	worker[id].distrusted = true;
	snprintf(w.why, sizeof(w.why), "%s", why);
}

void odm_members_damaged(struct odm_members *ms, uint32_t id, uint64_t session, uint32_t m, uint32_t expert)
{
	(void)ms;
	assert_int_equal(session, id + 1);
	assert_int_equal(m, 0);
	assert_int_equal(expert, 0);
	worker[id].n_damaged++;
}

void odm_members_served(struct odm_members *ms, uint32_t id, uint64_t session)
{
	(void)ms;
	assert_int_equal(session, id + 1);
	was_served = true;
}

bool odm_members_late(struct odm_members *ms, uint32_t id, uint64_t session, uint32_t n, double took_ns, double times)
{
	(void)ms;
	assert_int_equal(session, id + 1);
	assert_int_equal(n, 1);
	assert_true(times > 1);
	return worker[id].slow_link || took_ns > 0;
}

bool odm_members_awaited(struct odm_members *ms)
{
	(void)ms;
	return false;
}

bool odm_links_alive(struct odm_links *l, uint32_t i)
{
	return l->link[i].session != 0 && !worker[i].gone;
}

/* Until then no worker joins; then these do, and the first ones keep their indices. */
static uint32_t n_joined;

bool odm_links_join(struct odm_links *l)
{
	if (n_joined == 0)
		return false;
	l->view.n_workers = n_joined;
	l->groups = odm_groups_make(n_joined, n_joined, 1, 1);
	l->groups.still = true;
	l->groups.times = alike_workers(n_joined);
	n_joined = 0;
	return true;
}

int odm_links_none_left(struct odm_links *l, struct od_err *err)
{
	(void)l;
	return od_fail(err, OD_ERR_UNREACHABLE, "no worker is left");
}

void odm_link_close(struct odm_link *l)
{
	*l = (struct odm_link){ .member = l->member };
}

void odm_link_reattach(struct odm_link *l)
{
	if (!worker[l->member].frozen && !worker[l->member].gone)
		worker[l->member].attached++;
}

/* ---- The world ---- */

static int send_piece(void *arg, struct odm_piece *p)
{
	struct recovery_worker *to = &worker[p->worker];

	(void)arg;
	if (p->state == ODM_PIECE_TODO)
		p->request = ++w.last_request;
	p->state = ODM_PIECE_SENT;
	to->n_runs++;
	to->last_request = p->request;
	odm_recovery_sent(&w.recovery, p->worker, &p, 1);
	if (!to->frozen && !to->mute)
		w.due_ms[p->worker] = clock_ms + LOAD_MS;
	return OD_OK;
}

static void begin_layer(size_t n_rows)
{
	static uint16_t expert[64];

	w.call = (struct od_moe_call){ .step = 1, .n_rows = n_rows, .expert = expert };
	odm_pieces_deal(w.work, &w.call, &w.net.groups, NULL, NULL);
	odm_pieces_cut(w.work, &w.call, 64);
	assert_int_equal(w.work[0].n, 1);
	w.work[0].piece[0].worker = 0;
	w.part = (struct odm_part){ .n = n_rows };
	w.step = (struct odm_step){
		.phase = ODM_DECODE, .part = &w.part, .n_parts = 1, .n_rows = n_rows, .counters = w.counters
	};
	odm_recovery_begin(&w.recovery, &w.step);
	send_piece(NULL, &w.work[0].piece[0]);
}

/* A layer of one expert, which lies with worker 0; the next candidates are 1, 2, ... */
static void begin(uint32_t n_workers, size_t n_rows)
{
	const struct od_config cfg = { .n_experts = 8, .top_k = 1 };

	memset(&w, 0, sizeof(w));
	memset(worker, 0, sizeof(worker));
	was_served = false;
	n_joined = 0;
	clock_ms = 1000000;
	w.net.link = w.link;
	w.net.view.n_workers = n_workers;
	w.net.groups = odm_groups_make(n_workers, 1, 1, 1);
	w.net.groups.still = true;
	w.net.groups.times = alike_workers(n_workers);
	for (uint32_t i = 0; i < n_workers; i++)
		w.link[i] = (struct odm_link){ .member = i, .session = i + 1, .attached = true };
	assert_int_equal(odm_pieces_init(w.work, &cfg, n_rows, MAX_WORKERS, &error), OD_OK);
	w.recovery = (struct odm_recovery){ .net = &w.net, .work = w.work, .send_again = send_piece };
	begin_layer(n_rows);
}

/* The data port of worker i is dead from the beginning, or it got what was sent and keeps it. */
static void freeze(uint32_t i)
{
	worker[i].frozen = true;
	w.due_ms[i] = 0;
}

static void deliver(uint32_t i)
{
	struct odm_piece *p = &w.work[0].piece[0];

	if (worker[i].frozen || worker[i].gone)
		return;
	for (; worker[i].attached > 0; worker[i].attached--) {
		w.link[i].watch.unanswered = 0;
		odm_recovery_attached(&w.recovery, i);
	}
	if (w.due_ms[i] == 0 || clock_ms < w.due_ms[i])
		return;
	w.due_ms[i] = 0;
	w.link[i].watch.unanswered = 0;
	if (p->worker != i || p->state != ODM_PIECE_SENT)
		return;
	if (worker[i].answers_busy) {
		Od__ExpertResult x = OD__EXPERT_RESULT__INIT;

		x.code = OD_ERR_BUSY;
		x.reason = (char *)"so it says";
		odm_recovery_answered(&w.recovery, i, false);
		odm_recovery_failed(&w.recovery, p, &x);
		return;
	}
	p->state = ODM_PIECE_DONE;
	w.work[0].n_done++;
	odm_recovery_answered(&w.recovery, i, true);
}

/* Until the layer is done or failed, or for so long. Milliseconds since the beginning. */
static uint64_t wait_ms(uint64_t most_ms, int *rc)
{
	const uint64_t from = clock_ms;

	*rc = OD_OK;
	while (w.work[0].n_done < w.work[0].n && *rc == OD_OK && clock_ms - from < most_ms) {
		assert_in_range(odm_recovery_timeout_ms(&w.recovery), 1, HEARTBEAT_MS + 1);
		clock_ms += STEP_MS;
		for (uint32_t i = 0; i < w.net.view.n_workers; i++) {
			worker[i].pongs += clock_ms % HEARTBEAT_MS == 0;
			if (worker[i].distrusted && clock_ms % TICK_MS == 0)
				worker[i].gone = true;
			deliver(i);
		}
		odm_recovery_end_rests(&w.recovery);
		*rc = odm_recovery_probe(&w.recovery, &error);
		odm_recovery_move(&w.recovery);
		if (*rc == OD_OK)
			*rc = odm_recovery_serve(&w.recovery, &error);
		if (w.work[0].piece[0].state == ODM_PIECE_TODO && w.work[0].piece[0].worker != ODM_NOBODY &&
		    !w.work[0].piece[0].resting)
			send_piece(NULL, &w.work[0].piece[0]);
	}
	return clock_ms - from;
}

static void many_dead_ports_cost_one_detection(void **state)
{
	int rc;

	(void)state;
	for (uint32_t n = 2; n <= MAX_WORKERS; n++) {
		for (int busy = 0; busy < 2; busy++) {
			uint64_t ms;

			begin(n, 1);
			for (uint32_t i = 0; i + 1 < n; i++) {
				freeze(i);
				worker[i].says_busy = busy != 0; /* with what predictions asked for */
			}
			ms = wait_ms(60000, &rc);
			assert_int_equal(rc, OD_OK);
			assert_int_equal(w.work[0].n_done, 1);
			assert_in_range(ms, 2900, 3100 + LOAD_MS);
			for (uint32_t i = 0; i < n; i++)
				assert_int_equal(worker[i].gone, i + 1 < n);
			assert_int_equal(worker[n - 1].n_runs, 1);
			odm_pieces_fini(w.work);
		}
	}
}

static void a_run_that_a_connection_swallowed_is_sent_again_soon(void **state)
{
	uint64_t ms;
	int rc;

	(void)state;
	begin(2, 1);
	w.due_ms[0] = 0; /* it never came */
	ms = wait_ms(60000, &rc);
	assert_int_equal(rc, OD_OK);
	assert_in_range(ms, LOAD_MS, 1300 + LOAD_MS);
	assert_int_equal(worker[0].n_runs, 2);
	assert_int_equal(worker[0].last_request, 1); /* as before */
	assert_int_equal(worker[1].n_runs, 0);
	assert_false(worker[0].distrusted);
	odm_pieces_fini(w.work);
}

static void one_that_is_idle_and_never_answers_is_given_up(void **state)
{
	uint64_t ms;
	int rc;

	(void)state;
	begin(2, 1);
	worker[0].mute = true;
	w.due_ms[0] = 0;
	ms = wait_ms(60000, &rc);
	assert_int_equal(rc, OD_OK);
	assert_in_range(ms, 1000, 4000 + LOAD_MS);
	assert_int_equal(worker[0].n_runs, 3);
	assert_true(worker[0].distrusted);
	odm_pieces_fini(w.work);
}

/* Layers with worker 0 until it is given up, but at most `most`; every nth RUN never comes there. Returns how many it
 * lost. */
static unsigned lose_every(unsigned nth, unsigned most, uint32_t n_workers)
{
	unsigned lost = 0;
	int rc;

	begin(n_workers, 1);
	for (unsigned i = 1; i <= most && !worker[0].distrusted; i++) {
		if (i > 1)
			begin_layer(1);
		if (i % nth == 0) {
			w.due_ms[0] = 0;
			lost++;
		}
		wait_ms(60000, &rc);
		assert_int_equal(rc, OD_OK);
		assert_int_equal(w.work[0].n_done, 1);
	}
	odm_pieces_fini(w.work);
	return lost;
}

/* docs/PROTOCOL.md: after more than five, of which 200 answers each forgive one. */
static void one_that_loses_runs_again_and_again_is_given_up(void **state)
{
	(void)state;
	assert_int_equal(lose_every(10, 1000, 2), 6);
	assert_true(worker[0].gone);
	assert_non_null(strstr(w.why, "it loses RUNs again and again"));
	assert_false(was_served); /* so its next exile is longer */
	assert_int_equal(lose_every(201, 3000, 2), 14);
	assert_false(worker[0].distrusted);
	assert_true(was_served);
	assert_int_equal(lose_every(10, 1000, 1), 100); /* the last one stays */
	assert_false(worker[0].distrusted);
}

static void one_that_computes_many_rows_is_not_given_up(void **state)
{
	int rc;

	(void)state;
	begin(2, 40);
	freeze(0);
	worker[0].says_busy = true;
	wait_ms(30000, &rc);
	assert_false(worker[0].distrusted);
	worker[0].says_busy = false; /* then it would have answered */
	wait_ms(1000, &rc);
	assert_true(worker[0].gone);
	odm_pieces_fini(w.work);
}

/* Loads for predictions keep it busy, too; only rows that it still owes excuse its silence. */
static void many_rows_of_a_layer_that_is_done_excuse_nobody(void **state)
{
	uint64_t ms;
	int rc;

	(void)state;
	begin(2, 40);
	worker[0].says_busy = true;
	wait_ms(60000, &rc);
	assert_int_equal(w.work[0].n_done, 1);
	freeze(0);
	begin_layer(1);
	ms = wait_ms(60000, &rc);
	assert_int_equal(rc, OD_OK);
	assert_in_range(ms, 2900, 3100 + LOAD_MS);
	assert_true(worker[0].gone);
	odm_pieces_fini(w.work);
}

static void rows_on_their_way_get_their_time(void **state)
{
	uint64_t ms;
	int rc;

	(void)state;
	begin(2, 1);
	freeze(0);
	w.link[0].held_bytes = 10000000; /* 6 s at 600 ns */
	ms = wait_ms(60000, &rc);
	assert_int_equal(rc, OD_OK);
	assert_in_range(ms, 8900, 9100 + LOAD_MS);
	odm_pieces_fini(w.work);
}

/* Stopped, suspended: nobody answered meanwhile, and nobody is to blame. */
static void a_pause_of_mains_own_costs_nobody_anything(void **state)
{
	int rc;

	(void)state;
	begin(3, 1);
	w.due_ms[0] += 60000;
	wait_ms(500, &rc);
	clock_ms += 50000;
	wait_ms(60000, &rc);
	assert_int_equal(w.work[0].n_done, 1);
	for (uint32_t i = 0; i < 3; i++)
		assert_false(worker[i].distrusted);
	assert_int_equal(worker[0].n_runs, 1);
	odm_pieces_fini(w.work);
}

static void when_all_are_dead_there_is_an_error(void **state)
{
	uint64_t ms;
	int rc;

	(void)state;
	begin(3, 1);
	for (uint32_t i = 0; i < 3; i++)
		freeze(i);
	ms = wait_ms(60000, &rc);
	assert_int_equal(rc, OD_ERR_UNREACHABLE);
	assert_in_range(ms, 2900, 3100);
	odm_pieces_fini(w.work);
}

/* It answers probes, and says that it is at work. */
static void one_that_is_busy_for_ever_is_given_up(void **state)
{
	uint64_t ms;
	int rc;

	(void)state;
	for (uint64_t weights = 0; weights <= 176160768; weights += 176160768) { /* an expert of Mixtral 8x7B */
		const uint64_t bound_ms = 60000 + weights * 2002 / 1000000;

		begin(2, 1);
		w.recovery.expert_weights = weights;
		worker[0].mute = worker[0].says_busy = true;
		w.due_ms[0] = 0;
		ms = wait_ms(3600000, &rc);
		assert_int_equal(rc, OD_OK);
		assert_in_range(ms, bound_ms, bound_ms + 1000 + LOAD_MS);
		assert_non_null(strstr(w.why, "has not answered its RUNs for"));
		assert_int_equal(worker[0].n_runs, 1);
		odm_pieces_fini(w.work);
		begin(2, 1); /* an honest one that is slow */
		w.recovery.expert_weights = weights;
		w.due_ms[0] = clock_ms + bound_ms - 1000;
		wait_ms(3600000, &rc);
		assert_int_equal(rc, OD_OK);
		assert_false(worker[0].distrusted);
		assert_int_equal(worker[1].n_runs, 0);
		odm_pieces_fini(w.work);
	}
}

static void one_that_answers_busy_for_ever_ends_the_step(void **state)
{
	uint64_t ms;
	int rc;

	(void)state;
	begin(1, 1);
	worker[0].answers_busy = true;
	ms = wait_ms(3600000, &rc);
	assert_int_equal(rc, OD_ERR_TIMEOUT);
	assert_in_range(ms, 180000, 182000);
	assert_non_null(strstr(error.msg, "worker 0 is busy and does not run expert 0 of layer 0 (so it says)"));
	assert_false(worker[0].distrusted);
	odm_pieces_fini(w.work);
	begin(2, 1); /* another one takes its time, after a BUSY */
	worker[0].answers_busy = true;
	wait_ms(2 * LOAD_MS, &rc);
	assert_int_equal(w.work[0].piece[0].worker, 1);
	w.due_ms[1] = clock_ms + 50000;
	wait_ms(60000, &rc);
	assert_int_equal(w.work[0].n_done, 1);
	odm_pieces_fini(w.work);
	begin(1, 1); /* it pulls the expert: very slowly, but it does */
	w.recovery.expert_weights = 176160768; /* Mixtral 8x7B's */
	worker[0].answers_busy = true;
	for (int i = 0; i < 30; i++) {
		wait_ms(60000, &rc);
		assert_int_equal(rc, OD_OK);
		worker[0].pulled++;
	}
	worker[0].answers_busy = false;
	wait_ms(60000, &rc);
	assert_int_equal(w.work[0].n_done, 1);
	odm_pieces_fini(w.work);
}

/* It says that it pulls more and more, much longer than an expert takes on a link of 1 Mbit/s. */
static void one_that_pulls_for_ever_ends_the_step(void **state)
{
	uint64_t ms = 0;
	int rc = OD_OK;

	(void)state;
	begin(1, 1);
	w.recovery.expert_weights = 1000000;
	worker[0].answers_busy = true;
	while (rc == OD_OK && ms < 3600000) {
		ms += wait_ms(HEARTBEAT_MS, &rc);
		worker[0].pulled += 1000000;
	}
	assert_int_equal(rc, OD_ERR_TIMEOUT);
	assert_in_range(ms, 196000, 198000);
	odm_pieces_fini(w.work);
}

/* One that fails an expert, and then dies before the next one fails it, too: all others are still asked. */
static void one_that_dies_lets_nobody_be_passed_over(void **state)
{
	Od__ExpertResult x = OD__EXPERT_RESULT__INIT;
	struct odm_piece *p;

	(void)state;
	x.code = OD_ERR_IO;
	x.reason = (char *)"the GPU is lost";
	for (uint32_t n = 3; n <= MAX_WORKERS; n++) {
		begin(n, 1);
		p = &w.work[0].piece[0];
		for (uint32_t i = 0; i + 1 < n; i++) {
			assert_int_equal(p->worker, i);
			odm_recovery_failed(&w.recovery, p, &x);
			worker[i].gone = true;
			odm_recovery_move(&w.recovery);
		}
		assert_int_equal(p->worker, n - 1);
		assert_int_equal(p->state, ODM_PIECE_TODO);
		odm_recovery_failed(&w.recovery, p, &x);
		assert_int_equal(p->worker, ODM_NOBODY);
		assert_int_equal(odm_recovery_serve(&w.recovery, &error), OD_ERR_IO);
		odm_pieces_fini(w.work);
	}
}

/* Groups are made anew when a worker joins: one that still has its expert elsewhere counts from the beginning. */
static void one_that_joins_is_asked_for_every_expert(void **state)
{
	static uint16_t expert[] = { 0, 1 };
	Od__ExpertResult x = OD__EXPERT_RESULT__INIT;
	struct odm_piece *p;

	(void)state;
	x.code = OD_ERR_NOMEM;
	x.reason = (char *)"so it says";
	begin(2, 2);
	w.link[2] = (struct odm_link){ .member = 2, .session = 3, .attached = true };
	w.net.groups = odm_groups_make(2, 2, 1, 1); /* one group of both */
	w.net.groups.times = alike_workers(2);
	w.call.expert = expert;
	odm_pieces_deal(w.work, &w.call, &w.net.groups, NULL, NULL);
	odm_pieces_cut(w.work, &w.call, 64);
	assert_int_equal(w.work[0].n, 2);
	p = w.work[0].piece;
	for (int i = 0; i < 3; i++) /* No worker runs the first one; one still has the second. */
		if (p[0].worker != ODM_NOBODY)
			odm_recovery_failed(&w.recovery, &p[0], &x);
	assert_int_equal(p[0].worker, ODM_NOBODY);
	odm_recovery_failed(&w.recovery, &p[1], &x);
	assert_true(p[1].worker < 2);
	n_joined = 3;
	assert_int_equal(odm_recovery_serve(&w.recovery, &error), OD_OK);
	assert_int_not_equal(p[0].worker, ODM_NOBODY);
	for (int i = 0; i < 3 && p[1].worker != 2; i++) {
		odm_recovery_failed(&w.recovery, &p[1], &x);
		assert_int_not_equal(p[1].worker, ODM_NOBODY);
	}
	assert_int_equal(p[1].worker, 2);
	odm_pieces_fini(w.work);
}

/* Another worker runs it in any case; of damage the next steps must know. */
static void what_is_damaged_is_told(void **state)
{
	static const struct {
		int code;
		bool damaged;
	} answer[] = {
		{ OD_ERR_CORRUPT, true },  { OD_ERR_IO, true },	    { OD_ERR_FORMAT, true }, { OD_ERR_BUSY, false },
		{ OD_ERR_MISSING, false }, { OD_ERR_NOMEM, false }, { OD_ERR_RANGE, false },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(answer) / sizeof(answer[0]); i++) {
		Od__ExpertResult x = OD__EXPERT_RESULT__INIT;

		begin(2, 1);
		x.code = answer[i].code;
		x.reason = (char *)"so it says";
		odm_recovery_failed(&w.recovery, &w.work[0].piece[0], &x);
		assert_int_equal(w.work[0].piece[0].worker, 1);
		assert_int_equal(worker[0].n_damaged, answer[i].damaged);
		odm_pieces_fini(w.work);
	}
}

/* Milliseconds until another worker is asked for what worker 0 owes; `most`: none is. */
static uint64_t overtaken_ms(uint64_t most)
{
	uint64_t ms = 0;

	for (; ms < most && w.work[0].piece[0].worker == 0; ms += STEP_MS) {
		clock_ms += STEP_MS;
		odm_recovery_overtake(&w.recovery);
	}
	return ms;
}

static void what_a_late_worker_owes_is_asked_of_another_too(void **state)
{
	struct odm_piece *p;

	(void)state;
	for (int slow_link = 0; slow_link < 2; slow_link++) {
		uint64_t ms;

		begin(3, 1);
		p = &w.work[0].piece[0];
		worker[0].slow_link = slow_link;
		w.link[0].watch.expect_ns[0] = 10 * MS;
		ms = overtaken_ms(5000);
		assert_in_range(ms, slow_link ? 140 : 1080, slow_link ? 160 : 1100);
		assert_true(w.link[0].watch.late);
		assert_int_equal(p->worker, 1);
		assert_int_equal(p->state, ODM_PIECE_TODO);
		/* its answer counts before the other's RUN has left, */
		assert_ptr_equal(odm_pieces_find(w.work, 0, 1, 0), p);
		send_piece(NULL, p);
		assert_int_equal(p->request, 2);
		assert_ptr_equal(odm_pieces_find(w.work, 0, 1, 0), p); /* and after it, */
		assert_ptr_equal(odm_pieces_find(w.work, 1, 2, 0), p);
		assert_null(odm_pieces_find(w.work, 1, 1, 0));
		assert_null(odm_pieces_find(w.work, 0, 2, 0));
		p->state = ODM_PIECE_DONE;
		assert_null(odm_pieces_find(w.work, 0, 1, 0)); /* but not when it comes second */
		odm_pieces_fini(w.work);
	}
}

static void only_worker_0_has_it(void *arg, uint32_t at, uint32_t m, const uint16_t *expert, size_t n, uint8_t *cost)
{
	(void)arg;
	(void)m;
	(void)expert;
	memset(cost, at == 0 ? ODM_COST_LOAD : ODM_COST_LACKS, n);
}

/* Others would first have to pull its expert, or refuse it. */
static void what_only_a_late_worker_has_stays_with_it(void **state)
{
	Od__ExpertResult x = OD__EXPERT_RESULT__INIT;
	struct odm_piece *p;

	(void)state;
	begin(3, 1);
	w.net.groups.cost = only_worker_0_has_it;
	p = &w.work[0].piece[0];
	assert_int_equal(overtaken_ms(5000), 5000);
	assert_true(w.link[0].watch.late);
	assert_int_equal(p->state, ODM_PIECE_SENT);
	x.code = OD_ERR_NOMEM;
	x.reason = (char *)"so it says";
	odm_recovery_failed(&w.recovery, p, &x); /* it cannot: then they are asked */
	assert_int_equal(p->worker, 1);
	odm_pieces_fini(w.work);
}

/* Else the other one, whose answer is not looked at, seems to hold the rows for ever. */
static void rows_that_a_late_worker_answers_first_are_not_in_flight(void **state)
{
	struct odm_piece *p, *q;

	(void)state;
	for (int alone = 0; alone < 2; alone++) {
		begin(3, 1);
		p = &w.work[0].piece[0];
		worker[0].slow_link = true;
		overtaken_ms(5000);
		send_piece(NULL, p);
		assert_int_equal(p->worker, 1);
		w.link[1].held_bytes = 1500;
		p->run_bytes = 1000;
		q = &w.work[0].piece[1];
		*q = *p;
		q->late_request = 0;
		w.work[0].n = alone ? 1 : 2;
		odm_recovery_first(&w.recovery, p, 0);
		assert_int_equal(p->worker, 0);
		p->state = ODM_PIECE_DONE;
		assert_int_equal(w.link[1].held_bytes, alone ? 500 : 1500);
		odm_recovery_first(&w.recovery, q, 1); /* as asked */
		assert_int_equal(w.link[1].held_bytes, alone ? 500 : 1500);
		odm_pieces_fini(w.work);
	}
	begin(2, 1); /* No worker was left to ask. */
	p = &w.work[0].piece[0];
	p->worker = ODM_NOBODY;
	p->state = ODM_PIECE_TODO;
	odm_recovery_first(&w.recovery, p, 0);
	assert_int_equal(p->worker, 0);
	odm_pieces_fini(w.work);
}

static void nobody_is_overtaken_when_nobody_is_quicker(void **state)
{
	(void)state;
	begin(1, 1); /* the only one */
	worker[0].slow_link = true;
	assert_int_equal(overtaken_ms(20000), 20000);
	odm_pieces_fini(w.work);
	begin(2, 1); /* the other one was late as well */
	worker[0].slow_link = w.link[1].watch.late = true;
	assert_int_equal(overtaken_ms(20000), 20000);
	odm_pieces_fini(w.work);
	begin(2, 1); /* main itself was away */
	clock_ms += 30000;
	odm_recovery_overtake(&w.recovery);
	assert_int_equal(w.work[0].piece[0].worker, 0);
	assert_in_range(overtaken_ms(5000), 1000, 1100);
	odm_pieces_fini(w.work);
}

/* Workers that are passed over, and late ones, are asked when no other is left. */
static void one_that_is_passed_over_is_better_than_none(void **state)
{
	Od__ExpertResult x = OD__EXPERT_RESULT__INIT;
	struct odm_piece *p = &w.work[0].piece[0];

	(void)state;
	begin(4, 1);
	p = &w.work[0].piece[0];
	w.net.groups = odm_groups_make(2, 1, 1, 1); /* workers 2 and 3 get no experts */
	w.net.groups.still = true;
	w.net.groups.times = alike_workers(2);
	x.code = OD_ERR_NOMEM;
	x.reason = (char *)"so it says";
	odm_recovery_failed(&w.recovery, p, &x);
	assert_int_equal(p->worker, 1);
	worker[3].gone = true;
	odm_recovery_failed(&w.recovery, p, &x);
	assert_int_equal(p->worker, 2);
	odm_recovery_failed(&w.recovery, p, &x);
	assert_int_equal(p->worker, ODM_NOBODY);
	odm_pieces_fini(w.work);
}

/* Layers of both halves of the rows are under way when a worker that owes pieces of either dies. */
static void pieces_of_both_halves_move(void **state)
{
	static uint16_t expert[64];
	const struct od_moe_call second = { .step = 1, .first = 2, .n_rows = 2, .expert = expert };
	const struct od_config cfg = { .n_experts = 8, .top_k = 1 };
	struct odm_piece *p[ODM_HALVES];

	(void)state;
	begin(3, 2);
	assert_int_equal(odm_pieces_init(&w.work[1], &cfg, 2, MAX_WORKERS, &error), OD_OK);
	odm_pieces_deal(&w.work[1], &second, &w.net.groups, NULL, NULL);
	odm_pieces_cut(&w.work[1], &second, 64);
	p[0] = &w.work[0].piece[0];
	p[1] = &w.work[1].piece[0];
	p[1]->worker = 0;
	send_piece(NULL, p[1]);
	odm_recovery_answered(&w.recovery, 0, true);
	assert_int_equal(w.link[0].watch.most_rows, 2); /* it owes both */
	worker[0].gone = true;
	odm_recovery_move(&w.recovery);
	for (size_t i = 0; i < ODM_HALVES; i++) {
		assert_int_equal(p[i]->worker, 1);
		assert_int_equal(p[i]->state, ODM_PIECE_TODO);
	}
	send_piece(NULL, p[1]);
	p[0]->state = ODM_PIECE_DONE;
	w.work[0].n_done++;
	odm_recovery_answered(&w.recovery, 1, true);
	assert_int_equal(w.link[1].watch.most_rows, 2); /* the second half's piece */
	p[1]->state = ODM_PIECE_DONE;
	odm_recovery_answered(&w.recovery, 1, true);
	assert_int_equal(w.link[1].watch.most_rows, 0);
	odm_pieces_fini(w.work);
	odm_pieces_fini(&w.work[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(many_dead_ports_cost_one_detection),
		cmocka_unit_test(a_run_that_a_connection_swallowed_is_sent_again_soon),
		cmocka_unit_test(one_that_is_idle_and_never_answers_is_given_up),
		cmocka_unit_test(one_that_loses_runs_again_and_again_is_given_up),
		cmocka_unit_test(one_that_computes_many_rows_is_not_given_up),
		cmocka_unit_test(many_rows_of_a_layer_that_is_done_excuse_nobody),
		cmocka_unit_test(rows_on_their_way_get_their_time),
		cmocka_unit_test(a_pause_of_mains_own_costs_nobody_anything),
		cmocka_unit_test(one_that_is_busy_for_ever_is_given_up),
		cmocka_unit_test(one_that_answers_busy_for_ever_ends_the_step),
		cmocka_unit_test(one_that_pulls_for_ever_ends_the_step),
		cmocka_unit_test(when_all_are_dead_there_is_an_error),
		cmocka_unit_test(pieces_of_both_halves_move),
		cmocka_unit_test(one_that_dies_lets_nobody_be_passed_over),
		cmocka_unit_test(one_that_joins_is_asked_for_every_expert),
		cmocka_unit_test(what_is_damaged_is_told),
		cmocka_unit_test(what_a_late_worker_owes_is_asked_of_another_too),
		cmocka_unit_test(what_only_a_late_worker_has_stays_with_it),
		cmocka_unit_test(rows_that_a_late_worker_answers_first_are_not_in_flight),
		cmocka_unit_test(nobody_is_overtaken_when_nobody_is_quicker),
		cmocka_unit_test(one_that_is_passed_over_is_better_than_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

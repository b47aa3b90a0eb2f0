/* A simulated worker: the worker's own schedule and cache, a path to its storage, and one operation at a time. */
#include "deploy/plan/sim_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOAD_SLICES 16 /* slices of an expert: a more urgent load waits for one of them */
#define PIECE_NS 5e8 /* one operation takes no longer, as in worker_engine.c */
#define RESULT_HEAD_BYTES 100 /* a message's beside its rows, with what TCP adds */
#define RESULT_EXPERT_BYTES 40

/* ---- Life ---- */

static int open_cache(struct odp_sim *s, uint32_t i, struct od_err *err)
{
	struct sim_worker *w = &s->worker[i];
	uint64_t *bytes = calloc(s->model.n_moe, sizeof(*bytes));
	int rc;

	w->kept = calloc(s->model.n_moe, s->model.n_experts);
	if (bytes == NULL || w->kept == NULL) {
		free(bytes);
		return od_fail(err, OD_ERR_NOMEM, "simulation of %u workers", s->cluster.n_workers);
	}
	for (uint32_t m = 0; m < s->model.n_moe; m++)
		bytes[m] = s->model.slot_bytes;
	rc = od_expert_cache_new(&w->cache, s->model.n_moe, s->model.n_experts, bytes, s->machine[i].cache_bytes, err);
	free(bytes);
	return rc;
}

static int open_worker(struct odp_sim *s, uint32_t i, struct od_err *err)
{
	const struct odp_machine *machine = &s->machine[i];
	const struct od_share share = { s->cluster.n_workers, i, s->groups.n_groups };
	const uint64_t all = (uint64_t)s->model.n_moe * s->model.n_experts,
		       fit = machine->cache_bytes / s->model.slot_bytes;
	struct sim_worker *w = &s->worker[i];
	int rc = machine->cache_bytes > 0 ? open_cache(s, i, err) : OD_OK;
	const struct od_schedule_opts o = {
		.n_moe = s->model.n_moe,
		.n_experts = s->model.n_experts,
		.n_slices = LOAD_SLICES,
		.n_stages = 1,
		.n_slots = machine->slots,
		.cache = w->cache,
		.max_pinned = w->cache != NULL ? (uint32_t)(fit < all ? fit : all) : 0,
		.now_ns = odp_clock_ns,
	};

	w->group = calloc(s->model.n_experts, sizeof(*w->group));
	if (rc == OD_OK && w->group == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "simulation of %u workers", s->cluster.n_workers);
	if (rc == OD_OK)
		rc = od_schedule_new(&w->schedule, &o, err);
	if (rc != OD_OK)
		return rc;
	od_schedule_begin(w->schedule, SESSION);
	if (w->cache != NULL)
		od_schedule_place(w->schedule, &share);
	return OD_OK;
}

int odp_workers_new(struct odp_sim *s, struct od_err *err)
{
	int rc = OD_OK;

	s->worker = calloc(s->cluster.n_workers, sizeof(*s->worker));
	if (s->worker == NULL)
		return od_fail(err, OD_ERR_NOMEM, "simulation of %u workers", s->cluster.n_workers);
	for (uint32_t w = 0; rc == OD_OK && w < s->cluster.n_workers; w++)
		rc = open_worker(s, w, err);
	return rc;
}

void odp_workers_free(struct odp_sim *s)
{
	for (uint32_t w = 0; s->worker != NULL && w < s->cluster.n_workers; w++) {
		od_schedule_free(s->worker[w].schedule);
		od_expert_cache_free(s->worker[w].cache);
		free(s->worker[w].group);
		free(s->worker[w].kept);
	}
	free(s->worker);
}

/* ---- Before the first run ---- */

bool odp_worker_full(const struct odp_sim *s, uint32_t i)
{
	const struct sim_worker *w = &s->worker[i];

	return w->cache == NULL ||
	       od_expert_cache_kept_bytes(w->cache) + s->model.slot_bytes > s->machine[i].cache_bytes;
}

static void load_at_once(const struct sim_worker *w)
{
	struct od_load_job job;

	while (od_schedule_next_read(w->schedule, &job, false)) {
		(void)!od_schedule_end_job(w->schedule, &job, 1, OD_OK, NULL);
		if (od_schedule_next_finish(w->schedule, &job, false))
			(void)!od_schedule_end_job(w->schedule, &job, 0, OD_OK, NULL);
	}
}

void odp_worker_fill(struct odp_sim *s, uint32_t i, uint64_t step, uint32_t m, uint32_t expert)
{
	const struct sim_worker *w = &s->worker[i];
	struct od_schedule_item item = { .expert = expert, .n_rows = 1, .last = true }, *done;

	if (od_schedule_run(w->schedule, SESSION, step, m, true, &item, 1) != OD_OK) {
		s->rc = OD_ERR_INTERNAL;
		return;
	}
	load_at_once(w);
	done = od_schedule_take(w->schedule);
	if (done == &item && item.code == OD_OK)
		od_schedule_done(w->schedule, &item);
	else
		s->rc = OD_ERR_INTERNAL; /* nothing fails here: it would be an error of ours */
}

/* ---- Loads ---- */

static uint64_t slice_ns(const struct odp_sim *s, uint32_t w, uint32_t slice)
{
	const uint64_t ns = (uint64_t)llround(odp_load_ns(&s->machine[w], (double)s->model.load_bytes));

	return ns * (slice + 1) / LOAD_SLICES - ns * slice / LOAD_SLICES;
}

static void end_read(struct odp_sim *s, uint32_t i)
{
	struct sim_worker *w = &s->worker[i];
	const uint64_t now = odp_clock_ns(), bytes = s->model.load_bytes / LOAD_SLICES;
	struct od_load_job job;

	w->reading = false;
	w->read_stamp++;
	if (now > w->read_begin_ns) { /* else it was cancelled while main read */
		s->node[FIRST_WORKER + i].busy.read_ns += now - w->read_begin_ns;
		odp_trace(s, FIRST_WORKER + i, READS, "read", w->read_begin_ns, -1, w->read.m, w->read.expert);
	}
	(void)!od_schedule_end_job(w->schedule, &w->read, bytes > 0 ? bytes : 1, OD_OK, NULL);
	if (od_schedule_next_finish(w->schedule, &job, false))
		(void)!od_schedule_end_job(w->schedule, &job, 0, OD_OK, NULL);
}

/* Slices whose time is over are there; the most urgent one is next. A cancelled load leaves the path at once. */
static void load(struct odp_sim *s, uint32_t i)
{
	struct sim_worker *w = &s->worker[i];

	for (;;) {
		if (w->reading && (w->read_ns <= odp_clock_ns() ||
				   od_schedule_look(w->schedule, (unsigned)w->read.slot).state == OD_SLOT_DRAINING))
			end_read(s, i);
		if (w->reading || !od_schedule_next_read(w->schedule, &w->read, false))
			return;
		w->reading = true;
		w->read_begin_ns = odp_clock_ns();
		if (s->cluster.one_disk && s->disk_ns > (double)w->read_begin_ns)
			w->read_begin_ns = (uint64_t)llround(s->disk_ns);
		w->read_ns = w->read_begin_ns + slice_ns(s, i, w->read.slice);
		s->disk_ns = (double)w->read_ns;
		odp_at(s, w->read_ns, EV_READ, i, w->read_stamp, NULL);
	}
}

/* ---- Computing ---- */

/* Rows of one operation: as many as take so long. */
static uint64_t piece_rows(const struct odp_sim *s, uint32_t w)
{
	const double each = odp_product_ns(&s->machine[w], s->model.expert_weights, 1e6) / 1e6;

	return each > 0 ? (uint64_t)(PIECE_NS / each) + 1 : UINT64_MAX;
}

static double group_ns(const struct odp_sim *s, uint32_t i)
{
	const struct sim_worker *w = &s->worker[i];
	double ns = s->machine[i].run_ns;

	for (size_t j = 0; j < w->n_group; j++)
		ns += odp_product_ns(&s->machine[i], s->model.expert_weights, w->group[j]->n_rows);
	return ns;
}

/* An expert of a prompt tells nothing of decode. */
static void count_waits(struct odp_sim *s, const struct sim_worker *w)
{
	const struct sim_run *run = w->group[0]->run;
	const uint64_t waited = odp_clock_ns() - run->arrived_ns;

	for (size_t j = 0; j < w->n_group; j++) {
		const struct od_schedule_item *item = w->group[j];

		s->f->used_loads += item->loaded_bytes > 0;
		s->f->load_bytes += item->loaded_bytes > 0 ? s->model.load_bytes : 0;
		if (item->prompt)
			continue;
		if (w->cache != NULL) {
			s->f->cache_uses++;
			s->f->cache_hits += item->kept;
		}
		if (item->ready)
			continue;
		s->f->stalls++;
		if (run->step == odp_call(s)->step && waited > s->engine.layer_stall_ns)
			s->engine.layer_stall_ns = waited;
	}
}

static bool take_group(struct odp_sim *s, uint32_t i)
{
	struct sim_worker *w = &s->worker[i];
	const struct sim_run *run;

	w->group[0] = od_schedule_take(w->schedule);
	if (w->group[0] == NULL)
		return false;
	run = w->group[0]->run;
	w->n_group = 1;
	if (run->n_open > 1)
		w->n_group = od_schedule_take_more(w->schedule, w->group, s->model.n_experts, piece_rows(s, i));
	if (w->group[0]->code == OD_OK)
		return true;
	s->rc = w->group[0]->code; /* nothing fails here: it would be an error of ours */
	w->n_group = 0;
	return false;
}

/* Whatever can be done at this moment: loads, the next operation. */
void odp_worker_work(struct odp_sim *s, uint32_t i)
{
	struct sim_worker *w = &s->worker[i];

	load(s, i);
	if (w->n_group > 0 || !take_group(s, i))
		return;
	w->compute_begin_ns = odp_clock_ns();
	count_waits(s, w);
	odp_at(s, w->compute_begin_ns + (uint64_t)llround(group_ns(s, i)), EV_COMPUTE, i, 0, NULL);
}

static void send_result(struct odp_sim *s, uint32_t i)
{
	struct sim_worker *w = &s->worker[i];
	const size_t n = w->n_group;
	struct sim_message *m;
	double rows = 0;

	for (size_t j = 0; j < n; j++)
		rows += w->group[j]->n_rows;
	m = odp_message(s, MSG_RESULT, FIRST_WORKER + i, MAIN,
			rows * s->model.row_bytes + RESULT_HEAD_BYTES + RESULT_EXPERT_BYTES * (double)n,
			n * sizeof(struct od_schedule_item *));
	if (m == NULL)
		return;
	memcpy(m->list, w->group, n * sizeof(struct od_schedule_item *));
	m->n = n;
	m->run = w->group[0]->run;
	m->m = w->group[0]->m;
	w->n_group = 0;
	s->f->result_bytes += (uint64_t)llround(rows * s->model.row_bytes);
	odp_send(s, m);
}

static void end_group(struct odp_sim *s, uint32_t i)
{
	struct sim_worker *w = &s->worker[i];

	s->node[FIRST_WORKER + i].busy.compute_ns += odp_clock_ns() - w->compute_begin_ns;
	for (size_t j = 0; j < w->n_group; j++) {
		odp_trace(s, FIRST_WORKER + i, COMPUTES, "compute", w->compute_begin_ns, (int64_t)w->group[j]->step,
			  w->group[j]->m, w->group[j]->expert);
		od_schedule_done(w->schedule, w->group[j]);
	}
	send_result(s, i);
}

/* ---- Messages and events ---- */

void odp_worker_event(struct odp_sim *s, const struct sim_event *e)
{
	if (e->kind == EV_READ && e->stamp != s->worker[e->who].read_stamp)
		return;
	if (e->kind == EV_COMPUTE)
		end_group(s, e->who);
	odp_worker_work(s, e->who);
}

void odp_worker_receive(struct odp_sim *s, uint32_t i, struct sim_message *m)
{
	struct sim_worker *w = &s->worker[i];

	if (m->kind == MSG_WANT) {
		(void)!od_schedule_want(w->schedule, SESSION, m->step, m->m, m->version, m->list, m->n, m->prompt);
	} else if (m->kind == MSG_CLOSE) {
		od_schedule_close(w->schedule, SESSION, m->step, m->m);
	} else {
		struct sim_run *run = m->run;

		run->arrived_ns = odp_clock_ns();
		/* The queue holds more than a layer. */
		if (od_schedule_run(w->schedule, SESSION, m->step, m->m, m->closes, run->item, run->n) != OD_OK)
			s->rc = OD_ERR_INTERNAL;
	}
	odp_worker_work(s, i);
}

uint64_t odp_wasted_loads(const struct odp_sim *s)
{
	uint64_t n = 0;

	for (uint32_t w = 0; w < s->cluster.n_workers; w++) {
		struct od_load_figures f;

		od_schedule_figures(s->worker[w].schedule, &f);
		n += f.c[OD_C_CANCELLED_LOADS] + f.c[OD_C_UNUSED_LOADS];
	}
	return n;
}

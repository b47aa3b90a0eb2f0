/* Deals work: groups, WANTs and pieces of layers, by main's own code. Only this file knows how main deals. */
#include "deploy/plan/sim_internal.h"

#include "common/net/liveness.h"
#include "common/net/wire.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_BYTES 100 /* a message without rows, with what TCP adds */
#define EXPERT_BYTES 2

/* ---- Life ---- */

/* Main knows what a PONG told. */
static void refresh_kept(struct odp_sim *s, uint32_t worker)
{
	struct sim_worker *w = &s->worker[worker];

	if (w->told_ns != 0 && odp_clock_ns() < w->told_ns + OD_PING_EVERY_NS)
		return;
	w->told_ns = odp_clock_ns();
	(void)!od_schedule_cached(w->schedule, &w->seen, w->kept);
}

static void cost_of(void *arg, uint32_t worker, uint32_t m, const uint16_t *expert, size_t n, uint8_t *cost)
{
	struct odp_sim *s = arg;
	const struct sim_worker *w = &s->worker[worker];

	if (w->kept == NULL) {
		memset(cost, ODM_COST_LOAD, n);
		return;
	}
	refresh_kept(s, worker);
	for (size_t i = 0; i < n; i++)
		cost[i] = w->kept[(size_t)m * s->model.n_experts + expert[i]] != 0 ? 0 : ODM_COST_LOAD;
}

static void make_groups(struct odp_sim *s)
{
	const uint32_t n = s->cluster.n_workers;

	s->groups = odm_groups_make(s->n_few, s->cluster.group_size, s->model.top_k, s->model.n_moe);
	s->groups.n_many = s->n_many;
	s->groups.n_experts = s->model.n_experts;
	s->groups.times = s->times;
	for (uint32_t w = 0; w < n; w++) {
		s->slots[w] = s->machine[w].slots;
		s->groups.homes = s->groups.homes || s->machine[w].cache_bytes > 0;
	}
	if (s->groups.homes) {
		s->groups.n_groups = 1;
		s->groups.cost = cost_of;
	}
	s->groups.cost_arg = s;
}

/* Main measures its port by some layers; here its rate is exact. */
static void know_port(struct odp_sim *s)
{
	for (int i = 0; i < ODM_PORT_SAMPLES; i++)
		s->prompt.port.byte[i] = odp_port_ns(&s->cluster.main, 1);
	s->prompt.port.n = ODM_PORT_SAMPLES;
}

int odp_deal_new(struct odp_sim *s, struct od_err *err)
{
	const struct od_config shape = { .n_moe = s->model.n_moe,
					 .n_experts = s->model.n_experts,
					 .top_k = s->model.top_k };
	const uint32_t n = s->cluster.n_workers;
	int rc = odm_want_target_init(&s->target, s->model.n_experts, n, err);

	for (size_t i = 0; rc == OD_OK && i < ODM_HALVES; i++)
		rc = odm_pieces_init(&s->pieces[i], &shape, s->max_rows, n, err);
	if (rc == OD_OK)
		rc = odm_prompt_rows_init(&s->prompt, &shape, s->model.row_bytes, n, err);
	if (rc != OD_OK)
		return rc;
	s->needed = calloc(s->model.n_experts, sizeof(*s->needed));
	s->dealt = calloc(s->model.n_experts, sizeof(*s->dealt));
	s->slots = calloc(n, sizeof(*s->slots));
	s->piece = calloc(s->model.n_experts, sizeof(struct odm_piece *));
	s->used_worker = calloc(n, sizeof(*s->used_worker));
	s->touched = calloc(n, sizeof(*s->touched));
	if (s->slots == NULL || s->piece == NULL || s->used_worker == NULL || s->touched == NULL || s->needed == NULL ||
	    s->dealt == NULL)
		return od_fail(err, OD_ERR_NOMEM, "simulation of %u workers", n);
	make_groups(s);
	know_port(s);
	return OD_OK;
}

void odp_deal_free(struct odp_sim *s)
{
	odm_want_target_fini(&s->target);
	for (size_t i = 0; i < ODM_HALVES; i++)
		odm_pieces_fini(&s->pieces[i]);
	odm_prompt_rows_fini(&s->prompt);
	free(s->needed);
	free(s->dealt);
	free(s->slots);
	free(s->piece);
	free(s->used_worker);
	free(s->touched);
}

/* ---- WANTs ---- */

static void send_want(struct odp_sim *s, uint32_t worker)
{
	const struct odm_want_lists *l = &s->target.list;
	const struct odm_want *want = &s->target.want;
	const size_t n = l->begin[worker + 1] - l->begin[worker];
	const double bytes = SMALL_BYTES + EXPERT_BYTES * (double)n;
	struct sim_message *m =
		odp_message(s, MSG_WANT, MAIN, FIRST_WORKER + worker, bytes, (n + 1) * sizeof(uint32_t));
	uint32_t *expert;

	if (m == NULL)
		return;
	expert = m->list;
	for (size_t i = 0; i < n; i++)
		expert[i] = l->expert[l->begin[worker] + i];
	m->n = n;
	m->step = want->step;
	m->m = want->m;
	m->version = want->version;
	m->prompt = want->prompt;
	s->f->small_bytes += (uint64_t)bytes;
	odp_send(s, m);
}

void odp_send_wants(struct odp_sim *s)
{
	struct odm_want *want = &s->target.want;

	while (odm_predictions_take_want(s->predictions, want)) {
		odm_want_target_choose(&s->target, &s->groups, s->slots, odp_clock_ns());
		for (uint32_t w = 0; w < s->groups.n_workers; w++)
			if (odm_want_changed(&s->target, w))
				send_want(s, w);
		(void)odm_predictions_placed(s->predictions, want);
	}
}

static void send_close(struct odp_sim *s, uint32_t worker, uint64_t step, uint32_t layer)
{
	struct sim_message *m = odp_message(s, MSG_CLOSE, MAIN, FIRST_WORKER + worker, SMALL_BYTES, 0);

	if (m == NULL)
		return;
	m->step = step;
	m->m = layer;
	s->f->small_bytes += SMALL_BYTES;
	odp_send(s, m);
}

void odp_close_step(struct odp_sim *s, uint64_t step)
{
	for (uint32_t w = 0; w < s->cluster.n_workers; w++)
		send_close(s, w, step, s->model.n_moe - 1);
}

void odp_close_unused(struct odp_sim *s, uint64_t step, uint32_t m)
{
	for (uint32_t e = 0; e < s->model.n_experts; e++) {
		const uint32_t w = odm_predictions_where(s->predictions, step, m, (uint16_t)e);

		if (w == ODM_NOBODY || s->used_worker[w])
			continue;
		s->used_worker[w] = true; /* one CLOSE is enough */
		s->touched[s->n_touched++] = w;
		send_close(s, w, step, m);
	}
}

void odp_predicted(struct odp_sim *s, const struct sim_message *m)
{
	const struct sim_predicted *row = m->list;
	bool wants = false;

	for (size_t i = 0; i < m->n; i++) {
		const struct od_prediction pred = {
			.sequence = s->text[row[i].text].sequence,
			.position = row[i].position,
			.token = row[i].token,
			.margin = row[i].margin,
			.m = m->m,
			.n = row[i].view.n,
			.expert = row[i].view.expert,
			.probability = row[i].view.probability,
		};

		if (row[i].view.n > 0 && odm_predictions_add(s->predictions, &pred))
			wants = true;
	}
	if (wants)
		odp_send_wants(s);
}

/* ---- Pieces ---- */

static uint32_t wanted_at(void *arg, uint16_t expert)
{
	const struct odp_sim *s = arg;

	return odm_predictions_where(s->predictions, odp_call(s)->step, odp_call(s)->m, expert);
}

/* Rows of a RUN: as many as any worker's window has room for, answers included. */
static uint32_t run_rows(const struct odp_sim *s)
{
	const double each = s->model.row_bytes * (1 + s->model.top_k);
	uint32_t most = od_max_run_rows(s->model.row_bytes >= 1 ? (size_t)s->model.row_bytes : 1);

	for (uint32_t w = 0; w < s->cluster.n_workers; w++) {
		const double rows = each > 0 ? (double)s->worker[w].window_bytes / each : most;

		if (s->worker[w].window_bytes < OD_MAX_HELD_BYTES && rows < most)
			most = rows < 1 ? 1 : (uint32_t)rows;
	}
	return most;
}

/* Rows of a RUN of a prompt's layer, which has been dealt. */
static uint32_t batch_rows(struct odp_sim *s, const struct odm_pieces *p)
{
	struct odm_prompt_layer layer = { .work = p,
					  .n_with =
						  odm_prompt_rows_count(&s->prompt, p, s->times, s->cluster.n_workers),
					  .half = s->engine.now->n_halves > 1,
					  .most = run_rows(s) };

	for (uint32_t w = 0; w < s->cluster.n_workers && layer.n_with > 0; w++) {
		const double n = s->prompt.n_dealt[w];

		if (n == 0)
			continue;
		layer.run_ns = fmax(layer.run_ns, s->machine[w].latency_ns + n * s->times[w].expert.run);
		layer.row_ns = fmax(layer.row_ns, s->times[w].expert.row);
	}
	layer.n_with = layer.n_with > 0 ? layer.n_with : s->n_many;
	return odm_prompt_rows_batch(&s->prompt, &layer, odp_clock_ns());
}

/* The pieces of the layer under way, and the workers that have some, in their order. */
void odp_cut_layer(struct odp_sim *s)
{
	struct odm_pieces *p = &s->pieces[s->engine.now->at];
	const struct od_moe_call *call = odp_call(s);

	for (uint32_t i = 0; i < s->n_touched; i++)
		s->used_worker[s->touched[i]] = false;
	s->n_touched = 0;
	s->groups.second = call->first > 0;
	odm_pieces_deal(p, call, &s->groups, wanted_at, s);
	odm_pieces_cut(p, call, s->engine.now->phase == ODM_DECODE ? run_rows(s) : batch_rows(s, p));
	if (call->first > 0)
		p->first_rank = s->pieces[0].n;
	else if (s->engine.now->n_halves > 1)
		odm_pieces_keep(p);
	for (size_t i = 0; i < p->n; i++)
		s->used_worker[p->piece[i].worker] = true;
	for (uint32_t w = 0; w < s->cluster.n_workers; w++)
		if (s->used_worker[w])
			s->touched[s->n_touched++] = w;
}

/* Deals work: groups, WANTs and pieces of layers, by main's own code. Only this file knows how main deals. */
#include "deploy/plan/sim_internal.h"

#include "common/net/liveness.h"
#include "common/net/wire.h"

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

int odp_deal_new(struct odp_sim *s, struct od_err *err)
{
	const struct od_config shape = { .n_moe = s->model.n_moe,
					 .n_experts = s->model.n_experts,
					 .top_k = s->model.top_k };
	const uint32_t n = s->cluster.n_workers;
	int rc = odm_want_target_init(&s->target, s->model.n_experts, n, err);

	if (rc == OD_OK)
		rc = odm_pieces_init(&s->pieces, &shape, s->max_rows, n, err);
	if (rc != OD_OK)
		return rc;
	s->slots = calloc(n, sizeof(*s->slots));
	s->piece = calloc(s->model.n_experts, sizeof(struct odm_piece *));
	s->used_worker = calloc(n, sizeof(*s->used_worker));
	s->touched = calloc(n, sizeof(*s->touched));
	if (s->slots == NULL || s->piece == NULL || s->used_worker == NULL || s->touched == NULL)
		return od_fail(err, OD_ERR_NOMEM, "simulation of %u workers", n);
	make_groups(s);
	return OD_OK;
}

void odp_deal_free(struct odp_sim *s)
{
	odm_want_target_fini(&s->target);
	odm_pieces_fini(&s->pieces);
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

	return odm_predictions_where(s->predictions, s->engine.call.step, s->engine.call.m, expert);
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

/* The pieces of the layer under way, and the workers that have some, in their order. */
void odp_cut_layer(struct odp_sim *s)
{
	struct odm_pieces *p = &s->pieces;

	for (uint32_t i = 0; i < s->n_touched; i++)
		s->used_worker[s->touched[i]] = false;
	s->n_touched = 0;
	odm_pieces_deal(p, &s->engine.call, &s->groups, wanted_at, s);
	odm_pieces_cut(p, &s->engine.call, run_rows(s));
	for (size_t i = 0; i < p->n; i++)
		s->used_worker[p->piece[i].worker] = true;
	for (uint32_t w = 0; w < s->cluster.n_workers; w++)
		if (s->used_worker[w])
			s->touched[s->n_touched++] = w;
}

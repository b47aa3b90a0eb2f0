/* A layer of main: RUNs out, RESULTs in, and what follows from the router's choice; as cluster_service.c does it. */
#include "deploy/plan/sim_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RUN_HEAD_BYTES 100 /* a message's beside its rows, with what TCP adds */
#define RUN_EXPERT_BYTES 8
#define RUN_PAIR_BYTES 2

static bool in_decode(const struct odp_sim *s)
{
	return s->engine.now->phase == ODM_DECODE;
}

/* ---- The router's choice ---- */

static void find_routes(struct odp_sim *s)
{
	const struct odp_routes *r = s->work->routes;
	const struct sim_pass *p = s->engine.now;
	const bool wanted = in_decode(s) && s->o.hedge > 0;
	bool known = wanted;

	for (size_t i = 0; i < p->n_rows; i++) {
		const struct sim_row *row = &p->row[i];
		const float *probability = NULL;

		r->used(r->arg, row->text, row->position, row->token, p->m, s->used + i * s->model.top_k,
			wanted ? &probability : NULL);
		known = known && probability != NULL;
		if (known)
			memcpy(s->probability + i * s->model.n_experts, probability,
			       s->model.n_experts * sizeof(*probability));
	}
	s->engine.call = (struct od_moe_call){ .step = p->step,
					       .m = p->m,
					       .n_rows = p->n_rows,
					       .expert = s->used,
					       .probability = known ? s->probability : NULL };
}

static void count_ordered(struct odp_sim *s)
{
	const struct od_moe_call *call = &s->engine.call;

	for (size_t i = 0; i < call->n_rows * s->model.top_k; i++)
		s->row_ordered[i / s->model.top_k] +=
			odm_predictions_ordered(s->predictions, call->step, call->m, call->expert[i]) != ODM_NOBODY;
}

/* A prompt needs nearly every expert, so it says so before the rows come; the layer after it too where that pays. */
static void announce(struct odp_sim *s)
{
	const struct od_moe_call *call = &s->engine.call;

	odm_predictions_require(s->predictions, call->step, call->m, s->pieces.chosen, s->pieces.worker_of,
				s->pieces.n_chosen);
	if (call->n_rows * s->model.top_k >= 4u * (size_t)s->model.n_experts && call->m + 1 < s->model.n_moe)
		odm_predictions_require_all(s->predictions, call->step, call->m + 1,
					    (uint32_t)(call->n_rows * s->model.top_k / s->model.n_experts));
	odp_send_wants(s);
}

/* ---- RUNs ---- */

/* Different rows of a RUN's pieces: each travels once. */
static uint32_t distinct_rows(struct odp_sim *s, struct odm_piece *const *piece, size_t n)
{
	uint32_t rows = 0;

	s->round++;
	for (size_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < piece[i]->count; j++) {
			uint64_t *stamp = &s->stamp[s->pieces.order[piece[i]->first + j] / s->model.top_k];

			rows += *stamp != s->round;
			*stamp = s->round;
		}
	return rows;
}

static struct sim_run *new_run(struct odp_sim *s, uint32_t worker, struct odm_piece *const *piece, size_t n)
{
	struct sim_run *run = calloc(1, sizeof(*run));

	if (run != NULL) {
		run->piece = calloc(n, sizeof(struct odm_piece *));
		run->item = calloc(n, sizeof(*run->item));
	}
	if (run == NULL || run->piece == NULL || run->item == NULL) {
		if (run != NULL) {
			free(run->piece);
			free(run->item);
		}
		free(run);
		s->rc = OD_ERR_NOMEM;
		return NULL;
	}
	run->worker = worker;
	run->step = s->engine.call.step;
	run->n = run->n_open = n;
	for (size_t i = 0; i < n; i++) {
		run->piece[i] = piece[i];
		run->item[i] = (struct od_schedule_item){ .expert = piece[i]->expert,
							  .rank = (uint32_t)(piece[i] - s->pieces.piece),
							  .n_rows = piece[i]->count,
							  .last = piece[i]->last,
							  .prompt = !in_decode(s),
							  .run = run };
	}
	return run;
}

/* False: the worker holds too many rows, so the RUN waits. */
static bool send_run(struct odp_sim *s, uint32_t worker, struct odm_piece **piece, size_t n, bool closes)
{
	struct sim_worker *w = &s->worker[worker];
	const double bytes = distinct_rows(s, piece, n) * s->model.row_bytes;
	struct sim_message *m;
	uint32_t pairs = 0;

	if (w->held_bytes > 0 && (double)w->held_bytes + bytes > (double)w->window_bytes)
		return false;
	for (size_t i = 0; i < n; i++) {
		pairs += piece[i]->count;
		piece[i]->state = ODM_PIECE_SENT;
	}
	m = odp_message(s, MSG_RUN, MAIN, FIRST_WORKER + worker,
			bytes + RUN_HEAD_BYTES + RUN_EXPERT_BYTES * (double)n + RUN_PAIR_BYTES * (double)pairs, 0);
	if (m == NULL)
		return false;
	m->run = new_run(s, worker, piece, n);
	if (m->run == NULL) {
		odp_message_free(m);
		return false;
	}
	m->run->bytes = bytes;
	m->step = s->engine.call.step;
	m->m = s->engine.call.m;
	m->closes = closes;
	w->held_bytes += (uint64_t)llround(bytes);
	s->f->run_bytes += (uint64_t)llround(bytes);
	odp_send(s, m);
	return true;
}

static void pump(struct odp_sim *s, uint32_t worker)
{
	bool more = true;

	while (more) {
		const size_t n = odm_pieces_next(&s->pieces, worker, s->model.n_experts, s->piece, &more);

		if (n == 0 || !send_run(s, worker, s->piece, n, !more))
			return;
	}
}

/* ---- STATE ---- */

/* Sends the shadow the due rows of all texts in the step. */
static void send_state(struct odp_sim *s, uint32_t layer)
{
	const struct sim_pass *p = s->engine.now;
	struct sim_message *m;
	struct sim_step_row *row;
	double bytes = 0;
	size_t n = 0;

	m = odp_message(s, MSG_STATE, MAIN, SHADOW, 0, p->n_parts * sizeof(*row));
	if (m == NULL)
		return;
	row = m->list;
	for (size_t i = 0; i < p->n_parts; i++) {
		const struct sim_text *q = &s->text[p->part[i].text];
		const uint32_t end = q->length + p->part[i].n;

		if (!odp_shadow_aligned(s, q->steps + 1))
			continue;
		row[n++] = (struct sim_step_row){ .text = p->part[i].text, .position = end };
		bytes += (end - q->aligned) * s->block[layer].state_bytes;
	}
	if (n == 0) {
		odp_message_free(m);
		return;
	}
	m->n = n;
	m->layer = layer;
	m->bytes = bytes + RUN_HEAD_BYTES;
	s->f->state_bytes += (uint64_t)llround(bytes);
	odp_send(s, m);
}

void odp_layer_state(struct odp_sim *s, uint32_t layer)
{
	if (!in_decode(s) || !s->cluster.has_shadow)
		return;
	for (; s->engine.state_layer <= layer; s->engine.state_layer++)
		send_state(s, s->engine.state_layer);
}

/* ---- A layer ---- */

/* Behind the RUNs of a decode step, which are urgent. */
static void after_runs(struct odp_sim *s)
{
	const struct od_moe_call *call = &s->engine.call;

	odp_layer_state(s, s->engine.now->layer);
	odp_close_unused(s, call->step, call->m);
	odm_predictions_learn(s->predictions, call->step, call->m, call->probability, s->c);
}

void odp_layer_routed(struct odp_sim *s)
{
	const bool decode = in_decode(s);

	find_routes(s);
	s->engine.routed_ns = odp_clock_ns();
	if (decode) {
		odm_backlog_reached(&s->target.backlog, s->engine.call.step, s->engine.call.m, s->model.n_moe,
				    s->engine.layer_stall_ns, s->engine.routed_ns);
		odm_predictions_resolve(s->predictions, s->engine.call.step, s->engine.call.m, s->used);
		count_ordered(s);
	}
	s->engine.layer_stall_ns = 0;
	odp_cut_layer(s);
	if (!decode)
		announce(s);
	for (uint32_t i = 0, n = s->n_touched; i < n; i++)
		pump(s, s->touched[i]);
	if (decode)
		after_runs(s);
}

bool odp_layer_done(const struct odp_sim *s)
{
	return s->pieces.n_done == s->pieces.n;
}

/* An expert that was ready, and whose WANT was sent to this worker when the router spoke. */
static void count_served(struct odp_sim *s, const struct sim_run *run, const struct odm_piece *p,
			 const struct od_schedule_item *item)
{
	const struct od_moe_call *call = &s->engine.call;

	if (!in_decode(s) || !item->ready ||
	    odm_predictions_ordered(s->predictions, call->step, call->m, p->expert) != run->worker)
		return;
	for (uint32_t i = 0; i < p->count; i++)
		s->row_served[s->pieces.order[p->first + i] / s->model.top_k]++;
}

void odp_layer_result(struct odp_sim *s, struct sim_message *m)
{
	struct sim_run *run = m->run;
	struct od_schedule_item **item = m->list;

	for (size_t i = 0; i < m->n; i++) {
		struct odm_piece *p = run->piece[item[i] - run->item];

		p->state = ODM_PIECE_DONE;
		s->pieces.n_done++;
		count_served(s, run, p, item[i]);
	}
	run->n_open -= m->n;
	if (run->n_open == 0) {
		const uint32_t worker = run->worker;

		s->worker[worker].held_bytes -= (uint64_t)llround(run->bytes);
		free(run->piece);
		free(run->item);
		free(run);
		pump(s, worker);
	}
	if (odp_layer_done(s))
		odp_engine_wake(s);
}

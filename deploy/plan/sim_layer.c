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
	const struct sim_half *h = odp_half(s);
	const bool wanted = in_decode(s) && s->o.hedge > 0;
	bool known = wanted;

	for (size_t i = h->first; i < h->first + h->n_rows; i++) {
		const struct sim_row *row = &p->row[i];
		const float *probability = NULL;

		r->used(r->arg, row->text, row->position, row->token, h->m, s->used + i * s->model.top_k,
			wanted ? &probability : NULL);
		known = known && probability != NULL;
		if (known)
			memcpy(s->probability + i * s->model.n_experts, probability,
			       s->model.n_experts * sizeof(*probability));
	}
	s->engine.call[p->at] = (struct od_moe_call){ .step = p->step,
						      .m = h->m,
						      .first = h->first,
						      .n_rows = h->n_rows,
						      .expert = s->used + h->first * s->model.top_k,
						      .probability = known ? s->probability : NULL };
}

static void count_ordered(struct odp_sim *s)
{
	const struct od_moe_call *call = odp_call(s);

	for (size_t i = 0; i < call->n_rows * s->model.top_k; i++)
		s->row_ordered[i / s->model.top_k] +=
			odm_predictions_ordered(s->predictions, call->step, call->m, call->expert[i]) != ODM_NOBODY;
}

/* The experts that a prompt's rows need in this layer, and their workers. A second half may need any. */
static size_t list_needed(struct odp_sim *s, const struct odm_pieces *p)
{
	const struct od_moe_call *call = odp_call(s);
	size_t n = p->n_chosen, next = 0;

	memcpy(s->needed, p->chosen, n * sizeof(*s->needed));
	memcpy(s->dealt, p->worker_of, n * sizeof(*s->dealt));
	for (uint32_t e = 0; s->engine.now->n_halves > 1 && e < s->model.n_experts; e++) {
		if (next < p->n_chosen && p->chosen[next] == e) {
			next++;
			continue;
		}
		s->needed[n] = (uint16_t)e;
		s->dealt[n++] = odm_predictions_where(s->predictions, call->step, call->m, (uint16_t)e);
	}
	return n;
}

/* A prompt needs nearly every expert, so it says so before the rows come; the layer after it too where that pays. */
static void announce(struct odp_sim *s)
{
	const struct od_moe_call *call = odp_call(s);
	const size_t pairs = s->engine.now->n_rows * s->model.top_k, n = list_needed(s, &s->pieces[0]);

	odm_predictions_require(s->predictions, call->step, call->m, s->needed, s->dealt, n);
	if (pairs >= 4u * (size_t)s->model.n_experts && call->m + 1 < s->model.n_moe)
		odm_predictions_require_all(s->predictions, call->step, call->m + 1,
					    (uint32_t)(pairs / s->model.n_experts));
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
			uint64_t *stamp = &s->stamp[piece[i]->work->order[piece[i]->first + j] / s->model.top_k];

			rows += *stamp != s->round;
			*stamp = s->round;
		}
	return rows;
}

static struct sim_run *new_run(struct odp_sim *s, uint32_t worker, struct odm_piece *const *piece, size_t n)
{
	const struct odm_pieces *work = piece[0]->work; /* and so all others' */
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
	run->half = (unsigned)(work - s->pieces);
	run->step = work->call->step;
	run->n = run->n_open = n;
	for (size_t i = 0; i < n; i++) {
		run->piece[i] = piece[i];
		run->item[i] = (struct od_schedule_item){ .expert = piece[i]->expert,
							  .rank = work->first_rank + (uint32_t)(piece[i] - work->piece),
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
	m->step = piece[0]->work->call->step;
	m->m = piece[0]->work->call->m;
	m->closes = closes;
	w->held_bytes += (uint64_t)llround(bytes);
	s->held_bytes += (uint64_t)llround(bytes);
	s->f->run_bytes += (uint64_t)llround(bytes);
	odp_send(s, m);
	return true;
}

/* A worker's next RUN. False: nothing is left, or it has to wait. */
static bool send_next(struct odp_sim *s, uint32_t worker)
{
	struct odm_pieces *p;

	for (unsigned i = 0; (p = odm_prompt_rows_turn(&s->prompt, s->pieces, i, s->held_bytes)) != NULL; i++) {
		bool more;
		const size_t n = odm_pieces_next(p, worker, s->model.n_experts, s->piece, &more);

		if (n > 0)
			return send_run(s, worker, s->piece, n,
					!more && (s->engine.now->n_halves == 1 || p->call->first > 0));
	}
	return false;
}

static void pump(struct odp_sim *s, uint32_t worker)
{
	while (send_next(s, worker))
		;
}

/* All workers in turns, so that none waits until another has all of its rows. */
static void pump_all(struct odp_sim *s)
{
	bool any = true;

	for (uint32_t w = 0; w < s->cluster.n_workers; w++)
		s->used_worker[w] = true;
	while (any) {
		any = false;
		for (uint32_t w = 0; w < s->cluster.n_workers; w++) {
			s->used_worker[w] = s->used_worker[w] && send_next(s, w);
			any = any || s->used_worker[w];
		}
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
	const struct od_moe_call *call = odp_call(s);

	odp_layer_state(s, odp_half(s)->layer);
	odp_close_unused(s, call->step, call->m);
	odm_predictions_learn(s->predictions, call->step, call->m, call->probability, s->c);
}

void odp_layer_routed(struct odp_sim *s)
{
	const bool decode = in_decode(s);
	const struct od_moe_call *call;

	find_routes(s);
	call = odp_call(s);
	s->engine.routed_ns = odp_clock_ns();
	if (decode) {
		odm_backlog_reached(&s->target.backlog, call->step, call->m, s->model.n_moe, s->engine.layer_stall_ns,
				    s->engine.routed_ns);
		odm_predictions_resolve(s->predictions, call->step, call->m, s->used);
		count_ordered(s);
	}
	s->engine.layer_stall_ns = 0;
	odp_cut_layer(s);
	if (decode) {
		for (uint32_t i = 0, n = s->n_touched; i < n; i++)
			pump(s, s->touched[i]);
		after_runs(s);
		return;
	}
	if (call->first == 0)
		announce(s);
	pump_all(s);
}

bool odp_layer_done(const struct odp_sim *s)
{
	return !odm_pieces_under_way(&s->pieces[s->engine.now->at]);
}

/* An expert that was ready, and whose WANT was sent to this worker when the router spoke. */
static void count_served(struct odp_sim *s, const struct sim_run *run, const struct odm_piece *p,
			 const struct od_schedule_item *item)
{
	const struct od_moe_call *call = p->work->call;

	if (!in_decode(s) || !item->ready ||
	    odm_predictions_ordered(s->predictions, call->step, call->m, p->expert) != run->worker)
		return;
	for (uint32_t i = 0; i < p->count; i++)
		s->row_served[p->work->order[p->first + i] / s->model.top_k]++;
}

/* A RUN is answered: rows of the other half may go. */
static void let_go(struct odp_sim *s, struct sim_run *run)
{
	const bool few = odm_prompt_rows_few(&s->prompt, s->held_bytes);
	const uint64_t bytes = (uint64_t)llround(run->bytes);
	const uint32_t worker = run->worker;

	s->worker[worker].held_bytes -= bytes;
	s->held_bytes -= bytes;
	free(run->piece);
	free(run->item);
	free(run);
	if (s->engine.now->n_halves > 1 && !few && odm_prompt_rows_few(&s->prompt, s->held_bytes))
		pump_all(s);
	else
		pump(s, worker);
}

void odp_layer_result(struct odp_sim *s, struct sim_message *m)
{
	struct sim_run *run = m->run;
	struct odm_pieces *work = &s->pieces[run->half];
	struct od_schedule_item **item = m->list;

	for (size_t i = 0; i < m->n; i++) {
		struct odm_piece *p = run->piece[item[i] - run->item];

		p->state = ODM_PIECE_DONE;
		work->n_done++;
		count_served(s, run, p, item[i]);
	}
	run->n_open -= m->n;
	if (run->n_open == 0)
		let_go(s, run);
	if (!odm_pieces_under_way(work))
		odp_engine_wake(s);
}

#include "main-node/cluster/layer_pieces.h"

#include <stdlib.h>
#include <string.h>

int odm_pieces_init(struct odm_pieces *p, const struct od_config *cfg, size_t max_rows, size_t max_workers,
		    struct od_err *err)
{
	size_t pairs = max_rows * cfg->top_k;

	*p = (struct odm_pieces){ .n_experts = cfg->n_experts, .top_k = cfg->top_k };
	p->piece = calloc(pairs + cfg->n_experts, sizeof(*p->piece));
	p->order = calloc(pairs, sizeof(*p->order));
	p->chosen = calloc(cfg->n_experts, sizeof(*p->chosen));
	p->end = calloc(cfg->n_experts, sizeof(*p->end));
	p->next = calloc(cfg->n_experts, sizeof(*p->next));
	p->rows = calloc(cfg->n_experts, sizeof(*p->rows));
	p->worker_of = calloc(cfg->n_experts, sizeof(*p->worker_of));
	p->scratch = calloc(ODM_DEAL_SCRATCH(cfg->n_experts, max_workers), sizeof(*p->scratch));
	if (p->piece != NULL && p->order != NULL && p->chosen != NULL && p->end != NULL && p->next != NULL &&
	    p->rows != NULL && p->worker_of != NULL && p->scratch != NULL)
		return OD_OK;
	odm_pieces_fini(p);
	return od_fail(err, OD_ERR_NOMEM, "cluster: no memory for %zu rows", max_rows);
}

void odm_pieces_fini(struct odm_pieces *p)
{
	free(p->piece);
	free(p->order);
	free(p->chosen);
	free(p->end);
	free(p->next);
	free(p->rows);
	free(p->worker_of);
	free(p->scratch);
	*p = (struct odm_pieces){ 0 };
}

/* order[], chosen[] and next[] by counting. */
static void group_by_expert(struct odm_pieces *p, const struct od_moe_call *call)
{
	size_t n = call->n_rows * p->top_k;
	uint32_t at = 0;

	memset(p->end, 0, p->n_experts * sizeof(*p->end));
	p->n_chosen = p->n = p->n_done = 0;
	for (size_t i = 0; i < n; i++)
		p->end[call->expert[i]]++;
	for (uint32_t e = 0; e < p->n_experts; e++) {
		uint32_t size = p->end[e];

		if (size > 0) {
			p->next[p->n_chosen] = at;
			p->rows[p->n_chosen] = size;
			p->chosen[p->n_chosen++] = (uint16_t)e;
		}
		p->end[e] = at; /* its begin, until the pairs below have moved it to the end */
		at += size;
	}
	for (size_t i = 0; i < n; i++)
		p->order[p->end[call->expert[i]]++] = (uint32_t)i;
}

/* The rows of one batch, which end before this one, of the i-th expert. */
static void cut_one(struct odm_pieces *p, size_t i, uint32_t batch, uint64_t end_row)
{
	const uint32_t begin = p->next[i], end = p->end[p->chosen[i]];
	uint32_t at = begin;

	while (at < end && p->order[at] < end_row * p->top_k)
		at++;
	p->next[i] = at;
	if (at > begin)
		p->piece[p->n++] = (struct odm_piece){ .work = p,
						       .expert = p->chosen[i],
						       .first = begin,
						       .count = at - begin,
						       .worker = p->worker_of[i],
						       .batch = batch,
						       .first_of = end - begin == p->rows[i],
						       .last = at == end };
}

void odm_pieces_deal(struct odm_pieces *p, const struct od_moe_call *call, const struct odm_groups *g,
		     uint32_t (*keep)(void *arg, uint16_t expert), void *arg)
{
	p->call = call;
	p->first_rank = 0;
	group_by_expert(p, call);
	odm_deal(g, call->step, call->m, p->chosen, p->rows, p->n_chosen, keep, arg, p->worker_of, p->scratch);
}

void odm_pieces_cut(struct odm_pieces *p, const struct od_moe_call *call, uint32_t max_rows)
{
	for (uint32_t batch = 0; (uint64_t)batch * max_rows < call->n_rows; batch++)
		for (size_t i = 0; i < p->n_chosen; i++)
			cut_one(p, i, batch, (batch + 1ull) * max_rows);
}

void odm_pieces_keep(struct odm_pieces *p)
{
	for (size_t i = 0; i < p->n; i++)
		p->piece[i].last = false;
}

void odm_pieces_end(struct odm_pieces *p)
{
	p->call = NULL;
	p->n = p->n_done = 0;
}

size_t odm_pieces_next(struct odm_pieces *p, uint32_t worker, size_t max, struct odm_piece **out, bool *more)
{
	size_t n = 0;

	*more = false;
	for (size_t i = 0; i < p->n && !*more; i++) {
		if (p->piece[i].worker != worker || p->piece[i].state != ODM_PIECE_TODO || p->piece[i].resting)
			continue;
		/* RUN.fetch is about all of its experts. */
		if (n == max || (n > 0 && (p->piece[i].fetch != out[0]->fetch || p->piece[i].batch != out[0]->batch)))
			*more = true;
		else
			out[n++] = &p->piece[i];
	}
	return n;
}

struct odm_piece *odm_pieces_find(struct odm_pieces *p, uint32_t worker, uint64_t request, uint32_t expert)
{
	for (size_t i = 0; i < p->n; i++) {
		struct odm_piece *q = &p->piece[i];

		if (q->expert != expert || q->state == ODM_PIECE_DONE)
			continue;
		if ((q->state == ODM_PIECE_SENT && q->request == request && q->worker == worker) ||
		    (q->late_request == request && request != 0 && q->late_worker == worker))
			return q;
	}
	return NULL;
}

bool odm_pieces_asked(const struct odm_pieces *p, uint64_t request)
{
	for (size_t i = 0; i < p->n; i++) {
		const struct odm_piece *q = &p->piece[i];

		if (q->state != ODM_PIECE_TODO && q->request == request)
			return true;
		if (q->late_request == request && request != 0)
			return true;
	}
	return false;
}

bool odm_pieces_open(const struct odm_pieces *p, uint64_t request)
{
	for (size_t i = 0; i < p->n; i++) {
		if (p->piece[i].state == ODM_PIECE_SENT && p->piece[i].request == request)
			return true;
	}
	return false;
}

bool odm_pieces_owed(const struct odm_pieces *p, uint32_t worker)
{
	return odm_pieces_most_rows(p, worker) > 0;
}

uint32_t odm_pieces_most_rows(const struct odm_pieces *p, uint32_t worker)
{
	uint32_t most = 0;

	for (size_t i = 0; i < p->n; i++) {
		const struct odm_piece *q = &p->piece[i];

		if (q->worker == worker && q->state == ODM_PIECE_SENT && q->count > most)
			most = q->count;
	}
	return most;
}

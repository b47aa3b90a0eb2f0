#include "tests/bench/live/recall_rival.h"

#include <stdlib.h>

struct recall_rival {
	struct od_predictor *predictor;
	const struct od_config *config;
	uint32_t chunk;
	struct od_routed_row *rows; /* [chunk] */
	struct od_predict_row *row; /* [chunk] */
	uint64_t last_step, sequence; /* numbered as od-main numbers them */
	struct recall_board *board; /* board of the running replay */
};

static void emit(void *arg, const struct od_prediction *p)
{
	struct recall_rival *r = arg;

	recall_board_add(r->board, p);
}

int recall_rival_new(struct recall_rival **out, const struct od_predictor_kind *kind,
		     const struct od_forward_opts *forward, struct od_err *err)
{
	struct recall_rival *r = calloc(1, sizeof(*r));
	const struct od_predictor_opts o = {
		.config = forward->config,
		.dense = forward->dense,
		.device = forward->device,
		.profile = forward->profile,
		.max_rows = forward->max_rows,
		.max_sequences = 1,
		.emit = emit,
		.arg = r,
	};
	int rc;

	*out = NULL;
	if (r == NULL)
		return od_fail(err, OD_ERR_NOMEM, "predictor %s", kind->name);
	r->config = forward->config;
	r->chunk = (uint32_t)forward->max_rows;
	r->rows = calloc(r->chunk, sizeof(*r->rows));
	r->row = calloc(r->chunk, sizeof(*r->row));
	rc = r->rows != NULL && r->row != NULL ? kind->make(&r->predictor, &o, err) :
						 od_fail(err, OD_ERR_NOMEM, "predictor %s", kind->name);
	if (rc == OD_OK)
		*out = r;
	else
		recall_rival_free(r);
	return rc;
}

void recall_rival_free(struct recall_rival *r)
{
	if (r == NULL)
		return;
	od_predictor_free(r->predictor);
	free(r->rows);
	free(r->row);
	free(r);
}

/* The routers of layer m for positions [begin, begin + n), which the step has. */
static void tell_routed(struct recall_rival *r, const struct od_predict_step *s, uint32_t m, uint32_t begin, uint32_t n)
{
	const struct recall_recording *rec = r->board->rec;
	const struct od_config *c = r->config;

	for (uint32_t i = 0; i < n; i++) {
		const size_t at = ((size_t)begin + i) * c->n_moe + m;

		r->rows[i] = (struct od_routed_row){
			.residual = rec->residual + at * c->hidden,
			.probability = rec->probability + at * c->n_experts,
			.expert = rec->expert + at * c->top_k,
		};
	}
	od_predictor_routed(r->predictor, s, m, r->rows);
}

static void play_pass(struct recall_rival *r, bool prompt, uint32_t begin, uint32_t n)
{
	const struct od_predict_step s = {
		.step = ++r->last_step,
		.prompt = prompt,
		.n_rows = n,
		.row = r->row,
	};

	for (uint32_t i = 0; i < n; i++)
		r->row[i] = (struct od_predict_row){ .sequence = r->sequence,
						     .position = begin + i,
						     .token = r->board->rec->token[begin + i] };
	if (!prompt)
		recall_board_begin_step(r->board, false);
	od_predictor_begin_step(r->predictor, &s);
	for (uint32_t m = 0; m < r->config->n_moe; m++) {
		if (!prompt)
			recall_board_routed(r->board);
		tell_routed(r, &s, m, begin, n);
	}
}

void recall_rival_replay(struct recall_rival *r, struct recall_board *board)
{
	const struct recall_recording *rec = board->rec;

	r->board = board;
	od_predictor_begin_sequence(r->predictor, ++r->sequence);
	for (uint32_t at = 0; at < rec->n_prompt; at += r->chunk)
		play_pass(r, true, at, rec->n_prompt - at < r->chunk ? rec->n_prompt - at : r->chunk);
	for (uint32_t i = 0; i < rec->n_steps; i++)
		play_pass(r, false, rec->n_prompt + i, 1);
	od_predictor_end_sequence(r->predictor, r->sequence);
	r->last_step++; /* the number that main had set aside for a step after the last */
}

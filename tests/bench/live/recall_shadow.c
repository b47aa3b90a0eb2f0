#include "tests/bench/live/recall_shadow.h"

#include "main-node/cluster/shadow_link.h"
#include "shadow-node/emulator_messages.h"

#include <stdlib.h>
#include <string.h>

#define SEQUENCE 1

struct replay {
	const struct recall_shadow *shadow;
	struct recall_board *board;
	struct odm_shadow_link main; /* main's side */
	struct ods_emulator *emulator;
	Od__StateRequest asked[ODS_MAX_ASKED]; /* and not answered */
	size_t n_asked;
	Od__TokensRequest asked_tokens; /* requested tokens; n 0: none */
	struct od_err *err;
	int rc; /* the first failure, which the callbacks cannot return */
};

/* ---- The wire: main's messages to the emulator, as od_wire_recv would give them ---- */

static void count_rows(struct recall_counts *c, const Od__Header *h)
{
	if (h->body_case == OD__HEADER__BODY_STATE)
		for (size_t i = 0; i < h->state->n_ranges; i++)
			*(h->state->step > 0 ? &c->kv_rows : &c->asked_rows) += h->state->ranges[i]->n;
}

static int deliver(void *arg, Od__Header *h, const struct od_out_frame *frames, size_t n_frames)
{
	struct replay *r = arg;
	struct od_msg m = { .header = h, .n_frames = n_frames };
	int rc;

	h->version = OD_PROTOCOL_VERSION;
	/* Without a function to free them ZeroMQ takes bytes for constants: nothing is copied. */
	for (size_t i = 0; i < n_frames; i++)
		zmq_msg_init_data(&m.frame[i], (void *)frames[i].bytes, frames[i].len, NULL, NULL);
	count_rows(r->board->counts, h);
	rc = ods_emulator_message(r->emulator, &m, 0, r->err);
	for (size_t i = 0; i < n_frames; i++)
		zmq_msg_close(&m.frame[i]);
	if (rc != OD_OK && r->rc == OD_OK)
		r->rc = rc;
	return rc;
}

static void predicted(void *arg, uint32_t m, const struct od_prediction *p, size_t n)
{
	struct replay *r = arg;

	(void)m;
	for (size_t i = 0; i < n; i++)
		recall_board_add(r->board, &p[i]);
}

static void asks(void *arg, uint64_t sequence, const struct ods_range *range)
{
	struct replay *r = arg;
	Od__StateRequest *q = &r->asked[r->n_asked++]; /* as many as there may be without an answer */

	od__state_request__init(q);
	q->sequence = sequence;
	q->layer = range->layer;
	q->begin = range->begin;
	q->n = range->n;
}

static void asks_tokens(void *arg, uint64_t sequence, uint32_t begin, uint32_t n)
{
	struct replay *r = arg;

	od__tokens_request__init(&r->asked_tokens);
	r->asked_tokens.sequence = sequence;
	r->asked_tokens.begin = begin;
	r->asked_tokens.n = n;
}

static void answer(struct replay *r)
{
	Od__StateRequest q[ODS_MAX_ASKED];
	Od__TokensRequest tokens = r->asked_tokens;
	size_t n = r->n_asked;

	memcpy(q, r->asked, n * sizeof(*q));
	r->n_asked = 0;
	r->asked_tokens.n = 0;
	for (size_t i = 0; i < n; i++)
		odm_shadow_link_answer(&r->main, 0, &q[i]);
	if (tokens.n > 0)
		odm_shadow_link_answer_tokens(&r->main, 0, &tokens);
}

/* Until there is nothing to do without another message of main's. */
static void let_work(struct replay *r)
{
	bool did = true;

	while (r->rc == OD_OK && (did || r->n_asked > 0 || r->asked_tokens.n > 0)) {
		answer(r);
		if (r->rc == OD_OK)
			r->rc = ods_emulator_work(r->emulator, 0, &did, r->err);
	}
}

/* ---- Main ---- */

/* How long main's text is: rows before that may be asked for. With fixed state none are, and no text becomes
 * shorter. */
static void set_length(const struct recall_recording *rec, uint32_t length)
{
	if (od_state_pool_fixed_bytes(od_seq_state_pool(rec->state)) == 0)
		od_seq_state_set_length(rec->state, length);
}

/* As one chunk: what becomes of it does not depend on how it is cut. */
static void replay_prompt(struct replay *r)
{
	const struct recall_recording *rec = r->board->rec;
	struct od_row *rows = calloc(rec->n_prompt, sizeof(*rows));
	struct od_sampler_opts sampling;
	const struct odm_part part = { .sequence = SEQUENCE,
				       .n = rec->n_prompt,
				       .prompt_tokens = rec->n_prompt,
				       .ahead = 1,
				       .sampling = &sampling };
	const struct odm_step step = {
		.phase = ODM_PREFILL, .rows = rows, .n_rows = rec->n_prompt, .part = &part, .n_parts = 1
	};

	if (rows == NULL) {
		r->rc = od_fail(r->err, OD_ERR_NOMEM, "a prompt of %u tokens", rec->n_prompt);
		return;
	}
	for (uint32_t p = 0; p < rec->n_prompt; p++)
		rows[p] = (struct od_row){ .seq = rec->state, .position = p, .token = rec->token[p] };
	od_sampler_defaults(&sampling);
	odm_shadow_link_step(&r->main, 0, &step);
	free(rows);
	set_length(rec, rec->n_prompt);
	let_work(r);
}

static void replay_step(struct replay *r, uint32_t i)
{
	const struct recall_recording *rec = r->board->rec;
	const uint32_t position = rec->n_prompt + i;
	const struct od_row row = { .seq = rec->state, .position = position, .token = rec->token[position] };
	struct od_sampler_opts sampling;
	const struct odm_part part = {
		.sequence = SEQUENCE, .n = 1, .prompt_tokens = rec->n_prompt, .ahead = 1, .sampling = &sampling
	};
	const struct odm_step step = {
		.step = 1 + i,
		.next_step = 2 + i,
		.phase = ODM_DECODE,
		.rows = &row,
		.n_rows = 1,
		.part = &part,
		.n_parts = 1,
	};

	od_sampler_defaults(&sampling);
	set_length(rec, position);
	recall_board_begin_step(r->board, odm_shadow_link_token(&r->main, &step, &part) < 0);
	odm_shadow_link_step(&r->main, 0, &step);
	let_work(r);
	for (uint32_t m = 0; r->rc == OD_OK && m < r->shadow->forward.config->n_moe; m++) {
		recall_board_routed(r->board);
		odm_shadow_link_state(&r->main, 0, &step, r->shadow->forward.config->layer_of[m]);
		let_work(r);
	}
	odm_shadow_link_state(&r->main, 0, &step, r->shadow->forward.config->n_layers - 1);
	let_work(r);
	set_length(rec, position + 1);
}

int recall_shadow_replay(const struct recall_shadow *s, struct recall_board *board, struct od_err *err)
{
	struct replay r = { .shadow = s, .board = board, .err = err };
	const struct ods_sink sink = { .arg = &r, .predict = predicted, .ask = asks, .ask_tokens = asks_tokens };
	const struct odm_align align = { s->align.token, s->align.kv };
	uint64_t counters[OD_N_COUNTERS] = { 0 };
	const struct ods_emulator_opts o = {
		.forward = s->forward,
		.experts = s->experts,
		.ctx_tokens = od_seq_state_ctx(board->rec->state),
		.max_sequences = 1,
		.early = s->early,
		.counters = counters,
	};
	struct od_forward_opts main_forward = s->forward;

	main_forward.state = od_seq_state_pool(board->rec->state);
	r.rc = odm_shadow_link_init(&r.main, &main_forward, o.ctx_tokens, &align, err);
	if (r.rc != OD_OK)
		return r.rc;
	r.main.counters = counters;
	r.main.deliver = deliver;
	r.main.deliver_arg = &r;
	r.rc = ods_emulator_new(&r.emulator, &o, &sink, err);
	if (r.rc == OD_OK)
		replay_prompt(&r);
	for (uint32_t i = 0; r.rc == OD_OK && i < board->rec->n_steps; i++)
		replay_step(&r, i);
	board->counts->align_bytes = counters[OD_C_ALIGN_BYTES];
	board->counts->asked_bytes = counters[OD_C_ASKED_BYTES];
	ods_emulator_free(r.emulator);
	odm_shadow_link_fini(&r.main);
	return r.rc;
}

#include "shadow-node/emulator_internal.h"

#include "common/base/mem.h"
#include "common/base/trace.h"
#include "common/compute/rank.h"
#include "common/model/resident.h"

#include <stdlib.h>

/* ---- Life ---- */

uint64_t ods_emulator_sequence_bytes(const struct ods_emulator_opts *o)
{
	return ods_sequence_bytes(&o->forward, o->ctx_tokens);
}

/* Per row: three steps, od_row, a saved row. */
static uint64_t buffer_row_bytes(const struct ods_emulator_opts *o)
{
	const struct od_config *c = o->forward.config;
	uint64_t most = 0;

	for (uint32_t i = 0; i < c->n_kinds; i++) {
		struct od_state_spec s = { 0 };
		uint64_t sum = 0;

		c->kind[i].mixer->state(&c->kind[i].mix, &s);
		for (uint32_t j = 0; j < s.n_streams; j++)
			sum += s.width[j] * sizeof(float);
		most = sum > most ? sum : most;
	}
	return 3 * sizeof(struct row) + sizeof(struct od_row) + most;
}

uint64_t ods_emulator_bytes(const struct ods_emulator_opts *o)
{
	uint64_t sum = ods_emulator_sequence_bytes(o), rows;

	if (!od_add(sum, od_forward_bytes(&o->forward), &sum) || !od_mul(o->forward.max_rows, buffer_row_bytes(o), &rows) ||
	    !od_add(sum, rows, &sum) || !od_add(sum, od_resident_bytes(&o->forward), &sum))
		return UINT64_MAX;
	return sum;
}

static int open_sequences(struct ods_emulator *e, struct od_err *err)
{
	const struct od_forward_opts *f = &e->o.forward;
	int rc = od_state_pool_new(&e->state, f->device, f->config, f->profile, e->o.ctx_tokens, (uint32_t)e->o.max_sequences,
				   (uint64_t)e->o.max_sequences * od_state_pages(e->o.ctx_tokens), err);

	e->o.forward.state = e->state;
	for (size_t i = 0; rc == OD_OK && i < e->o.max_sequences; i++)
		rc = ods_sequence_init(&e->sequence[i], f, err);
	return rc;
}

static int open_buffers(struct ods_emulator *e, struct od_err *err)
{
	size_t n = e->o.forward.max_rows;

	e->step.rows = calloc(n, sizeof(struct row));
	e->latest.rows = calloc(n, sizeof(struct row));
	e->spare.rows = calloc(n, sizeof(struct row));
	e->od_rows = calloc(n, sizeof(*e->od_rows));
	if (e->step.rows == NULL || e->latest.rows == NULL || e->spare.rows == NULL || e->od_rows == NULL)
		return od_fail(err, OD_ERR_NOMEM, "emulator: buffers for %zu rows", n);
	return od_buf_new(&e->saved, e->o.forward.device, n * od_state_pool_most_bytes(e->state), "main's rows",
			  err);
}

int ods_emulator_new(struct ods_emulator **out, const struct ods_emulator_opts *o, const struct ods_sink *sink,
		     struct od_err *err)
{
	struct ods_emulator *e;
	int rc;

	*out = NULL;
	if (o->max_sequences == 0 || o->max_sequences > ODS_MAX_SEQUENCES || o->forward.max_rows > ODS_MAX_STEP_ROWS)
		return od_fail(err, OD_ERR_RANGE, "emulator: %zu sequences, %zu rows: expected 1 to %d and at most %d",
			       o->max_sequences, o->forward.max_rows, ODS_MAX_SEQUENCES, ODS_MAX_STEP_ROWS);
	e = calloc(1, sizeof(*e));
	if (e == NULL)
		return od_fail(err, OD_ERR_NOMEM, "emulator");
	e->o = *o;
	e->sink = *sink;
	rc = open_sequences(e, err);
	if (rc != OD_OK)
		goto fail;
	rc = open_buffers(e, err);
	if (rc != OD_OK)
		goto fail;
	rc = od_forward_new(&e->forward, &e->o.forward, err);
	if (rc != OD_OK)
		goto fail;
	rc = od_resident_new(&e->experts, &e->o.forward, o->experts, err);
	if (rc != OD_OK)
		goto fail;
	*out = e;
	return OD_OK;
fail:
	ods_emulator_free(e);
	return rc;
}

void ods_emulator_free(struct ods_emulator *e)
{
	if (e == NULL)
		return;
	(void)!od_device_sync(e->o.forward.device, NULL); /* what is queued uses what is freed here */
	od_resident_free(e->experts);
	od_forward_free(e->forward);
	for (size_t i = 0; i < ODS_MAX_SEQUENCES; i++)
		ods_sequence_fini(&e->sequence[i]);
	od_state_pool_free(e->state);
	free(e->step.rows);
	free(e->latest.rows);
	free(e->spare.rows);
	free(e->od_rows);
	od_buf_free(e->saved);
	free(e);
}

/* ---- Tokens ---- */

/* *token: what stands at position, known, or what the finished run says would follow; -1: neither. */
static int token_at(struct ods_emulator *e, struct ods_sequence *q, uint32_t position, int32_t *token, struct od_err *err)
{
	int rc = OD_OK;

	for (uint32_t i = 0; rc == OD_OK && q->token[position] < 0 && e->phase == FINISHED && i < e->step.n_rows; i++) {
		const struct row *r = &e->step.rows[i];
		uint64_t begin;
		float *logits;

		if (!r->last || r->seq != q || r->position + 1 != position)
			continue;
		begin = od_trace_begin();
		rc = od_forward_logits(e->forward, &i, 1, &logits, err);
		if (rc == OD_OK)
			ods_sequence_choose(q, position, logits);
		od_trace_end("head", begin, (int64_t)e->step.number, -1, -1);
	}
	*token = q->token[position];
	return rc;
}

/* The run, or the one that is through, will say or can say what stands there. */
static bool run_says(const struct ods_emulator *e, const struct ods_sequence *q, uint32_t position)
{
	for (size_t i = 0; e->phase != NO_RUN && i < e->step.n_rows; i++)
		if (e->step.rows[i].last && e->step.rows[i].seq == q && e->step.rows[i].position + 1 == position)
			return true;
	return false;
}

/* ---- Which run is next ---- */

/* The rows that it wrote for true tokens are good. Those of a guess must not stay: the sequence may go on with another
 * prompt, of which no STEP tells. The guess itself is still what we would choose. */
void ods_abandon(struct ods_emulator *e)
{
	if (e->phase != NO_RUN && e->ahead) {
		for (size_t i = 0; i < e->step.n_rows; i++) {
			const struct row *r = &e->step.rows[i];

			ods_align_truncate(r->seq->align, r->position);
			ods_sequence_forget_tokens(r->seq, r->position + 1);
		}
		e->o.counters[OD_C_SHADOW_MISTAKEN]++;
	}
	e->phase = NO_RUN;
}

/* Work is queued, so it may have failed some time ago, in another run: none of the rows is known to be good. */
void ods_give_up(struct ods_emulator *e)
{
	ods_abandon(e);
	e->pending = false; /* it may need the same run again */
	for (size_t i = 0; i < e->o.max_sequences; i++) {
		ods_align_truncate(e->sequence[i].align, 0);
		e->sequence[i].told = 0;
	}
}

/* A step in e->spare becomes the run. */
static int begin_run(struct ods_emulator *e, bool ahead, bool published, struct od_err *err)
{
	int rc;

	ods_swap_steps(&e->step, &e->spare);
	for (size_t i = 0; i < e->step.n_rows; i++) {
		const struct row *r = &e->step.rows[i];

		e->od_rows[i] = (struct od_row){ r->seq->state, r->position, r->token };
		if (r->first)
			od_seq_state_set_length(r->seq->state, r->position);
	}
	rc = od_forward_begin(e->forward, e->step.number, e->od_rows, e->step.n_rows, err);
	e->phase = rc == OD_OK ? BEFORE_ATTENTION : NO_RUN;
	e->ahead = ahead;
	e->published = published;
	return rc;
}

static void add_spare_row(struct ods_emulator *e, struct ods_sequence *q, uint32_t position, int32_t token)
{
	struct step *s = &e->spare;
	bool first = s->n_rows == 0 || s->rows[s->n_rows - 1].seq != q;

	if (!first)
		s->rows[s->n_rows - 1].last = false;
	s->rows[s->n_rows++] = (struct row){ .seq = q, .position = position, .token = token, .first = first,
					     .last = true };
}

static void clear_spare(struct ods_emulator *e, uint64_t number)
{
	e->spare.number = number;
	e->spare.next = 0;
	e->spare.n_rows = 0;
}

/* A piece of the rows that are missing below limit, as far as their tokens are known. */
static int plan_fill(struct ods_emulator *e, struct ods_sequence *q, uint32_t limit, struct od_err *err)
{
	uint32_t p = ods_align_missing(q->align, limit);
	size_t most = e->o.forward.max_rows < ODS_MAX_FILL_ROWS ? e->o.forward.max_rows : ODS_MAX_FILL_ROWS;
	int rc = OD_OK;

	clear_spare(e, e->newest);
	for (; p < limit && e->spare.n_rows < most; p++) {
		int32_t token;

		rc = token_at(e, q, p, &token, err);
		if (rc != OD_OK || token < 0)
			break;
		add_spare_row(e, q, p, token);
	}
	e->o.counters[OD_C_SHADOW_FILLED] += e->spare.n_rows;
	return rc;
}

/* An earlier position whose token is known, to find out what follows it. */
static int plan_catch_up(struct ods_emulator *e, struct ods_sequence *q, uint32_t position, struct od_err *err)
{
	int32_t token = -1;
	int rc = OD_OK;

	clear_spare(e, e->newest);
	for (uint32_t back = 1; rc == OD_OK && token < 0 && back <= ODS_MAX_CATCH_UP && back <= position; back++) {
		rc = token_at(e, q, position - back, &token, err);
		if (rc == OD_OK && token >= 0)
			add_spare_row(e, q, position - back, token);
	}
	return rc;
}

/* *ready: nothing that the row builds on is missing. Else e->spare has what must run before, or nothing: we wait for
 * main. */
static int prepare_row(struct ods_emulator *e, struct row *r, bool *ready, struct od_err *err)
{
	struct ods_sequence *q = r->seq;
	int rc = OD_OK;

	*ready = false;
	if (ods_align_missing(q->align, r->position) < r->position)
		return q->own_state ? plan_fill(e, q, r->position, err) : OD_OK;
	if (r->token < 0)
		rc = token_at(e, q, r->position, &r->token, err);
	if (rc == OD_OK && r->token < 0)
		return plan_catch_up(e, q, r->position, err);
	*ready = rc == OD_OK;
	return rc;
}

static int run_latest(struct ods_emulator *e, struct od_err *err)
{
	struct step *s = &e->latest;

	clear_spare(e, 0);
	for (size_t i = 0; i < s->n_rows; i++) {
		bool ready = true;
		int rc = s->rows[i].first ? prepare_row(e, &s->rows[i], &ready, err) : OD_OK;

		if (rc != OD_OK)
			return rc;
		if (!ready)
			return e->spare.n_rows > 0 ? begin_run(e, false, false, err) : OD_OK;
	}
	ods_swap_steps(&e->spare, s);
	e->pending = false;
	return begin_run(e, false, true, err);
}

static bool may_run_ahead(const struct ods_emulator *e)
{
	return e->phase == FINISHED && !e->ahead && e->published && e->o.early && e->step.next != 0;
}

/* The step after the finished run, with our own tokens; the STEP that confirms it will say what comes after it. */
static int run_ahead(struct ods_emulator *e, struct od_err *err)
{
	clear_spare(e, e->step.next);
	e->step.next = 0;
	for (size_t i = 0; i < e->step.n_rows; i++) {
		const struct row *r = &e->step.rows[i];
		uint32_t position = r->position + 1;
		int32_t token;
		int rc;

		if (!r->last)
			continue;
		if (position >= e->o.ctx_tokens)
			return OD_OK;
		rc = token_at(e, r->seq, position, &token, err);
		if (rc != OD_OK || token < 0)
			return rc;
		add_spare_row(e, r->seq, position, token);
	}
	return begin_run(e, true, true, err);
}

/* Between two runs: the newest STEP goes first, then our own guess at the one after it, then prompts. */
static int choose_run(struct ods_emulator *e, struct od_err *err)
{
	if (e->pending)
		return run_latest(e, err);
	if (may_run_ahead(e))
		return run_ahead(e, err);
	for (size_t i = 0; i < e->o.max_sequences; i++) {
		struct ods_sequence *q = &e->sequence[i];
		int rc;

		if (!q->used || !q->own_state)
			continue;
		rc = plan_fill(e, q, q->told, err);
		if (rc != OD_OK)
			return rc;
		if (e->spare.n_rows > 0)
			return begin_run(e, false, false, err);
	}
	return OD_OK;
}

/* ---- The run ---- */

static bool may_visit(const struct ods_emulator *e, uint32_t layer)
{
	for (size_t i = 0; i < e->step.n_rows; i++) {
		const struct row *r = &e->step.rows[i];

		if (r->first && !ods_align_ready(r->seq->align, layer, r->position))
			return false;
	}
	return true;
}

/* Row i of the run between its place in the sequence's state and where it is saved. */
static void copy_row(struct ods_emulator *e, uint32_t layer, size_t i, bool save)
{
	const struct row *r = &e->step.rows[i];
	struct od_ref saved = od_buf_ref(e->saved, i * od_state_pool_most_bytes(e->state));
	struct od_op op = { .kind = OD_OP_COPY, .profile = e->o.forward.profile, .n_rows = 1 };

	for (uint32_t s = 0; s < OD_MAX_STREAMS; s++, saved.at += op.copy.n) {
		op.copy.n = od_seq_state_row_bytes(r->seq->state, layer, s);
		if (op.copy.n == 0)
			return;
		op.copy.from = op.copy.to = od_seq_state_row(r->seq->state, layer, s, r->position);
		*(save ? &op.copy.to : &op.copy.from) = saved;
		od_device_run(e->o.forward.device, OD_QUEUE_COMPUTE, &op);
	}
}

/* True rows may be there already, when main is ahead of us in its own step: our attention would write over them. */
static void save_true_rows(struct ods_emulator *e, uint32_t layer)
{
	for (size_t i = 0; i < e->step.n_rows; i++) {
		struct row *r = &e->step.rows[i];

		r->was_true = ods_align_is_true(r->seq->align, layer, r->position);
		if (r->was_true)
			copy_row(e, layer, i, true);
	}
}

static void restore_true_rows(struct ods_emulator *e, uint32_t layer)
{
	for (size_t i = 0; i < e->step.n_rows; i++) {
		const struct row *r = &e->step.rows[i];

		ods_align_own(r->seq->align, layer, r->position);
		if (r->was_true)
			copy_row(e, layer, i, false);
	}
}

static void publish(struct ods_emulator *e, uint32_t m)
{
	const struct od_config *c = e->o.forward.config;
	uint16_t expert[OD_MAX_CANDIDATES];
	float probability[OD_MAX_CANDIDATES];
	const size_t n = od_prediction_candidates(c);

	for (size_t i = 0; i < e->step.n_rows; i++) {
		const struct row *r = &e->step.rows[i];
		const float *all = od_forward_probabilities_of(e->forward, i);
		const struct od_prediction p = {
			.step = e->step.number,
			.sequence = r->seq->id,
			.row = (uint32_t)i,
			.position = r->position,
			.m = m,
			.token = r->token,
			.expert = expert,
			.probability = probability,
			.n = n,
		};

		od_rank(all, c->n_experts, expert, n);
		for (size_t j = 0; j < n; j++)
			probability[j] = all[expert[j]];
		e->sink.predict(e->sink.arg, &p);
		e->o.counters[OD_C_SHADOW_PREDICTIONS]++;
	}
}

/* What follows is chosen at once if it will be wanted, also when the run is ahead and not confirmed: there is nothing
 * better to do meanwhile. */
static int finish_run(struct ods_emulator *e, struct od_err *err)
{
	const bool wanted = (e->o.early && e->published) || e->unaligned;
	int rc = OD_OK;

	e->phase = FINISHED;
	for (size_t i = 0; rc == OD_OK && wanted && i < e->step.n_rows; i++) {
		const struct row *r = &e->step.rows[i];
		int32_t token;

		if (r->last && r->position + 1 < e->o.ctx_tokens)
			rc = token_at(e, r->seq, r->position + 1, &token, err);
	}
	return rc;
}

static void ask_tokens(struct ods_emulator *e, const struct row *r, uint64_t now_ns)
{
	struct ods_sequence *q = r->seq;
	uint32_t begin = ods_sequence_unknown(q, r->position), n = r->position - begin;

	if (n == 0 || !(q->own_state || q->penalised)) {
		if (ods_running(e) || r->token >= 0 || q->token[r->position] >= 0 ||
		    ods_align_missing(q->align, r->position) < r->position)
			return;
		begin = r->position;
		n = 1;
	}
	if (q->asked || run_says(e, q, begin))
		return;
	q->asked = true;
	q->asked_ns = now_ns;
	q->asked_begin = begin;
	e->o.counters[OD_C_SHADOW_ASKED]++;
	e->sink.ask_tokens(e->sink.arg, q->id, begin, n < ODS_MAX_ASK_TOKENS ? n : ODS_MAX_ASK_TOKENS);
}

static size_t expire(struct ods_emulator *e, uint64_t now_ns)
{
	size_t out = 0;

	for (size_t i = 0; i < e->o.max_sequences; i++) {
		struct ods_sequence *q = &e->sequence[i];

		if (q->asked && now_ns >= q->asked_ns + ODS_ASK_AGAIN_NS)
			q->asked = false;
		ods_align_expire(q->align, now_ns);
		out += ods_align_asked(q->align);
	}
	return out;
}

/* Ask for what is missing before the run, or before the step that waits for it. Not for rows that an unpublished
 * run is about to write: those are below the waiting step, not below the run. */
static void ask(struct ods_emulator *e, uint64_t now_ns)
{
	const struct step *s = ods_running(e) ? &e->step : &e->latest;
	size_t out = expire(e, now_ns);

	if (!ods_running(e) && !e->pending)
		return;
	for (size_t i = 0; i < s->n_rows; i++) {
		const struct row *r = &s->rows[i];
		struct ods_range range;

		if (!r->first)
			continue;
		ask_tokens(e, r, now_ns);
		while (!r->seq->own_state && out < ODS_MAX_ASKED &&
		       ods_align_ask(r->seq->align, r->position, now_ns, &range)) {
			out++;
			e->o.counters[OD_C_SHADOW_ASKED]++;
			e->sink.ask(e->sink.arg, r->seq->id, &range);
		}
	}
}

/* Of a dense layer, all of it. */
static int run_attention(struct ods_emulator *e, uint32_t layer, struct od_err *err)
{
	uint64_t begin = od_trace_begin();
	int rc = OD_OK;

	save_true_rows(e, layer);
	od_forward_attention(e->forward);
	restore_true_rows(e, layer);
	if (e->published && od_forward_routed(e->forward))
		rc = od_forward_fetch(e->forward, OD_FETCH_PROBABILITIES, err);
	od_trace_end("attention, router", begin, (int64_t)e->step.number,
		     od_forward_routed(e->forward) ? (int64_t)od_forward_m(e->forward) : -1, -1);
	if (rc != OD_OK)
		return rc;
	if (!od_forward_routed(e->forward))
		return od_forward_done(e->forward) ? finish_run(e, err) : OD_OK;
	if (e->published)
		publish(e, od_forward_m(e->forward));
	e->phase = BEFORE_EXPERTS;
	return OD_OK;
}

static int run_experts(struct ods_emulator *e, struct od_err *err)
{
	const uint32_t m = od_forward_m(e->forward);
	uint64_t begin = od_trace_begin();
	int rc = od_forward_experts(e->forward, e->experts, err);

	od_trace_end("experts", begin, (int64_t)e->step.number, m, -1);
	if (rc != OD_OK)
		return rc;
	e->phase = BEFORE_ATTENTION;
	return od_forward_done(e->forward) ? finish_run(e, err) : OD_OK;
}

/* The next piece of the run, if there is one. */
static int run_piece(struct ods_emulator *e, bool *did, struct od_err *err)
{
	uint32_t layer;
	int rc;

	if (!ods_running(e))
		return OD_OK;
	layer = od_forward_layer(e->forward);
	if (e->phase == BEFORE_ATTENTION && !may_visit(e, layer))
		return OD_OK;
	rc = e->phase == BEFORE_ATTENTION ? run_attention(e, layer, err) : run_experts(e, err);
	*did = rc == OD_OK;
	return rc;
}

int ods_emulator_work(struct ods_emulator *e, uint64_t now_ns, bool *did, struct od_err *err)
{
	int rc = OD_OK;

	*did = false;
	if (!ods_running(e))
		rc = choose_run(e, err);
	if (rc == OD_OK) {
		ask(e, now_ns);
		rc = run_piece(e, did, err);
	}
	if (rc != OD_OK)
		ods_give_up(e);
	return rc;
}

uint64_t ods_emulator_deadline(const struct ods_emulator *e)
{
	uint64_t first = UINT64_MAX;

	for (size_t i = 0; i < e->o.max_sequences; i++) {
		const struct ods_sequence *q = &e->sequence[i];
		uint64_t t = ods_align_deadline(q->align);

		if (q->asked && q->asked_ns + ODS_ASK_AGAIN_NS < t)
			t = q->asked_ns + ODS_ASK_AGAIN_NS;
		if (t < first)
			first = t;
	}
	return first;
}

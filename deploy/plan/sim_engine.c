/* Main's engine: texts, decode steps, and chunks of prompts between them; as batch.c does it. */
#include "deploy/plan/sim_internal.h"
#include "main-node/engine/batch.h"
#include "main-node/predict/prediction_drafts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_BYTES 100 /* a message without rows, with what TCP adds */
#define STEP_ROW_BYTES 20

enum { COMPUTED, WOKEN }; /* events of main: a computation has ended; the last RESULT or a text has come */

static void work(struct odp_sim *s);
static void end_half(struct odp_sim *s);

/* ---- Life ---- */

static int pass_new(struct sim_pass *p, enum odm_phase phase, size_t max_rows, uint32_t max_parts, struct od_err *err)
{
	*p = (struct sim_pass){ .phase = phase };
	p->row = calloc(max_rows, sizeof(*p->row));
	p->part = calloc(max_parts, sizeof(*p->part));
	return p->row != NULL && p->part != NULL ? OD_OK :
						   od_fail(err, OD_ERR_NOMEM, "simulation of %zu rows", max_rows);
}

int odp_engine_new(struct odp_sim *s, struct od_err *err)
{
	struct sim_engine *e = &s->engine;
	int rc = pass_new(&e->decode, ODM_DECODE, s->decode_rows, s->o.max_texts, err);

	if (rc == OD_OK)
		rc = pass_new(&e->prefill, ODM_PREFILL, s->o.prefill_rows, s->o.max_texts, err);
	e->chunk_rows = s->o.prefill_rows;
	e->next_decode = ++e->last_step;
	odm_draft_policy_init(&s->policy, s->o.draft_tokens);
	if (s->o.drafts == ODP_DRAFTS_ALWAYS) {
		s->policy.drafting = true;
		s->policy.phase_steps = UINT32_MAX; /* this phase does not end */
	}
	return rc;
}

void odp_engine_free(struct odp_sim *s)
{
	free(s->engine.decode.row);
	free(s->engine.decode.part);
	free(s->engine.prefill.row);
	free(s->engine.prefill.part);
}

/* ---- Texts ---- */

static void admit_waiting(struct odp_sim *s)
{
	struct sim_engine *e = &s->engine;

	for (uint32_t i = 0; i < s->work->n_texts && e->n_admitted < s->o.max_texts; i++) {
		struct sim_text *q = &s->text[i];

		if (q->phase != TEXT_WAITING)
			continue;
		q->sequence = ++s->last_sequence;
		q->phase = s->work->prompt_tokens > 0 ? TEXT_PREFILL : TEXT_DECODE;
		e->n_admitted++;
	}
}

static bool any(const struct odp_sim *s, enum sim_text_phase phase)
{
	for (uint32_t i = 0; i < s->work->n_texts; i++)
		if (s->text[i].phase == phase)
			return true;
	return false;
}

static void take_counts(struct odp_sim *s, uint64_t sequence)
{
	struct odm_spread first_ns;
	uint64_t c[OD_N_COUNTERS] = { 0 };

	odm_predictions_take(s->predictions, sequence, c, &first_ns, NULL);
	s->f->recalled += c[OD_C_RECALLED_USES];
}

static void finish(struct odp_sim *s, uint32_t text)
{
	struct sim_engine *e = &s->engine;
	struct sim_text *q = &s->text[text];
	struct sim_message *m;

	q->phase = TEXT_ENDED;
	e->n_ended++;
	if (s->cluster.has_shadow) {
		m = odp_message(s, MSG_CLOSE_TEXT, MAIN, SHADOW, SMALL_BYTES, 0);
		if (m == NULL)
			return;
		m->text = text;
		odp_send(s, m);
	}
	if (odm_predictions_close(s->predictions, q->sequence))
		odp_send_wants(s);
	/* Loads that were wanted for the next step are about rows that will not come. */
	if (--e->n_admitted == 0) {
		odp_close_step(s, e->next_decode);
		e->next_decode = ++e->last_step;
	}
	take_counts(s, q->sequence);
}

void odp_engine_wake(struct odp_sim *s)
{
	odp_at(s, odp_clock_ns(), EV_MAIN, WOKEN, 0, NULL);
}

void odp_engine_text(struct odp_sim *s, uint32_t text)
{
	s->text[text].phase = TEXT_WAITING;
	if (s->engine.state == ENGINE_IDLE) /* others may come at the same moment */
		odp_engine_wake(s);
}

/* ---- Computing ---- */

/* Main waits for weights, is busy for so long, and goes on behind it. */
static void compute_after(struct odp_sim *s, enum sim_engine_state state, double wait_ns, double ns)
{
	s->engine.state = state;
	s->engine.begin_ns = odp_clock_ns();
	s->node[MAIN].busy.compute_ns += (uint64_t)llround(ns);
	odp_at(s, odp_clock_ns() + (uint64_t)llround(wait_ns + ns), EV_MAIN, COMPUTED, 0, NULL);
}

static void compute(struct odp_sim *s, enum sim_engine_state state, double ns)
{
	compute_after(s, state, 0, ns);
}

/* The rows of each text read the text's keys and values. Halves of the rows take as long each. */
static double context_ns(const struct odp_sim *s, const struct sim_pass *p, double weights)
{
	double ns = 0;

	for (size_t i = 0; weights > 0 && i < p->n_parts; i++) {
		const double positions = p->row[p->part[i].first].position + (p->part[i].n - 1) / 2.0;

		ns += odp_product_ns(&s->cluster.main, weights * positions, p->part[i].n);
	}
	return ns / p->n_halves;
}

static void begin_layer(struct odp_sim *s)
{
	struct sim_pass *p = s->engine.now;
	struct sim_half *h = odp_half(s);
	const struct odp_sim_block *b = &s->block[h->layer];

	h->begun = true;
	s->engine.layer_begin_ns = odp_clock_ns();
	compute_after(s, ENGINE_DENSE, odp_stream_layer_ns(s, h->layer),
		      s->cluster.main.run_ns + odp_product_ns(&s->cluster.main, b->dense_weights, (double)h->n_rows) +
			      context_ns(s, p, b->context_weights));
}

/* Its rows are known. */
static void begin_rows(struct sim_pass *p, bool halves)
{
	const size_t first = halves ? p->n_rows / 2 : p->n_rows;

	p->n_halves = halves ? 2 : 1;
	p->at = 0;
	p->half[0] = (struct sim_half){ .n_rows = first };
	p->half[1] = (struct sim_half){ .first = first, .n_rows = p->n_rows - first };
}

static void begin_head(struct odp_sim *s)
{
	const struct sim_pass *p = s->engine.now;
	double rows = 0, ns;

	for (size_t i = 0; i < p->n_parts; i++)
		rows += p->phase == ODM_DECODE ? p->part[i].n : p->part[i].seen;
	odp_layer_state(s, s->model.n_layers - 1);
	ns = odp_product_ns(&s->cluster.main, s->model.head_weights, rows);
	compute_after(s, ENGINE_HEAD, rows > 0 ? odp_stream_head_ns(s, ns) - ns : 0, ns);
}

/* ---- Decode ---- */

static bool guesses(const struct odp_sim *s)
{
	return s->o.drafts != ODP_DRAFTS_OFF;
}

static int32_t token_at(const struct odp_sim *s, uint32_t text, uint32_t position)
{
	return s->work->routes->token(s->work->routes->arg, text, position);
}

static void find_draft(struct odp_sim *s, uint32_t text, size_t most)
{
	struct sim_text *q = &s->text[text];
	struct odm_draft *d = &q->draft;

	*d = (struct odm_draft){ 0 };
	if (!guesses(s))
		return;
	d->experts[0] = s->model.n_moe * s->model.top_k;
	most = most < q->left - 1 ? most : q->left - 1;
	most = most < ODM_MAX_DRAFT ? most : ODM_MAX_DRAFT;
	if (most == 0 || !odm_draft_policy_on(&s->policy))
		return;
	d->n = odm_predictions_draft(s->predictions, q->sequence, q->length, token_at(s, text, q->length), d->token,
				     d->margin, most);
	if (d->n > 0)
		odm_predictions_union(s->predictions, q->sequence, q->length, d->n + 1, d->experts);
}

static void find_drafts(struct odp_sim *s)
{
	size_t n = 0, left;

	for (uint32_t i = 0; i < s->work->n_texts; i++)
		n += s->text[i].phase == TEXT_DECODE;
	left = n < s->decode_rows ? s->decode_rows - n : 0;
	n = 0;
	for (uint32_t i = 0; i < s->work->n_texts; i++) {
		if (s->text[i].phase != TEXT_DECODE)
			continue;
		find_draft(s, i, left);
		s->draft[n++] = &s->text[i].draft;
	}
	s->engine.draft_experts = 0;
	if (!guesses(s))
		return;
	odm_draft_policy_cut(&s->policy, s->draft, n, left);
	for (size_t i = 0; i < n; i++)
		s->engine.draft_experts += s->draft[i]->experts[s->draft[i]->n];
}

static void add_decode_rows(struct odp_sim *s)
{
	struct sim_pass *p = &s->engine.decode;

	find_drafts(s);
	p->n_rows = p->n_parts = 0;
	for (uint32_t i = 0; i < s->work->n_texts; i++) {
		const struct sim_text *q = &s->text[i];

		if (q->phase != TEXT_DECODE)
			continue;
		p->part[p->n_parts++] =
			(struct sim_part){ .text = i, .first = (uint32_t)p->n_rows, .n = (uint32_t)q->draft.n + 1 };
		p->row[p->n_rows++] = (struct sim_row){ i, q->length, token_at(s, i, q->length) };
		for (size_t j = 0; j < q->draft.n; j++)
			p->row[p->n_rows++] = (struct sim_row){ i, q->length + 1 + (uint32_t)j, q->draft.token[j] };
	}
}

/* Rows that the next step may have of a text, so that the shadow may run them ahead; at least 1, as od-main says it. */
static uint32_t ahead_of(const struct odp_sim *s, const struct sim_text *q, uint32_t n_rows)
{
	const uint32_t most = guesses(s) ? odm_draft_policy_ahead(&s->policy) : 1, left = q->left - n_rows;

	return most <= left ? most : left > 1 ? left : 1;
}

static void begin_predictions(struct odp_sim *s, const struct sim_pass *p)
{
	const struct odm_outlook outlook = odm_draft_policy_outlook(&s->policy);

	for (size_t i = 0; i < p->n_parts; i++)
		for (uint32_t j = 0; j < p->part[i].n; j++) {
			const struct sim_row *row = &p->row[p->part[i].first + j];
			const struct sim_text *q = &s->text[row->text];

			s->predicted[p->part[i].first + j] = (struct odm_predicted_row){
				.sequence = q->sequence,
				.position = row->position,
				.prompt_tokens = s->work->prompt_tokens,
				.token = j > 0 || odp_shadow_told(s, q->steps + 1) ? row->token : -1,
				.ahead = ahead_of(s, q, p->part[i].n),
				.outlook = outlook,
			};
		}
	odm_predictions_begin(s->predictions, p->step, s->engine.next_decode, s->predicted, p->n_rows, true);
}

static void tell_shadow(struct odp_sim *s, const struct sim_pass *p)
{
	struct sim_message *m;
	struct sim_step_row *row;

	if (!s->cluster.has_shadow)
		return;
	m = odp_message(s, MSG_STEP, MAIN, SHADOW, SMALL_BYTES + STEP_ROW_BYTES * (double)p->n_rows,
			p->n_rows * sizeof(*row));
	if (m == NULL)
		return;
	row = m->list;
	m->n = p->n_rows;
	for (size_t i = 0; i < p->n_parts; i++)
		for (uint32_t j = 0; j < p->part[i].n; j++) {
			const struct sim_row *r = &p->row[p->part[i].first + j];
			const struct sim_text *q = &s->text[r->text];
			const uint32_t left = q->left - p->part[i].n, ahead = ahead_of(s, q, p->part[i].n);

			row[p->part[i].first + j] = (struct sim_step_row){
				.text = r->text,
				.position = r->position,
				.token = j > 0 || odp_shadow_told(s, q->steps + 1) ? r->token : -1,
				.rows = j == 0 ? p->part[i].n : 0,
				.due = j == 0 && odp_shadow_aligned(s, q->steps + 1),
				.ahead = ahead < left ? ahead : left, /* nothing is recorded behind a text's end */
			};
		}
	s->f->small_bytes += (uint64_t)m->bytes;
	odp_send(s, m);
}

/* The number that was kept for the next decode step, which gets another one. */
static uint64_t take_number(struct odp_sim *s)
{
	const uint64_t number = s->engine.next_decode;

	s->engine.next_decode = ++s->engine.last_step;
	return number;
}

static void begin_decode(struct odp_sim *s)
{
	struct sim_engine *e = &s->engine;
	struct sim_pass *p = &e->decode;

	add_decode_rows(s);
	e->now = p;
	p->step = take_number(s);
	begin_rows(p, false);
	p->begun_ns = odp_clock_ns();
	p->stall_ns = 0;
	e->state_layer = 0;
	memset(s->row_ordered, 0, p->n_rows * sizeof(*s->row_ordered));
	memset(s->row_served, 0, p->n_rows * sizeof(*s->row_served));
	begin_predictions(s, p);
	tell_shadow(s, p);
	odp_send_wants(s);
	begin_layer(s);
}

/* Behind the first wrong token of a draft nothing is known. */
static void learn_draft(struct odp_sim *s, const struct sim_text *q, uint32_t n, uint32_t kept)
{
	s->f->drafted += n - 1;
	s->f->accepted += kept - 1;
	for (uint32_t i = 0; i + 1 < kept; i++)
		odm_draft_policy_learn(&s->policy, q->draft.margin[i], true);
	if (kept < n)
		odm_draft_policy_learn(&s->policy, q->draft.margin[kept - 1], false);
}

/* The rows behind the kept ones are undone. */
static void undo(struct odp_sim *s, uint32_t text, uint32_t length)
{
	struct sim_message *m;

	if (s->cluster.has_shadow) {
		m = odp_message(s, MSG_TRUNCATE, MAIN, SHADOW, SMALL_BYTES, 0);
		if (m == NULL)
			return;
		m->text = text;
		m->end = length;
		odp_send(s, m);
	}
	if (odm_predictions_truncate(s->predictions, s->text[text].sequence, length))
		odp_send_wants(s);
}

/* Rows stand up to the first whose token main does not choose. Returns how many. */
static uint32_t end_part(struct odp_sim *s, const struct sim_part *part)
{
	const struct sim_row *row = &s->engine.decode.row[part->first];
	struct sim_text *q = &s->text[part->text];
	uint32_t kept = 1;

	while (kept < part->n && row[kept].token == token_at(s, part->text, row[kept].position))
		kept++;
	for (uint32_t i = 0; i < kept; i++) {
		s->f->uses += (uint64_t)s->model.n_moe * s->model.top_k;
		s->f->ordered += s->row_ordered[part->first + i];
		s->f->served += s->row_served[part->first + i];
	}
	learn_draft(s, q, part->n, kept);
	if (kept < part->n)
		undo(s, part->text, q->length + kept);
	q->length += kept;
	q->left -= kept;
	q->steps++;
	if (odp_shadow_aligned(s, q->steps))
		q->aligned = q->length;
	return kept;
}

static void end_decode(struct odp_sim *s)
{
	struct sim_engine *e = &s->engine;
	struct sim_pass *p = &e->decode;
	const uint64_t ns = odp_clock_ns() - p->begun_ns;
	const struct odm_draft_step timed = {
		.texts = p->n_parts, .rows = p->n_rows, .experts = e->draft_experts, .ns = ns, .wait_ns = p->stall_ns
	};
	struct odm_draft_step step = timed;

	for (size_t i = 0; i < p->n_parts; i++)
		step.tokens += end_part(s, &p->part[i]);
	for (size_t i = 0; i < p->n_parts; i++)
		if (s->text[p->part[i].text].left == 0)
			finish(s, p->part[i].text);
	s->f->steps++;
	s->f->tokens += step.tokens;
	s->f->decode_ns += ns;
	s->f->stall_ns += p->stall_ns;
	e->decode_ns = e->decode_ns == 0 ? ns : (3 * e->decode_ns + ns) / 4;
	if (guesses(s))
		odm_draft_policy_timed(&s->policy, &step);
}

/* ---- Prompts ---- */

static void add_prompt_rows(struct odp_sim *s, bool others)
{
	struct sim_pass *p = &s->engine.prefill;
	size_t left = others ? s->engine.chunk_rows : s->o.prefill_rows;

	p->n_rows = p->n_parts = 0;
	for (uint32_t i = 0; i < s->work->n_texts && left > 0; i++) {
		const struct sim_text *q = &s->text[i];
		uint32_t n;

		if (q->phase != TEXT_PREFILL)
			continue;
		n = s->work->prompt_tokens - q->length;
		n = n < left ? n : (uint32_t)left;
		p->part[p->n_parts++] = (struct sim_part){
			.text = i, .first = (uint32_t)p->n_rows, .n = n, .seen = q->length + n == s->work->prompt_tokens
		};
		for (uint32_t j = 0; j < n; j++)
			p->row[p->n_rows++] = (struct sim_row){ i, q->length + j, token_at(s, i, q->length + j) };
		left -= n;
	}
}

/* A chunk begins, or goes on. */
static void prefill_some(struct odp_sim *s, bool others)
{
	struct sim_engine *e = &s->engine;
	struct sim_pass *p = &e->prefill;

	e->now = p;
	e->others = others;
	e->prefill_begin_ns = odp_clock_ns();
	if (!p->open) {
		add_prompt_rows(s, others);
		p->open = true;
		p->step = others ? ++e->last_step : take_number(s);
		begin_rows(p, !others && !s->model.recurrent && !odp_sim_streams(&s->model) &&
				      odm_prompt_rows_halves(&s->prompt, s->times, s->n_many, p->n_rows));
		e->layer_ns = 0;
		odm_predictions_begin(s->predictions, p->step, 0, NULL, 0, false);
	}
	begin_layer(s);
}

/* A further layer is begun only if the longest so far would still fit before the next decode step. A chunk that reads
 * its weights does not stop. */
static bool prefill_pauses(struct odp_sim *s)
{
	struct sim_engine *e = &s->engine;
	const uint64_t now = odp_clock_ns(), took = now - e->layer_begin_ns;

	e->layer_ns = took > e->layer_ns ? took : e->layer_ns;
	return e->others && !odp_sim_streams(&s->model) &&
	       now + e->layer_ns - e->prefill_begin_ns > ODM_PREFILL_PER_DECODE * e->decode_ns;
}

static void choose_chunk_rows(struct odp_sim *s)
{
	struct sim_engine *e = &s->engine;
	if (e->decode_ns > 0)
		e->chunk_rows = odm_chunk_rows(e->decode_ns, e->layer_ns, e->prefill.n_rows, s->o.prefill_rows);
}

static void end_prefill(struct odp_sim *s)
{
	struct sim_pass *p = &s->engine.prefill;

	p->open = false;
	odp_close_step(s, p->step);
	for (size_t i = 0; i < p->n_parts; i++) {
		struct sim_text *q = &s->text[p->part[i].text];
		const uint64_t ns = odp_clock_ns() - q->arrival_ns;

		q->length += p->part[i].n;
		if (!p->part[i].seen)
			continue;
		s->f->prompts++;
		s->f->ttft_ns += ns;
		s->f->most_ttft_ns = ns > s->f->most_ttft_ns ? ns : s->f->most_ttft_ns;
		q->aligned = q->length;
		q->phase = TEXT_DECODE;
		if (q->left == 0)
			finish(s, p->part[i].text);
	}
	choose_chunk_rows(s);
}

/* ---- The loop ---- */

/* The decode step comes before prompts, so that a new prompt delays running texts little. */
static void work(struct odp_sim *s)
{
	s->engine.state = ENGINE_IDLE;
	admit_waiting(s);
	if (any(s, TEXT_DECODE))
		begin_decode(s);
	else if (s->engine.prefill.open || any(s, TEXT_PREFILL))
		prefill_some(s, false);
}

static void next_layer(struct odp_sim *s)
{
	struct sim_engine *e = &s->engine;
	struct sim_pass *p = e->now;
	struct sim_half *h = odp_half(s);

	odp_stream_give(s, h->layer);
	h->m += s->block[h->layer].moe;
	h->layer++;
	if (h->layer == s->model.n_layers)
		end_half(s);
	else if (p->phase == ODM_PREFILL && prefill_pauses(s))
		work(s);
	else
		begin_layer(s);
}

/* Experts and shared experts of the layer are there. */
static void end_layer(struct odp_sim *s)
{
	struct sim_engine *e = &s->engine;
	struct sim_pass *p = e->now;

	odp_trace(s, MAIN, COMPUTES, "wait for experts", e->begin_ns, (int64_t)p->step, odp_half(s)->m, -1);
	p->stall_ns += e->layer_stall_ns;
	s->prompt.ended_ns = odp_clock_ns();
	next_layer(s);
}

/* Main waits for experts of the half that it is about. */
static void wait_for_experts(struct odp_sim *s)
{
	s->engine.state = ENGINE_EXPERTS;
	s->engine.begin_ns = odp_clock_ns();
	if (odp_layer_done(s))
		end_layer(s);
}

/* A half has been through all layers. */
static void end_half(struct odp_sim *s)
{
	struct sim_pass *p = s->engine.now;

	if (p->n_halves > 1 && p->half[1 - p->at].layer < s->model.n_layers) {
		p->at = 1 - p->at;
		wait_for_experts(s);
		return;
	}
	begin_head(s);
}

/* Nothing is left to compute of this layer: the other half's turn. */
static void end_own_part(struct odp_sim *s)
{
	struct sim_pass *p = s->engine.now;

	s->engine.computing = false;
	if (p->n_halves > 1 && p->half[1 - p->at].layer < s->model.n_layers)
		p->at = 1 - p->at;
	if (odp_half(s)->begun)
		wait_for_experts(s);
	else
		begin_layer(s);
}

static void begin_shared(struct odp_sim *s)
{
	struct sim_engine *e = &s->engine;
	const struct sim_half *h = odp_half(s);
	const double ns = odp_product_ns(&s->cluster.main, s->block[h->layer].shared_weights, (double)h->n_rows);

	e->computing = ns > 0;
	if (e->computing)
		compute(s, ENGINE_EXPERTS, ns);
	else
		end_own_part(s);
}

static void end_predict(struct odp_sim *s)
{
	const struct sim_engine *e = &s->engine;

	odp_trace(s, MAIN, COMPUTES, "predict", e->begin_ns, (int64_t)odp_call(s)->step, odp_call(s)->m, -1);
	odp_next_gate_says(s);
	begin_shared(s);
}

static void end_dense(struct odp_sim *s)
{
	const struct sim_engine *e = &s->engine;
	const struct sim_pass *p = e->now;
	const struct sim_half *h = odp_half(s);
	const struct odp_sim_block *b = &s->block[h->layer];
	double ns;

	odp_trace(s, MAIN, COMPUTES, "attention, router", e->begin_ns, (int64_t)p->step, b->moe ? (int64_t)h->m : -1,
		  -1);
	if (!b->moe) {
		next_layer(s);
		return;
	}
	odp_layer_routed(s);
	if (odp_next_gate_asks(s, &ns))
		compute(s, ENGINE_PREDICTS, ns);
	else
		begin_shared(s);
}

static void end_head(struct odp_sim *s)
{
	struct sim_engine *e = &s->engine;
	const struct sim_pass *p = e->now;
	const bool decode = p->phase == ODM_DECODE;

	odp_trace(s, MAIN, COMPUTES, "head", e->begin_ns, (int64_t)p->step, -1, -1);
	e->state = ENGINE_IDLE;
	if (decode)
		end_decode(s);
	else
		end_prefill(s);
	admit_waiting(s);
	if (decode && (e->prefill.open || any(s, TEXT_PREFILL)))
		prefill_some(s, true);
	else
		work(s);
}

void odp_engine_event(struct odp_sim *s, const struct sim_event *e)
{
	struct sim_engine *g = &s->engine;

	if (g->state == ENGINE_IDLE) {
		work(s);
	} else if (g->state == ENGINE_EXPERTS) {
		if (e->who == COMPUTED)
			end_own_part(s);
		else if (!g->computing && odp_layer_done(s))
			end_layer(s);
	} else if (e->who == WOKEN) {
		return; /* main's own work took longer */
	} else if (g->state == ENGINE_DENSE) {
		end_dense(s);
	} else if (g->state == ENGINE_PREDICTS) {
		end_predict(s);
	} else if (g->state == ENGINE_HEAD) {
		end_head(s);
	}
}

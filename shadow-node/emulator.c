#include "shadow-node/emulator_internal.h"

#include "common/base/trace.h"
#include "common/compute/rank.h"
#include "common/model/resident.h"

#include <stdlib.h>

/* ---- Life ---- */

/* Maximum number of states: a sequence that ends during a run keeps its state until the run ends, and another may
 * begin. */
static uint32_t most_states(const struct ods_emulator_opts *o)
{
	return 2 * (uint32_t)o->max_sequences;
}

/* Buffer bytes per row on the host: row of the run and of the plan, its prediction. */
static uint64_t host_row_bytes(void)
{
	return 2 * sizeof(struct row) + sizeof(struct emulator_part) + sizeof(struct od_row) + 2 * sizeof(uint32_t) +
	       sizeof(struct ods_chain_rows) + sizeof(struct od_prediction) +
	       OD_MAX_CANDIDATES * (sizeof(uint16_t) + sizeof(float));
}

/* A saved KV row. */
static uint64_t saved_row_bytes(const struct ods_emulator_opts *o)
{
	const struct od_config *c = o->forward.config;
	uint64_t most = 0;

	for (uint32_t i = 0; i < c->n_layers; i++) {
		uint64_t row[OD_MAX_STREAMS], sum = 0;

		for (uint32_t n = od_state_row_bytes(c, OD_PROFILE_F32, i, row); n > 0; n--)
			sum += row[n - 1];
		most = sum > most ? sum : most;
	}
	return most;
}

/* Rows whose tokens are sampled after one pass of the head. */
static size_t max_logits(const struct ods_emulator_opts *o)
{
	size_t n = o->max_sequences < o->forward.max_rows ? o->max_sequences : o->forward.max_rows;

	return n < ODS_MAX_LOGITS ? n : ODS_MAX_LOGITS;
}

void ods_emulator_split(const struct ods_emulator_opts *o, struct od_split *s)
{
	struct od_forward_opts forward = o->forward;

	forward.max_logits = max_logits(o);
	od_forward_split(&forward, s);
	od_split_add(&s->each.bytes, od_resident_bytes(&o->forward));
	od_split_add(&s->each.bytes, o->forward.max_rows * saved_row_bytes(o)); /* at most ODS_MAX_STEP_ROWS */
	od_split_add(&s->beside.bytes, o->forward.max_rows * host_row_bytes() +
					       o->max_sequences * (sizeof(struct ods_sequence *) + sizeof(uint64_t)));
	ods_sequence_split(&o->forward, o->ctx_tokens, s);
}

static bool has_fixed(const struct od_config *c)
{
	bool any = false;

	for (uint32_t i = 0; i < c->n_kinds; i++)
		any = any || c->kind[i].mixer->replay != NULL;
	return any;
}

static int open_sequences(struct ods_emulator *e, struct od_err *err)
{
	const struct od_forward_opts *f = &e->o.forward;
	const uint64_t most = (uint64_t)od_state_pages(e->o.ctx_tokens) * e->o.max_sequences;
	int rc;

	e->sequence = calloc(e->o.max_sequences, sizeof(struct ods_sequence *));
	e->closed = calloc(e->o.max_sequences, sizeof(*e->closed));
	if (e->sequence == NULL || e->closed == NULL)
		return od_fail(err, OD_ERR_NOMEM, "emulator: %zu sequences", e->o.max_sequences);
	e->fixed = has_fixed(f->config);
	rc = od_state_pool_new(&e->state, f->device, f->config, f->profile, e->o.ctx_tokens, most_states(&e->o),
			       e->o.n_pages > 0 && e->o.n_pages < most ? e->o.n_pages : most, err);
	return rc == OD_OK ? od_state_pool_set_copies(e->state, f->device, ODS_FIXED_COPIES, err) : rc;
}

static int open_buffers(struct ods_emulator *e, struct od_err *err)
{
	size_t n = e->o.forward.max_rows;

	e->rows = calloc(n, sizeof(*e->rows));
	e->spare = calloc(n, sizeof(*e->spare));
	e->parts = calloc(n, sizeof(*e->parts));
	e->od_rows = calloc(n, sizeof(*e->od_rows));
	e->pick = calloc(n, sizeof(*e->pick));
	e->token = calloc(n, sizeof(*e->token));
	e->chain_rows = calloc(n, sizeof(*e->chain_rows));
	e->prediction = calloc(n, sizeof(*e->prediction));
	e->expert = calloc(n, OD_MAX_CANDIDATES * sizeof(*e->expert));
	e->probability = calloc(n, OD_MAX_CANDIDATES * sizeof(*e->probability));
	if (e->rows == NULL || e->spare == NULL || e->parts == NULL || e->od_rows == NULL || e->pick == NULL ||
	    e->token == NULL || e->chain_rows == NULL || e->prediction == NULL || e->expert == NULL ||
	    e->probability == NULL)
		return od_fail(err, OD_ERR_NOMEM, "emulator: buffers for %zu rows", n);
	return ods_saved_init(&e->saved, &e->o.forward, err);
}

static int check_opts(const struct ods_emulator_opts *o, struct od_err *err)
{
	if (o->max_sequences == 0 || o->max_sequences > ODS_MAX_SEQUENCES || o->forward.max_rows > ODS_MAX_STEP_ROWS)
		return od_fail(err, OD_ERR_RANGE, "emulator: %zu sequences, %zu rows: expected 1 to %d and at most %d",
			       o->max_sequences, o->forward.max_rows, ODS_MAX_SEQUENCES, ODS_MAX_STEP_ROWS);
	return OD_OK;
}

int ods_emulator_new(struct ods_emulator **out, const struct ods_emulator_opts *o, const struct ods_sink *sink,
		     struct od_err *err)
{
	struct ods_emulator *e;
	int rc = check_opts(o, err);

	*out = NULL;
	if (rc != OD_OK)
		return rc;
	e = calloc(1, sizeof(*e));
	if (e == NULL)
		return od_fail(err, OD_ERR_NOMEM, "emulator");
	e->o = *o;
	e->o.forward.max_logits = max_logits(o);
	e->sink = *sink;
	rc = open_sequences(e, err);
	if (rc != OD_OK)
		goto fail;
	e->o.forward.state = e->state;
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

/* Releases the rows of a run that ends. keep: the tokens after them can still be sampled. */
static void leave_rows(struct ods_emulator *e, bool keep)
{
	for (size_t i = 0, n; i < e->n_rows; i += n) {
		struct ods_sequence *q = e->rows[i].seq;

		n = q != NULL ? q->run_n : 1;
		if (q == NULL)
			continue;
		if (q->closed)
			for (size_t j = i; j < i + n; j++)
				e->rows[j].seq = NULL;
		if (q->closed)
			ods_sequence_free(q);
		else if (!keep)
			q->run_n = 0;
	}
}

void ods_emulator_free(struct ods_emulator *e)
{
	if (e == NULL)
		return;
	(void)!od_device_sync(e->o.forward.device, NULL); /* queued work uses buffers that are freed here */
	if (e->phase != NO_RUN)
		leave_rows(e, false);
	od_resident_free(e->experts);
	od_forward_free(e->forward);
	for (size_t i = 0; i < e->n_sequences; i++)
		ods_sequence_free(e->sequence[i]);
	od_state_pool_free(e->state);
	free(e->sequence);
	free(e->closed);
	free(e->rows);
	free(e->spare);
	free(e->parts);
	free(e->od_rows);
	free(e->pick);
	free(e->token);
	free(e->chain_rows);
	free(e->prediction);
	free(e->expert);
	free(e->probability);
	ods_saved_fini(&e->saved);
	free(e);
}

/* ---- Void rows ---- */

void ods_end_run(struct ods_emulator *e)
{
	e->phase = NO_RUN;
	leave_rows(e, false);
	e->n_rows = e->n_live = 0;
}

void ods_void_rows(struct ods_emulator *e, struct ods_sequence *q, uint32_t position)
{
	for (size_t i = q->run_first; i < q->run_first + q->run_n; i++) {
		struct row *r = &e->rows[i];

		if (r->position >= position && !r->is_void) {
			r->is_void = true;
			e->n_live--;
		}
	}
	if (e->phase != NO_RUN && e->n_live == 0)
		ods_end_run(e);
}

/* Takes the sequence out of the run; its rows run again later. */
static void lose_rows(struct ods_emulator *e, struct ods_sequence *q)
{
	const struct row r = e->rows[q->run_first];

	ods_void_rows(e, q, 0);
	if (r.published && r.position < q->next)
		q->next = r.position;
	if (r.published && q->next >= q->stepped) /* a guess: the next one may differ */
		ods_drop_rows(e, q, q->next);
}

static void abandon_run(struct ods_emulator *e)
{
	for (size_t i = 0, n; ods_running(e) && i < e->n_rows; i += n) {
		n = e->rows[i].seq->run_n;
		if (!e->rows[i].is_void)
			lose_rows(e, e->rows[i].seq);
	}
}

void ods_drop_rows(struct ods_emulator *e, struct ods_sequence *q, uint32_t position)
{
	/* The pages are left to other sequences, and this one no longer knows which of their rows are true: the run
	 * must not write to them. This happens when main truncates into a shared prefix, which is rare. */
	if (ods_running(e) && q->run_n > 0 && ods_align_shared(q->align, position))
		abandon_run(e);
	ods_void_rows(e, q, position);
	ods_sequence_drop_rows(q, position);
}

/* The rows must go: the sequence may continue with another prompt, for which no STEP is sent. The first guessed token
 * stays: the shadow would sample the same one again. */
void ods_take_back_guesses(struct ods_emulator *e, struct ods_sequence *q)
{
	ods_drop_rows(e, q, q->stepped);
	ods_sequence_forget_tokens(q, q->stepped + 1);
	e->o.counters[OD_C_SHADOW_MISTAKEN] += q->next - q->stepped;
	q->next = q->limit = q->stepped;
}

/* Work is queued, so the failure may come from an earlier run: no row is known to be good. Nothing is retried before
 * main's next message, because a retry may run the same failing work. */
void ods_give_up(struct ods_emulator *e)
{
	if (e->phase != NO_RUN)
		ods_end_run(e);
	for (size_t i = 0; i < e->n_sequences; i++) {
		struct ods_sequence *q = e->sequence[i];

		if (ods_is_ahead(q))
			ods_take_back_guesses(e, q);
		q->next = q->limit = q->stepped;
		q->told = 0;
		ods_sequence_clear(q);
	}
}

void ods_release(struct ods_emulator *e, struct ods_sequence *q)
{
	ods_void_rows(e, q, 0);
	if (ods_running(e) && q->run_n > 0) { /* the run still writes to its pages */
		q->closed = true;
		ods_align_expire(q->align, UINT64_MAX); /* other sequences may now request the same rows */
		return;
	}
	for (size_t i = q->run_first; i < q->run_first + q->run_n; i++)
		e->rows[i].seq = NULL;
	ods_sequence_free(q);
}

/* ---- The run ---- */

/* A draft is early or worthless: it does not wait for main's rows where the shadow has its own. */
static bool is_ready(const struct ods_sequence *q, uint32_t layer, uint32_t position)
{
	return q->ahead > 1 ? ods_align_held(q->align, layer, position) : ods_align_ready(q->align, layer, position);
}

/* Checks whether all rows are ready for the next layer. The run waits for earlier rows that are due. A sequence that
 * lost earlier rows leaves the run, so that the others need not wait for it. */
static void look_ahead(struct ods_emulator *e)
{
	uint32_t layer;

	e->waits = false;
	if (e->phase != BEFORE_ATTENTION)
		return;
	layer = ods_layer(e);
	for (size_t i = 0, n; e->phase == BEFORE_ATTENTION && i < e->n_rows; i += n) {
		struct ods_sequence *q = e->rows[i].seq;
		const uint32_t position = e->rows[i].position;

		n = q->run_n;
		if (e->rows[i].is_void || is_ready(q, layer, position))
			continue;
		if (q->step != e->newest) /* main has begun a later step */
			ods_align_settle(q->align, UINT32_MAX, position);
		else if (layer < e->streamed) /* main has sent a later layer */
			ods_align_settle(q->align, layer + 1, position);
		if (ods_align_missing_in(q->align, layer, position) < position)
			lose_rows(e, q);
		else
			e->waits = true;
	}
}

/* Publishes all published rows of a layer in one call. */
static void publish(struct ods_emulator *e, uint32_t m)
{
	const struct od_config *c = e->o.forward.config;
	const size_t n = od_prediction_candidates(c);
	size_t n_out = 0;

	for (size_t i = 0; i < e->n_rows; i++) {
		const struct row *r = &e->rows[i];
		const float *all = ods_layer_probabilities(e, i);
		uint16_t *expert = e->expert + n_out * OD_MAX_CANDIDATES;
		float *probability = e->probability + n_out * OD_MAX_CANDIDATES;

		if (r->is_void || !r->published)
			continue;
		od_rank(all, c->n_experts, expert, n);
		for (size_t j = 0; j < n; j++)
			probability[j] = all[expert[j]];
		e->prediction[n_out++] = (struct od_prediction){
			.sequence = r->seq->id,
			.position = r->position,
			.m = m,
			.token = r->token,
			.margin = r->seq->margin[r->position],
			.expert = expert,
			.probability = probability,
			.n = n,
		};
	}
	e->sink.predict(e->sink.arg, m, e->prediction, n_out);
	e->o.counters[OD_C_SHADOW_PREDICTIONS] += n_out;
}

/* True: a live row of the run is published. */
static bool any_published(const struct ods_emulator *e)
{
	for (size_t i = 0; i < e->n_rows; i++)
		if (e->rows[i].published && !e->rows[i].is_void)
			return true;
	return false;
}

/* Live rows of the sequence whose rows begin with row i; 0: none is to be kept. Its void rows follow them. */
static uint32_t live_rows(const struct ods_emulator *e, size_t i)
{
	const struct ods_sequence *q = e->rows[i].seq;
	uint32_t n = 0;

	while (n < q->run_n && !e->rows[i + n].is_void)
		n++;
	/* A sequence's rows of a long run can only be kept together. */
	return q->closed || (n < q->run_n && e->n_rows > OD_KEEP_ROWS) ? 0 : n;
}

/* Main's text will not be shorter than this: of a step's rows the first one stands, and drafts behind it may be
 * undone. */
static uint32_t sure_of(const struct ods_sequence *q)
{
	const uint32_t sure = q->begun < q->stepped ? q->begun + 1 : q->stepped;

	return sure < q->main_end ? sure : q->main_end;
}

/* Ends the run's layers. Fixed state takes in its rows. */
static int commit_rows(struct ods_emulator *e, struct od_err *err)
{
	uint32_t n = 0;
	int rc;

	for (size_t i = 0; i < e->n_rows; i += e->rows[i].seq->run_n)
		e->pick[n++] = live_rows(e, i);
	rc = ods_layers_end(e, e->fixed ? e->pick : NULL, n, err);
	if (rc == OD_OK && e->fixed)
		for (size_t i = 0; i < e->n_rows; i += e->rows[i].seq->run_n) {
			struct ods_sequence *q = e->rows[i].seq;

			ods_sequence_note_run(q, sure_of(q));
		}
	return rc;
}

/* Samples the next tokens at once if they will be needed, even when the run is ahead and unconfirmed: the shadow is
 * idle now, and the next run overwrites these rows. */
static int finish_run(struct ods_emulator *e, struct od_err *err)
{
	size_t n = 0;
	int rc = commit_rows(e, err);

	if (rc != OD_OK)
		return rc;
	e->phase = FINISHED;
	leave_rows(e, true);
	for (size_t i = 0; i < e->n_rows; i++) {
		const struct row *r = &e->rows[i];
		const bool last = i + 1 == e->n_rows || r[1].seq != r->seq || r[1].is_void;

		if (r->is_void || !last || r->position + 1 >= r->seq->ctx || r->seq->token[r->position + 1] >= 0)
			continue;
		if ((e->o.early && r->published && r->seq->ahead > 0) || e->unaligned)
			e->pick[n++] = (uint32_t)i;
	}
	return ods_choose_tokens(e, e->pick, n, err);
}

/* ---- Work ---- */

/* Attention and router of a layer; all of a dense layer. */
static int run_attention(struct ods_emulator *e, struct od_err *err)
{
	const bool published = any_published(e);
	uint64_t begin = od_trace_begin();
	int rc;

	e->layer_end_ns = e->layer_begin_ns + e->o.layer_ns;
	rc = ods_layer_attention(e, published, err);
	od_trace_end("attention, router", begin, (int64_t)e->newest,
		     rc == OD_OK && ods_layer_routed(e) ? (int64_t)ods_layer_m(e) : -1, -1);
	if (rc != OD_OK)
		return rc;
	if (!ods_layer_routed(e))
		return ods_layers_done(e) ? finish_run(e, err) : OD_OK;
	if (published)
		publish(e, ods_layer_m(e));
	e->phase = BEFORE_EXPERTS;
	return OD_OK;
}

static int run_experts(struct ods_emulator *e, struct od_err *err)
{
	const uint32_t m = ods_layer_m(e);
	uint64_t begin = od_trace_begin();
	int rc = ods_layer_experts(e, err);

	od_trace_end("experts", begin, (int64_t)e->newest, m, -1);
	if (rc != OD_OK)
		return rc;
	e->phase = BEFORE_ATTENTION;
	return ods_layers_done(e) ? finish_run(e, err) : OD_OK;
}

/* Does the next piece of the run, if there is one. */
static int run_piece(struct ods_emulator *e, bool *did, struct od_err *err)
{
	int rc;

	if (!ods_running(e) || e->waits)
		return OD_OK;
	rc = e->phase == BEFORE_ATTENTION ? run_attention(e, err) : run_experts(e, err);
	*did = rc == OD_OK;
	return rc;
}

/* Finds a run that can continue, if there is one. */
static int find_run(struct ods_emulator *e, struct od_err *err)
{
	int rc = OD_OK;

	look_ahead(e);
	while (rc == OD_OK && !ods_running(e)) {
		const uint64_t before = e->n_runs;

		rc = ods_choose_run(e, err);
		if (e->n_runs == before)
			break;
		if (rc == OD_OK)
			look_ahead(e); /* may end a run that lost all rows; then choose another */
	}
	return rc;
}

/* True: the newest layer's time is not over. A layer that waits for nothing else begins when the time of the one before
 * ends, even if the caller is late, so that delays do not add up. */
static bool pause_layer(struct ods_emulator *e, uint64_t now_ns)
{
	const bool paused = e->paused;

	e->paused = e->phase != BEFORE_EXPERTS && now_ns < e->layer_end_ns;
	e->layer_begin_ns = paused ? e->layer_end_ns : now_ns;
	return e->paused;
}

/* After a break the parts have lost all rows. */
static bool chain_is_up(struct ods_emulator *e, uint64_t now_ns)
{
	bool fresh, up;

	if (e->o.chain == NULL)
		return true;
	up = ods_chain_up(e->o.chain, now_ns, &fresh);
	if (fresh)
		ods_give_up(e);
	return up;
}

int ods_emulator_work(struct ods_emulator *e, uint64_t now_ns, bool *did, struct od_err *err)
{
	int rc;

	*did = false;
	if (!chain_is_up(e, now_ns) || pause_layer(e, now_ns))
		return OD_OK;
	rc = find_run(e, err);
	if (rc == OD_OK) {
		ods_ask(e, now_ns);
		rc = run_piece(e, did, err);
	}
	if (rc != OD_OK)
		ods_give_up(e);
	return rc;
}

uint64_t ods_emulator_deadline(const struct ods_emulator *e)
{
	uint64_t first = UINT64_MAX;

	if (e->o.chain != NULL && ods_chain_deadline(e->o.chain) != UINT64_MAX)
		return ods_chain_deadline(e->o.chain);
	if (e->paused)
		return e->layer_end_ns;
	for (size_t i = 0; i < e->n_sequences; i++) {
		const struct ods_sequence *q = e->sequence[i];
		uint64_t t = ods_align_deadline(q->align);

		if (q->asked && q->asked_ns + ODS_ASK_AGAIN_NS < t)
			t = q->asked_ns + ODS_ASK_AGAIN_NS;
		if (t < first)
			first = t;
	}
	return first;
}

#include "shadow-node/emulator.h"

#include "common/base/mem.h"
#include "common/base/trace.h"
#include "common/model/expert_ffn.h"
#include "common/model/resident.h"
#include "common/model/router.h"

#include <stdlib.h>
#include <string.h>

struct sequence {
	bool used;
	uint64_t id;
	struct od_seq_state *state;
	struct ods_align *align;
};

struct row {
	struct sequence *seq;
	uint32_t position;
	int32_t token;
	bool first, last; /* of its sequence in this step */
	bool was_true;	  /* main's keys and values of this layer were here before our own attention */
};

struct step {
	uint64_t number, next; /* next: the number of the step after this one; 0: not known */
	bool due;	       /* its true rows will come */
	size_t n_rows;
	struct row *rows; /* [max_rows] */
};

enum phase { NO_RUN, BEFORE_ATTENTION, BEFORE_EXPERTS, FINISHED };

struct ods_emulator {
	struct ods_emulator_opts o;
	struct ods_sink sink;
	struct od_forward *forward;
	struct od_expert_runner *experts;
	struct sequence sequence[ODS_MAX_SEQUENCES];
	size_t row_bytes; /* of K or V at one position of one layer */

	/* The run. */
	enum phase phase;
	struct step step;
	bool ahead;	/* no STEP has confirmed it yet */
	bool published; /* else it runs for its own rows only */
	int32_t *next_token; /* [max_rows] once FINISHED: what would follow, for the last row of each sequence */

	/* The newest STEP, while it waits for the run or for rows. */
	bool pending;
	struct step latest;
	uint64_t newest; /* number of the newest STEP ever */

	struct step spare; /* being made */
	struct od_row *od_rows; /* [max_rows] */
	char *saved;	   /* [max_rows][2][row_bytes]: true rows during our own attention */
	float *logits;	   /* [vocab] */
	struct ods_emulator_stats stats;
};

/* ---- Life ---- */

uint64_t ods_emulator_sequence_bytes(const struct ods_emulator_opts *o)
{
	const struct od_config *c = o->forward.config;
	uint64_t state = od_seq_state_bytes(c, o->forward.profile, o->ctx_tokens), sum;

	return od_add(state, ods_align_bytes(c->n_layers, o->ctx_tokens), &sum) ? sum : UINT64_MAX;
}

/* Per row: three steps, od_row, next_token, saved rows, and what the resident experts sort and copy. */
static uint64_t buffer_row_bytes(const struct ods_emulator_opts *o)
{
	const struct od_config *c = o->forward.config;

	return 3 * sizeof(struct row) + sizeof(struct od_row) + sizeof(int32_t) +
	       2 * (uint64_t)od_config_kv_dim(c) * sizeof(float) + 2 * (uint64_t)c->hidden * sizeof(float) +
	       c->top_k * sizeof(uint32_t);
}

uint64_t ods_emulator_bytes(const struct ods_emulator_opts *o)
{
	const struct od_config *c = o->forward.config;
	uint64_t sum = ods_emulator_sequence_bytes(o), rows;

	if (!od_add(sum, od_forward_bytes(&o->forward), &sum) || !od_mul(o->forward.max_rows, buffer_row_bytes(o), &rows) ||
	    !od_add(sum, rows, &sum) || !od_add(sum, od_expert_ffn_scratch_bytes(c, o->forward.max_rows), &sum) ||
	    !od_add(sum, c->vocab * sizeof(float), &sum))
		return UINT64_MAX;
	return sum;
}

static int open_sequences(struct ods_emulator *e, struct od_err *err)
{
	const struct od_config *c = e->o.forward.config;

	for (size_t i = 0; i < e->o.max_sequences; i++) {
		struct sequence *s = &e->sequence[i];
		int rc = od_seq_state_new(&s->state, c, e->o.forward.profile, e->o.ctx_tokens, err);

		if (rc != OD_OK)
			return rc;
		e->row_bytes = od_seq_state_row_bytes(s->state);
		rc = ods_align_new(&s->align, c->n_layers, e->o.ctx_tokens,
				   (uint32_t)(ODS_MAX_ASK_BYTES / (2 * e->row_bytes)), err);
		if (rc != OD_OK)
			return rc;
	}
	return OD_OK;
}

static int open_buffers(struct ods_emulator *e, struct od_err *err)
{
	size_t n = e->o.forward.max_rows;

	e->step.rows = calloc(n, sizeof(struct row));
	e->latest.rows = calloc(n, sizeof(struct row));
	e->spare.rows = calloc(n, sizeof(struct row));
	e->next_token = calloc(n, sizeof(*e->next_token));
	e->od_rows = calloc(n, sizeof(*e->od_rows));
	e->saved = calloc(n, 2 * e->row_bytes);
	e->logits = od_alloc_array(e->o.forward.config->vocab, sizeof(float));
	if (e->step.rows == NULL || e->latest.rows == NULL || e->spare.rows == NULL || e->next_token == NULL ||
	    e->od_rows == NULL || e->saved == NULL || e->logits == NULL)
		return od_fail(err, OD_ERR_NOMEM, "emulator: buffers for %zu rows", n);
	return OD_OK;
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
	rc = od_forward_new(&e->forward, &o->forward, err);
	if (rc != OD_OK)
		goto fail;
	rc = od_resident_new(&e->experts, &o->forward, o->experts, err);
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
	od_resident_free(e->experts);
	od_forward_free(e->forward);
	for (size_t i = 0; i < ODS_MAX_SEQUENCES; i++) {
		od_seq_state_free(e->sequence[i].state);
		ods_align_free(e->sequence[i].align);
	}
	free(e->step.rows);
	free(e->latest.rows);
	free(e->spare.rows);
	free(e->next_token);
	free(e->od_rows);
	free(e->saved);
	od_free(e->logits);
	free(e);
}

const struct ods_emulator_stats *ods_emulator_stats(const struct ods_emulator *e)
{
	return &e->stats;
}

/* ---- The run ---- */

static bool running(const struct ods_emulator *e)
{
	return e->phase == BEFORE_ATTENTION || e->phase == BEFORE_EXPERTS;
}

static void swap_steps(struct step *a, struct step *b)
{
	struct step t = *a;

	*a = *b;
	*b = t;
}

/* The rows that it wrote for true tokens are good. Those of a guess must not stay: the sequence may go on with another
 * prompt, of which no STEP tells. */
static void abandon(struct ods_emulator *e)
{
	if (e->phase != NO_RUN && e->ahead) {
		for (size_t i = 0; i < e->step.n_rows; i++)
			ods_align_truncate(e->step.rows[i].seq->align, e->step.rows[i].position);
		e->stats.mistaken++;
	}
	e->phase = NO_RUN;
}

/* e->step becomes the run. */
static int begin_run(struct ods_emulator *e, bool ahead, struct od_err *err)
{
	int rc;

	for (size_t i = 0; i < e->step.n_rows; i++) {
		const struct row *r = &e->step.rows[i];

		e->od_rows[i] = (struct od_row){ r->seq->state, r->position, r->token };
		if (r->first)
			od_seq_state_set_length(r->seq->state, r->position);
	}
	rc = od_forward_begin(e->forward, e->step.number, e->od_rows, e->step.n_rows, err);
	e->phase = rc == OD_OK ? BEFORE_ATTENTION : NO_RUN;
	e->ahead = ahead;
	e->published = true;
	return rc;
}

/* The step after the finished run, with our own tokens. False: there is no such step. */
static bool make_next_step(struct ods_emulator *e)
{
	struct step *s = &e->spare;

	s->number = e->step.next;
	s->next = 0; /* the STEP that confirms it will say */
	s->due = false;
	s->n_rows = 0;
	for (size_t i = 0; i < e->step.n_rows; i++) {
		const struct row *r = &e->step.rows[i];

		if (!r->last)
			continue;
		if (r->position + 1 >= e->o.ctx_tokens)
			return false;
		s->rows[s->n_rows++] = (struct row){ .seq = r->seq, .position = r->position + 1,
						     .token = e->next_token[i], .first = true, .last = true };
	}
	return true;
}

/* Nothing that the step builds on is missing. */
static bool complete(const struct step *s)
{
	for (size_t i = 0; i < s->n_rows; i++)
		if (s->rows[i].first && !ods_align_complete(s->rows[i].seq->align, s->rows[i].position))
			return false;
	return true;
}

/* Between two runs: the newest STEP goes first, then our own guess at the one after it. */
static int choose_run(struct ods_emulator *e, struct od_err *err)
{
	if (e->pending) {
		if (!complete(&e->latest))
			return OD_OK;
		swap_steps(&e->step, &e->latest);
		e->pending = false;
		return begin_run(e, false, err);
	}
	if (e->phase != FINISHED || e->ahead || !e->published || !e->o.early || e->step.next == 0)
		return OD_OK;
	if (!make_next_step(e)) {
		e->step.next = 0;
		return OD_OK;
	}
	swap_steps(&e->step, &e->spare);
	return begin_run(e, true, err);
}

static bool may_visit(const struct ods_emulator *e, uint32_t layer)
{
	for (size_t i = 0; i < e->step.n_rows; i++) {
		const struct row *r = &e->step.rows[i];

		if (r->first && !ods_align_ready(r->seq->align, layer, r->position))
			return false;
	}
	return true;
}

/* True rows may be there already, when main is ahead of us in its own step: our attention would write over them. */
static void save_true_rows(struct ods_emulator *e, uint32_t layer)
{
	for (size_t i = 0; i < e->step.n_rows; i++) {
		struct row *r = &e->step.rows[i];
		char *to = e->saved + 2 * i * e->row_bytes;

		r->was_true = ods_align_is_true(r->seq->align, layer, r->position);
		if (!r->was_true)
			continue;
		memcpy(to, od_seq_state_k(r->seq->state, layer, r->position), e->row_bytes);
		memcpy(to + e->row_bytes, od_seq_state_v(r->seq->state, layer, r->position), e->row_bytes);
	}
}

static void restore_true_rows(struct ods_emulator *e, uint32_t layer)
{
	for (size_t i = 0; i < e->step.n_rows; i++) {
		struct row *r = &e->step.rows[i];
		const char *from = e->saved + 2 * i * e->row_bytes;

		ods_align_own(r->seq->align, layer, r->position);
		if (!r->was_true)
			continue;
		memcpy(od_seq_state_k(r->seq->state, layer, r->position), from, e->row_bytes);
		memcpy(od_seq_state_v(r->seq->state, layer, r->position), from + e->row_bytes, e->row_bytes);
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
		struct od_prediction p = {
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

		od_router_rank(all, c->n_experts, expert, n);
		for (size_t j = 0; j < n; j++)
			probability[j] = all[expert[j]];
		e->sink.predict(e->sink.arg, &p);
		e->stats.predictions++;
	}
}

/* Greedy; ties go to the lower id, as in main's sampler. */
static int32_t best_token(const float *logits, uint32_t vocab)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < vocab; i++)
		if (logits[i] > logits[best])
			best = i;
	return (int32_t)best;
}

static void finish_run(struct ods_emulator *e)
{
	uint64_t begin;

	e->phase = FINISHED;
	if (!e->o.early || !e->published)
		return;
	begin = od_trace_begin();
	/* At once, also when the run is ahead and not confirmed: there is nothing better to do meanwhile. */
	for (size_t i = 0; i < e->step.n_rows; i++) {
		if (!e->step.rows[i].last)
			continue;
		od_forward_logits(e->forward, i, e->logits);
		e->next_token[i] = best_token(e->logits, e->o.forward.config->vocab);
	}
	od_trace_end("head", begin, (int64_t)e->step.number, -1, -1);
}

/* Ask for what is missing before the run, or before the step that waits for it. Not for rows that an unpublished
 * run is about to write: those are below the waiting step, not below the run. */
static void ask(struct ods_emulator *e, uint64_t now_ns)
{
	const struct step *s = running(e) ? &e->step : &e->latest;
	size_t out = 0;

	for (size_t i = 0; i < e->o.max_sequences; i++) {
		ods_align_expire(e->sequence[i].align, now_ns);
		out += ods_align_asked(e->sequence[i].align);
	}
	if (!running(e) && !e->pending)
		return;
	for (size_t i = 0; i < s->n_rows; i++) {
		const struct row *r = &s->rows[i];
		struct ods_range range;

		while (r->first && out < ODS_MAX_ASKED && ods_align_ask(r->seq->align, r->position, now_ns, &range)) {
			out++;
			e->stats.asked++;
			e->sink.ask(e->sink.arg, r->seq->id, &range);
		}
	}
}

static void run_attention(struct ods_emulator *e, uint32_t layer)
{
	uint64_t begin = od_trace_begin();

	save_true_rows(e, layer);
	od_forward_attention(e->forward);
	restore_true_rows(e, layer);
	od_trace_end("attention, router", begin, (int64_t)e->step.number, layer, -1);
	if (e->published)
		publish(e, layer);
	e->phase = BEFORE_EXPERTS;
}

static int run_experts(struct ods_emulator *e, uint32_t layer, struct od_err *err)
{
	uint64_t begin = od_trace_begin();
	int rc = od_forward_experts(e->forward, e->experts, err);

	od_trace_end("experts", begin, (int64_t)e->step.number, layer, -1);
	if (rc != OD_OK) {
		abandon(e);
		return rc;
	}
	e->phase = BEFORE_ATTENTION;
	if (od_forward_done(e->forward))
		finish_run(e);
	return OD_OK;
}

int ods_emulator_work(struct ods_emulator *e, uint64_t now_ns, bool *did, struct od_err *err)
{
	uint32_t layer;
	int rc = OD_OK;

	*did = false;
	if (!running(e))
		rc = choose_run(e, err);
	ask(e, now_ns);
	if (rc != OD_OK || !running(e))
		return rc;
	layer = od_forward_layer(e->forward);
	if (e->phase == BEFORE_ATTENTION && !may_visit(e, layer))
		return OD_OK;
	if (e->phase == BEFORE_ATTENTION)
		run_attention(e, layer);
	else
		rc = run_experts(e, layer, err);
	*did = rc == OD_OK;
	return rc;
}

uint64_t ods_emulator_deadline(const struct ods_emulator *e)
{
	uint64_t first = UINT64_MAX;

	for (size_t i = 0; i < e->o.max_sequences; i++) {
		uint64_t t = ods_align_deadline(e->sequence[i].align);

		if (t < first)
			first = t;
	}
	return first;
}

/* ---- Messages ---- */

static struct sequence *find_sequence(struct ods_emulator *e, uint64_t id)
{
	for (size_t i = 0; i < e->o.max_sequences; i++)
		if (e->sequence[i].used && e->sequence[i].id == id)
			return &e->sequence[i];
	return NULL;
}

static struct sequence *open_sequence(struct ods_emulator *e, uint64_t id, struct od_err *err)
{
	struct sequence *s = find_sequence(e, id);

	if (s != NULL)
		return s;
	for (size_t i = 0; i < e->o.max_sequences; i++) {
		s = &e->sequence[i];
		if (s->used)
			continue;
		s->used = true; /* and empty: on_close saw to that */
		s->id = id;
		return s;
	}
	od_fail(err, OD_ERR_BUSY, "sequence %llu: there is room for %zu here, and main has not closed one",
		(unsigned long long)id, e->o.max_sequences);
	return NULL;
}

/* A row of a STEP, with every number checked. Rows of one sequence follow each other. */
static int check_row(const struct ods_emulator *e, const Od__Step *m, size_t i, bool *first, struct od_err *err)
{
	const Od__StepRow *r = m->rows[i];
	uint32_t vocab = e->o.forward.config->vocab;

	if (r->token < 0 || (uint32_t)r->token >= vocab)
		return od_fail(err, OD_ERR_RANGE, "row %zu: token: expected 0 to %u, found %d", i, vocab - 1, r->token);
	if (r->position >= e->o.ctx_tokens)
		return od_fail(err, OD_ERR_RANGE, "row %zu: position: expected 0 to %u, found %u", i,
			       e->o.ctx_tokens - 1, r->position);
	*first = true;
	for (size_t j = i; j-- > 0;) {
		if (m->rows[j]->sequence != r->sequence)
			continue;
		*first = false;
		if (r->position != m->rows[j]->position + 1)
			return od_fail(err, OD_ERR_RANGE, "row %zu: position: expected %u, found %u", i,
				       m->rows[j]->position + 1, r->position);
		break;
	}
	return OD_OK;
}

/* The message as e->spare. */
static int read_step(struct ods_emulator *e, const Od__Step *m, struct od_err *err)
{
	struct step *s = &e->spare;

	if (m->step <= e->newest)
		return od_fail(err, OD_ERR_PROTOCOL, "step %llu: late or twice, the newest is %llu",
			       (unsigned long long)m->step, (unsigned long long)e->newest);
	if (m->n_rows == 0 || m->n_rows > e->o.forward.max_rows)
		return od_fail(err, OD_ERR_RANGE, "rows: expected 1 to %zu, found %zu", e->o.forward.max_rows, m->n_rows);
	for (size_t i = 0; i < m->n_rows; i++) {
		int rc = check_row(e, m, i, &s->rows[i].first, err);

		if (rc != OD_OK)
			return rc;
	}
	s->number = m->step;
	s->next = m->next_step > m->step ? m->next_step : 0;
	s->due = m->state_follows;
	s->n_rows = m->n_rows;
	for (size_t i = 0; i < m->n_rows; i++) {
		struct row *r = &s->rows[i];

		r->seq = open_sequence(e, m->rows[i]->sequence, err);
		if (r->seq == NULL)
			return err->code;
		r->position = m->rows[i]->position;
		r->token = m->rows[i]->token;
		r->last = true;
		for (size_t j = i; j-- > 0 && !r->first;)
			if (s->rows[j].seq == r->seq)
				s->rows[j].last = false;
	}
	return OD_OK;
}

static bool same_rows(const struct step *a, const struct step *b)
{
	if (a->n_rows != b->n_rows)
		return false;
	for (size_t i = 0; i < a->n_rows; i++)
		if (a->rows[i].seq != b->rows[i].seq || a->rows[i].position != b->rows[i].position ||
		    a->rows[i].token != b->rows[i].token)
			return false;
	return true;
}

/* Does the step stand at or before a row of the run? Then the run's tokens are void. */
static bool takes_back(const struct step *run, const struct step *s)
{
	for (size_t i = 0; i < s->n_rows; i++)
		for (size_t j = 0; j < run->n_rows && s->rows[i].first; j++)
			if (run->rows[j].seq == s->rows[i].seq && run->rows[j].position >= s->rows[i].position)
				return true;
	return false;
}

/* What becomes of the run when another step than it comes. */
static void overtake(struct ods_emulator *e, const struct step *by)
{
	if (!running(e) || e->ahead) {
		abandon(e); /* a step that is through leads nowhere now either */
		return;
	}
	e->stats.overtaken++;
	e->published = false;
	if (e->step.due || takes_back(&e->step, by))
		abandon(e);
}

static uint32_t rows_of(const struct step *s, const struct sequence *seq)
{
	uint32_t n = 0;

	for (size_t i = 0; i < s->n_rows; i++)
		n += s->rows[i].seq == seq;
	return n;
}

static int on_step(struct ods_emulator *e, const Od__Step *m, struct od_err *err)
{
	struct step *s = &e->spare;
	bool confirms;
	int rc = read_step(e, m, err);

	if (rc != OD_OK)
		return rc;
	confirms = e->phase != NO_RUN && e->ahead && e->step.number == s->number && same_rows(&e->step, s);
	if (!confirms)
		overtake(e, s);
	for (size_t i = 0; i < e->o.max_sequences; i++)
		ods_align_settle(e->sequence[i].align);
	for (size_t i = 0; i < s->n_rows; i++)
		if (s->rows[i].first)
			ods_align_step(s->rows[i].seq->align, s->rows[i].position, rows_of(s, s->rows[i].seq), s->due,
				       confirms);
	e->newest = s->number;
	e->stats.steps++;
	if (confirms) {
		e->stats.confirmed++;
		e->ahead = false;
		e->step.due = s->due;
		e->step.next = s->next;
		return OD_OK;
	}
	swap_steps(&e->latest, s);
	e->pending = true;
	return OD_OK;
}

static int on_state(struct ods_emulator *e, const struct od_msg *m, uint64_t now_ns, struct od_err *err)
{
	const Od__State *s = m->header->state;
	const struct ods_range range = { s->layer, s->begin, s->n };
	struct sequence *seq = find_sequence(e, s->sequence);
	const void *k, *v;
	size_t k_bytes, v_bytes;
	uint64_t bytes;

	if (seq == NULL)
		return od_fail(err, OD_ERR_PROTOCOL, "sequence %llu is not known", (unsigned long long)s->sequence);
	if (s->layer >= e->o.forward.config->n_layers)
		return od_fail(err, OD_ERR_RANGE, "layer: expected 0 to %u, found %u", e->o.forward.config->n_layers - 1,
			       s->layer);
	if (s->n == 0 || !od_within(s->begin, s->n, e->o.ctx_tokens))
		return od_fail(err, OD_ERR_RANGE, "%u positions from %u on: expected 1 to %u", s->n, s->begin,
			       e->o.ctx_tokens);
	k = od_msg_frame(m, 0, &k_bytes);
	v = od_msg_frame(m, 1, &v_bytes);
	if (!od_mul(s->n, e->row_bytes, &bytes) || m->n_frames != 2 || k_bytes != bytes || v_bytes != bytes)
		return od_fail(err, OD_ERR_SHAPE, "frames: expected 2 of %llu bytes, found %zu of %zu and %zu",
			       (unsigned long long)bytes, m->n_frames, k_bytes, v_bytes);
	memcpy(od_seq_state_k(seq->state, s->layer, s->begin), k, bytes);
	memcpy(od_seq_state_v(seq->state, s->layer, s->begin), v, bytes);
	ods_align_true(seq->align, &range, now_ns);
	e->stats.state_rows += s->n;
	return OD_OK;
}

static bool touches(const struct step *s, const struct sequence *seq, uint32_t length)
{
	for (size_t i = 0; i < s->n_rows; i++)
		if (s->rows[i].seq == seq && s->rows[i].position >= length)
			return true;
	return false;
}

/* Positions from length on are gone, and with them what stands there or would. */
static int truncate_sequence(struct ods_emulator *e, uint64_t id, uint32_t length, struct sequence **out,
			     struct od_err *err)
{
	struct sequence *s = *out = find_sequence(e, id);

	if (s == NULL)
		return od_fail(err, OD_ERR_PROTOCOL, "sequence %llu is not known", (unsigned long long)id);
	if (length > e->o.ctx_tokens)
		return od_fail(err, OD_ERR_RANGE, "length: expected at most %u, found %u", e->o.ctx_tokens, length);
	if (touches(&e->step, s, length))
		abandon(e);
	if (e->pending && touches(&e->latest, s, length))
		e->pending = false;
	ods_align_truncate(s->align, length);
	return OD_OK;
}

static int on_close(struct ods_emulator *e, uint64_t id, struct od_err *err)
{
	struct sequence *s;
	int rc = truncate_sequence(e, id, 0, &s, err);

	if (rc == OD_OK)
		s->used = false;
	return rc;
}

int ods_emulator_message(struct ods_emulator *e, const struct od_msg *m, uint64_t now_ns, struct od_err *err)
{
	const Od__Header *h = m->header;
	struct sequence *s;

	if (h->body_case == OD__HEADER__BODY_STATE)
		return on_state(e, m, now_ns, err);
	if (m->n_frames != 0)
		return od_fail(err, OD_ERR_PROTOCOL, "expected no tensors, found %zu", m->n_frames);
	switch (h->body_case) {
	case OD__HEADER__BODY_STEP: return on_step(e, h->step, err);
	case OD__HEADER__BODY_SEQ_TRUNCATE:
		return truncate_sequence(e, h->seq_truncate->sequence, h->seq_truncate->length, &s, err);
	case OD__HEADER__BODY_SEQ_CLOSE: return on_close(e, h->seq_close->sequence, err);
	case OD__HEADER__BODY_STATE: /* above */
	case OD__HEADER__BODY_HELLO: /* control socket */
	case OD__HEADER__BODY_WELCOME:
	case OD__HEADER__BODY_REFUSE:
	case OD__HEADER__BODY_PING:
	case OD__HEADER__BODY_PONG:
	case OD__HEADER__BODY_BYE:
	case OD__HEADER__BODY_WANT:
	case OD__HEADER__BODY_CLOSE:
	case OD__HEADER__BODY_PREDICT:
	case OD__HEADER__BODY_ATTACH: /* the data port's */
	case OD__HEADER__BODY_ATTACHED:
	case OD__HEADER__BODY_RUN: /* workers' */
	case OD__HEADER__BODY_RESULT:
	case OD__HEADER__BODY_STATE_REQUEST: /* what we send */
	case OD__HEADER__BODY__NOT_SET:
	case _OD__HEADER__BODY__CASE_IS_INT_SIZE: break;
	}
	return od_fail(err, OD_ERR_PROTOCOL, "not a message for a shadow's data socket");
}

/* Decides what runs next, and what the shadow requests from main for it. */
#include "shadow-node/emulator_internal.h"

#include "common/base/log.h"
#include "common/base/trace.h"

#include <assert.h>

#define RUNS_PER_FILL 4 /* published runs before an unpublished one gets its turn */

/* ---- Tokens ---- */

/* A row of the run, or of the finished one, gives the token at position. */
static bool run_says(const struct ods_emulator *e, const struct ods_sequence *q, uint32_t position)
{
	const struct row *r = &e->rows[q->run_first];
	const uint32_t back = position - r->position - 1; /* from the first row */

	return q->run_n > 0 && position > r->position && back < q->run_n && !r[back].is_void;
}

int ods_choose_tokens(struct ods_emulator *e, const uint32_t *row, size_t n, struct od_err *err)
{
	const size_t vocab = e->o.forward.config->vocab;
	int rc = OD_OK;

	for (size_t count; rc == OD_OK && n > 0; row += count, n -= count) {
		uint64_t begin = od_trace_begin();
		float *logits;

		count = n < e->o.forward.max_logits ? n : e->o.forward.max_logits;
		rc = od_forward_logits(e->forward, row, count, &logits, err);
		if (rc == OD_OK)
			for (size_t i = 0; i < count; i++)
				ods_sequence_choose(e->rows[row[i]].seq, e->rows[row[i]].position + 1,
						    logits + i * vocab);
		od_trace_end("head", begin, (int64_t)e->newest, -1, -1);
	}
	return rc;
}

/* *token: the known token at position, or the one sampled from the finished run; -1: neither. */
static int token_at(struct ods_emulator *e, struct ods_sequence *q, uint32_t position, int32_t *token,
		    struct od_err *err)
{
	int rc = OD_OK;

	if (q->token[position] < 0 && e->phase == FINISHED && run_says(e, q, position)) {
		const uint32_t row = (uint32_t)q->run_first + position - 1 - e->rows[q->run_first].position;

		rc = ods_choose_tokens(e, &row, 1, err);
	}
	*token = q->token[position];
	return rc;
}

/* Distance back to the nearest position with a known token, from which the token here can be computed; 0: too far. */
static uint32_t catch_up_from(const struct ods_emulator *e, const struct ods_sequence *q, uint32_t position)
{
	for (uint32_t back = 1; back <= ODS_MAX_CATCH_UP && back <= position; back++)
		if (q->token[position - back] >= 0 || (e->phase == FINISHED && run_says(e, q, position - back)))
			return back;
	return 0;
}

/* ---- Choice of the next run ---- */

/* The next need of a sequence. */
enum plan_want {
	WANT_NOTHING, /* nothing, or rows that main will send */
	WANT_ORDERED, /* rows of its newest STEP; all earlier rows are there or due */
	WANT_AHEAD, /* a row after them, with the shadow's own token; all earlier rows are there or due */
	WANT_FILL, /* earlier rows, computed from their tokens */
	WANT_CATCH_UP, /* an earlier row again, for the token that follows it */
};

/* True: it has rows to run for publication, ready or not. */
static bool waits_for_run(const struct ods_emulator *e, const struct ods_sequence *q)
{
	return q->next < q->stepped || (e->o.early && q->next < q->limit);
}

/* End of these rows. */
static uint32_t end_of_wait(const struct ods_sequence *q)
{
	return q->next < q->stepped ? q->stepped : q->next + 1;
}

/* False: no memory. Main's own predictor then stands in for the sequence. */
static bool has_room(struct ods_sequence *q, uint32_t end)
{
	if (ods_sequence_reserve(q, end)) {
		if (q->unmarked && end >= q->stepped) {
			ods_align_step(q->align, q->stepped, q->state_rows);
			q->unmarked = false;
		}
		return true;
	}
	if (!q->said)
		OD_LOG_EVENT(OD_LOG_WARN,
			     "no memory for more positions; no predictions for this sequence until others end",
			     od_log_text("request", q->request), od_log_number("sequence", (double)q->id),
			     od_log_number("position", end - 1));
	q->said = true;
	return false;
}

/* End of the rows to compute from tokens when main sends no KV rows: up to the rows that wait for them, or the
 * prompt. */
static uint32_t fill_end(const struct ods_emulator *e, struct ods_sequence *q)
{
	return waits_for_run(e, q) && ods_align_missing(q->align, q->next) < q->next ? q->next : q->told;
}

/* With fixed state, rows that run again are those from an earlier state on. False: no such row is known. */
static bool catch_up_again(const struct ods_emulator *e, struct ods_sequence *q)
{
	const uint32_t back = catch_up_from(e, q, q->next);

	if (back == 0)
		return false;
	ods_sequence_rewind(q, q->next - back);
	q->want = WANT_FILL;
	return true;
}

static int find_want(struct ods_emulator *e, struct ods_sequence *q, struct od_err *err)
{
	const bool ordered = q->next < q->stepped;
	int32_t token;
	int rc;

	q->want = WANT_NOTHING;
	if (waits_for_run(e, q)) {
		if (!has_room(q, end_of_wait(q)))
			return OD_OK;
		if (ods_align_missing(q->align, q->next) < q->next) {
			q->want = q->own_state ? WANT_FILL : WANT_NOTHING;
			return OD_OK;
		}
		rc = token_at(e, q, q->next, &token, err);
		if (rc == OD_OK && ordered && token < 0 && q->fixed && catch_up_again(e, q))
			return OD_OK;
		if (rc != OD_OK || ordered || token >= 0) {
			q->want = token < 0 ? WANT_CATCH_UP : ordered ? WANT_ORDERED : WANT_AHEAD;
			return rc;
		}
	}
	if (q->own_state && q->told > 0 && has_room(q, q->told) && ods_align_missing(q->align, q->told) < q->told)
		q->want = WANT_FILL;
	return OD_OK;
}

static void add_row(struct ods_emulator *e, struct ods_sequence *q, uint32_t position, int32_t token, bool published)
{
	e->spare[e->n_spare++] = (struct row){ .seq = q, .position = position, .token = token, .published = published };
}

/* Plans the rows of all sequences that are ready with this want. */
static void plan_ready(struct ods_emulator *e, enum plan_want want)
{
	for (size_t i = 0; i < e->n_sequences; i++) {
		struct ods_sequence *q = e->sequence[i];
		const uint32_t n = want == WANT_ORDERED ? q->stepped - q->next : 1;

		if (q->want != (int)want || n > e->o.forward.max_rows - e->n_spare)
			continue;
		for (uint32_t j = 0; j < n; j++, q->next++)
			add_row(e, q, q->next, q->token[q->next], true);
	}
}

/* Plans a piece of the missing rows, as far as their tokens are known. */
static int plan_fill(struct ods_emulator *e, struct ods_sequence *q, size_t most, struct od_err *err)
{
	const uint32_t limit = fill_end(e, q);
	const size_t before = e->n_spare;
	uint32_t p = ods_align_missing(q->align, limit);
	int rc = OD_OK;

	ods_sequence_rewind(q, p);
	for (p = q->fixed ? od_seq_state_length(q->state) : p; p < limit && e->n_spare < most; p++) {
		int32_t token;

		rc = token_at(e, q, p, &token, err);
		if (rc != OD_OK || token < 0)
			break;
		add_row(e, q, p, token, false);
	}
	e->o.counters[OD_C_SHADOW_FILLED] += e->n_spare - before;
	return rc;
}

static int plan_catch_up(struct ods_emulator *e, struct ods_sequence *q, struct od_err *err)
{
	const uint32_t back = catch_up_from(e, q, q->next);
	int32_t token = -1;
	int rc = back > 0 ? token_at(e, q, q->next - back, &token, err) : OD_OK;

	if (rc == OD_OK && token >= 0)
		add_row(e, q, q->next - back, token, false);
	return rc;
}

/* Plans the unpublished rows that others need first. Only one sequence fills at a time, because two may share a
 * page. */
static int plan_unpublished(struct ods_emulator *e, struct od_err *err)
{
	const size_t most = e->o.forward.max_rows < ODS_MAX_FILL_ROWS ? e->o.forward.max_rows : ODS_MAX_FILL_ROWS;
	bool fills = false;
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < e->n_sequences && e->n_spare < most; i++) {
		struct ods_sequence *q = e->sequence[i];
		const size_t before = e->n_spare;

		if (q->want == WANT_CATCH_UP)
			rc = plan_catch_up(e, q, err);
		if (q->want == WANT_FILL && !fills) {
			rc = plan_fill(e, q, most, err);
			fills = e->n_spare > before;
		}
	}
	return rc;
}

/* The plan becomes the run. */
static int begin_run(struct ods_emulator *e, struct od_err *err)
{
	struct row *rows = e->rows;

	ods_end_run(e);
	e->rows = e->spare;
	e->spare = rows;
	e->n_rows = e->n_live = e->n_spare;
	e->n_spare = 0;
	for (size_t i = 0; i < e->n_rows; i++) {
		const struct row *r = &e->rows[i];

		e->od_rows[i] = (struct od_row){ r->seq->state, r->position, r->token };
		if (r->seq->run_n++ > 0)
			continue;
		r->seq->run_first = i;
		if (!r->seq->fixed)
			od_seq_state_set_length(r->seq->state, r->position);
		assert(od_seq_state_length(r->seq->state) == r->position);
	}
	e->phase = BEFORE_ATTENTION;
	return ods_layers_begin(e, err);
}

int ods_choose_run(struct ods_emulator *e, struct od_err *err)
{
	int rc = OD_OK;

	e->n_spare = 0;
	for (size_t i = 0; rc == OD_OK && i < e->n_sequences; i++)
		rc = find_want(e, e->sequence[i], err);
	if (rc == OD_OK && e->n_published >= RUNS_PER_FILL)
		rc = plan_unpublished(e, err);
	if (rc != OD_OK)
		return rc;
	if (e->n_spare == 0)
		plan_ready(e, WANT_ORDERED);
	if (e->n_spare == 0)
		plan_ready(e, WANT_AHEAD);
	if (e->n_spare == 0)
		rc = plan_unpublished(e, err);
	if (rc != OD_OK || e->n_spare == 0)
		return rc;
	e->n_published = e->spare[0].published ? e->n_published + 1 : 0;
	return begin_run(e, err);
}

/* ---- Requests to main ---- */

/* Requests the tokens before position where they are needed; else the one at position if no run can give it. */
static void ask_tokens(struct ods_emulator *e, struct ods_sequence *q, uint32_t position, uint64_t now_ns)
{
	uint32_t begin = ods_sequence_unknown(q, position), n = position - begin;

	if (n == 0 || !(q->own_state || q->penalised)) {
		if (q->next >= q->stepped || position != q->next || q->token[position] >= 0 ||
		    ods_align_missing(q->align, position) < position || catch_up_from(e, q, position) > 0)
			return;
		begin = position;
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

static uint64_t expire(struct ods_emulator *e, uint64_t now_ns)
{
	uint64_t out = 0;

	for (size_t i = 0; i < e->n_sequences; i++) {
		struct ods_sequence *q = e->sequence[i];

		if (q->asked && now_ns >= q->asked_ns + ODS_ASK_AGAIN_NS)
			q->asked = false;
		ods_align_expire(q->align, now_ns);
		out += ods_align_asked(q->align);
	}
	return out;
}

void ods_ask(struct ods_emulator *e, uint64_t now_ns)
{
	uint64_t out = expire(e, now_ns); /* positions */

	for (size_t i = 0; i < e->n_sequences; i++) {
		struct ods_sequence *q = e->sequence[i];
		const bool runs = ods_running(e) && ods_in_run(e, q);
		const uint32_t committed = q->step == e->newest ? q->begun : q->stepped; /* rows that main can send */
		struct ods_range range;

		if (!runs && (!waits_for_run(e, q) || !has_room(q, end_of_wait(q))))
			continue;
		ask_tokens(e, q, runs ? e->rows[q->run_first].position : q->next, now_ns);
		while (!runs && !q->own_state && out < (uint64_t)ODS_MAX_ASKED_AT_ONCE * ods_align_max_ask(q->align) &&
		       ods_align_ask(q->align, committed, now_ns, &range)) {
			out += range.n;
			e->o.counters[OD_C_SHADOW_ASKED]++;
			e->sink.ask(e->sink.arg, q->id, &range);
		}
	}
}

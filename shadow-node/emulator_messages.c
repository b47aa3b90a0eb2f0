/* Messages from main. Every number is checked here before it changes or indexes anything. */
#include "shadow-node/emulator_messages.h"

#include "shadow-node/emulator_internal.h"

#include "common/base/log.h"
#include "common/base/mem.h"

#include <string.h>

/* ---- Sequences ---- */

/* Index of the sequence, or the index where it would be inserted. */
static size_t index_of(const struct ods_emulator *e, uint64_t id)
{
	size_t low = 0, high = e->n_sequences;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (e->sequence[middle]->id < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static struct ods_sequence *find_sequence(struct ods_emulator *e, uint64_t id)
{
	size_t i = index_of(e, id);

	return i < e->n_sequences && e->sequence[i]->id == id ? e->sequence[i] : NULL;
}

static int known_sequence(struct ods_emulator *e, uint64_t id, struct ods_sequence **out, struct od_err *err)
{
	*out = find_sequence(e, id);
	return *out != NULL ? OD_OK :
			      od_fail(err, e->turned_away ? OD_ERR_BUSY : OD_ERR_PROTOCOL, "sequence %llu is not known",
				      (unsigned long long)id);
}

static void close_sequence(struct ods_emulator *e, size_t index)
{
	struct ods_sequence *q = e->sequence[index];

	if (ods_is_ahead(q))
		ods_take_back_guesses(e, q);
	e->n_sequences--;
	memmove(&e->sequence[index], &e->sequence[index + 1], (e->n_sequences - index) * sizeof(e->sequence[0]));
	e->closed[e->n_closed++ % e->o.max_sequences] = q->id;
	ods_release(e, q);
}

/* Makes room for another sequence. A full table evicts the sequence that was idle longest, if its SEQ_CLOSE was
 * probably lost. False: no room. */
static bool make_room(struct ods_emulator *e)
{
	size_t oldest = 0;

	if (e->n_sequences < e->o.max_sequences)
		return true;
	for (size_t i = 1; i < e->n_sequences; i++)
		if (e->sequence[i]->heard < e->sequence[oldest]->heard)
			oldest = i;
	if (e->heard - e->sequence[oldest]->heard < ODS_IDLE_STEPS)
		return false;
	close_sequence(e, oldest);
	return true;
}

/* Refuses a sequence. Main's own predictor then stands in for it. */
static int turn_away(struct ods_emulator *e, uint64_t id, struct od_err *err)
{
	if (!e->turned_away)
		od_log(OD_LOG_WARN,
		       "sequence %llu: no room, %zu sequences are open; no predictions for sequences without room",
		       (unsigned long long)id, e->n_sequences);
	e->turned_away = true;
	return od_fail(err, OD_ERR_BUSY, "sequence %llu: no room, %zu sequences are open", (unsigned long long)id,
		       e->n_sequences);
}

static int begin_sequence(struct ods_emulator *e, uint64_t id, struct ods_sequence **out, struct od_err *err)
{
	size_t index;

	if (!make_room(e) || ods_sequence_new(out, id, &e->o.forward, NULL) != OD_OK)
		return turn_away(e, id, err);
	index = index_of(e, id);
	memmove(&e->sequence[index + 1], &e->sequence[index], (e->n_sequences - index) * sizeof(e->sequence[0]));
	e->sequence[index] = *out;
	e->n_sequences++;
	(*out)->heard = e->heard;
	return OD_OK;
}

/* Finds the sequence, or begins it. OD_ERR_BUSY: there is no room for it. */
static int need_sequence(struct ods_emulator *e, uint64_t id, struct ods_sequence **out, struct od_err *err)
{
	*out = find_sequence(e, id);
	if (*out != NULL) {
		(*out)->heard = e->heard;
		return OD_OK;
	}
	if (id == 0)
		return od_fail(err, OD_ERR_PROTOCOL, "sequence 0");
	for (size_t i = 0; i < e->o.max_sequences; i++)
		if (e->closed[i] == id) /* ids are never reused: this message is late */
			return od_fail(err, OD_ERR_PROTOCOL, "sequence %llu has ended", (unsigned long long)id);
	return begin_sequence(e, id, out, err);
}

/* Main has committed the first n positions: no more of their rows will arrive, and predictions there are not needed. */
static void commit(struct ods_emulator *e, struct ods_sequence *q, uint32_t n)
{
	if (q->stepped < n) { /* a prompt covers the positions that were run ahead */
		if (ods_is_ahead(q))
			ods_take_back_guesses(e, q);
		q->limit = q->stepped;
	}
	if (ods_in_run(e, q) && e->rows[q->run_first].position < n)
		ods_void_rows(e, q, 0);
	if (q->next < n)
		q->next = q->stepped < n ? q->stepped : n;
	ods_align_settle(q->align, UINT32_MAX, n);
}

static int on_seq_open(struct ods_emulator *e, const Od__SeqOpen *m, struct od_err *err)
{
	struct ods_sequence *s, *from;
	int rc;

	if (m->shared_tokens > e->o.ctx_tokens || m->shared_tokens % OD_KV_PAGE != 0)
		return od_fail(err, OD_ERR_RANGE, "shared tokens: expected pages of %u, %u at most, found %u",
			       OD_KV_PAGE, e->o.ctx_tokens, m->shared_tokens);
	rc = need_sequence(e, m->sequence, &s, err);
	if (rc == OD_OK)
		rc = ods_sequence_open(s, m, err);
	if (rc != OD_OK)
		return rc;
	OD_LOG_EVENT(OD_LOG_DEBUG, "opened", od_log_text("request", s->request),
		     od_log_number("sequence", (double)s->id));
	from = find_sequence(e, m->shared_sequence); /* unknown here: there are no rows to share */
	if (from == NULL || from == s || s->state == NULL)
		return OD_OK;
	commit(e, from, m->shared_tokens);
	ods_sequence_share(s, from, m->shared_tokens);
	return OD_OK;
}

/* Drops the rows and tokens of positions from length on, rows ahead too. */
static int on_truncate(struct ods_emulator *e, uint64_t id, uint32_t length, struct od_err *err)
{
	struct ods_sequence *q;
	int rc = known_sequence(e, id, &q, err);

	if (rc != OD_OK)
		return rc;
	if (length > e->o.ctx_tokens)
		return od_fail(err, OD_ERR_RANGE, "length: expected at most %u, found %u", e->o.ctx_tokens, length);
	if (ods_is_ahead(q) && length < q->next)
		ods_take_back_guesses(e, q);
	ods_drop_rows(e, q, length);
	ods_sequence_forget_tokens(q, length);
	if (length < q->stepped) {
		q->stepped = length;
		q->begun = q->begun < length ? q->begun : length;
		q->next = q->next < length ? q->next : length;
		q->limit = length;
		q->unmarked = false;
	}
	return OD_OK;
}

static int on_close(struct ods_emulator *e, uint64_t id, struct od_err *err)
{
	struct ods_sequence *s;
	int rc = known_sequence(e, id, &s, err);

	if (rc == OD_OK)
		close_sequence(e, index_of(e, id));
	return rc;
}

/* ---- TOKENS ---- */

static int check_tokens(const struct ods_emulator *e, const Od__Tokens *m, struct od_err *err)
{
	uint32_t vocab = e->o.forward.config->vocab;

	if (m->n_ids == 0 || !od_within(m->begin, m->n_ids, e->o.ctx_tokens))
		return od_fail(err, OD_ERR_RANGE, "%zu tokens from position %u on: expected 1 to %u", m->n_ids,
			       m->begin, e->o.ctx_tokens);
	for (size_t i = 0; i < m->n_ids; i++)
		if (m->ids[i] >= vocab)
			return od_fail(err, OD_ERR_RANGE, "token %zu: expected 0 to %u, found %u", i, vocab - 1,
				       m->ids[i]);
	return OD_OK;
}

/* Main has another token at this position. Voids the rows computed with the wrong token, and forgets the tokens sampled
 * after it. */
static void correct(struct ods_emulator *e, struct ods_sequence *q, uint32_t position)
{
	if (ods_is_ahead(q)) {
		ods_take_back_guesses(e, q);
		ods_sequence_forget_tokens(q, q->stepped);
	}
	if (q->own_state)
		ods_drop_rows(e, q, position);
	else
		ods_void_rows(e, q, position);
}

static int on_tokens(struct ods_emulator *e, const Od__Tokens *m, struct od_err *err)
{
	struct ods_sequence *s;
	uint32_t end;
	int rc = known_sequence(e, m->sequence, &s, err);

	if (rc == OD_OK)
		rc = check_tokens(e, m, err);
	if (rc != OD_OK)
		return rc;
	end = m->begin + (uint32_t)m->n_ids;
	if (end > s->ctx)
		return od_fail(err, OD_ERR_RANGE,
			       "tokens up to position %u of a text that is not long: expected %u positions", end - 1,
			       s->ctx);
	for (uint32_t p = m->begin; p < end; p++) {
		if (s->token[p] >= 0 && (uint32_t)s->token[p] != m->ids[p - m->begin]) {
			correct(e, s, p);
			break;
		}
	}
	/* A prompt covers positions that were run ahead. */
	if (ods_is_ahead(s) && s->next > m->begin && s->stepped < end)
		ods_take_back_guesses(e, s);
	if (end > s->stepped)
		s->limit = s->stepped;
	for (uint32_t p = m->begin; p < end; p++)
		ods_sequence_set_token(s, p, (int32_t)m->ids[p - m->begin]);
	if (end > s->told)
		s->told = end;
	if (s->asked_begin >= m->begin && s->asked_begin < end)
		s->asked = false;
	return OD_OK;
}

/* ---- STEP ---- */

/* Checks every number of row i of a STEP. first: the first row of its sequence; its rows are at consecutive
 * positions. */
static int check_row(const struct ods_emulator *e, const Od__Step *m, size_t i, bool first, struct od_err *err)
{
	const Od__StepRow *r = m->rows[i];
	uint32_t vocab = e->o.forward.config->vocab;

	if (r->position >= e->o.ctx_tokens)
		return od_fail(err, OD_ERR_RANGE, "row %zu: position: expected 0 to %u, found %u", i,
			       e->o.ctx_tokens - 1, r->position);
	if (!first && r->position != m->rows[i - 1]->position + 1)
		return od_fail(err, OD_ERR_RANGE, "row %zu: position: expected %u, found %u", i,
			       m->rows[i - 1]->position + 1, r->position);
	if (r->token < (first ? -1 : 0) || r->token >= (int64_t)vocab)
		return od_fail(err, OD_ERR_RANGE, "row %zu: token: expected %d to %u, found %d", i, first ? -1 : 0,
			       vocab - 1, r->token);
	return OD_OK;
}

/* Splits the message into e->parts, without their sequences. */
static int cut_step(struct ods_emulator *e, const Od__Step *m, size_t *n_parts, struct od_err *err)
{
	for (size_t i = 0; i < m->n_rows; i++) {
		const bool first = i == 0 || m->rows[i]->sequence != m->rows[i - 1]->sequence;
		int rc = check_row(e, m, i, first, err);

		if (rc != OD_OK)
			return rc;
		if (first)
			e->parts[(*n_parts)++] = (struct emulator_part){ .first = i };
		e->parts[*n_parts - 1].n++;
	}
	for (size_t i = 0; i < *n_parts; i++) {
		const struct emulator_part *p = &e->parts[i];
		const Od__StepRow *r = m->rows[p->first];

		if (r->ahead > e->o.ctx_tokens)
			return od_fail(err, OD_ERR_RANGE, "row %zu: ahead: expected 0 to %u, found %u", p->first,
				       e->o.ctx_tokens, r->ahead);
		if (r->state_rows != 0 && (r->state_rows < p->n || r->state_rows > r->position + p->n))
			return od_fail(err, OD_ERR_RANGE, "row %zu: state_rows: expected 0 or %zu to %zu, found %u",
				       p->first, p->n, r->position + p->n, r->state_rows);
	}
	return OD_OK;
}

/* Checks a STEP and finds its sequences. Changes no state, except that sequences may begin and an idle one may be
 * evicted. */
static int read_step(struct ods_emulator *e, const Od__Step *m, size_t *n_parts, struct od_err *err)
{
	int rc;

	if (m->step <= e->newest)
		return od_fail(err, OD_ERR_PROTOCOL, "step %llu: late or repeated, the newest is %llu",
			       (unsigned long long)m->step, (unsigned long long)e->newest);
	if (m->n_rows == 0 || m->n_rows > e->o.forward.max_rows)
		return od_fail(err, OD_ERR_RANGE, "rows: expected 1 to %zu, found %zu", e->o.forward.max_rows,
			       m->n_rows);
	rc = cut_step(e, m, n_parts, err);
	for (size_t i = 0; rc == OD_OK && i < *n_parts; i++) {
		struct emulator_part *p = &e->parts[i];
		const uint64_t id = m->rows[p->first]->sequence;

		if (need_sequence(e, id, &p->seq, err) != OD_OK) { /* left out: the rows of the others are used */
			p->seq = NULL;
			continue;
		}
		if (p->seq->in_step == e->heard)
			rc = od_fail(err, OD_ERR_RANGE, "row %zu: rows of sequence %llu are not adjacent", p->first,
				     (unsigned long long)id);
		if (m->rows[p->first + p->n - 1]->position >= p->seq->ctx)
			rc = od_fail(err, OD_ERR_RANGE,
				     "row %zu: position: expected 0 to %u in a text that is not long, found %u",
				     p->first + p->n - 1, p->seq->ctx - 1, m->rows[p->first + p->n - 1]->position);
		p->seq->in_step = e->heard;
	}
	return rc;
}

/* Rows of an older STEP, before begin, may be running. They continue unpublished if their KV rows or their next token
 * are needed; otherwise they become void, because main sends its own. */
static void overtake(struct ods_emulator *e, struct ods_sequence *q, uint32_t begin, bool token_is_ours)
{
	const struct row *r = &e->rows[q->run_first];

	if (!ods_running(e) || !ods_in_run(e, q) || !r->published || r->position >= begin)
		return;
	e->o.counters[OD_C_SHADOW_OVERTAKEN]++;
	for (size_t i = q->run_first; i < q->run_first + q->run_n; i++)
		e->rows[i].published = false;
	if (q->state_rows != 0 && !token_is_ours)
		ods_void_rows(e, q, 0);
}

/* End of the STEP's rows that were run ahead, or are running, with the right tokens. */
static uint32_t confirmed_end(const struct ods_sequence *q, const Od__Step *m, const struct emulator_part *p)
{
	const uint32_t begin = m->rows[p->first]->position;
	uint32_t n = 0;

	while (n < p->n && begin + n < q->next &&
	       (m->rows[p->first + n]->token < 0 || m->rows[p->first + n]->token == q->token[begin + n]))
		n++;
	return begin + n;
}

/* Drops all rows from position on: the STEP has other tokens there, or the shadow has not run them. */
static void begin_anew(struct ods_emulator *e, struct ods_sequence *q, uint32_t position, uint32_t step_end)
{
	if (position >= q->stepped && position < q->next)
		e->o.counters[OD_C_SHADOW_MISTAKEN] += q->next - position;
	ods_drop_rows(e, q, position);
	ods_sequence_forget_tokens(q, step_end);
	q->next = position;
}

/* Applies one sequence's part of a STEP: main's tokens, its positions, the rows that main will send. */
static void note_part(struct ods_emulator *e, const Od__Step *m, const struct emulator_part *p)
{
	const Od__StepRow *first = m->rows[p->first];
	const uint32_t begin = first->position, end = begin + (uint32_t)p->n;
	struct ods_sequence *q = p->seq;
	const bool ours = first->token < 0;
	uint32_t confirmed = begin;

	if (begin == q->stepped)
		confirmed = confirmed_end(q, m, p);
	else if (ods_is_ahead(q)) /* main has undone rows, or has run others that the shadow does not know */
		ods_take_back_guesses(e, q);
	e->o.counters[OD_C_SHADOW_CONFIRMED] += confirmed - begin;
	if (confirmed < end)
		begin_anew(e, q, confirmed, end);
	overtake(e, q, begin, ours);
	q->step = m->step;
	q->begun = begin;
	q->stepped = end;
	q->ahead = first->ahead;
	q->limit = q->ctx - end < q->ahead ? q->ctx : end + q->ahead;
	q->state_rows = first->state_rows;
	ods_align_settle(q->align, UINT32_MAX, UINT32_MAX);
	q->unmarked = !ods_sequence_reserve(q, end);
	if (!q->unmarked)
		ods_align_step(q->align, end, first->state_rows);
	for (size_t i = 0; i < p->n; i++) {
		if (begin + i > confirmed) /* the shadow's token there followed another token */
			q->margin[begin + i] = 0;
		if (m->rows[p->first + i]->token >= 0)
			ods_sequence_set_token(q, begin + (uint32_t)i, m->rows[p->first + i]->token);
	}
	if (ours && q->main_end > begin)
		q->main_end = begin;
	e->unaligned |= ours;
	e->o.counters[OD_C_SHADOW_CHOSEN] += ours;
}

static int on_step(struct ods_emulator *e, const Od__Step *m, struct od_err *err)
{
	size_t n_parts = 0;
	int rc;

	e->heard++;
	rc = read_step(e, m, &n_parts, err);
	if (rc != OD_OK)
		return rc;
	for (size_t i = 0; i < e->n_sequences; i++) { /* main has finished the previous step */
		const struct ods_sequence *q = e->sequence[i];
		const bool runs = ods_running(e) && ods_in_run(e, q);

		ods_align_settle(q->align, UINT32_MAX, runs ? e->rows[q->run_first].position : q->next);
	}
	for (size_t i = 0; i < n_parts; i++)
		if (e->parts[i].seq != NULL)
			note_part(e, m, &e->parts[i]);
	e->newest = m->step;
	e->streamed = 0;
	e->o.counters[OD_C_SHADOW_STEPS]++;
	return OD_OK;
}

/* ---- STATE ---- */

/* Checks the ranges of positions, without looking up their sequences, and the sizes of the frames. */
static int check_state(const struct ods_emulator *e, const struct od_msg *m, uint64_t row_bytes[OD_MAX_STREAMS],
		       uint32_t *n_streams, struct od_err *err)
{
	const Od__State *s = m->header->state;
	uint64_t rows = 0, bytes;
	size_t found;

	*n_streams = 0;
	if (s->layer >= e->o.forward.config->n_layers)
		return od_fail(err, OD_ERR_RANGE, "layer: expected 0 to %u, found %u",
			       e->o.forward.config->n_layers - 1, s->layer);
	if (s->n_ranges == 0 || s->n_ranges > ODS_MAX_STEP_ROWS)
		return od_fail(err, OD_ERR_RANGE, "ranges: expected 1 to %d, found %zu", ODS_MAX_STEP_ROWS,
			       s->n_ranges);
	for (size_t i = 0; i < s->n_ranges; i++) {
		const Od__StateRange *r = s->ranges[i];

		if (r->n == 0 || !od_within(r->begin, r->n, e->o.ctx_tokens))
			return od_fail(err, OD_ERR_RANGE, "range %zu: %u positions from %u on: expected 1 to %u", i,
				       r->n, r->begin, e->o.ctx_tokens);
		rows += r->n;
	}
	*n_streams = od_state_row_bytes(e->o.forward.config, e->o.forward.profile, s->layer, row_bytes);
	if (m->n_frames != *n_streams)
		return od_fail(err, OD_ERR_SHAPE, "layer %u: expected %u frames, one per stream, found %zu", s->layer,
			       *n_streams, m->n_frames);
	for (uint32_t i = 0; i < *n_streams; i++) {
		od_msg_frame(m, i, &found);
		if (!od_mul(rows, row_bytes[i], &bytes) || found != bytes)
			return od_fail(err, OD_ERR_SHAPE, "frame %u of layer %u: expected %llu bytes, found %zu", i,
				       s->layer, (unsigned long long)bytes, found);
	}
	return OD_OK;
}

/* Finds the range's sequence and checks that these rows are due or were requested. */
static int expect_range(struct ods_emulator *e, const Od__State *s, const Od__StateRange *r, struct ods_sequence **seq,
			struct od_err *err)
{
	const struct ods_range range = { s->layer, r->begin, r->n };
	struct ods_sequence *q;
	int rc = known_sequence(e, r->sequence, &q, err);

	*seq = q;
	if (rc != OD_OK)
		return rc;
	if (q->state == NULL)
		return od_fail(err, OD_ERR_BUSY, "sequence %llu has no memory", (unsigned long long)q->id);
	if ((s->step != 0 && (s->step != e->newest || q->step != e->newest)) ||
	    !ods_align_expects(q->align, &range, s->step == 0))
		return od_fail(err, q->said ? OD_ERR_BUSY : OD_ERR_PROTOCOL,
			       "%u positions from %u on of layer %u are neither "
			       "due nor requested (sequence %llu, step %llu)",
			       r->n, r->begin, s->layer, (unsigned long long)q->id, (unsigned long long)s->step);
	return OD_OK;
}

/* Writes the rows of a range, which begin with row `first` of the message's frames. */
static int put_range(struct ods_emulator *e, const struct ods_sequence *q, const struct od_msg *m, uint32_t first,
		     const struct ods_range *r, const uint64_t *row_bytes, struct od_err *err)
{
	struct od_out_frame frame[OD_MAX_STREAMS];
	size_t bytes;

	for (size_t j = 0; j < m->n_frames; j++)
		frame[j] =
			(struct od_out_frame){ .bytes = (const char *)od_msg_frame(m, j, &bytes) + first * row_bytes[j],
					       .len = r->n * row_bytes[j] };
	return ods_layer_put(e, q->state, r->layer, r->begin, r->n, frame, m->n_frames, err);
}

/* Ranges that are neither due nor requested are left out; the others are used. */
static int on_state(struct ods_emulator *e, const struct od_msg *m, uint64_t now_ns, struct od_err *err)
{
	const Od__State *s = m->header->state;
	uint64_t row_bytes[OD_MAX_STREAMS];
	uint32_t n_streams, first = 0; /* first: of a range, its first row in the frames */
	struct od_err put;
	int rc = check_state(e, m, row_bytes, &n_streams, err), rc_put = OD_OK;

	if (rc == OD_OK && e->o.chain != NULL && ods_chain_deadline(e->o.chain) != UINT64_MAX)
		rc = od_fail(err, OD_ERR_BUSY, "the shadows that hold the other layers are not connected");
	if (rc != OD_OK)
		return rc;
	for (size_t i = 0; rc_put == OD_OK && i < s->n_ranges; first += s->ranges[i++]->n) {
		const struct ods_range r = { s->layer, s->ranges[i]->begin, s->ranges[i]->n };
		struct ods_sequence *q;
		struct od_err why;
		int rc_range = expect_range(e, s, s->ranges[i], &q, &why);

		if (rc_range != OD_OK) {
			if (rc == OD_OK || rc == OD_ERR_BUSY) {
				rc = rc_range;
				*err = why;
			}
			continue;
		}
		rc_put = put_range(e, q, m, first, &r, row_bytes, &put);
		ods_align_true(q->align, &r, now_ns);
		e->o.counters[OD_C_SHADOW_STATE_ROWS] += r.n;
		if (s->step != 0 && s->layer > e->streamed)
			e->streamed = s->layer;
	}
	if (rc_put == OD_OK)
		rc_put = od_device_sync(e->o.forward.device, &put); /* the message is freed when this returns */
	if (rc_put == OD_OK)
		return rc;
	ods_give_up(e); /* no row is known to be good */
	*err = put;
	return rc_put;
}

/* ---- Dispatch ---- */

int ods_emulator_message(struct ods_emulator *e, const struct od_msg *m, uint64_t now_ns, struct od_err *err)
{
	const Od__Header *h = m->header;

	if (h->body_case == OD__HEADER__BODY_STATE)
		return on_state(e, m, now_ns, err);
	if (m->n_frames != 0)
		return od_fail(err, OD_ERR_PROTOCOL, "expected no tensors, found %zu", m->n_frames);
	switch (h->body_case) {
	case OD__HEADER__BODY_STEP: return on_step(e, h->step, err);
	case OD__HEADER__BODY_SEQ_OPEN: return on_seq_open(e, h->seq_open, err);
	case OD__HEADER__BODY_TOKENS: return on_tokens(e, h->tokens, err);
	case OD__HEADER__BODY_SEQ_TRUNCATE:
		return on_truncate(e, h->seq_truncate->sequence, h->seq_truncate->length, err);
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
	case OD__HEADER__BODY_STATE_REQUEST: /* sent by the shadow */
	case OD__HEADER__BODY_TOKENS_REQUEST:
	case OD__HEADER__BODY_PARTS: /* taken before */
	case OD__HEADER__BODY_PART_OPEN:
	case OD__HEADER__BODY_PART_READY:
	case OD__HEADER__BODY_PART_RUN:
	case OD__HEADER__BODY_PART_LAYER:
	case OD__HEADER__BODY_PART_RESULT:
	case OD__HEADER__BODY_PART_STATE:
	case OD__HEADER__BODY_PART_COMMIT:
	case OD__HEADER__BODY_PLACE:
	case OD__HEADER__BODY_STORE_HELLO:
	case OD__HEADER__BODY_STORE_WELCOME:
	case OD__HEADER__BODY_FETCH:
	case OD__HEADER__BODY_CHUNK:
	case OD__HEADER__BODY__NOT_SET:
	case _OD__HEADER__BODY__CASE_IS_INT_SIZE: break;
	}
	return od_fail(err, OD_ERR_PROTOCOL, "this message does not belong on a shadow's data socket");
}

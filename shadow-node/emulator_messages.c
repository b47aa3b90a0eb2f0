/* What main says: every number is checked here before anything is changed or indexed by it. */
#include "shadow-node/emulator_internal.h"

#include "common/base/mem.h"

/* ---- Sequences ---- */

static struct ods_sequence *find_sequence(struct ods_emulator *e, uint64_t id)
{
	for (size_t i = 0; i < e->o.max_sequences; i++)
		if (e->sequence[i].used && e->sequence[i].id == id)
			return &e->sequence[i];
	return NULL;
}

static int known_sequence(struct ods_emulator *e, uint64_t id, struct ods_sequence **out, struct od_err *err)
{
	*out = find_sequence(e, id);
	return *out != NULL ? OD_OK :
			      od_fail(err, OD_ERR_PROTOCOL, "sequence %llu is not known", (unsigned long long)id);
}

static bool touches(const struct step *s, const struct ods_sequence *seq, uint32_t begin, uint32_t end)
{
	for (size_t i = 0; i < s->n_rows; i++)
		if (s->rows[i].seq == seq && s->rows[i].position >= begin && s->rows[i].position < end)
			return true;
	return false;
}

static void close_sequence(struct ods_emulator *e, struct ods_sequence *s)
{
	if (e->phase != NO_RUN && touches(&e->step, s, 0, UINT32_MAX))
		ods_abandon(e);
	if (e->pending && touches(&e->latest, s, 0, UINT32_MAX))
		e->pending = false;
	ods_sequence_truncate(s, 0);
	s->used = false;
	e->closed[e->n_closed++ % ODS_MAX_SEQUENCES] = s->id;
}

/* A place for a sequence: a free one, or that of the one whose SEQ_CLOSE was lost, it seems. */
static struct ods_sequence *find_place(struct ods_emulator *e)
{
	struct ods_sequence *oldest = &e->sequence[0];

	for (size_t i = 0; i < e->o.max_sequences; i++) {
		struct ods_sequence *s = &e->sequence[i];

		if (!s->used)
			return s;
		if (s->heard < oldest->heard)
			oldest = s;
	}
	if (e->heard - oldest->heard < ODS_IDLE_STEPS)
		return NULL;
	close_sequence(e, oldest);
	return oldest;
}

/* The sequence, or a place for it. */
static int need_sequence(struct ods_emulator *e, uint64_t id, struct ods_sequence **out, struct od_err *err)
{
	int rc;

	*out = find_sequence(e, id);
	if (*out != NULL) {
		(*out)->heard = e->heard;
		return OD_OK;
	}
	for (size_t i = 0; i < ODS_MAX_SEQUENCES; i++)
		if (e->closed[i] == id) /* numbers are never used again: this comes late */
			return od_fail(err, OD_ERR_PROTOCOL, "sequence %llu is over", (unsigned long long)id);
	*out = find_place(e);
	if (*out == NULL)
		return od_fail(err, OD_ERR_BUSY, "sequence %llu: there is room for %zu here, and main has not closed one",
			       (unsigned long long)id, e->o.max_sequences);
	rc = ods_sequence_begin(*out, id, err);
	(*out)->heard = e->heard;
	return rc;
}

static int on_seq_open(struct ods_emulator *e, const Od__SeqOpen *m, struct od_err *err)
{
	struct ods_sequence *s;
	int rc = need_sequence(e, m->sequence, &s, err);

	return rc != OD_OK ? rc : ods_sequence_open(s, m, err);
}

/* Positions from length on are gone, and with them what stands there or would. */
static int on_truncate(struct ods_emulator *e, uint64_t id, uint32_t length, struct od_err *err)
{
	struct ods_sequence *s;
	int rc = known_sequence(e, id, &s, err);

	if (rc != OD_OK)
		return rc;
	if (length > e->o.ctx_tokens)
		return od_fail(err, OD_ERR_RANGE, "length: expected at most %u, found %u", e->o.ctx_tokens, length);
	if (e->phase != NO_RUN && touches(&e->step, s, length, UINT32_MAX))
		ods_abandon(e);
	if (e->pending && touches(&e->latest, s, length, UINT32_MAX))
		e->pending = false;
	ods_sequence_truncate(s, length);
	return OD_OK;
}

static int on_close(struct ods_emulator *e, uint64_t id, struct od_err *err)
{
	struct ods_sequence *s;
	int rc = known_sequence(e, id, &s, err);

	if (rc == OD_OK)
		close_sequence(e, s);
	return rc;
}

/* ---- TOKENS ---- */

static int check_tokens(const struct ods_emulator *e, const Od__Tokens *m, struct od_err *err)
{
	uint32_t vocab = e->o.forward.config->vocab;

	if (m->n_ids == 0 || !od_within(m->begin, m->n_ids, e->o.ctx_tokens))
		return od_fail(err, OD_ERR_RANGE, "%zu tokens from position %u on: expected 1 to %u", m->n_ids, m->begin,
			       e->o.ctx_tokens);
	for (size_t i = 0; i < m->n_ids; i++)
		if (m->ids[i] >= vocab)
			return od_fail(err, OD_ERR_RANGE, "token %zu: expected 0 to %u, found %u", i, vocab - 1, m->ids[i]);
	return OD_OK;
}

/* Rows that were computed for another token at this position are not about this sequence. */
static void correct(struct ods_emulator *e, struct ods_sequence *s, uint32_t position)
{
	if (e->phase != NO_RUN && touches(&e->step, s, position, UINT32_MAX))
		ods_abandon(e);
	if (s->own_state)
		ods_align_truncate(s->align, position);
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
	for (uint32_t p = m->begin; p < end; p++) {
		if (s->token[p] >= 0 && (uint32_t)s->token[p] != m->ids[p - m->begin]) {
			correct(e, s, p);
			break;
		}
	}
	/* A prompt stands where we guessed that a step would come. */
	if (e->phase != NO_RUN && e->ahead && touches(&e->step, s, m->begin, end))
		ods_abandon(e);
	if (e->phase != NO_RUN && touches(&e->step, s, 0, end - 1))
		e->step.next = 0;
	for (uint32_t p = m->begin; p < end; p++)
		ods_sequence_set_token(s, p, (int32_t)m->ids[p - m->begin]);
	if (end > s->told)
		s->told = end;
	if (s->asked_begin >= m->begin && s->asked_begin < end)
		s->asked = false;
	return OD_OK;
}

/* ---- STEP ---- */

/* A row of a STEP, with every number checked. Rows of one sequence follow each other. */
static int check_row(const struct ods_emulator *e, const Od__Step *m, size_t i, bool *first, struct od_err *err)
{
	const Od__StepRow *r = m->rows[i];
	uint32_t vocab = e->o.forward.config->vocab;

	if (r->position >= e->o.ctx_tokens)
		return od_fail(err, OD_ERR_RANGE, "row %zu: position: expected 0 to %u, found %u", i,
			       e->o.ctx_tokens - 1, r->position);
	*first = true;
	for (size_t j = i; j-- > 0 && *first;) {
		if (m->rows[j]->sequence != r->sequence)
			continue;
		*first = false;
		if (r->position != m->rows[j]->position + 1)
			return od_fail(err, OD_ERR_RANGE, "row %zu: position: expected %u, found %u", i,
				       m->rows[j]->position + 1, r->position);
	}
	if (r->token < (*first ? -1 : 0) || r->token >= (int64_t)vocab)
		return od_fail(err, OD_ERR_RANGE, "row %zu: token: expected %d to %u, found %d", i, *first ? -1 : 0,
			       vocab - 1, r->token);
	return OD_OK;
}

static uint32_t rows_of(const struct step *s, const struct ods_sequence *seq)
{
	uint32_t n = 0;

	for (size_t i = 0; i < s->n_rows; i++)
		n += s->rows[i].seq == seq;
	return n;
}

static int check_state_rows(const struct step *s, struct od_err *err)
{
	for (size_t i = 0; i < s->n_rows; i++) {
		const struct row *r = &s->rows[i];
		uint32_t n = rows_of(s, r->seq);

		if (r->first && r->state_rows != 0 && (r->state_rows < n || r->state_rows > r->position + n))
			return od_fail(err, OD_ERR_RANGE, "row %zu: state_rows: expected 0 or %u to %u, found %u", i, n,
				       r->position + n, r->state_rows);
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
	s->n_rows = m->n_rows;
	for (size_t i = 0; i < m->n_rows; i++) {
		struct row *r = &s->rows[i];
		int rc = need_sequence(e, m->rows[i]->sequence, &r->seq, err);

		if (rc != OD_OK)
			return rc;
		r->position = m->rows[i]->position;
		r->token = m->rows[i]->token;
		r->state_rows = m->rows[i]->state_rows;
		r->last = true;
		for (size_t j = i; j-- > 0 && !r->first;)
			if (s->rows[j].seq == r->seq)
				s->rows[j].last = false;
	}
	return check_state_rows(s, err);
}

/* A token that was left to us is the one that we ran with. */
static bool same_rows(const struct step *run, const struct step *s)
{
	if (run->n_rows != s->n_rows)
		return false;
	for (size_t i = 0; i < run->n_rows; i++)
		if (run->rows[i].seq != s->rows[i].seq || run->rows[i].position != s->rows[i].position ||
		    (s->rows[i].token >= 0 && run->rows[i].token != s->rows[i].token))
			return false;
	return true;
}

/* Does the step stand at or before a row of the run? Then the run's tokens are void. */
static bool takes_back(const struct step *run, const struct step *s)
{
	for (size_t i = 0; i < s->n_rows; i++)
		if (s->rows[i].first && touches(run, s->rows[i].seq, s->rows[i].position, UINT32_MAX))
			return true;
	return false;
}

/* Neither the run's rows nor the token that it would choose are wanted: main's come. */
static bool needless(const struct step *run, const struct step *s)
{
	for (size_t i = 0; i < run->n_rows; i++) {
		const struct row *r = &run->rows[i];

		if (r->first && r->state_rows == 0)
			return false;
		for (size_t j = 0; j < s->n_rows; j++)
			if (s->rows[j].seq == r->seq && s->rows[j].token < 0)
				return false;
	}
	return true;
}

/* What becomes of the run when another step than it comes. */
static void overtake(struct ods_emulator *e, const struct step *by)
{
	if (e->phase == NO_RUN)
		return;
	if (e->ahead || takes_back(&e->step, by)) {
		ods_abandon(e);
		return;
	}
	e->step.next = 0; /* no way leads on from it, but it may be asked for its token */
	if (e->phase == FINISHED)
		return;
	e->o.counters[OD_C_SHADOW_OVERTAKEN] += e->published;
	if (e->published && needless(&e->step, by))
		ods_abandon(e);
	e->published = false;
}

/* What STEP says of a sequence: main's tokens, where its rows begin, which rows will come. */
static void note_rows(struct ods_emulator *e, const struct step *s, const struct row *first, bool confirms)
{
	struct ods_sequence *q = first->seq;
	uint32_t n = rows_of(s, q);

	ods_align_step(q->align, first->position, n, first->state_rows, confirms);
	if (!confirms)
		ods_sequence_forget_tokens(q, first->position + n);
	for (size_t i = 0; i < s->n_rows; i++) {
		const struct row *r = &s->rows[i];

		if (r->seq == q && r->token >= 0)
			ods_sequence_set_token(q, r->position, r->token);
	}
	e->unaligned |= first->token < 0;
	e->o.counters[OD_C_SHADOW_CHOSEN] += first->token < 0;
}

static int on_step(struct ods_emulator *e, const Od__Step *m, struct od_err *err)
{
	struct step *s = &e->spare;
	bool confirms;
	int rc;

	e->heard++;
	rc = read_step(e, m, err);

	if (rc != OD_OK)
		return rc;
	confirms = e->phase != NO_RUN && e->ahead && e->step.number == s->number && same_rows(&e->step, s);
	if (!confirms)
		overtake(e, s);
	for (size_t i = 0; i < e->o.max_sequences; i++)
		ods_align_settle(e->sequence[i].align);
	for (size_t i = 0; i < s->n_rows; i++)
		if (s->rows[i].first)
			note_rows(e, s, &s->rows[i], confirms);
	e->newest = s->number;
	e->o.counters[OD_C_SHADOW_STEPS]++;
	e->pending = !confirms;
	if (!confirms) {
		ods_swap_steps(&e->latest, s);
		return OD_OK;
	}
	e->o.counters[OD_C_SHADOW_CONFIRMED]++;
	e->ahead = false;
	e->step.next = s->next;
	for (size_t i = 0; i < s->n_rows; i++)
		e->step.rows[i].state_rows = s->rows[i].state_rows;
	return OD_OK;
}

/* ---- STATE ---- */

static int check_state(const struct ods_emulator *e, const struct od_msg *m, const struct ods_sequence *seq,
		       struct od_err *err)
{
	const Od__State *s = m->header->state;
	const struct ods_range range = { s->layer, s->begin, s->n };
	size_t n_frames = 0, found;
	uint64_t bytes;

	if (s->layer >= e->o.forward.config->n_layers)
		return od_fail(err, OD_ERR_RANGE, "layer: expected 0 to %u, found %u", e->o.forward.config->n_layers - 1,
			       s->layer);
	if (s->n == 0 || !od_within(s->begin, s->n, e->o.ctx_tokens))
		return od_fail(err, OD_ERR_RANGE, "%u positions from %u on: expected 1 to %u", s->n, s->begin,
			       e->o.ctx_tokens);
	for (uint32_t i = 0; i < OD_MAX_STREAMS && od_seq_state_row_bytes(seq->state, s->layer, i) > 0; i++, n_frames++) {
		od_msg_frame(m, i, &found);
		if (!od_mul(s->n, od_seq_state_row_bytes(seq->state, s->layer, i), &bytes) || i >= m->n_frames || found != bytes)
			return od_fail(err, OD_ERR_SHAPE, "frame %u of layer %u: expected %llu bytes, found %zu", i, s->layer,
				       (unsigned long long)bytes, i < m->n_frames ? found : 0);
	}
	if (m->n_frames != n_frames)
		return od_fail(err, OD_ERR_SHAPE, "layer %u: expected %zu frames, one for each stream, found %zu", s->layer, n_frames,
			       m->n_frames);
	if ((s->step != 0 && s->step != e->newest) || !ods_align_expects(seq->align, &range, s->step == 0))
		return od_fail(err, OD_ERR_PROTOCOL, "nobody waits for %u positions from %u on of layer %u (step %llu)",
			       s->n, s->begin, s->layer, (unsigned long long)s->step);
	return OD_OK;
}

/* Positions [begin, begin + n), which have pages, of one layer; from must stay until a wait. */
static void put_rows(struct ods_emulator *e, const struct ods_sequence *seq, uint32_t layer, uint32_t stream,
		     uint32_t begin, uint32_t n, const char *from)
{
	const size_t row_bytes = od_seq_state_row_bytes(seq->state, layer, stream);

	for (uint32_t part; n > 0; begin += part, n -= part, from += part * row_bytes) {
		part = OD_KV_PAGE - begin % OD_KV_PAGE;
		part = part < n ? part : n;
		od_device_put(e->o.forward.device, OD_QUEUE_COMPUTE, od_seq_state_row(seq->state, layer, stream, begin), from,
			      part * row_bytes);
	}
}

static int on_state(struct ods_emulator *e, const struct od_msg *m, uint64_t now_ns, struct od_err *err)
{
	const Od__State *s = m->header->state;
	const struct ods_range range = { s->layer, s->begin, s->n };
	struct ods_sequence *seq;
	size_t bytes;
	int rc = known_sequence(e, s->sequence, &seq, err);

	if (rc == OD_OK)
		rc = check_state(e, m, seq, err);
	if (rc != OD_OK)
		return rc;
	od_seq_state_reserve(seq->state, s->begin + s->n);
	for (uint32_t i = 0; i < m->n_frames; i++)
		put_rows(e, seq, s->layer, i, s->begin, s->n, od_msg_frame(m, i, &bytes));
	rc = od_device_sync(e->o.forward.device, err); /* the message goes when we return */
	if (rc != OD_OK) {
		ods_give_up(e);
		return rc;
	}
	ods_align_true(seq->align, &range, now_ns);
	e->o.counters[OD_C_SHADOW_STATE_ROWS] += s->n;
	return OD_OK;
}

/* ---- All of them ---- */

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
	case OD__HEADER__BODY_STATE_REQUEST: /* what we send */
	case OD__HEADER__BODY_TOKENS_REQUEST:
	case OD__HEADER__BODY_PLACE:
	case OD__HEADER__BODY_STORE_HELLO:
	case OD__HEADER__BODY_STORE_WELCOME:
	case OD__HEADER__BODY_FETCH:
	case OD__HEADER__BODY_CHUNK:
	case OD__HEADER__BODY__NOT_SET:
	case _OD__HEADER__BODY__CASE_IS_INT_SIZE: break;
	}
	return od_fail(err, OD_ERR_PROTOCOL, "not a message for a shadow's data socket");
}

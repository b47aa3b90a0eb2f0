#include "tests/unit/emulator_cast.h"

#include "shadow-node/emulator_messages.h"

#include <stdlib.h>
#include <string.h>

/* ---- What is said ---- */

static struct actor *actor_of(struct cast *c, uint64_t id)
{
	for (uint32_t i = 0; i < c->n; i++)
		if (c->actor[i].id == id)
			return &c->actor[i];
	return NULL;
}

static void on_predict(void *arg, uint32_t m, const struct od_prediction *p, size_t n)
{
	struct stage *st = arg;

	for (size_t i = 0; i < n; i++) {
		struct actor *a = actor_of(st->cast, p[i].sequence);
		bool alone = a != NULL && st == &a->alone;
		struct said *s;

		assert_non_null(a);
		assert_true(alone || st == &st->cast->all);
		assert_true((alone ? a->n_one : a->n_many) < MAX_SAID && p[i].m == m);
		s = alone ? &a->one[a->n_one++] : &a->many[a->n_many++];
		memset(s, 0, sizeof(*s));
		s->position = p[i].position;
		s->m = m;
		s->token = p[i].token;
		memcpy(s->expert, p[i].expert, p[i].n * sizeof(*s->expert));
		memcpy(s->probability, p[i].probability, p[i].n * sizeof(*s->probability));
	}
}

static void on_ask(void *arg, uint64_t sequence, const struct ods_range *r)
{
	struct stage *st = arg;

	assert_true(st->n_requests < MAX_REQUESTS);
	st->request[st->n_requests++] = (struct request){ .sequence = sequence, .range = *r };
	st->asked_rows += r->n;
}

static void on_ask_tokens(void *arg, uint64_t sequence, uint32_t begin, uint32_t n)
{
	struct stage *st = arg;

	assert_true(st->n_requests < MAX_REQUESTS);
	st->request[st->n_requests++] =
		(struct request){ .sequence = sequence, .tokens = true, .range = { 0, begin, n } };
}

/* ---- Messages ---- */

static int hand(struct stage *st, Od__Header *h, struct od_msg *m)
{
	struct od_err err;

	m->header = h;
	return ods_emulator_message(st->e, m, st->cast->now, &err);
}

static bool is_lost(const struct cast *c, const struct stage *st, const struct actor *a)
{
	return st == &c->all && (chance(c->lose) || a == c->deaf);
}

/* Main's rows, a hash of what they are about. */
static void fill_rows(const struct cast *c, const struct actor *a, uint32_t layer, uint32_t stream, uint32_t position,
		      char *to)
{
	const size_t bytes = od_seq_state_row_bytes(c->rows, layer, stream);
	uint64_t x = a->version[position] * 1000003ull + position * 104729 + layer * 31 + stream;

	for (size_t i = 0; i < bytes; i += c->profile == OD_PROFILE_BF16 ? 2 : 4) {
		float f;
		uint16_t half;

		x = x * 6364136223846793005ull + 1442695040888963407ull;
		f = (float)(x >> 40) / (float)(1 << 23) - 1;
		half = od_f32_bf16(f);
		memcpy(to + i, c->profile == OD_PROFILE_BF16 ? (void *)&half : (void *)&f,
		       c->profile == OD_PROFILE_BF16 ? sizeof(half) : sizeof(f));
	}
}

static void send_state(struct cast *c, struct stage *st, const struct actor *a, uint64_t step, uint32_t layer,
		       uint32_t begin, uint32_t n)
{
	Od__Header h = OD__HEADER__INIT;
	Od__State body = OD__STATE__INIT;
	Od__StateRange range = OD__STATE_RANGE__INIT, *ranges[] = { &range };
	struct od_msg m = { .n_frames = 2 };
	int rc;

	range.sequence = a->id;
	range.begin = begin;
	range.n = n;
	body.layer = layer;
	body.ranges = ranges;
	body.n_ranges = 1;
	body.step = step;
	h.body_case = OD__HEADER__BODY_STATE;
	h.state = &body;
	for (uint32_t i = 0; i < 2; i++) {
		const size_t bytes = od_seq_state_row_bytes(c->rows, layer, i);

		assert_int_equal(zmq_msg_init_size(&m.frame[i], n * bytes), 0);
		for (uint32_t p = 0; p < n; p++)
			fill_rows(c, a, layer, i, begin + p, (char *)zmq_msg_data(&m.frame[i]) + p * bytes);
	}
	rc = hand(st, &h, &m);
	assert_true(rc == OD_OK || (rc == OD_ERR_PROTOCOL && st->late) || rc == OD_ERR_BUSY);
	for (size_t i = 0; i < 2; i++)
		zmq_msg_close(&m.frame[i]);
}

static void send_tokens(struct stage *st, const struct actor *a, uint32_t begin, uint32_t n)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Tokens body = OD__TOKENS__INIT;
	struct od_msg m = { 0 };

	body.sequence = a->id;
	body.begin = begin;
	body.ids = (uint32_t *)a->token + begin;
	body.n_ids = n;
	h.body_case = OD__HEADER__BODY_TOKENS;
	h.tokens = &body;
	assert_int_equal(hand(st, &h, &m), OD_OK);
}

void answer(struct cast *c, struct stage *st)
{
	struct request q[MAX_REQUESTS];
	size_t n = st->n_requests;

	memcpy(q, st->request, n * sizeof(*q));
	st->n_requests = 0;
	for (size_t i = 0; i < n; i++) {
		const struct actor *a = actor_of(c, q[i].sequence);
		const uint32_t end = q[i].range.begin + q[i].range.n;

		if (a == NULL || is_lost(c, st, a))
			continue;
		if (q[i].tokens && q[i].range.begin < a->length + a->rows)
			send_tokens(st, a, q[i].range.begin,
				    (end < a->length + a->rows ? end : a->length + a->rows) - q[i].range.begin);
		else if (!q[i].tokens && end <= a->length)
			send_state(c, st, a, 0, q[i].range.layer, q[i].range.begin, q[i].range.n);
	}
}

void drain(struct cast *c, struct stage *st)
{
	bool did = true;

	for (int i = 0; did || st->n_requests > 0; i++) {
		struct od_err err;

		answer(c, st);
		if (ods_emulator_work(st->e, c->now, &did, &err) != OD_OK)
			fail_msg("%s", err.msg);
		assert_true(i < 100000);
	}
}

/* After a message to all of them. */
static void drain_all(struct cast *c)
{
	if (!c->all.late)
		drain(c, &c->all);
	for (uint32_t i = 0; i < c->n; i++)
		if (c->actor[i].id != 0)
			drain(c, &c->actor[i].alone);
}

/* To the emulator of all, and to the sequence's own. */
static void send_both(struct cast *c, struct actor *a, Od__Header *h)
{
	struct od_msg m = { 0 };
	int rc = hand(&c->all, h, &m);

	assert_true(rc == OD_OK || (rc == OD_ERR_PROTOCOL && c->lose_step > 0) || rc == OD_ERR_BUSY);
	assert_int_equal(hand(&a->alone, h, &m), OD_OK);
	drain_all(c);
}

/* ---- Main ---- */

static void open_stage(struct cast *c, struct stage *st, size_t n, uint32_t n_pages)
{
	struct ods_sink sink = { .arg = st, .predict = on_predict, .ask = on_ask, .ask_tokens = on_ask_tokens };
	struct ods_emulator_opts o = { .forward = pass_opts(&c->model, c->profile),
				       .experts = c->model.expert,
				       .ctx_tokens = CTX,
				       .max_sequences = n,
				       .n_pages = n_pages,
				       .early = c->early,
				       .counters = st->counters };
	struct od_err err;

	o.forward.max_rows = STEP_ROWS;
	st->cast = c;
	must(ods_emulator_new(&st->e, &o, &sink, &err), &err);
}

void add_prompt(struct cast *c, struct actor *a, uint32_t n)
{
	const uint32_t begin = a->length;

	for (; n > 0 && a->length + 1 < CTX; n--, a->length++) {
		a->token[a->length] = (int32_t)draw(VOCAB);
		a->version[a->length] = ++c->version;
	}
	a->fresh = true;
	if (!a->tells || a->length == begin)
		return;
	send_tokens(&c->all, a, begin, a->length - begin);
	send_tokens(&a->alone, a, begin, a->length - begin);
	drain_all(c);
}

void enter_behind(struct cast *c, struct actor *a, uint32_t prompt, const struct actor *from, uint32_t shared)
{
	Od__Header h = OD__HEADER__INIT;
	Od__SeqOpen open = OD__SEQ_OPEN__INIT;

	a->id = c->next_id;
	c->next_id += 1 + draw(3);
	a->n_one = a->n_many = 0;
	a->length = a->rows = a->due = 0;
	memset(&a->alone, 0, sizeof(a->alone));
	open_stage(c, &a->alone, 1, 0);
	open.sequence = a->id;
	open.prompt_tokens = prompt;
	open.temperature = chance(50) ? 0 : 0.8;
	open.top_p = 1;
	open.repetition_penalty = chance(70) || c->lose + c->lose_step > 0 ? 1 : 1.3; /* it needs all tokens */
	open.seed = a->id;
	open.own_state = a->own_state = from != NULL ? from->own_state : !c->aligned && chance(25);
	open.prompt_tokens += shared;
	open.shared_sequence = from != NULL ? from->id : 0;
	open.shared_tokens = shared;
	a->tells = a->own_state || open.repetition_penalty != 1;
	h.body_case = OD__HEADER__BODY_SEQ_OPEN;
	h.seq_open = &open;
	if (from != NULL) {
		memcpy(a->token, from->token, shared * sizeof(a->token[0]));
		memcpy(a->version, from->version, shared * sizeof(a->version[0]));
	}
	send_both(c, a, &h);
	a->length = shared;
	a->fresh = true;
	add_prompt(c, a, prompt);
}

void enter(struct cast *c, struct actor *a, uint32_t prompt)
{
	enter_behind(c, a, prompt, NULL, 0);
}

void leave(struct cast *c, struct actor *a)
{
	Od__Header h = OD__HEADER__INIT;
	Od__SeqClose close = OD__SEQ_CLOSE__INIT;

	close.sequence = a->id;
	h.body_case = OD__HEADER__BODY_SEQ_CLOSE;
	h.seq_close = &close;
	send_both(c, a, &h);
	ods_emulator_free(a->alone.e);
	a->id = 0;
}

void truncate_to(struct cast *c, struct actor *a, uint32_t length)
{
	Od__Header h = OD__HEADER__INIT;
	Od__SeqTruncate body = OD__SEQ_TRUNCATE__INIT;

	a->length = length;
	a->fresh = true;
	body.sequence = a->id;
	body.length = length;
	h.body_case = OD__HEADER__BODY_SEQ_TRUNCATE;
	h.seq_truncate = &body;
	send_both(c, a, &h);
}

/* The shadow's guess of the token there; -1: none. */
static int32_t guess_of(const struct actor *a, uint32_t position)
{
	return a->n_one > 0 && a->one[a->n_one - 1].position == position ? a->one[a->n_one - 1].token : -1;
}

/* The next rows of a sequence. right: percent of guesses that are main's choice. */
static void choose_rows(struct cast *c, struct actor *a, uint32_t right)
{
	const int32_t guess = guess_of(a, a->length);

	a->rows = c->drafts && chance(20) ? 1 + draw(3) : 1;
	if (a->length + a->rows > CTX)
		a->rows = 1;
	for (uint32_t i = 0; i < a->rows; i++) {
		a->token[a->length + i] = (int32_t)draw(VOCAB);
		a->version[a->length + i] = ++c->version;
	}
	if (guess >= 0 && chance(right))
		a->token[a->length] = guess;
	else if (guess >= 0 && a->token[a->length] == guess)
		a->token[a->length] = (guess + 1) % (int32_t)VOCAB;
	a->due = a->rows;
	if (a->own_state || (!c->aligned && chance(40)))
		a->due = 0;
	else if (!c->aligned && !a->fresh &&
		 chance(30)) /* a run waits for rows that are missing, and others wait with it */
		a->due += draw(a->length + 1 < 6 ? a->length + 1 : 6);
}

/* A STEP of the sequences with rows; of one alone: NULL is all. */
static void send_step(struct cast *c, struct stage *st, const struct actor *only, const bool *ours)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Step body = OD__STEP__INIT;
	Od__StepRow rows[STEP_ROWS], *row[STEP_ROWS];
	struct od_msg m = { 0 };

	for (uint32_t i = 0; i < c->n; i++) {
		const struct actor *a = &c->actor[i];

		for (uint32_t j = 0; a->id != 0 && (only == NULL || a == only) && j < a->rows; j++) {
			od__step_row__init(&rows[body.n_rows]);
			rows[body.n_rows].sequence = a->id;
			rows[body.n_rows].position = a->length + j;
			rows[body.n_rows].token = j == 0 && ours[i] ? -1 : a->token[a->length + j];
			rows[body.n_rows].state_rows = j == 0 ? a->due : 0;
			rows[body.n_rows].ahead = j == 0;
			row[body.n_rows] = &rows[body.n_rows];
			body.n_rows++;
		}
	}
	body.step = c->step;
	body.rows = row;
	h.body_case = OD__HEADER__BODY_STEP;
	h.step = &body;
	assert_int_equal(hand(st, &h, &m), OD_OK);
}

bool choose_step(struct cast *c, uint32_t take, uint32_t right)
{
	uint32_t n = 0;

	c->step++;
	for (uint32_t i = 0; i < c->n; i++) {
		struct actor *a = &c->actor[i];

		a->rows = 0;
		if (a->id == 0 || a->length >= CTX || !chance(take) || n + 3 > STEP_ROWS)
			continue;
		choose_rows(c, a, right);
		n += a->rows;
	}
	return n > 0;
}

void begin_both(struct cast *c)
{
	bool ours[MAX_SEQS];

	for (uint32_t i = 0; i < c->n; i++) /* rows behind a run for the token make themselves late */
		ours[i] = c->unaligned && !c->actor[i].fresh && chance(60);
	if (!chance(c->lose_step))
		send_step(c, &c->all, NULL, ours);
	for (uint32_t i = 0; i < c->n; i++)
		if (c->actor[i].id != 0 && c->actor[i].rows > 0)
			send_step(c, &c->actor[i].alone, &c->actor[i], ours);
	drain_all(c);
}

void layer_both(struct cast *c, uint32_t layer)
{
	for (uint32_t i = 0; i < c->n; i++) {
		struct actor *a = &c->actor[i];
		const uint32_t end = a->length + a->rows;

		if (a->id == 0 || a->rows == 0 || a->due == 0)
			continue;
		if (!is_lost(c, &c->all, a == c->deaf && layer != c->deaf_layer ? NULL : a))
			send_state(c, &c->all, a, c->step, layer, end - a->due, a->due);
		send_state(c, &a->alone, a, c->step, layer, end - a->due, a->due);
		drain_all(c);
	}
}

void end_both(struct cast *c)
{
	for (uint32_t i = 0; i < c->n; i++) {
		struct actor *a = &c->actor[i];
		const uint32_t rows = a->rows;

		if (a->id == 0)
			continue;
		a->fresh = a->fresh && rows == 0;
		a->length += rows;
		a->rows = 0;
		if (rows > 1 && chance(70)) /* a draft that was taken in part */
			truncate_to(c, a, a->length - draw(rows));
	}
}

void assert_same(const struct cast *c)
{
	for (uint32_t i = 0; i < c->n; i++) {
		const struct actor *a = &c->actor[i];

		if (a->id == 0)
			continue;
		assert_int_equal(a->n_one, a->n_many);
		assert_memory_equal(a->one, a->many, a->n_one * sizeof(a->one[0]));
	}
}

void step_both(struct cast *c, uint32_t take, uint32_t right)
{
	if (!choose_step(c, take, right))
		return;
	begin_both(c);
	for (uint32_t l = 0; l < LAYERS; l++)
		layer_both(c, l);
	end_both(c);
}

void open_cast(struct cast *c, uint32_t n, bool early, enum od_profile profile, uint64_t from_seed, uint32_t n_pages)
{
	memset(c, 0, sizeof(*c));
	c->n = n;
	c->early = early;
	c->profile = profile;
	c->next_id = 5;
	make_model(&c->model, 1);
	open_pass(&c->pass, &c->model, profile, CTX, 1);
	c->rows = make_state(&c->pass);
	open_stage(c, &c->all, n, n_pages);
	for (uint32_t i = 0; i < n; i++) {
		c->actor[i].one = calloc(MAX_SAID, sizeof(struct said));
		c->actor[i].many = calloc(MAX_SAID, sizeof(struct said));
		assert_true(c->actor[i].one != NULL && c->actor[i].many != NULL);
	}
	seed = from_seed;
}

void close_cast(struct cast *c)
{
	ods_emulator_free(c->all.e);
	for (uint32_t i = 0; i < c->n; i++) {
		if (c->actor[i].id != 0)
			ods_emulator_free(c->actor[i].alone.e);
		free(c->actor[i].one);
		free(c->actor[i].many);
	}
	od_seq_state_free(c->rows);
	close_pass(&c->pass);
	free_model(&c->model);
}

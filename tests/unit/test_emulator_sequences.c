/* The emulator with many sequences: each must be told the same of as if it were alone, whatever the others do. The oracle is
 * an emulator of one sequence, which gets that sequence's messages and no others; what is said of it must be the same bits.
 * Main is a script here: its keys and values are any numbers, for they are what they are. */
#include "tests/unit/emulator_world.h"

#include <stdlib.h>
#include <string.h>

#define MAX_SAID 6000u
#define MAX_REQUESTS 64u

struct said { /* of one row at one layer */
	uint32_t position, m;
	int32_t token;
	uint16_t expert[OD_MAX_CANDIDATES];
	float probability[OD_MAX_CANDIDATES];
};

struct request {
	uint64_t sequence;
	bool tokens;
	struct ods_range range; /* of tokens: layer 0 */
};

struct cast;

/* An emulator, and what it said. */
struct stage {
	struct cast *cast;
	struct ods_emulator *e;
	uint64_t counters[OD_N_COUNTERS];
	struct request request[MAX_REQUESTS];
	size_t n_requests;
	unsigned asked_rows;
	bool late; /* it works when the test says so, and gets answers late */
};

struct actor { /* a sequence */
	uint64_t id; /* 0: none */
	struct stage alone;
	struct said *one, *many; /* [MAX_SAID]: what was said of it alone, and among the others */
	size_t n_one, n_many;
	int32_t token[CTX];
	uint32_t version[CTX]; /* of main's rows there: no two texts have the same */
	uint32_t length; /* committed */
	uint32_t rows;	 /* of the step under way */
	uint32_t due;	 /* rows that come with it */
	bool own_state, tells; /* tells: main sends the prompt's tokens */
	bool fresh; /* no step went before: rows may be missing, and the token to go on with */
};

struct cast {
	struct model model;
	struct od_seq_state *rows; /* for the size of a row */
	struct pass pass;
	enum od_profile profile;
	bool early, unaligned, drafts, aligned; /* aligned: main's rows always come */
	struct stage all;
	struct actor actor[MAX_SEQS];
	uint32_t n;
	uint64_t next_id, step, now;
	uint32_t version;
	uint32_t lose, lose_step; /* percent, of what `all` gets */
	const struct actor *deaf; /* no answers come for it, nor its rows of one layer */
	uint32_t deaf_layer;
};

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
	st->request[st->n_requests++] = (struct request){ .sequence = sequence, .tokens = true, .range = { 0, begin, n } };
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
static void fill_rows(const struct cast *c, const struct actor *a, uint32_t layer, uint32_t stream, uint32_t position, char *to)
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

static void send_state(struct cast *c, struct stage *st, const struct actor *a, uint64_t step, uint32_t layer, uint32_t begin,
		       uint32_t n)
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

static void answer(struct cast *c, struct stage *st)
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
			send_tokens(st, a, q[i].range.begin, (end < a->length + a->rows ? end : a->length + a->rows) -
				    q[i].range.begin);
		else if (!q[i].tokens && end <= a->length)
			send_state(c, st, a, 0, q[i].range.layer, q[i].range.begin, q[i].range.n);
	}
}

/* Until there is nothing to do without another message. */
static void drain(struct cast *c, struct stage *st)
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
	struct ods_emulator_opts o = { .forward = pass_opts(&c->model, c->profile), .experts = c->model.expert,
				       .ctx_tokens = CTX, .max_sequences = n, .n_pages = n_pages, .early = c->early,
				       .counters = st->counters };
	struct od_err err;

	o.forward.max_rows = STEP_ROWS;
	st->cast = c;
	must(ods_emulator_new(&st->e, &o, &sink, &err), &err);
}

/* More prompt: nothing tells of it but TOKENS, where they are sent. */
static void add_prompt(struct cast *c, struct actor *a, uint32_t n)
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

/* prompt: tokens of it behind what it shares with another. */
static void enter_behind(struct cast *c, struct actor *a, uint32_t prompt, const struct actor *from, uint32_t shared)
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

static void enter(struct cast *c, struct actor *a, uint32_t prompt)
{
	enter_behind(c, a, prompt, NULL, 0);
}

static void leave(struct cast *c, struct actor *a)
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

static void truncate_to(struct cast *c, struct actor *a, uint32_t length)
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

/* What the shadow guessed to stand there; -1: nothing. */
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
	else if (!c->aligned && !a->fresh && chance(30)) /* of rows that are not there a run waits, and others with it */
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

/* Some sequences have rows in the next step. */
static bool choose_step(struct cast *c, uint32_t take, uint32_t right)
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

static void begin_both(struct cast *c)
{
	bool ours[MAX_SEQS];

	for (uint32_t i = 0; i < c->n; i++) /* what is behind a run for the token makes itself late */
		ours[i] = c->unaligned && !c->actor[i].fresh && chance(60);
	if (!chance(c->lose_step))
		send_step(c, &c->all, NULL, ours);
	for (uint32_t i = 0; i < c->n; i++)
		if (c->actor[i].id != 0 && c->actor[i].rows > 0)
			send_step(c, &c->actor[i].alone, &c->actor[i], ours);
	drain_all(c);
}

/* The rows of a layer leave. */
static void layer_both(struct cast *c, uint32_t layer)
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

static void end_both(struct cast *c)
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

static void assert_same(const struct cast *c)
{
	for (uint32_t i = 0; i < c->n; i++) {
		const struct actor *a = &c->actor[i];

		if (a->id == 0)
			continue;
		assert_int_equal(a->n_one, a->n_many);
		assert_memory_equal(a->one, a->many, a->n_one * sizeof(a->one[0]));
	}
}

static void step_both(struct cast *c, uint32_t take, uint32_t right)
{
	if (!choose_step(c, take, right))
		return;
	begin_both(c);
	for (uint32_t l = 0; l < LAYERS; l++)
		layer_both(c, l);
	end_both(c);
}

static void open_cast(struct cast *c, uint32_t n, bool early, enum od_profile profile, uint64_t from_seed, uint32_t n_pages)
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

static void close_cast(struct cast *c)
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

/* ---- The same as alone ---- */

/* The shadow has chosen a token for main before: from then on it does so at once. */
static void warm_up(struct cast *c)
{
	c->unaligned = true;
	enter(c, &c->actor[0], 2);
	while (c->all.counters[OD_C_SHADOW_CHOSEN] == 0)
		step_both(c, 100, 100);
	leave(c, &c->actor[0]);
}

static void disturb_one(struct cast *c)
{
	struct actor *a = &c->actor[draw(c->n)];
	const struct actor *from = &c->actor[draw(c->n)];

	if (a->id == 0 && from->id != 0 && c->aligned && from->length >= OD_KV_PAGE)
		enter_behind(c, a, 1 + draw(9), from, OD_KV_PAGE);
	else if (a->id == 0)
		enter(c, a, 1 + draw(chance(40) ? 74 : 9));
	else if (chance(25))
		leave(c, a);
	else if (chance(40))
		truncate_to(c, a, 1 + draw(a->length));
	else
		add_prompt(c, a, 1 + draw(5));
}

/* In lockstep: whatever is said, everybody has all the time there is before the next message. What is said of each
 * sequence is the same, to the bit, in the same order, and between the same steps. */
static uint64_t lockstep_life(uint64_t from_seed)
{
	struct cast c;
	uint64_t said;

	open_cast(&c, 2 + (uint32_t)from_seed % 15, from_seed & 1, from_seed & 2 ? OD_PROFILE_BF16 : OD_PROFILE_F32, from_seed, 0);
	c.drafts = (from_seed & 4) != 0;
	c.aligned = (from_seed & 8) != 0;
	if (from_seed & 16)
		warm_up(&c);
	for (uint32_t i = 0; i < c.n; i += 2)
		enter(&c, &c.actor[i], 1 + draw(9));
	for (int i = 0; i < 40; i++) {
		for (uint32_t j = 0; j < c.n; j++)
			if (chance(8))
				disturb_one(&c);
		assert_same(&c);
		step_both(&c, 70, 60);
		assert_same(&c);
	}
	said = c.all.counters[OD_C_SHADOW_PREDICTIONS];
	assert_int_equal(c.all.counters[OD_C_SHADOW_OVERTAKEN], 0);
	close_cast(&c);
	return said;
}

static void test_lockstep(void **state)
{
	uint64_t said = 0;

	(void)state;
	for (uint64_t i = 0; i < 96; i++)
		said += lockstep_life(2000 + i);
	assert_true(said > 96 * 300);
}

/* At any speed, with losses: what is said is what would be said alone, though less of it. */
static void assert_among(const struct cast *c)
{
	for (uint32_t i = 0; i < c->n; i++) {
		const struct actor *a = &c->actor[i];

		for (size_t j = 0; a->id != 0 && j < a->n_many; j++) {
			size_t k = a->n_one;

			while (k > 0 && memcmp(&a->one[k - 1], &a->many[j], sizeof(a->many[j])) != 0)
				k--;
			if (k == 0)
				fail_msg("sequence %llu, position %u, layer %u: not what is said when it is alone",
					 (unsigned long long)a->id, a->many[j].position, a->many[j].m);
		}
	}
}

static void work_some(struct cast *c, uint32_t most)
{
	for (uint32_t i = draw(most + 1); i > 0; i--) {
		struct od_err err;
		bool did;

		if (ods_emulator_work(c->all.e, c->now, &did, &err) != OD_OK)
			fail_msg("%s", err.msg);
		if (chance(50))
			answer(c, &c->all);
	}
	c->now += draw((uint32_t)(ODS_ASK_AGAIN_NS / 8));
}

/* What was said of the newest rows of each. */
static void assert_all_said(const struct cast *c)
{
	for (uint32_t i = 0; i < c->n; i++) {
		const struct actor *a = &c->actor[i];
		unsigned said = 0;

		if (a->id == 0 || a->rows == 0)
			continue;
		for (size_t j = 0; j < a->n_many; j++)
			if (a->many[j].position == a->length && a->many[j].token == a->token[a->length])
				said |= 1u << a->many[j].m;
		assert_int_equal(said, (1u << LAYERS) - 1);
	}
}

static void random_life(uint64_t from_seed)
{
	const uint32_t n = 2 + (uint32_t)from_seed % 15, n_pages = from_seed % 5 == 0 ? 2 + n / 2 : 0;
	struct cast c;
	uint32_t pace;

	open_cast(&c, n, from_seed & 1, from_seed & 2 ? OD_PROFILE_BF16 : OD_PROFILE_F32, from_seed, n_pages);
	c.aligned = c.all.late = true;
	c.lose = draw(3) * 5;
	c.lose_step = draw(2) * 5;
	pace = 1 + draw(12);
	for (int i = 0; i < 50; i++) {
		for (uint32_t j = 0; j < c.n; j++)
			if (chance(10))
				disturb_one(&c);
		work_some(&c, pace);
		if (!choose_step(&c, 70, 60))
			continue;
		begin_both(&c);
		for (uint32_t l = 0; l < LAYERS; l++) {
			work_some(&c, pace);
			layer_both(&c, l);
		}
		end_both(&c);
		assert_among(&c);
	}
	c.lose = c.lose_step = 0;
	drain(&c, &c.all);
	while (ods_emulator_deadline(c.all.e) != UINT64_MAX) {
		c.now = ods_emulator_deadline(c.all.e);
		drain(&c, &c.all);
	}
	c.all.late = false;
	if (choose_step(&c, 100, 60)) {
		begin_both(&c);
		for (uint32_t l = 0; l < LAYERS; l++)
			layer_both(&c, l);
		if (n_pages == 0) /* else some may sit out */
			assert_all_said(&c);
	}
	assert_among(&c);
	close_cast(&c);
}

static void test_random(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 120; i++)
		random_life(7000 + i);
}

/* ---- One of them ---- */

static void enter_all(struct cast *c, uint32_t prompt)
{
	for (uint32_t i = 0; i < c->n; i++)
		enter(c, &c->actor[i], prompt);
	step_both(c, 100, 100);
}

/* How often a row was said of, at all layers. */
static size_t times_said(const struct actor *a, uint32_t position, int32_t token)
{
	size_t n = 0;

	for (size_t i = 0; i < a->n_many; i++)
		n += a->many[i].position == position && a->many[i].token == token;
	return n;
}

/* A wrong guess of one voids no row of another: each row is run once, and that of the wrong guess twice, be the run through
 * or under way when main's word comes. */
static void wrong_guess(uint32_t n, unsigned pieces)
{
	struct cast c;

	open_cast(&c, n, true, OD_PROFILE_F32, 50 + n, 0);
	c.aligned = true;
	enter_all(&c, 4);
	for (uint32_t wrong = 0; wrong < n && c.actor[0].length + 2 < CTX; wrong++) {
		const uint64_t confirmed = c.all.counters[OD_C_SHADOW_CONFIRMED], mistaken = c.all.counters[OD_C_SHADOW_MISTAKEN];
		struct actor *a = &c.actor[wrong];
		int32_t guess;

		if (pieces > 0) { /* a step whose guesses are right, after which the run ahead does not come to its end */
			assert_true(choose_step(&c, 100, 100));
			begin_both(&c);
			c.all.late = true;
			for (uint32_t l = 0; l < LAYERS; l++)
				layer_both(&c, l);
			for (unsigned i = 0; i < pieces; i++) {
				struct od_err err;
				bool did;

				assert_int_equal(ods_emulator_work(c.all.e, c.now, &did, &err), OD_OK);
			}
			end_both(&c);
		}
		assert_true(choose_step(&c, 100, 100));
		guess = a->token[a->length];
		a->token[a->length] = (guess + 1) % (int32_t)VOCAB;
		begin_both(&c);
		c.all.late = false;
		drain(&c, &c.all);
		assert_int_equal(c.all.counters[OD_C_SHADOW_MISTAKEN], mistaken + 1);
		assert_int_equal(c.all.counters[OD_C_SHADOW_CONFIRMED], confirmed + (pieces > 0 ? n : 0) + n - 1);
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(times_said(&c.actor[i], c.actor[i].length, c.actor[i].token[c.actor[i].length]), LAYERS);
		for (uint32_t l = 0; l < LAYERS; l++)
			layer_both(&c, l);
		end_both(&c);
		assert_among(&c);
	}
	assert_int_equal(c.all.counters[OD_C_SHADOW_OVERTAKEN], 0);
	close_cast(&c);
}

static void test_wrong_guess(void **state)
{
	(void)state;
	for (uint32_t n = 2; n <= 16; n += 7)
		for (unsigned pieces = 0; pieces < 2 * LAYERS; pieces++)
			wrong_guess(n, pieces);
}

/* The run of all sequences says what it has to say of a layer at once: main gets one message. */
static void test_one_run(void **state)
{
	struct world w;

	(void)state;
	open_large_world(&w, OD_PROFILE_F32, true, false, 3, 16);
	for (uint32_t i = 0; i < 16; i++)
		open_sequence(&w, &w.seq[i]);
	for (int i = 0; i < 5; i++) {
		const uint64_t waits = od_device_waits(w.shadow_model.device);
		const unsigned before = w.predicts;

		w.judge = i == 0; /* it waits, too */
		begin_step(&w, true);
		settle(&w);
		assert_predicted(&w, w.step);
		if (i > 0) {
			assert_int_equal(w.predicts - before, LAYERS);
			assert_int_equal(od_device_waits(w.shadow_model.device) - waits, LAYERS);
		}
		while (send_layer(&w))
			;
		settle(&w);
	}
	close_world(&w);
}

static void assert_others_same(const struct cast *c, const struct actor *but)
{
	for (uint32_t i = 0; i < c->n; i++) {
		const struct actor *a = &c->actor[i];

		if (a == but)
			continue;
		assert_int_equal(a->n_one, a->n_many);
		assert_memory_equal(a->one, a->many, a->n_one * sizeof(a->one[0]));
	}
}

/* The rows of one layer of one sequence are lost, and what it asks for is not answered: no other is told of less or later,
 * though no time passes. Only of the last layer nothing tells that it is lost before the next STEP. rests: it has no rows in
 * later steps. */
static void lacks_rows(uint32_t layer, bool early, bool rests)
{
	const struct actor *sick;
	struct cast c;
	size_t before;

	open_cast(&c, 5, early, OD_PROFILE_BF16, 60 + layer, 0);
	c.aligned = true;
	sick = &c.actor[layer];
	enter_all(&c, 7);
	step_both(&c, 100, 70);
	assert_same(&c);
	before = sick->n_many;
	c.deaf = sick;
	c.deaf_layer = layer;
	for (int i = 0; i < 6; i++) {
		assert_true(choose_step(&c, 100, layer + 1 < LAYERS ? 70 : 100));
		if (rests && i > 0)
			c.actor[layer].rows = 0;
		begin_both(&c);
		assert_others_same(&c, sick);
		for (uint32_t l = 0; l < LAYERS; l++)
			layer_both(&c, l);
		end_both(&c);
		if (layer + 1 < LAYERS)
			assert_others_same(&c, sick);
	}
	assert_true(sick->n_many < before + 3 * LAYERS && c.now == 0); /* the last row before that, and one ahead */
	c.deaf = NULL;
	c.now = 2 * ODS_ASK_AGAIN_NS;
	step_both(&c, 100, 70);
	step_both(&c, 100, 70);
	assert_others_same(&c, sick);
	assert_int_equal(times_said(sick, sick->length - 1, sick->token[sick->length - 1]), LAYERS);
	assert_among(&c);
	close_cast(&c);
}

static void test_lacks_rows(void **state)
{
	(void)state;
	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		lacks_rows(layer, false, false);
		lacks_rows(layer, true, false);
		lacks_rows(layer, true, true);
	}
}

/* One that the steps of another keep busy all the time computes a prompt all the same. */
static void test_busy(void **state)
{
	const struct actor own = { .own_state = true };
	const uint32_t prompt = 40;
	struct cast c;

	(void)state;
	open_cast(&c, 2, false, OD_PROFILE_F32, 77, 0);
	c.aligned = true;
	enter(&c, &c.actor[0], 5);
	step_both(&c, 100, 100);
	c.all.late = true;
	enter_behind(&c, &c.actor[1], prompt, &own, 0);
	for (int i = 0; i < 30; i++) {
		assert_true(choose_step(&c, 100, 100));
		c.actor[1].rows = 0;
		begin_both(&c);
		for (unsigned j = 0; j < 2 * LAYERS; j++) { /* attention and experts: as much as the step takes */
			struct od_err err;
			bool did;

			must(ods_emulator_work(c.all.e, c.now, &did, &err), &err);
			assert_true(did);
		}
		for (uint32_t l = 0; l < LAYERS; l++)
			layer_both(&c, l);
		end_both(&c);
	}
	assert_true(c.all.counters[OD_C_SHADOW_FILLED] >= prompt);
	close_cast(&c);
}

/* ---- Memory ---- */

/* Three pages: one text of two, one that would need its second sits out until the other ends. */
static void test_few_pages(void **state)
{
	struct actor *a, *b;
	struct cast c;
	size_t before;

	(void)state;
	open_cast(&c, 2, true, OD_PROFILE_F32, 70, 3);
	c.aligned = true;
	a = &c.actor[0];
	b = &c.actor[1];
	enter(&c, a, 66);
	enter(&c, b, 60);
	while (b->length < OD_KV_PAGE)
		step_both(&c, 100, 80);
	step_both(&c, 100, 80);
	before = b->n_many;
	assert_int_equal(times_said(b, OD_KV_PAGE - 1, b->token[OD_KV_PAGE - 1]), LAYERS);
	for (int i = 0; i < 3; i++) {
		step_both(&c, 100, 80);
		assert_others_same(&c, b);
	}
	assert_int_equal(b->n_many, before);
	assert_true(b->n_one > before);
	leave(&c, a);
	step_both(&c, 100, 80); /* what was not taken meanwhile is asked for */
	assert_int_equal(times_said(b, b->length - 1, b->token[b->length - 1]), LAYERS);
	for (int i = 0; i < 3; i++)
		step_both(&c, 100, 80);
	assert_int_equal(times_said(b, b->length - 1, b->token[b->length - 1]), LAYERS);
	assert_among(&c);
	close_cast(&c);
}

/* Whatever ends and begins while a run goes on, there is memory for as many sequences as were agreed. */
static void test_places(void **state)
{
	struct cast c;

	(void)state;
	open_cast(&c, 3, true, OD_PROFILE_F32, 80, 0);
	c.aligned = true;
	enter_all(&c, 3);
	for (int round = 0; round < 8; round++) {
		assert_true(choose_step(&c, 100, 50));
		begin_both(&c);
		c.all.late = true; /* a run is under way */
		for (uint32_t l = 0; l < LAYERS; l++)
			layer_both(&c, l);
		end_both(&c);
		for (int again = 0; again < 3; again++) /* all but one end, and others begin and end */
			for (uint32_t i = 0; i < 2; i++) {
				leave(&c, &c.actor[i]);
				enter(&c, &c.actor[i], 3);
			}
		c.all.late = false;
		step_both(&c, 100, 50);
		for (uint32_t i = 0; i < 3; i++)
			assert_int_equal(times_said(&c.actor[i], c.actor[i].length - 1, c.actor[i].token[c.actor[i].length - 1]),
					 LAYERS);
		assert_among(&c);
	}
	close_cast(&c);
}

/* ---- Shared prefixes ---- */

/* What is said is the same as without; what is shared is asked for once. */
static void shared_prefix(bool early, uint32_t n, bool known)
{
	struct cast c;
	unsigned asked;

	open_cast(&c, n, early, OD_PROFILE_F32, 90 + n, 0);
	c.aligned = true;
	enter(&c, &c.actor[0], 66);
	if (known) /* else its rows are missing when they are shared */
		step_both(&c, 100, 100);
	for (uint32_t i = 1; i < n; i++)
		enter_behind(&c, &c.actor[i], 4, &c.actor[0], OD_KV_PAGE);
	asked = c.all.asked_rows;
	for (int i = 0; i < 4; i++) {
		step_both(&c, 100, 60);
		assert_same(&c);
	}
	/* What stands behind the page, and the first one's prompt, if it was missing. */
	assert_int_equal(c.all.asked_rows - asked, LAYERS * (4 * (n - 1) + (known ? 0 : 66)));
	close_cast(&c);
}

static void test_shared_prefix(void **state)
{
	(void)state;
	for (uint32_t n = 2; n <= 5; n++)
		for (int i = 0; i < 4; i++)
			shared_prefix(i & 1, n, i & 2);
}

/* The page that is shared ends with a prompt of which nothing told, where the shadow had guessed that a step would come. */
static void test_guess_in_shared_page(void **state)
{
	(void)state;
	for (int under_way = 0; under_way < 2; under_way++) {
		struct cast c;

		open_cast(&c, 2, true, OD_PROFILE_F32, 97, 0);
		c.aligned = true;
		enter(&c, &c.actor[0], 61);
		step_both(&c, 100, 100);
		assert_int_equal(c.actor[0].one[c.actor[0].n_one - 1].position, 62);
		if (under_way) { /* the guess */
			assert_true(choose_step(&c, 100, 0));
			begin_both(&c);
			c.all.late = true;
			for (uint32_t l = 0; l < LAYERS; l++)
				layer_both(&c, l);
			end_both(&c);
		}
		add_prompt(&c, &c.actor[0], 3);
		enter_behind(&c, &c.actor[1], 2, &c.actor[0], OD_KV_PAGE);
		c.all.late = false;
		drain(&c, &c.all);
		step_both(&c, 100, 50);
		step_both(&c, 100, 50);
		assert_among(&c);
		for (uint32_t i = 0; i < 2; i++)
			assert_int_equal(times_said(&c.actor[i], c.actor[i].length - 1, c.actor[i].token[c.actor[i].length - 1]),
					 LAYERS);
		close_cast(&c);
	}
}

/* One of two goes on otherwise within the page, be a run under way or not: the other notices nothing. */
static void parted(uint32_t which, unsigned pieces)
{
	struct cast c;

	open_cast(&c, 4, true, OD_PROFILE_F32, 98, 0);
	c.aligned = true;
	enter(&c, &c.actor[0], 62);
	enter(&c, &c.actor[3], 5); /* without it the run would be over */
	step_both(&c, 100, 100);
	c.all.late = pieces > 0;
	assert_true(choose_step(&c, 100, 0));
	begin_both(&c);
	for (uint32_t l = 0; l < LAYERS; l++)
		layer_both(&c, l);
	end_both(&c);
	for (unsigned i = 1; i < pieces; i++) {
		struct od_err err;
		bool did;

		assert_int_equal(ods_emulator_work(c.all.e, c.now, &did, &err), OD_OK);
	}
	enter_behind(&c, &c.actor[1], 3, &c.actor[0], OD_KV_PAGE);
	truncate_to(&c, &c.actor[which], 30);
	enter_behind(&c, &c.actor[2], 3, &c.actor[1 - which], OD_KV_PAGE);
	c.all.late = false;
	for (int i = 0; i < 4; i++) {
		step_both(&c, 100, 50);
		assert_among(&c);
		for (uint32_t j = 0; j < 4; j++)
			assert_true(times_said(&c.actor[j], c.actor[j].length - 1, c.actor[j].token[c.actor[j].length - 1]) >=
				    LAYERS);
	}
	leave(&c, &c.actor[1 - which]);
	step_both(&c, 100, 50);
	assert_among(&c);
	close_cast(&c);
}

static void test_parted(void **state)
{
	(void)state;
	for (uint32_t which = 0; which < 2; which++)
		for (unsigned pieces = 0; pieces < 3 * LAYERS; pieces++)
			parted(which, pieces);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lockstep),     cmocka_unit_test(test_random),  cmocka_unit_test(test_wrong_guess),
		cmocka_unit_test(test_one_run),	     cmocka_unit_test(test_lacks_rows), cmocka_unit_test(test_busy),
		cmocka_unit_test(test_few_pages),
		cmocka_unit_test(test_places),	     cmocka_unit_test(test_shared_prefix),
		cmocka_unit_test(test_guess_in_shared_page), cmocka_unit_test(test_parted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

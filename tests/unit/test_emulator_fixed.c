/* The emulator of a model with fixed state, which is aligned by tokens. Its weights are main's, so each prediction of a
 * row whose tokens are main's must be main's own routes: that is so only if the fixed state is exactly that of these
 * tokens. Main's are worked out from the text's beginning, whatever was undone on the way. */
#include "shadow-node/emulator.h"
#include "shadow-node/emulator_messages.h"
#include "tests/unit/emulator_model.h"

#include <stdlib.h>
#include <string.h>

enum { TEXTS = 3, MOST = 4 }; /* rows of a text in a step */

/* One of main's sequences. */
struct emulator_fixed_text {
	uint64_t id;
	uint32_t prompt, n; /* tokens whose rows main has computed */
	int32_t token[CTX];
	uint32_t rows; /* rows of the newest step, which main has not finished */
	bool open;
	/* The newest prediction of each position. */
	struct {
		int32_t token;
		uint16_t expert[TOP_K];
	} said[CTX][LAYERS];
};

struct emulator_fixed_world {
	struct model m;
	struct pass pass; /* the observed text's */
	struct od_seq_state *state;
	struct ods_emulator *emulator;
	uint64_t counters[OD_N_COUNTERS], step, next_id, now;
	struct emulator_fixed_text text[TEXTS];
	unsigned checked, asked;
	uint32_t rows; /* rows of each text in a step; 0: some */
};

/* ---- What main computes ---- */

/* Routes [n][LAYERS][TOP_K] of a text's rows; best: the most probable token behind each. */
static void oracle(struct emulator_fixed_world *w, const int32_t *token, uint32_t n, uint16_t (*route)[LAYERS][TOP_K],
		   int32_t *best)
{
	uint16_t some_rows[LAYERS * STEP_ROWS * TOP_K];
	struct od_row rows[STEP_ROWS];

	od_seq_state_set_length(w->state, 0);
	for (uint32_t at = 0, some; at < n; at += some) {
		some = n - at < STEP_ROWS ? n - at : STEP_ROWS;
		for (uint32_t i = 0; i < some; i++)
			rows[i] = (struct od_row){ w->state, at + i, token[at + i] };
		run_pass(&w->pass, rows, some, some_rows);
		for (uint32_t i = 0; i < some; i++) {
			const float *logits = logits_of(&w->pass, i);

			for (uint32_t l = 0; l < LAYERS; l++)
				memcpy(route[at + i][l], some_rows + (l * some + i) * TOP_K, sizeof(route[0][0]));
			best[at + i] = 0;
			for (int32_t t = 1; t < (int32_t)VOCAB; t++)
				if (logits[t] > logits[best[at + i]])
					best[at + i] = t;
		}
		end_pass(&w->pass);
	}
}

/* ---- Messages ---- */

static void tell(struct emulator_fixed_world *w, Od__Header *h)
{
	struct od_msg m = { .header = h };
	struct od_err err;

	must(ods_emulator_message(w->emulator, &m, w->now, &err), &err);
}

static void tell_tokens(struct emulator_fixed_world *w, const struct emulator_fixed_text *t, uint32_t begin, uint32_t n)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Tokens body = OD__TOKENS__INIT;
	uint32_t ids[CTX];

	for (uint32_t i = 0; i < n; i++)
		ids[i] = (uint32_t)t->token[begin + i];
	body.sequence = t->id;
	body.begin = begin;
	body.ids = ids;
	body.n_ids = n;
	h.body_case = OD__HEADER__BODY_TOKENS;
	h.tokens = &body;
	tell(w, &h);
}

static void open_text(struct emulator_fixed_world *w, struct emulator_fixed_text *t)
{
	Od__Header h = OD__HEADER__INIT;
	Od__SeqOpen body = OD__SEQ_OPEN__INIT;

	memset(t, 0, sizeof(*t));
	memset(t->said, 0xff, sizeof(t->said));
	t->id = ++w->next_id;
	t->open = true;
	t->prompt = t->n = 1 + draw(CTX / 2);
	for (uint32_t i = 0; i < t->n; i++)
		t->token[i] = (int32_t)draw(VOCAB);
	body.sequence = t->id;
	body.prompt_tokens = t->prompt;
	body.repetition_penalty = body.top_p = 1;
	h.body_case = OD__HEADER__BODY_SEQ_OPEN;
	h.seq_open = &body;
	tell(w, &h);
	if (chance(80)) /* else they are asked for */
		tell_tokens(w, t, 0, t->n);
}

static void close_text(struct emulator_fixed_world *w, struct emulator_fixed_text *t)
{
	Od__Header h = OD__HEADER__INIT;
	Od__SeqClose body = OD__SEQ_CLOSE__INIT;

	body.sequence = t->id;
	h.body_case = OD__HEADER__BODY_SEQ_CLOSE;
	h.seq_close = &body;
	tell(w, &h);
	t->open = false;
}

static void truncate_text(struct emulator_fixed_world *w, struct emulator_fixed_text *t)
{
	Od__Header h = OD__HEADER__INIT;
	Od__SeqTruncate body = OD__SEQ_TRUNCATE__INIT;

	t->n = t->n > 1 ? 1 + draw(t->n) : 1;
	body.sequence = t->id;
	body.length = t->n;
	h.body_case = OD__HEADER__BODY_SEQ_TRUNCATE;
	h.seq_truncate = &body;
	tell(w, &h);
	memset(t->said + t->n, 0xff, (CTX - t->n) * sizeof(t->said[0]));
}

/* A step with rows of each text: its next token, and drafts: right ones, or not. */
static void tell_step(struct emulator_fixed_world *w, uint32_t ahead)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Step body = OD__STEP__INIT;
	Od__StepRow row[TEXTS * MOST], *list[TEXTS * MOST];

	for (size_t i = 0; i < TEXTS; i++) {
		struct emulator_fixed_text *t = &w->text[i];
		uint16_t route[CTX][LAYERS][TOP_K];
		int32_t best[CTX];

		t->rows = 0;
		if (!t->open || t->n + MOST > CTX)
			continue;
		oracle(w, t->token, t->n, route, best);
		t->rows = w->rows > 0 ? w->rows : 1 + (chance(50) ? draw(MOST) : 0);
		t->token[t->n] = chance(70) ? best[t->n - 1] : (int32_t)draw(VOCAB);
		for (uint32_t j = 1; j < t->rows; j++) {
			oracle(w, t->token, t->n + j, route, best);
			t->token[t->n + j] = chance(70) ? best[t->n + j - 1] : (int32_t)draw(VOCAB);
		}
		for (uint32_t j = 0; j < t->rows; j++) {
			Od__StepRow *r = list[body.n_rows] = &row[body.n_rows];

			od__step_row__init(r);
			r->sequence = t->id;
			r->position = t->n + j;
			r->token = t->token[t->n + j];
			r->ahead = j == 0 ? ahead : 0;
			r->state_rows = j == 0 ? t->rows : 0;
			body.n_rows++;
		}
	}
	if (body.n_rows == 0)
		return;
	body.step = ++w->step;
	body.rows = list;
	h.body_case = OD__HEADER__BODY_STEP;
	h.step = &body;
	tell(w, &h);
}

/* Rows of one layer of the newest step, of one text. */
static void tell_state(struct emulator_fixed_world *w, const struct emulator_fixed_text *t, uint32_t layer)
{
	Od__Header h = OD__HEADER__INIT;
	Od__State body = OD__STATE__INIT;
	Od__StateRange range = OD__STATE_RANGE__INIT, *list = &range;
	char bytes[2][MOST * 64];
	uint16_t route[CTX][LAYERS][TOP_K];
	struct od_msg m = { 0 };
	struct od_err err;
	int32_t best[CTX];

	oracle(w, t->token, t->n + t->rows, route, best);
	range.sequence = t->id;
	range.begin = t->n;
	range.n = t->rows;
	for (uint32_t s = 0; od_seq_state_row_bytes(w->state, layer, s) > 0; s++) {
		get_rows(w->pass.device, w->state, layer, s, t->n, t->rows, bytes[s]);
		zmq_msg_init_data(&m.frame[m.n_frames++], bytes[s],
				  t->rows * od_seq_state_row_bytes(w->state, layer, s), NULL, NULL);
	}
	body.step = w->step;
	body.layer = layer;
	body.ranges = &list;
	body.n_ranges = 1;
	h.body_case = OD__HEADER__BODY_STATE;
	h.state = &body;
	m.header = &h;
	/* Rows of fixed state are not sent, and not taken. */
	assert_int_equal(ods_emulator_message(w->emulator, &m, w->now, &err), layer == 1 ? OD_ERR_PROTOCOL : OD_OK);
	for (size_t i = 0; i < m.n_frames; i++)
		zmq_msg_close(&m.frame[i]);
}

/* ---- The shadow's side ---- */

static struct emulator_fixed_text *by_id(struct emulator_fixed_world *w, uint64_t id)
{
	for (size_t i = 0; i < TEXTS; i++)
		if (w->text[i].open && w->text[i].id == id)
			return &w->text[i];
	return NULL;
}

static void on_predict(void *arg, uint32_t m, const struct od_prediction *p, size_t n)
{
	struct emulator_fixed_world *w = arg;

	for (size_t i = 0; i < n; i++) {
		struct emulator_fixed_text *t = by_id(w, p[i].sequence);

		assert_non_null(t);
		assert_true(p[i].position < CTX);
		t->said[p[i].position][m].token = p[i].token;
		memcpy(t->said[p[i].position][m].expert, p[i].expert, sizeof(t->said[0][0].expert));
	}
}

static void on_ask(void *arg, uint64_t id, const struct ods_range *r)
{
	(void)arg;
	(void)id;
	(void)r;
	fail_msg("rows are asked for, which a shadow with fixed state computes");
}

static void on_ask_tokens(void *arg, uint64_t id, uint32_t begin, uint32_t n)
{
	struct emulator_fixed_world *w = arg;
	const struct emulator_fixed_text *t = by_id(w, id);

	assert_non_null(t);
	assert_true(begin + n <= CTX);
	w->asked++;
	if (begin < t->n && chance(70))
		tell_tokens(w, t, begin, n < t->n - begin ? n : t->n - begin);
}

static void work(struct emulator_fixed_world *w, unsigned most)
{
	struct od_err err;
	bool did = true;

	for (unsigned i = 0; i < most && (did || ods_emulator_deadline(w->emulator) != UINT64_MAX); i++) {
		if (ods_emulator_work(w->emulator, w->now, &did, &err) != OD_OK)
			fail_msg("%s", err.msg);
		if (!did && ods_emulator_deadline(w->emulator) != UINT64_MAX)
			w->now = ods_emulator_deadline(w->emulator);
	}
}

/* All rows of the newest step were predicted, with main's tokens, and as main routes them. */
static void check_step(struct emulator_fixed_world *w)
{
	for (size_t i = 0; i < TEXTS; i++) {
		struct emulator_fixed_text *t = &w->text[i];
		uint16_t route[CTX][LAYERS][TOP_K];
		int32_t best[CTX];

		if (!t->open || t->rows == 0)
			continue;
		oracle(w, t->token, t->n + t->rows, route, best);
		for (uint32_t p = t->n; p < t->n + t->rows; p++)
			for (uint32_t l = 0; l < LAYERS; l++) {
				if (t->said[p][l].token != t->token[p])
					fail_msg("text %d, position %u, layer %u: not predicted", (int)t->id, p, l);
				assert_memory_equal(t->said[p][l].expert, route[p][l], sizeof(route[p][l]));
				w->checked++;
			}
	}
}

/* Main keeps some of the rows. */
static void finish_step(struct emulator_fixed_world *w)
{
	for (size_t i = 0; i < TEXTS; i++) {
		struct emulator_fixed_text *t = &w->text[i];

		if (t->open && t->rows > 0)
			t->n += 1 + draw(t->rows);
		t->rows = 0;
	}
}

static void open_world(struct emulator_fixed_world *w, bool early, uint64_t from_seed)
{
	struct ods_sink sink = { .arg = w, .predict = on_predict, .ask = on_ask, .ask_tokens = on_ask_tokens };
	struct ods_emulator_opts o;
	struct od_err err;

	memset(w, 0, sizeof(*w));
	delta_layer = true;
	make_model(&w->m, 1);
	open_pass(&w->pass, &w->m, OD_PROFILE_F32, CTX, 1);
	w->state = make_state(&w->pass);
	o = (struct ods_emulator_opts){ .forward = pass_opts(&w->m, OD_PROFILE_F32),
					.experts = w->m.expert,
					.ctx_tokens = CTX,
					.max_sequences = TEXTS,
					.early = early,
					.counters = w->counters };
	o.forward.max_rows = STEP_ROWS;
	must(ods_emulator_new(&w->emulator, &o, &sink, &err), &err);
	seed = from_seed;
}

static void close_world(struct emulator_fixed_world *w)
{
	ods_emulator_free(w->emulator);
	od_seq_state_free(w->state);
	close_pass(&w->pass);
	free_model(&w->m);
	delta_layer = false;
}

/* Rows of all layers; the shadow does up to so much work before each. all: none is lost. */
static void tell_states(struct emulator_fixed_world *w, uint32_t speed, bool all)
{
	for (uint32_t l = 0; l < LAYERS; l++)
		for (size_t k = 0; k < TEXTS; k++) {
			work(w, draw(speed));
			if (w->text[k].open && w->text[k].rows > 0 && (all || chance(60)))
				tell_state(w, &w->text[k], l);
		}
}

/* speed: of the shadow; at 100 all its work is done before main goes on. */
static void life(uint64_t from_seed, uint32_t speed)
{
	const bool early = from_seed % 2 == 0;
	bool all;
	struct emulator_fixed_world *w = calloc(1, sizeof(*w));

	assert_non_null(w);
	open_world(w, early, from_seed);
	for (int i = 0; i < 40; i++) {
		struct emulator_fixed_text *t = &w->text[draw(TEXTS)];

		if (!t->open)
			open_text(w, t);
		else if (chance(5) || t->n + MOST > CTX)
			close_text(w, t);
		else if (chance(10))
			truncate_text(w, t);
		work(w, draw(speed));
		tell_step(w, early ? draw(MOST + 1) : 0);
		all = chance(70);
		tell_states(w, speed, all);
		if (all && chance(speed)) { /* a run waits for lost rows until the next step */
			work(w, 100000);
			check_step(w);
		}
		finish_step(w);
	}
	for (size_t k = 0; k < TEXTS; k++)
		if (w->text[k].open && w->text[k].n + MOST > CTX)
			close_text(w, &w->text[k]);
	tell_step(w, 0);
	tell_states(w, speed, true);
	work(w, 100000);
	check_step(w);
	assert_true(w->checked > 0);
	close_world(w);
	free(w);
}

static void test_in_time(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 6; i++)
		life(100 + i, 100);
}

static void test_slow(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 12; i++)
		life(1000 + i, 4 + 3 * (uint32_t)i);
}

/* Drafts that main undoes: the shadow, which had run ahead of them, runs a few rows again, not the whole text. */
static void test_undone_drafts(void **state)
{
	struct emulator_fixed_world *w = calloc(1, sizeof(*w));
	struct emulator_fixed_text *t;
	uint64_t before;

	(void)state;
	assert_non_null(w);
	open_world(w, true, 5);
	t = &w->text[0];
	open_text(w, t);
	tell_tokens(w, t, 0, t->n);
	work(w, 100000);
	assert_true(t->n > 4 * MOST && t->n + 3 * MOST < CTX);
	w->rows = MOST;
	for (int i = 0; i < 6; i++) {
		before = w->counters[OD_C_SHADOW_FILLED];
		tell_step(w, MOST);
		tell_states(w, 100, true);
		work(w, 100000);
		check_step(w);
		assert_true(w->counters[OD_C_SHADOW_FILLED] - before <= MOST);
		t->n++; /* the first row stands */
		t->rows = 0;
	}
	close_world(w);
	free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_in_time),
		cmocka_unit_test(test_slow),
		cmocka_unit_test(test_undone_drafts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

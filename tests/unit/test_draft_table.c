/* The table of predictions when main verifies drafts, with predictions that are right, wrong, early, late and doubled,
 * in any order: against a plain model that keeps what was said by (sequence, position, m) and a record of every row of
 * every step, and adds up the records at the end. */
#include "main-node/predict/prediction_drafts.h"
#include "main-node/predict/prediction_wants.h"
#include "main-node/predict/predictions.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 3
#define EXPERTS 12
#define TOP_K 2
#define SEQUENCES 3
#define MOST 4 /* rows of a sequence in a step */
#define MAX_ROWS (SEQUENCES * MOST)
#define IDS 400
#define POSITIONS 128
#define TOKENS 3

struct draft_table_said {
	bool any;
	int32_t token;
	uint16_t expert[TOP_K];
};

/* One row of one step at one layer, from the step's beginning. */
struct draft_table_record {
	uint64_t serial;
	uint32_t position, m;
	bool routed, in_time, late, undone, taken;
	uint16_t used[TOP_K];
	size_t hits;
};

struct draft_table_text {
	bool open, known;
	int32_t truth[POSITIONS];
	uint32_t length; /* positions that main has kept: the next step begins there */
	uint64_t serial, old_serial; /* its newest step, and the one before */
	uint32_t begin, end; /* rows of the newest step */
	int32_t row[POSITIONS]; /* their tokens, and those of the rows before */
	uint32_t top, limit, ahead;
	struct odm_outlook outlook;
	/* [begin, top): probability of the guess, by its margin and the outlook when it was made */
	double right[POSITIONS];
	double all_right; /* probability for all rows of the newest step */
	int32_t guess[POSITIONS]; /* [end, top): the token and its margin */
	float margin[POSITIONS];
	struct draft_table_said said[POSITIONS][LAYERS];
	struct draft_table_record record[POSITIONS * MOST * LAYERS];
	size_t n_records;
	uint64_t lead_routers;
};

struct draft_table_list {
	size_t n;
	uint16_t expert[EXPERTS];
};

struct draft_table_step {
	uint64_t number;
	/* excused: a token of main voided something; that need not be told at once */
	bool resolved[LAYERS], excused[LAYERS];
	struct draft_table_list taken[LAYERS];
};

struct draft_table_world {
	struct odm_predictions *p;
	struct draft_table_text *text; /* [IDS] */
	uint64_t last_id, serial, last_number;
	uint64_t order[SEQUENCES]; /* the sequences in the current step */
	size_t n_order, n_rows;
	struct draft_table_step now, next;
	uint32_t layer; /* the next router; LAYERS: the step is over */
	struct odm_voided voided;
	unsigned drafts, long_drafts, undone, late, gaps, wants, ahead, took, cut, turned;
};

static uint64_t seed;

static uint32_t draw(uint32_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 33) % n;
}

static bool chance(uint32_t percent)
{
	return draw(100) < percent;
}

/* Mostly an open one. */
static uint64_t any_text(const struct draft_table_world *w)
{
	return w->last_id > 3 ? w->last_id - draw(4) : 1 + draw((uint32_t)w->last_id + 1);
}

static void draw_experts(uint16_t *expert)
{
	expert[0] = (uint16_t)draw(EXPERTS);
	expert[1] = (uint16_t)((expert[0] + 1 + draw(EXPERTS - 1)) % EXPERTS);
}

static bool in_step(const struct draft_table_world *w, const struct draft_table_text *t)
{
	return t->serial == w->serial && w->serial > 0;
}

static size_t hits_of(const uint16_t *a, const uint16_t *b)
{
	return (size_t)(a[0] == b[0] || a[0] == b[1]) + (a[1] == b[0] || a[1] == b[1]);
}

static struct draft_table_record *record_of(struct draft_table_text *t, uint64_t serial, uint32_t position, uint32_t m)
{
	for (size_t i = 0; i < t->n_records; i++) {
		struct draft_table_record *r = &t->record[i];

		if (r->serial == serial && r->position == position && r->m == m)
			return r;
	}
	return NULL;
}

/* End of the positions that WANTs of the next step are for. */
static uint32_t wanted_to(const struct draft_table_text *t)
{
	for (uint32_t to = t->top < t->end + t->ahead ? t->top : t->end + t->ahead; to > t->end + 1; to--) {
		double right = t->all_right;

		for (uint32_t at = t->end; at < to; at++)
			right *= t->right[at];
		if (right >= t->outlook.least)
			return to;
	}
	return t->end + 1;
}

/* Voids positions [from, top); those below `wanted` had WANTs. True: one of these. */
static bool void_from(struct draft_table_text *t, uint32_t from, uint32_t wanted, bool *changed, uint64_t *count)
{
	bool any = false;

	for (uint32_t at = from; at < t->top; at++)
		for (uint32_t m = 0; m < LAYERS; m++) {
			if (!t->said[at][m].any)
				continue;
			t->said[at][m].any = false;
			++*count;
			any |= at < wanted;
			changed[m] |= at < wanted;
		}
	t->top = from < t->top ? from : t->top;
	return any;
}

/* ---- Steps ---- */

/* The text's rows of the next step: the token that is certain, and a draft: the shadow's, or any. */
static size_t draw_rows(struct draft_table_world *w, uint64_t id, int32_t *row)
{
	struct draft_table_text *t = &w->text[id];
	float margin[MOST];
	size_t n = 0;

	row[0] = t->truth[t->length];
	if (chance(60))
		n = odm_predictions_draft(w->p, id, t->length, row[0], row + 1, margin, draw(MOST));
	else
		while (n < MOST - 1 && chance(40)) {
			n++;
			row[n] = (t->truth[t->length + n] + chance(30)) % TOKENS;
		}
	w->drafts += n > 0;
	w->long_drafts += n > 1;
	return n + 1;
}

static void begin_text(struct draft_table_world *w, uint64_t id, const int32_t *row, uint32_t n)
{
	struct draft_table_text *t = &w->text[id];
	const uint32_t old_end = t->end, end = t->length + n, expected = wanted_to(t);

	t->known = true;
	memcpy(&t->row[t->length], row, n * sizeof(*row));
	t->all_right = 1;
	for (uint32_t at = old_end; at < end && at < t->top; at++) {
		const int32_t token = t->row[at];

		for (uint32_t m = 0; m < LAYERS; m++)
			if (t->said[at][m].any && t->said[at][m].token != token) {
				t->said[at][m].any = false;
				w->voided.token++;
				w->now.excused[m] |= at < expected;
			}
		if (t->guess[at] != token)
			void_from(t, at + 1, expected, w->now.excused, &w->voided.token);
		else if (at > t->length)
			t->all_right *= t->right[at];
	}
	t->old_serial = t->serial;
	t->serial = w->serial;
	t->begin = t->length;
	t->end = end;
	t->top = t->top > end ? t->top : end;
	t->ahead = 1 + draw(MOST);
	t->outlook = (struct odm_outlook){ .right = { draw(40) / 10.0 - 1, draw(20) / 10.0 },
					   .least = draw(4) * draw(100) / 300.0 };
	if (t->limit < end + (t->ahead > 1 ? MOST : 1) || old_end != t->begin)
		t->limit = end + (t->ahead > 1 ? MOST : 1);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t m = 0; m < LAYERS; m++)
			t->record[t->n_records++] =
				(struct draft_table_record){ .serial = w->serial, .position = t->begin + i, .m = m };
}

static void sit_out(struct draft_table_world *w, uint64_t id)
{
	struct draft_table_text *t = &w->text[id];
	bool ignored[LAYERS] = { false };

	void_from(t, t->end, 0, ignored, &w->voided.position);
}

static void begin_step(struct draft_table_world *w)
{
	struct odm_predicted_row rows[MAX_ROWS];
	int32_t row[MOST] = { 0 };

	w->serial++;
	w->now = w->next;
	if (w->now.number == 0)
		w->now.number = ++w->last_number;
	w->next = (struct draft_table_step){ .number = ++w->last_number };
	w->n_order = w->n_rows = 0;
	w->layer = 0;
	for (uint64_t id = 1; id <= w->last_id; id++) {
		struct draft_table_text *t = &w->text[id];
		size_t n;

		if (!t->open)
			continue;
		if (t->serial > 0 && chance(4)) {
			sit_out(w, id);
			continue;
		}
		n = draw_rows(w, id, row);
		begin_text(w, id, row, (uint32_t)n);
		w->order[w->n_order++] = id;
		for (size_t i = 0; i < n; i++)
			rows[w->n_rows++] = (struct odm_predicted_row){ .sequence = id,
									.position = t->begin + (uint32_t)i,
									.token = row[i],
									.ahead = t->ahead,
									.outlook = t->outlook };
	}
	odm_predictions_begin(w->p, w->now.number, w->next.number, rows, w->n_rows, true);
}

static void route(struct draft_table_world *w)
{
	uint16_t used[MAX_ROWS][TOP_K];
	const uint32_t m = w->layer++;
	size_t n = 0;

	for (size_t i = 0; i < w->n_order; i++) {
		struct draft_table_text *t = &w->text[w->order[i]];

		for (uint32_t at = t->begin; at < t->end; at++) {
			struct draft_table_record *r = record_of(t, w->serial, at, m);
			const struct draft_table_said *x = &t->said[at][m];

			draw_experts(used[n]);
			memcpy(r->used, used[n++], sizeof(r->used));
			r->routed = true;
			r->in_time = x->any;
			r->hits = x->any ? hits_of(x->expert, r->used) : 0;
			t->lead_routers += x->any && at == t->begin && !r->taken;
		}
	}
	odm_predictions_resolve(w->p, w->now.number, m, &used[0][0]);
	odm_predictions_learn(w->p, w->now.number, m, NULL, NULL);
	w->now.resolved[m] = true;
}

/* The step is over: main keeps the rows up to the first whose successor has another token than was drafted. */
static void keep_rows(struct draft_table_world *w)
{
	for (size_t i = 0; i < w->n_order; i++) {
		const uint64_t id = w->order[i];
		struct draft_table_text *t = &w->text[id];
		uint32_t length = t->begin + 1;
		bool want = false;

		while (length < t->end && t->row[length] == t->truth[length])
			length++;
		if (t->open && length < t->end) {
			for (size_t r = 0; r < t->n_records; r++)
				t->record[r].undone |=
					t->record[r].serial == w->serial && t->record[r].position >= length;
			want = void_from(t, t->end, wanted_to(t), (bool[LAYERS]){ 0 }, &w->voided.token);
			t->all_right = 1;
			memset(&t->said[length], 0, (t->end - length) * sizeof(t->said[0]));
			t->end = t->top = length;
			t->limit = length + (t->ahead > 1 ? MOST : 1);
			w->undone++;
			assert_int_equal(odm_predictions_truncate(w->p, id, length), want);
		} else if (t->open && chance(20)) {
			assert_false(odm_predictions_truncate(w->p, id, length));
		}
		t->length = length;
	}
}

/* ---- Predictions ---- */

static bool expect_ahead(struct draft_table_world *w, struct draft_table_text *t, const struct od_prediction *p)
{
	struct draft_table_said *x = &t->said[p->position][p->m];
	const bool same = p->position < t->top && t->guess[p->position] == p->token;
	bool want = false, ignored[LAYERS] = { false }, changed;
	uint32_t before, wanted;

	if (p->position < t->top && !same)
		want = void_from(t, p->position == t->end ? p->position + 1 : p->position, wanted_to(t), ignored,
				 &w->voided.replaced);
	before = wanted_to(t);
	w->voided.replaced += x->any && x->token != p->token;
	changed = !x->any || memcmp(x->expert, p->expert, sizeof(x->expert)) != 0;
	*x = (struct draft_table_said){ .any = true, .token = p->token, .expert = { p->expert[0], p->expert[1] } };
	if (!same || t->margin[p->position] != p->margin)
		t->right[p->position] =
			1 / (1 + exp(-t->outlook.right[0] - t->outlook.right[1] * log(1 + fmin(p->margin, 50))));
	t->guess[p->position] = p->token;
	t->margin[p->position] = p->margin;
	t->top = p->position >= t->top ? p->position + 1 : t->top;
	w->ahead += p->position > t->end;
	wanted = wanted_to(t);
	for (uint32_t at = t->end; at < t->top; at++) /* by a new margin */
		for (uint32_t m = 0; m < LAYERS; m++)
			want |= (at < wanted) != (at < before) && t->said[at][m].any;
	w->cut += wanted < t->top && wanted < t->end + t->ahead;
	w->turned += same && wanted != before;
	return want || (changed && p->position < wanted);
}

/* False: the step has no such row. */
static bool expect_late(struct draft_table_world *w, struct draft_table_text *t, uint64_t serial,
			const struct od_prediction *p)
{
	struct draft_table_record *r = record_of(t, serial, p->position, p->m);

	if (r == NULL || r->undone)
		return false;
	if (!r->routed || r->in_time || r->late || t->row[p->position] != p->token)
		return true;
	r->late = true;
	r->hits = hits_of(p->expert, r->used);
	w->late++;
	return true;
}

static bool expect_add(struct draft_table_world *w, const struct od_prediction *p)
{
	struct draft_table_text *t = &w->text[p->sequence];
	struct draft_table_said *x = &t->said[p->position][p->m];
	const bool now = in_step(w, t);
	bool changed, known = false;

	if (!t->open || !t->known) {
		w->voided.unknown++;
		return false;
	}
	if (now && p->position >= t->begin && p->position < t->end) {
		if (t->row[p->position] != p->token)
			return false;
		if (w->now.resolved[p->m]) {
			expect_late(w, t, w->serial, p);
			return false;
		}
		changed = !x->any || memcmp(x->expert, p->expert, sizeof(x->expert)) != 0;
		*x = (struct draft_table_said){ .any = true,
						.token = p->token,
						.expert = { p->expert[0], p->expert[1] } };
		return changed;
	}
	if (now && p->position >= t->end && p->position <= t->top && p->position < t->limit)
		return expect_ahead(w, t, p);
	w->gaps += now && p->position > t->top;
	if (now && t->old_serial + 1 == w->serial && p->position < t->begin)
		known = expect_late(w, t, t->old_serial, p);
	if (!now && t->serial + 1 == w->serial && p->position < t->end)
		known = expect_late(w, t, t->serial, p);
	w->voided.unknown += !known;
	return false;
}

/* Mostly what a shadow says next: of a row that runs, or of one ahead, with the token that it has said before. */
static void say(struct draft_table_world *w)
{
	const uint64_t id = any_text(w);
	struct draft_table_text *t = &w->text[id];
	const uint32_t from = t->begin >= 2 ? t->begin - 2 : 0;
	uint16_t expert[TOP_K];
	struct od_prediction p = { .sequence = id,
				   .position = from + draw(t->top - from + 2),
				   .m = draw(LAYERS),
				   .margin = (float)draw(1000) / 64,
				   .expert = expert,
				   .n = TOP_K };

	if (p.position >= POSITIONS)
		return;
	p.token = t->truth[p.position];
	if (p.position >= t->begin && p.position < t->end)
		p.token = t->row[p.position];
	else if (p.position >= t->end && p.position < t->top)
		p.token = t->guess[p.position];
	else if (chance(15))
		p.token = (p.token + 1) % TOKENS;
	if (chance(8))
		p.token = (int32_t)draw(TOKENS);
	draw_experts(expert);
	for (uint32_t times = chance(10) ? 2 : 1; times > 0; times--) {
		const bool want = expect_add(w, &p);

		assert_int_equal(odm_predictions_add(w->p, &p), want);
	}
}

/* ---- What the table says ---- */

static void put(struct draft_table_list *l, uint16_t expert)
{
	for (size_t i = 0; i < l->n; i++)
		if (l->expert[i] == expert)
			return;
	l->expert[l->n++] = expert;
}

static struct draft_table_list wanted(const struct draft_table_world *w, bool next, uint32_t m)
{
	struct draft_table_list l = { 0 };

	for (uint32_t row = 0; row < MOST; row++)
		for (size_t rank = 0; rank < TOP_K; rank++)
			for (size_t i = 0; i < w->n_order; i++) {
				const struct draft_table_text *t = &w->text[w->order[i]];
				const uint32_t at = row + (next ? t->end : t->begin);
				const uint32_t to = !next ? t->end : t->top < wanted_to(t) ? t->top : wanted_to(t);

				if (at < to && t->said[at][m].any)
					put(&l, t->said[at][m].expert[rank]);
			}
	return l;
}

static bool same_list(const struct draft_table_list *a, const struct draft_table_list *b)
{
	return a->n == b->n && memcmp(a->expert, b->expert, a->n * sizeof(*a->expert)) == 0;
}

static void drain(struct draft_table_world *w)
{
	uint16_t expert[2][EXPERTS];
	uint32_t worker[2][EXPERTS];
	struct odm_want x = {
		.expert = expert[0], .worker = worker[0], .expert_before = expert[1], .worker_before = worker[1]
	};

	while (odm_predictions_take_want(w->p, &x)) {
		struct draft_table_step *s = x.step == w->now.number ? &w->now : &w->next;
		const struct draft_table_list l = wanted(w, s == &w->next, x.m);

		assert_int_equal(x.step, s->number);
		assert_false(s->resolved[x.m]);
		assert_int_equal(x.n, l.n);
		assert_memory_equal(x.expert, l.expert, l.n * sizeof(*l.expert));
		memset(x.worker, 0, sizeof(worker[0]));
		odm_predictions_placed(w->p, &x);
		s->taken[x.m] = l;
		s->excused[x.m] = false;
		w->wants++;
	}
	for (size_t next = 0; w->serial > 0 && next < 2; next++)
		for (uint32_t m = 0; m < LAYERS; m++) {
			const struct draft_table_list l = wanted(w, next, m);
			const struct draft_table_step *s = next ? &w->next : &w->now;

			assert_true(s->resolved[m] || s->excused[m] || same_list(&l, &s->taken[m]));
		}
}

static void check_draft(struct draft_table_world *w, uint64_t id)
{
	const struct draft_table_text *t = &w->text[id];
	const uint32_t from = t->end + draw(3), max = draw(MOST + 2);
	const int32_t token = from < t->top && chance(80) ? t->guess[from] : (int32_t)draw(TOKENS);
	uint32_t experts[MOST + 2], sum = 0;
	int32_t out[MOST + 2];
	float margin[MOST + 2];
	size_t n = 0;

	if (from < t->top && t->guess[from] == token)
		n = t->top - from - 1 < max ? t->top - from - 1 : max;
	assert_int_equal(odm_predictions_draft(w->p, id, from, token, out, margin, max), n);
	assert_memory_equal(out, &t->guess[from + 1], n * sizeof(*out));
	assert_memory_equal(margin, &t->margin[from + 1], n * sizeof(*margin));
	odm_predictions_union(w->p, id, from, max, experts);
	for (uint32_t i = 0; i < max; i++) {
		sum = 0;
		for (uint32_t m = 0; m < LAYERS; m++) {
			struct draft_table_list l = { 0 };

			for (uint32_t at = from; at <= from + i; at++)
				if (at < t->top && t->said[at][m].any)
					for (size_t k = 0; k < TOP_K; k++)
						put(&l, t->said[at][m].expert[k]);
				else
					sum += TOP_K;
			sum += (uint32_t)l.n;
		}
		assert_int_equal(experts[i], sum);
	}
}

static void take(struct draft_table_world *w, uint64_t id)
{
	struct draft_table_text *t = &w->text[id];
	uint64_t c[OD_N_COUNTERS] = { 0 }, want[OD_N_COUNTERS] = { 0 }, rows = 0;
	struct odm_spread first;

	for (size_t i = 0; t->known && i < t->n_records; i++) {
		struct draft_table_record *r = &t->record[i];
		const bool predicted = r->in_time || r->late;

		if (!r->routed || r->taken)
			continue;
		want[r->undone ? OD_C_UNDONE_USES : OD_C_PREDICTED_USES] += r->undone || predicted ? TOP_K : 0;
		want[r->undone ? OD_C_UNDONE_RECALLED : OD_C_RECALLED_USES] += r->hits;
		want[OD_C_LATE_PREDICTIONS] += r->late && !r->undone;
		want[OD_C_MISSING_PREDICTIONS] += !predicted && !r->undone;
		rows++;
	}
	want[OD_C_LEAD_ROUTERS] = t->known ? t->lead_routers : 0;
	odm_predictions_take(w->p, id, c, &first, NULL);
	for (size_t i = 0; i < OD_N_COUNTERS; i++)
		if (i != OD_C_FIRST_PREDICTIONS && i != OD_C_LEAD_SUM)
			assert_int_equal(c[i], want[i]);
	w->took += rows > 0;
	for (size_t i = 0; i < t->n_records; i++) /* later counts of the step belong to no sequence */
		t->record[i].taken = true;
	t->lead_routers = 0;
	t->known &= t->open;
}

static void close_text(struct draft_table_world *w, uint64_t id)
{
	struct draft_table_text *t = &w->text[id];
	bool ignored[LAYERS] = { false }, want = false;

	if (t->known)
		want = void_from(t, t->end, wanted_to(t), ignored, &w->voided.ended);
	assert_int_equal(odm_predictions_close(w->p, id), want);
	t->open = false;
}

/* Between steps: texts end, and others begin. */
static void come_and_go(struct draft_table_world *w)
{
	uint32_t open = 0;

	for (uint64_t id = 1; id <= w->last_id; id++) {
		struct draft_table_text *t = &w->text[id];

		if (t->open && (t->length + 3 * MOST > POSITIONS || chance(4))) {
			close_text(w, id);
			take(w, id);
		}
		open += t->open;
	}
	for (; open < SEQUENCES && chance(60) && w->last_id + 2 < IDS; open++) {
		struct draft_table_text *t = &w->text[++w->last_id];

		t->open = true;
		t->length = t->begin = t->end = t->top = t->limit = draw(5);
		for (uint32_t i = 0; i < POSITIONS; i++)
			t->truth[i] = (int32_t)draw(TOKENS);
	}
}

static void turn(struct draft_table_world *w)
{
	const uint32_t what = draw(100);

	if (what < 74)
		say(w);
	else if (what < 84)
		drain(w);
	else if (what < 88)
		check_draft(w, any_text(w));
	else if (what < 89 && chance(20))
		take(w, any_text(w));
	else if (w->serial > 0 && w->layer < LAYERS)
		route(w);
}

static void live(struct draft_table_world *w)
{
	for (uint32_t turns = 0; turns < 60000; turns++) {
		turn(w);
		if (w->serial > 0 && (w->layer < LAYERS || chance(70)))
			continue;
		keep_rows(w);
		for (uint32_t i = draw(16); i > 0; i--)
			turn(w);
		come_and_go(w);
		begin_step(w);
		assert_int_equal(odm_predictions_voided(w->p).token, w->voided.token);
		assert_int_equal(odm_predictions_voided(w->p).position, w->voided.position);
		assert_int_equal(odm_predictions_voided(w->p).ended, w->voided.ended);
		assert_int_equal(odm_predictions_voided(w->p).replaced, w->voided.replaced);
		assert_int_equal(odm_predictions_voided(w->p).unknown, w->voided.unknown);
	}
	assert_true(w->drafts > 500 && w->long_drafts > 200 && w->undone > 200 && w->late > 1000 && w->gaps > 1000);
	assert_true(w->wants > 3000 && w->ahead > 1000 && w->took > 100);
	assert_true(w->cut > 100 && w->turned > 5);
	assert_true(w->voided.token > 500 && w->voided.position > 100 && w->voided.ended > 100 &&
		    w->voided.replaced > 50 && w->voided.unknown > 500);
}

static void drafts_in_any_order(void **state)
{
	const struct odm_predictions_opts o = { .n_moe = LAYERS,
						.n_experts = EXPERTS,
						.top_k = TOP_K,
						.max_sequences = SEQUENCES,
						.max_rows = MAX_ROWS,
						.max_draft = MOST - 1,
						.max_tokens = 8 };
	struct od_err err;

	(void)state;
	for (uint64_t life = 1; life <= 10; life++) {
		struct draft_table_world w = { .text = calloc(IDS, sizeof(*w.text)) };

		assert_non_null(w.text);
		assert_int_equal(odm_predictions_new(&w.p, &o, &err), OD_OK);
		seed = life;
		live(&w);
		odm_predictions_free(w.p);
		free(w.text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(drafts_in_any_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The table of predictions with many sequences, which join and end, with drafts, with predictions that are right,
 * wrong, early, late and doubled, in any order: against a plain model that keeps what was said by (sequence, position,
 * m) and looks everything up from the beginning. */
#include "main-node/cluster/placement.h"
#include "main-node/predict/prediction_wants.h"
#include "main-node/predict/predictions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 3
#define EXPERTS 8
#define TOP_K 2
#define SEQUENCES 4 /* room of the table */
#define DRAFT 4 /* rows of one sequence in a step */
#define MAX_ROWS (SEQUENCES * DRAFT)
#define IDS 2000
#define POSITIONS 160
#define LIFE 30 /* steps of a sequence at most */

struct prediction_table_said { /* a prediction for (sequence, position, m) */
	bool any, late;
	int32_t token;
	uint16_t expert[TOP_K];
};

struct prediction_table_text {
	bool running, known, closed; /* known: the table has it */
	uint64_t closed_at, counted_from;
	uint32_t prompt, begin, n, age; /* rows of its newest step */
	struct prediction_table_said said[POSITIONS][LAYERS];
	uint64_t uses, recalled, seen, in_time, late, of_token[POSITIONS];
};

struct prediction_table_row {
	uint64_t sequence;
	uint32_t position;
	int32_t token;
};

struct prediction_table_list {
	size_t n;
	uint16_t expert[EXPERTS];
	uint32_t worker[EXPERTS];
};

struct prediction_table_step {
	uint64_t number, serial;
	size_t n_rows;
	struct prediction_table_row row[MAX_ROWS];
	bool resolved[LAYERS];
	uint16_t used[LAYERS][MAX_ROWS][TOP_K];
	uint32_t version[LAYERS];
	struct prediction_table_list taken[LAYERS], placed[LAYERS],
		required[LAYERS]; /* taken: last; required: of a prompt */
	bool excused[LAYERS]; /* its token voided something: the change need not be reported at once */
	bool ever[LAYERS][EXPERTS]; /* placed before the router spoke */
	bool newest[LAYERS][EXPERTS]; /* placed by the newest version that was */
};

struct prediction_table_world {
	struct odm_predictions *p;
	struct prediction_table_step before, now, next, prompt;
	uint64_t last_number, last_id, serial, closes;
	struct odm_voided voided;
	unsigned early, late, doubled, refused, joined, wants, empty, unplaced, renumbered;
};

static struct prediction_table_text *texts; /* [IDS] */
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

static void draw_experts(uint16_t *expert)
{
	expert[0] = (uint16_t)draw(EXPERTS);
	expert[1] = (uint16_t)((expert[0] + 1 + draw(EXPERTS - 1)) % EXPERTS);
}

static const struct prediction_table_row *find_row(const struct prediction_table_step *s, uint64_t sequence,
						   uint32_t position)
{
	for (size_t i = 0; i < s->n_rows; i++)
		if (s->row[i].sequence == sequence && s->row[i].position == position)
			return &s->row[i];
	return NULL;
}

/* Position behind the sequence's last row of the step; 0: it has none. */
static uint32_t behind(const struct prediction_table_step *s, uint64_t sequence)
{
	uint32_t end = 0;

	for (size_t i = 0; i < s->n_rows; i++)
		if (s->row[i].sequence == sequence)
			end = s->row[i].position + 1;
	return end;
}

static bool fits(const struct prediction_table_row *r, int32_t token)
{
	return r->token < 0 || r->token == token;
}

/* ---- What must be wanted ---- */

static void put(struct prediction_table_list *l, uint16_t expert)
{
	for (size_t i = 0; i < l->n; i++)
		if (l->expert[i] == expert)
			return;
	l->expert[l->n++] = expert;
}

static struct prediction_table_list wanted(const struct prediction_table_world *w,
					   const struct prediction_table_step *s, uint32_t m)
{
	struct prediction_table_list l = { 0 };

	if (s == &w->prompt)
		return s->required[m];
	for (uint32_t nth = 0; nth < (s == &w->now ? DRAFT : 1); nth++)
		for (size_t rank = 0; rank < TOP_K; rank++)
			for (size_t i = 0; i < w->now.n_rows; i++) {
				const struct prediction_table_row *r = &w->now.row[i];
				const struct prediction_table_text *t = &texts[r->sequence];
				const struct prediction_table_said *x =
					&t->said[s == &w->now ? r->position : behind(&w->now, r->sequence)][m];

				if (r->position == t->begin + nth && x->any)
					put(&l, x->expert[rank]);
			}
	return l;
}

/* In any order. Here rows before the guess are not undone, and then the guess is not for the first row of the step that
 * begins: what it wants comes later in the list, and that need not be told. */
static bool same_experts(const struct prediction_table_list *a, const struct prediction_table_list *b)
{
	unsigned set[2] = { 0 };

	for (size_t i = 0; i < a->n; i++)
		set[0] |= 1u << a->expert[i];
	for (size_t i = 0; i < b->n; i++)
		set[1] |= 1u << b->expert[i];
	return set[0] == set[1];
}

static struct prediction_table_step *by_number(struct prediction_table_world *w, uint64_t number)
{
	struct prediction_table_step *all[] = { &w->now, &w->next, &w->prompt, &w->before };

	for (size_t i = 0; i < 4; i++)
		if (all[i]->number == number)
			return all[i];
	fail_msg("a WANT of step %lu, which there is not", (unsigned long)number);
	return NULL;
}

/* ---- What main does ---- */

static void resolve(struct prediction_table_world *w, uint32_t m)
{
	struct prediction_table_step *s = &w->now;
	uint64_t c[OD_N_COUNTERS] = { 0 };
	bool used[EXPERTS] = { false };
	size_t wasted = 0;

	for (size_t i = 0; i < s->n_rows; i++) {
		draw_experts(s->used[m][i]);
		for (size_t k = 0; k < TOP_K; k++)
			used[s->used[m][i][k]] = true;
	}
	odm_predictions_resolve(w->p, s->number, m, &s->used[m][0][0]);
	s->resolved[m] = true;
	for (uint16_t e = 0; e < EXPERTS; e++) {
		wasted += s->ever[m][e] && !used[e];
		assert_int_equal(odm_predictions_ordered(w->p, s->number, m, e) != ODM_NOBODY, s->newest[m][e]);
	}
	odm_predictions_learn(w->p, s->number, m, NULL, c);
	assert_int_equal(c[OD_C_WASTED_WANTS], wasted);
	assert_int_equal(c[OD_C_HEDGED], 0);
	for (size_t i = 0; i < s->n_rows; i++) {
		struct prediction_table_text *t = &texts[s->row[i].sequence];
		const struct prediction_table_said *x = &t->said[s->row[i].position][m];
		const uint16_t *u = s->used[m][i];

		if (!t->known || s->serial < t->counted_from)
			continue;
		t->seen++;
		if (!x->any)
			continue;
		t->in_time++;
		t->uses += TOP_K;
		for (size_t k = 0; k < TOP_K; k++) {
			const bool hit = x->expert[k] == u[0] || x->expert[k] == u[1];

			t->recalled += hit;
			t->of_token[s->row[i].position - t->prompt] += hit;
		}
	}
}

static void resolve_next(struct prediction_table_world *w)
{
	for (uint32_t m = 0; w->now.n_rows > 0 && m < LAYERS; m++)
		if (!w->now.resolved[m]) {
			resolve(w, m);
			return;
		}
}

static void void_ahead(struct prediction_table_world *w, uint64_t sequence, uint32_t position,
		       const struct prediction_table_row *r, uint64_t *count)
{
	for (uint32_t m = 0; m < LAYERS; m++) {
		struct prediction_table_said *x = &texts[sequence].said[position][m];

		if (!x->any || (r != NULL && fits(r, x->token)))
			continue;
		x->any = false;
		w->next.excused[m] |= r != NULL;
		++*count;
	}
}

static void close_text(struct prediction_table_world *w, uint64_t sequence)
{
	struct prediction_table_text *t = &texts[sequence];
	const uint64_t before = w->voided.ended;
	const uint32_t ahead = behind(&w->now, sequence);

	t->running = false;
	if (t->known && !t->closed && ahead > 0)
		void_ahead(w, sequence, ahead, NULL, &w->voided.ended);
	if (t->known && !t->closed)
		t->closed_at = ++w->closes;
	t->closed |= t->known;
	assert_int_equal(odm_predictions_close(w->p, sequence), w->voided.ended > before);
}

/* The table gives up the sequence that was closed first when it needs room. */
static void know(struct prediction_table_world *w, uint64_t sequence)
{
	uint64_t oldest = 0;
	size_t n = 0;

	if (texts[sequence].known)
		return;
	for (uint64_t i = 1; i <= w->last_id; i++) {
		n += texts[i].known;
		if (texts[i].known && texts[i].closed && (oldest == 0 || texts[i].closed_at < texts[oldest].closed_at))
			oldest = i;
	}
	if (n == SEQUENCES) {
		assert_true(oldest != 0);
		texts[oldest].known = false;
	}
	texts[sequence].known = true;
	w->joined++;
}

/* Rows of the step: of all that run, but now and then one sits out. */
static void draw_rows(struct prediction_table_world *w, struct prediction_table_step *s)
{
	for (uint64_t id = 1; id <= w->last_id; id++) {
		struct prediction_table_text *t = &texts[id];

		if (!t->running || t->age > LIFE || (t->n > 0 && chance(5)))
			continue;
		t->begin = t->n > 0 ? t->begin + 1 + draw(t->n) : t->prompt;
		t->n = chance(70) ? 1 : 1 + draw(DRAFT);
		t->age++;
		know(w, id);
		for (uint32_t i = 0; i < t->n; i++)
			s->row[s->n_rows++] =
				(struct prediction_table_row){ id, t->begin + i,
							       i == 0 && chance(10) ? -1 : (int32_t)draw(2) };
	}
}

/* Settles predictions ahead when their step begins. */
static void settle_ahead(struct prediction_table_world *w, const struct prediction_table_step *s)
{
	for (size_t i = 0; i < w->now.n_rows; i++) {
		const uint64_t sequence = w->now.row[i].sequence;
		const uint32_t ahead = behind(&w->now, sequence);
		const struct prediction_table_row *r = find_row(s, sequence, ahead);

		if (i == 0 || w->now.row[i - 1].sequence != sequence)
			void_ahead(w, sequence, ahead, r, r != NULL ? &w->voided.token : &w->voided.position);
	}
	for (size_t i = 0; i < s->n_rows; i++)
		for (uint32_t m = 0; m < LAYERS; m++) {
			struct prediction_table_said *x = &texts[s->row[i].sequence].said[s->row[i].position][m];

			if (behind(&w->now, s->row[i].sequence) != s->row[i].position)
				*x = (struct prediction_table_said){ 0 };
			/* A row of a draft that was not kept says nothing of who will stand there. */
			texts[s->row[i].sequence].said[behind(s, s->row[i].sequence)][m] =
				(struct prediction_table_said){ 0 };
		}
}

static void begin_step(struct prediction_table_world *w)
{
	struct odm_predicted_row row[MAX_ROWS];
	struct prediction_table_step s = { .serial = ++w->serial };
	uint64_t next;

	draw_rows(w, &s);
	settle_ahead(w, &s);
	s.number = w->next.number;
	if (s.number == 0 || chance(5)) {
		s.number = ++w->last_number;
		w->renumbered++;
	} else {
		memcpy(s.version, w->next.version, sizeof(s.version));
		memcpy(s.taken, w->next.taken, sizeof(s.taken));
		memcpy(s.placed, w->next.placed, sizeof(s.placed));
		memcpy(s.ever, w->next.ever, sizeof(s.ever));
		memcpy(s.newest, w->next.newest, sizeof(s.newest));
		memcpy(s.excused, w->next.excused, sizeof(s.excused));
	}
	next = chance(5) ? 0 : ++w->last_number;
	for (size_t i = 0; i < s.n_rows; i++)
		row[i] = (struct odm_predicted_row){ .sequence = s.row[i].sequence,
						     .position = s.row[i].position,
						     .prompt_tokens = texts[s.row[i].sequence].prompt,
						     .token = s.row[i].token };
	odm_predictions_begin(w->p, s.number, next, row, s.n_rows, true);
	w->before = w->now;
	w->now = s;
	w->next = (struct prediction_table_step){ .number = next };
}

static void begin_prompt(struct prediction_table_world *w)
{
	w->prompt = (struct prediction_table_step){ .number = ++w->last_number };
	odm_predictions_begin(w->p, w->prompt.number, 0, NULL, 0, false);
}

static void require(struct prediction_table_world *w)
{
	struct prediction_table_list l = { 0 };
	const uint32_t m = draw(LAYERS);

	if (w->prompt.number == 0)
		return;
	for (uint16_t e = 0; e < EXPERTS; e++)
		if (chance(60))
			l.expert[l.n++] = e;
	if (l.n == EXPERTS)
		odm_predictions_require_all(w->p, w->prompt.number, m, 1);
	else
		odm_predictions_require(w->p, w->prompt.number, m, l.expert, NULL, l.n);
	if (l.n > 0)
		w->prompt.required[m] = l;
	else
		w->prompt.required[m] = w->prompt.taken[m]; /* nothing is required: nothing changes */
}

/* ---- What is predicted ---- */

/* Predicts a row that has begun, or is ahead: true when something else is wanted than before. */
static bool say(struct prediction_table_world *w, struct prediction_table_said *x, int32_t token,
		const uint16_t *expert)
{
	const bool same = x->any && memcmp(x->expert, expert, sizeof(x->expert)) == 0;

	w->doubled += same;
	w->voided.replaced += x->any && x->token != token;
	x->any = true;
	x->token = token;
	memcpy(x->expert, expert, sizeof(x->expert));
	return !same;
}

static void say_late(struct prediction_table_world *w, const struct prediction_table_step *s,
		     const struct prediction_table_row *r, uint32_t m, const uint16_t *expert)
{
	struct prediction_table_text *t = &texts[r->sequence];
	struct prediction_table_said *x = &t->said[r->position][m];
	const uint16_t *u = s->used[m][r - s->row];

	if (x->any || x->late)
		return;
	x->late = true;
	w->late++;
	if (s->serial < t->counted_from)
		return;
	t->late++;
	t->uses += TOP_K;
	for (size_t k = 0; k < TOP_K; k++) {
		const bool hit = expert[k] == u[0] || expert[k] == u[1];

		t->recalled += hit;
		t->of_token[r->position - t->prompt] += hit;
	}
}

static bool expect_add(struct prediction_table_world *w, const struct od_prediction *p)
{
	struct prediction_table_text *t = &texts[p->sequence];
	const struct prediction_table_row *now = find_row(&w->now, p->sequence, p->position);
	const struct prediction_table_row *before = find_row(&w->before, p->sequence, p->position);

	if (t->known && !t->closed && now != NULL) {
		if (fits(now, p->token) && !w->now.resolved[p->m])
			return say(w, &t->said[p->position][p->m], p->token, p->expert);
		if (fits(now, p->token))
			say_late(w, &w->now, now, p->m, p->expert);
		return false;
	}
	if (t->known && !t->closed && p->position > 0 && behind(&w->now, p->sequence) == p->position) {
		w->early += w->next.number != 0;
		return w->next.number != 0 && say(w, &t->said[p->position][p->m], p->token, p->expert);
	}
	if (t->known && !t->closed && before != NULL && fits(before, p->token) && w->before.resolved[p->m])
		say_late(w, &w->before, before, p->m, p->expert);
	else
		w->refused++;
	return false;
}

static void predict(struct prediction_table_world *w)
{
	uint16_t expert[TOP_K];
	const uint64_t sequence =
		w->last_id > 6 && chance(95) ? w->last_id - draw(7) : 1 + draw((uint32_t)w->last_id + 1);
	const struct prediction_table_text *t = &texts[sequence];
	const struct od_prediction p = { .sequence = sequence,
					 .position = t->begin + t->n + (chance(50) ? 0 : draw(4)) - draw(4),
					 .m = draw(LAYERS),
					 .token = (int32_t)draw(2),
					 .expert = expert,
					 .n = TOP_K };

	if (p.position >= POSITIONS)
		return;
	draw_experts(expert);
	for (uint32_t times = chance(10) ? 2 : 1; times > 0; times--)
		assert_int_equal(odm_predictions_add(w->p, &p), expect_add(w, &p));
}

/* ---- WANTs ---- */

static void check_want(struct prediction_table_world *w, struct prediction_table_step *s, const struct odm_want *x)
{
	const struct prediction_table_list l = wanted(w, s, x->m), *old = &s->placed[x->m];

	assert_false(s->resolved[x->m]);
	assert_int_equal(x->version, ++s->version[x->m]);
	assert_int_equal(x->n, l.n);
	assert_int_equal(x->n_predicted, l.n);
	assert_memory_equal(x->expert, l.expert, l.n * sizeof(*l.expert));
	assert_true(l.n > 0 || x->version > 1);
	assert_int_equal(x->n_before, old->n);
	assert_memory_equal(x->expert_before, old->expert, old->n * sizeof(*old->expert));
	assert_memory_equal(x->worker_before, old->worker, old->n * sizeof(*old->worker));
	for (size_t i = 0; i < l.n; i++) {
		uint32_t at = ODM_NOBODY;

		for (size_t j = 0; j < old->n; j++)
			at = old->expert[j] == l.expert[i] ? old->worker[j] : at;
		assert_int_equal(x->worker[i], at);
	}
	s->taken[x->m] = l;
	s->excused[x->m] = false;
	w->wants++;
	w->empty += l.n == 0;
}

static void send_want(struct prediction_table_world *w, struct prediction_table_step *s, struct odm_want *x)
{
	struct prediction_table_list *l = &s->placed[x->m];

	*l = s->taken[x->m];
	for (size_t i = 0; i < x->n; i++)
		l->worker[i] = x->worker[i] = draw(5);
	assert_int_equal(odm_predictions_placed(w->p, x), !s->resolved[x->m]);
	memset(s->newest[x->m], 0, sizeof(s->newest[0]));
	for (size_t i = 0; i < x->n; i++) {
		s->newest[x->m][x->expert[i]] = !s->resolved[x->m];
		s->ever[x->m][x->expert[i]] |= !s->resolved[x->m];
		assert_int_equal(odm_predictions_where(w->p, s->number, x->m, x->expert[i]), x->worker[i]);
	}
}

static void drain(struct prediction_table_world *w)
{
	uint16_t expert[2][EXPERTS];
	uint32_t worker[2][EXPERTS];
	struct odm_want x = {
		.expert = expert[0], .worker = worker[0], .expert_before = expert[1], .worker_before = worker[1]
	};
	uint64_t last = 0;
	struct prediction_table_step *all[] = { &w->now, &w->next };

	while (odm_predictions_take_want(w->p, &x)) {
		struct prediction_table_step *s = by_number(w, x.step);

		assert_true(s != &w->before);
		assert_true(x.step * LAYERS + x.m >= last); /* the oldest step first, then the lowest layer */
		last = x.step * LAYERS + x.m + 1;
		check_want(w, s, &x);
		if (chance(5)) {
			w->unplaced++;
			continue; /* there were no workers */
		}
		if (s == &w->now && s->n_rows > 0 && chance(5))
			resolve(w, x.m); /* between the two: what is placed now was not ordered */
		send_want(w, s, &x);
	}
	for (size_t i = 0; i < 2; i++)
		for (uint32_t m = 0; all[i]->number != 0 && m < LAYERS; m++) {
			const struct prediction_table_list l = wanted(w, all[i], m);

			assert_true(all[i]->resolved[m] || all[i]->excused[m] || same_experts(&l, &all[i]->taken[m]));
		}
}

/* ---- Figures ---- */

static void take(struct prediction_table_world *w, uint64_t sequence)
{
	struct prediction_table_text *t = &texts[sequence];
	const bool any = t->known;
	uint64_t c[OD_N_COUNTERS] = { 0 };
	struct odm_spread first;
	struct od_recall r;
	struct od_err err;

	assert_int_equal(od_recall_init(&r, LAYERS, POSITIONS, &err), OD_OK);
	odm_predictions_take(w->p, sequence, c, &first, &r);
	assert_int_equal(r.all.uses, any ? t->uses : 0);
	assert_int_equal(r.all.recalled, any ? t->recalled : 0);
	assert_int_equal(r.rows.seen, any ? t->seen : 0);
	assert_int_equal(r.rows.in_time, any ? t->in_time : 0);
	assert_int_equal(r.rows.late, any ? t->late : 0);
	assert_int_equal(c[OD_C_PREDICTED_USES], r.all.uses);
	assert_int_equal(c[OD_C_MISSING_PREDICTIONS], r.rows.seen - r.rows.in_time - r.rows.late);
	for (uint32_t i = 0; i < POSITIONS; i++)
		assert_int_equal(r.token[i].recalled, any ? t->of_token[i] : 0);
	od_recall_fini(&r);
	t->uses = t->recalled = t->seen = t->in_time = t->late = 0;
	memset(t->of_token, 0, sizeof(t->of_token));
	t->counted_from = w->serial + 1;
	t->known = any && !t->closed;
}

/* ---- Lives ---- */

static void come_and_go(struct prediction_table_world *w)
{
	uint32_t running = 0;

	for (uint64_t i = 1; i <= w->last_id; i++) {
		struct prediction_table_text *t = &texts[i];

		if (t->running && (chance(6) || t->age >= LIFE))
			close_text(w, i);
		if (!t->running && t->known && chance(50))
			take(w, i);
		running += t->running;
	}
	while (running < SEQUENCES && chance(40) && w->last_id + 2 < IDS) {
		texts[++w->last_id] = (struct prediction_table_text){ .running = true, .prompt = 1 + draw(5) };
		running++;
	}
}

static void check_voided(const struct prediction_table_world *w)
{
	const struct odm_voided v = odm_predictions_voided(w->p);

	assert_int_equal(v.token, w->voided.token);
	assert_int_equal(v.position, w->voided.position);
	assert_int_equal(v.ended, w->voided.ended);
	assert_int_equal(v.replaced, w->voided.replaced);
}

static void live(struct prediction_table_world *w, unsigned turns)
{
	while (turns-- > 0) {
		const uint32_t what = draw(100);

		if (what < 60)
			predict(w);
		else if (what < 75)
			drain(w);
		else if (what < 88)
			resolve_next(w);
		else if (what < 92)
			begin_step(w);
		else if (what < 95)
			come_and_go(w);
		else if (what < 96)
			begin_prompt(w);
		else if (what < 99)
			require(w);
		else
			take(w, 1 + draw((uint32_t)w->last_id + 1));
		check_voided(w);
	}
}

static void any_order(void **state)
{
	(void)state;
	texts = calloc(IDS, sizeof(*texts));
	assert_non_null(texts);
	for (uint64_t life = 1; life <= 12; life++) {
		const struct odm_predictions_opts o = { .n_moe = LAYERS,
							.n_experts = EXPERTS,
							.top_k = TOP_K,
							.max_sequences = SEQUENCES,
							.max_rows = MAX_ROWS,
							.max_draft = DRAFT - 1,
							.max_tokens = POSITIONS };
		struct prediction_table_world *w = calloc(1, sizeof(*w));
		struct od_err err;

		assert_non_null(w);
		seed = life;
		memset(texts, 0, IDS * sizeof(*texts));
		assert_int_equal(odm_predictions_new(&w->p, &o, &err), OD_OK);
		live(w, 60000);
		assert_true(w->voided.token > 100 && w->voided.position > 100 && w->voided.ended > 100 &&
			    w->voided.replaced > 100);
		assert_true(w->early > 1000 && w->late > 200 && w->doubled > 200 && w->refused > 1000 &&
			    w->joined > 100);
		assert_true(w->wants > 1000 && w->empty > 20 && w->unplaced > 50 && w->renumbered > 20);
		odm_predictions_free(w->p);
		free(w);
	}
	free(texts);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

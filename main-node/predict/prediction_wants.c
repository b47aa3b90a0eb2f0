#include "main-node/predict/predictions_internal.h"

#include "main-node/predict/prediction_wants.h"

/* Flags of an expert at a (step, m), from the WANTs sent before the router chose. */
enum {
	WAS_WANTED = 1, /* from any worker in any version */
	IS_HEDGE = 2, /* the newest version wants it as a hedge */
	WAS_ORDERED = 4, /* the newest version wants it */
};

/* ---- Prefill ---- */

static void require_locked(struct odm_predictions *p, uint64_t step, uint32_t m, const uint16_t *expert,
			   const uint32_t *worker, size_t n, uint32_t rows)
{
	struct step_slot *s = &p->slot[PROMPT];
	uint16_t *required;

	if (s->step != step || m >= p->o.n_moe || n > p->o.n_experts)
		return;
	required = p->required + (size_t)m * p->o.n_experts;
	for (size_t i = 0; i < n; i++)
		required[i] = expert != NULL ? expert[i] : (uint16_t)i;
	for (size_t i = 0; worker != NULL && i < n; i++)
		where_of(p, s, m)[required[i]] = worker[i];
	entry_of(p, s, m)->n_required = (uint32_t)n;
	entry_of(p, s, m)->required_rows = rows;
	set_dirty(p, entry_of(p, s, m), n > 0);
}

void odm_predictions_require(struct odm_predictions *p, uint64_t step, uint32_t m, const uint16_t *expert,
			     const uint32_t *worker, size_t n)
{
	pthread_mutex_lock(&p->lock);
	require_locked(p, step, m, expert, worker, n, 0);
	pthread_mutex_unlock(&p->lock);
}

void odm_predictions_require_all(struct odm_predictions *p, uint64_t step, uint32_t m, uint32_t rows)
{
	pthread_mutex_lock(&p->lock);
	require_locked(p, step, m, NULL, NULL, p->o.n_experts, rows);
	pthread_mutex_unlock(&p->lock);
}

/* ---- WANTs ---- */

static void put(struct odm_predictions *p, struct odm_want *w, uint16_t expert, size_t rank)
{
	if (p->stamp[expert] == p->round)
		return;
	p->stamp[expert] = p->round;
	if (w->rank != NULL)
		w->rank[w->n] = (uint8_t)rank;
	w->expert[w->n++] = expert;
}

/* Lists the cell of a sequence's i-th row in a step. */
static void list_row(struct odm_predictions *p, uint32_t i, uint32_t cell)
{
	p->cell[i * p->o.max_sequences + p->n_listed[i]++] = cell;
}

static void list_rows(struct odm_predictions *p, const struct step_slot *s)
{
	for (uint32_t row = 0, i = 0; row < s->n_rows; row++) {
		i = row > 0 && s->row[row].sequence == s->row[row - 1].sequence ? i + 1 : 0;
		if (s->row[row].cell != NO_CELL)
			list_row(p, i, s->row[row].cell);
	}
}

/* Lists the rows that are wanted for the next step, in the order of the sequences in the current one. */
static void list_ahead(struct odm_predictions *p)
{
	const struct step_slot *s = slot_at(p, p->serial);

	for (uint32_t row = 0; row < s->n_rows; row++) {
		const struct sequence *q = sequence_of(p, &s->row[row]);

		if (q == NULL || q->part[number_of(p, s)].first_row != row)
			continue;
		for (uint32_t at = q->end, end = wanted_end(p, q); at < end; at++)
			list_row(p, at - q->end, cell_of(p, q, at));
	}
}

/* Experts that the i-th rows of all sequences want, by rank: the first choices of all of them, then the second ones. */
static void put_predicted(struct odm_predictions *p, struct odm_want *w, uint32_t i)
{
	const struct od_wanted *all = wanted_of(p, w->m, 0);
	const uint32_t *cell = p->cell + (size_t)i * p->o.max_sequences;

	for (size_t rank = 0; rank < p->o.top_k; rank++)
		for (uint32_t r = 0; r < p->n_listed[i]; r++)
			if (rank < all[cell[r]].n_predicted)
				put(p, w, all[cell[r]].expert[rank], rank);
}

static void put_hedges(struct odm_predictions *p, struct odm_want *w, uint32_t i)
{
	const struct od_wanted *all = wanted_of(p, w->m, 0);
	const uint32_t *cell = p->cell + (size_t)i * p->o.max_sequences;

	for (size_t rank = 0; rank < OD_MAX_HEDGES; rank++)
		for (uint32_t r = 0; r < p->n_listed[i]; r++) {
			const struct od_wanted *x = &all[cell[r]];

			if (x->n_predicted + rank < x->n)
				put(p, w, x->expert[x->n_predicted + rank], p->o.top_k);
		}
}

/* Experts of all rows, each once. A sequence's first row is certain, and each further row of its draft is less so: all
 * that the first rows need comes first, then what the second ones need, and so on; hedges last. */
static void collect(struct odm_predictions *p, const struct step_slot *s, struct odm_want *w)
{
	memset(p->n_listed, 0, most_rows(p) * sizeof(*p->n_listed));
	if (s->begun)
		list_rows(p, s);
	else
		list_ahead(p);
	begin_round(p);
	for (uint32_t i = 0; i < most_rows(p); i++)
		put_predicted(p, w, i);
	w->n_predicted = w->n;
	for (uint32_t i = 0; i < most_rows(p); i++)
		put_hedges(p, w, i);
}

/* Oldest step first, then the lowest layer, because these experts are needed first. */
static struct step_slot *oldest_dirty(struct odm_predictions *p, uint32_t *m)
{
	struct step_slot *best = NULL;

	*m = 0;
	for (size_t i = 0; p->n_dirty > 0 && i < SLOTS; i++) {
		struct step_slot *s = &p->slot[i];

		if (s->step == 0 || (best != NULL && best->step < s->step))
			continue;
		for (uint32_t l = 0; l < p->o.n_moe; l++) {
			if (entry_of(p, s, l)->dirty) {
				best = s;
				*m = l;
				break;
			}
		}
	}
	return best;
}

static void fill_want(struct odm_predictions *p, struct step_slot *s, struct entry *e, struct odm_want *w)
{
	const uint32_t *where = where_of(p, s, w->m);

	w->prompt = number_of(p, s) == PROMPT;
	w->rows = 0;
	if (w->prompt) {
		w->n_predicted = w->n = e->n_required;
		w->rows = e->required_rows;
		memcpy(w->expert, p->required + (size_t)w->m * p->o.n_experts, w->n * sizeof(*w->expert));
	} else {
		collect(p, s, w);
	}
	for (size_t i = 0; i < w->n; i++)
		w->worker[i] = where[w->expert[i]];
	w->n_before = e->n_sent;
	w->epoch = e->epoch;
	memcpy(w->expert_before, sent_of(p, s, w->m), w->n_before * sizeof(*w->expert_before));
	memcpy(w->worker_before, sent_to(p, s, w->m), w->n_before * sizeof(*w->worker_before));
}

bool odm_predictions_take_want(struct odm_predictions *p, struct odm_want *w)
{
	struct step_slot *s;
	bool have = false;

	*w = (struct odm_want){ .expert = w->expert,
				.worker = w->worker,
				.rank = w->rank,
				.expert_before = w->expert_before,
				.worker_before = w->worker_before };
	pthread_mutex_lock(&p->lock);
	while (!have && (s = oldest_dirty(p, &w->m)) != NULL) {
		struct entry *e = entry_of(p, s, w->m);

		set_dirty(p, e, false);
		fill_want(p, s, e, w);
		have = w->n > 0 || e->version > 0; /* false: it became void before any WANT was sent */
		w->step = s->step;
		w->version = have ? ++e->version : 0;
	}
	pthread_mutex_unlock(&p->lock);
	return have;
}

/* Sets the flags of the wanted experts; the router has not chosen yet. */
static void mark_wanted(struct odm_predictions *p, const struct step_slot *s, const struct odm_want *w)
{
	uint8_t *mark = mark_of(p, s, w->m);

	for (uint32_t e = 0; e < p->o.n_experts; e++)
		mark[e] &= (uint8_t)~WAS_ORDERED;
	for (size_t i = 0; i < w->n; i++) {
		mark[w->expert[i]] |= WAS_WANTED | WAS_ORDERED | IS_HEDGE;
		if (i < w->n_predicted)
			mark[w->expert[i]] &= (uint8_t)~IS_HEDGE;
	}
}

bool odm_predictions_placed(struct odm_predictions *p, const struct odm_want *w)
{
	struct step_slot *s;
	bool in_time = false;

	pthread_mutex_lock(&p->lock);
	s = find(p, w->step);
	if (s != NULL) {
		struct entry *e = entry_of(p, s, w->m);
		uint32_t *where = where_of(p, s, w->m);

		memset(where, 0xff, p->o.n_experts * sizeof(*where));
		for (size_t i = 0; i < w->n; i++)
			where[w->expert[i]] = w->worker[i];
		memcpy(sent_of(p, s, w->m), w->expert, w->n * sizeof(*w->expert));
		memcpy(sent_to(p, s, w->m), w->worker, w->n * sizeof(*w->worker));
		e->n_sent = (uint32_t)w->n;
		e->epoch = w->epoch;
		in_time = !e->resolved;
		if (in_time)
			mark_wanted(p, s, w);
	}
	pthread_mutex_unlock(&p->lock);
	return in_time;
}

/* ---- After the router ---- */

void odm_wants_settle(struct odm_predictions *p, const struct step_slot *s, uint32_t m, uint64_t *c)
{
	const uint8_t *mark = mark_of(p, s, m);
	const uint16_t *used = used_of(p, s, m, 0);
	const size_t uses = (size_t)s->n_rows * p->o.top_k;
	uint64_t hedged = 0, hedge_uses = 0, wasted = 0;

	begin_round(p);
	for (size_t i = 0; i < uses; i++)
		p->stamp[used[i]] = p->round;
	for (uint32_t e = 0; e < p->o.n_experts; e++) {
		const bool hedge = (mark[e] & IS_HEDGE) != 0;

		if (mark[e] == 0)
			continue;
		wasted += p->stamp[e] != p->round;
		hedged += hedge;
		hedge_uses += hedge && p->stamp[e] == p->round;
	}
	od_want_spent(p->policy, uses, wasted);
	if (c == NULL)
		return;
	c[OD_C_HEDGED] += hedged;
	c[OD_C_HEDGE_USES] += hedge_uses;
	c[OD_C_WASTED_WANTS] += wasted;
}

uint32_t odm_predictions_where(struct odm_predictions *p, uint64_t step, uint32_t m, uint16_t expert)
{
	const struct step_slot *s;
	uint32_t worker;

	pthread_mutex_lock(&p->lock);
	s = find(p, step);
	worker = s != NULL ? where_of(p, s, m)[expert] : ODM_NOBODY;
	pthread_mutex_unlock(&p->lock);
	return worker;
}

uint32_t odm_predictions_ordered(struct odm_predictions *p, uint64_t step, uint32_t m, uint16_t expert)
{
	const struct step_slot *s;
	uint32_t worker = ODM_NOBODY;

	pthread_mutex_lock(&p->lock);
	s = find(p, step);
	if (s != NULL && (mark_of(p, s, m)[expert] & WAS_ORDERED) != 0)
		worker = where_of(p, s, m)[expert];
	pthread_mutex_unlock(&p->lock);
	return worker;
}

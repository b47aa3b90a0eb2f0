#include "main-node/predict/predictions_internal.h"

#include "common/base/clock.h"
#include "main-node/step/timeline.h"

#include <stdlib.h>

#define SILENT_STEPS 2 /* decode steps without a prediction from the shadow */

/* ---- Life ---- */

static int open_sequences(struct odm_predictions *p, struct od_err *err)
{
	int rc = od_id_table_init(&p->ids, p->o.max_sequences, err);

	p->sequence = calloc(p->o.max_sequences, sizeof(*p->sequence));
	if (rc == OD_OK && p->sequence == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "predictions for %u sequences", p->o.max_sequences);
	for (uint32_t i = 0; rc == OD_OK && i < p->o.max_sequences; i++)
		rc = odm_tally_init(&p->sequence[i].tally, p->o.n_moe, p->o.max_tokens, err);
	return rc;
}

static int allocate(struct odm_predictions *p, struct od_err *err)
{
	const size_t rows = p->o.max_rows, layers = p->o.n_moe, experts = p->o.n_experts;

	p->n_ring = 2 * most_rows(p); /* rows of the current step, and as many ahead */
	p->n_cells = (size_t)p->o.max_sequences * p->n_ring;
	p->ahead = calloc(p->n_cells, sizeof(*p->ahead));
	p->row = calloc(layers * p->n_cells, sizeof(*p->row));
	p->wanted = calloc(layers * p->n_cells, sizeof(*p->wanted));
	p->step_row = calloc(KEPT * rows, sizeof(*p->step_row));
	p->entry = calloc(SLOTS * layers, sizeof(*p->entry));
	p->used = calloc(KEPT * layers * rows * p->o.top_k, sizeof(*p->used));
	p->score = calloc(KEPT * layers * rows, sizeof(*p->score));
	p->where = calloc(SLOTS * layers * experts, sizeof(*p->where));
	p->sent = calloc(SLOTS * layers * experts, sizeof(*p->sent));
	p->sent_to = calloc(SLOTS * layers * experts, sizeof(*p->sent_to));
	p->mark = calloc(SLOTS * layers * experts, sizeof(*p->mark));
	p->required = calloc(layers * experts, sizeof(*p->required));
	p->cell = calloc((size_t)most_rows(p) * p->o.max_sequences, sizeof(*p->cell));
	p->n_listed = calloc(most_rows(p), sizeof(*p->n_listed));
	p->stamp = calloc(experts, sizeof(*p->stamp));
	if (p->ahead == NULL || p->row == NULL || p->wanted == NULL || p->step_row == NULL || p->entry == NULL ||
	    p->used == NULL || p->score == NULL || p->where == NULL || p->sent == NULL || p->sent_to == NULL ||
	    p->mark == NULL || p->required == NULL || p->cell == NULL || p->n_listed == NULL || p->stamp == NULL)
		return od_fail(err, OD_ERR_NOMEM, "predictions of %u rows and %u layers", p->o.max_rows, p->o.n_moe);
	for (size_t i = 0; i < KEPT; i++)
		p->slot[i].row = p->step_row + i * rows;
	return OD_OK;
}

int odm_predictions_new(struct odm_predictions **out, const struct odm_predictions_opts *opts, struct od_err *err)
{
	struct odm_predictions *p = calloc(1, sizeof(*p));
	int rc;

	*out = NULL;
	if (p == NULL)
		return od_fail(err, OD_ERR_NOMEM, "predictions");
	p->o = *opts;
	pthread_mutex_init(&p->lock, NULL);
	rc = allocate(p, err);
	if (rc == OD_OK)
		rc = open_sequences(p, err);
	if (rc == OD_OK)
		rc = od_want_policy_new(&p->policy, opts->hedge, opts->n_moe, opts->top_k, err);
	if (rc != OD_OK) {
		odm_predictions_free(p);
		return rc;
	}
	*out = p;
	return OD_OK;
}

void odm_predictions_free(struct odm_predictions *p)
{
	if (p == NULL)
		return;
	for (uint32_t i = 0; p->sequence != NULL && i < p->o.max_sequences; i++)
		odm_tally_fini(&p->sequence[i].tally);
	free(p->sequence);
	od_id_table_fini(&p->ids);
	od_want_policy_free(p->policy);
	pthread_mutex_destroy(&p->lock);
	free(p->ahead);
	free(p->row);
	free(p->wanted);
	free(p->step_row);
	free(p->entry);
	free(p->used);
	free(p->score);
	free(p->where);
	free(p->sent);
	free(p->sent_to);
	free(p->mark);
	free(p->required);
	free(p->cell);
	free(p->n_listed);
	free(p->stamp);
	free(p);
}

/* Voids the row's prediction, which is for another token or position. */
static void void_row(struct odm_predictions *p, struct row_prediction *r, struct od_wanted *w)
{
	od_want_give_up(p->policy, w);
	r->predicted.n = 0;
	r->stand_in = false;
}

/* Resets the step's WANTs of the layer: none was sent. */
static void clear_entry(struct odm_predictions *p, const struct step_slot *s, uint32_t m)
{
	struct entry *e = entry_of(p, s, m);

	set_dirty(p, e, false);
	*e = (struct entry){ 0 };
	memset(where_of(p, s, m), 0xff, p->o.n_experts * sizeof(*p->where)); /* ODM_NOBODY */
	memset(mark_of(p, s, m), 0, p->o.n_experts * sizeof(*p->mark));
}

/* Reuses the slot for another step. */
static void clear_slot(struct odm_predictions *p, struct step_slot *s, uint64_t step)
{
	for (uint32_t m = 0; m < p->o.n_moe; m++)
		clear_entry(p, s, m);
	s->step = step;
	s->begun = false;
	s->n_rows = 0;
}

/* ---- Predictions ---- */

/* True: the prediction assumes the row's token. When the shadow chooses the token (-1), any token matches. */
static bool assumes(const struct step_row *row, int32_t token)
{
	return row->token < 0 || row->token == token;
}

static bool counts(const struct sequence *q, const struct predict_part *part)
{
	return part->serial >= q->counted_from;
}

/* Counts the lead of the part's first prediction. */
static void note_first(const struct step_slot *s, struct sequence *q, struct predict_part *part)
{
	if (part->first_known || part->first_ns == 0 || !counts(q, part))
		return;
	part->first_known = true;
	odm_tally_first(&q->tally, (int64_t)(part->first_ns - s->begun_ns));
}

static void note_kept(const struct step_slot *s, struct sequence *q, struct predict_part *part, uint32_t m)
{
	if (part->first_ns == 0)
		part->first_ns = od_now_ns();
	if (m > part->newest_m)
		part->newest_m = m;
	note_first(s, q, part);
}

static void count(struct odm_predictions *p, struct sequence *q, uint32_t m, uint32_t position, const struct score *x)
{
	const uint32_t k = p->o.top_k;

	if (x->what & ROUTED)
		od_recall_see(&q->tally.recall, m);
	if (x->what & STOOD_IN) {
		q->tally.stood_in.uses += k;
		q->tally.stood_in.recalled += x->stood_in_hits;
	}
	if (x->what & (IN_TIME | LATE))
		od_recall_add_hits(&q->tally.recall, m, position - q->prompt_tokens, k, x->hits, (x->what & LATE) != 0);
}

/* Rows of a draft, those of a part after its first, are counted when main has kept them. */
static bool is_certain(const struct odm_predictions *p, const struct predict_part *part, uint32_t row)
{
	return row == part->first_row || part->serial != p->serial;
}

static bool same_wants(const struct od_wanted *a, const struct od_wanted *b)
{
	return a->n == b->n && a->n_predicted == b->n_predicted &&
	       memcmp(a->expert, b->expert, a->n * sizeof(*a->expert)) == 0;
}

/* A prediction after the router chose: counted as late, once, if there was none before. */
static void add_late(struct odm_predictions *p, const struct step_slot *s, struct sequence *q,
		     struct predict_part *part, uint32_t row, const struct od_prediction *pred)
{
	const uint32_t k = p->o.top_k;
	struct score *x = score_of(p, s, pred->m, row);
	struct score late = { .what = LATE };

	if (pred->stand_in || (x->what & (IN_TIME | LATE)) != 0)
		return;
	if (!entry_of(p, s, pred->m)->learnt) { /* predictions that were in time are not in the score yet */
		const struct row_prediction *r = row_of(p, pred->m, s->row[row].cell);

		if (part->serial != p->serial || (r->predicted.n > 0 && !r->stand_in))
			return;
	}
	x->what |= LATE;
	x->hits = late.hits = (uint8_t)od_recall_hits(pred->expert, k, used_of(p, s, pred->m, row), k);
	note_kept(s, q, part, pred->m);
	if (counts(q, part) && is_certain(p, part, row))
		count(p, q, pred->m, pred->position, &late);
}

/* True: the row's wanted experts have changed. */
static bool add_in_time(struct odm_predictions *p, struct row_prediction *r, struct od_wanted *w,
			const struct od_prediction *pred)
{
	const struct od_wanted old = *w;

	if (pred->stand_in && r->predicted.n > 0 && !r->stand_in)
		return false;
	if (r->token != pred->token || r->stand_in != pred->stand_in) {
		p->voided.replaced += r->predicted.n > 0;
		void_row(p, r, w);
	}
	r->token = pred->token;
	r->stand_in = pred->stand_in;
	r->came_ns = od_now_ns();
	od_candidates_set(&r->predicted, pred);
	if (pred->stand_in)
		/* its noise differs from the shadow's: no learning and no hedges from it */
		r->predicted.has_logit = false;
	od_want_decide(p->policy, pred->m, &r->predicted, w);
	return !same_wants(&old, w);
}

/* Adds a prediction for a row of a step that has begun. */
static bool add_to_row(struct odm_predictions *p, struct step_slot *s, struct sequence *q, struct predict_part *part,
		       const struct od_prediction *pred)
{
	const uint32_t row = part->first_row + (pred->position - part->begin), cell = s->row[row].cell;
	struct entry *e = entry_of(p, s, pred->m);

	if (!assumes(&s->row[row], pred->token))
		return false;
	if (!pred->stand_in && part->serial == p->serial && q->heard < q->steps)
		q->heard = q->steps;
	if (e->resolved)
		add_late(p, s, q, part, row, pred);
	if (e->resolved || part->serial != p->serial)
		return false;
	if (!pred->stand_in)
		note_kept(s, q, part, pred->m);
	if (!add_in_time(p, row_of(p, pred->m, cell), wanted_of(p, pred->m, cell), pred))
		return false;
	set_dirty(p, e, true);
	return true;
}

/* Voids the sequence's predictions ahead from a position on. s: the step whose WANTs cover those up to wanted_end();
 * NULL: its WANTs need not follow. True: they should. */
static bool void_ahead(struct odm_predictions *p, const struct step_slot *s, struct sequence *q, uint32_t from,
		       uint64_t *why)
{
	const uint32_t wanted = wanted_end(p, q);
	bool any = false;

	for (uint32_t at = from; at < q->top; at++) {
		const uint32_t cell = cell_of(p, q, at);

		for (uint32_t m = 0; m < p->o.n_moe; m++) {
			struct row_prediction *r = row_of(p, m, cell);

			if (r->predicted.n == 0)
				continue;
			++*why;
			void_row(p, r, wanted_of(p, m, cell));
			if (s == NULL || at >= wanted)
				continue;
			set_dirty(p, entry_of(p, s, m), true);
			any = true;
		}
		p->ahead[cell] = (struct ahead){ 0 };
	}
	q->top = from < q->top ? from : q->top;
	return any;
}

/* A prediction for a position after the sequence's rows is kept if the shadow has predicted the one before it. That
 * one's token is part of what it assumes. Main's own predictor does not run ahead: it may stand in for the next
 * position only. */
static bool may_add_ahead(const struct odm_predictions *p, const struct sequence *q, const struct od_prediction *pred)
{
	if (pred->position < q->end || pred->position >= q->limit)
		return false;
	return pred->position == q->end || (!pred->stand_in && p->ahead[cell_of(p, q, pred->position - 1)].shadow);
}

/* The step's WANTs should follow where there are predictions for positions [from, to). True: there are. */
static bool set_dirty_range(struct odm_predictions *p, const struct step_slot *s, const struct sequence *q,
			    uint32_t from, uint32_t to)
{
	bool any = false;

	for (uint32_t at = from; at < to && at < q->top; at++)
		for (uint32_t m = 0; m < p->o.n_moe; m++)
			if (row_of(p, m, cell_of(p, q, at))->predicted.n > 0) {
				set_dirty(p, entry_of(p, s, m), true);
				any = true;
			}
	return any;
}

/* The shadow names its token at a position ahead, or main's own predictor stands in for it. */
static void set_ahead(const struct sequence *q, struct ahead *a, const struct od_prediction *pred)
{
	if (!pred->stand_in && (!a->shadow || a->token != pred->token || a->margin != pred->margin))
		a->right = odm_outlook_right(q->outlook.right, pred->margin);
	a->token = pred->token;
	if (pred->stand_in) /* it has no margin, and nothing is kept behind it */
		return;
	a->shadow = true;
	a->margin = pred->margin;
	a->first_ns = a->first_ns != 0 ? a->first_ns : od_now_ns();
}

/* Adds a prediction for the next step, or a later one. */
static bool add_ahead(struct odm_predictions *p, struct sequence *q, const struct od_prediction *pred)
{
	struct step_slot *s = slot_at(p, p->serial + 1);
	const uint32_t cell = cell_of(p, q, pred->position);
	struct ahead *a = &p->ahead[cell];
	bool want = false, changed;
	uint32_t before, after; /* where wanted rows end */

	if (s->step == 0)
		return false;
	if (!pred->stand_in) {
		/* Another token: what follows it is void. At the next position main will say which one is right. */
		if (a->token != pred->token)
			want = void_ahead(p, s, q, pred->position + (pred->position == q->end), &p->voided.replaced);
		q->heard = q->steps + 1;
	}
	before = wanted_end(p, q);
	if (!pred->stand_in || !a->shadow)
		set_ahead(q, a, pred);
	if (q->top == pred->position)
		q->top++;
	changed = add_in_time(p, row_of(p, pred->m, cell), wanted_of(p, pred->m, cell), pred);
	after = wanted_end(p, q);
	if (changed && pred->position < after) {
		set_dirty(p, entry_of(p, s, pred->m), true);
		want = true;
	}
	/* With another margin, more rows are wanted, or fewer. */
	return set_dirty_range(p, s, q, before < after ? before : after, before < after ? after : before) || want;
}

/* *unknown: there is no row for it. */
static bool add_locked(struct odm_predictions *p, const struct od_prediction *pred, bool *unknown)
{
	struct sequence *q = find_sequence(p, pred->sequence);

	*unknown = true;
	if (q == NULL || q->closed != 0)
		return false;
	for (uint64_t back = 0; back < KEPT - 1 && back < p->serial; back++) {
		struct step_slot *s = slot_at(p, p->serial - back);
		struct predict_part *part = &q->part[number_of(p, s)];

		if (part->serial != p->serial - back)
			continue;
		*unknown = false;
		if (pred->position >= part->begin && pred->position - part->begin < part->n)
			return add_to_row(p, s, q, part, pred);
		if (back == 0 && may_add_ahead(p, q, pred))
			return add_ahead(p, q, pred);
		*unknown = true;
	}
	return false;
}

bool odm_predictions_add(struct odm_predictions *p, const struct od_prediction *pred)
{
	bool want, unknown;

	pthread_mutex_lock(&p->lock);
	want = add_locked(p, pred, &unknown);
	p->voided.unknown += unknown && !pred->stand_in;
	pthread_mutex_unlock(&p->lock);
	return want;
}

size_t odm_predictions_shadow_silent(struct odm_predictions *p, uint64_t step, bool *silent, size_t n_rows)
{
	const struct step_slot *s;
	size_t n = 0;

	memset(silent, 0, n_rows * sizeof(*silent));
	pthread_mutex_lock(&p->lock);
	s = slot_at(p, p->serial);
	for (uint32_t i = 0; s->begun && s->step == step && i < s->n_rows && i < n_rows; i++) {
		const struct sequence *q = sequence_of(p, &s->row[i]);

		silent[i] = q != NULL && q->steps > q->heard + SILENT_STEPS;
		n += silent[i];
	}
	pthread_mutex_unlock(&p->lock);
	return n;
}

/* ---- Sequences ---- */

static void forget_sequence(struct odm_predictions *p, struct sequence *q)
{
	od_id_table_remove(&p->ids, q->id);
	odm_tally_reset(&q->tally);
	*q = (struct sequence){ .tally = q->tally };
}

/* Evict the sequence that was closed first and whose figures were not taken. */
static void make_room(struct odm_predictions *p)
{
	struct sequence *oldest = NULL;

	for (uint32_t i = 0; p->ids.n == p->ids.most && i < p->o.max_sequences; i++) {
		struct sequence *q = &p->sequence[i];

		if (q->closed != 0 && (oldest == NULL || q->closed < oldest->closed))
			oldest = q;
	}
	if (oldest != NULL)
		forget_sequence(p, oldest);
}

/* The sequence's number; OD_NO_NUMBER: there are more sequences than allowed, and this one is ignored. */
static uint32_t open_sequence(struct odm_predictions *p, const struct odm_predicted_row *row)
{
	uint32_t number = od_id_table_find(&p->ids, row->sequence);

	if (number != OD_NO_NUMBER)
		return number;
	make_room(p);
	number = od_id_table_add(&p->ids, row->sequence);
	if (number != OD_NO_NUMBER) {
		p->sequence[number].id = row->sequence;
		p->sequence[number].prompt_tokens = row->prompt_tokens;
	}
	return number;
}

bool odm_predictions_close(struct odm_predictions *p, uint64_t sequence)
{
	struct sequence *q;
	bool want = false;

	pthread_mutex_lock(&p->lock);
	q = find_sequence(p, sequence);
	if (q != NULL && q->closed == 0) {
		want = void_ahead(p, slot_at(p, p->serial + 1), q, q->end, &p->voided.ended);
		q->closed = ++p->last_closed;
	}
	pthread_mutex_unlock(&p->lock);
	return want;
}

/* ---- Steps ---- */

/* The step began with another number than expected: WANTs sent under the old number are sent again under its own. */
static void renumber(struct odm_predictions *p, struct step_slot *s, uint64_t step)
{
	for (uint32_t m = 0; m < p->o.n_moe; m++) {
		const bool any = entry_of(p, s, m)->version > 0 || entry_of(p, s, m)->dirty;

		clear_entry(p, s, m);
		set_dirty(p, entry_of(p, s, m), any);
	}
	s->step = step;
}

/* Counts rows [first, first + n) of a draft in the sequence's part: main has kept them. */
static void count_kept(struct odm_predictions *p, const struct step_slot *s, struct sequence *q, uint32_t first,
		       uint32_t n)
{
	for (uint32_t i = first; i < first + n; i++)
		for (uint32_t m = 0; m < p->o.n_moe; m++)
			count(p, q, m, s->row[i].position, score_of(p, s, m, i));
}

/* Counts what is left of the step, and empties the cells of its rows. */
static void leave_rows(struct odm_predictions *p, struct step_slot *s)
{
	for (uint32_t i = 0; i < s->n_rows; i++) {
		const uint32_t cell = s->row[i].cell;
		struct sequence *q = sequence_of(p, &s->row[i]);
		const struct predict_part *part = q != NULL ? &q->part[number_of(p, s)] : NULL;

		if (part != NULL && part->first_row == i && counts(q, part))
			count_kept(p, s, q, i + 1, part->n - 1);
		if (cell != NO_CELL)
			for (uint32_t m = 0; m < p->o.n_moe; m++)
				if (!entry_of(p, s, m)->learnt) /* the step was aborted */
					void_row(p, row_of(p, m, cell), wanted_of(p, m, cell));
	}
}

/* Keeps those predictions made ahead for the row that assumed its token. */
static void keep_fitting(struct odm_predictions *p, const struct step_row *row, struct sequence *q,
			 struct predict_part *part)
{
	struct ahead *a = &p->ahead[row->cell];
	bool any = false;

	for (uint32_t m = 0; m < p->o.n_moe; m++) {
		struct row_prediction *r = row_of(p, m, row->cell);

		if (r->predicted.n > 0 && !assumes(row, r->token)) {
			p->voided.token++;
			void_row(p, r, wanted_of(p, m, row->cell));
		}
		if (r->predicted.n == 0)
			continue;
		part->newest_m = m > part->newest_m ? m : part->newest_m;
		any = true;
	}
	if (any && part->first_ns == 0)
		part->first_ns = a->first_ns;
	if (any && a->shadow && q->heard < q->steps)
		q->heard = q->steps;
	if (!assumes(row, a->token))
		void_ahead(p, NULL, q, row->position + 1, &p->voided.token);
	else if (row->position > part->begin) /* the first row's token is main's */
		q->all_right *= a->right;
	*a = (struct ahead){ 0 };
}

static uint32_t limit_of(const struct odm_predictions *p, const struct sequence *q)
{
	return q->end + (q->ahead > 1 ? most_rows(p) : 1);
}

/* The sequence has rows [begin, end) now. What was predicted for them moves from WANTs of the next step, or of none, to
 * those of this one. row: its first. */
static void move_on(struct odm_predictions *p, const struct step_slot *s, struct sequence *q, struct predict_part *part,
		    const struct odm_predicted_row *row)
{
	const uint32_t old_end = q->end, expected = wanted_end(p, q), end = part->begin + part->n;
	const bool follows = old_end >= part->begin && old_end < end;

	q->all_right = 1;
	if (follows) {
		for (uint32_t at = old_end; at < end && at < q->top; at++)
			keep_fitting(p, &s->row[part->first_row + (at - part->begin)], q, part);
		set_dirty_range(p, s, q, expected, end); /* more rows than expected */
		set_dirty_range(p, s, q, end, expected); /* fewer */
	} else {
		void_ahead(p, s, q, old_end, &p->voided.position);
	}
	q->ahead = row->ahead < 1 ? 1 : row->ahead < most_rows(p) ? row->ahead : most_rows(p);
	q->outlook = row->outlook;
	q->end = end;
	q->top = follows && q->top > end ? q->top : end;
	/* Also what the shadow has under way since an earlier step allowed it. */
	q->limit = follows && q->limit > limit_of(p, q) ? q->limit : limit_of(p, q);
	set_dirty_range(p, slot_at(p, p->serial + 1), q, end, wanted_end(p, q));
}

/* Rows [first, first + n) of the step belong to one sequence. described: the first. */
static void begin_sequence(struct odm_predictions *p, struct step_slot *s, uint32_t first, uint32_t n,
			   const struct odm_predicted_row *described)
{
	struct step_row *row = &s->row[first];
	struct sequence *q = row->number != OD_NO_NUMBER ? &p->sequence[row->number] : NULL;
	struct predict_part *part = q != NULL ? &q->part[number_of(p, s)] : NULL;

	if (q == NULL)
		return;
	n = n < most_rows(p) ? n : most_rows(p);
	*part = (struct predict_part){ .serial = p->serial, .begin = row->position, .n = n, .first_row = first };
	for (uint32_t i = 0; i < n; i++)
		row[i].cell = cell_of(p, q, row[i].position);
	q->steps++;
	move_on(p, s, q, part, described);
	note_first(s, q, part);
}

/* The sequences of the previous step that have no row in this one. */
static void void_absent(struct odm_predictions *p, const struct step_slot *before, const struct step_slot *s)
{
	for (uint32_t i = 0; i < before->n_rows; i++) {
		struct sequence *q = sequence_of(p, &before->row[i]);

		if (q != NULL && q->part[number_of(p, s)].serial != p->serial)
			void_ahead(p, s, q, q->end, &p->voided.position);
	}
}

static void begin_decode(struct odm_predictions *p, uint64_t step, uint64_t next_step,
			 const struct odm_predicted_row *row, size_t n_rows)
{
	struct step_slot *before = slot_at(p, p->serial), *s = slot_at(p, ++p->serial);

	leave_rows(p, before);
	clear_slot(p, slot_at(p, p->serial + 1), next_step);
	if (s->step != step)
		renumber(p, s, step);
	s->begun = true;
	s->begun_ns = od_now_ns();
	s->n_rows = (uint32_t)(n_rows < p->o.max_rows ? n_rows : p->o.max_rows);
	for (uint32_t m = 0; m < p->o.n_moe; m++)
		memset(score_of(p, s, m, 0), 0, s->n_rows * sizeof(*p->score));
	for (uint32_t i = 0, n; i < s->n_rows; i += n) {
		const uint32_t number = open_sequence(p, &row[i]);

		for (n = 0; i + n < s->n_rows && row[i + n].sequence == row[i].sequence; n++)
			s->row[i + n] = (struct step_row){ .sequence = row[i].sequence,
							   .position = row[i + n].position,
							   .number = number,
							   .cell = NO_CELL,
							   .token = row[i + n].token };
		begin_sequence(p, s, i, n, &row[i]);
	}
	void_absent(p, before, s);
	for (uint32_t m = 0; m < p->o.n_moe; m++) /* the step was aborted */
		set_dirty(p, entry_of(p, before, m), false);
}

/* Rows [first, first + n) of the sequence's part are undone. */
static void undo_rows(struct odm_predictions *p, const struct step_slot *s, struct sequence *q, uint32_t first,
		      uint32_t n)
{
	const bool counted = counts(q, &q->part[number_of(p, s)]);

	for (uint32_t i = first; i < first + n; i++) {
		for (uint32_t m = 0; m < p->o.n_moe; m++) {
			const struct score *x = score_of(p, s, m, i);

			if (counted && (x->what & ROUTED) != 0) {
				q->tally.undone.uses += p->o.top_k;
				q->tally.undone.recalled += x->hits;
			}
			void_row(p, row_of(p, m, s->row[i].cell), wanted_of(p, m, s->row[i].cell));
		}
		s->row[i].cell = NO_CELL;
	}
}

static bool truncate_locked(struct odm_predictions *p, uint64_t sequence, uint32_t length)
{
	const struct step_slot *s = slot_at(p, p->serial);
	struct sequence *q = find_sequence(p, sequence);
	struct predict_part *part = q != NULL ? &q->part[number_of(p, s)] : NULL;
	uint32_t kept;
	bool want;

	if (part == NULL || part->serial != p->serial || length >= q->end)
		return false;
	kept = length > part->begin ? length - part->begin : 1;
	undo_rows(p, s, q, part->first_row + kept, part->n - kept);
	want = void_ahead(p, slot_at(p, p->serial + 1), q, q->end, &p->voided.token);
	part->n = kept;
	q->end = q->top = part->begin + kept;
	q->limit = limit_of(p, q);
	q->all_right = 1; /* for the rest of the step */
	return want;
}

bool odm_predictions_truncate(struct odm_predictions *p, uint64_t sequence, uint32_t length)
{
	bool want;

	pthread_mutex_lock(&p->lock);
	want = truncate_locked(p, sequence, length);
	pthread_mutex_unlock(&p->lock);
	return want;
}

void odm_predictions_begin(struct odm_predictions *p, uint64_t step, uint64_t next_step,
			   const struct odm_predicted_row *row, size_t n_rows, bool scored)
{
	pthread_mutex_lock(&p->lock);
	if (scored)
		begin_decode(p, step, next_step, row, n_rows);
	else
		clear_slot(p, &p->slot[PROMPT], step);
	pthread_mutex_unlock(&p->lock);
}

/* ---- After the router ---- */

void odm_predictions_resolve(struct odm_predictions *p, uint64_t step, uint32_t m, const uint16_t *used)
{
	struct step_slot *s;

	pthread_mutex_lock(&p->lock);
	s = find(p, step);
	if (s != NULL && !entry_of(p, s, m)->resolved) {
		entry_of(p, s, m)->resolved = true;
		set_dirty(p, entry_of(p, s, m), false);
		if (s->n_rows > 0)
			memcpy(used_of(p, s, m, 0), used, s->n_rows * p->o.top_k * sizeof(*used));
	}
	pthread_mutex_unlock(&p->lock);
}

static void learn_row(struct odm_predictions *p, const struct step_slot *s, uint32_t m, uint32_t i,
		      const float *probability)
{
	const struct step_row *row = &s->row[i];
	struct sequence *q = sequence_of(p, row);
	const struct predict_part *part = q != NULL ? &q->part[number_of(p, s)] : NULL;
	struct score *x = score_of(p, s, m, i), now = { .what = ROUTED };
	struct entry *e = entry_of(p, s, m);
	struct row_prediction *r;

	if (row->cell == NO_CELL)
		return;
	r = row_of(p, m, row->cell);
	if (r->predicted.n > 0) {
		const size_t hits = od_recall_hits(r->predicted.expert, p->o.top_k, used_of(p, s, m, i), p->o.top_k);

		now.what |= r->stand_in ? STOOD_IN : IN_TIME;
		*(r->stand_in ? &now.stood_in_hits : &now.hits) = (uint8_t)hits;
		e->right += (uint32_t)hits;
		e->wrong += p->o.top_k - (uint32_t)hits;
		e->came_ns = r->came_ns > e->came_ns ? r->came_ns : e->came_ns;
	}
	x->what |= now.what;
	x->hits += now.hits; /* 0 of a late one */
	x->stood_in_hits = now.stood_in_hits;
	if (part != NULL && counts(q, part) && i == part->first_row) {
		count(p, q, m, row->position, &now);
		if (now.what & IN_TIME) {
			q->tally.lead_sum += part->newest_m - m;
			q->tally.lead_routers++;
		}
	}
	od_want_learn(p->policy, m, &r->predicted,
		      probability != NULL ? probability + (size_t)i * p->o.n_experts : NULL,
		      wanted_of(p, m, row->cell));
	void_row(p, r, wanted_of(p, m, row->cell)); /* the cell is for another position of the sequence now */
}

void odm_predictions_learn(struct odm_predictions *p, uint64_t step, uint32_t m, const float *probability, uint64_t *c)
{
	struct step_slot *s;

	pthread_mutex_lock(&p->lock);
	s = find(p, step);
	if (s != NULL && s->n_rows > 0 && entry_of(p, s, m)->resolved && !entry_of(p, s, m)->learnt) {
		entry_of(p, s, m)->learnt = true;
		odm_wants_settle(p, s, m, c);
		for (uint32_t i = 0; i < s->n_rows; i++)
			learn_row(p, s, m, i, probability);
	}
	pthread_mutex_unlock(&p->lock);
}

void odm_predictions_record(struct odm_predictions *p, const struct odm_step *step, uint32_t m)
{
	struct odm_timeline_prediction said = { .m = m };
	const struct step_slot *s;

	if (step->record == NULL)
		return;
	pthread_mutex_lock(&p->lock);
	s = find(p, step->step);
	if (s != NULL) {
		const struct entry *e = entry_of(p, s, m);

		said.came_ns = e->came_ns;
		said.right = e->right;
		said.wrong = e->wrong;
	}
	pthread_mutex_unlock(&p->lock);
	if (said.came_ns != 0)
		odm_timeline_predicted(step->record, &said);
}

/* ---- Figures ---- */

void odm_predictions_take(struct odm_predictions *p, uint64_t sequence, uint64_t *c, struct odm_spread *first_ns,
			  struct od_recall *r)
{
	struct sequence *q;

	*first_ns = (struct odm_spread){ 0 };
	pthread_mutex_lock(&p->lock);
	q = find_sequence(p, sequence);
	if (q != NULL) {
		const struct step_slot *s = slot_at(p, p->serial);
		const struct predict_part *part = &q->part[number_of(p, s)];

		if (part->serial == p->serial && counts(q, part))
			count_kept(p, s, q, part->first_row + 1, part->n - 1);
		odm_tally_add(&q->tally, c, first_ns, r);
		odm_tally_reset(&q->tally);
		q->counted_from = p->serial + 1; /* late predictions of earlier steps are not counted */
		if (q->closed != 0)
			forget_sequence(p, q);
	}
	pthread_mutex_unlock(&p->lock);
}

void odm_predictions_count_open(struct odm_predictions *p, uint64_t *c)
{
	pthread_mutex_lock(&p->lock);
	for (uint32_t i = 0; i < p->o.max_sequences; i++)
		if (p->sequence[i].id != 0)
			odm_tally_count(&p->sequence[i].tally, c);
	pthread_mutex_unlock(&p->lock);
}

struct odm_voided odm_predictions_voided(struct odm_predictions *p)
{
	struct odm_voided v;

	pthread_mutex_lock(&p->lock);
	v = p->voided;
	pthread_mutex_unlock(&p->lock);
	return v;
}

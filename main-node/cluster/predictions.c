#include "main-node/cluster/predictions_internal.h"

#include "common/base/clock.h"

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

	p->n_places = p->o.max_sequences + rows;
	p->step_row = calloc(KEPT * rows, sizeof(*p->step_row));
	p->entry = calloc(SLOTS * layers, sizeof(*p->entry));
	p->row = calloc(KEPT * layers * p->n_places, sizeof(*p->row));
	p->wanted = calloc(KEPT * layers * p->n_places, sizeof(*p->wanted));
	p->used = calloc(KEPT * layers * rows * p->o.top_k, sizeof(*p->used));
	p->where = calloc(SLOTS * layers * experts, sizeof(*p->where));
	p->sent = calloc(SLOTS * layers * experts, sizeof(*p->sent));
	p->mark = calloc(SLOTS * layers * experts, sizeof(*p->mark));
	p->required = calloc(layers * experts, sizeof(*p->required));
	p->place = calloc(rows, sizeof(*p->place));
	p->stamp = calloc(experts, sizeof(*p->stamp));
	if (p->step_row == NULL || p->entry == NULL || p->row == NULL || p->wanted == NULL || p->used == NULL ||
	    p->where == NULL || p->sent == NULL || p->mark == NULL || p->required == NULL || p->place == NULL || p->stamp == NULL)
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
	free(p->step_row);
	free(p->entry);
	free(p->row);
	free(p->wanted);
	free(p->used);
	free(p->where);
	free(p->sent);
	free(p->mark);
	free(p->required);
	free(p->place);
	free(p->stamp);
	free(p);
}

/* Voids the row's prediction, which is for another token or position. */
static void void_row(struct odm_predictions *p, struct row_prediction *r, struct od_wanted *w)
{
	od_want_give_up(p->policy, w);
	r->predicted.n = 0;
	r->stand_in = r->late = false;
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
	for (uint32_t m = 0; m < p->o.n_moe; m++) {
		clear_entry(p, s, m);
		for (uint32_t i = 0; i < s->n_rows; i++)
			void_row(p, row_of(p, s, m, s->row[i].place), wanted_of(p, s, m, s->row[i].place));
	}
	s->step = step;
	s->begun = false;
	s->n_rows = 0;
}

/* ---- Predictions ---- */

static bool counts(const struct sequence *q, const struct part *part)
{
	return part->serial >= q->counted_from;
}

/* Scores a row: both its prediction and the router's choice are known. */
static void score(struct odm_predictions *p, struct sequence *q, uint32_t m, uint32_t position, const struct row_prediction *r,
		  const uint16_t *predicted, const uint16_t *used, bool late)
{
	const uint32_t k = p->o.top_k;

	if (r->stand_in && !late)
		od_recall_add_cell(&q->tally.stood_in, predicted, k, used, k);
	else
		od_recall_add(&q->tally.recall, m, position - q->prompt_tokens, predicted, k, used, k, late);
}

/* True: the prediction assumes the row's token. When the shadow chooses the token (-1), any token matches. */
static bool assumes(const struct step_row *row, int32_t token)
{
	return row->token < 0 || row->token == token;
}

/* Counts the lead of the sequence's first prediction, once the step has begun and a prediction was kept. */
static void note_first(const struct step_slot *s, struct sequence *q, struct part *part)
{
	if (part->first_known || part->ahead || part->first_ns == 0 || !counts(q, part))
		return;
	part->first_known = true;
	odm_tally_first(&q->tally, (int64_t)(part->first_ns - s->begun_ns));
}

static void note_kept(const struct step_slot *s, struct sequence *q, struct part *part, uint32_t m)
{
	if (part->first_ns == 0)
		part->first_ns = od_now_ns();
	if (m > part->newest_m)
		part->newest_m = m;
	note_first(s, q, part);
}

static bool same_wants(const struct od_wanted *a, const struct od_wanted *b)
{
	return a->n == b->n && a->n_predicted == b->n_predicted &&
	       memcmp(a->expert, b->expert, a->n * sizeof(*a->expert)) == 0;
}

/* A prediction after the router chose: counted as late, once, if there was none before. */
static void add_late(struct odm_predictions *p, const struct step_slot *s, struct sequence *q, struct part *part, uint32_t row,
		     struct row_prediction *r, const struct od_prediction *pred)
{
	if (pred->stand_in || r->late || (r->predicted.n > 0 && !r->stand_in))
		return;
	r->late = true;
	note_kept(s, q, part, pred->m);
	if (counts(q, part))
		score(p, q, pred->m, pred->position, r, pred->expert, used_of(p, s, pred->m, row), true);
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
	od_candidates_set(&r->predicted, pred);
	if (pred->stand_in)
		r->predicted.has_logit = false; /* its noise differs from the shadow's: no learning and no hedges from it */
	od_want_decide(p->policy, pred->m, &r->predicted, w);
	return !same_wants(&old, w);
}

/* Adds a prediction for a row of a step that has begun. */
static bool add_to_row(struct odm_predictions *p, struct step_slot *s, struct sequence *q, struct part *part,
		       const struct od_prediction *pred)
{
	const uint32_t row = part->first_row + (pred->position - part->begin);
	struct entry *e = entry_of(p, s, pred->m);
	struct row_prediction *r = row_of(p, s, pred->m, s->row[row].place);

	if (!assumes(&s->row[row], pred->token))
		return false;
	if (!pred->stand_in && part->serial == p->serial && q->heard < q->steps)
		q->heard = q->steps;
	if (e->resolved)
		add_late(p, s, q, part, row, r, pred);
	if (e->resolved || part->serial != p->serial)
		return false;
	if (!pred->stand_in)
		note_kept(s, q, part, pred->m);
	if (!add_in_time(p, r, wanted_of(p, s, pred->m, s->row[row].place), pred))
		return false;
	set_dirty(p, e, true);
	return true;
}

/* Adds a prediction for the next step. */
static bool add_ahead(struct odm_predictions *p, struct sequence *q, uint32_t number, const struct od_prediction *pred)
{
	struct step_slot *s = slot_at(p, p->serial + 1);
	struct part *part = &q->part[number_of(p, s)];

	if (s->step == 0)
		return false;
	if (part->serial != p->serial + 1)
		*part = (struct part){ .serial = p->serial + 1, .ahead = true, .begin = pred->position, .n = 1 };
	if (!pred->stand_in) {
		q->heard = q->steps + 1;
		note_kept(s, q, part, pred->m);
	}
	if (!add_in_time(p, row_of(p, s, pred->m, number), wanted_of(p, s, pred->m, number), pred))
		return false;
	set_dirty(p, entry_of(p, s, pred->m), true);
	return true;
}

static bool add_locked(struct odm_predictions *p, const struct od_prediction *pred)
{
	struct sequence *q = find_sequence(p, pred->sequence);

	if (q == NULL || q->closed != 0)
		return false;
	for (uint64_t back = 0; back < KEPT - 1 && back < p->serial; back++) {
		struct step_slot *s = slot_at(p, p->serial - back);
		struct part *part = &q->part[number_of(p, s)];

		if (part->serial != p->serial - back)
			continue;
		if (pred->position >= part->begin && pred->position - part->begin < part->n)
			return add_to_row(p, s, q, part, pred);
		if (back == 0 && pred->position - part->begin == part->n)
			return add_ahead(p, q, (uint32_t)(q - p->sequence), pred);
	}
	return false;
}

bool odm_predictions_add(struct odm_predictions *p, const struct od_prediction *pred)
{
	bool want;

	pthread_mutex_lock(&p->lock);
	want = add_locked(p, pred);
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

/* Voids the sequence's predictions ahead for the step in s. True: the wanted experts have changed. */
static bool void_ahead(struct odm_predictions *p, const struct step_slot *s, struct sequence *q, uint64_t *why)
{
	struct part *part = &q->part[number_of(p, s)];
	const uint32_t place = (uint32_t)(q - p->sequence);
	bool any = false;

	for (uint32_t m = 0; part->ahead && m < p->o.n_moe; m++) {
		struct row_prediction *r = row_of(p, s, m, place);

		if (r->predicted.n == 0)
			continue;
		++*why;
		void_row(p, r, wanted_of(p, s, m, place));
		set_dirty(p, entry_of(p, s, m), true);
		any = true;
	}
	*part = (struct part){ 0 };
	return any;
}

bool odm_predictions_close(struct odm_predictions *p, uint64_t sequence)
{
	struct sequence *q;
	bool want = false;

	pthread_mutex_lock(&p->lock);
	q = find_sequence(p, sequence);
	if (q != NULL && q->closed == 0) {
		const struct step_slot *next = slot_at(p, p->serial + 1);

		if (q->part[number_of(p, next)].serial == p->serial + 1)
			want = void_ahead(p, next, q, &p->voided.ended);
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

/* Keeps those predictions made ahead for the row that assumed its token. */
static void keep_fitting(struct odm_predictions *p, const struct step_slot *s, const struct step_row *row, struct part *part)
{
	bool any = false;

	part->newest_m = 0;
	for (uint32_t m = 0; m < p->o.n_moe; m++) {
		struct row_prediction *r = row_of(p, s, m, row->place);

		if (r->predicted.n > 0 && !assumes(row, r->token)) {
			p->voided.token++;
			void_row(p, r, wanted_of(p, s, m, row->place));
		}
		if (r->predicted.n == 0)
			continue;
		part->newest_m = m;
		any = true;
	}
	if (!any)
		part->first_ns = 0;
}

/* Rows [first, first + n) of the step belong to one sequence. *extra: the next free place that is not a sequence's own. */
static void begin_sequence(struct odm_predictions *p, struct step_slot *s, uint32_t first, uint32_t n, uint32_t *extra)
{
	struct step_row *row = &s->row[first];
	struct sequence *q = row->number != OD_NO_NUMBER ? &p->sequence[row->number] : NULL;
	struct part *part = q != NULL ? &q->part[number_of(p, s)] : NULL;
	uint32_t own = 0; /* index of the row that gets the sequence's own place */

	if (q != NULL && part->serial == p->serial) { /* there are predictions ahead */
		own = part->begin - row->position;
		if (own >= n) {
			void_ahead(p, s, q, &p->voided.position);
			own = 0;
		}
	} else if (q != NULL) {
		*part = (struct part){ 0 };
	}
	for (uint32_t i = 0; i < n; i++)
		row[i].place = i == own && q != NULL ? row->number : (*extra)++;
	if (q == NULL)
		return;
	if (part->ahead)
		keep_fitting(p, s, &row[own], part);
	*part = (struct part){ .serial = p->serial, .begin = row->position, .n = n, .first_row = first,
			       .first_ns = part->first_ns, .newest_m = part->newest_m };
	q->steps++;
	note_first(s, q, part);
}

/* The sequences of the previous step that have no row in this one. */
static void void_absent(struct odm_predictions *p, const struct step_slot *before, const struct step_slot *s)
{
	for (uint32_t i = 0; i < before->n_rows; i++) {
		struct sequence *q = sequence_of(p, &before->row[i]);

		if (q != NULL && q->part[number_of(p, s)].serial == p->serial && q->part[number_of(p, s)].ahead)
			void_ahead(p, s, q, &p->voided.position);
	}
}

static void begin_decode(struct odm_predictions *p, uint64_t step, uint64_t next_step, const struct odm_predicted_row *row,
			 size_t n_rows)
{
	struct step_slot *before = slot_at(p, p->serial), *s = slot_at(p, ++p->serial);
	uint32_t extra = p->o.max_sequences;

	if (s->step != step)
		renumber(p, s, step);
	s->begun = true;
	s->begun_ns = od_now_ns();
	s->n_rows = (uint32_t)(n_rows < p->o.max_rows ? n_rows : p->o.max_rows);
	for (uint32_t i = 0, n; i < s->n_rows; i += n) {
		const uint32_t number = open_sequence(p, &row[i]);

		for (n = 0; i + n < s->n_rows && row[i + n].sequence == row[i].sequence; n++)
			s->row[i + n] = (struct step_row){ .sequence = row[i].sequence, .position = row[i + n].position,
							   .number = number, .token = row[i + n].token };
		begin_sequence(p, s, i, n, &extra);
	}
	void_absent(p, before, s);
	for (uint32_t m = 0; m < p->o.n_moe; m++) /* of an aborted step */
		set_dirty(p, entry_of(p, before, m), false);
	clear_slot(p, slot_at(p, p->serial + 1), next_step);
}

void odm_predictions_begin(struct odm_predictions *p, uint64_t step, uint64_t next_step, const struct odm_predicted_row *row,
			   size_t n_rows, bool scored)
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

static void learn_row(struct odm_predictions *p, const struct step_slot *s, uint32_t m, uint32_t i, const float *probability)
{
	const struct step_row *row = &s->row[i];
	struct row_prediction *r = row_of(p, s, m, row->place);
	struct od_wanted *w = wanted_of(p, s, m, row->place);
	struct sequence *q = sequence_of(p, row);
	const struct part *part = q != NULL ? &q->part[number_of(p, s)] : NULL;

	if (q != NULL && counts(q, part)) {
		od_recall_see(&q->tally.recall, m);
		if (r->predicted.n > 0)
			score(p, q, m, row->position, r, w->expert, used_of(p, s, m, i), false);
		if (r->predicted.n > 0 && !r->stand_in && i == part->first_row) {
			q->tally.lead_sum += part->newest_m - m;
			q->tally.lead_routers++;
		}
	}
	od_want_learn(p->policy, m, &r->predicted, probability != NULL ? probability + (size_t)i * p->o.n_experts : NULL, w);
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

/* ---- Figures ---- */

void odm_predictions_take(struct odm_predictions *p, uint64_t sequence, uint64_t *c, struct odm_spread *first_ns,
			  struct od_recall *r)
{
	struct sequence *q;

	*first_ns = (struct odm_spread){ 0 };
	pthread_mutex_lock(&p->lock);
	q = find_sequence(p, sequence);
	if (q != NULL) {
		odm_tally_add(&q->tally, c, first_ns, r);
		odm_tally_reset(&q->tally);
		q->counted_from = p->serial + 1; /* late predictions of earlier steps are not counted */
		if (q->closed != 0)
			forget_sequence(p, q);
	}
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

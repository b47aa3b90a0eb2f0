#include "main-node/cluster/predictions.h"

#include "common/base/clock.h"
#include "common/base/id_table.h"
#include "main-node/cluster/placement.h"
#include "main-node/cluster/predict_tally.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define KEPT 3	    /* decode steps: the previous (for late predictions), the current, the next */
#define PROMPT KEPT /* slot of the prefill step */
#define SLOTS (KEPT + 1)
#define SILENT_STEPS 2 /* decode steps without a prediction from the shadow */

/* Prediction of a row at a layer; all zero when void. The experts that it wants are in `wanted` (struct od_wanted). */
struct row_prediction {
	struct od_candidates predicted; /* received before the router chose */
	bool stand_in; /* main's own prediction: the shadow has sent none */
	bool late;     /* the only prediction arrived after the router chose */
	int32_t token; /* assumed by the prediction */
};

/* Flags of an expert at a (step, m), from the WANTs sent before the router chose. */
enum {
	WAS_WANTED = 1,	 /* from any worker in any version */
	IS_HEDGE = 2,	 /* the newest version wants it as a hedge */
	WAS_ORDERED = 4, /* the newest version wants it */
};

/* One (step, m). */
struct entry {
	uint32_t version;
	bool dirty;    /* WANTs to be sent */
	bool resolved; /* the router has chosen */
	bool learnt;   /* odm_predictions_learn is done */
	uint32_t n_required; /* prefill: experts known for certain */
	uint32_t n_sent;     /* of the version that was placed last */
	uint64_t epoch;	     /* of the version that was placed last */
};

struct step_row {
	uint64_t sequence;
	uint32_t position, number; /* the sequence's */
	uint32_t place;		   /* index into `row` and `wanted` */
	int32_t token;
};

struct step_slot {
	uint64_t step; /* 0: unused */
	bool begun;
	uint32_t n_rows;
	struct step_row *row; /* [max_rows] */
	uint64_t begun_ns;
};

/* A sequence's part of a decode step: its rows at positions [begin, begin + n), or the one row that is predicted ahead. */
struct part {
	uint64_t serial; /* of the decode step; the part is valid for that step only */
	bool ahead;	 /* the step has not begun */
	uint32_t begin, n, first_row;
	uint64_t first_ns; /* arrival of the first prediction that was kept; 0: none yet */
	bool first_known;  /* the step has begun and first_ns is counted */
	uint32_t newest_m; /* highest layer of the kept predictions */
};

struct sequence {
	uint64_t id; /* 0: none */
	uint32_t prompt_tokens;
	uint64_t closed;	/* serial number of its closing; 0: open */
	uint64_t steps, heard;	/* decode steps begun: now, and at the shadow's last prediction */
	uint64_t counted_from;	/* serial of the first step that counts */
	struct part part[KEPT]; /* by slot */
	struct odm_tally tally;
};

struct odm_predictions {
	struct odm_predictions_opts o;
	pthread_mutex_t lock;
	struct step_slot slot[SLOTS];
	uint64_t serial; /* of the current decode step; it has slot serial % KEPT, the next step the slot after that */
	struct od_id_table ids;
	struct sequence *sequence;   /* [max_sequences], by number */
	uint64_t last_closed;
	/* The row predicted ahead, or else the sequence's first row, has place = the sequence's number; other rows have places
	 * from max_sequences on. So no prediction moves when a step begins. */
	size_t n_places;
	struct step_row *step_row;  /* [KEPT][max_rows] */
	struct entry *entry;	    /* [SLOTS][n_moe] */
	struct row_prediction *row; /* [KEPT][n_moe][n_places] */
	struct od_wanted *wanted;   /* the same */
	uint16_t *used;		    /* [KEPT][n_moe][max_rows][top_k] */
	uint32_t *where;	    /* [SLOTS][n_moe][n_experts] */
	uint16_t *sent;		    /* the same: by rank, of the version that was placed last */
	uint8_t *mark;		    /* the same: WAS_WANTED, ... */
	uint16_t *required;	    /* [n_moe][n_experts]: of the prefill step */
	struct od_want_policy *policy;
	struct odm_voided voided;
	uint32_t n_dirty;
	/* Scratch. */
	uint32_t *place;   /* [max_rows] */
	uint32_t *stamp;   /* [n_experts]: the last round in which it was seen */
	uint32_t round;
};

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

/* ---- Layout ---- */

static struct step_slot *slot_at(struct odm_predictions *p, uint64_t serial)
{
	return &p->slot[serial % KEPT];
}

static size_t number_of(const struct odm_predictions *p, const struct step_slot *s)
{
	return (size_t)(s - p->slot);
}

static size_t entry_index(const struct odm_predictions *p, const struct step_slot *s, uint32_t m)
{
	return number_of(p, s) * p->o.n_moe + m;
}

static struct entry *entry_of(struct odm_predictions *p, const struct step_slot *s, uint32_t m)
{
	return &p->entry[entry_index(p, s, m)];
}

static struct row_prediction *row_of(struct odm_predictions *p, const struct step_slot *s, uint32_t m, uint32_t place)
{
	return &p->row[entry_index(p, s, m) * p->n_places + place];
}

static struct od_wanted *wanted_of(struct odm_predictions *p, const struct step_slot *s, uint32_t m, uint32_t place)
{
	return &p->wanted[entry_index(p, s, m) * p->n_places + place];
}

static uint16_t *used_of(struct odm_predictions *p, const struct step_slot *s, uint32_t m, uint32_t row)
{
	return p->used + (entry_index(p, s, m) * p->o.max_rows + row) * p->o.top_k;
}

static uint32_t *where_of(struct odm_predictions *p, const struct step_slot *s, uint32_t m)
{
	return p->where + entry_index(p, s, m) * p->o.n_experts;
}

static uint16_t *sent_of(struct odm_predictions *p, const struct step_slot *s, uint32_t m)
{
	return p->sent + entry_index(p, s, m) * p->o.n_experts;
}

static uint8_t *mark_of(struct odm_predictions *p, const struct step_slot *s, uint32_t m)
{
	return p->mark + entry_index(p, s, m) * p->o.n_experts;
}

/* The slot of the step, if the table still holds it. */
static struct step_slot *find(struct odm_predictions *p, uint64_t step)
{
	for (size_t i = 0; step != 0 && i < SLOTS; i++)
		if (p->slot[i].step == step)
			return &p->slot[i];
	return NULL;
}

/* The sequence of a row; NULL: it has ended and was removed. */
static struct sequence *sequence_of(struct odm_predictions *p, const struct step_row *r)
{
	struct sequence *q = r->number != OD_NO_NUMBER ? &p->sequence[r->number] : NULL;

	return q != NULL && q->id == r->sequence ? q : NULL;
}

static struct sequence *find_sequence(struct odm_predictions *p, uint64_t id)
{
	const uint32_t number = id != 0 ? od_id_table_find(&p->ids, id) : OD_NO_NUMBER;

	return number != OD_NO_NUMBER ? &p->sequence[number] : NULL;
}

static void set_dirty(struct odm_predictions *p, struct entry *e, bool dirty)
{
	if (e->dirty != dirty)
		p->n_dirty += dirty ? 1 : (uint32_t)-1;
	e->dirty = dirty;
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

static void require_locked(struct odm_predictions *p, uint64_t step, uint32_t m, const uint16_t *expert, size_t n)
{
	struct step_slot *s = &p->slot[PROMPT];
	uint16_t *required;

	if (s->step != step || m >= p->o.n_moe || n > p->o.n_experts)
		return;
	required = p->required + (size_t)m * p->o.n_experts;
	for (size_t i = 0; i < n; i++)
		required[i] = expert != NULL ? expert[i] : (uint16_t)i;
	entry_of(p, s, m)->n_required = (uint32_t)n;
	set_dirty(p, entry_of(p, s, m), n > 0);
}

void odm_predictions_require(struct odm_predictions *p, uint64_t step, uint32_t m, const uint16_t *expert, size_t n)
{
	pthread_mutex_lock(&p->lock);
	require_locked(p, step, m, expert, n);
	pthread_mutex_unlock(&p->lock);
}

void odm_predictions_require_all(struct odm_predictions *p, uint64_t step, uint32_t m)
{
	pthread_mutex_lock(&p->lock);
	require_locked(p, step, m, NULL, p->o.n_experts);
	pthread_mutex_unlock(&p->lock);
}

/* ---- WANTs ---- */

static void begin_round(struct odm_predictions *p)
{
	if (++p->round == 0) { /* once in 2^32 rounds */
		memset(p->stamp, 0, p->o.n_experts * sizeof(*p->stamp));
		p->round = 1;
	}
}

static void put(struct odm_predictions *p, struct odm_want *w, uint16_t expert)
{
	if (p->stamp[expert] == p->round)
		return;
	p->stamp[expert] = p->round;
	w->expert[w->n++] = expert;
}

/* Writes the places of the step's rows to p->place. For the next step: in the order of the sequences in the current one. */
static uint32_t list_places(struct odm_predictions *p, const struct step_slot *s)
{
	const struct step_slot *from = s->begun ? s : slot_at(p, p->serial);
	uint32_t n = 0;

	for (uint32_t i = 0; i < from->n_rows; i++) {
		const struct step_row *row = &from->row[i];
		const struct sequence *q;

		if (s->begun) {
			p->place[n++] = row->place;
			continue;
		}
		q = i == 0 || row->sequence != row[-1].sequence ? sequence_of(p, row) : NULL;
		if (q != NULL && q->part[number_of(p, s)].serial == p->serial + 1)
			p->place[n++] = row->number;
	}
	return n;
}

/* Experts of all rows by rank, each once: the first choices of all rows, then the second ones, and so on; hedges last. */
static void collect(struct odm_predictions *p, const struct step_slot *s, struct odm_want *w)
{
	const struct od_wanted *all = wanted_of(p, s, w->m, 0);
	const uint32_t n = list_places(p, s);

	begin_round(p);
	for (size_t rank = 0; rank < p->o.top_k; rank++)
		for (uint32_t i = 0; i < n && w->n < p->o.n_experts; i++)
			if (rank < all[p->place[i]].n_predicted)
				put(p, w, all[p->place[i]].expert[rank]);
	w->n_predicted = w->n;
	for (size_t rank = 0; rank < OD_MAX_HEDGES; rank++)
		for (uint32_t i = 0; i < n && w->n < p->o.n_experts; i++) {
			const struct od_wanted *x = &all[p->place[i]];

			if (x->n_predicted + rank < x->n)
				put(p, w, x->expert[x->n_predicted + rank]);
		}
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
	if (w->prompt) {
		w->n_predicted = w->n = e->n_required;
		memcpy(w->expert, p->required + (size_t)w->m * p->o.n_experts, w->n * sizeof(*w->expert));
	} else {
		collect(p, s, w);
	}
	for (size_t i = 0; i < w->n; i++)
		w->worker[i] = where[w->expert[i]];
	w->n_before = e->n_sent;
	w->epoch = e->epoch;
	memcpy(w->expert_before, sent_of(p, s, w->m), w->n_before * sizeof(*w->expert_before));
	for (size_t i = 0; i < w->n_before; i++)
		w->worker_before[i] = where[w->expert_before[i]];
}

bool odm_predictions_take_want(struct odm_predictions *p, struct odm_want *w)
{
	struct step_slot *s;
	bool have = false;

	*w = (struct odm_want){ .expert = w->expert, .worker = w->worker, .expert_before = w->expert_before,
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

/* Counts the used and wasted WANTs of the layer. */
static void settle(struct odm_predictions *p, const struct step_slot *s, uint32_t m, uint64_t *c)
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
		settle(p, s, m, c);
		for (uint32_t i = 0; i < s->n_rows; i++)
			learn_row(p, s, m, i, probability);
	}
	pthread_mutex_unlock(&p->lock);
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

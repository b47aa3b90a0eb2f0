#include "main-node/cluster/predictions.h"

#include "common/base/clock.h"
#include "main-node/cluster/placement.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MAX_AHEAD 2 /* steps that a predictor can know of: STEP names the next one */
#define SILENT_STEPS 2 /* without a word of the shadow */

struct row_prediction {
	struct od_candidates predicted; /* before the router spoke */
	struct od_wanted wanted;
	bool stand_in; /* it is main's own: the shadow has said nothing */
	bool late;     /* the only prediction came after the router */
	int32_t token; /* that it assumes */
	uint16_t used[OD_MAX_TOP_K];
};

/* Of an expert of a (step, m), as of the WANTs that went out before its router spoke. */
enum {
	WAS_WANTED = 1,	 /* of any worker in any version */
	IS_HEDGE = 2,	 /* the newest version wants it as a hedge */
	WAS_ORDERED = 4, /* the newest version wants it */
};

/* One (step, m). */
struct entry {
	uint32_t version;
	bool dirty;    /* WANTs to be sent */
	bool resolved; /* the router has spoken */
	bool learnt;   /* and is counted and learnt from */
	uint32_t n_required; /* prefill: experts known for certain */
};

struct step_slot {
	uint64_t step; /* 0: unused */
	bool begun, scored;
	uint32_t n_rows, token_index;
	int32_t *token; /* [max_rows] */
	uint64_t begun_ns, first_ns; /* of its first prediction that was kept; 0: not yet */
	bool first_known;	     /* both are there, and counted */
	uint32_t newest_m;	     /* of the kept ones, the greatest layer */
};

struct odm_predictions {
	struct odm_predictions_opts o;
	pthread_mutex_t lock;
	struct step_slot slot[ODM_STEPS_KEPT];
	int32_t *tokens;	     /* [ODM_STEPS_KEPT][max_rows] */
	struct entry *entry;	     /* [ODM_STEPS_KEPT][n_moe] */
	struct row_prediction *row;  /* [ODM_STEPS_KEPT][n_moe][max_rows] */
	uint32_t *where;	     /* [ODM_STEPS_KEPT][n_moe][n_experts] */
	uint16_t *required;	     /* [ODM_STEPS_KEPT][n_moe][n_experts] */
	uint8_t *mark;		     /* the same: WAS_WANTED, ... */
	struct od_want_policy *policy;
	struct od_recall recall;
	int64_t *first; /* [max_tokens]: ns from a step's begin to its first prediction; of OD_C_FIRST_PREDICTIONS */
	struct od_recall_cell stood_in;
	uint64_t c[OD_N_COUNTERS];
	uint32_t n_dirty;
	uint64_t newest; /* step that main has begun */
	uint64_t heard;	 /* newest step that the shadow has spoken of, or that none was expected for */
};

int odm_predictions_new(struct odm_predictions **out, const struct odm_predictions_opts *opts, struct od_err *err)
{
	struct odm_predictions *p = calloc(1, sizeof(*p));
	size_t entries = (size_t)ODM_STEPS_KEPT * opts->n_moe;

	*out = NULL;
	if (p == NULL)
		return od_fail(err, OD_ERR_NOMEM, "predictions");
	p->o = *opts;
	pthread_mutex_init(&p->lock, NULL);
	p->tokens = calloc((size_t)ODM_STEPS_KEPT * opts->max_rows, sizeof(*p->tokens));
	p->entry = calloc(entries, sizeof(*p->entry));
	p->row = calloc(entries * opts->max_rows, sizeof(*p->row));
	p->where = calloc(entries * opts->n_experts, sizeof(*p->where));
	p->required = calloc(entries * opts->n_experts, sizeof(*p->required));
	p->mark = calloc(entries * opts->n_experts, sizeof(*p->mark));
	p->first = calloc(opts->max_tokens, sizeof(*p->first));
	if (p->tokens == NULL || p->entry == NULL || p->row == NULL || p->where == NULL || p->required == NULL ||
	    p->mark == NULL || p->first == NULL ||
	    od_recall_init(&p->recall, opts->n_moe, opts->max_tokens, err) != OD_OK ||
	    od_want_policy_new(&p->policy, opts->hedge, opts->n_moe, opts->top_k, err) != OD_OK) {
		odm_predictions_free(p);
		return od_fail(err, OD_ERR_NOMEM, "predictions of %u layers", opts->n_moe);
	}
	for (size_t i = 0; i < ODM_STEPS_KEPT; i++)
		p->slot[i].token = p->tokens + i * opts->max_rows;
	*out = p;
	return OD_OK;
}

void odm_predictions_free(struct odm_predictions *p)
{
	if (p == NULL)
		return;
	od_recall_fini(&p->recall);
	od_want_policy_free(p->policy);
	pthread_mutex_destroy(&p->lock);
	free(p->tokens);
	free(p->entry);
	free(p->row);
	free(p->where);
	free(p->required);
	free(p->first);
	free(p->mark);
	free(p);
}

static size_t entry_index(const struct odm_predictions *p, uint64_t step, uint32_t m)
{
	return (size_t)(step % ODM_STEPS_KEPT) * p->o.n_moe + m;
}

static struct row_prediction *rows_of(struct odm_predictions *p, uint64_t step, uint32_t m)
{
	return p->row + entry_index(p, step, m) * p->o.max_rows;
}

static uint32_t *where_of(struct odm_predictions *p, uint64_t step, uint32_t m)
{
	return p->where + entry_index(p, step, m) * p->o.n_experts;
}

static uint16_t *required_of(struct odm_predictions *p, uint64_t step, uint32_t m)
{
	return p->required + entry_index(p, step, m) * p->o.n_experts;
}

static uint8_t *mark_of(struct odm_predictions *p, uint64_t step, uint32_t m)
{
	return p->mark + entry_index(p, step, m) * p->o.n_experts;
}

static void set_dirty(struct odm_predictions *p, struct entry *e, bool dirty)
{
	if (e->dirty != dirty)
		p->n_dirty += dirty ? 1 : (uint32_t)-1;
	e->dirty = dirty;
}

/* What was said of it is about something else. */
static void void_row(struct odm_predictions *p, struct row_prediction *r)
{
	od_want_give_up(p->policy, &r->wanted);
	r->predicted.n = 0;
	r->stand_in = r->late = false;
}

/* The step's slot, taking over an older step's. NULL when the table already holds a newer one there: one that main has
 * begun, or that a predictor speaks of, which main's own step (begins) does not give way to. */
static struct step_slot *claim(struct odm_predictions *p, uint64_t step, bool begins)
{
	struct step_slot *s = &p->slot[step % ODM_STEPS_KEPT];

	if (s->step == step)
		return s;
	if (s->step > step && !(begins && !s->begun))
		return NULL;
	s->step = step;
	s->begun = s->scored = false;
	s->n_rows = 0;
	s->first_ns = 0;
	s->first_known = false;
	s->newest_m = 0;
	for (uint32_t m = 0; m < p->o.n_moe; m++) {
		struct entry *e = &p->entry[entry_index(p, step, m)];

		set_dirty(p, e, false);
		*e = (struct entry){ 0 };
		for (uint32_t i = 0; i < p->o.max_rows; i++)
			void_row(p, &rows_of(p, step, m)[i]);
		memset(where_of(p, step, m), 0xff, p->o.n_experts * sizeof(*p->where)); /* ODM_NOBODY */
		memset(mark_of(p, step, m), 0, p->o.n_experts * sizeof(*p->mark));
	}
	return s;
}

/* The slot if the table still holds this step. */
static struct step_slot *find(struct odm_predictions *p, uint64_t step)
{
	struct step_slot *s = &p->slot[step % ODM_STEPS_KEPT];

	return s->step == step && step != 0 ? s : NULL;
}

/* Prediction and truth of a row are both there. */
static void score(struct odm_predictions *p, const struct step_slot *s, uint32_t m, const struct row_prediction *r,
		  const uint16_t *predicted, bool late)
{
	if (!s->scored)
		return;
	if (r->stand_in && !late)
		od_recall_add_cell(&p->stood_in, predicted, p->o.top_k, r->used, p->o.top_k);
	else
		od_recall_add(&p->recall, m, s->token_index, predicted, p->o.top_k, r->used, p->o.top_k, late);
}

/* A token that is left to the predictor is right whatever it is. */
static bool assumes(const struct step_slot *s, uint32_t row, int32_t token)
{
	return s->token[row] < 0 || s->token[row] == token;
}

/* One of the step's predictions is there, and so is the step. */
static void note_first(struct odm_predictions *p, struct step_slot *s)
{
	if (s->first_known || !s->begun || !s->scored || s->first_ns == 0)
		return;
	s->first_known = true;
	if (p->c[OD_C_FIRST_PREDICTIONS] < p->o.max_tokens)
		p->first[p->c[OD_C_FIRST_PREDICTIONS]++] = (int64_t)(s->first_ns - s->begun_ns);
}

static void note_kept(struct odm_predictions *p, struct step_slot *s, uint32_t m)
{
	if (s->first_ns == 0)
		s->first_ns = od_now_ns();
	if (m > s->newest_m)
		s->newest_m = m;
	note_first(p, s);
}

static bool same_wants(const struct od_wanted *a, const struct od_wanted *b)
{
	return a->n == b->n && a->n_predicted == b->n_predicted &&
	       memcmp(a->expert, b->expert, a->n * sizeof(*a->expert)) == 0;
}

/* After the router: it is counted, once, if there was none before. */
static void add_late(struct odm_predictions *p, struct step_slot *s, struct row_prediction *r,
		     const struct od_prediction *pred)
{
	if (pred->stand_in || r->late || (r->predicted.n > 0 && !r->stand_in))
		return;
	r->late = true;
	note_kept(p, s, pred->m);
	score(p, s, pred->m, r, pred->expert, true);
}

/* True when something else is to be wanted than before. */
static bool add_in_time(struct odm_predictions *p, struct row_prediction *r, const struct od_prediction *pred)
{
	const struct od_wanted old = r->wanted;

	if (pred->stand_in && r->predicted.n > 0 && !r->stand_in)
		return false;
	if (r->token != pred->token || r->stand_in != pred->stand_in)
		void_row(p, r);
	r->token = pred->token;
	r->stand_in = pred->stand_in;
	od_candidates_set(&r->predicted, pred);
	if (pred->stand_in)
		r->predicted.has_logit = false; /* its noise is another than the shadow's: it is neither learnt nor hedged */
	od_want_decide(p->policy, pred->m, &r->predicted, &r->wanted);
	return !same_wants(&old, &r->wanted);
}

static bool add_locked(struct odm_predictions *p, const struct od_prediction *pred)
{
	struct row_prediction *r;
	struct step_slot *s;
	struct entry *e;

	if (pred->step == 0 || pred->row >= p->o.max_rows)
		return false;
	if (p->newest > 0 && pred->step > p->newest + MAX_AHEAD)
		return false; /* it would keep the slot from the steps before it */
	s = claim(p, pred->step, false);
	if (s == NULL || (s->begun && (pred->row >= s->n_rows || !assumes(s, pred->row, pred->token))))
		return false;
	if (!pred->stand_in && pred->step > p->heard)
		p->heard = pred->step;
	e = &p->entry[entry_index(p, pred->step, pred->m)];
	r = &rows_of(p, pred->step, pred->m)[pred->row];
	if (e->resolved) {
		add_late(p, s, r, pred);
		return false;
	}
	if (!pred->stand_in)
		note_kept(p, s, pred->m);
	if (!add_in_time(p, r, pred))
		return false;
	set_dirty(p, e, true);
	return true;
}

bool odm_predictions_add(struct odm_predictions *p, const struct od_prediction *pred)
{
	bool want;

	pthread_mutex_lock(&p->lock);
	want = add_locked(p, pred);
	pthread_mutex_unlock(&p->lock);
	return want;
}

bool odm_predictions_shadow_silent(struct odm_predictions *p, uint64_t step)
{
	bool silent;

	pthread_mutex_lock(&p->lock);
	silent = step > p->heard + SILENT_STEPS;
	pthread_mutex_unlock(&p->lock);
	return silent;
}

/* Of what was predicted before the step began, what assumed its tokens. */
static void keep_fitting(struct odm_predictions *p, struct step_slot *s)
{
	bool any = false;

	s->newest_m = 0;
	for (uint32_t m = 0; m < p->o.n_moe; m++) {
		struct row_prediction *r = rows_of(p, s->step, m);

		for (uint32_t i = 0; i < p->o.max_rows; i++) {
			if (r[i].predicted.n > 0 && (i >= s->n_rows || !assumes(s, i, r[i].token)))
				void_row(p, &r[i]);
			if (r[i].predicted.n == 0)
				continue;
			s->newest_m = m;
			any = true;
		}
	}
	if (!any)
		s->first_ns = 0;
	note_first(p, s);
}

void odm_predictions_begin(struct odm_predictions *p, uint64_t step, const int32_t *token, size_t n_rows,
			   uint32_t token_index, bool scored)
{
	struct step_slot *s;

	pthread_mutex_lock(&p->lock);
	s = claim(p, step, true);
	if (step > p->newest)
		p->newest = step;
	if (s != NULL) {
		s->begun = true;
		s->scored = scored;
		s->token_index = token_index;
		s->n_rows = (uint32_t)(n_rows < p->o.max_rows ? n_rows : p->o.max_rows);
		if (s->n_rows > 0)
			memcpy(s->token, token, s->n_rows * sizeof(*token));
		s->begun_ns = od_now_ns();
		keep_fitting(p, s);
	}
	if (!scored && step > p->heard) /* a prompt's */
		p->heard = step;
	pthread_mutex_unlock(&p->lock);
}

static void require_locked(struct odm_predictions *p, uint64_t step, uint32_t m, const uint16_t *expert, size_t n)
{
	struct entry *e;
	uint16_t *required;

	if (claim(p, step, true) == NULL || m >= p->o.n_moe || n > p->o.n_experts)
		return;
	e = &p->entry[entry_index(p, step, m)];
	required = required_of(p, step, m);
	for (size_t i = 0; i < n; i++)
		required[i] = expert != NULL ? expert[i] : (uint16_t)i;
	e->n_required = (uint32_t)n;
	set_dirty(p, e, n > 0);
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

static void put(struct odm_want *w, uint16_t expert)
{
	for (size_t i = 0; i < w->n; i++) {
		if (w->expert[i] == expert)
			return;
	}
	w->expert[w->n++] = expert;
}

/* Experts of all rows by rank, each once: the first choice of every row before the second of any, hedges last. */
static void collect(struct odm_predictions *p, const struct step_slot *s, struct odm_want *w)
{
	const struct row_prediction *r = rows_of(p, s->step, w->m);
	const struct entry *e = &p->entry[entry_index(p, s->step, w->m)];

	if (e->n_required > 0) {
		memcpy(w->expert, required_of(p, s->step, w->m), e->n_required * sizeof(*w->expert));
		w->n_predicted = w->n = e->n_required;
		return;
	}
	for (size_t rank = 0; rank < p->o.top_k; rank++) {
		for (uint32_t i = 0; i < p->o.max_rows; i++) {
			if (rank < r[i].wanted.n_predicted)
				put(w, r[i].wanted.expert[rank]);
		}
	}
	w->n_predicted = w->n;
	for (size_t rank = 0; rank < OD_MAX_HEDGES; rank++) {
		for (uint32_t i = 0; i < p->o.max_rows; i++) {
			if (r[i].wanted.n_predicted + rank < r[i].wanted.n)
				put(w, r[i].wanted.expert[r[i].wanted.n_predicted + rank]);
		}
	}
}

/* Oldest step first, then the lowest layer: what is needed first is sent first. */
static struct step_slot *oldest_dirty(struct odm_predictions *p, uint32_t *m)
{
	struct step_slot *best = NULL;

	*m = 0;
	for (size_t i = 0; p->n_dirty > 0 && i < ODM_STEPS_KEPT; i++) {
		struct step_slot *s = &p->slot[i];

		if (s->step == 0 || (best != NULL && best->step < s->step))
			continue;
		for (uint32_t l = 0; l < p->o.n_moe; l++) {
			if (p->entry[entry_index(p, s->step, l)].dirty) {
				best = s;
				*m = l;
				break;
			}
		}
	}
	return best;
}

bool odm_predictions_take_want(struct odm_predictions *p, struct odm_want *w)
{
	struct step_slot *s;

	*w = (struct odm_want){ .expert = w->expert, .worker = w->worker };
	pthread_mutex_lock(&p->lock);
	s = oldest_dirty(p, &w->m);
	if (s != NULL) {
		struct entry *e = &p->entry[entry_index(p, s->step, w->m)];
		const uint32_t *where = where_of(p, s->step, w->m);

		set_dirty(p, e, false);
		w->step = s->step;
		w->version = ++e->version;
		collect(p, s, w);
		for (size_t i = 0; i < w->n; i++)
			w->worker[i] = where[w->expert[i]];
	}
	pthread_mutex_unlock(&p->lock);
	return s != NULL;
}

/* Of a layer whose router has not spoken. */
static void mark_wanted(struct odm_predictions *p, const struct odm_want *w)
{
	uint8_t *mark = mark_of(p, w->step, w->m);

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
	bool in_time = false;

	pthread_mutex_lock(&p->lock);
	if (find(p, w->step) != NULL) {
		uint32_t *where = where_of(p, w->step, w->m);

		memset(where, 0xff, p->o.n_experts * sizeof(*where));
		for (size_t i = 0; i < w->n; i++)
			where[w->expert[i]] = w->worker[i];
		in_time = !p->entry[entry_index(p, w->step, w->m)].resolved;
		if (in_time)
			mark_wanted(p, w);
	}
	pthread_mutex_unlock(&p->lock);
	return in_time;
}

void odm_predictions_resolve(struct odm_predictions *p, uint64_t step, uint32_t m, const uint16_t *used)
{
	struct step_slot *s;
	struct entry *e;

	pthread_mutex_lock(&p->lock);
	s = find(p, step);
	e = &p->entry[entry_index(p, step, m)];
	if (s != NULL && !e->resolved) {
		e->resolved = true;
		set_dirty(p, e, false);
		for (uint32_t i = 0; i < s->n_rows; i++)
			memcpy(rows_of(p, step, m)[i].used, used + i * p->o.top_k, p->o.top_k * sizeof(*used));
	}
	pthread_mutex_unlock(&p->lock);
}

static bool is_used(const struct odm_predictions *p, const struct row_prediction *r, uint32_t n_rows, uint16_t expert)
{
	for (uint32_t i = 0; i < n_rows; i++) {
		for (uint32_t k = 0; k < p->o.top_k; k++) {
			if (r[i].used[k] == expert)
				return true;
		}
	}
	return false;
}

/* What became of the layer's WANTs. */
static void settle(struct odm_predictions *p, const struct step_slot *s, uint32_t m)
{
	const uint8_t *mark = mark_of(p, s->step, m);
	size_t wasted = 0;

	for (uint32_t e = 0; e < p->o.n_experts; e++) {
		const bool hedge = (mark[e] & IS_HEDGE) != 0;
		bool needed;

		if (mark[e] == 0)
			continue;
		needed = is_used(p, rows_of(p, s->step, m), s->n_rows, (uint16_t)e);
		wasted += !needed;
		p->c[OD_C_HEDGED] += hedge;
		p->c[OD_C_HEDGE_USES] += hedge && needed;
	}
	p->c[OD_C_WASTED_WANTS] += wasted;
	od_want_spent(p->policy, s->n_rows * p->o.top_k, wasted);
}

static void count_layer(struct odm_predictions *p, const struct step_slot *s, uint32_t m)
{
	const struct row_prediction *r = rows_of(p, s->step, m);

	if (r->predicted.n > 0 && !r->stand_in) {
		p->c[OD_C_LEAD_SUM] += s->newest_m - m;
		p->c[OD_C_LEAD_ROUTERS]++;
	}
	for (uint32_t i = 0; i < s->n_rows; i++) {
		od_recall_see(&p->recall, m);
		if (r[i].predicted.n > 0)
			score(p, s, m, &r[i], r[i].wanted.expert, false);
	}
}

void odm_predictions_learn(struct odm_predictions *p, uint64_t step, uint32_t m, const float *probability)
{
	struct step_slot *s;
	struct entry *e;

	pthread_mutex_lock(&p->lock);
	s = find(p, step);
	e = &p->entry[entry_index(p, step, m)];
	if (s != NULL && e->resolved && !e->learnt) {
		e->learnt = true;
		if (s->scored) {
			count_layer(p, s, m);
			settle(p, s, m);
		}
		for (uint32_t i = 0; i < s->n_rows; i++) {
			struct row_prediction *r = &rows_of(p, step, m)[i];

			od_want_learn(p->policy, m, &r->predicted,
				      s->scored && probability != NULL ? probability + i * p->o.n_experts : NULL, &r->wanted);
		}
	}
	pthread_mutex_unlock(&p->lock);
}

uint32_t odm_predictions_where(struct odm_predictions *p, uint64_t step, uint32_t m, uint16_t expert)
{
	uint32_t worker;

	pthread_mutex_lock(&p->lock);
	worker = find(p, step) != NULL ? where_of(p, step, m)[expert] : ODM_NOBODY;
	pthread_mutex_unlock(&p->lock);
	return worker;
}

uint32_t odm_predictions_ordered(struct odm_predictions *p, uint64_t step, uint32_t m, uint16_t expert)
{
	uint32_t worker = ODM_NOBODY;

	pthread_mutex_lock(&p->lock);
	if (find(p, step) != NULL && (mark_of(p, step, m)[expert] & WAS_ORDERED) != 0)
		worker = where_of(p, step, m)[expert];
	pthread_mutex_unlock(&p->lock);
	return worker;
}

static int by_value(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return x < y ? -1 : x > y;
}

static struct odm_spread spread_of(int64_t *x, size_t n)
{
	if (n == 0)
		return (struct odm_spread){ 0 };
	qsort(x, n, sizeof(*x), by_value);
	return (struct odm_spread){ x[0], x[n / 2], x[n - 1] };
}

void odm_predictions_take(struct odm_predictions *p, uint64_t *c, struct odm_spread *first_ns, struct od_recall *r)
{
	pthread_mutex_lock(&p->lock);
	p->c[OD_C_PREDICTED_USES] = p->recall.all.uses;
	p->c[OD_C_RECALLED_USES] = p->recall.all.recalled;
	p->c[OD_C_STOOD_IN_USES] = p->stood_in.uses;
	p->c[OD_C_STOOD_IN_RECALLED] = p->stood_in.recalled;
	p->c[OD_C_LATE_PREDICTIONS] = p->recall.rows.late;
	p->c[OD_C_MISSING_PREDICTIONS] = od_recall_missing(&p->recall.rows);
	od_counters_add(c, p->c);
	*first_ns = spread_of(p->first, p->c[OD_C_FIRST_PREDICTIONS]);
	if (r != NULL)
		od_recall_merge(r, &p->recall);
	od_recall_reset(&p->recall);
	p->stood_in = (struct od_recall_cell){ 0 };
	memset(p->c, 0, sizeof(p->c));
	/* What comes late for these steps belongs to nobody any more. */
	for (size_t i = 0; i < ODM_STEPS_KEPT; i++)
		p->slot[i].scored = false;
	pthread_mutex_unlock(&p->lock);
}

#include "main-node/step/timeline.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define SPANS_PER_LAYER 6 /* attention, send, wait; of two halves of the rows */
#define SPANS_PER_STEP 16 /* the head takes rows in turns */

struct odm_timeline {
	atomic_bool watched;
	pthread_mutex_t lock;
	/* Under the lock: */
	struct odm_timeline_step *unused;
	struct odm_timeline_step *first, **last; /* complete, oldest first */
	struct odm_timeline_step record[ODM_TIMELINE_STEPS];
};

int odm_timeline_new(struct odm_timeline **out, uint32_t n_layers, uint32_t n_moe, struct od_err *err)
{
	struct odm_timeline *t = calloc(1, sizeof(*t));

	*out = NULL;
	if (t == NULL)
		return od_fail(err, OD_ERR_NOMEM, "timeline");
	pthread_mutex_init(&t->lock, NULL);
	t->last = &t->first;
	for (size_t i = 0; i < ODM_TIMELINE_STEPS; i++) {
		struct odm_timeline_step *r = &t->record[i];

		r->most_spans = (size_t)n_layers * SPANS_PER_LAYER + SPANS_PER_STEP;
		r->most_predictions = n_moe;
		r->most_answers = (size_t)n_moe * ODM_TIMELINE_WORKERS;
		r->span = calloc(r->most_spans, sizeof(*r->span));
		r->prediction = calloc(r->most_predictions + 1, sizeof(*r->prediction));
		r->answer = calloc(r->most_answers + 1, sizeof(*r->answer));
		r->next = t->unused;
		t->unused = r;
		if (r->span == NULL || r->prediction == NULL || r->answer == NULL) {
			odm_timeline_free(t);
			return od_fail(err, OD_ERR_NOMEM, "timeline of %u layers", n_layers);
		}
	}
	*out = t;
	return OD_OK;
}

void odm_timeline_free(struct odm_timeline *t)
{
	if (t == NULL)
		return;
	for (size_t i = 0; i < ODM_TIMELINE_STEPS; i++) {
		free(t->record[i].span);
		free(t->record[i].prediction);
		free(t->record[i].answer);
	}
	pthread_mutex_destroy(&t->lock);
	free(t);
}

/* ---- The watcher ---- */

/* Under the lock. */
static struct odm_timeline_step *take_first(struct odm_timeline *t)
{
	struct odm_timeline_step *r = t->first;

	if (r == NULL)
		return NULL;
	t->first = r->next;
	if (t->first == NULL)
		t->last = &t->first;
	return r;
}

/* Under the lock. */
static void put_back(struct odm_timeline *t, struct odm_timeline_step *r)
{
	r->next = t->unused;
	t->unused = r;
}

void odm_timeline_watch(struct odm_timeline *t, bool on)
{
	struct odm_timeline_step *r;

	pthread_mutex_lock(&t->lock);
	while ((r = take_first(t)) != NULL)
		put_back(t, r);
	pthread_mutex_unlock(&t->lock);
	atomic_store(&t->watched, on);
}

struct odm_timeline_step *odm_timeline_take(struct odm_timeline *t)
{
	struct odm_timeline_step *r;

	pthread_mutex_lock(&t->lock);
	r = take_first(t);
	pthread_mutex_unlock(&t->lock);
	return r;
}

void odm_timeline_give(struct odm_timeline *t, struct odm_timeline_step *r)
{
	pthread_mutex_lock(&t->lock);
	put_back(t, r);
	pthread_mutex_unlock(&t->lock);
}

/* ---- The engine thread ---- */

struct odm_timeline_step *odm_timeline_begin(struct odm_timeline *t, const struct odm_step *step)
{
	struct odm_timeline_step *r;

	if (t == NULL || !atomic_load_explicit(&t->watched, memory_order_relaxed))
		return NULL;
	pthread_mutex_lock(&t->lock);
	r = t->unused;
	if (r != NULL)
		t->unused = r->next;
	pthread_mutex_unlock(&t->lock);
	if (r == NULL)
		return NULL;
	r->step = step->step;
	r->phase = step->phase;
	r->begin_ns = od_now_ns();
	r->n_rows = step->n_rows;
	r->n_texts = step->n_parts;
	r->drafted = step->phase == ODM_DECODE ? step->n_rows - step->n_parts : 0;
	r->n_spans = r->n_predictions = r->n_answers = 0;
	return r;
}

void odm_timeline_end(struct odm_timeline *t, struct odm_timeline_step *r, size_t accepted)
{
	r->end_ns = od_now_ns();
	r->accepted = accepted;
	r->next = NULL;
	pthread_mutex_lock(&t->lock);
	*t->last = r;
	t->last = &r->next;
	pthread_mutex_unlock(&t->lock);
}

void odm_timeline_drop(struct odm_timeline *t, struct odm_timeline_step *r)
{
	odm_timeline_give(t, r);
}

void odm_timeline_predicted(struct odm_timeline_step *r, const struct odm_timeline_prediction *p)
{
	if (r->n_predictions < r->most_predictions)
		r->prediction[r->n_predictions++] = *p;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* The answer of this worker in the layer that is under way, the last one. */
static struct odm_timeline_answer *find_answer(struct odm_timeline_step *r, uint32_t member, uint32_t m)
{
	for (size_t i = r->n_answers; i > 0 && r->answer[i - 1].m == m; i--)
		if (r->answer[i - 1].member == member)
			return &r->answer[i - 1];
	return NULL;
}

void odm_timeline_answered(struct odm_timeline_step *r, const struct odm_timeline_answer *a)
{
	struct odm_timeline_answer *known = find_answer(r, a->member, a->m);

	if (known == NULL && r->n_answers < r->most_answers) {
		r->answer[r->n_answers++] = *a;
	} else if (known != NULL) {
		known->sent_ns = a->sent_ns < known->sent_ns ? a->sent_ns : known->sent_ns;
		known->answered_ns = larger(known->answered_ns, a->answered_ns);
		known->load_ns = larger(known->load_ns, a->load_ns);
		known->wait_ns = larger(known->wait_ns, a->wait_ns);
		known->compute_ns += a->compute_ns;
		known->experts += a->experts;
		known->ready += a->ready;
	}
}

void odm_span_end(const struct odm_step *step, enum odm_span what, int64_t m, uint64_t begin_ns)
{
	static const char *const names[ODM_N_SPANS] = {
		[ODM_SPAN_ATTENTION] = "attention, router",
		[ODM_SPAN_SEND] = "send RUNs",
		[ODM_SPAN_WAIT] = "wait for experts",
		[ODM_SPAN_HEAD] = "head",
		[ODM_SPAN_EXPERTS] = "experts",
	};
	struct odm_timeline_step *r = step->record;

	od_trace_end(names[what], begin_ns, (int64_t)step->step, m, -1);
	if (r != NULL && r->n_spans < r->most_spans)
		r->span[r->n_spans++] =
			(struct odm_timeline_span){ .what = what, .m = m, .begin_ns = begin_ns, .end_ns = od_now_ns() };
}

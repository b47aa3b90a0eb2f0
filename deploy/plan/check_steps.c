#include "deploy/plan/check_steps.h"

#include "common/base/clock.h"
#include "deploy/plan/check_fit.h"

#include <stdlib.h>

#define MOST_TOKENS 128
#define FIRST_STEPS 3 /* Buffers are new, and workers load what the text uses. */

/* ---- What is left of a step ---- */

/* Experts that were ready were computed together. Else the last one was computed alone, after the longest wait. */
static double worker_ns(const struct odm_timeline_answer *a)
{
	const uint32_t n = a->ready == a->experts || a->experts == 0 ? 1 : a->experts;

	return (double)a->wait_ns + (double)a->compute_ns / n;
}

/* From the RUNs of a layer to the last answer, had main spent nothing itself; -1: no answer is recorded. */
static double answers_ns(const struct odp_known_times *k, const struct odm_timeline_step *r, uint32_t m)
{
	double most = -1;

	for (size_t i = 0; i < r->n_answers; i++) {
		const struct odm_timeline_answer *a = &r->answer[i];
		double ns;

		if (a->m != m || a->member >= k->n_members)
			continue;
		ns = k->way_ns[a->member] + (a->experts - 1) * k->row_ns + worker_ns(a);
		most = ns > most ? ns : most;
	}
	return most;
}

/* The begin of a layer's attention; 0: it is not recorded. */
static uint64_t begin_of(const struct odm_timeline_step *r, uint32_t m)
{
	for (size_t i = 0; i < r->n_spans; i++)
		if (r->span[i].what == ODM_SPAN_ATTENTION && r->span[i].m == (int64_t)m)
			return r->span[i].begin_ns;
	return 0;
}

void odp_add_own_times(struct odp_own_times *t, const struct odp_known_times *k, const struct odm_timeline_step *r,
		       uint64_t next_ns)
{
	const uint32_t n = k->config->n_moe;
	double known = k->head_ns + (k->config->n_layers - n) * k->layer_ns, last = -1;
	uint64_t at = begin_of(r, 0), first = at;

	for (uint32_t m = 0; m < n && at != 0; m++) {
		const uint64_t next = m + 1 < n ? begin_of(r, m + 1) : 0;

		last = answers_ns(k, r, m);
		if (next == 0)
			break;
		if (last >= 0 && k->config->layer_of[m + 1] == k->config->layer_of[m] + 1 &&
		    t->n_layers < ODP_OWN_TIMES)
			t->layer_ns[t->n_layers++] = (double)(next - at) - k->layer_ns - last;
		at = next;
	}
	/* From the last layer on to the first one of the next step. */
	if (first != 0 && last >= 0 && next_ns > at && t->n_steps < ODP_OWN_TIMES)
		t->step_ns[t->n_steps++] =
			(double)(next_ns - at) + (double)(first - r->begin_ns) - known - k->layer_ns - last;
}

/* ---- A text ---- */

struct steps_check {
	const struct odp_steps_check *o;
	struct odp_known_times known;
	struct odp_own_times own;
	double way_ns[OD_MAX_HOSTS];
	struct odp_text text;
	struct odm_timeline_step *before; /* the record of the step before, until its end is known */
	size_t n_seen;
};

/* Members have numbers of this cluster. */
static void set_known(struct steps_check *s, const struct odp_rates *rates)
{
	s->known = (struct odp_known_times){ .config = s->o->hosts.model->config,
					     .layer_ns = rates->layer_ns,
					     .head_ns = rates->head_ns,
					     .way_ns = s->way_ns,
					     .n_members = OD_MAX_HOSTS };
	for (uint32_t i = 0; i < s->o->hosts.n; i++) {
		const struct odp_rates *r = &s->o->worker[i]->rates;
		const double row_ns = r->link_rate > 0 ? s->o->row_bytes / r->link_rate * 1e9 : 0;
		struct odm_member_facts f;

		if (odm_members_facts(s->text.members, i, &f) && f.member.id < OD_MAX_HOSTS)
			s->way_ns[f.member.id] = r->latency_ns + 2 * row_ns;
		s->known.row_ns = row_ns > s->known.row_ns ? row_ns : s->known.row_ns;
	}
}

static void take_records(void *arg)
{
	struct steps_check *s = arg;
	struct odm_timeline *t = odm_engine_timeline(s->text.engine);
	struct odm_timeline_step *r;

	while ((r = odm_timeline_take(t)) != NULL) {
		if (s->before != NULL) {
			odp_add_own_times(&s->own, &s->known, s->before, r->begin_ns);
			odm_timeline_give(t, s->before);
		}
		s->before = NULL;
		if (r->phase == ODM_DECODE && ++s->n_seen > FIRST_STEPS)
			s->before = r;
		else
			odm_timeline_give(t, r);
	}
}

static double median_or_0(double *v, size_t n)
{
	const double median = n > 0 ? odp_median(v, n) : 0;

	return median > 0 ? median : 0;
}

static int write_text(struct steps_check *s, struct od_err *err)
{
	struct odm_timeline *t = odm_engine_timeline(s->text.engine);
	const struct odp_text_wish wish = { .first = 1,
					    .tokens = MOST_TOKENS,
					    .until_ns = od_now_ns() + s->o->budget_ns,
					    .step = take_records,
					    .arg = s };
	int rc;

	odm_timeline_watch(t, true);
	rc = odp_text_write(&s->text, &wish, NULL, err);
	take_records(s);
	if (s->before != NULL)
		odm_timeline_give(t, s->before);
	return rc;
}

int odp_check_steps(struct odp_rates *rates, const struct odp_steps_check *o, struct od_err *err)
{
	struct steps_check *s = calloc(1, sizeof(*s));
	double layer_ns, step_ns;
	int rc;

	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "steps");
	s->o = o;
	rc = odp_text_open(&s->text, &o->hosts, err);
	if (rc == OD_OK) {
		set_known(s, rates);
		rc = write_text(s, err);
	}
	if (rc == OD_OK) {
		layer_ns = median_or_0(s->own.layer_ns, s->own.n_layers);
		step_ns = median_or_0(s->own.step_ns, s->own.n_steps) - layer_ns;
		rates->own_ns = layer_ns + (step_ns > 0 ? step_ns / o->hosts.model->config->n_layers : 0);
		rates->fixed_ns += rates->own_ns;
	}
	odp_text_close(&s->text);
	free(s);
	return rc;
}

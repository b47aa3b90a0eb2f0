#include "tests/bench/sim/served_sim.h"

#include "main-node/cluster/placement.h"
#include "main-node/cluster/want_target.h"
#include "main-node/predict/prediction_wants.h"
#include "common/residency/schedule.h"

#include <stdlib.h>
#include <string.h>

#define NEVER UINT64_MAX
#define SESSION 1
#define LOAD_SLICES 16 /* slices that an expert is read in: a more urgent load waits for one of them */

/* The clock of the simulation that this thread runs. */
static _Thread_local uint64_t virtual_ns;

struct sim_worker {
	struct od_schedule *schedule;
	struct od_load_job read; /* the slice on the path to its storage, */
	bool reading; /* if there is one, */
	uint64_t read_ns; /* and when the path is through with it */
	struct od_schedule_item item[OD_MAX_TOP_K]; /* items of the RUN under way */
	struct od_schedule_item *computing;
	uint64_t done_ns; /* when that is computed */
};

/* The shadow's next work, and when that is done. */
struct sim_shadow {
	bool on, ahead, finished; /* ahead: of a step that main has not begun; finished: its last layer is said */
	uint32_t step, layer;
	uint64_t from_ns; /* since when it could have worked on this layer, were it allowed to */
};

struct served_sim {
	struct served_params p;
	struct odm_groups groups;
	struct odm_predictions *predictions;
	struct sim_worker *worker; /* [n_workers] */
	struct odm_want_target target;
	uint32_t *keep; /* [n_experts]: for odm_deal */
	uint32_t *slots; /* [n_workers] */
	const struct served_trace *t;
	struct served_result *r;
	struct sim_shadow shadow;
	uint64_t first_step; /* number of the trace's first step */
	uint64_t sequence; /* the trace's */
	uint64_t c[OD_N_COUNTERS]; /* its steps' */
	uint32_t step, layer; /* main's router speaks next of these */
	bool begun; /* main's step has */
	uint32_t open; /* items of the layer that are not computed yet */
	uint64_t layer_stall_ns, run_ns;
	struct od_recall recall;
	uint64_t now_ns; /* the clock between two traces */
};

uint64_t served_window_ns(const struct served_params *p, unsigned slots)
{
	uint64_t m = odm_groups_make(p->n_workers, p->group_size, p->top_k, p->n_moe).n_groups;

	return m * p->main_ns + (slots > 1 ? m : m - 1) * p->worker_ns;
}

/* ---- Life ---- */

static int open_workers(struct served_sim *s, struct od_err *err)
{
	const struct od_schedule_opts o = {
		.n_moe = s->p.n_moe,
		.n_experts = s->p.n_experts,
		.n_slices = LOAD_SLICES,
		.n_stages = 1,
		.n_slots = s->p.slots,
	};
	int rc = OD_OK;

	s->worker = calloc(s->p.n_workers, sizeof(*s->worker));
	if (s->worker == NULL)
		return od_fail(err, OD_ERR_NOMEM, "simulation of %u workers", s->p.n_workers);
	for (uint32_t w = 0; rc == OD_OK && w < s->p.n_workers; w++) {
		rc = od_schedule_new(&s->worker[w].schedule, &o, err);
		if (rc == OD_OK)
			od_schedule_begin(s->worker[w].schedule, SESSION);
	}
	return rc;
}

int served_sim_new(struct served_sim **out, const struct served_params *p, struct od_err *err)
{
	const struct odm_predictions_opts po = {
		.n_moe = p->n_moe,
		.n_experts = p->n_experts,
		.top_k = p->top_k,
		.max_sequences = 1,
		.max_rows = 1,
		.max_tokens = 1,
		.hedge = p->hedge,
	};
	struct served_sim *s;
	int rc;

	*out = NULL;
	if (p->n_workers == 0 || p->load_ns == 0)
		return od_fail(err, OD_ERR_ARG, "simulation: %u workers and loads of %llu ns; both must be above 0",
			       p->n_workers, (unsigned long long)p->load_ns);
	s = calloc(1, sizeof(*s));
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "simulation");
	s->p = *p;
	s->groups = odm_groups_make(p->n_workers, p->group_size, p->top_k, p->n_moe);
	s->keep = calloc(p->n_experts, sizeof(*s->keep));
	s->slots = calloc(p->n_workers, sizeof(*s->slots));
	for (uint32_t w = 0; s->slots != NULL && w < p->n_workers; w++)
		s->slots[w] = p->slots;
	rc = s->keep != NULL && s->slots != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "simulation");
	if (rc == OD_OK)
		rc = odm_want_target_init(&s->target, p->n_experts, p->n_workers, err);
	if (rc == OD_OK)
		rc = odm_predictions_new(&s->predictions, &po, err);
	if (rc == OD_OK)
		rc = od_recall_init(&s->recall, p->n_moe, 1, err);
	if (rc == OD_OK)
		rc = open_workers(s, err);
	if (rc != OD_OK) {
		served_sim_free(s);
		return rc;
	}
	s->first_step = 1;
	s->now_ns = 1; /* 0 means "not yet" to some */
	*out = s;
	return OD_OK;
}

void served_sim_free(struct served_sim *s)
{
	if (s == NULL)
		return;
	if (s->worker != NULL)
		for (uint32_t w = 0; w < s->p.n_workers; w++)
			od_schedule_free(s->worker[w].schedule);
	free(s->worker);
	odm_want_target_fini(&s->target);
	odm_predictions_free(s->predictions);
	od_recall_fini(&s->recall);
	free(s->keep);
	free(s->slots);
	free(s);
}

/* ---- Workers ---- */

/* Parts whose time is over are there, and finished; the most urgent one is next. A cancelled load leaves the path at
 * once. */
static void load(struct served_sim *s, struct sim_worker *w)
{
	struct od_load_job job;

	for (;;) {
		if (w->reading && (w->read_ns <= virtual_ns ||
				   od_schedule_look(w->schedule, (unsigned)w->read.slot).state == OD_SLOT_DRAINING)) {
			w->reading = false;
			(void)!od_schedule_end_job(w->schedule, &w->read, 1, OD_OK, NULL);
			if (od_schedule_next_finish(w->schedule, &job, false))
				(void)!od_schedule_end_job(w->schedule, &job, 0, OD_OK, NULL);
		}
		if (w->reading || !od_schedule_next_read(w->schedule, &w->read, false))
			return;
		w->reading = true;
		w->read_ns = virtual_ns + s->p.load_ns * (w->read.slice + 1) / LOAD_SLICES -
			     s->p.load_ns * w->read.slice / LOAD_SLICES;
	}
}

/* Whatever can be done at this moment: loads, the next expert. */
static void work(struct served_sim *s, struct sim_worker *w)
{
	load(s, w);
	if (w->computing != NULL || (w->computing = od_schedule_take(w->schedule)) == NULL)
		return;
	w->done_ns = virtual_ns + s->p.worker_ns;
	s->r->used_loads += w->computing->loaded_bytes > 0;
	if (!w->computing->ready) {
		s->r->stalls++;
		if (virtual_ns - s->run_ns > s->layer_stall_ns)
			s->layer_stall_ns = virtual_ns - s->run_ns;
	}
}

static uint64_t worker_next_ns(const struct sim_worker *w)
{
	const uint64_t read_ns = w->reading ? w->read_ns : NEVER;

	return w->computing != NULL && w->done_ns < read_ns ? w->done_ns : read_ns;
}

static void worker_event(struct served_sim *s, struct sim_worker *w)
{
	if (w->computing != NULL && w->done_ns == virtual_ns) {
		od_schedule_done(w->schedule, w->computing);
		w->computing = NULL;
		s->open--;
	}
	work(s, w);
}

/* ---- Main's loop thread ---- */

static void send_want(struct served_sim *s, uint32_t worker, const struct odm_want *want)
{
	const struct odm_want_lists *l = &s->target.list;
	uint32_t expert[OD_MAX_CANDIDATES];
	size_t n = 0;

	if (!odm_want_changed(&s->target, worker))
		return;
	for (uint32_t i = l->begin[worker]; i < l->begin[worker + 1]; i++)
		expert[n++] = l->expert[i];
	(void)!od_schedule_want(s->worker[worker].schedule, SESSION, want->step, want->m, want->version, expert, n,
				want->prompt);
	work(s, &s->worker[worker]);
}

static void send_wants(struct served_sim *s)
{
	struct odm_want *want = &s->target.want;

	while (odm_predictions_take_want(s->predictions, want)) {
		odm_want_target_choose(&s->target, &s->groups, s->slots);
		for (uint32_t w = 0; w < s->p.n_workers; w++)
			send_want(s, w, want);
		odm_predictions_placed(s->predictions, want);
	}
}

static void add(struct served_sim *s, uint32_t step, uint32_t m, int32_t token, const struct served_view *v)
{
	const struct od_prediction pred = {
		.sequence = s->sequence,
		.position = step,
		.token = token,
		.m = m,
		.n = v->n,
		.expert = v->expert,
		.probability = v->probability,
	};

	if (v->n > 0 && odm_predictions_add(s->predictions, &pred))
		send_wants(s);
}

/* ---- The shadow ---- */

static size_t at(const struct served_sim *s, uint32_t step, uint32_t m)
{
	return (size_t)step * s->p.n_moe + m;
}

static bool guesses_right(const struct served_sim *s, uint32_t step)
{
	return s->t->guess != NULL && s->t->guess[step] == s->t->token[step];
}

/* The shadow's next work builds on keys and values that main will have computed in the step under way. */
static bool builds_on_this_step(const struct served_sim *s)
{
	const struct sim_shadow *h = &s->shadow;

	return h->step == s->step + 1 && s->p.align_kv > 0 && h->step % s->p.align_kv == 0;
}

/* When the layer that it is at will be said; NEVER: it waits for main. */
static uint64_t shadow_next_ns(const struct served_sim *s)
{
	const struct sim_shadow *h = &s->shadow;

	/* Main's attention is through with a layer when its router has spoken. */
	if (!h->on || h->finished || (builds_on_this_step(s) && h->layer >= s->layer) || h->step > s->step + 1)
		return NEVER;
	return h->from_ns + s->p.shadow_ns;
}

/* It goes on with a token of its own, when main is in the step before. */
static void shadow_go_ahead(struct served_sim *s)
{
	struct sim_shadow *h = &s->shadow;

	if (!s->p.early || s->t->guess == NULL || h->ahead || h->step + 1 >= s->t->n_steps)
		return;
	*h = (struct sim_shadow){
		.on = true, .ahead = true, .step = h->step + 1, .from_ns = virtual_ns + s->p.head_ns
	};
}

static void shadow_event(struct served_sim *s)
{
	struct sim_shadow *h = &s->shadow;
	const bool right = !h->ahead || guesses_right(s, h->step);
	const size_t i = at(s, h->step, h->layer);

	if (right)
		add(s, h->step, h->layer, s->t->token[h->step], &s->t->shadow[i]);
	else if (s->t->ahead != NULL)
		add(s, h->step, h->layer, s->t->guess[h->step], &s->t->ahead[i]);
	h->from_ns = virtual_ns;
	if (++h->layer < s->p.n_moe)
		return;
	h->finished = true;
	shadow_go_ahead(s);
}

/* STEP reaches it. */
static void shadow_step(struct served_sim *s)
{
	struct sim_shadow *h = &s->shadow;

	if (s->t->shadow == NULL)
		return;
	if (h->on && h->ahead && h->step == s->step && guesses_right(s, s->step)) {
		h->ahead = false;
		if (h->finished)
			shadow_go_ahead(s);
		return;
	}
	*h = (struct sim_shadow){ .on = true, .step = s->step, .from_ns = virtual_ns };
}

/* Rows that the shadow waited for have come: time does not count before. */
static void shadow_state(struct served_sim *s, uint32_t layer)
{
	struct sim_shadow *h = &s->shadow;

	if (h->on && !h->finished && builds_on_this_step(s) && h->layer == layer && h->from_ns < virtual_ns)
		h->from_ns = virtual_ns;
}

/* ---- Time ---- */

/* The next event of workers and shadow, if it comes before end: time goes on to it. */
static bool next_event(struct served_sim *s, uint64_t end)
{
	uint64_t first = shadow_next_ns(s);
	struct sim_worker *who = NULL;

	for (uint32_t w = 0; w < s->p.n_workers; w++) {
		uint64_t t = worker_next_ns(&s->worker[w]);

		/* a load that is complete frees its slot first */
		if (t < first || (t == first && t != NEVER && who == NULL)) {
			first = t;
			who = &s->worker[w];
		}
	}
	if (first > end || first == NEVER)
		return false;
	virtual_ns = first > virtual_ns ? first : virtual_ns;
	if (who != NULL)
		worker_event(s, who);
	else
		shadow_event(s);
	return true;
}

static void run_until(struct served_sim *s, uint64_t end)
{
	while (next_event(s, end))
		;
	virtual_ns = end;
}

/* ---- Main ---- */

static uint32_t keep_worker(void *arg, uint16_t expert)
{
	const struct served_sim *s = arg;

	return s->keep[expert];
}

static int by_id(const void *a, const void *b)
{
	return (int)*(const uint16_t *)a - (int)*(const uint16_t *)b;
}

/* RUNs as main would send them: an expert goes where it was wanted, the others over the group. */
static void send_runs(struct served_sim *s, const uint16_t *used)
{
	uint16_t expert[OD_MAX_TOP_K];
	uint32_t to[OD_MAX_TOP_K], *scratch = s->target.scratch;
	const uint64_t step = s->first_step + s->step;
	const size_t k = s->p.top_k;

	memcpy(expert, used, k * sizeof(*expert));
	qsort(expert, k, sizeof(*expert), by_id);
	for (size_t i = 0; i < k; i++)
		s->keep[expert[i]] = odm_predictions_where(s->predictions, step, s->layer, expert[i]);
	odm_deal(&s->groups, step, s->layer, expert, k, keep_worker, s, to, scratch);
	for (uint32_t w = 0; w < s->p.n_workers; w++) {
		struct sim_worker *worker = &s->worker[w];
		size_t n = 0;

		for (size_t i = 0; i < k; i++) {
			if (to[i] == w)
				worker->item[n++] = (struct od_schedule_item){ .expert = expert[i],
									       .rank = (uint32_t)i,
									       .last = true };
		}
		s->open += n;
		/* Without a RUN it is a CLOSE. */
		if (n == 0)
			od_schedule_close(worker->schedule, SESSION, step, s->layer);
		else if (od_schedule_run(worker->schedule, SESSION, step, s->layer, true, worker->item, n) != OD_OK)
			s->open -= n; /* cannot be: the queue holds more than a layer */
		for (size_t i = 0; i < n; i++)
			/* no WANT comes between */
			s->r->served += worker->item[i].ready && s->keep[worker->item[i].expert] == w;
		work(s, worker);
	}
}

static void run_layer(struct served_sim *s)
{
	const uint16_t *used = s->t->used + at(s, s->step, s->layer) * s->p.top_k;
	const uint64_t step = s->first_step + s->step;

	run_until(s, virtual_ns + s->p.main_ns);
	odm_predictions_resolve(s->predictions, step, s->layer, used);
	for (size_t i = 0; i < s->p.top_k; i++)
		s->r->ordered += odm_predictions_ordered(s->predictions, step, s->layer, used[i]) != ODM_NOBODY;
	s->r->uses += s->p.top_k;
	s->run_ns = virtual_ns;
	s->layer_stall_ns = 0;
	send_runs(s, used);
	odm_predictions_learn(
		s->predictions, step, s->layer,
		s->t->probability != NULL ? s->t->probability + at(s, s->step, s->layer) * s->p.n_experts : NULL, s->c);
	s->layer++;
	shadow_state(s, s->layer - 1);
	while (s->open > 0 && next_event(s, NEVER - 1))
		;
	s->r->stall_ns += s->layer_stall_ns;
}

static void run_step(struct served_sim *s)
{
	const uint64_t step = s->first_step + s->step;
	const struct odm_predicted_row row = {
		.sequence = s->sequence, .position = s->step, .token = s->t->token[s->step], .ahead = 1
	};

	odm_predictions_begin(s->predictions, step, step + 1, &row, 1, true);
	s->layer = 0;
	shadow_step(s);
	send_wants(s);
	while (s->layer < s->p.n_moe)
		run_layer(s);
	run_until(s, virtual_ns + s->p.head_ns);
	s->r->steps++;
}

static uint64_t wasted_loads(const struct served_sim *s)
{
	uint64_t n = 0;

	for (uint32_t w = 0; w < s->p.n_workers; w++) {
		struct od_load_figures f;

		od_schedule_figures(s->worker[w].schedule, &f);
		n += f.c[OD_C_CANCELLED_LOADS] + f.c[OD_C_UNUSED_LOADS];
	}
	return n;
}

/* Nothing of the trace's steps, or of one that the shadow ran ahead into, is needed any more. */
static void close_trace(struct served_sim *s)
{
	for (uint32_t w = 0; w < s->p.n_workers; w++) {
		for (uint32_t i = 0; i < 2; i++)
			od_schedule_close(s->worker[w].schedule, SESSION, s->first_step + s->t->n_steps - 1 + i,
					  s->p.n_moe - 1);
		work(s, &s->worker[w]);
	}
	s->first_step += s->t->n_steps + 1;
	s->shadow = (struct sim_shadow){ 0 };
}

void served_sim_run(struct served_sim *s, const struct served_trace *t, struct served_result *r)
{
	const uint64_t wasted = wasted_loads(s);
	struct odm_spread first_ns;

	s->sequence++;
	memset(s->c, 0, sizeof(s->c));
	virtual_ns = s->now_ns;
	s->t = t;
	s->r = r;
	for (s->step = 0; s->step < t->n_steps; s->step++)
		run_step(s);
	if (t->n_steps > 0)
		close_trace(s);
	od_recall_reset(&s->recall);
	(void)odm_predictions_close(s->predictions, s->sequence);
	odm_predictions_take(s->predictions, s->sequence, s->c, &first_ns, &s->recall);
	r->recalled += s->c[OD_C_RECALLED_USES];
	r->hedged += s->c[OD_C_HEDGED];
	r->extra_loads += wasted_loads(s) - wasted;
	r->total_ns += virtual_ns - s->now_ns;
	s->now_ns = virtual_ns;
}

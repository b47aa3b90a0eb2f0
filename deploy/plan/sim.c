#include "deploy/plan/sim.h"

#include "deploy/plan/sim_internal.h"
#include "main-node/cluster/members_links.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double odp_window_ns(const struct odp_sim_model *model, uint32_t n_workers, uint32_t group_size, unsigned slots,
		     double main_ns, double worker_ns)
{
	const uint32_t m = odm_groups_make(n_workers, group_size, model->top_k, model->n_moe).n_groups;

	return m * main_ns + (slots > 1 ? m : m - 1) * worker_ns;
}

/* ---- Life ---- */

static int check_model(const struct odp_sim_model *m, struct od_err *err)
{
	uint32_t n_moe = 0;

	for (uint32_t i = 0; i < m->n_layers; i++)
		n_moe += m->block[i].moe;
	if (m->n_moe == 0 || n_moe != m->n_moe)
		return od_fail(err, OD_ERR_ARG, "simulation: expected %u blocks with experts, found %u; at least 1",
			       m->n_moe, n_moe);
	if (m->top_k == 0 || m->top_k > m->n_experts || m->top_k > OD_MAX_TOP_K || m->n_experts > UINT16_MAX)
		return od_fail(err, OD_ERR_ARG, "simulation: %u of %u experts; at most %d of %d", m->top_k,
			       m->n_experts, OD_MAX_TOP_K, UINT16_MAX);
	if (m->load_bytes == 0 || m->slot_bytes == 0)
		return od_fail(err, OD_ERR_ARG, "simulation: an expert has no bytes");
	return OD_OK;
}

bool odp_sim_streams(const struct odp_sim_model *m)
{
	bool any = m->head_stream_bytes > 0;

	for (uint32_t i = 0; i < m->n_layers; i++)
		any = any || m->block[i].stream_bytes > 0;
	return any;
}

static int check_cluster(const struct odp_cluster *c, const struct odp_sim_opts *o, bool streams, struct od_err *err)
{
	if (c->n_workers == 0)
		return od_fail(err, OD_ERR_ARG, "simulation: no workers");
	if (streams && !(c->main.read_rate > 0))
		return od_fail(err, OD_ERR_ARG, "simulation: main reads weights at %g bytes/s; expected more than 0",
			       c->main.read_rate);
	for (uint32_t w = 0; w < c->n_workers; w++)
		if (c->worker[w].slots == 0 || c->worker[w].slots > OD_MAX_SLOTS || !(c->worker[w].read_rate > 0))
			return od_fail(err, OD_ERR_ARG,
				       "simulation: worker %u has %u slots and reads %g bytes/s; expected 1 to %d "
				       "slots and more than 0",
				       w, c->worker[w].slots, c->worker[w].read_rate, OD_MAX_SLOTS);
	if (o->max_texts == 0 || o->max_texts > ODM_MAX_STEP_ROWS || o->prefill_rows == 0)
		return od_fail(err, OD_ERR_ARG,
			       "simulation: %u texts and %u rows of prompts at a time; expected 1 to "
			       "%u, and at least 1",
			       o->max_texts, o->prefill_rows, ODM_MAX_STEP_ROWS);
	if (o->drafts != ODP_DRAFTS_OFF && (!c->has_shadow || !o->early))
		return od_fail(err, OD_ERR_ARG, "simulation: drafts need a shadow that departs early");
	return OD_OK;
}

static void copy_inputs(struct odp_sim *s, const struct odp_cluster *cluster, const struct odp_sim_model *model)
{
	memcpy(s->given, cluster->worker, cluster->n_workers * sizeof(*s->given));
	memcpy(s->machine, s->given, cluster->n_workers * sizeof(*s->machine));
	memcpy(s->block, model->block, model->n_layers * sizeof(*s->block));
	s->cluster.worker = s->machine;
	s->model.block = s->block;
}

static void set_node(struct sim_node *n, const struct odp_machine *machine, double latency_ns)
{
	n->machine = machine;
	n->latency_ns = latency_ns;
	n->up.busy_ns = &n->busy.up_ns;
	n->down.busy_ns = &n->busy.down_ns;
}

static void make_nodes(struct odp_sim *s)
{
	set_node(&s->node[MAIN], &s->cluster.main, 0);
	set_node(&s->node[SHADOW], &s->cluster.shadow, s->cluster.shadow.latency_ns);
	for (uint32_t w = 0; w < s->cluster.n_workers; w++) {
		set_node(&s->node[FIRST_WORKER + w], &s->machine[w], s->machine[w].latency_ns);
		s->worker[w].window_bytes =
			odm_link_window(fmax(odp_port_ns(&s->machine[w], 1), odp_port_ns(&s->cluster.main, 1)));
	}
}

static size_t rows_of_decode(const struct odp_sim_opts *o)
{
	const size_t rows = o->max_texts * (o->drafts != ODP_DRAFTS_OFF ? 1u + ODM_MAX_DRAFT : 1u);

	return rows < ODM_MAX_STEP_ROWS ? rows : ODM_MAX_STEP_ROWS;
}

static int allocate(struct odp_sim *s, struct od_err *err)
{
	s->decode_rows = rows_of_decode(&s->o);
	s->max_rows = s->decode_rows > s->o.prefill_rows ? s->decode_rows : s->o.prefill_rows;
	s->given = calloc(s->cluster.n_workers, sizeof(*s->given));
	s->machine = calloc(s->cluster.n_workers, sizeof(*s->machine));
	s->place = calloc(s->cluster.n_workers, sizeof(*s->place));
	s->times = calloc(s->cluster.n_workers, sizeof(*s->times));
	s->block = calloc(s->model.n_layers, sizeof(*s->block));
	s->node = calloc(FIRST_WORKER + (size_t)s->cluster.n_workers, sizeof(*s->node));
	s->used = calloc(s->max_rows * s->model.top_k, sizeof(*s->used));
	s->stamp = calloc(s->max_rows, sizeof(*s->stamp));
	s->probability = calloc(s->decode_rows * s->model.n_experts, sizeof(*s->probability));
	s->predicted = calloc(s->decode_rows, sizeof(*s->predicted));
	s->row_ordered = calloc(s->decode_rows, sizeof(*s->row_ordered));
	s->row_served = calloc(s->decode_rows, sizeof(*s->row_served));
	s->asked = calloc(s->decode_rows, sizeof(*s->asked));
	s->draft = calloc(s->o.max_texts, sizeof(struct odm_draft *));
	if (s->given == NULL || s->place == NULL || s->times == NULL || s->machine == NULL || s->block == NULL ||
	    s->node == NULL || s->used == NULL || s->stamp == NULL || s->probability == NULL || s->predicted == NULL ||
	    s->row_ordered == NULL || s->row_served == NULL || s->asked == NULL || s->draft == NULL)
		return od_fail(err, OD_ERR_NOMEM, "simulation of %u workers", s->cluster.n_workers);
	return OD_OK;
}

static int open_predictions(struct odp_sim *s, struct od_err *err)
{
	const struct odm_predictions_opts o = {
		.n_moe = s->model.n_moe,
		.n_experts = s->model.n_experts,
		.top_k = s->model.top_k,
		.max_sequences = s->o.max_texts,
		.max_rows = (uint32_t)s->decode_rows,
		.max_draft = s->o.drafts != ODP_DRAFTS_OFF ? ODM_MAX_DRAFT : 0,
		.max_tokens = 1,
		.hedge = s->o.hedge,
	};

	return odm_predictions_new(&s->predictions, &o, err);
}

static int open_parts(struct odp_sim *s, const struct odp_cluster *cluster, const struct odp_sim_model *model,
		      struct od_err *err)
{
	int rc = allocate(s, err);

	if (rc != OD_OK)
		return rc;
	copy_inputs(s, cluster, model);
	rc = odp_measure(s, err);
	if (rc == OD_OK)
		rc = odp_deal_new(s, err);
	if (rc == OD_OK)
		rc = open_predictions(s, err);
	if (rc == OD_OK)
		rc = odp_workers_new(s, err);
	if (rc == OD_OK)
		rc = odp_engine_new(s, err);
	if (rc != OD_OK)
		return rc;
	make_nodes(s);
	return odp_trace_new(s, err);
}

int odp_sim_new(struct odp_sim **out, const struct odp_cluster *cluster, const struct odp_sim_model *model,
		const struct odp_sim_opts *opts, struct od_err *err)
{
	int rc = check_model(model, err);
	struct odp_sim *s;

	*out = NULL;
	if (rc == OD_OK)
		rc = check_cluster(cluster, opts, odp_sim_streams(model), err);
	if (rc != OD_OK)
		return rc;
	s = calloc(1, sizeof(*s));
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "simulation");
	s->cluster = *cluster;
	s->model = *model;
	s->o = *opts;
	s->now_ns = 1; /* 0 means "not yet" to some */
	odp_clock_set(s->now_ns);
	rc = open_parts(s, cluster, model, err);
	if (rc != OD_OK) {
		odp_sim_free(s);
		return rc;
	}
	*out = s;
	return OD_OK;
}

void odp_sim_free(struct odp_sim *s)
{
	if (s == NULL)
		return;
	(void)!odp_trace_free(s, NULL);
	odp_engine_free(s);
	odp_workers_free(s);
	odm_predictions_free(s->predictions);
	odp_deal_free(s);
	free(s->given);
	free(s->machine);
	free(s->place);
	free(s->times);
	free(s->block);
	free(s->node);
	free(s->used);
	free(s->stamp);
	free(s->probability);
	free(s->predicted);
	free(s->row_ordered);
	free(s->row_served);
	free(s->asked);
	free(s->draft);
	free(s->heap.event);
	free(s);
}

/* ---- Caches before the first run ---- */

/* A plan is about a cluster that has served for long, and a few tokens of a large model use few of its experts.
 * Layers take turns, so that each has as many experts in a cache that does not hold all. */
static void fill_homes(struct odp_sim *s, uint64_t step)
{
	for (uint32_t e = 0; e < s->model.n_experts; e++)
		for (uint32_t m = 0; m < s->model.n_moe && s->rc == OD_OK; m++) {
			const uint32_t w = odm_home(&s->groups, m, (uint16_t)e);

			if (!odp_worker_full(s, w))
				odp_worker_fill(s, w, step, m, e);
		}
}

/* The experts that the texts' rows at a position use, each once. */
static void use_layer(struct odp_sim *s, const struct odp_routes *r, uint32_t n_texts, uint32_t position, uint32_t m,
		      bool *used)
{
	uint16_t expert[OD_MAX_TOP_K];

	memset(used, 0, s->model.n_experts * sizeof(*used));
	for (uint32_t text = 0; text < n_texts; text++) {
		r->used(r->arg, text, position, r->token(r->arg, text, position), m, expert, NULL);
		for (uint32_t k = 0; k < s->model.top_k; k++)
			used[expert[k]] = true;
	}
	for (uint32_t e = 0; e < s->model.n_experts && s->rc == OD_OK; e++)
		if (used[e])
			odp_worker_fill(s, odm_home(&s->groups, m, (uint16_t)e), s->engine.last_step, m, e);
}

int odp_sim_fill(struct odp_sim *s, const struct odp_routes *routes, uint32_t n_texts, uint32_t steps,
		 struct od_err *err)
{
	bool *used;

	if (!s->groups.homes)
		return OD_OK;
	used = calloc(s->model.n_experts, sizeof(*used));
	if (used == NULL)
		return od_fail(err, OD_ERR_NOMEM, "simulation of %u experts", s->model.n_experts);
	odp_clock_set(s->now_ns);
	fill_homes(s, s->engine.last_step);
	for (uint32_t i = 0; i < steps; i++) {
		s->engine.last_step++;
		for (uint32_t m = 0; m < s->model.n_moe; m++)
			use_layer(s, routes, n_texts, i, m, used);
	}
	s->engine.next_decode = ++s->engine.last_step;
	free(used);
	return s->rc == OD_OK ? OD_OK : od_fail(err, s->rc, "simulation failed");
}

/* ---- A run ---- */

static void handle(struct odp_sim *s, const struct sim_event *e)
{
	switch (e->kind) {
	case EV_READ:
	case EV_COMPUTE: odp_worker_event(s, e); break;
	case EV_WIRE: odp_on_wire(s, e->message); break;
	case EV_ARRIVED: odp_deliver(s, e->message); break;
	case EV_SHADOW: odp_shadow_event(s, e); break;
	case EV_TEXT: odp_engine_text(s, e->who); break;
	case EV_MAIN: odp_engine_event(s, e); break;
	}
}

static void add_texts(struct odp_sim *s)
{
	for (uint32_t i = 0; i < s->work->n_texts; i++) {
		struct sim_text *q = &s->text[i];
		const uint64_t after = s->work->arrival_ns != NULL ? s->work->arrival_ns[i] : 0;

		q->arrival_ns = s->now_ns + after;
		q->left = s->work->tokens;
		odp_at(s, q->arrival_ns, EV_TEXT, i, 0, NULL);
	}
}

/* Work under way ends, too: the next run begins with quiet machines. */
static uint64_t run_events(struct odp_sim *s)
{
	uint64_t end_ns = s->now_ns;
	struct sim_event e;

	while (odp_next_event(s, &e)) {
		if (s->engine.n_ended < s->work->n_texts)
			end_ns = odp_clock_ns();
		if (s->rc != OD_OK)
			odp_message_free(e.message);
		else
			handle(s, &e);
	}
	return end_ns;
}

static void add_busy(struct odp_busy *to, struct odp_busy *b)
{
	to->compute_ns += b->compute_ns;
	to->read_ns += b->read_ns;
	to->up_ns += b->up_ns;
	to->down_ns += b->down_ns;
	to->up_bytes += b->up_bytes;
	to->down_bytes += b->down_bytes;
	*b = (struct odp_busy){ 0 };
}

static void take_busy(struct odp_sim *s)
{
	add_busy(&s->f->main, &s->node[MAIN].busy);
	add_busy(&s->f->shadow, &s->node[SHADOW].busy);
	for (uint32_t w = 0; w < s->cluster.n_workers; w++) {
		struct odp_busy unused = { 0 };

		add_busy(s->f->worker != NULL ? &s->f->worker[s->place[w]] : &unused, &s->node[FIRST_WORKER + w].busy);
	}
}

static int check_work(const struct odp_sim *s, const struct odp_work *work, struct od_err *err)
{
	if (work->n_texts == 0 || work->routes == NULL || (work->tokens == 0 && work->prompt_tokens == 0))
		return od_fail(err, OD_ERR_ARG, "simulation: nothing to do");
	if (s->cluster.has_shadow && work->routes->predict == NULL)
		return od_fail(err, OD_ERR_ARG, "simulation: routes without predictions, but the cluster has a shadow");
	if (s->o.next_gate && work->routes->next_gate == NULL)
		return od_fail(err, OD_ERR_ARG,
			       "simulation: routes without next-gate's predictions, which are asked for");
	return OD_OK;
}

int odp_sim_run(struct odp_sim *s, const struct odp_work *work, struct odp_sim_figures *f, struct od_err *err)
{
	const uint64_t wasted = odp_wasted_loads(s);
	uint64_t end_ns;
	int rc = check_work(s, work, err);

	if (rc != OD_OK)
		return rc;
	s->work = work;
	s->f = f;
	s->engine.n_ended = 0;
	memset(s->c, 0, sizeof(s->c));
	s->text = calloc(work->n_texts, sizeof(*s->text));
	rc = s->text != NULL ? odp_shadow_begin(s, err) : od_fail(err, OD_ERR_NOMEM, "simulation");
	if (rc == OD_OK) {
		odp_clock_set(s->now_ns);
		add_texts(s);
		end_ns = run_events(s);
		f->total_ns += end_ns - s->now_ns;
		f->hedged += s->c[OD_C_HEDGED];
		f->extra_loads += odp_wasted_loads(s) - wasted;
		s->now_ns = odp_clock_ns();
		take_busy(s);
		rc = s->rc != OD_OK ? od_fail(err, s->rc, "simulation failed") : OD_OK;
	}
	odp_shadow_end(s);
	free(s->text);
	s->text = NULL;
	return rc;
}

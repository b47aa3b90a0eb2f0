#include "deploy/plan/plan_speed.h"

#include "common/base/pool.h"
#include "deploy/plan/synthetic_routes.h"
#include "main-node/node/main_opts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEED 20250711 /* any: equal plans give equal figures */
#define WARM_TOKENS 64 /* All texts together have so many before those that count: main learns. */
#define FILL_ROWS 64 /* Caches are filled with the uses of so many rows of all texts. */
#define COUNTED_TOKENS 96 /* all texts' together */
#define LEAST_TOKENS 8 /* a text's, of either */
/* Workers times layers: with more of them fewer tokens are simulated, so that a plan takes seconds. */
#define LARGE 4000.0
#define LEAST_OF_LARGE 2 /* tokens of a text then */
/* In so many steps od-main learns how long drafts should be. Texts are so long that their ends do not shorten them. */
#define DRAFT_STEPS 16
#define DRAFT_TOKENS 64 /* a text's */
#define WORTH 1.03 /* A lift below it says nothing. */

/* ---- one run ---- */

/* Texts of warm-up are other texts than those that are counted. */
struct later_texts {
	struct odp_routes of;
	uint32_t by;
};

static int32_t later_token(void *arg, uint32_t text, uint32_t position)
{
	const struct later_texts *l = arg;

	return l->of.token(l->of.arg, text + l->by, position);
}

static int32_t later_guess(void *arg, uint32_t text, uint32_t position, float *margin)
{
	const struct later_texts *l = arg;

	return l->of.guess(l->of.arg, text + l->by, position, margin);
}

static void later_used(void *arg, uint32_t text, uint32_t position, int32_t token, uint32_t m, uint16_t *expert,
		       const float **probability)
{
	const struct later_texts *l = arg;

	l->of.used(l->of.arg, text + l->by, position, token, m, expert, probability);
}

static void later_predict(void *arg, uint32_t text, uint32_t position, int32_t token, uint32_t m, struct odp_view *view)
{
	const struct later_texts *l = arg;

	l->of.predict(l->of.arg, text + l->by, position, token, m, view);
}

static void later_next_gate(void *arg, uint32_t text, uint32_t position, int32_t token, uint32_t m,
			    struct odp_view *view)
{
	const struct later_texts *l = arg;

	l->of.next_gate(l->of.arg, text + l->by, position, token, m, view);
}

static struct odp_routes later(struct later_texts *l)
{
	return (struct odp_routes){ .arg = l,
				    .token = later_token,
				    .guess = l->of.guess != NULL ? later_guess : NULL,
				    .used = later_used,
				    .predict = l->of.predict != NULL ? later_predict : NULL,
				    .next_gate = l->of.next_gate != NULL ? later_next_gate : NULL };
}

static double share(uint64_t busy_ns, uint64_t total_ns)
{
	return total_ns > 0 ? (double)busy_ns / (double)total_ns : 0;
}

static void take(struct odp_figure *f, const struct odp_sim_figures *s, const struct odp_busy *worker, uint32_t n)
{
	const double tokens = (double)(f->kind == ODP_DECODE ? s->tokens : 1);
	const uint64_t all = s->total_ns;

	f->value = f->kind == ODP_FIRST_TOKEN ? (double)s->ttft_ns / 1e9 :
		   s->decode_ns > 0	      ? tokens * 1e9 / (double)s->decode_ns :
						0;
	if (tokens > 0) {
		f->up_bytes = (double)s->main.up_bytes / tokens;
		f->down_bytes = (double)s->main.down_bytes / tokens;
		f->shadow_bytes = (double)(s->shadow.up_bytes + s->shadow.down_bytes) / tokens;
		f->loads = (double)(s->used_loads + s->extra_loads) / tokens;
	}
	f->main_busy = share(s->main.compute_ns, all);
	f->link_busy = share(s->main.up_ns > s->main.down_ns ? s->main.up_ns : s->main.down_ns, all);
	f->shadow_busy = share(s->shadow.compute_ns, all);
	f->read_busy = f->worker_busy = 0;
	for (uint32_t i = 0; i < n; i++) {
		const double read = share(worker[i].read_ns, all), compute = share(worker[i].compute_ns, all);

		f->read_busy = read > f->read_busy ? read : f->read_busy;
		f->worker_busy = compute > f->worker_busy ? compute : f->worker_busy;
	}
}

static uint32_t part_of(uint32_t tokens, uint32_t texts, const struct odp_speed_input *in)
{
	const double size = (double)in->cluster.n_workers * in->model.n_moe;
	const uint32_t least = size > LARGE ? LEAST_OF_LARGE : LEAST_TOKENS;

	if (size > LARGE)
		tokens = (uint32_t)(tokens * LARGE / size);
	return tokens / texts > least ? tokens / texts : least;
}

static int warm_up(struct odp_sim *sim, const struct odp_figure *f, const struct odp_speed_input *in,
		   const struct odp_routes *routes, struct od_err *err)
{
	struct odp_work work = { .n_texts = f->texts, .tokens = part_of(WARM_TOKENS, f->texts, in), .routes = routes };
	struct odp_sim_figures seen = { 0 };
	int rc;

	if (f->drafts && work.tokens < DRAFT_TOKENS)
		work.tokens = DRAFT_TOKENS;
	do
		rc = odp_sim_run(sim, &work, &seen, err);
	while (rc == OD_OK && f->drafts && seen.steps < DRAFT_STEPS);
	return rc;
}

static int warm_and_count(struct odp_sim *sim, struct odp_figure *f, const struct odp_speed_input *in,
			  struct odp_routes routes, struct odp_busy *worker, struct od_err *err)
{
	struct later_texts counted = { routes, f->texts };
	const struct odp_routes rest = later(&counted);
	struct odp_sim_figures s = { .worker = worker };
	struct odp_work work = { .n_texts = f->texts,
				 .tokens = part_of(COUNTED_TOKENS, f->texts, in),
				 .routes = &rest };
	int rc = odp_sim_fill(sim, &routes, f->texts, (FILL_ROWS + f->texts - 1) / f->texts, err);

	if (rc == OD_OK)
		rc = warm_up(sim, f, in, &routes, err);
	if (f->drafts && work.tokens < DRAFT_TOKENS)
		work.tokens = DRAFT_TOKENS;
	if (f->kind == ODP_FIRST_TOKEN) {
		work.prompt_tokens = f->prompt_tokens;
		work.tokens = 1;
	}
	if (rc == OD_OK)
		rc = odp_sim_run(sim, &work, &s, err);
	if (rc != OD_OK)
		return rc;
	take(f, &s, worker, in->cluster.n_workers);
	for (uint32_t i = 0; in->worker_bytes != NULL && i < in->cluster.n_workers; i++)
		in->worker_bytes[i] = (double)(worker[i].up_bytes + worker[i].down_bytes) / (double)s.tokens;
	return rc;
}

static int make_routes(struct odp_synthetic **out, const struct odp_sim_model *m, const struct odp_synthetic *like,
		       const struct odp_guessing *shadow, struct od_err *err)
{
	struct odp_synthetic_opts o = {
		.n_moe = m->n_moe, .n_experts = m->n_experts, .top_k = m->top_k, .seed = SEED, .like = like
	};

	odp_synthetic_defaults(&o, OD_PRECISION_INT8);
	if (shadow != NULL) {
		o.recall = shadow->recall;
		o.draft_right = shadow->accept;
	}
	return odp_synthetic_new(out, &o, err);
}

int odp_speed_routes(struct odp_synthetic **out, const struct odp_sim_model *m, const struct odp_guessing *shadow,
		     struct od_err *err)
{
	return make_routes(out, m, NULL, shadow, err);
}

int odp_speed(struct odp_figure *f, const struct odp_speed_input *in, struct od_err *err)
{
	struct odm_main_opts defaults;
	struct odp_sim_opts opts = { .max_texts = f->texts,
				     .prefill_rows = in->prefill_rows,
				     .align_token = 1,
				     .align_kv = 1,
				     .early = true,
				     .next_gate = in->next_gate || in->cluster.has_shadow,
				     .drafts = f->drafts ? ODP_DRAFTS_ALWAYS : ODP_DRAFTS_OFF,
				     .trace_path = in->trace_path };
	struct odp_busy *worker = calloc(in->cluster.n_workers, sizeof(*worker));
	struct odp_synthetic *routes = NULL;
	struct odp_sim *sim = NULL;
	int rc = worker != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "%u workers", in->cluster.n_workers);

	odm_main_opts_defaults(&defaults);
	opts.hedge = defaults.cluster.hedge_percent / 100;
	if (rc == OD_OK)
		rc = make_routes(&routes, &in->model, in->like, NULL, err);
	if (rc == OD_OK)
		rc = odp_sim_new(&sim, &in->cluster, &in->model, &opts, err);
	if (rc == OD_OK)
		rc = warm_and_count(sim, f, in, odp_synthetic_routes(routes), worker, err);
	odp_sim_free(sim);
	odp_synthetic_free(routes);
	free(worker);
	return rc;
}

/* ---- one thing changed ---- */

struct speed_change {
	const char *limit; /* It binds if this helps most; NULL: a remedy for other limits. */
	const char *what;
	void (*make)(struct odp_speed_input *in, struct odp_machine *worker, char *what, size_t size);
	bool for_shadow, for_cluster; /* It needs one. */
	bool for_streams; /* Main reads dense weights. */
};

static void main_faster(struct odp_speed_input *in, struct odp_machine *worker, char *what, size_t size)
{
	(void)what;
	(void)size;
	in->cluster.main.speed *= 2;
	in->cluster.main.many *= 2;
	in->cluster.main.run_ns /= 2;
	if (in->alone) {
		worker[0].speed *= 2;
		worker[0].many *= 2;
		worker[0].run_ns /= 2;
	}
}

static void main_reads_faster(struct odp_speed_input *in, struct odp_machine *worker, char *what, size_t size)
{
	(void)worker;
	(void)what;
	(void)size;
	in->cluster.main.read_rate *= 2;
}

static void workers_faster(struct odp_speed_input *in, struct odp_machine *worker, char *what, size_t size)
{
	(void)what;
	(void)size;
	for (uint32_t i = 0; i < in->cluster.n_workers; i++) {
		worker[i].speed *= 2;
		worker[i].many *= 2;
		worker[i].run_ns /= 2;
	}
}

static void reads_faster(struct odp_speed_input *in, struct odp_machine *worker, char *what, size_t size)
{
	(void)what;
	(void)size;
	if (in->cluster.one_disk)
		in->cluster.main.read_rate *= 2;
	for (uint32_t i = 0; i < in->cluster.n_workers; i++)
		worker[i].read_rate *= 2;
}

static void shadow_faster(struct odp_speed_input *in, struct odp_machine *worker, char *what, size_t size)
{
	(void)worker;
	(void)what;
	(void)size;
	in->cluster.shadow.speed *= 2;
	in->cluster.shadow.many *= 2;
	in->cluster.shadow.run_ns /= 2;
	in->cluster.shadow_route_ns /= 2;
	in->cluster.shadow_rest_ns /= 2;
	in->cluster.shadow_head_ns /= 2;
}

static double larger(double a, double b)
{
	return a > b ? a : b;
}

/* Ethernet comes in steps: the next one above main's port, for all whose port is slower than that. */
static void links_faster(struct odp_speed_input *in, struct odp_machine *worker, char *what, size_t size)
{
	static const double steps[] = { 0.1, 1, 2.5, 10, 25, 100, 400 }; /* Gbit/s */
	const double per_gbit = 1e9 / 8;
	size_t i = 0;

	while (i + 1 < sizeof(steps) / sizeof(steps[0]) && in->cluster.main.link_rate >= 0.999 * steps[i] * per_gbit)
		i++;
	snprintf(what, size, "links of %g Gbit/s", steps[i]);
	in->cluster.main.link_rate = steps[i] * per_gbit;
	in->cluster.shadow.link_rate = larger(in->cluster.shadow.link_rate, steps[i] * per_gbit);
	for (uint32_t k = 0; k < in->cluster.n_workers; k++)
		worker[k].link_rate = larger(worker[k].link_rate, steps[i] * per_gbit);
}

static void trips_shorter(struct odp_speed_input *in, struct odp_machine *worker, char *what, size_t size)
{
	(void)what;
	(void)size;
	in->cluster.shadow.latency_ns /= 2;
	for (uint32_t k = 0; k < in->cluster.n_workers; k++)
		worker[k].latency_ns /= 2;
}

/* Like the fastest reader of those that are there; worker has room for one more. */
static void one_more(struct odp_speed_input *in, struct odp_machine *worker, char *what, size_t size)
{
	const uint32_t n = in->cluster.n_workers++;
	uint32_t best = 0;

	for (uint32_t i = 1; i < n; i++)
		best = worker[i].read_rate > worker[best].read_rate ? i : best;
	worker[n] = worker[best];
	snprintf(what, size, "a worker more, as %.40s", worker[best].name);
}

static void more_memory(struct odp_speed_input *in, struct odp_machine *worker, char *what, size_t size)
{
	(void)what;
	(void)size;
	for (uint32_t i = 0; i < in->cluster.n_workers; i++) {
		worker[i].cache_bytes += (uint64_t)worker[i].memory_bytes;
		worker[i].memory_bytes *= 2;
	}
}

static const struct speed_change changes[] = {
	{ "main's compute", "main twice as fast", main_faster, false, false, false },
	{ "the network", "faster links", links_faster, false, true, false },
	{ "round trips", "round trips half as long", trips_shorter, false, true, false },
	{ "reads of experts", "reads twice as fast", reads_faster, false, false, false },
	{ "workers' compute", "workers twice as fast", workers_faster, false, true, false },
	{ "the shadow's compute", "a shadow twice as fast", shadow_faster, true, true, false },
	{ "main's reads", "main reads twice as fast", main_reads_faster, false, true, true },
	{ NULL, "a worker more", one_more, false, true, false },
	{ NULL, "twice the memory for experts", more_memory, false, false, false },
};
#define N_CHANGES (sizeof(changes) / sizeof(changes[0]))

static bool applies(const struct speed_change *c, const struct odp_speed_input *in)
{
	return (!c->for_shadow || in->cluster.has_shadow) && (!c->for_cluster || !in->alone) &&
	       (!c->for_streams || odp_sim_streams(&in->model));
}

static int try_change(const struct speed_change *c, const struct odp_figure *f, const struct odp_speed_input *in,
		      struct odp_lift *lift, struct od_err *err)
{
	const uint32_t n = in->cluster.n_workers;
	struct odp_machine *worker = calloc((size_t)n + 1, sizeof(*worker));
	struct odp_speed_input changed = *in;
	struct odp_figure with = *f;
	int rc;

	if (worker == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%u workers", n);
	memcpy(worker, in->cluster.worker, n * sizeof(*worker));
	changed.cluster.worker = worker;
	changed.trace_path = NULL;
	changed.worker_bytes = NULL;
	snprintf(lift->what, sizeof(lift->what), "%s", c->what);
	c->make(&changed, worker, lift->what, sizeof(lift->what));
	rc = odp_speed(&with, &changed, err);
	lift->value = with.value;
	free(worker);
	return rc;
}

static double gain(const struct odp_figure *f, double value)
{
	if (!(value > 0) || !(f->value > 0))
		return 1;
	return f->kind == ODP_FIRST_TOKEN ? f->value / value : value / f->value;
}

static void keep_lift(struct odp_figure *f, const struct odp_lift *lift)
{
	size_t at = f->n_lifts < ODP_MAX_LIFTS ? f->n_lifts++ : ODP_MAX_LIFTS;

	while (at > 0 && gain(f, lift->value) > gain(f, f->lift[at - 1].value)) {
		if (at < ODP_MAX_LIFTS)
			f->lift[at] = f->lift[at - 1];
		at--;
	}
	if (at < ODP_MAX_LIFTS)
		f->lift[at] = *lift;
}

/* ---- all of them ---- */

/* A run of the simulator. change: NULL: the cluster as it is. */
struct speed_run {
	const struct speed_change *change;
	struct odp_figure figure;
	struct odp_lift lift;
	struct od_err err;
	int rc;
};

struct speed_runs {
	const struct odp_speed_input *in;
	struct speed_run run[1 + N_CHANGES];
	size_t n;
};

static void run_some(void *arg, size_t begin, size_t end, unsigned thread)
{
	struct speed_runs *all = arg;

	(void)thread;
	for (size_t i = begin; i < end; i++) {
		struct speed_run *r = &all->run[i];

		r->rc = r->change == NULL ? odp_speed(&r->figure, all->in, &r->err) :
					    try_change(r->change, &r->figure, all->in, &r->lift, &r->err);
	}
}

/* The first run is that of the cluster as it is. */
static int run_all(struct speed_runs *all, const struct odp_figure *f, struct od_err *err)
{
	struct od_pool *pool;
	int rc;

	all->run[all->n++] = (struct speed_run){ .figure = *f };
	for (size_t i = 0; i < N_CHANGES; i++)
		if (applies(&changes[i], all->in))
			all->run[all->n++] = (struct speed_run){ .change = &changes[i], .figure = *f };
	rc = od_pool_new(&pool, od_cpu_count(), "plan", err);
	if (rc != OD_OK)
		return rc;
	od_pool_for(pool, all->n, 1, run_some, all);
	od_pool_free(pool);
	for (size_t i = 0; i < all->n; i++)
		if (all->run[i].rc != OD_OK) {
			*err = all->run[i].err;
			return all->run[i].rc;
		}
	return OD_OK;
}

int odp_speed_limits(struct odp_figure *f, const struct odp_speed_input *in, struct od_err *err)
{
	struct speed_runs all = { .in = in };
	const int rc = run_all(&all, f, err);
	double most = WORTH;

	*f = all.run[0].figure;
	f->limit = "nothing alone";
	f->n_lifts = 0;
	for (size_t i = 1; rc == OD_OK && i < all.n; i++) {
		const struct speed_run *r = &all.run[i];
		const double g = gain(f, r->lift.value);

		if (g >= WORTH)
			keep_lift(f, &r->lift);
		if (r->change->limit != NULL && g > most) {
			most = g;
			f->limit = r->change->limit;
		}
	}
	return rc;
}

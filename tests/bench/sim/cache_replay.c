#include "tests/bench/sim/cache_replay.h"

#include <stdlib.h>
#include <string.h>

/* Every worker takes these; only their ratio counts. */
#define LOAD_NS 64000.0
#define RUN_NS 4000.0

/* ---- Deals by homes ---- */

static struct odm_groups groups_of(const struct cache_world *w, bool caches)
{
	struct odm_groups g = w->groups;

	g.homes = caches;
	g.n_experts = w->routes->n_experts;
	g.times = w->times;
	g.few = UINT32_MAX; /* a batch is dealt as a token is, however many experts it needs */
	if (caches)
		g.n_groups = 1;
	return g;
}

static void fill_times(struct cache_world *w)
{
	const uint32_t n = w->groups.n_workers;

	for (uint32_t i = 0; i < n; i++)
		w->times[i] = (struct odm_deal_times){ .id = i,
						       .expert = { .load = LOAD_NS, .run = RUN_NS, .row = RUN_NS },
						       .home = 1.0 / n,
						       .homes_from = (double)i / n };
}

static int deal(struct cache_world *w, struct od_err *err)
{
	const struct odm_groups groups = groups_of(w, true);
	const struct cache_routes *r = w->routes;
	uint32_t *scratch = calloc(ODM_DEAL_SCRATCH(r->n_experts, groups.n_workers), sizeof(*scratch));

	if (scratch == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%u workers", groups.n_workers);
	for (size_t i = 0; i < r->n_visits; i++) {
		const struct cache_visit *v = &r->visit[i];

		odm_deal(&groups, v->step, v->m, r->expert + v->first, NULL, v->n, NULL, NULL, w->worker + v->first,
			 scratch);
	}
	free(scratch);
	return OD_OK;
}

static int find_next_uses(struct cache_world *w, struct od_err *err)
{
	const struct cache_routes *r = w->routes;
	uint64_t *last = malloc((size_t)w->groups.n_workers * r->n_moe * r->n_experts * sizeof(*last));

	if (last == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %u workers", w->groups.n_workers);
	memset(last, 0xff, (size_t)w->groups.n_workers * r->n_moe * r->n_experts * sizeof(*last));
	for (size_t i = r->n_visits; i-- > 0;) {
		const struct cache_visit *v = &r->visit[i];

		for (size_t u = v->first + v->n; u-- > v->first;) {
			uint64_t *l = &last[((size_t)w->worker[u] * r->n_moe + v->m) * r->n_experts + r->expert[u]];

			w->next[u] = *l;
			*l = u;
		}
	}
	free(last);
	return OD_OK;
}

/* The experts of a visit that a worker runs, in list; returns how many. */
static uint32_t of_worker(const struct cache_world *w, const struct cache_visit *v, uint32_t worker, uint16_t *list)
{
	uint32_t n = 0;

	for (size_t u = v->first; u < v->first + v->n; u++) {
		if (w->worker[u] == worker)
			list[n++] = w->routes->expert[u];
	}
	return n;
}

static int make_stats(struct cache_world *w, struct od_err *err)
{
	const struct cache_routes *r = w->routes;
	uint16_t *list = calloc(r->n_experts, sizeof(*list));
	int rc = list != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "%u experts", r->n_experts);

	for (uint32_t i = 0; rc == OD_OK && i < w->groups.n_workers; i++)
		rc = sim_rank_stats_init(&w->stats[i], r->n_moe, r->n_experts, err);
	if (rc == OD_OK)
		for (size_t i = 0; i < r->n_visits; i++) {
			const struct cache_visit *v = &r->visit[i];

			for (uint32_t worker = 0; worker < w->groups.n_workers; worker++) {
				const uint32_t n = of_worker(w, v, worker, list);

				if (n > 0)
					sim_rank_stats_visit(&w->stats[worker], v->m, list, n);
			}
		}
	free(list);
	return rc;
}

int cache_world_open(struct cache_world *w, struct od_err *err)
{
	const struct cache_routes *r = w->routes;
	const size_t n = w->groups.n_workers;
	int rc;

	w->times = calloc(n, sizeof(*w->times));
	w->worker = calloc(r->n_uses + 1, sizeof(*w->worker));
	w->next = calloc(r->n_uses + 1, sizeof(*w->next));
	w->stats = calloc(n, sizeof(*w->stats));
	if (w->times == NULL || w->worker == NULL || w->next == NULL || w->stats == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %zu routes", r->n_uses);
	fill_times(w);
	rc = deal(w, err);
	if (rc == OD_OK)
		rc = find_next_uses(w, err);
	return rc == OD_OK ? make_stats(w, err) : rc;
}

void cache_world_close(struct cache_world *w)
{
	for (uint32_t i = 0; w->stats != NULL && i < w->groups.n_workers; i++)
		sim_rank_stats_fini(&w->stats[i]);
	free(w->times);
	free(w->worker);
	free(w->next);
	free(w->stats);
}

/* ---- Plans ---- */

/* For each worker, [n_workers], which the caller frees; all zero for a worker with nothing to plan. */
static int make_plans(const struct cache_world *w, const struct cache_setup *s, struct sim_cache_plan **out,
		      struct od_err *err)
{
	const uint32_t n_experts = w->routes->n_experts;
	double *f = calloc(n_experts, sizeof(*f));
	struct sim_cache_plan *plan = *out = calloc(w->groups.n_workers, sizeof(*plan));
	int rc = f != NULL && plan != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "plans for %u experts", n_experts);

	for (uint32_t i = 0; rc == OD_OK && i < w->groups.n_workers; i++) {
		struct sim_cache_plan_opts o = {
			.n_moe = w->routes->n_moe,
			.n_experts = n_experts,
			.inclusion = f,
			.budget_bytes = s->budget_bytes,
			.sizes = w->sizes,
			.cost = w->cost,
		};

		if (!s->planned)
			o.sizes.pools = SIM_CACHE_POOL(SIM_CACHE_F);
		o.k = sim_rank_stats_k(&w->stats[i]);
		sim_rank_stats_inclusion(&w->stats[i], f);
		rc = sim_cache_plan_make(&plan[i], &o, err);
	}
	free(f);
	return rc;
}

/* ---- Replay ---- */

struct cache_replay {
	const struct cache_world *w;
	const struct cache_setup *s;
	struct cache_result *r;
	struct odm_groups groups;
	uint32_t *worker, *scratch; /* [n_experts] of a deal, and odm_deal's */
	struct sim_cache **cache; /* [n_workers][n_moe]: of a worker's own layers, or the first for all of them */
	uint64_t **since; /* [n_workers][own layers * n_experts] the step in which an expert came */
	uint32_t (*hits)[SIM_CACHE_STATES]; /* [n_workers] of the visit */
	uint32_t *n; /* [n_workers] experts of the visit */
};

static struct sim_cache **cache_of(const struct cache_replay *p, uint32_t worker, uint32_t layer)
{
	return &p->cache[(size_t)worker * p->w->routes->n_moe + (p->s->per_layer ? layer : 0)];
}

static uint32_t layer_in_cache(const struct cache_replay *p, uint32_t layer)
{
	return p->s->per_layer ? 0 : layer;
}

static enum sim_cache_state look(const struct cache_replay *p, uint32_t worker, uint32_t layer, uint32_t expert)
{
	return p->s->budget_bytes == 0 ? SIM_CACHE_NONE :
					 sim_cache_look(*cache_of(p, worker, layer), layer_in_cache(p, layer), expert);
}

/* In the states' order; of a BF16 expert's stored bytes three quarters are SM bytes: who has these lacks the rest. */
static uint8_t cost_of_state(enum sim_cache_state state)
{
	static const uint8_t cost[] = { 0, ODM_COST_LOAD / 8, ODM_COST_LOAD / 4, ODM_COST_LOAD / 4 * 3, ODM_COST_LOAD };

	return cost[state];
}

/* odm_cost_fn. */
static void cost_of(void *arg, uint32_t worker, uint32_t m, const uint16_t *expert, size_t n, uint8_t *cost)
{
	const struct cache_replay *p = arg;

	for (size_t i = 0; i < n; i++)
		cost[i] = cost_of_state(look(p, worker, m, expert[i]));
}

/* Deals the visit's experts, [n], to workers. */
static const uint32_t *deal_visit(const struct cache_replay *p, const struct cache_visit *v)
{
	if (p->s->rule == CACHE_BELADY)
		return p->w->worker + v->first;
	odm_deal(&p->groups, v->step, v->m, p->w->routes->expert + v->first, NULL, v->n, NULL, NULL, p->worker,
		 p->scratch);
	return p->worker;
}

/* The caches of a worker: one, or as many as layers, which share the capacity of one. */
static int open_caches(struct cache_replay *p, uint32_t worker, const struct sim_cache_plan *plan, struct od_err *err)
{
	const struct cache_world *w = p->w;
	const uint32_t n_moe = w->routes->n_moe, n = p->s->per_layer ? n_moe : 1;
	const uint64_t bytes = w->sizes.bytes[p->s->state], capacity = p->s->budget_bytes / bytes;
	int rc = OD_OK;

	p->since[worker] = calloc((size_t)n_moe * w->routes->n_experts, sizeof(**p->since));
	if (p->since[worker] == NULL)
		return od_fail(err, OD_ERR_NOMEM, "cache of worker %u", worker);
	for (uint32_t i = 0; rc == OD_OK && i < n; i++) {
		struct sim_cache_opts o = {
			.n_moe = n_moe / n,
			.n_experts = w->routes->n_experts,
			.full_is_stored = w->full_is_stored,
			.budget_bytes = (capacity / n + (i < capacity % n)) * bytes,
			.expert_bytes = bytes,
			.state = p->s->state,
		};

		if (plan != NULL)
			o.plan = *plan;
		rc = cache_rule_new(cache_of(p, worker, i), p->s->rule, &o, p->s->seed + worker * w->routes->n_moe + i,
				    err);
	}
	return rc;
}

static void end_stay(struct cache_replay *p, uint32_t worker, size_t id, uint64_t now)
{
	p->r->stay_steps += (double)(now - p->since[worker][id]);
	p->r->stays++;
}

/* Tells a worker's cache of a use. */
static void use(struct cache_replay *p, const struct cache_visit *v, size_t u, uint32_t worker)
{
	const uint32_t layer = v->m, n_experts = p->w->routes->n_experts, expert = p->w->routes->expert[u];
	const enum sim_cache_state was = look(p, worker, layer, expert);
	struct sim_cache *cache = *cache_of(p, worker, layer);
	struct sim_cache_changes ch;

	if (p->s->rule == CACHE_BELADY)
		cache_rule_foretell(cache, p->w->next[u]);
	if (p->s->rule == CACHE_LRFU)
		cache_rule_step(cache, v->step);
	ch = sim_cache_use(cache, layer_in_cache(p, layer), expert);
	for (size_t i = 0; i < ch.n; i++) {
		const struct sim_cache_change *c = &ch.change[i];
		const size_t id = (size_t)(p->s->per_layer ? layer : c->layer) * n_experts + c->expert;
		const bool own = i + 1 == ch.n, is_in = c->state != SIM_CACHE_NONE;

		if (!is_in && (!own || was != SIM_CACHE_NONE))
			end_stay(p, worker, id, v->step);
		else if (is_in && own && was == SIM_CACHE_NONE)
			p->since[worker][id] = v->step;
	}
}

static void count(struct cache_replay *p, const struct cache_visit *v, size_t u, uint32_t worker)
{
	const uint64_t *bytes = p->w->sizes.bytes;
	const enum sim_cache_state was = look(p, worker, v->m, p->w->routes->expert[u]);
	const bool sm = was <= SIM_CACHE_S, e = was <= SIM_CACHE_C || was == SIM_CACHE_E;

	p->n[worker]++;
	if (was != SIM_CACHE_NONE)
		p->hits[worker][was]++;
	p->r->uses++;
	p->r->loads += !sm || !e;
	p->r->read_bytes += (sm ? 0 : bytes[SIM_CACHE_S]) + (e ? 0 : bytes[SIM_CACHE_E]);
	p->r->cold_bytes += bytes[SIM_CACHE_S] + bytes[SIM_CACHE_E];
}

/* The makespan of a layer whose hits are counted; clears them. */
static void end_layer(struct cache_replay *p, const struct sim_cache_plan *plan)
{
	double longest = 0;

	for (uint32_t worker = 0; worker < p->w->groups.n_workers; worker++) {
		double ns;

		if (p->n[worker] == 0)
			continue;
		ns = sim_cache_makespan_ns(&p->w->cost, p->n[worker], p->hits[worker]);
		longest = ns > longest ? ns : longest;
		p->r->worker_layers++;
		p->r->worker_ns += ns;
		p->r->planned_ns += plan != NULL ? plan[worker].makespan_ns : 0;
		p->n[worker] = 0;
		memset(p->hits[worker], 0, sizeof(p->hits[worker]));
	}
	p->r->layers++;
	p->r->makespan_ns += longest;
}

static void run(struct cache_replay *p, const struct sim_cache_plan *plan)
{
	const struct cache_routes *r = p->w->routes;
	uint64_t now = 0;

	for (size_t i = 0; i < r->n_visits; i++) {
		const struct cache_visit *v = &r->visit[i];
		const uint32_t *worker = deal_visit(p, v);

		now = v->step;
		/* They are needed together: one does not go because another comes. */
		for (uint32_t k = 0; k < v->n; k++)
			count(p, v, v->first + k, worker[k]);
		if (p->s->budget_bytes > 0)
			for (uint32_t k = 0; k < v->n; k++)
				use(p, v, v->first + k, worker[k]);
		end_layer(p, plan);
	}
	if (p->s->budget_bytes > 0)
		for (uint32_t k = 0; k < p->w->groups.n_workers; k++) {
			for (size_t id = 0; id < (size_t)r->n_moe * r->n_experts; id++) {
				if (look(p, k, (uint32_t)(id / r->n_experts), (uint32_t)(id % r->n_experts)) !=
				    SIM_CACHE_NONE)
					end_stay(p, k, id, now);
			}
		}
}

static void close_replay(struct cache_replay *p)
{
	const size_t n = p->w->groups.n_workers;

	if (p->cache != NULL)
		for (size_t i = 0; i < n * p->w->routes->n_moe; i++)
			sim_cache_free(p->cache[i]);
	if (p->since != NULL)
		for (size_t i = 0; i < n; i++)
			free(p->since[i]);
	free(p->worker);
	free(p->scratch);
	free(p->cache);
	free(p->since);
	free(p->hits);
	free(p->n);
}

/* plan: NULL: not rank dispatch. */
static int replay(const struct cache_world *w, const struct cache_setup *s, const struct sim_cache_plan *plan,
		  struct cache_result *out, struct od_err *err)
{
	const size_t n = w->groups.n_workers;
	const bool has_cache = s->budget_bytes > 0;
	struct cache_replay p = { .w = w, .s = s, .r = out, .groups = groups_of(w, has_cache) };
	int rc = OD_OK;

	*out = (struct cache_result){ 0 };
	p.groups.cost = cost_of;
	p.groups.cost_arg = &p;
	p.worker = calloc(w->routes->n_experts, sizeof(*p.worker));
	p.scratch = calloc(ODM_DEAL_SCRATCH(w->routes->n_experts, n), sizeof(*p.scratch));
	p.cache = calloc(n * w->routes->n_moe, sizeof(*p.cache));
	p.since = calloc(n, sizeof(*p.since));
	p.hits = calloc(n, sizeof(*p.hits));
	p.n = calloc(n, sizeof(*p.n));
	if (p.worker == NULL || p.scratch == NULL || p.cache == NULL || p.since == NULL || p.hits == NULL ||
	    p.n == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "caches of %zu workers", n);
	if (has_cache)
		for (uint32_t i = 0; rc == OD_OK && i < n; i++) {
			rc = open_caches(&p, i, plan != NULL ? &plan[i] : NULL, err);
			if (plan != NULL)
				for (unsigned k = 0; k < SIM_CACHE_STATES; k++)
					out->experts[k] += plan[i].experts[k];
		}
	if (rc == OD_OK)
		run(&p, plan);
	close_replay(&p);
	return rc;
}

int cache_replay(const struct cache_world *w, const struct cache_setup *s, struct cache_result *out, struct od_err *err)
{
	struct sim_cache_plan *plan = NULL;
	int rc = s->rule == CACHE_RANK ? make_plans(w, s, &plan, err) : OD_OK;

	if (rc == OD_OK)
		rc = replay(w, s, plan, out, err);
	free(plan);
	return rc;
}

double cache_read_percent(const struct cache_result *r)
{
	return 100.0 * (double)r->read_bytes / (double)r->cold_bytes;
}

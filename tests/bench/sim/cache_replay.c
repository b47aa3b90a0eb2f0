#include "tests/bench/sim/cache_replay.h"

#include <stdlib.h>

/* ---- Next uses, ranks and plans, from the routes alone ---- */

static int find_next_uses(struct cache_world *w, struct od_err *err)
{
	const struct cache_routes *r = w->routes;
	const size_t n = (size_t)r->n_moe * r->n_experts;
	uint64_t *last = malloc(n * sizeof(*last));

	w->next = calloc(r->n_uses + 1, sizeof(*w->next));
	if (last == NULL || w->next == NULL) {
		free(last);
		return od_fail(err, OD_ERR_NOMEM, "no memory for %zu routes", r->n_uses);
	}
	for (size_t id = 0; id < n; id++)
		last[id] = CACHE_NEVER;
	for (size_t i = r->n_visits; i-- > 0;) {
		const struct cache_visit *v = &r->visit[i];

		for (size_t u = v->first + v->n; u-- > v->first;) {
			uint64_t *l = &last[(size_t)v->m * r->n_experts + r->expert[u]];

			w->next[u] = *l;
			*l = u;
		}
	}
	free(last);
	return OD_OK;
}

int cache_world_open(struct cache_world *w, struct od_err *err)
{
	const struct cache_routes *r = w->routes;
	int rc = find_next_uses(w, err);

	if (rc == OD_OK)
		rc = sim_rank_stats_init(&w->stats, r->n_moe, r->n_experts, err);
	for (size_t i = 0; rc == OD_OK && i < r->n_visits; i++)
		sim_rank_stats_visit(&w->stats, r->visit[i].m, r->expert + r->visit[i].first, r->visit[i].n);
	return rc;
}

void cache_world_close(struct cache_world *w)
{
	sim_rank_stats_fini(&w->stats);
	free(w->next);
}

static int make_plan(const struct cache_world *w, const struct cache_setup *s, struct sim_cache_plan *out,
		     struct od_err *err)
{
	double *f = calloc(w->routes->n_experts, sizeof(*f));
	struct sim_cache_plan_opts o = {
		.n_moe = w->routes->n_moe,
		.n_experts = w->routes->n_experts,
		.inclusion = f,
		.k = sim_rank_stats_k(&w->stats),
		.budget_bytes = s->budget_bytes,
		.sizes = w->sizes,
		.cost = w->cost,
	};
	int rc;

	if (f == NULL)
		return od_fail(err, OD_ERR_NOMEM, "plan for %u experts", w->routes->n_experts);
	if (!s->planned)
		o.sizes.pools = SIM_CACHE_POOL(SIM_CACHE_F);
	sim_rank_stats_inclusion(&w->stats, f);
	rc = sim_cache_plan_make(out, &o, err);
	free(f);
	return rc;
}

/* ---- Replay ---- */

struct cache_replay {
	const struct cache_world *w;
	const struct cache_setup *s;
	struct cache_result *r;
	struct sim_cache **cache; /* [n_moe]: of each layer, or the first for all of them */
	uint64_t *since; /* [n_moe][n_experts] the step in which an expert came */
};

static struct sim_cache *cache_of(const struct cache_replay *p, uint32_t layer)
{
	return p->cache[p->s->per_layer ? layer : 0];
}

static uint32_t layer_in_cache(const struct cache_replay *p, uint32_t layer)
{
	return p->s->per_layer ? 0 : layer;
}

static enum sim_cache_state look(const struct cache_replay *p, uint32_t layer, uint32_t expert)
{
	return sim_cache_look(cache_of(p, layer), layer_in_cache(p, layer), expert);
}

/* One cache, or as many as layers, which share the capacity of one. */
static int open_caches(struct cache_replay *p, struct od_err *err)
{
	const struct cache_world *w = p->w;
	const uint32_t n_moe = w->routes->n_moe, n = p->s->per_layer ? n_moe : 1;
	const uint64_t bytes = w->sizes.bytes[p->s->state], capacity = p->s->budget_bytes / bytes;
	int rc = OD_OK;

	p->cache = calloc(n_moe, sizeof(struct sim_cache *));
	p->since = calloc((size_t)n_moe * w->routes->n_experts, sizeof(*p->since));
	if (p->cache == NULL || p->since == NULL)
		return od_fail(err, OD_ERR_NOMEM, "cache of %u layers", n_moe);
	for (uint32_t i = 0; rc == OD_OK && i < n; i++) {
		const struct sim_cache_opts o = {
			.n_moe = n_moe / n,
			.n_experts = w->routes->n_experts,
			.plan = p->r->plan,
			.full_is_stored = w->full_is_stored,
			.budget_bytes = (capacity / n + (i < capacity % n)) * bytes,
			.expert_bytes = bytes,
			.state = p->s->state,
		};

		rc = cache_rule_new(&p->cache[i], p->s->rule, &o, p->s->seed + i, err);
	}
	return rc;
}

static void close_caches(struct cache_replay *p)
{
	for (uint32_t i = 0; p->cache != NULL && i < p->w->routes->n_moe; i++)
		sim_cache_free(p->cache[i]);
	free(p->cache);
	free(p->since);
}

static void end_stay(struct cache_replay *p, size_t id, uint64_t now)
{
	p->r->stay_steps += (double)(now - p->since[id]);
	p->r->stays++;
}

static void use(struct cache_replay *p, const struct cache_visit *v, size_t u)
{
	const uint32_t n_experts = p->w->routes->n_experts, expert = p->w->routes->expert[u];
	const enum sim_cache_state was = look(p, v->m, expert);
	struct sim_cache *cache = cache_of(p, v->m);
	struct sim_cache_changes ch;

	if (p->s->rule == CACHE_BELADY)
		cache_rule_foretell(cache, p->w->next[u]);
	if (p->s->rule == CACHE_LRFU)
		cache_rule_step(cache, v->step);
	ch = sim_cache_use(cache, layer_in_cache(p, v->m), expert);
	for (size_t i = 0; i < ch.n; i++) {
		const struct sim_cache_change *c = &ch.change[i];
		const size_t id = (size_t)(p->s->per_layer ? v->m : c->layer) * n_experts + c->expert;
		const bool own = i + 1 == ch.n, is_in = c->state != SIM_CACHE_NONE;

		if (!is_in && (!own || was != SIM_CACHE_NONE))
			end_stay(p, id, v->step);
		else if (is_in && own && was == SIM_CACHE_NONE)
			p->since[id] = v->step;
	}
}

/* Reads what the cache lacks of a layer's experts. */
static void load(struct cache_replay *p, const struct cache_visit *v)
{
	const uint64_t *bytes = p->w->sizes.bytes;
	uint32_t hits[SIM_CACHE_STATES] = { 0 };

	for (size_t u = v->first; u < v->first + v->n; u++) {
		const enum sim_cache_state was = look(p, v->m, p->w->routes->expert[u]);
		const bool sm = was <= SIM_CACHE_S, e = was <= SIM_CACHE_C || was == SIM_CACHE_E;

		if (was != SIM_CACHE_NONE)
			hits[was]++;
		p->r->loads += !sm || !e;
		p->r->read_bytes += (sm ? 0 : bytes[SIM_CACHE_S]) + (e ? 0 : bytes[SIM_CACHE_E]);
	}
	p->r->uses += v->n;
	p->r->cold_bytes += v->n * (bytes[SIM_CACHE_S] + bytes[SIM_CACHE_E]);
	p->r->layers++;
	p->r->makespan_ns += sim_cache_makespan_ns(&p->w->cost, v->n, hits);
}

static void run(struct cache_replay *p)
{
	const struct cache_routes *r = p->w->routes;
	uint64_t now = 0;

	for (size_t i = 0; i < r->n_visits; i++) {
		const struct cache_visit *v = &r->visit[i];

		now = v->step;
		/* They are needed together: one does not go because another comes. */
		load(p, v);
		for (size_t u = v->first; u < v->first + v->n; u++)
			use(p, v, u);
	}
	for (size_t id = 0; id < (size_t)r->n_moe * r->n_experts; id++) {
		if (look(p, (uint32_t)(id / r->n_experts), (uint32_t)(id % r->n_experts)) != SIM_CACHE_NONE)
			end_stay(p, id, now);
	}
}

int cache_replay(const struct cache_world *w, const struct cache_setup *s, struct cache_result *out, struct od_err *err)
{
	struct cache_replay p = { .w = w, .s = s, .r = out };
	int rc;

	*out = (struct cache_result){ 0 };
	rc = s->rule == CACHE_RANK ? make_plan(w, s, &out->plan, err) : OD_OK;
	if (rc == OD_OK)
		rc = open_caches(&p, err);
	if (rc == OD_OK)
		run(&p);
	close_caches(&p);
	return rc;
}

double cache_read_percent(const struct cache_result *r)
{
	return 100.0 * (double)r->read_bytes / (double)r->cold_bytes;
}

#include "common/cache/planner.h"

#include "common/base/mem.h"
#include "common/cache/selection.h"

#include <stdlib.h>
#include <string.h>

struct planner {
	const struct od_cache_plan_opts *opt;
	double *q;    /* [n_experts] by rank */
	double *hits; /* [OD_CACHE_STATES + 1][k + 1]: of each pool, the last of what is in none */
	double all;   /* probability of k experts at all */
	struct od_cache_plan now, best;
};

static void close_planner(struct planner *p)
{
	free(p->q);
	free(p->hits);
}

static double *hits_of(const struct planner *p, unsigned pool)
{
	return p->hits + (size_t)pool * (p->opt->k + 1);
}

static int open_planner(struct planner *p, const struct od_cache_plan_opts *o, struct od_err *err)
{
	const size_t n = o->n_experts;
	double *f;
	int rc;

	*p = (struct planner){ .opt = o };
	if (o->n_layers == 0 || o->k == 0 || o->k > n || o->cost.inflaters == 0 || o->cost.chunks == 0)
		return od_fail(err, OD_ERR_RANGE, "cache plan: %u layers of %zu experts, %u at once", o->n_layers, n, o->k);
	f = calloc(n, sizeof(*f));
	p->q = calloc(n, sizeof(*p->q));
	p->hits = calloc((OD_CACHE_STATES + 1) * ((size_t)o->k + 1), sizeof(*p->hits));
	if (f == NULL || p->q == NULL || p->hits == NULL) {
		rc = od_fail(err, OD_ERR_NOMEM, "cache plan");
		goto end;
	}
	for (size_t i = 0; i < n; i++)
		f[i] = o->inclusion[i];
	od_selection_scale(f, o->n_experts, o->k);
	rc = od_selection_fit(f, o->n_experts, o->k, p->q, err);
	if (rc != OD_OK)
		goto end;
	od_selection_hits(p->q, o->n_experts, o->k, hits_of(p, 0));
	p->all = hits_of(p, 0)[o->k];
end:
	free(f);
	return rc;
}

/* Sum over all ways in which pools from `pool` on get some of the `left` experts; weight is the probability of what the
 * pools before it got. */
static double expect(const struct planner *p, unsigned pool, uint32_t left, double weight, uint32_t hits[OD_CACHE_STATES])
{
	const double *of = hits_of(p, pool);
	double sum = 0;

	if (weight == 0)
		return 0;
	if (pool == OD_CACHE_STATES)
		return weight * of[left] * od_cache_makespan_ns(&p->opt->cost, p->opt->k, hits);
	for (uint32_t h = 0; h <= left; h++) {
		hits[pool] = h;
		sum += expect(p, pool + 1, left - h, weight * of[h], hits);
	}
	hits[pool] = 0;
	return sum;
}

/* The expected makespan of a layer that has so many places in each pool. */
static double layer_ns(struct planner *p, const uint32_t places[OD_CACHE_STATES])
{
	const uint32_t n = p->opt->n_experts, k = p->opt->k;
	uint32_t hits[OD_CACHE_STATES] = { 0 }, from = 0;

	for (unsigned pool = 0; pool < OD_CACHE_STATES; pool++) {
		uint32_t size = places[pool] < n - from ? places[pool] : n - from;

		od_selection_hits(p->q + from, size, k, hits_of(p, pool));
		from += size;
	}
	od_selection_hits(p->q + from, n - from, k, hits_of(p, OD_CACHE_STATES));
	return expect(p, 0, k, 1 / p->all, hits);
}

static double value(struct planner *p, const struct od_cache_plan *plan)
{
	uint32_t last[OD_CACHE_STATES] = { 0 };
	double sum = 0, ns = 0;

	for (uint32_t layer = 0; layer < p->opt->n_layers; layer++) {
		uint32_t places[OD_CACHE_STATES];

		for (unsigned pool = 0; pool < OD_CACHE_STATES; pool++)
			places[pool] = od_cache_plan_places(plan, layer, pool);
		if (layer == 0 || memcmp(places, last, sizeof(places)) != 0) /* most are like their neighbour */
			ns = layer_ns(p, places);
		memcpy(last, places, sizeof(places));
		sum += ns;
	}
	return sum / p->opt->n_layers;
}

static double cold_ns(const struct od_cache_plan_opts *o)
{
	static const uint32_t none[OD_CACHE_STATES];

	return od_cache_makespan_ns(&o->cost, o->k, none);
}

/* How many more experts fit into a pool. */
static uint32_t room(const struct od_cache_plan_opts *o, unsigned pool, uint64_t bytes, uint64_t places)
{
	uint64_t fit = o->sizes.bytes[pool] > 0 ? bytes / o->sizes.bytes[pool] : places;

	return (uint32_t)(fit < places ? fit : places);
}

static void search(struct planner *p, unsigned pools, uint64_t bytes, uint64_t places)
{
	const struct od_cache_plan_opts *o = p->opt;
	const unsigned pool = (unsigned)__builtin_ctz(pools), rest = pools & (pools - 1);
	const uint32_t most = room(o, pool, bytes, places), steps = o->steps > 0 ? o->steps : OD_CACHE_PLAN_STEPS;
	/* As wide whatever the pools before took, so that neighbours are compared with each other. */
	const uint32_t all = room(o, pool, o->budget_bytes, (uint64_t)o->n_layers * o->n_experts);
	const uint32_t step = (all + steps - 1) / steps;

	for (uint32_t n = rest == 0 ? most : 0;; n = n + step < most ? n + step : most) {
		p->now.experts[pool] = n;
		if (rest != 0) {
			search(p, rest, bytes - n * o->sizes.bytes[pool], places - n);
		} else {
			p->now.makespan_ns = value(p, &p->now);
			if (p->now.makespan_ns < p->best.makespan_ns)
				p->best = p->now;
		}
		if (n == most)
			break;
	}
	p->now.experts[pool] = 0;
}

int od_cache_plan_make(struct od_cache_plan *out, const struct od_cache_plan_opts *o, struct od_err *err)
{
	struct planner p;
	int rc = open_planner(&p, o, err);

	*out = (struct od_cache_plan){ 0 };
	if (rc == OD_OK) {
		p.best = (struct od_cache_plan){ .n_layers = o->n_layers, .makespan_ns = cold_ns(o), .cold_ns = cold_ns(o) };
		p.now = p.best;
		if (o->sizes.pools != 0)
			search(&p, o->sizes.pools, o->budget_bytes, (uint64_t)o->n_layers * o->n_experts);
		*out = p.best;
	}
	close_planner(&p);
	return rc;
}

int od_cache_plan_value(struct od_cache_plan *plan, const struct od_cache_plan_opts *o, struct od_err *err)
{
	struct planner p;
	int rc = open_planner(&p, o, err);

	plan->n_layers = o->n_layers;
	if (rc == OD_OK) {
		plan->makespan_ns = value(&p, plan);
		plan->cold_ns = cold_ns(o);
	}
	close_planner(&p);
	return rc;
}

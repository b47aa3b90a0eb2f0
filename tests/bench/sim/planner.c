#include "tests/bench/sim/planner.h"

#include "tests/bench/sim/selection.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sets of k experts. */
struct draw {
	uint32_t k;
	double share; /* fraction of all turns */
	double *q; /* [n_experts] by rank */
	double all; /* probability of k experts at all */
};

struct planner {
	const struct sim_cache_plan_opts *opt;
	struct draw draw[2];
	unsigned n_draws;
	double *hits; /* [SIM_CACHE_STATES + 1][n_experts + 1]: of each pool, the last of what is in none */
	struct sim_cache_plan now, best;
};

static void close_planner(struct planner *p)
{
	free(p->draw[0].q);
	free(p->draw[1].q);
	free(p->hits);
}

static double *hits_of(const struct planner *p, unsigned pool)
{
	return p->hits + (size_t)pool * (p->opt->n_experts + 1);
}

static int add_draw(struct planner *p, uint32_t k, double share, struct od_err *err)
{
	const uint32_t n = p->opt->n_experts;
	struct draw *d = &p->draw[p->n_draws++];
	double *f = calloc(n, sizeof(*f));
	int rc;

	*d = (struct draw){ .k = k, .share = share, .q = calloc(n, sizeof(*d->q)) };
	if (f == NULL || d->q == NULL) {
		free(f);
		return od_fail(err, OD_ERR_NOMEM, "cache plan");
	}
	for (uint32_t i = 0; i < n; i++)
		f[i] = p->opt->inclusion[i];
	sim_selection_scale(f, n, k);
	rc = sim_selection_fit(f, n, k, d->q, err);
	free(f);
	if (rc == OD_OK) {
		sim_selection_hits(d->q, n, k, p->hits);
		d->all = p->hits[k];
	}
	return rc;
}

static int open_planner(struct planner *p, const struct sim_cache_plan_opts *o, struct od_err *err)
{
	const uint32_t n = o->n_experts;
	double more;
	int rc;

	*p = (struct planner){ .opt = o };
	if (o->n_moe == 0 || !(o->k >= 1 && o->k <= n) || o->cost.inflaters == 0 || o->cost.chunks == 0)
		return od_fail(err, OD_ERR_RANGE, "cache plan: %u layers of %u experts, %g at once", o->n_moe, n, o->k);
	p->hits = calloc((SIM_CACHE_STATES + 1) * ((size_t)n + 1), sizeof(*p->hits));
	if (p->hits == NULL)
		return od_fail(err, OD_ERR_NOMEM, "cache plan");
	more = o->k - floor(o->k);
	rc = add_draw(p, (uint32_t)o->k, 1 - more, err);
	if (rc == OD_OK && more > 0)
		rc = add_draw(p, (uint32_t)o->k + 1, more, err);
	return rc;
}

/* Sum over all ways in which pools from `pool` on get some of the `left` experts; weight is the probability of what the
 * pools before it got. */
static double expect(const struct planner *p, uint32_t k, unsigned pool, uint32_t left, double weight,
		     uint32_t hits[SIM_CACHE_STATES])
{
	const double *of = hits_of(p, pool);
	double sum = 0;

	if (weight == 0)
		return 0;
	if (pool == SIM_CACHE_STATES)
		return weight * of[left] * sim_cache_makespan_ns(&p->opt->cost, k, hits);
	for (uint32_t h = 0; h <= left; h++) {
		hits[pool] = h;
		sum += expect(p, k, pool + 1, left - h, weight * of[h], hits);
	}
	hits[pool] = 0;
	return sum;
}

/* The expected makespan of a layer that has such a capacity of each pool, over the sets of a draw. */
static double draw_ns(struct planner *p, const struct draw *d, const uint32_t capacity[SIM_CACHE_STATES])
{
	const uint32_t n = p->opt->n_experts;
	uint32_t hits[SIM_CACHE_STATES] = { 0 }, from = 0;

	for (unsigned pool = 0; pool < SIM_CACHE_STATES; pool++) {
		uint32_t size = capacity[pool] < n - from ? capacity[pool] : n - from;

		sim_selection_hits(d->q + from, size, d->k, hits_of(p, pool));
		from += size;
	}
	sim_selection_hits(d->q + from, n - from, d->k, hits_of(p, SIM_CACHE_STATES));
	return expect(p, d->k, 0, d->k, 1 / d->all, hits);
}

static double layer_ns(struct planner *p, const uint32_t capacity[SIM_CACHE_STATES])
{
	double sum = 0;

	for (unsigned i = 0; i < p->n_draws; i++)
		sum += p->draw[i].share * draw_ns(p, &p->draw[i], capacity);
	return sum;
}

static double value(struct planner *p, const struct sim_cache_plan *plan)
{
	uint32_t last[SIM_CACHE_STATES] = { 0 };
	double sum = 0, ns = 0;

	for (uint32_t layer = 0; layer < p->opt->n_moe; layer++) {
		uint32_t capacity[SIM_CACHE_STATES];

		for (unsigned pool = 0; pool < SIM_CACHE_STATES; pool++)
			capacity[pool] = sim_cache_plan_capacity(plan, layer, pool);
		if (layer == 0 || memcmp(capacity, last, sizeof(capacity)) != 0) /* most are like their neighbour */
			ns = layer_ns(p, capacity);
		memcpy(last, capacity, sizeof(capacity));
		sum += ns;
	}
	return sum / p->opt->n_moe;
}

static double cold_ns(struct planner *p)
{
	static const uint32_t none[SIM_CACHE_STATES];

	return layer_ns(p, none);
}

/* How many more experts fit into a pool. */
static uint32_t room(const struct sim_cache_plan_opts *o, unsigned pool, uint64_t bytes, uint64_t capacity)
{
	uint64_t fit = o->sizes.bytes[pool] > 0 ? bytes / o->sizes.bytes[pool] : capacity;

	return (uint32_t)(fit < capacity ? fit : capacity);
}

static void search(struct planner *p, unsigned pools, uint64_t bytes, uint64_t capacity)
{
	const struct sim_cache_plan_opts *o = p->opt;
	const unsigned pool = (unsigned)__builtin_ctz(pools), rest = pools & (pools - 1);
	const uint32_t most = room(o, pool, bytes, capacity), steps = o->steps > 0 ? o->steps : SIM_CACHE_PLAN_STEPS;
	/* As wide whatever the pools before took, so that neighbours are compared with each other. */
	const uint32_t all = room(o, pool, o->budget_bytes, (uint64_t)o->n_moe * o->n_experts);
	const uint32_t step = (all + steps - 1) / steps;

	for (uint32_t n = rest == 0 ? most : 0;; n = n + step < most ? n + step : most) {
		p->now.experts[pool] = n;
		if (rest != 0) {
			search(p, rest, bytes - n * o->sizes.bytes[pool], capacity - n);
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

int sim_cache_plan_make(struct sim_cache_plan *out, const struct sim_cache_plan_opts *o, struct od_err *err)
{
	struct planner p;
	int rc = open_planner(&p, o, err);

	*out = (struct sim_cache_plan){ 0 };
	if (rc == OD_OK) {
		p.best = (struct sim_cache_plan){ .n_moe = o->n_moe,
						  .makespan_ns = cold_ns(&p),
						  .cold_ns = cold_ns(&p) };
		p.now = p.best;
		if (o->sizes.pools != 0)
			search(&p, o->sizes.pools, o->budget_bytes, (uint64_t)o->n_moe * o->n_experts);
		*out = p.best;
	}
	close_planner(&p);
	return rc;
}

int sim_cache_plan_value(struct sim_cache_plan *plan, const struct sim_cache_plan_opts *o, struct od_err *err)
{
	struct planner p;
	int rc = open_planner(&p, o, err);

	plan->n_moe = o->n_moe;
	if (rc == OD_OK) {
		plan->makespan_ns = value(&p, plan);
		plan->cold_ns = cold_ns(&p);
	}
	close_planner(&p);
	return rc;
}

#include "common/residency/cache_planner.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/residency/cache_costs.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>

#define NICE 10 /* a plan may take a second, and is never urgent */

struct od_cache_planner {
	struct od_cache_planner_opts o;
	pthread_t thread;
	double *inclusion; /* [n_experts] */
	struct od_cache_plan plan; /* the plan that buffers exist for */
	bool failed; /* the last plan, and the log has a warning */
};

/* Then F is weights as published, else as they are stored. */
static bool is_plain(const struct od_cache_planner_opts *o)
{
	return (o->slot & OD_SET_PLAIN) != 0;
}

void od_cache_planner_bufs(const struct od_cache_planner_opts *o, const struct od_cache_plan *plan,
			   size_t n[OD_N_EXPERT_BUFS])
{
	const uint32_t *pool = plan->experts;
	const size_t full = o->n_slots + pool[OD_CACHE_F];
	const size_t stored = (is_plain(o) ? o->n_slots : full) + pool[OD_CACHE_C];

	n[OD_BUF_SM] = (o->slot & OD_SET_SM) != 0 ? stored + pool[OD_CACHE_S] : 0;
	n[OD_BUF_E] = (o->slot & OD_SET_E) != 0 ? stored + pool[OD_CACHE_E] : 0;
	n[OD_BUF_PLAIN] = is_plain(o) ? full : 0;
}

/* By what loads have cost until now. Before the first load any costs will do: the next plan, after a few uses, knows
 * better. */
static struct od_cache_cost cost_of_loads(const struct od_cache_planner_opts *o)
{
	struct od_expert_costs c;

	if (!od_schedule_costs(o->schedule, &c))
		c.read_ns = c.finish_ns = OD_NS_PER_MS;
	return od_expert_cache_cost(o->pack, &c);
}

/* LRU and LFU keep what fits in bytes: so many at most. */
static uint32_t most_full(const struct od_cache_planner_opts *o, const struct od_expert_cache_uses *u)
{
	const uint64_t all = (uint64_t)u->n_moe * o->n_experts;
	uint64_t least = UINT64_MAX, fit;

	for (uint32_t i = 0; i < u->n_moe; i++) {
		const uint64_t bytes = o->layer[u->first + i * u->step].bytes[OD_CACHE_F];

		least = bytes < least ? bytes : least;
	}
	fit = o->budget_bytes / least;
	return (uint32_t)(fit < all ? fit : all);
}

static int make_plan(const struct od_cache_planner_opts *o, const struct od_expert_cache_uses *u,
		     struct od_cache_plan *plan, struct od_err *err)
{
	const struct od_cache_plan_opts opts = {
		.n_moe = u->n_moe,
		.n_experts = o->n_experts,
		.inclusion = u->inclusion,
		.k = u->k,
		.budget_bytes = o->budget_bytes,
		.sizes = od_cache_sizes_mean(&o->layer[u->first], u->n_moe, u->step),
		.cost = cost_of_loads(o),
	};
	int rc = OD_OK;

	*plan = (struct od_cache_plan){ .n_moe = u->n_moe };
	if (o->policy != OD_CACHE_RANK) {
		plan->experts[OD_CACHE_F] = most_full(o, u);
		return OD_OK;
	}
	rc = od_cache_plan_make(plan, &opts, err);
	if (rc == OD_OK)
		od_cache_plan_fit(plan, &o->layer[u->first], u->step, o->budget_bytes);
	return rc;
}

/* The policy, keeping nothing yet. */
static int begin_cache(const struct od_cache_planner_opts *o, const struct od_expert_cache_uses *u,
		       const struct od_cache_plan *plan, struct od_err *err)
{
	uint64_t *bytes = calloc(u->n_moe, sizeof(*bytes));
	const struct od_cache_opts opts = {
		.policy = o->policy,
		.n_moe = u->n_moe,
		.n_experts = o->n_experts,
		.plan = *plan,
		.full_is_stored = !is_plain(o),
		.budget_bytes = o->budget_bytes,
		.layer_bytes = bytes,
		.state = OD_CACHE_F,
	};
	struct od_cache *policy;
	int rc;

	if (bytes == NULL)
		return od_fail(err, OD_ERR_NOMEM, "cache of %u layers", u->n_moe);
	for (uint32_t i = 0; i < u->n_moe; i++)
		bytes[i] = o->layer[u->first + i * u->step].bytes[OD_CACHE_F];
	rc = od_cache_new(&policy, &opts, err);
	free(bytes);
	if (rc == OD_OK && !od_schedule_begin_cache(o->schedule, u->place, policy))
		od_cache_free(policy);
	return rc;
}

/* False: the schedule is stopped. */
static bool shrink_to(struct od_cache_planner *p, const struct od_cache_plan *plan)
{
	size_t n[OD_N_EXPERT_BUFS];
	uint64_t seen = 0;

	od_cache_planner_bufs(&p->o, plan, n);
	while (!od_expert_bufs_shrink(p->o.bufs, n)) {
		if (!od_schedule_wait_free(p->o.schedule, &seen))
			return false;
	}
	return true;
}

/* Keeps what both plans have capacity for, then makes room for what only the new one has. */
static int change_plan(struct od_cache_planner *p, const struct od_expert_cache_uses *u,
		       const struct od_cache_plan *plan, struct od_err *err)
{
	struct od_cache_plan both = *plan;
	size_t n[OD_N_EXPERT_BUFS];
	int rc;

	for (unsigned i = 0; i < OD_CACHE_STATES; i++) {
		const uint32_t was = u->begun ? p->plan.experts[i] : 0;

		both.experts[i] = was < plan->experts[i] ? was : plan->experts[i];
	}
	od_cache_plan_fit(&both, &p->o.layer[u->first], u->step, p->o.budget_bytes);
	od_schedule_set_plan(p->o.schedule, u->place, &both);
	p->plan = both;
	if (!shrink_to(p, &both))
		return OD_OK;
	od_cache_planner_bufs(&p->o, plan, n);
	rc = od_expert_bufs_grow(p->o.bufs, n, err);
	if (rc != OD_OK) {
		(void)shrink_to(p, &both); /* the buffers made so far are of no use, and took the last of the memory */
		return rc;
	}
	p->plan = *plan;
	if (!u->begun)
		return begin_cache(&p->o, u, plan, err);
	od_schedule_set_plan(p->o.schedule, u->place, plan);
	return OD_OK;
}

static int plan_once(struct od_cache_planner *p, const struct od_expert_cache_uses *u, struct od_err *err)
{
	const uint64_t begin_ns = od_now_ns();
	struct od_cache_plan plan;
	int rc;

	if (u->begun && p->o.policy != OD_CACHE_RANK)
		return OD_OK;
	rc = make_plan(&p->o, u, &plan, err);
	if (rc == OD_OK)
		rc = change_plan(p, u, &plan, err);
	if (rc != OD_OK)
		return rc;
	od_log(p->o.policy == OD_CACHE_RANK ? OD_LOG_INFO : OD_LOG_DEBUG, /* the others plan nothing */
	       "cache of %u layers after %" PRIu64
	       " uses of one: %u experts in F, %u in C, %u in S, %u in E; a layer's "
	       "loads should take %.2f ms, %.2f without a cache (planned in %.0f ms)",
	       u->n_moe, u->visits, plan.experts[OD_CACHE_F], plan.experts[OD_CACHE_C], plan.experts[OD_CACHE_S],
	       plan.experts[OD_CACHE_E], plan.makespan_ns / OD_NS_PER_MS, plan.cold_ns / OD_NS_PER_MS,
	       (double)(od_now_ns() - begin_ns) / OD_NS_PER_MS);
	return OD_OK;
}

static void *plan_caches(void *arg)
{
	struct od_cache_planner *p = arg;
	struct od_expert_cache_uses u = { .inclusion = p->inclusion };

	/* Lowers this thread's priority (on Linux a thread has its own). The other policies have nothing to compute,
	 * and are for comparing: they begin at once. */
	if (p->o.policy == OD_CACHE_RANK && setpriority(PRIO_PROCESS, 0, NICE) != 0)
		od_log(OD_LOG_DEBUG, "the cache's planner keeps its priority");
	while (od_schedule_next_plan(p->o.schedule, &u)) {
		struct od_err err;
		const bool failed = plan_once(p, &u, &err) != OD_OK;

		if (failed && !p->failed) /* the next plans want as much */
			od_log(OD_LOG_WARN, "the cache stays as it is: %s; see --cache-mib", err.msg);
		p->failed = failed;
	}
	return NULL;
}

/* Where the place is known already, the cache keeps what is used from now on. */
static int plan_first(struct od_cache_planner *p, struct od_err *err)
{
	struct od_expert_cache_uses u = { .inclusion = p->inclusion };

	if (!od_schedule_plan_is_due(p->o.schedule) || !od_schedule_next_plan(p->o.schedule, &u))
		return OD_OK;
	return plan_once(p, &u, err);
}

int od_cache_planner_start(struct od_cache_planner **out, const struct od_cache_planner_opts *opts, struct od_err *err)
{
	struct od_cache_planner *p = calloc(1, sizeof(*p));
	int rc = OD_OK;

	*out = NULL;
	if (p != NULL) {
		p->o = *opts;
		p->inclusion = calloc(opts->n_experts, sizeof(*p->inclusion));
	}
	if (p == NULL || p->inclusion == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "cannot start the cache's planner");
	if (rc == OD_OK)
		rc = plan_first(p, err);
	if (rc == OD_OK && pthread_create(&p->thread, NULL, plan_caches, p) != 0)
		rc = od_fail(err, OD_ERR_NOMEM, "cannot start the cache's planner");
	if (rc != OD_OK) {
		if (p != NULL)
			free(p->inclusion);
		free(p);
		return rc;
	}
	pthread_setname_np(p->thread, "od-plan");
	*out = p;
	return OD_OK;
}

void od_cache_planner_stop(struct od_cache_planner *p)
{
	if (p == NULL)
		return;
	pthread_join(p->thread, NULL);
	free(p->inclusion);
	free(p);
}

#include "main-node/cluster/placement.h"

#include "common/pack/share.h"

#include <string.h>

uint32_t odm_cost_of_state(enum od_cache_state state)
{
	/* In the states' order: who has the SM bytes lacks the exponents. */
	static const uint32_t cost[] = { 0, ODM_COST_INFLATE, ODM_COST_E, ODM_COST_SM, ODM_COST_LOAD };

	return cost[state];
}

struct odm_groups odm_groups_make(uint32_t n_workers, uint32_t asked, uint32_t top_k, uint32_t n_moe)
{
	return (struct odm_groups){ .n_workers = n_workers,
				    .n_groups = od_share_groups(n_workers, asked, top_k),
				    .n_moe = n_moe };
}

uint32_t odm_group_of_layer(const struct odm_groups *g, uint64_t step, uint32_t m)
{
	uint64_t start = !g->still && g->n_groups > 1 && g->n_moe % g->n_groups == 1 ? step % g->n_groups : 0;

	return (uint32_t)((m + start) % g->n_groups);
}

uint32_t odm_group_size(const struct odm_groups *g, uint32_t group)
{
	return (g->n_workers - group + g->n_groups - 1) / g->n_groups;
}

uint32_t odm_group_worker(const struct odm_groups *g, uint32_t group, uint32_t i)
{
	return group + i * g->n_groups;
}

/* A layer's experts on their way to workers. */
struct dealer {
	const struct odm_groups *g;
	uint32_t m, group;
	uint32_t run;	/* what running one costs */
	uint32_t *load; /* what each has to do */
};

/* What a worker has to do when an expert of this cost is dealt to it. */
static uint32_t load_at(const struct dealer *d, uint32_t w, uint32_t cost)
{
	return d->load[w] + d->run + (cost == ODM_COST_LACKS ? ODM_COST_LOAD : cost);
}

static uint32_t load_with(const struct dealer *d, uint32_t w, uint16_t expert)
{
	return load_at(d, w, odm_worker_cost(d->g, w, d->m, expert));
}

/* Of the group's; ODM_NOBODY: with, and none of them has it. */
static uint32_t least_of_group(const struct dealer *d, uint16_t expert, bool with)
{
	const uint32_t size = odm_group_size(d->g, d->group), first = d->g->homes ? expert : d->m / d->g->n_groups;
	uint32_t best = ODM_NOBODY, best_load = 0;

	for (uint32_t i = 0; i < size; i++) {
		const uint32_t w = odm_group_worker(d->g, d->group, (first + i) % size);
		const uint32_t cost = odm_worker_cost(d->g, w, d->m, expert), load = load_at(d, w, cost);

		if ((best == ODM_NOBODY || load < best_load) && (!with || cost != ODM_COST_LACKS)) {
			best = w;
			best_load = load;
		}
	}
	return best;
}

static bool group_keeps(const struct dealer *d, uint16_t expert)
{
	const uint32_t size = odm_group_size(d->g, d->group);
	bool kept = false;

	for (uint32_t i = 0; i < size; i++)
		kept = kept || odm_worker_cost(d->g, odm_group_worker(d->g, d->group, i), d->m, expert) < ODM_COST_LOAD;
	return kept;
}

/* Of those who keep some of it in their caches, and best, which keeps nothing. They are of another group than they were. */
static uint32_t least_of_keepers(const struct dealer *d, uint16_t expert, uint32_t best)
{
	uint32_t best_load = load_with(d, best, expert);

	for (uint32_t w = 0; w < d->g->n_workers; w++) {
		const uint32_t cost = odm_worker_cost(d->g, w, d->m, expert), load = load_at(d, w, cost);

		if (cost < ODM_COST_LOAD && load < best_load) {
			best = w;
			best_load = load;
		}
	}
	return best;
}

static uint32_t least_loaded(const struct dealer *d, uint16_t expert)
{
	uint32_t best = least_of_group(d, expert, true);

	if (d->g->homes && best != ODM_NOBODY && !group_keeps(d, expert))
		return least_of_keepers(d, expert, best);
	for (uint32_t w = 0; best == ODM_NOBODY && w < d->g->n_workers; w++) {
		if (odm_worker_has(d->g, w, d->m, expert))
			best = w;
	}
	return best != ODM_NOBODY ? best : least_of_group(d, expert, false);
}

/* Of those that nobody has yet, the one that will be ready first. False: there are none. */
static bool deal_one(const struct dealer *d, const uint16_t *expert, size_t n, uint32_t *worker)
{
	uint32_t best_worker = ODM_NOBODY, best_load = 0;
	size_t best = 0;

	for (size_t i = 0; i < n; i++) {
		uint32_t w, load;

		if (worker[i] != ODM_NOBODY)
			continue;
		w = least_loaded(d, expert[i]);
		load = load_with(d, w, expert[i]);
		if (best_worker == ODM_NOBODY || load < best_load) {
			best = i;
			best_worker = w;
			best_load = load;
		}
	}
	if (best_worker == ODM_NOBODY)
		return false;
	worker[best] = best_worker;
	d->load[best_worker] = best_load;
	return true;
}

/* Where an expert is on its way to, it goes. */
static void deal_again(const struct dealer *d, const uint16_t *expert, size_t n,
		       uint32_t (*keep)(void *arg, uint16_t expert), void *arg, uint32_t *worker)
{
	memset(d->load, 0, d->g->n_workers * sizeof(*d->load));
	for (size_t i = 0; i < n; i++) {
		worker[i] = keep != NULL ? keep(arg, expert[i]) : ODM_NOBODY;
		if (worker[i] >= d->g->n_workers)
			worker[i] = ODM_NOBODY;
		else
			d->load[worker[i]] = load_with(d, worker[i], expert[i]);
	}
}

void odm_deal(const struct odm_groups *g, uint64_t step, uint32_t m, const uint16_t *expert, size_t n_experts,
	      uint32_t (*keep)(void *arg, uint16_t expert), void *arg, uint32_t *worker, uint32_t *load)
{
	const struct dealer d = { .g = g, .m = m, .group = odm_group_of_layer(g, step, m), .run = ODM_COST_RUN, .load = load };

	deal_again(&d, expert, n_experts, keep, arg, worker);
	while (deal_one(&d, expert, n_experts, worker))
		;
}

uint32_t odm_prefill_worker(const struct odm_groups *g, uint32_t m, uint16_t expert)
{
	for (uint32_t i = 0; i < g->n_workers; i++) {
		const uint32_t w = (expert + i) % g->n_workers;

		if (odm_worker_has(g, w, m, expert))
			return w;
	}
	return expert % g->n_workers;
}

/* In one go: there may be as many as a layer has. */
static void deal_rest(const struct dealer *d, const uint16_t *expert, size_t n, bool kept, uint32_t *worker)
{
	for (size_t i = 0; i < n; i++) {
		if (worker[i] != ODM_NOBODY || group_keeps(d, expert[i]) != kept)
			continue;
		worker[i] = least_loaded(d, expert[i]);
		d->load[worker[i]] = load_with(d, worker[i], expert[i]);
	}
}

void odm_deal_prefill(const struct odm_groups *g, uint32_t m, const uint16_t *expert, size_t n_experts,
		      uint32_t (*keep)(void *arg, uint16_t expert), void *arg, uint32_t *worker, uint32_t *load)
{
	struct odm_groups all = *g; /* everybody is one group */
	const struct dealer d = { .g = &all, .m = m, .run = ODM_COST_PROMPT_RUN, .load = load };

	for (size_t i = 0; !g->homes && i < n_experts; i++)
		worker[i] = odm_prefill_worker(g, m, expert[i]);
	if (!g->homes)
		return;
	all.n_groups = 1;
	deal_again(&d, expert, n_experts, keep, arg, worker);
	deal_rest(&d, expert, n_experts, true, worker);
	deal_rest(&d, expert, n_experts, false, worker);
}

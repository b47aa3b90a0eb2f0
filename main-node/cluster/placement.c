#include "main-node/cluster/placement.h"

#include "common/pack/share.h"

#include <string.h>

/* Experts of a group for each of its workers: as a rule there is a slot for each. */
#define FEW_PER_WORKER 2

struct odm_groups odm_groups_make(uint32_t n_workers, uint32_t asked, uint32_t top_k, uint32_t n_moe)
{
	const uint32_t size = asked > 0 ? asked : top_k, few = FEW_PER_WORKER * (size < n_workers ? size : n_workers);

	return (struct odm_groups){ .n_workers = n_workers,
				    .n_many = n_workers,
				    .n_groups = od_share_groups(n_workers, asked, top_k),
				    .n_moe = n_moe,
				    .few = few > top_k ? few : top_k }; /* a row's are always few */
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
	const uint16_t *expert;
	size_t n;
	uint32_t run; /* cost of running one */
	bool all; /* workers outside the group are looked at, too */
	/* Scratch. */
	uint32_t *load; /* [n_workers]: what each has to do */
	uint32_t *next; /* [n_workers]: in order, before it all are dealt */
	uint32_t *order; /* [n_workers][n]: indices of experts, the cheapest first; ODM_NOBODY behind the last */
	uint8_t *cost; /* [n_workers][n]; ODM_COST_LACKS: the expert is not dealt to this worker */
};

static struct dealer make_dealer(const struct odm_groups *g, uint32_t m, uint32_t group, const uint16_t *expert,
				 size_t n, uint32_t run, uint32_t *scratch)
{
	uint32_t *order = scratch + 2 * (size_t)g->n_workers;

	return (struct dealer){ .g = g,
				.m = m,
				.group = group,
				.expert = expert,
				.n = n,
				.run = run,
				.load = scratch,
				.next = scratch + g->n_workers,
				.order = order,
				.cost = (uint8_t *)(order + n * g->n_workers) };
}

static bool is_member(const struct dealer *d, uint32_t w)
{
	return w % d->g->n_groups == d->group;
}

/* The workers that are looked at: for (w = first(d); w < n_workers; w += stride(d)). */
static uint32_t first(const struct dealer *d)
{
	return d->all ? 0 : d->group;
}

static uint32_t stride(const struct dealer *d)
{
	return d->all ? 1 : d->g->n_groups;
}

static uint8_t *cost_at(const struct dealer *d, uint32_t w, size_t i)
{
	return &d->cost[w * d->n + i];
}

static void ask(const struct dealer *d, uint32_t w)
{
	if (d->g->cost == NULL)
		memset(cost_at(d, w, 0), ODM_COST_LOAD, d->n);
	else
		d->g->cost(d->g->cost_arg, w, d->m, d->expert, d->n, cost_at(d, w, 0));
}

/* A worker's load if an expert of this cost is dealt to it. */
static uint32_t load_with(const struct dealer *d, uint32_t w, uint8_t cost)
{
	return d->load[w] + d->run + (cost == ODM_COST_LACKS ? ODM_COST_LOAD : cost);
}

/* Where an expert is on its way to, it goes. */
static void deal_again(const struct dealer *d, uint32_t (*keep)(void *arg, uint16_t expert), void *arg,
		       uint32_t *worker)
{
	memset(d->load, 0, d->g->n_workers * sizeof(*d->load));
	for (size_t i = 0; i < d->n; i++) {
		const uint32_t w = keep != NULL ? keep(arg, d->expert[i]) : ODM_NOBODY;

		worker[i] = w < d->g->n_workers ? w : ODM_NOBODY;
		if (worker[i] != ODM_NOBODY)
			d->load[w] =
				load_with(d, w,
					  d->all || is_member(d, w) ? *cost_at(d, w, i) :
								      odm_worker_cost(d->g, w, d->m, d->expert[i]));
	}
}

/* ---- Few ---- */

struct holders {
	uint32_t anybody; /* the first that has it; ODM_NOBODY */
	bool group; /* one of the group has it, */
	bool kept; /* or keeps some of it in its cache */
};

static struct holders find_holders(const struct dealer *d, size_t i)
{
	struct holders h = { .anybody = ODM_NOBODY };

	for (uint32_t w = first(d); w < d->g->n_workers; w += stride(d)) {
		const uint8_t cost = *cost_at(d, w, i);

		if (cost == ODM_COST_LACKS)
			continue;
		if (h.anybody == ODM_NOBODY)
			h.anybody = w;
		h.group = h.group || is_member(d, w);
		h.kept = h.kept || (is_member(d, w) && cost < ODM_COST_LOAD);
	}
	return h;
}

/* Strikes out the workers that an expert is not dealt to. */
static void choose_workers(const struct dealer *d, size_t i)
{
	const struct holders h = find_holders(d, i);

	for (uint32_t w = first(d); w < d->g->n_workers; w += stride(d)) {
		uint8_t *cost = cost_at(d, w, i);
		const bool keeps = *cost < ODM_COST_LOAD && d->g->homes && !h.kept;

		if (h.anybody == ODM_NOBODY && is_member(d, w))
			*cost = ODM_COST_LOAD;
		else if (h.group ? !is_member(d, w) && !keeps : w != h.anybody)
			*cost = ODM_COST_LACKS;
	}
}

/* Somebody outside the group may be dealt an expert: who keeps it, or has it when none of the group does. */
static bool needs_others(const struct dealer *d)
{
	bool others = d->g->homes && d->g->cost != NULL;

	for (size_t i = 0; i < d->n && !others; i++)
		others = !find_holders(d, i).group;
	return others;
}

/* By cost, equal ones by their numbers. */
static void sort_by_cost(const struct dealer *d, uint32_t w)
{
	uint32_t begin[ODM_COST_LOAD + 2] = { 0 };
	uint32_t *order = d->order + w * d->n;

	for (size_t i = 0; i < d->n; i++)
		if (*cost_at(d, w, i) != ODM_COST_LACKS)
			begin[*cost_at(d, w, i) + 1]++;
	for (size_t c = 1; c < ODM_COST_LOAD + 2; c++)
		begin[c] += begin[c - 1];
	for (size_t i = begin[ODM_COST_LOAD + 1]; i < d->n; i++)
		order[i] = ODM_NOBODY;
	for (size_t i = 0; i < d->n; i++)
		if (*cost_at(d, w, i) != ODM_COST_LACKS)
			order[begin[*cost_at(d, w, i)]++] = (uint32_t)i;
	d->next[w] = 0;
}

/* Rank among equal workers; the smallest is dealt the expert: the group's by turns, then the others. */
static uint32_t turn(const struct dealer *d, uint32_t w, size_t i)
{
	const uint32_t size = odm_group_size(d->g, d->group),
		       begin = d->g->homes ? d->expert[i] : d->m / d->g->n_groups;

	return is_member(d, w) ? (w / d->g->n_groups + size - begin % size) % size : size + w;
}

/* Finds the undealt expert that costs worker w least, among those that it may run; ODM_NOBODY: there is none. */
static uint32_t cheapest(const struct dealer *d, uint32_t w, const uint32_t *worker)
{
	const uint32_t *order = d->order + w * d->n;

	while (d->next[w] < d->n && order[d->next[w]] != ODM_NOBODY && worker[order[d->next[w]]] != ODM_NOBODY)
		d->next[w]++;
	return d->next[w] < d->n ? order[d->next[w]] : ODM_NOBODY;
}

/* Deals one more expert: the one that will be ready first. False: none is left that can be dealt. */
static bool deal_one(const struct dealer *d, uint32_t *worker)
{
	uint32_t best = ODM_NOBODY, best_load = 0, best_i = 0;

	for (uint32_t w = first(d); w < d->g->n_workers; w += stride(d)) {
		const uint32_t i = cheapest(d, w, worker),
			       load = i == ODM_NOBODY ? 0 : load_with(d, w, *cost_at(d, w, i));

		if (i == ODM_NOBODY || (best != ODM_NOBODY && load > best_load))
			continue;
		if (best != ODM_NOBODY && load == best_load &&
		    (i > best_i || (i == best_i && turn(d, w, i) > turn(d, best, i))))
			continue;
		best = w;
		best_i = i;
		best_load = load;
	}
	if (best == ODM_NOBODY)
		return false;
	worker[best_i] = best;
	d->load[best] = best_load;
	return true;
}

static void deal_few(struct dealer *d, uint32_t (*keep)(void *arg, uint16_t expert), void *arg, uint32_t *worker)
{
	for (uint32_t w = first(d); w < d->g->n_workers; w += stride(d))
		ask(d, w);
	if (needs_others(d)) {
		d->all = true;
		for (uint32_t w = 0; w < d->g->n_workers; w++)
			if (!is_member(d, w))
				ask(d, w);
	}
	deal_again(d, keep, arg, worker);
	if (d->g->cost != NULL)
		for (size_t i = 0; i < d->n; i++)
			choose_workers(d, i);
	for (uint32_t w = first(d); w < d->g->n_workers; w += stride(d))
		sort_by_cost(d, w);
	while (deal_one(d, worker))
		;
}

/* ---- Many ---- */

uint32_t odm_worker_of_many(const struct odm_groups *g, uint32_t m, uint16_t expert)
{
	for (uint32_t i = 0; i < g->n_many; i++) {
		const uint32_t w = (expert + i) % g->n_many;

		if (odm_worker_has(g, w, m, expert))
			return w;
	}
	return expert % g->n_many;
}

static void deal_by_number(const struct dealer *d, uint32_t (*keep)(void *arg, uint16_t expert), void *arg,
			   uint32_t *worker)
{
	for (size_t i = 0; i < d->n; i++) {
		worker[i] = keep != NULL ? keep(arg, d->expert[i]) : ODM_NOBODY;
		if (worker[i] >= d->g->n_workers || !odm_worker_has(d->g, worker[i], d->m, d->expert[i]))
			worker[i] = odm_worker_of_many(d->g, d->m, d->expert[i]);
	}
}

/* The one that has least to do, counted from e mod N; who lacks it only when all do. */
static void deal_to_least(const struct dealer *d, size_t i, uint32_t *worker)
{
	const uint32_t n = d->g->n_workers;
	uint32_t best = ODM_NOBODY, best_load = 0;
	bool best_has = false;

	for (uint32_t j = 0; j < n; j++) {
		const uint32_t w = (d->expert[i] + j) % n, load = load_with(d, w, *cost_at(d, w, i));
		const bool has = *cost_at(d, w, i) != ODM_COST_LACKS;

		if (best == ODM_NOBODY || has > best_has || (has == best_has && load < best_load)) {
			best = w;
			best_load = load;
			best_has = has;
		}
	}
	worker[i] = best;
	d->load[best] = best_load;
}

static void deal_many(struct dealer *d, uint32_t (*keep)(void *arg, uint16_t expert), void *arg, uint32_t *worker)
{
	for (uint32_t w = 0; w < d->g->n_workers; w++)
		ask(d, w);
	deal_again(d, keep, arg, worker);
	for (int kept = 1; kept >= 0; kept--)
		for (size_t i = 0; i < d->n; i++)
			if (worker[i] == ODM_NOBODY && (kept == 0 || find_holders(d, i).kept))
				deal_to_least(d, i, worker);
}

void odm_deal(const struct odm_groups *g, uint64_t step, uint32_t m, const uint16_t *expert, size_t n_experts,
	      uint32_t (*keep)(void *arg, uint16_t expert), void *arg, uint32_t *worker, uint32_t *scratch)
{
	struct odm_groups one = *g; /* everybody is one group */
	struct dealer d;

	one.n_groups = 1;
	one.n_workers = g->n_many;
	if (n_experts <= g->few) {
		d = make_dealer(g, m, odm_group_of_layer(g, step, m), expert, n_experts, ODM_COST_RUN, scratch);
		deal_few(&d, keep, arg, worker);
		return;
	}
	d = make_dealer(&one, m, 0, expert, n_experts, ODM_COST_MANY_RUN, scratch);
	if (g->homes)
		deal_many(&d, keep, arg, worker);
	else
		deal_by_number(&d, keep, arg, worker);
}

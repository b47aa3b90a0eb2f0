#include "main-node/placement.h"

#include "common/pack/share.h"

#include <string.h>

struct odm_groups odm_groups_make(uint32_t n_workers, uint32_t asked, uint32_t top_k, uint32_t n_layers)
{
	return (struct odm_groups){ .n_workers = n_workers,
				    .n_groups = od_share_groups(n_workers, asked, top_k),
				    .n_layers = n_layers };
}

uint32_t odm_group_of_layer(const struct odm_groups *g, uint64_t step, uint32_t m)
{
	uint64_t start = !g->still && g->n_groups > 1 && g->n_layers % g->n_groups == 1 ? step % g->n_groups : 0;

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
	uint32_t m, group, first;
	const uint32_t *load;
};

/* Of the group's; ODM_NOBODY: with, and none of them has it. */
static uint32_t least_of_group(const struct dealer *d, uint16_t expert, bool with)
{
	uint32_t size = odm_group_size(d->g, d->group), best = ODM_NOBODY;

	for (uint32_t i = 0; i < size; i++) {
		uint32_t w = odm_group_worker(d->g, d->group, (d->first + i) % size);

		if ((best == ODM_NOBODY || d->load[w] < d->load[best]) && (!with || odm_worker_has(d->g, w, d->m, expert)))
			best = w;
	}
	return best;
}

static uint32_t least_loaded(const struct dealer *d, uint16_t expert)
{
	uint32_t best = least_of_group(d, expert, true);

	for (uint32_t w = 0; best == ODM_NOBODY && w < d->g->n_workers; w++) {
		if (odm_worker_has(d->g, w, d->m, expert))
			best = w;
	}
	return best != ODM_NOBODY ? best : least_of_group(d, expert, false);
}

void odm_deal(const struct odm_groups *g, uint64_t step, uint32_t m, const uint16_t *expert, size_t n_experts,
	      uint32_t (*keep)(void *arg, uint16_t expert), void *arg, uint32_t *worker, uint32_t *load)
{
	const struct dealer d = { .g = g, .m = m, .group = odm_group_of_layer(g, step, m), .first = m / g->n_groups,
				  .load = load };

	memset(load, 0, g->n_workers * sizeof(*load));
	for (size_t i = 0; i < n_experts; i++) {
		worker[i] = keep != NULL ? keep(arg, expert[i]) : ODM_NOBODY;
		if (worker[i] >= g->n_workers)
			worker[i] = ODM_NOBODY;
		else
			load[worker[i]]++;
	}
	for (size_t i = 0; i < n_experts; i++) {
		if (worker[i] != ODM_NOBODY)
			continue;
		worker[i] = least_loaded(&d, expert[i]);
		load[worker[i]]++;
	}
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

#include "main-node/placement.h"

#include <string.h>

struct odm_groups odm_groups_make(uint32_t n_workers, uint32_t asked, uint32_t top_k, uint32_t n_layers)
{
	uint32_t size = asked > 0 ? asked : top_k;
	struct odm_groups g = { .n_workers = n_workers, .n_layers = n_layers };

	if (n_workers == 0)
		return g;
	if (size > n_workers)
		size = n_workers;
	g.n_groups = n_workers / size > 0 ? n_workers / size : 1;
	return g;
}

uint32_t odm_group_of_layer(const struct odm_groups *g, uint64_t step, uint32_t m)
{
	uint64_t start = g->n_groups > 1 && g->n_layers % g->n_groups == 1 ? step % g->n_groups : 0;

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

static uint32_t least_loaded(const struct odm_groups *g, uint32_t group, uint32_t first, const uint32_t *load)
{
	uint32_t size = odm_group_size(g, group), best = odm_group_worker(g, group, first % size);

	for (uint32_t i = 1; i < size; i++) {
		uint32_t w = odm_group_worker(g, group, (first + i) % size);

		if (load[w] < load[best])
			best = w;
	}
	return best;
}

void odm_deal(const struct odm_groups *g, uint64_t step, uint32_t m, const uint16_t *expert, size_t n_experts,
	      uint32_t (*keep)(void *arg, uint16_t expert), void *arg, uint32_t *worker, uint32_t *load)
{
	uint32_t group = odm_group_of_layer(g, step, m), turn = m / g->n_groups;

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
		worker[i] = least_loaded(g, group, turn, load);
		load[worker[i]]++;
	}
}

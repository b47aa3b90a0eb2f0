#include "worker-node/load/run_order.h"

/* What is loaded faster than it runs goes first, the fastest load first, so that runs begin early; the rest by falling
 * runs, so that the last run is short. */
static bool goes_first(const struct odw_run_load *a, const struct odw_run_load *b)
{
	const bool early_a = a->load_ns < a->run_ns, early_b = b->load_ns < b->run_ns;

	if (a->resident || b->resident)
		return a->resident && (!b->resident || a->rank < b->rank);
	if (early_a != early_b)
		return early_a;
	if (!early_a && a->run_ns != b->run_ns)
		return a->run_ns > b->run_ns;
	if (a->load_ns != b->load_ns)
		return a->load_ns < b->load_ns;
	if (a->read_ns != b->read_ns)
		return a->read_ns < b->read_ns;
	return a->rank < b->rank;
}

/* There are few, and mostly they are in order already. */
void odw_run_order(struct odw_run_load *load, size_t n)
{
	uint16_t order[ODW_MAX_ORDERED];
	uint32_t rank[ODW_MAX_ORDERED];

	if (n > ODW_MAX_ORDERED)
		return;
	for (size_t i = 0, j; i < n; i++) {
		for (j = i; j > 0 && goes_first(&load[i], &load[order[j - 1]]); j--)
			order[j] = order[j - 1];
		order[j] = (uint16_t)i;
		for (j = i; j > 0 && rank[j - 1] > load[i].rank; j--)
			rank[j] = rank[j - 1];
		rank[j] = load[i].rank;
	}
	for (size_t i = 0; i < n; i++)
		load[order[i]].rank = rank[i];
}

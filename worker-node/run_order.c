#include "worker-node/run_order.h"

static uint64_t at_most(uint64_t ns, uint64_t most)
{
	return ns < most ? ns : most;
}

/* An expert is one task, each of its parts a chunk. */
static struct odw_load_costs costs_of(const struct odw_expert_costs *c)
{
	const uint64_t n = at_most(c->n_parts, ODW_ORDER_CHUNKS);

	return (struct odw_load_costs){ .sm_read_ns = at_most(c->sm_read_ns, ODW_ORDER_COST_NS),
					.e_read_ns = at_most((c->read_ns - c->sm_read_ns) / n, ODW_ORDER_COST_NS),
					.inflate_ns = at_most(c->finish_ns / n, ODW_ORDER_COST_NS),
					.n_chunks = (uint16_t)n,
					.n_inflaters = (unsigned)at_most(c->n_inflaters, ODW_ORDER_INFLATERS) };
}

/* Few, and almost always in order already. */
static void sort_ranks(uint32_t *rank, size_t n)
{
	for (size_t i = 1; i < n; i++) {
		for (size_t j = i; j > 0 && rank[j - 1] > rank[j]; j--) {
			uint32_t t = rank[j];

			rank[j] = rank[j - 1];
			rank[j - 1] = t;
		}
	}
}

/* Items by rank; load_order keeps the order of equals. */
static void by_rank(const struct odw_item *item, size_t n, uint16_t *index)
{
	for (size_t i = 0; i < n; i++) {
		size_t j = i;

		for (; j > 0 && item[index[j - 1]].rank > item[i].rank; j--)
			index[j] = index[j - 1];
		index[j] = (uint16_t)i;
	}
}

void odw_run_order(struct odw_item *item, size_t n, const unsigned *has, const struct odw_expert_costs *costs,
		   enum odw_load_rule rule)
{
	struct odw_load_task task[ODW_ORDER_TASKS];
	struct odw_load_costs c = costs_of(costs);
	uint32_t rank[ODW_ORDER_TASKS];
	uint16_t index[ODW_ORDER_TASKS], at[ODW_ORDER_TASKS]; /* items by rank; of a task */
	size_t n_tasks = 0, first = 0;
	struct odw_load_order o;

	if (n < 2 || n > ODW_ORDER_TASKS)
		return;
	by_rank(item, n, index);
	for (size_t i = 0; i < n; i++) {
		const struct odw_item *it = &item[index[i]];

		if (it->run_ns == 0)
			return;
		rank[i] = it->rank;
		if (has[index[i]] == ODW_RESIDES)
			continue;
		task[n_tasks] = (struct odw_load_task){ .expert = it->expert, .has_e = (has[index[i]] & OD_SET_E) != 0,
							.has_sm = (has[index[i]] & OD_SET_SM) != 0,
							.run_ns = at_most(it->run_ns, ODW_ORDER_COST_NS) };
		at[n_tasks++] = index[i];
	}
	if (odw_load_order(&o, rule, task, n_tasks, &c) != OD_OK)
		return;
	sort_ranks(rank, n);
	for (size_t i = 0; i < n; i++)
		if (has[index[i]] == ODW_RESIDES)
			item[index[i]].rank = rank[first++];
	for (size_t i = 0; i < n_tasks; i++)
		item[at[o.task[i]]].rank = rank[first + i];
}

#include "tests/bench/sim/rank_list.h"

#include <stdlib.h>

int sim_rank_list_init(struct sim_rank_list *r, uint32_t n_moe, uint32_t n_experts, struct od_err *err)
{
	const size_t n = (size_t)n_moe * n_experts;

	*r = (struct sim_rank_list){ .n_moe = n_moe, .n_experts = n_experts };
	if (n == 0 || n_experts > UINT16_MAX)
		return od_fail(err, OD_ERR_RANGE, "ranks of %u layers of %u experts", n_moe, n_experts);
	r->count = calloc(n, sizeof(*r->count));
	r->order = calloc(n, sizeof(*r->order));
	r->rank = calloc(n, sizeof(*r->rank));
	if (r->count == NULL || r->order == NULL || r->rank == NULL) {
		sim_rank_list_fini(r);
		return od_fail(err, OD_ERR_NOMEM, "ranks of %u layers of %u experts", n_moe, n_experts);
	}
	for (size_t i = 0; i < n; i++)
		r->order[i] = r->rank[i] = (uint16_t)(i % n_experts);
	return OD_OK;
}

void sim_rank_list_fini(struct sim_rank_list *r)
{
	free(r->count);
	free(r->order);
	free(r->rank);
	*r = (struct sim_rank_list){ 0 };
}

void sim_rank_list_use(struct sim_rank_list *r, uint32_t layer, uint32_t expert)
{
	const size_t first = (size_t)layer * r->n_experts;
	uint64_t *count = r->count + first, uses = ++count[expert];
	uint16_t *order = r->order + first, *rank = r->rank + first, at = rank[expert];

	/* It is the newest of those with as many uses. */
	for (; at > 0 && count[order[at - 1]] <= uses; at--) {
		order[at] = order[at - 1];
		rank[order[at]] = at;
	}
	order[at] = (uint16_t)expert;
	rank[expert] = at;
}

int sim_rank_stats_init(struct sim_rank_stats *p, uint32_t n_moe, uint32_t n_experts, struct od_err *err)
{
	int rc;

	*p = (struct sim_rank_stats){ 0 };
	rc = sim_rank_list_init(&p->list, n_moe, n_experts, err);
	if (rc != OD_OK)
		return rc;
	p->uses = calloc(n_experts, sizeof(*p->uses));
	if (p->uses == NULL) {
		sim_rank_stats_fini(p);
		return od_fail(err, OD_ERR_NOMEM, "ranks of %u experts", n_experts);
	}
	return OD_OK;
}

void sim_rank_stats_fini(struct sim_rank_stats *p)
{
	sim_rank_list_fini(&p->list);
	free(p->uses);
	*p = (struct sim_rank_stats){ 0 };
}

void sim_rank_stats_visit(struct sim_rank_stats *p, uint32_t layer, const uint16_t *experts, size_t n)
{
	for (size_t i = 0; i < n; i++)
		p->uses[sim_rank_of(&p->list, layer, experts[i])]++;
	for (size_t i = 0; i < n; i++)
		sim_rank_list_use(&p->list, layer, experts[i]);
	p->visits += n > 0;
	p->all += n;
}

void sim_rank_stats_inclusion(const struct sim_rank_stats *p, double *f)
{
	for (uint32_t r = 0; r < p->list.n_experts; r++)
		f[r] = p->visits > 0 ? (double)p->uses[r] / (double)p->visits : 1.0 / p->list.n_experts;
}

double sim_rank_stats_k(const struct sim_rank_stats *p)
{
	return p->visits > 0 ? (double)p->all / (double)p->visits : 1;
}

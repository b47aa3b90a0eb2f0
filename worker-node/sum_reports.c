#include "worker-node/sum_reports.h"

#include "common/pack/expert_sums.h"

#include <stdlib.h>
#include <string.h>

struct odw_sum_reports {
	const struct od_pack *pack;
	uint32_t n, per_layer;
	size_t n_tensors;
	uint64_t state; /* od_expert_sums_state, when the last look at all began */
	uint32_t at; /* the next to look at; 0: the look has ended */
	bool *sent; /* [n] */
	/* The report: */
	struct od_expert_sums sums[OD_MAX_PONG_SUMS];
	Od__ExpertSums body[OD_MAX_PONG_SUMS], *list[OD_MAX_PONG_SUMS];
};

int odw_sum_reports_new(struct odw_sum_reports **out, const struct od_pack *pack, struct od_err *err)
{
	const struct od_config *cfg = od_pack_config(pack);
	struct odw_sum_reports *r;

	*out = NULL;
	if (!od_expert_sums_apply(pack))
		return OD_OK;
	r = calloc(1, sizeof(*r));
	if (r == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for checksums of experts");
	r->pack = pack;
	r->per_layer = cfg->n_experts;
	r->n = cfg->n_moe * cfg->n_experts;
	r->n_tensors = (size_t)od_expert_tensors(cfg);
	r->sent = calloc(r->n, sizeof(*r->sent));
	if (r->sent == NULL) {
		odw_sum_reports_free(r);
		return od_fail(err, OD_ERR_NOMEM, "no memory for checksums of experts");
	}
	odw_sum_reports_restart(r);
	*out = r;
	return OD_OK;
}

void odw_sum_reports_free(struct odw_sum_reports *r)
{
	if (r == NULL)
		return;
	free(r->sent);
	free(r);
}

void odw_sum_reports_restart(struct odw_sum_reports *r)
{
	if (r == NULL)
		return;
	memset(r->sent, 0, r->n * sizeof(*r->sent));
	r->state = UINT64_MAX;
	r->at = 0;
}

static bool add(struct odw_sum_reports *r, uint32_t i, size_t n)
{
	const uint32_t m = i / r->per_layer, expert = i % r->per_layer;

	if (r->sent[i] || !od_expert_sums_get(r->pack, m, expert, &r->sums[n]))
		return false;
	r->sent[i] = true;
	od__expert_sums__init(&r->body[n]);
	r->body[n].m = m;
	r->body[n].expert = expert;
	r->body[n].xxh3 = r->sums[n].xxh3;
	r->body[n].n_xxh3 = r->n_tensors;
	r->list[n] = &r->body[n];
	return true;
}

void odw_sum_reports_fill(struct odw_sum_reports *r, Od__Pong *p)
{
	uint64_t state;

	if (r == NULL)
		return;
	state = od_expert_sums_state(r->pack); /* before the look: what changes meanwhile is looked at again */
	if (r->at == 0 && state == r->state)
		return;
	if (r->at == 0)
		r->state = state;
	p->sums = r->list;
	for (; r->at < r->n && p->n_sums < OD_MAX_PONG_SUMS; r->at++)
		p->n_sums += add(r, r->at, p->n_sums);
	if (r->at == r->n)
		r->at = 0;
}

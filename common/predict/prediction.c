#include "common/predict/prediction.h"

int od_prediction_check(const struct od_prediction *p, const struct od_config *c, struct od_err *err)
{
	if (p->m >= c->n_moe)
		return od_fail(err, OD_ERR_RANGE, "MoE layer %u; expected 0 to %u", p->m, c->n_moe - 1);
	if (p->n < c->top_k || p->n > OD_MAX_CANDIDATES)
		return od_fail(err, OD_ERR_RANGE, "%zu experts; expected %u to %d", p->n, c->top_k, OD_MAX_CANDIDATES);
	for (size_t i = 0; i < p->n; i++) {
		bool good = p->expert[i] < c->n_experts;

		for (size_t j = 0; j < i && good; j++)
			good = p->expert[j] != p->expert[i];
		if (!good)
			return od_fail(err, OD_ERR_RANGE,
				       "expert %u, number %zu of its list; expected 0 to %u, each once", p->expert[i],
				       i, c->n_experts - 1);
	}
	return OD_OK;
}

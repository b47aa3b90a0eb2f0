#include "common/model/router.h"

/* Insertion in index order with a strict comparison: ties stay with the lower index, and every NaN comparison is
 * false. */
void od_router_rank(const float *score, size_t n_experts, uint16_t *expert, size_t n)
{
	size_t have = 0;

	for (size_t e = 0; e < n_experts; e++) {
		size_t at = have;

		while (at > 0 && score[e] > score[expert[at - 1]])
			at--;
		if (at == n)
			continue;
		have += have < n;
		for (size_t i = have - 1; i > at; i--)
			expert[i] = expert[i - 1];
		expert[at] = (uint16_t)e;
	}
}

void od_router_choose(const struct od_backend *be, const struct od_config *cfg, float *logits, uint16_t *expert,
		      float *weight, float *margin)
{
	uint16_t best[OD_MAX_TOP_K + 1]; /* the k best and the next, for the margin */
	size_t k = cfg->top_k, want = k < cfg->n_experts ? k + 1 : k;
	float sum = 0;

	be->softmax(logits, cfg->n_experts);
	od_router_rank(logits, cfg->n_experts, best, want);
	for (size_t r = 0; r < k; r++)
		sum += logits[best[r]];
	for (size_t r = 0; r < k; r++) {
		expert[r] = best[r];
		weight[r] = logits[best[r]] / sum;
	}
	*margin = want > k ? logits[best[k - 1]] - logits[best[k]] : 1.0f;
}

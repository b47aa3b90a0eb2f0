#include "common/model/router.h"

void od_router_choose(const struct od_backend *be, const struct od_config *cfg, float *logits, uint16_t *expert,
		      float *weight, float *margin)
{
	uint16_t best[OD_MAX_TOP_K + 1]; /* the k best and the next, for the margin */
	size_t k = cfg->top_k, want = k < cfg->n_experts ? k + 1 : k, n = 0;
	float sum = 0;

	be->softmax(logits, cfg->n_experts);
	/* Insertion in index order with a strict comparison: ties stay with the lower index, and every NaN
	 * comparison is false, so whatever the logits are, the experts differ from each other. */
	for (size_t e = 0; e < cfg->n_experts; e++) {
		size_t at = n;

		while (at > 0 && logits[e] > logits[best[at - 1]])
			at--;
		if (at == want)
			continue;
		n += n < want;
		for (size_t i = n - 1; i > at; i--)
			best[i] = best[i - 1];
		best[at] = (uint16_t)e;
	}
	for (size_t r = 0; r < k; r++)
		sum += logits[best[r]];
	for (size_t r = 0; r < k; r++) {
		expert[r] = best[r];
		weight[r] = logits[best[r]] / sum;
	}
	*margin = want > k ? logits[best[k - 1]] - logits[best[k]] : 1.0f;
}

#include "main-node/predict/predictions_internal.h"

#include "main-node/predict/prediction_drafts.h"

/* Something is predicted for the position, which is after the sequence's rows. */
static bool is_ahead(const struct sequence *q, uint32_t position)
{
	return q != NULL && position >= q->end && position < q->top;
}

size_t odm_predictions_draft(struct odm_predictions *p, uint64_t sequence, uint32_t position, int32_t token,
			     int32_t *out, float *margin, size_t max)
{
	const struct sequence *q;
	size_t n = 0;

	pthread_mutex_lock(&p->lock);
	q = find_sequence(p, sequence);
	if (is_ahead(q, position) && p->ahead[cell_of(p, q, position)].token == token) {
		/* Nothing is kept behind a stand-in. */
		for (; n < max && is_ahead(q, ++position); n++) {
			out[n] = p->ahead[cell_of(p, q, position)].token;
			margin[n] = p->ahead[cell_of(p, q, position)].margin;
		}
	}
	pthread_mutex_unlock(&p->lock);
	return n;
}

/* Number of experts in the row's prediction that have not been seen in this round. */
static uint32_t new_experts(struct odm_predictions *p, const struct row_prediction *r)
{
	uint32_t n = 0;

	for (uint32_t k = 0; k < p->o.top_k; k++) {
		uint32_t *stamp = &p->stamp[r->predicted.expert[k]];

		n += *stamp != p->round;
		*stamp = p->round;
	}
	return n;
}

void odm_predictions_union(struct odm_predictions *p, uint64_t sequence, uint32_t position, size_t n, uint32_t *experts)
{
	const struct sequence *q;

	memset(experts, 0, n * sizeof(*experts));
	pthread_mutex_lock(&p->lock);
	q = find_sequence(p, sequence);
	for (uint32_t m = 0; m < p->o.n_moe; m++) {
		uint32_t sum = 0;

		begin_round(p);
		for (size_t i = 0; i < n; i++) {
			const uint32_t at = position + (uint32_t)i;
			const struct row_prediction *r = is_ahead(q, at) ? row_of(p, m, cell_of(p, q, at)) : NULL;

			sum += r != NULL && r->predicted.n > 0 ? new_experts(p, r) : p->o.top_k;
			experts[i] += sum;
		}
	}
	pthread_mutex_unlock(&p->lock);
}

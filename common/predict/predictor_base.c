#include "common/predict/predictor_base.h"

#include "common/compute/rank.h"

void od_predictor_say(const struct od_predictor_base *b, const struct od_predict_row *row, uint32_t m,
		      const float *score)
{
	const struct od_config *c = b->o.config;
	uint16_t expert[OD_MAX_CANDIDATES];
	float probability[OD_MAX_CANDIDATES];
	struct od_prediction said = {
		.sequence = row->sequence,
		.position = row->position,
		.token = row->token,
		.m = m,
		.n = od_prediction_candidates(c),
		.expert = expert,
		.probability = probability,
	};
	float sum = 0;

	for (size_t e = 0; e < c->n_experts; e++)
		sum += score[e];
	if (!(sum > 0))
		return;
	od_rank(score, c->n_experts, expert, said.n);
	for (size_t i = 0; i < said.n; i++)
		probability[i] = score[expert[i]] / sum;
	b->o.emit(b->o.arg, &said);
}

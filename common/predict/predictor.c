#include "common/predict/predictor.h"

#include "common/model/router.h"
#include "common/predict/predictor_internal.h"

#include <string.h>

const char *const od_predictor_kinds[] = { OD_PREDICTOR_KINDS, NULL };

static od_predictor_make_fn *const make[] = {
	od_next_gate_new, od_multi_gate_new, od_popularity_new, od_history_new, od_trajectory_new, od_random_new,
};
_Static_assert(sizeof(od_predictor_kinds) / sizeof(od_predictor_kinds[0]) == sizeof(make) / sizeof(make[0]) + 1,
	       "a kind without a maker");

int od_predictor_new(struct od_predictor **out, const char *kind, const struct od_predictor_opts *opts,
		     struct od_err *err)
{
	size_t used = 0;
	char list[128];

	*out = NULL;
	for (size_t i = 0; od_predictor_kinds[i] != NULL; i++) {
		if (strcmp(kind, od_predictor_kinds[i]) == 0)
			return make[i](out, opts, err);
		used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i > 0 ? ", " : "",
					 od_predictor_kinds[i]);
	}
	return od_fail(err, OD_ERR_ARG, "predictor: expected one of %s, found \"%s\"", list, kind);
}

void od_predictor_say(const struct od_predictor_base *b, size_t row, uint32_t m, const float *score)
{
	const struct od_config *c = b->o.config;
	uint16_t expert[OD_MAX_CANDIDATES];
	float probability[OD_MAX_CANDIDATES];
	struct od_prediction said = {
		.step = b->step.step,
		.sequence = b->step.sequence,
		.row = (uint32_t)row,
		.position = b->step.position + (uint32_t)row,
		.token = b->step.token[row],
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
	od_router_rank(score, c->n_experts, expert, said.n);
	for (size_t i = 0; i < said.n; i++)
		probability[i] = score[expert[i]] / sum;
	b->o.emit(b->o.arg, &said);
}

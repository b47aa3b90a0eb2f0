#include "tests/bench/live/random_predictor.h"

#include "common/predict/predictor_base.h"
#include "tests/bench/bench_draw.h"

#include <stdlib.h>

static uint64_t mix(uint64_t x)
{
	return od_draw(&x);
}

void od_predict_random(uint64_t step, uint32_t layer, uint32_t n_experts, uint32_t k, uint16_t *expert)
{
	uint64_t state = mix(step) ^ mix((uint64_t)layer << 32);
	uint32_t n = 0;

	while (n < k) {
		uint16_t e = (uint16_t)(mix(state++) % n_experts);
		bool have = false;

		for (uint32_t i = 0; i < n; i++)
			have = have || expert[i] == e;
		if (!have)
			expert[n++] = e;
	}
}

static void begin_step(struct od_predictor *p, const struct od_predict_step *s)
{
	const struct od_predictor_opts *o = &((struct od_predictor_base *)p)->o;
	uint16_t expert[OD_MAX_TOP_K];

	for (uint32_t m = 0; !s->prompt && m < o->config->n_moe; m++) {
		for (size_t r = 0; r < s->n_rows; r++) {
			const struct od_predict_row *row = &s->row[r];
			const struct od_prediction said = {
				.sequence = row->sequence,
				.position = row->position,
				.token = row->token,
				.m = m,
				.expert = expert,
				.n = o->config->top_k,
			};

			if (row->quiet)
				continue;
			od_predict_random(s->step + ((uint64_t)r << 48), m, o->config->n_experts, o->config->top_k,
					  expert);
			o->emit(o->arg, &said);
		}
	}
}

static void free_random(struct od_predictor *p)
{
	free(p);
}

int od_random_new(struct od_predictor **out, const struct od_predictor_opts *opts, struct od_err *err)
{
	struct od_predictor_base *b = calloc(1, sizeof(*b));

	*out = NULL;
	if (b == NULL)
		return od_fail(err, OD_ERR_NOMEM, "predictor");
	b->o = *opts;
	b->p = (struct od_predictor){ .begin_step = begin_step, .free = free_random };
	*out = &b->p;
	return OD_OK;
}

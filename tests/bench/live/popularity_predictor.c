/* Predicts the experts used most so far, per layer, over all sequences and prompts of this process, as caches and
 * preloading by frequency do (OD-MoE section 2.3 on statistical predictors).
 *
 * All layers are predicted before layer 0, because the step itself does not change the prediction. Cost: a count
 * per use, and a ranking of n_experts per layer of a step. */
#include "tests/bench/live/popularity_predictor.h"

#include "common/base/mem.h"
#include "common/predict/predictor_base.h"

#include <stdlib.h>

struct popularity_predictor {
	struct od_predictor_base base;
	uint64_t *count; /* [n_moe][n_experts] */
	float *score; /* [n_experts] */
};

static void begin_step(struct od_predictor *p, const struct od_predict_step *s)
{
	struct popularity_predictor *c = (struct popularity_predictor *)p;
	const struct od_config *cfg = c->base.o.config;

	for (uint32_t m = 0; !s->prompt && m < cfg->n_moe; m++) {
		for (size_t e = 0; e < cfg->n_experts; e++)
			c->score[e] = (float)c->count[(size_t)m * cfg->n_experts + e];
		for (size_t r = 0; r < s->n_rows; r++)
			if (!s->row[r].quiet)
				od_predictor_say(&c->base, &s->row[r], m, c->score);
	}
}

static void routed(struct od_predictor *p, const struct od_predict_step *s, uint32_t m,
		   const struct od_routed_row *rows)
{
	struct popularity_predictor *c = (struct popularity_predictor *)p;
	const struct od_config *cfg = c->base.o.config;

	for (size_t r = 0; r < s->n_rows; r++) {
		for (size_t i = 0; i < cfg->top_k; i++)
			c->count[(size_t)m * cfg->n_experts + rows[r].expert[i]]++;
	}
}

static void free_popularity(struct od_predictor *p)
{
	struct popularity_predictor *c = (struct popularity_predictor *)p;

	od_free(c->count);
	od_free(c->score);
	free(c);
}

int od_popularity_new(struct od_predictor **out, const struct od_predictor_opts *opts, struct od_err *err)
{
	struct popularity_predictor *c = calloc(1, sizeof(*c));

	*out = NULL;
	if (c == NULL)
		return od_fail(err, OD_ERR_NOMEM, "predictor");
	c->base.o = *opts;
	c->base.p = (struct od_predictor){ .begin_step = begin_step, .routed = routed, .free = free_popularity };
	c->count = od_alloc_array((size_t)opts->config->n_moe * opts->config->n_experts, sizeof(*c->count));
	c->score = od_alloc_array(opts->config->n_experts, sizeof(*c->score));
	if (c->count == NULL || c->score == NULL) {
		free_popularity(&c->base.p);
		return od_fail(err, OD_ERR_NOMEM, "predictor");
	}
	*out = &c->base.p;
	return OD_OK;
}

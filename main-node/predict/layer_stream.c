#include "main-node/predict/layer_stream.h"

#define RECENT_STEPS 4 /* the means are over about so many; they follow texts that come and go */
/* docs/BENCHMARKS.md, "Many texts and their experts in one budget" */
#define LEAST_CHOSEN 0.6
#define MOST_RHO 1.2
#define LEAST_MISSING_CHOSEN 0.75
#define SLACK 0.1 /* a change moves memory between slots and the cache, so it is not undone at once */

void odm_layer_stream_routed(struct odm_layer_stream *s, uint32_t n_moe, const struct odm_layer_choice *c)
{
	if (c->n_missing == 0)
		return;
	s->n_layers += s->n_layers < RECENT_STEPS * n_moe;
	s->chosen += ((double)c->n_chosen / (double)c->n - s->chosen) / s->n_layers;
	s->missing_chosen += ((double)c->n_missing_chosen / (double)c->n_missing - s->missing_chosen) / s->n_layers;
}

static bool pays(double chosen, double missing_chosen, double rho, double slack)
{
	return chosen >= LEAST_CHOSEN - slack &&
	       (rho <= MOST_RHO + slack || missing_chosen >= LEAST_MISSING_CHOSEN - slack);
}

bool odm_layer_stream_pays(double chosen, double missing_chosen, double rho)
{
	return pays(chosen, missing_chosen, rho, 0);
}

bool odm_layer_stream_next(struct odm_layer_stream *s, double rho)
{
	s->on = s->n_layers > 0 && pays(s->chosen, s->missing_chosen, rho, s->on ? SLACK : 0);
	return s->on;
}

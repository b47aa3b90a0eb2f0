#include "main-node/predict/want_gate.h"

#include <stdlib.h>
#include <string.h>

#define RECENT_CASES 128 /* a precision is the mean of about so many cases */
#define MIN_CASES 16 /* with fewer it is not known */
#define MIN_PRECISION 0.75 /* docs/BENCHMARKS.md, "Loads ahead of the router" */

int odm_want_gate_init(struct odm_want_gate *g, const struct od_config *c, struct od_err *err)
{
	*g = (struct odm_want_gate){ .n_moe = c->n_moe, .n_experts = c->n_experts };
	g->step = calloc((size_t)c->n_moe * ODM_GATE_STEPS, sizeof(*g->step));
	g->predicted = calloc((size_t)c->n_moe * ODM_GATE_STEPS, c->n_experts);
	if (g->step != NULL && g->predicted != NULL)
		return OD_OK;
	odm_want_gate_fini(g);
	return od_fail(err, OD_ERR_NOMEM, "predictions of %u layers", c->n_moe);
}

void odm_want_gate_fini(struct odm_want_gate *g)
{
	free(g->step);
	free(g->predicted);
	*g = (struct odm_want_gate){ 0 };
}

static uint8_t *predicted_of(struct odm_want_gate *g, const uint64_t *step)
{
	return g->predicted + (size_t)(step - g->step) * g->n_experts;
}

/* The record of (step, m). NULL: there is none. */
static uint64_t *find(struct odm_want_gate *g, uint64_t step, uint32_t m)
{
	uint64_t *s = g->step + (size_t)m * ODM_GATE_STEPS;

	for (size_t i = 0; i < ODM_GATE_STEPS; i++)
		if (s[i] == step)
			return &s[i];
	return NULL;
}

/* The record of (step, m), empty. It takes the place of the older step's. */
static uint64_t *begin(struct odm_want_gate *g, uint64_t step, uint32_t m)
{
	uint64_t *s = g->step + (size_t)m * ODM_GATE_STEPS, *at = find(g, step, m);

	if (at == NULL) {
		at = s;
		for (size_t i = 1; i < ODM_GATE_STEPS; i++)
			at = s[i] < *at ? &s[i] : at;
	}
	*at = step;
	memset(predicted_of(g, at), 0, g->n_experts);
	return at;
}

static bool passes(const struct odm_gate_rank *r)
{
	return r->n_cases >= MIN_CASES && r->precision >= MIN_PRECISION;
}

void odm_want_gate_filter(struct odm_want_gate *g, struct odm_want *w, const bool *kept)
{
	const size_t n = w->n, n_predicted = w->n_predicted;
	uint8_t *predicted;

	if (w->prompt)
		return; /* they are certain */
	predicted = predicted_of(g, begin(g, w->step, w->m));
	w->n = w->n_predicted = 0;
	for (size_t i = 0; i < n; i++) {
		const uint8_t rank = w->rank[i];

		if (!kept[i])
			predicted[w->expert[i]] = (uint8_t)(rank + 1);
		if (!kept[i] && !passes(&g->rank[rank]))
			continue;
		w->expert[w->n] = w->expert[i];
		w->rank[w->n++] = rank;
		w->n_predicted += i < n_predicted;
	}
}

static void count(struct odm_gate_rank *r, bool right)
{
	r->n_cases += r->n_cases < RECENT_CASES;
	r->precision += (right - r->precision) / r->n_cases;
}

void odm_want_gate_routed(struct odm_want_gate *g, uint64_t step, uint32_t m, const uint16_t *expert, size_t n)
{
	uint64_t *at = find(g, step, m);
	uint8_t *predicted;

	if (at == NULL)
		return;
	predicted = predicted_of(g, at);
	for (size_t i = 0; i < n; i++) {
		uint8_t *p = &predicted[expert[i]];

		if (*p != 0)
			count(&g->rank[*p - 1], true);
		*p = 0; /* another row may have it, too */
	}
	for (uint32_t e = 0; e < g->n_experts; e++)
		if (predicted[e] != 0)
			count(&g->rank[predicted[e] - 1], false);
	*at = 0;
}

#include "tests/bench/sim/recall_tape.h"

#include <stdlib.h>
#include <string.h>

uint64_t recall_tape_bytes(uint32_t n_moe, uint32_t max_steps)
{
	return (uint64_t)max_steps * (n_moe * 2 * sizeof(struct odp_view) + sizeof(int32_t));
}

int recall_tape_init(struct recall_tape *t, uint32_t n_moe, uint32_t max_steps, struct od_err *err)
{
	const size_t n = (size_t)n_moe * max_steps;

	*t = (struct recall_tape){ .n_moe = n_moe, .max_steps = max_steps };
	t->guess = calloc(max_steps, sizeof(*t->guess));
	t->shadow = calloc(n, sizeof(*t->shadow));
	t->ahead = calloc(n, sizeof(*t->ahead));
	if (t->guess != NULL && t->shadow != NULL && t->ahead != NULL)
		return OD_OK;
	recall_tape_fini(t);
	return od_fail(err, OD_ERR_NOMEM, "predictions of %u steps", max_steps);
}

void recall_tape_fini(struct recall_tape *t)
{
	free(t->guess);
	free(t->shadow);
	free(t->ahead);
	*t = (struct recall_tape){ 0 };
}

void recall_tape_clear(struct recall_tape *t)
{
	const size_t n = (size_t)t->n_moe * t->max_steps;

	for (uint32_t i = 0; i < t->max_steps; i++)
		t->guess[i] = -1;
	for (size_t i = 0; i < n; i++)
		t->shadow[i].n = t->ahead[i].n = 0;
}

static void set_view(struct odp_view *v, const struct od_prediction *p)
{
	v->n = (uint16_t)p->n;
	memcpy(v->expert, p->expert, p->n * sizeof(*v->expert));
	for (size_t i = 0; i < p->n; i++)
		v->probability[i] = p->probability != NULL ? p->probability[i] : 0;
}

void recall_tape_add(struct recall_tape *t, uint32_t step, const struct od_prediction *p, int32_t token, bool early)
{
	const size_t at = (size_t)step * t->n_moe + p->m;

	if (step >= t->max_steps)
		return;
	if (early)
		t->guess[step] = p->token;
	set_view(early && p->token != token ? &t->ahead[at] : &t->shadow[at], p);
}

void recall_tape_any(struct recall_tape *t, uint32_t step, int32_t token)
{
	struct odp_view *from = t->ahead + (size_t)step * t->n_moe;

	if (t->guess[step] < 0 || t->guess[step] == token)
		return;
	memcpy(t->shadow + (size_t)step * t->n_moe, from, t->n_moe * sizeof(*from));
	t->guess[step] = token;
}

struct served_trace recall_tape_trace(const struct recall_tape *t, const struct recall_recording *rec,
				      const struct od_config *cfg)
{
	const size_t first = (size_t)rec->n_prompt * cfg->n_moe;

	return (struct served_trace){
		.n_moe = cfg->n_moe,
		.n_experts = cfg->n_experts,
		.top_k = cfg->top_k,
		.n_steps = rec->n_steps,
		.token = rec->token + rec->n_prompt,
		.used = rec->expert + first * cfg->top_k,
		.probability = rec->probability + first * cfg->n_experts,
		.shadow = t->shadow,
		.guess = t->guess,
		.ahead = t->ahead,
	};
}

#include "tests/bench/sim/served_trace.h"

#include <string.h>

static size_t at(const struct served_trace *t, uint32_t step, uint32_t m)
{
	return (size_t)step * t->n_moe + m;
}

static int32_t main_token(void *arg, uint32_t text, uint32_t position)
{
	const struct served_trace *t = arg;

	(void)text;
	return t->token[position];
}

static int32_t guessed_token(void *arg, uint32_t text, uint32_t position, float *margin)
{
	const struct served_trace *t = arg;

	(void)text;
	*margin = 0;
	return t->guess[position];
}

static void used(void *arg, uint32_t text, uint32_t position, int32_t token, uint32_t m, uint16_t *expert,
		 const float **probability)
{
	const struct served_trace *t = arg;
	const size_t i = at(t, position, m);

	(void)text;
	(void)token; /* without drafts it is main's */
	memcpy(expert, t->used + i * t->top_k, t->top_k * sizeof(*expert));
	if (probability != NULL)
		*probability = t->probability != NULL ? t->probability + i * t->n_experts : NULL;
}

static void predict(void *arg, uint32_t text, uint32_t position, int32_t token, uint32_t m, struct odp_view *view)
{
	const struct served_trace *t = arg;
	const struct odp_view *from = token == t->token[position] ? t->shadow : t->ahead;

	(void)text;
	if (from != NULL)
		*view = from[at(t, position, m)];
	else
		view->n = 0;
}

struct odp_routes served_trace_routes(struct served_trace *t)
{
	return (struct odp_routes){ .arg = t,
				    .token = main_token,
				    .guess = t->guess != NULL ? guessed_token : NULL,
				    .used = used,
				    .predict = t->shadow != NULL ? predict : NULL };
}

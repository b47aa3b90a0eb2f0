#include "main-node/predict/step_uses.h"

#include <stdlib.h>
#include <string.h>

int odm_step_uses_init(struct odm_step_uses *u, const struct od_config *c, size_t max_rows, struct od_err *err)
{
	*u = (struct odm_step_uses){
		.n_moe = c->n_moe, .n_experts = c->n_experts, .top_k = c->top_k, .max_rows = max_rows
	};
	u->served = calloc(max_rows, sizeof(*u->served));
	u->route = calloc(c->n_moe * max_rows * c->top_k, sizeof(*u->route));
	u->loaded = calloc((size_t)c->n_moe * c->n_experts, sizeof(*u->loaded));
	u->stands = calloc(max_rows, sizeof(*u->stands));
	if (u->served != NULL && u->route != NULL && u->loaded != NULL && u->stands != NULL)
		return OD_OK;
	odm_step_uses_fini(u);
	return od_fail(err, OD_ERR_NOMEM, "uses of %zu rows", max_rows);
}

void odm_step_uses_fini(struct odm_step_uses *u)
{
	free(u->served);
	free(u->route);
	free(u->loaded);
	free(u->stands);
	*u = (struct odm_step_uses){ 0 };
}

void odm_step_uses_begin(struct odm_step_uses *u, const struct odm_step *step)
{
	u->n_rows = step->n_rows > step->n_parts && step->n_rows <= u->max_rows ? step->n_rows : 0;
	if (u->n_rows == 0)
		return;
	memset(u->served, 0, u->n_rows * sizeof(*u->served));
	memset(u->loaded, 0, (size_t)u->n_moe * u->n_experts * sizeof(*u->loaded));
}

static uint16_t *route_of(const struct odm_step_uses *u, uint32_t m)
{
	return u->route + (size_t)m * u->max_rows * u->top_k;
}

void odm_step_uses_routed(struct odm_step_uses *u, uint32_t m, const uint16_t *expert, size_t n_rows, uint64_t *c)
{
	if (u->n_rows == 0)
		c[OD_C_EXPERT_USES] += n_rows * u->top_k;
	memcpy(route_of(u, m), expert, u->n_rows * u->top_k * sizeof(*expert));
}

void odm_step_uses_served(struct odm_step_uses *u, size_t row, uint64_t *c)
{
	if (u->n_rows == 0)
		c[OD_C_SERVED_IN_TIME]++;
	else
		u->served[row]++;
}

void odm_step_uses_loaded(struct odm_step_uses *u, uint32_t m, uint16_t expert)
{
	if (u->n_rows > 0)
		u->loaded[(size_t)m * u->n_experts + expert] = true;
}

/* Experts that were loaded for undone rows only. */
static uint64_t undone_loads(const struct odm_step_uses *u)
{
	uint64_t n = 0;

	for (uint32_t m = 0; m < u->n_moe; m++) {
		bool *loaded = u->loaded + (size_t)m * u->n_experts;

		for (size_t i = 0; i < u->n_rows * u->top_k; i++)
			if (u->stands[i / u->top_k])
				loaded[route_of(u, m)[i]] = false;
		for (uint32_t e = 0; e < u->n_experts; e++)
			n += loaded[e];
	}
	return n;
}

void odm_step_uses_settle(const struct odm_step_uses *u, const struct odm_step *step, const uint32_t *kept)
{
	uint64_t *c = step->counters;
	bool undone = false;

	if (u->n_rows == 0)
		return;
	for (size_t i = 0; i < step->n_parts; i++)
		for (size_t j = 0; j < step->part[i].n; j++) {
			const size_t row = step->part[i].first + j;

			u->stands[row] = j < kept[i];
			undone = undone || !u->stands[row];
			c[OD_C_EXPERT_USES] += u->stands[row] ? (uint64_t)u->n_moe * u->top_k : 0;
			c[u->stands[row] ? OD_C_SERVED_IN_TIME : OD_C_UNDONE_SERVED] += u->served[row];
		}
	c[OD_C_UNDONE_LOADS] += undone ? undone_loads(u) : 0;
}

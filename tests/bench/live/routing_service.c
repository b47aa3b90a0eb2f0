#include "tests/bench/live/routing_service.h"

#include "common/compute/device.h"
#include "main-node/engine/resident_service.h"
#include "tests/bench/bench_draw.h"

#include <stdlib.h>
#include <string.h>

struct routing_service {
	struct odm_expert_service base; /* first */
	struct od_expert_runner runner;
	struct odm_expert_service *resident;
	const struct od_config *config;
	struct route_policy policy;
	uint32_t room;
	uint64_t row;
	struct route_cache *cache; /* [n_moe] */
	struct used {
		uint16_t *expert; /* [n_rows][top_k] */
		size_t n_rows, room_rows;
	} * used; /* [n_moe] */
};

static struct routing_service *service_of(struct od_expert_runner *r)
{
	return (struct routing_service *)(void *)((char *)r - offsetof(struct routing_service, runner));
}

static unsigned needs(struct od_expert_runner *r, uint64_t step, uint32_t m)
{
	(void)r, (void)step, (void)m;
	return OD_FETCH_ROUTES | OD_FETCH_PROBABILITIES;
}

/* weight [k]: as the router makes them of the probabilities of the experts that it has chosen. */
static void weigh(const struct od_router_spec *spec, const float *probability, const uint16_t *expert,
		  uint32_t n_weighted, uint32_t k, float *weight)
{
	float sum = 0;

	for (uint32_t i = 0; i < n_weighted; i++)
		sum += probability[expert[i]];
	for (uint32_t i = 0; i < k; i++)
		weight[i] = i >= n_weighted   ? 0 :
			    spec->renormalise ? probability[expert[i]] / (sum + spec->sum_eps) * spec->scale :
						probability[expert[i]] * spec->scale;
}

static int note_use(struct used *u, const uint16_t *expert, uint32_t n_weighted, uint32_t k, struct od_err *err)
{
	if (u->n_rows == u->room_rows) {
		const size_t room = 2 * u->room_rows + 256;
		uint16_t *grown = reallocarray(u->expert, room, k * sizeof(*grown));

		if (grown == NULL)
			return od_fail(err, OD_ERR_NOMEM, "routes");
		u->expert = grown;
		u->room_rows = room;
	}
	for (uint32_t i = 0; i < k; i++)
		u->expert[u->n_rows * k + i] = i < n_weighted ? expert[i] : OD_NO_EXPERT;
	u->n_rows++;
	return OD_OK;
}

/* Results of the routing operation are in memory that the CPUs compute on, so what is written there counts. */
static int submit(struct od_expert_runner *r, const struct od_moe_call *call, struct od_err *err)
{
	struct routing_service *s = service_of(r);
	const uint32_t n = s->config->n_experts, k = s->config->top_k;
	struct route_cache *c = &s->cache[call->m];
	uint16_t *all_experts = od_ref_map(call->expert_at);
	float *all_weights = (float *)(uintptr_t)call->weight;

	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < call->n_rows; i++) {
		uint16_t *expert = all_experts + i * k;
		float *weight = all_weights + i * k;
		const float *probability = call->probability + i * n;
		uint32_t n_weighted = k;

		if (s->policy.way != ROUTE_ROUTER) {
			n_weighted = route_choose(&s->policy, c, probability, n, k, s->row++, expert);
			weigh(&od_config_moe_layer(s->config, call->m)->router, probability, expert, n_weighted, k,
			      weight);
		}
		route_used(c, expert, weight, n_weighted, k);
		rc = note_use(&s->used[call->m], expert, n_weighted, k, err);
	}
	return rc != OD_OK ? rc : s->resident->runner->submit(s->resident->runner, call, err);
}

static void free_service(struct odm_expert_service *base)
{
	struct routing_service *s = (struct routing_service *)base;

	if (s->resident != NULL)
		s->resident->free(s->resident);
	for (uint32_t m = 0; s->used != NULL && m < s->config->n_moe; m++)
		free(s->used[m].expert);
	free(s->used);
	free(s->cache);
	free(s);
}

/* Policies know logits only up to a constant, from probabilities. */
static int check(const struct routing_service *s, const struct odm_model *m, struct od_err *err)
{
	if (!od_device_maps(m->device))
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: routes are changed on CPUs only (--device cpu)",
			       od_device_name(m->device));
	for (uint32_t i = 0; s->policy.way != ROUTE_ROUTER && i < s->config->n_moe; i++) {
		const struct od_router_spec *spec = &od_config_moe_layer(s->config, i)->router;

		if (spec->score != OD_SCORE_SOFTMAX || spec->bias || spec->n_groups > 0 || spec->factors)
			return od_fail(
				err, OD_ERR_UNSUPPORTED,
				"layer %u: policies need a router with a plain softmax; od-main's --routing works with "
				"this one",
				s->config->layer_of[i]);
	}
	return OD_OK;
}

int routing_service_new(struct odm_expert_service **out, const struct odm_model *model,
			const struct route_policy *policy, uint32_t room, struct od_err *err)
{
	struct routing_service *s = calloc(1, sizeof(*s));
	int rc;

	*out = NULL;
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "a service");
	s->config = model->config;
	s->policy = *policy;
	s->room = room;
	s->runner = (struct od_expert_runner){ .on_device = true, .needs = needs, .submit = submit };
	s->base = (struct odm_expert_service){ .runner = &s->runner, .free = free_service };
	s->cache = calloc(s->config->n_moe, sizeof(*s->cache));
	s->used = calloc(s->config->n_moe, sizeof(*s->used));
	rc = s->cache == NULL || s->used == NULL ? od_fail(err, OD_ERR_NOMEM, "caches") : check(s, model, err);
	if (rc == OD_OK)
		rc = odm_resident_service_new(&s->resident, model, err);
	if (rc != OD_OK) {
		free_service(&s->base);
		return rc;
	}
	routing_service_begin(&s->base, 0);
	*out = &s->base;
	return OD_OK;
}

void routing_service_begin(struct odm_expert_service *base, uint64_t seed)
{
	struct routing_service *s = (struct routing_service *)base;

	memset(s->cache, 0, s->config->n_moe * sizeof(*s->cache));
	for (uint32_t m = 0; m < s->config->n_moe; m++) {
		s->cache[m].room = s->room;
		if (seed > 0)
			route_fill(&s->cache[m], s->config->n_experts, od_draw_mix(seed) + m);
		s->used[m].n_rows = 0;
	}
	s->row = 0;
}

int routing_service_add_counts(const struct odm_expert_service *base, struct route_counts *to, struct od_err *err)
{
	const struct routing_service *s = (const struct routing_service *)base;

	for (uint32_t m = 0; m < s->config->n_moe; m++) {
		const struct route_counts *c = &s->cache[m].count;
		const struct used *u = &s->used[m];
		uint64_t oracle;
		int rc = route_oracle_misses(u->expert, u->n_rows * s->config->top_k, s->config->n_experts, s->room,
					     &oracle, err);

		if (rc != OD_OK)
			return rc;
		to->n_rows += c->n_rows;
		to->n_uses += c->n_uses;
		to->n_misses += c->n_misses;
		to->n_oracle_misses += oracle;
		to->stay_rows += c->stay_rows;
		to->n_came += c->n_came;
	}
	return OD_OK;
}

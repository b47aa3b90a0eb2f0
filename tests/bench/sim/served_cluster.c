#include "tests/bench/sim/served_cluster.h"

#include <math.h>
#include <stdlib.h>

#define PER_NS 1e9 /* one a nanosecond */

static void fill(struct served_cluster *c, const struct served_params *p)
{
	/* A weight, a byte: a nanosecond. */
	c->model = (struct odp_sim_model){ .n_layers = p->n_moe,
					   .n_moe = p->n_moe,
					   .n_experts = p->n_experts,
					   .top_k = p->top_k,
					   .block = c->block,
					   .head_weights = (double)p->head_ns,
					   .expert_weights = (double)p->worker_ns,
					   .load_bytes = p->load_ns,
					   .slot_bytes = 1 };
	c->cluster = (struct odp_cluster){ .main = { .name = "main", .speed = PER_NS },
					   .has_shadow = !p->no_shadow,
					   .shadow_route_ns = (double)p->shadow_ns,
					   .shadow_head_ns = (double)p->head_ns,
					   .worker = c->worker,
					   .n_workers = p->n_workers,
					   .group_size = p->group_size };
	c->opts = (struct odp_sim_opts){ .max_texts = 1,
					 .prefill_rows = 1,
					 .align_token = 1,
					 .align_kv = p->align_kv,
					 .early = p->early,
					 .hedge = p->hedge };
	for (uint32_t i = 0; i < p->n_moe; i++)
		c->block[i] =
			(struct odp_sim_block){ .dense_weights = (double)p->main_ns, .state_bytes = 1, .moe = true };
	for (uint32_t i = 0; i < p->n_workers; i++)
		c->worker[i] = (struct odp_machine){ .read_rate = PER_NS, .speed = PER_NS, .slots = p->slots };
}

int served_cluster_init(struct served_cluster *c, const struct served_params *p, struct od_err *err)
{
	*c = (struct served_cluster){ 0 };
	c->block = calloc(p->n_moe, sizeof(*c->block));
	c->worker = calloc(p->n_workers, sizeof(*c->worker));
	if (c->block == NULL || c->worker == NULL) {
		served_cluster_fini(c);
		return od_fail(err, OD_ERR_NOMEM, "simulation of %u workers", p->n_workers);
	}
	fill(c, p);
	return OD_OK;
}

void served_cluster_fini(struct served_cluster *c)
{
	free(c->block);
	free(c->worker);
	*c = (struct served_cluster){ 0 };
}

uint64_t served_window_ns(const struct served_params *p, unsigned slots)
{
	const struct odp_sim_model model = { .n_moe = p->n_moe, .top_k = p->top_k };

	return (uint64_t)llround(
		odp_window_ns(&model, p->n_workers, p->group_size, slots, (double)p->main_ns, (double)p->worker_ns));
}

/* Main's knowledge of workers after a while: what they take for their work, and whose links make layers end later.
 * Live it is measured (members_times.c, link_cost.c); here it is exact. */
#include "deploy/plan/sim_internal.h"

#include "common/base/clock.h"
#include "main-node/cluster/deal_homes.h"
#include "main-node/cluster/link_cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_BYTES 200.0
#define DECISIONS 8 /* a link is used, or not, after so many in a row */
#define LATER_NS (3600 * OD_NS_PER_S) /* a session has lasted so long */

static double byte_ns(const struct odp_sim *s, const struct odp_machine *w)
{
	return fmax(odp_port_ns(w, 1), odp_port_ns(&s->cluster.main, 1));
}

static struct odm_expert_times times_of(const struct odp_sim *s, const struct odp_machine *w)
{
	return (struct odm_expert_times){
		.load = odp_load_ns(w, (double)s->model.load_bytes),
		.run = w->run_ns + odp_product_ns(w, s->model.expert_weights, 1),
		.row = odp_product_ns(w, s->model.expert_weights, 1e6) / 1e6,
	};
}

static double cached_experts(const struct odp_sim *s, const struct odp_machine *w)
{
	return (double)(w->cache_bytes / s->model.slot_bytes);
}

static struct odm_expert_times best_times(const struct odp_sim *s)
{
	struct odm_expert_times best = times_of(s, &s->machine[0]);

	for (uint32_t i = 1; i < s->cluster.n_workers; i++) {
		const struct odm_expert_times t = times_of(s, &s->machine[i]);

		best.load = fmin(best.load, t.load);
		best.run = fmin(best.run, t.run);
		best.row = fmin(best.row, t.row);
	}
	return best;
}

/* ---- Links ---- */

static void measure_link(const struct odp_sim *s, const struct odp_machine *w, struct odm_link_cost *c)
{
	odm_link_cost_begin(c, 0, true);
	c->n_latencies = ODM_LATENCIES;
	c->n_bytes = ODM_BYTE_TIMES;
	c->measured = true;
	for (int i = 0; i < ODM_LATENCIES; i++)
		c->latency[i] = w->latency_ns;
	for (int i = 0; i < ODM_BYTE_TIMES; i++)
		c->byte[i] = byte_ns(s, w);
}

static void choose_links(const struct odp_sim *s, struct odm_link_cost *cost, struct odm_link_cost **of,
			 struct odm_link_excess *scratch)
{
	const struct odm_layer_shape shape = { .row_bytes = s->model.row_bytes,
					       .expert = best_times(s),
					       .top_k = s->model.top_k,
					       .n_experts = s->model.n_experts,
					       .group_size = s->cluster.group_size };

	for (uint32_t i = 0; i < s->cluster.n_workers; i++) {
		measure_link(s, &s->machine[i], &cost[i]);
		of[i] = &cost[i];
	}
	for (int i = 0; i < DECISIONS; i++) {
		for (uint32_t w = 0; w < s->cluster.n_workers; w++)
			cost[w].fresh = true;
		(void)odm_link_cost_choose(&shape, of, s->cluster.n_workers, scratch, LATER_NS);
	}
}

/* Rank in main's view: workers that are passed over come last, behind those that are used for decode only. */
static int rank_of(const struct odm_link_cost *c)
{
	return c->passed[ODM_DEAL_FEW] ? 2 : c->passed[ODM_DEAL_MANY] ? 1 : 0;
}

/* Sorts the workers as main's view has them. */
static void sort_workers(struct odp_sim *s, const struct odm_link_cost *cost)
{
	const struct odp_machine *from = s->given;
	uint32_t n = 0;

	for (int rank = 0; rank < 3; rank++) {
		for (uint32_t i = 0; i < s->cluster.n_workers; i++)
			if (rank_of(&cost[i]) == rank) {
				s->place[n] = i;
				s->machine[n++] = from[i];
			}
		if (rank == 0)
			s->n_many = n;
		if (rank == 1)
			s->n_few = n;
	}
	s->n_few = s->n_few > 0 ? s->n_few : s->cluster.n_workers;
	s->n_many = s->n_many > 0 ? s->n_many : s->n_few;
}

/* ---- All ---- */

static void fill_times(struct odp_sim *s, struct odm_home_share *home)
{
	const uint32_t n = s->cluster.n_workers;
	const double experts = (double)s->model.n_moe * s->model.n_experts;
	double from = 0, best_byte = INFINITY;

	for (uint32_t i = 0; i < n; i++)
		best_byte = fmin(best_byte, byte_ns(s, &s->machine[i]));

	for (uint32_t i = 0; i < n; i++)
		home[i] = (struct odm_home_share){ .times = times_of(s, &s->machine[i]),
						   .capacity = fmin(cached_experts(s, &s->machine[i]) / experts, 1) };
	odm_share_homes(home, n, (size_t)s->model.n_moe * s->model.n_experts);
	for (uint32_t i = 0; i < n; i++) {
		const double byte = byte_ns(s, &s->machine[i]);

		s->times[i] = (struct odm_deal_times){ .id = i,
						       .expert = home[i].times,
						       .link = s->machine[i].latency_ns + 2 * HEADER_BYTES * byte,
						       .row_link = 2 * (byte - best_byte) * s->model.row_bytes,
						       .home = home[i].share,
						       .homes_from = from,
						       .slots = s->machine[i].slots };
		from += home[i].share;
	}
}

int odp_measure(struct odp_sim *s, struct od_err *err)
{
	const uint32_t n = s->cluster.n_workers;
	struct odm_link_cost *cost = calloc(n, sizeof(*cost)), **of = calloc(n, sizeof(struct odm_link_cost *));
	struct odm_link_excess *scratch = calloc(n, sizeof(*scratch));
	struct odm_home_share *home = calloc(n, sizeof(*home));
	int rc = OD_OK;

	if (cost == NULL || of == NULL || scratch == NULL || home == NULL) {
		rc = od_fail(err, OD_ERR_NOMEM, "simulation of %u workers", n);
	} else {
		choose_links(s, cost, of, scratch);
		sort_workers(s, cost);
		fill_times(s, home);
	}
	free(cost);
	free(of);
	free(scratch);
	free(home);
	return rc;
}

#include "main-node/cluster/cluster_figures.h"

#include "main-node/cluster/members_look.h"

#include <string.h>

#define COUNTERS_TIMEOUT_NS (OD_DEAD_AFTER_NS + 500 * OD_NS_PER_MS) /* a worker without an answer by then is lost */

void odm_cluster_figures_nodes(const struct odm_cluster_figures *x, struct odm_figures *f)
{
	struct odm_members *ms = odm_cluster_members(x->cluster);

	for (uint32_t i = 0; i < odm_members_count(ms); i++) {
		struct odm_node_figures *node;
		struct odm_member_stats st;
		char name[300];

		if (!odm_members_stats(ms, i, &st, name, sizeof(name)))
			continue;
		node = odm_figures_add_node(f, name, st.alive);
		if (node == NULL)
			continue;
		node->passed_over = st.alive && st.passed;
		memcpy(node->c, st.c, sizeof(node->c));
		node->c[OD_C_SLOTS] = st.slots;
	}
}

uint64_t odm_cluster_figures_slots(const struct odm_figures *f)
{
	uint64_t fewest = 0;

	for (size_t i = 0; i < f->n_nodes; i++) {
		const uint64_t slots = f->node[i].c[OD_C_SLOTS];

		if (slots > 0 && (fewest == 0 || slots < fewest))
			fewest = slots;
	}
	return fewest;
}

void odm_cluster_figures_voided(const struct odm_cluster_figures *x, uint64_t *c, uint64_t *now)
{
	const struct odm_voided v = odm_predictions_voided(odm_cluster_predictions(x->cluster));
	uint64_t since[OD_N_COUNTERS];

	memset(now, 0, sizeof(since));
	now[OD_C_VOIDED_PREDICTIONS] = v.token + v.position + v.ended + v.replaced;
	now[OD_C_UNKNOWN_PREDICTIONS] = v.unknown;
	now[OD_C_DROPPED_PREDICTS] = odm_cluster_dropped_predicts(x->cluster);
	od_counters_since(since, now, x->voided);
	od_counters_add(c, since);
}

void odm_cluster_figures_loads(struct odm_cluster_figures *x, uint64_t *since)
{
	uint64_t now[OD_N_COUNTERS] = { 0 };

	odm_cluster_ask(x->cluster);
	odm_members_counters(odm_cluster_members(x->cluster), COUNTERS_TIMEOUT_NS, now);
	od_counters_since(since, now, x->before);
	memcpy(x->before, now, sizeof(now));
}

void odm_cluster_figures_count_loads(uint64_t *c, const uint64_t *since)
{
	const uint64_t prompt = since[OD_C_PROMPT_EXTRA_LOADS]; /* only loads for decode steps are asked for */

	c[OD_C_BEGUN_LOADS] += since[OD_C_LOADS] + since[OD_C_CANCELLED_LOADS] - prompt;
	c[OD_C_EXTRA_LOADS] += since[OD_C_CANCELLED_LOADS] + since[OD_C_UNUSED_LOADS] - prompt;
}

#include "main-node/engine/figures.h"

#include "common/base/args.h"
#include "common/base/clock.h"

#include <stdlib.h>
#include <string.h>

#define PRINT_COLUMNS 100
#define PRINT_INDENT 11 /* under the text behind "peak memory" */

struct odm_node_figures *odm_figures_add_node(struct odm_figures *f, const char *name, uint64_t peak_rss_bytes, bool alive)
{
	struct odm_node_figures *grown;

	if (f->n_nodes == ODM_MAX_NODES)
		return NULL;
	grown = realloc(f->node, (f->n_nodes + 1) * sizeof(*grown));
	if (grown == NULL)
		return NULL;
	f->node = grown;
	grown += f->n_nodes++;
	*grown = (struct odm_node_figures){ .peak_rss_bytes = peak_rss_bytes, .alive = alive };
	snprintf(grown->name, sizeof(grown->name), "%s", name);
	return grown;
}

void odm_figures_fini(struct odm_figures *f)
{
	free(f->node);
	f->node = NULL;
	f->n_nodes = 0;
}

double odm_figures_tok_per_s(const struct odm_figures *f)
{
	if (f->tokens < 2 || f->decode_ns == 0)
		return 0;
	return (double)(f->tokens - 1) / od_seconds(f->decode_ns);
}

double odm_figures_recall(const struct odm_figures *f)
{
	return f->predicted_uses > 0 ? (double)f->recalled_uses / (double)f->predicted_uses : 0;
}

double odm_figures_align_bytes_per_token(const struct odm_figures *f)
{
	return f->tokens > 1 ? (double)f->align_bytes / (double)(f->tokens - 1) : 0;
}

double odm_figures_lead_layers(const struct odm_figures *f)
{
	return f->lead_routers > 0 ? (double)f->lead_layers / (double)f->lead_routers : 0;
}

double odm_figures_served(const struct odm_figures *f)
{
	return f->expert_uses > 0 ? (double)f->served_in_time / (double)f->expert_uses : 0;
}

double odm_figures_extra(const struct odm_figures *f)
{
	return f->expert_uses > 0 ? (double)f->extra_loads / (double)f->expert_uses : 0;
}

double odm_figures_cached(const struct odm_figures *f, enum od_cache_state s)
{
	return f->cache_uses > 0 ? (double)f->cache_hits[s] / (double)f->cache_uses : 0;
}

uint64_t odm_figures_main_ns(const struct odm_figures *f)
{
	return f->decode_layers > 0 && f->decode_ns > f->experts_ns ? (f->decode_ns - f->experts_ns) / f->decode_layers : 0;
}

uint64_t odm_figures_worker_ns(const struct odm_figures *f)
{
	return f->decode_layers > 0 && f->experts_ns > f->stall_ns ? (f->experts_ns - f->stall_ns) / f->decode_layers : 0;
}

uint64_t odm_figures_window_ns(const struct odm_figures *f, uint32_t slots)
{
	uint64_t t_main = odm_figures_main_ns(f), t_worker = odm_figures_worker_ns(f);

	if (f->groups == 0)
		return 0;
	return f->groups * t_main + (slots > 1 ? f->groups : f->groups - 1) * t_worker;
}

static double ms(int64_t ns)
{
	return (double)ns / OD_NS_PER_MS;
}

static void print_alignment(const struct odm_figures *f, FILE *out)
{
	char size[32];

	if (f->align_bytes > 0)
		fprintf(out, "alignment   %.0f bytes a token, and %s asked for\n", odm_figures_align_bytes_per_token(f),
			od_format_bytes(f->asked_bytes, size, sizeof(size)));
	if (f->first_predictions > 0)
		fprintf(out, "lead        first prediction %.2f ms after STEP (%.2f to %.2f), %.2f layers ahead in the mean\n",
			ms(f->first_prediction_median_ns), ms(f->first_prediction_min_ns),
			ms(f->first_prediction_max_ns), odm_figures_lead_layers(f));
}

static void print_cluster(const struct odm_figures *f, FILE *out)
{
	char size[32];

	if (f->has_predictor && f->predicted_uses > 0)
		fprintf(out, "recall      %.3f%% of %llu predicted expert uses; predictions late %llu, missing %llu\n",
			100 * odm_figures_recall(f), (unsigned long long)f->predicted_uses,
			(unsigned long long)f->late_predictions, (unsigned long long)f->missing_predictions);
	else if (f->has_predictor)
		fprintf(out, "recall      nothing was predicted; predictions late %llu, missing %llu\n",
			(unsigned long long)f->late_predictions, (unsigned long long)f->missing_predictions);
	if (f->stood_in_uses > 0)
		fprintf(out, "stood in    %.3f%% of %llu more expert uses, which main predicted while the shadow was silent\n",
			100 * (double)f->stood_in_recalled / (double)f->stood_in_uses, (unsigned long long)f->stood_in_uses);
	if (f->has_predictor && f->expert_uses > 0)
		fprintf(out, "served      %.3f%% of %llu expert uses in time, with %.1f%% extra loads (%llu); hedged %llu\n",
			100 * odm_figures_served(f), (unsigned long long)f->expert_uses,
			100 * odm_figures_extra(f), (unsigned long long)f->extra_loads, (unsigned long long)f->hedged);
	print_alignment(f, out);
	if (f->cache_uses > 0)
		fprintf(out, "cache       %llu expert uses: %.1f%% kept full, %.1f%% compressed, %.1f%% as SM bytes, %.1f%% as "
			"exponents\n", (unsigned long long)f->cache_uses, 100 * odm_figures_cached(f, OD_CACHE_F),
			100 * odm_figures_cached(f, OD_CACHE_C), 100 * odm_figures_cached(f, OD_CACHE_S),
			100 * odm_figures_cached(f, OD_CACHE_E));
	fprintf(out, "stalls      %llu of %llu expert uses waited for a load, %.3f s in all\n",
		(unsigned long long)f->stalls, (unsigned long long)f->expert_uses, od_seconds(f->stall_ns));
	fprintf(out, "loaded      %s in %llu expert loads", od_format_bytes(f->loaded_bytes, size, sizeof(size)),
		(unsigned long long)f->loads);
	if (f->loads > 0)
		fprintf(out, ", %.2f ms each; window %.2f ms", od_seconds(f->load_ns) * 1e3 / (double)f->loads,
			od_seconds(odm_figures_window_ns(f, f->slots)) * 1e3);
	fputc('\n', out);
	if (f->recovered_runs > 0)
		fprintf(out, "recovered   %llu runs were sent again after a worker was lost\n",
			(unsigned long long)f->recovered_runs);
}

static void print_memory(const struct odm_figures *f, FILE *out)
{
	int column = fprintf(out, "peak memory");
	char item[160], size[32];

	for (size_t i = 0; i < f->n_nodes; i++) {
		int n = snprintf(item, sizeof(item), " %s %s%s%s", f->node[i].name,
				 od_format_bytes(f->node[i].peak_rss_bytes, size, sizeof(size)),
				 f->node[i].alive ? "" : " (lost)", i + 1 < f->n_nodes ? "," : "");

		if (column + n > PRINT_COLUMNS)
			column = fprintf(out, "\n%*s", PRINT_INDENT, "") - 1;
		fputs(item, out);
		column += n;
	}
	fputc('\n', out);
}

static void print_spools(const struct odm_figures *f, FILE *out)
{
	char here[32], goal[32];

	for (size_t i = 0; i < f->n_nodes; i++) {
		const struct odm_node_figures *n = &f->node[i];

		if (n->spool && n->alive && n->spool_bytes < n->spool_goal)
			fprintf(out, "pulling     %s has %s of %s\n", n->name, od_format_bytes(n->spool_bytes, here, sizeof(here)),
				od_format_bytes(n->spool_goal, goal, sizeof(goal)));
	}
}

void odm_figures_print(const struct odm_figures *f, FILE *out)
{
	fprintf(out, "tokens      %llu prompt, %llu generated\n", (unsigned long long)f->prompt_tokens,
		(unsigned long long)f->tokens);
	fprintf(out, "speed       TTFT %.3f s, %.2f tok/s\n", od_seconds(f->ttft_ns), odm_figures_tok_per_s(f));
	if (f->cluster)
		print_cluster(f, out);
	print_spools(f, out);
	print_memory(f, out);
}

static void put_u64(json_t *into, const char *key, uint64_t v)
{
	json_object_set_new(into, key, json_integer((json_int_t)v));
}

static void put_s(json_t *into, const char *key, uint64_t ns)
{
	json_object_set_new(into, key, json_real(od_seconds(ns)));
}

/* What was never seen has no time. */
static void put_lead(const struct odm_figures *f, json_t *into)
{
	bool any = f->first_predictions > 0;

	json_object_set_new(into, "first_prediction_min_s",
			    any ? json_real((double)f->first_prediction_min_ns / OD_NS_PER_S) : json_null());
	json_object_set_new(into, "first_prediction_median_s",
			    any ? json_real((double)f->first_prediction_median_ns / OD_NS_PER_S) : json_null());
	json_object_set_new(into, "first_prediction_max_s",
			    any ? json_real((double)f->first_prediction_max_ns / OD_NS_PER_S) : json_null());
	json_object_set_new(into, "lead_layers",
			    f->lead_routers > 0 ? json_real(odm_figures_lead_layers(f)) : json_null());
}

void odm_figures_json(const struct odm_figures *f, json_t *into)
{
	json_t *nodes = json_array();

	put_u64(into, "prompt_tokens", f->prompt_tokens);
	put_u64(into, "tokens", f->tokens);
	put_s(into, "prefill_s", f->prefill_ns);
	put_s(into, "ttft_s", f->ttft_ns);
	put_s(into, "decode_s", f->decode_ns);
	json_object_set_new(into, "tok_per_s", json_real(odm_figures_tok_per_s(f)));
	put_u64(into, "expert_uses", f->expert_uses);
	put_u64(into, "predicted_uses", f->predicted_uses);
	put_u64(into, "recalled_uses", f->recalled_uses);
	put_u64(into, "stood_in_uses", f->stood_in_uses);
	put_u64(into, "stood_in_recalled", f->stood_in_recalled);
	json_object_set_new(into, "recall", f->predicted_uses > 0 ? json_real(odm_figures_recall(f)) : json_null());
	put_u64(into, "late_predictions", f->late_predictions);
	put_u64(into, "missing_predictions", f->missing_predictions);
	put_u64(into, "served_in_time", f->served_in_time);
	put_u64(into, "decode_loads", f->decode_loads);
	put_u64(into, "extra_loads", f->extra_loads);
	put_u64(into, "begun_loads", f->begun_loads);
	put_u64(into, "hedged", f->hedged);
	put_u64(into, "hedge_uses", f->hedge_uses);
	put_u64(into, "stalls", f->stalls);
	put_s(into, "stall_s", f->stall_ns);
	put_u64(into, "decode_layers", f->decode_layers);
	put_s(into, "experts_s", f->experts_ns);
	put_u64(into, "workers", f->workers);
	put_u64(into, "groups", f->groups);
	put_u64(into, "slots", f->slots);
	put_u64(into, "cache_uses", f->cache_uses);
	put_u64(into, "cache_hits_f", f->cache_hits[OD_CACHE_F]);
	put_u64(into, "cache_hits_c", f->cache_hits[OD_CACHE_C]);
	put_u64(into, "cache_hits_s", f->cache_hits[OD_CACHE_S]);
	put_u64(into, "cache_hits_e", f->cache_hits[OD_CACHE_E]);
	put_u64(into, "loads", f->loads);
	put_u64(into, "loaded_bytes", f->loaded_bytes);
	put_s(into, "load_s", f->load_ns);
	put_u64(into, "worker_runs", f->worker_runs);
	put_u64(into, "worker_rows", f->worker_rows);
	put_s(into, "worker_compute_s", f->worker_compute_ns);
	put_u64(into, "recovered_runs", f->recovered_runs);
	put_u64(into, "state_bytes", f->state_bytes);
	put_u64(into, "align_bytes", f->align_bytes);
	put_u64(into, "asked_bytes", f->asked_bytes);
	json_object_set_new(into, "align_bytes_per_token", json_real(odm_figures_align_bytes_per_token(f)));
	put_lead(f, into);
	for (size_t i = 0; i < f->n_nodes; i++) {
		json_t *node = json_object();

		json_object_set_new(node, "name", json_string(f->node[i].name));
		put_u64(node, "peak_rss_bytes", f->node[i].peak_rss_bytes);
		json_object_set_new(node, "alive", json_boolean(f->node[i].alive));
		if (f->node[i].spool) {
			put_u64(node, "spool_bytes", f->node[i].spool_bytes);
			put_u64(node, "spool_goal_bytes", f->node[i].spool_goal);
			put_u64(node, "pulled_bytes", f->node[i].pulled_bytes);
		}
		json_array_append_new(nodes, node);
	}
	json_object_set_new(into, "nodes", nodes);
}

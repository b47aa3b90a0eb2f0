#include "main-node/step/figures.h"

#include "common/base/args.h"
#include "common/base/clock.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PRINT_COLUMNS 100
#define PRINT_INDENT 11 /* under the text behind "peak memory" */

struct odm_node_figures *odm_figures_add_node(struct odm_figures *f, const char *name, bool alive)
{
	struct odm_node_figures *grown;

	if (f->n_nodes == ODM_MAX_NODES)
		return NULL;
	grown = realloc(f->node, (f->n_nodes + 1) * sizeof(*grown));
	if (grown == NULL)
		return NULL;
	f->node = grown;
	grown += f->n_nodes++;
	*grown = (struct odm_node_figures){ .alive = alive };
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
	if (f->c[OD_C_TOKENS] < 2 || f->c[OD_C_DECODE_NS] == 0)
		return 0;
	return (double)(f->c[OD_C_TOKENS] - 1) / od_seconds(f->c[OD_C_DECODE_NS]);
}

double odm_figures_ratio(const struct odm_figures *f, enum od_counter counted, enum od_counter of)
{
	return f->c[of] > 0 ? (double)f->c[counted] / (double)f->c[of] : 0;
}

static double align_bytes_per_token(const struct odm_figures *f) /* counts decode steps */
{
	return f->c[OD_C_TOKENS] > 1 ? (double)f->c[OD_C_ALIGN_BYTES] / (double)(f->c[OD_C_TOKENS] - 1) : 0;
}

/* (of - without) for each layer of decode steps; clocks of several threads: never below zero. */
static uint64_t of_a_layer(const struct odm_figures *f, enum od_counter of, enum od_counter without)
{
	return f->c[OD_C_DECODE_LAYERS] > 0 && f->c[of] > f->c[without] ?
		       (f->c[of] - f->c[without]) / f->c[OD_C_DECODE_LAYERS] :
		       0;
}

uint64_t odm_figures_main_ns(const struct odm_figures *f)
{
	return of_a_layer(f, OD_C_DECODE_NS, OD_C_EXPERTS_NS);
}

uint64_t odm_figures_worker_ns(const struct odm_figures *f)
{
	return of_a_layer(f, OD_C_EXPERTS_NS, OD_C_STALL_NS);
}

uint64_t odm_figures_window_ns(const struct odm_figures *f, uint64_t slots)
{
	const uint64_t t_main = odm_figures_main_ns(f), t_worker = odm_figures_worker_ns(f), groups = f->c[OD_C_GROUPS];

	if (groups == 0)
		return 0;
	return groups * t_main + (slots > 1 ? groups : groups - 1) * t_worker;
}

static double ms(int64_t ns)
{
	return (double)ns / OD_NS_PER_MS;
}

static void print_alignment(const struct odm_figures *f, FILE *out)
{
	char size[32];

	if (f->c[OD_C_ALIGN_BYTES] > 0)
		fprintf(out, "alignment   %.0f bytes a token, and %s asked for\n", align_bytes_per_token(f),
			od_format_bytes(f->c[OD_C_ASKED_BYTES], size, sizeof(size)));
	if (f->c[OD_C_FIRST_PREDICTIONS] > 0)
		fprintf(out,
			"lead        first prediction %.2f ms after STEP (%.2f to %.2f), %.2f layers ahead in the mean\n",
			ms(f->first_prediction_ns.median), ms(f->first_prediction_ns.min),
			ms(f->first_prediction_ns.max), odm_figures_ratio(f, OD_C_LEAD_SUM, OD_C_LEAD_ROUTERS));
}

static double percent(const struct odm_figures *f, enum od_counter counted, enum od_counter of)
{
	return 100 * odm_figures_ratio(f, counted, of);
}

/* The prompt's step gives one token. */
static double tokens_per_step(const struct odm_figures *f)
{
	const double decoded = (double)f->c[OD_C_TOKENS] - 1, steps = decoded - (double)f->c[OD_C_ACCEPTED];

	return steps > 0 ? decoded / steps : 0;
}

static void print_predictions(const struct odm_figures *f, FILE *out)
{
	const uint64_t *c = f->c;

	if (f->has_predictor && c[OD_C_PREDICTED_USES] > 0)
		fprintf(out, "recall      %.3f%% of %" PRIu64 " predicted expert uses",
			percent(f, OD_C_RECALLED_USES, OD_C_PREDICTED_USES), c[OD_C_PREDICTED_USES]);
	else if (f->has_predictor)
		fputs("recall      nothing was predicted", out);
	if (f->has_predictor)
		fprintf(out, "; predictions late %" PRIu64 ", missing %" PRIu64 "\n", c[OD_C_LATE_PREDICTIONS],
			c[OD_C_MISSING_PREDICTIONS]);
	if (c[OD_C_STOOD_IN_USES] > 0)
		fprintf(out,
			"stood in    %.3f%% of %" PRIu64 " more expert uses, which main predicted while the shadow was "
			"silent\n",
			percent(f, OD_C_STOOD_IN_RECALLED, OD_C_STOOD_IN_USES), c[OD_C_STOOD_IN_USES]);
	if (f->has_predictor && c[OD_C_EXPERT_USES] > 0)
		fprintf(out,
			"served      %.3f%% of %" PRIu64 " expert uses in time, with %.1f%% extra loads (%" PRIu64
			"); hedged "
			"%" PRIu64 "\n",
			percent(f, OD_C_SERVED_IN_TIME, OD_C_EXPERT_USES), c[OD_C_EXPERT_USES],
			percent(f, OD_C_EXTRA_LOADS, OD_C_EXPERT_USES), c[OD_C_EXTRA_LOADS], c[OD_C_HEDGED]);
	print_alignment(f, out);
}

static void print_cluster(const struct odm_figures *f, FILE *out)
{
	const uint64_t *c = f->c;
	char size[32];

	print_predictions(f, out);
	if (c[OD_C_CACHE_USES] > 0)
		fprintf(out, "cache       %" PRIu64 " expert uses, %.1f%% of them kept\n", c[OD_C_CACHE_USES],
			percent(f, OD_C_CACHE_HITS, OD_C_CACHE_USES));
	fprintf(out, "stalls      %" PRIu64 " of %" PRIu64 " expert uses waited for a load, %.3f s in all\n",
		c[OD_C_STALLS], c[OD_C_EXPERT_USES], od_seconds(c[OD_C_STALL_NS]));
	fprintf(out, "loaded      %s in %" PRIu64 " expert loads",
		od_format_bytes(c[OD_C_LOADED_BYTES], size, sizeof(size)), c[OD_C_LOADS]);
	if (c[OD_C_LOADS] > 0)
		fprintf(out, ", %.2f ms each; window %.2f ms",
			od_seconds(c[OD_C_LOAD_NS]) * 1e3 / (double)c[OD_C_LOADS],
			od_seconds(odm_figures_window_ns(f, c[OD_C_SLOTS])) * 1e3);
	fputc('\n', out);
	if (c[OD_C_RECOVERED_RUNS] > 0)
		fprintf(out, "recovered   %" PRIu64 " runs were sent again after a worker was lost\n",
			c[OD_C_RECOVERED_RUNS]);
}

static void print_memory(const struct odm_figures *f, FILE *out)
{
	int column = fprintf(out, "peak memory");
	char item[160], size[32];

	for (size_t i = 0; i < f->n_nodes; i++) {
		int n = snprintf(item, sizeof(item), " %s %s%s%s", f->node[i].name,
				 od_format_bytes(f->node[i].c[OD_C_PEAK_RSS_BYTES], size, sizeof(size)),
				 !f->node[i].alive	? " (lost)" :
				 f->node[i].passed_over ? " (not used)" :
							  "",
				 i + 1 < f->n_nodes ? "," : "");

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

		if (n->alive && n->c[OD_C_SPOOL_BYTES] < n->c[OD_C_SPOOL_GOAL_BYTES])
			fprintf(out, "pulling     %s has %s of %s\n", n->name,
				od_format_bytes(n->c[OD_C_SPOOL_BYTES], here, sizeof(here)),
				od_format_bytes(n->c[OD_C_SPOOL_GOAL_BYTES], goal, sizeof(goal)));
	}
}

void odm_figures_line(const struct odm_figures *f, FILE *out)
{
	const uint64_t *c = f->c;

	fprintf(out, "%" PRIu64 " prompt tokens, %" PRIu64 " generated; TTFT %.3f s", c[OD_C_PROMPT_TOKENS],
		c[OD_C_TOKENS], od_seconds(c[OD_C_TTFT_NS]));
	if (c[OD_C_TOKENS] > 1)
		fprintf(out, ", then %.2f tok/s", odm_figures_tok_per_s(f));
	if (f->cluster && c[OD_C_TOKENS] > 1) {
		const double decoded = (double)c[OD_C_TOKENS] - 1; /* the prompt's step gives one token */

		if (c[OD_C_PREDICTED_USES] > 0)
			fprintf(out, "; recall %.1f%%", percent(f, OD_C_RECALLED_USES, OD_C_PREDICTED_USES));
		fprintf(out, "; per token %.2f loads, %.2f stalls", (double)c[OD_C_DECODE_LOADS] / decoded,
			(double)c[OD_C_STALLS] / decoded);
	}
	fputc('\n', out);
}

void odm_figures_print(const struct odm_figures *f, FILE *out)
{
	fprintf(out, "tokens      %" PRIu64 " prompt, %" PRIu64 " generated\n", f->c[OD_C_PROMPT_TOKENS],
		f->c[OD_C_TOKENS]);
	fprintf(out, "speed       TTFT %.3f s, %.2f tok/s\n", od_seconds(f->c[OD_C_TTFT_NS]), odm_figures_tok_per_s(f));
	if (f->c[OD_C_DRAFTED] > 0)
		fprintf(out, "drafts      %" PRIu64 " tokens verified, %.1f%% right: %.2f tokens a step\n",
			f->c[OD_C_DRAFTED], percent(f, OD_C_ACCEPTED, OD_C_DRAFTED), tokens_per_step(f));
	if (f->cluster)
		print_cluster(f, out);
	print_spools(f, out);
	print_memory(f, out);
}

/* A value that was never seen has no number. */
static void put_real(json_t *into, const char *key, bool any, double v)
{
	json_object_set_new(into, key, any ? json_real(v) : json_null());
}

static json_t *node_json(const struct odm_node_figures *n)
{
	static const enum od_counter shown[] = { OD_C_PEAK_RSS_BYTES, OD_C_SPOOL_BYTES, OD_C_SPOOL_GOAL_BYTES,
						 OD_C_PULLED_BYTES };
	const size_t n_shown = n->c[OD_C_SPOOL_GOAL_BYTES] > 0 ? 4 : 1; /* the others are of a worker that pulls */
	json_t *node = json_object();

	json_object_set_new(node, "name", json_string(n->name));
	json_object_set_new(node, "alive", json_boolean(n->alive));
	if (n->passed_over)
		json_object_set_new(node, "passed_over", json_true());
	for (size_t i = 0; i < n_shown; i++)
		json_object_set_new(node, od_counter_info[shown[i]].name, json_integer((json_int_t)n->c[shown[i]]));
	return node;
}

void odm_figures_json(const struct odm_figures *f, json_t *into)
{
	const bool any_first = f->c[OD_C_FIRST_PREDICTIONS] > 0;
	json_t *nodes = json_array();

	od_counters_json(f->c, OD_OF_REQUEST, into);
	put_real(into, "tok_per_s", true, odm_figures_tok_per_s(f));
	put_real(into, "recall", f->c[OD_C_PREDICTED_USES] > 0,
		 odm_figures_ratio(f, OD_C_RECALLED_USES, OD_C_PREDICTED_USES));
	put_real(into, "align_bytes_per_token", true, align_bytes_per_token(f));
	put_real(into, "first_prediction_min_s", any_first, (double)f->first_prediction_ns.min / OD_NS_PER_S);
	put_real(into, "first_prediction_median_s", any_first, (double)f->first_prediction_ns.median / OD_NS_PER_S);
	put_real(into, "first_prediction_max_s", any_first, (double)f->first_prediction_ns.max / OD_NS_PER_S);
	put_real(into, "lead_layers", f->c[OD_C_LEAD_ROUTERS] > 0,
		 odm_figures_ratio(f, OD_C_LEAD_SUM, OD_C_LEAD_ROUTERS));
	for (size_t i = 0; i < f->n_nodes; i++)
		json_array_append_new(nodes, node_json(&f->node[i]));
	json_object_set_new(into, "nodes", nodes);
}

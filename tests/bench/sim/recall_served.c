#include "tests/bench/sim/recall_served.h"

#include "common/base/clock.h"
#include "tests/bench/live/recall_stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_HEDGES "2,5,10"
#define MAX_PERCENT 400
/* The simulated cluster's times of a layer on main, of an expert on a worker, and between two tokens. */
#define MAIN_NS OD_NS_PER_MS
#define WORKER_NS OD_NS_PER_MS
#define HEAD_NS OD_NS_PER_MS

void recall_served_defaults(struct recall_served_opts *o)
{
	*o = (struct recall_served_opts){ .workers = 8, .slots = 2, .load = 0.5, .shadow_ms = 1 };
}

/* "2,5,10" */
static int parse_hedges(const char *text, double *out, size_t *n, struct od_err *err)
{
	const char *at = text;
	char *end;

	for (*n = 0; *n < RECALL_HEDGES_MAX; at = end + 1) {
		const double x = strtod(at, &end);

		if (end == at || !(x > 0) || x > MAX_PERCENT || (*end != ',' && *end != '\0'))
			return od_fail(err, OD_ERR_ARG,
				       "--sim-hedge: expected percents above 0 up to %d, as in 2,5,10; found "
				       "\"%s\"",
				       MAX_PERCENT, text);
		out[(*n)++] = x;
		if (*end == '\0')
			return OD_OK;
	}
	return od_fail(err, OD_ERR_ARG, "--sim-hedge: at most %d percents; found \"%s\"", RECALL_HEDGES_MAX, text);
}

int recall_served_check(const struct recall_served_opts *o, struct od_err *err)
{
	double hedge[RECALL_HEDGES_MAX];
	size_t n;

	return parse_hedges(o->hedge != NULL ? o->hedge : DEFAULT_HEDGES, hedge, &n, err);
}

/* ---- Ways ---- */

static void add_way(struct recall_served *s, bool early, double percent)
{
	struct recall_way *w = &s->way[s->n_ways++];
	int n;

	w->early = early;
	w->hedge = percent / 100;
	n = snprintf(w->name, sizeof(w->name), "%s", early ? "early" : "late");
	if (percent > 0)
		snprintf(w->name + n, sizeof(w->name) - (size_t)n, ", hedge %g%%", percent);
}

static int list_ways(struct recall_served *s, struct od_err *err)
{
	double hedge[RECALL_HEDGES_MAX];
	size_t n;
	int rc = parse_hedges(s->o.hedge != NULL ? s->o.hedge : DEFAULT_HEDGES, hedge, &n, err);

	if (rc != OD_OK)
		return rc;
	add_way(s, false, 0);
	add_way(s, true, 0);
	for (size_t i = 0; i < n; i++)
		add_way(s, true, hedge[i]);
	return OD_OK;
}

static uint64_t ns(double ms)
{
	return (uint64_t)(ms * OD_NS_PER_MS);
}

static int open_sim(struct odp_sim **out, const struct served_params *p, struct od_err *err)
{
	struct served_cluster c;
	int rc = served_cluster_init(&c, p, err);

	if (rc == OD_OK)
		rc = odp_sim_new(out, &c.cluster, &c.model, &c.opts, err);
	served_cluster_fini(&c);
	return rc;
}

static int open_sims(struct recall_served *s, const struct recall_configs *configs, struct od_err *err)
{
	int rc = OD_OK;

	for (size_t c = 0; c < s->n_configs; c++) {
		if (configs->config[c].predictor == NULL)
			for (size_t w = 0; rc == OD_OK && w < s->n_ways; w++) {
				struct served_params p = s->params;

				p.align_kv = configs->config[c].align.kv;
				p.early = s->way[w].early;
				p.hedge = s->way[w].hedge;
				rc = open_sim(&s->sim[c * s->n_ways + w], &p, err);
			}
	}
	return rc;
}

int recall_served_init(struct recall_served *s, const struct recall_served_opts *o,
		       const struct recall_configs *configs, size_t n_prompts, const struct od_config *cfg,
		       struct od_err *err)
{
	int rc;

	*s = (struct recall_served){
		.o = *o,
		.n_configs = configs->n,
		.n_prompts = n_prompts,
		.params = { .n_moe = cfg->n_moe,
			    .n_experts = cfg->n_experts,
			    .top_k = cfg->top_k,
			    .n_workers = (uint32_t)o->workers,
			    .slots = (unsigned)o->slots,
			    .main_ns = MAIN_NS,
			    .worker_ns = WORKER_NS,
			    .shadow_ns = ns(o->shadow_ms),
			    .head_ns = HEAD_NS },
	};
	rc = list_ways(s, err);
	if (rc != OD_OK)
		return rc;
	s->params.load_ns = (uint64_t)(o->load * (double)served_window_ns(&s->params, 1));
	s->sim = calloc(s->n_configs * s->n_ways, sizeof(struct odp_sim *));
	s->result = calloc(s->n_configs * s->n_ways * n_prompts, sizeof(*s->result));
	if (s->sim == NULL || s->result == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "simulations of %zu configurations", s->n_configs);
	if (rc == OD_OK)
		rc = open_sims(s, configs, err);
	if (rc != OD_OK)
		recall_served_fini(s);
	return rc;
}

void recall_served_fini(struct recall_served *s)
{
	if (s->sim != NULL)
		for (size_t i = 0; i < s->n_configs * s->n_ways; i++)
			odp_sim_free(s->sim[i]);
	free(s->sim);
	free(s->result);
	*s = (struct recall_served){ 0 };
}

static struct odp_sim_figures *result_of(const struct recall_served *s, size_t config, size_t way)
{
	return s->result + (config * s->n_ways + way) * s->n_prompts;
}

int recall_served_run(struct recall_served *s, size_t config, size_t prompt, struct served_trace *t, struct od_err *err)
{
	const struct odp_routes routes = served_trace_routes(t);
	const struct odp_work work = { .n_texts = 1, .tokens = t->n_steps, .routes = &routes };
	int rc = OD_OK;

	for (size_t w = 0; rc == OD_OK && t->n_steps > 0 && w < s->n_ways; w++)
		rc = odp_sim_run(s->sim[config * s->n_ways + w], &work, result_of(s, config, w) + prompt, err);
	return rc;
}

/* ---- Report ---- */

static struct odp_sim_figures sum_of(const struct odp_sim_figures *r, size_t n)
{
	struct odp_sim_figures s = { 0 };

	for (size_t i = 0; i < n; i++) {
		s.steps += r[i].steps;
		s.uses += r[i].uses;
		s.ordered += r[i].ordered;
		s.served += r[i].served;
		s.used_loads += r[i].used_loads;
		s.extra_loads += r[i].extra_loads;
		s.recalled += r[i].recalled;
		s.hedged += r[i].hedged;
		s.stalls += r[i].stalls;
		s.stall_ns += r[i].stall_ns;
		s.total_ns += r[i].total_ns;
	}
	return s;
}

static double share(uint64_t counted, uint64_t whole)
{
	return whole > 0 ? (double)counted / (double)whole : NAN;
}

static struct recall_interval served_interval(const struct recall_served *s, size_t config, size_t way)
{
	const struct odp_sim_figures *r = result_of(s, config, way);
	struct od_recall_cell *cell = calloc(s->n_prompts, sizeof(*cell));
	struct recall_interval i = { NAN, NAN, NAN };

	for (size_t p = 0; cell != NULL && p < s->n_prompts; p++)
		cell[p] = (struct od_recall_cell){ r[p].uses, r[p].served };
	if (cell != NULL)
		i = recall_ratio(cell, s->n_prompts);
	free(cell);
	return i;
}

static void report_cluster(const struct recall_served *s, struct od_report *r)
{
	const double window = (double)served_window_ns(&s->params, 1) / OD_NS_PER_MS;

	od_report_fact(r, "sim_workers", "simulated cluster: workers", OD_INT(s->params.n_workers), 0, NULL);
	od_report_fact(r, "sim_slots", "  slots of each", OD_INT(s->params.slots), 0, NULL);
	od_report_fact(r, "sim_shadow_ms", "  a layer on the shadow", OD_REAL(s->o.shadow_ms), 3, "ms");
	od_report_fact(r, "sim_window_ms", "  window (Eq. 1, one slot)", OD_REAL(window), 3, "ms");
	od_report_fact(r, "sim_load_ms", "  load of an expert", OD_REAL((double)s->params.load_ns / OD_NS_PER_MS), 3,
		       "ms");
}

void recall_served_report(const struct recall_served *s, const struct recall_configs *configs, struct od_report *r)
{
	static const struct od_column columns[] = {
		{ "configuration", "configuration", 0 },
		{ "way", "departure and more", 0 },
		{ "recall", "recall", 5 },
		{ "served_in_time", "served", 5 },
		{ "served_low", "from", 5 },
		{ "served_high", "to", 5 },
		{ "extra_loads", "extra loads", 4 },
		{ "hedged", "hedged", 4 },
		{ "ordered", "ordered", 5 },
		{ "stalls", "waited", 5 },
		{ "stall_time", "of time", 4 },
		{ "tok_per_s", "tok/s", 2 },
	};
	struct od_table *t;

	report_cluster(s, r);
	t = od_report_table(r, "served",
			    "Served in time on that cluster, of all uses (95 % t-interval over prompts); extra "
			    "loads and hedges over uses",
			    columns, sizeof(columns) / sizeof(columns[0]));
	for (size_t c = 0; c < s->n_configs; c++) {
		if (configs->config[c].predictor == NULL)
			for (size_t w = 0; w < s->n_ways; w++) {
				const struct odp_sim_figures x = sum_of(result_of(s, c, w), s->n_prompts);
				const struct recall_interval i = served_interval(s, c, w);

				od_table_row(t, (struct od_cell[]){
							OD_TEXT(configs->config[c].name),
							OD_TEXT(s->way[w].name),
							OD_REAL(share(x.recalled, x.uses)),
							OD_REAL(share(x.served, x.uses)),
							OD_REAL(i.low),
							OD_REAL(i.high),
							OD_REAL(share(x.extra_loads, x.uses)),
							OD_REAL(share(x.hedged, x.uses)),
							OD_REAL(share(x.ordered, x.uses)),
							OD_REAL(share(x.stalls, x.uses)),
							OD_REAL(share(x.stall_ns, x.total_ns)),
							OD_REAL(x.total_ns > 0 ? (double)x.steps * OD_NS_PER_S /
											 (double)x.total_ns :
										 NAN),
						});
			}
	}
}

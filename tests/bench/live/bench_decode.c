/* od-bench decode: decode speed of a cluster, compared with the same model with all experts in this process.
 *
 * The two alternate, one run each, so that a ratio compares runs close in time; medians are over runs. In resident mode
 * the memory bandwidth is measured once per step, outside its time. A decoded token reads its weights once, so GB/s of
 * weights over GB/s of memory is the share of the memory bandwidth used. Both are bytes over time of a whole run, so
 * that the load of other processes affects both equally. */
#include "common/base/clock.h"
#include "common/pack/load/dense_load.h"
#include "common/pack/load/expert_load.h"
#include "main-node/node/main_node.h"
#include "tests/bench/bench.h"
#include "tests/bench/live/bench_parallel.h"
#include "tests/bench/report/bench_stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_TOKENS 64
#define DEFAULT_RUNS 5
#define DEFAULT_PROMPT_TOKENS 16
#define DEFAULT_TEMPERATURE 0.8 /* for random prompts: greedy text of an untrained model soon repeats itself */
#define MAX_TOKENS 1e6
#define MAX_PACE_MS 60000

enum side { CLUSTER, RESIDENT, N_SIDES };
enum baseline { BASELINE_RESIDENT, BASELINE_NONE };
static const char *const baseline_names[] = { "resident", "none", NULL };

struct decode_run {
	const struct od_prompt *prompt;
	struct odm_figures figures[N_SIDES]; /* without nodes */
	struct od_membw_sum membw; /* within decode_ns of resident mode */
	uint64_t rows_in_all; /* rows that main sent to workers until the end of this run, warm-up included */
	bool same_tokens;
};

/* Draft tokens by margin: below 0.1, 0.2, 0.4, and so on; the last one has all others. */
#define MARGINS 10
struct margin {
	uint64_t n, right;
	double expected; /* sum of probabilities */
};

struct decode_bench {
	struct margin margin[MARGINS];
	struct decode_options opt;
	struct odm_main_node *node[N_SIDES];
	struct odm_engine *engine[N_SIDES]; /* NULL: not measured */
	struct od_prompts prompts;
	struct od_membw *membw; /* NULL without resident mode */
	struct decode_run *run; /* [opt.runs] */
	struct decode_run *current; /* whose steps read_memory is to look in on; NULL: none */
	uint64_t weight_bytes; /* weights that a token reads */
};

static int parse(struct decode_options *o, int argc, char **argv, struct od_err *err)
{
	const struct od_arg own[] = {
		{ .kind = OD_ARG_TITLE, .help = "Measure" },
		{ "prompts", OD_ARG_STRING, &o->prompts, "FILE",
		  "a JSON object a line with \"text\" or \"ids\"; runs use them in turn", 0, 0, NULL },
		{ "prompt-tokens", OD_ARG_UINT, &o->prompt_tokens, "N",
		  "without --prompts: random prompts of N tokens; default 16", 1, MAX_TOKENS, NULL },
		{ "tokens", OD_ARG_UINT, &o->tokens, "N", "tokens per run, past the end of text too; default 64", 2,
		  MAX_TOKENS, NULL },
		{ "runs", OD_ARG_UINT, &o->runs, "N", "measured runs; default 5, after a short warm-up", 1, 1e5, NULL },
		{ "baseline", OD_ARG_CHOICE, &o->baseline, "NAME",
		  "resident (default): alternate cluster and resident mode; none", 0, 0, baseline_names },
		{ "parallel", OD_ARG_STRING, &o->parallel, "LIST",
		  "no baseline: one engine with N texts at once, e.g. 1,4,16; a run is "
		  "one round of all numbers",
		  0, 0, NULL },
		{ "temperature", OD_ARG_REAL, &o->temperature, "T",
		  "default: 0.8 with random prompts (greedy would repeat itself), else 0", 0, 1000, NULL },
		{ "seed", OD_ARG_UINT, &o->seed, "N", "seed of random prompts and of sampling; default 1", 0, 0, NULL },
		{ "layer-time", OD_ARG_REAL, &o->layer_time_ms, "MS",
		  "emulate a slower main: attention and router of each layer of a decode step "
		  "take at least MS milliseconds",
		  0, MAX_PACE_MS, NULL },
		{ "json", OD_ARG_FLAG, &o->json, NULL, "print JSON, with every run", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "print this text", 0, 0, NULL },
	};

	odm_engine_args_defaults(&o->engine);
	return odm_engine_args_parse(
		&o->engine, NULL, own, sizeof(own) / sizeof(own[0]), argc, argv, &o->help,
		"Usage: od-bench decode --local N | --workers FILE | --resident [OPTIONS]\n\n"
		"Measures generation: tokens per second, time to first token, stalls, load time against its window,\n"
		"and memory reads against memory bandwidth.\n"
		"Example: od-bench decode --pack PACK --local 4 --prompts tests/bench/prompts.jsonl\n"
		"         od-bench decode --pack PACK --resident --parallel 1,4,16\n",
		err);
}

static int check(struct decode_options *o, struct od_err *err)
{
	int rc = odm_engine_args_finish(&o->engine, err);

	if (rc != OD_OK)
		return rc;
	if (o->prompts != NULL && o->prompt_tokens > 0)
		return od_fail(err, OD_ERR_ARG, "--prompts and --prompt-tokens exclude each other");
	if (o->parallel != NULL && o->baseline == BASELINE_RESIDENT)
		return od_fail(err, OD_ERR_ARG, "--parallel measures one engine; leave --baseline out");
	if (o->baseline < 0)
		o->baseline = BASELINE_RESIDENT;
	if (o->prompts == NULL && o->prompt_tokens == 0)
		o->prompt_tokens = DEFAULT_PROMPT_TOKENS;
	if (o->temperature < 0)
		o->temperature = o->prompts == NULL ? DEFAULT_TEMPERATURE : 0;
	o->engine.opts.engine.quiet = o->json;
	o->engine.opts.engine.layer_ns = (uint64_t)(o->layer_time_ms * OD_NS_PER_MS);
	return OD_OK;
}

/* Every matrix once (the embedding: one row), and the experts that a token uses, as they lie in memory. */
static uint64_t token_weight_bytes(const struct od_pack *p, enum od_form form)
{
	const struct od_config *c = od_pack_config(p);

	return od_dense_token_bytes(p) + (uint64_t)c->n_moe * c->top_k * decode_expert_bytes(p, form);
}

/* --- measuring --- */

static double margin_limit(size_t i)
{
	return 0.1 * (double)(1u << i);
}

static void note_draft(void *arg, float margin, double probability, bool right)
{
	struct decode_bench *b = arg;
	size_t i = 0;

	while (i + 1 < MARGINS && margin >= margin_limit(i))
		i++;
	b->margin[i].n++;
	b->margin[i].right += right;
	b->margin[i].expected += probability;
}

/* At the begin of every decode step: neighbours in time, which see the same machine. */
static void read_memory(void *arg, const struct odm_step *step, const struct odm_part *part)
{
	struct decode_bench *b = arg;

	(void)part;
	if (step->phase == ODM_DECODE && b->current != NULL)
		od_membw_add(b->membw, &b->current->membw);
}

static int generate(struct decode_bench *b, enum side s, size_t i, uint64_t tokens, struct odm_result *r,
		    struct od_err *err)
{
	const struct od_prompt *q = &b->prompts.prompt[i % b->prompts.n];
	struct odm_request req = {
		.prompt = q->ids,
		.n_prompt = q->n_ids,
		.max_tokens = tokens,
		.ignore_eos = true, /* every run is of the same length */
	};
	int rc;

	if (s == RESIDENT)
		req.observer = (struct odm_observer){ .arg = b, .step = read_memory };
	else
		req.observer = (struct odm_observer){ .arg = b, .drafted = note_draft };
	od_sampler_defaults(&req.sampling);
	req.sampling.temperature = b->opt.temperature;
	req.sampling.seed = b->opt.seed + i;
	rc = odm_generate(b->engine[s], &req, r, err);
	return rc == OD_OK ? rc : od_fail_within(err, "%s, %s", s == CLUSTER ? "cluster" : "resident mode", q->name);
}

static bool same_tokens(const struct odm_result *a, const struct odm_result *b)
{
	return a->n_tokens == b->n_tokens &&
	       (a->n_tokens == 0 || memcmp(a->tokens, b->tokens, a->n_tokens * sizeof(*a->tokens)) == 0);
}

static int measure(struct decode_bench *b, size_t i, struct od_err *err)
{
	struct decode_run *run = &b->run[i];
	struct odm_result r[N_SIDES] = { 0 };
	int rc = OD_OK;

	run->prompt = &b->prompts.prompt[i % b->prompts.n];
	b->current = run;
	for (int s = 0; rc == OD_OK && s < N_SIDES; s++)
		if (b->engine[s] != NULL)
			rc = generate(b, (enum side)s, i, b->opt.tokens, &r[s], err);
	if (r[CLUSTER].figures.n_nodes > 0) /* node 0: main */
		run->rows_in_all = r[CLUSTER].figures.node[0].c[OD_C_WORKER_ROWS];
	run->same_tokens = same_tokens(&r[CLUSTER], &r[RESIDENT]);
	for (int s = 0; s < N_SIDES; s++) {
		run->figures[s] = r[s].figures;
		run->figures[s].node = NULL; /* freed below */
		run->figures[s].n_nodes = 0;
		odm_result_fini(&r[s]);
	}
	return rc;
}

/* Fault pages in, fill connections, wake the cores. */
static int warm_up(struct decode_bench *b, struct od_err *err)
{
	uint64_t tokens = b->opt.tokens < DECODE_WARM_UP_TOKENS ? b->opt.tokens : DECODE_WARM_UP_TOKENS;
	int rc = OD_OK;

	for (int s = 0; rc == OD_OK && s < N_SIDES; s++) {
		struct odm_result r;

		if (b->engine[s] == NULL)
			continue;
		rc = generate(b, (enum side)s, 0, tokens, &r, err);
		odm_result_fini(&r);
	}
	return rc;
}

static int measure_all(struct decode_bench *b, struct od_err *err)
{
	bool progress = !b->opt.json && isatty(STDERR_FILENO);
	int rc = warm_up(b, err);

	for (size_t i = 0; rc == OD_OK && i < b->opt.runs; i++) {
		if (progress)
			fprintf(stderr, "\rrun %zu of %llu", i + 1, (unsigned long long)b->opt.runs);
		rc = measure(b, i, err);
	}
	if (progress)
		fputc('\n', stderr);
	return rc;
}

/* --- reporting --- */

typedef double figure_fn(const struct decode_bench *b, const struct decode_run *r); /* NaN: there is none */

static double per_s(const struct decode_run *r, enum side s)
{
	const struct odm_figures *f = &r->figures[s];
	double ns = (double)f->c[OD_C_DECODE_NS] - (s == RESIDENT ? r->membw.ns : 0);

	return f->c[OD_C_TOKENS] > 1 && ns > 0 ? (double)(f->c[OD_C_TOKENS] - 1) / ns * 1e9 : NAN;
}

static double ms(uint64_t ns)
{
	return od_seconds(ns) * 1e3;
}

static double cluster_speed(const struct decode_bench *b, const struct decode_run *r)
{
	(void)b;
	return per_s(r, CLUSTER);
}

static double resident_speed(const struct decode_bench *b, const struct decode_run *r)
{
	(void)b;
	return per_s(r, RESIDENT);
}

static double speed_ratio(const struct decode_bench *b, const struct decode_run *r)
{
	(void)b;
	return per_s(r, CLUSTER) / per_s(r, RESIDENT);
}

static double cluster_ttft(const struct decode_bench *b, const struct decode_run *r)
{
	(void)b;
	return ms(r->figures[CLUSTER].c[OD_C_TTFT_NS]);
}

static double resident_ttft(const struct decode_bench *b, const struct decode_run *r)
{
	(void)b;
	return ms(r->figures[RESIDENT].c[OD_C_TTFT_NS]);
}

static double ttft_ratio(const struct decode_bench *b, const struct decode_run *r)
{
	return cluster_ttft(b, r) / resident_ttft(b, r);
}

static double main_ms(const struct decode_bench *b, const struct decode_run *r)
{
	(void)b;
	return ms(odm_figures_main_ns(&r->figures[CLUSTER]));
}

static double worker_ms(const struct decode_bench *b, const struct decode_run *r)
{
	(void)b;
	return ms(odm_figures_worker_ns(&r->figures[CLUSTER]));
}

static double window_1_ms(const struct decode_bench *b, const struct decode_run *r)
{
	(void)b;
	return ms(odm_figures_window_ns(&r->figures[CLUSTER], 1));
}

static double window_2_ms(const struct decode_bench *b, const struct decode_run *r)
{
	(void)b;
	return ms(odm_figures_window_ns(&r->figures[CLUSTER], 2));
}

static double load_ms(const struct decode_bench *b, const struct decode_run *r)
{
	const struct odm_figures *f = &r->figures[CLUSTER];

	(void)b;
	return f->c[OD_C_LOADS] > 0 ? ms(f->c[OD_C_LOAD_NS]) / (double)f->c[OD_C_LOADS] : NAN;
}

static double stalled_share(const struct decode_bench *b, const struct decode_run *r)
{
	const struct odm_figures *f = &r->figures[CLUSTER];

	(void)b;
	return f->c[OD_C_EXPERT_USES] > 0 ? (double)f->c[OD_C_STALLS] / (double)f->c[OD_C_EXPERT_USES] : NAN;
}

static double stall_time_share(const struct decode_bench *b, const struct decode_run *r)
{
	const struct odm_figures *f = &r->figures[CLUSTER];

	(void)b;
	return f->c[OD_C_DECODE_NS] > 0 ? (double)f->c[OD_C_STALL_NS] / (double)f->c[OD_C_DECODE_NS] : NAN;
}

static double weights_gbps(const struct decode_bench *b, const struct decode_run *r)
{
	return (double)b->weight_bytes * per_s(r, RESIDENT) * 1e-9;
}

static double membw_gbps(const struct decode_bench *b, const struct decode_run *r)
{
	(void)b;
	return od_membw_gbps(&r->membw);
}

static double membw_share(const struct decode_bench *b, const struct decode_run *r)
{
	return weights_gbps(b, r) / membw_gbps(b, r);
}

static const struct decode_figure {
	const char *key, *label, *unit;
	figure_fn *of;
	bool side[N_SIDES]; /* sides that must have been measured */
} figures[] = {
	{ "cluster_tok_per_s", "cluster", "tok/s", cluster_speed, { true, false } },
	{ "resident_tok_per_s", "resident", "tok/s", resident_speed, { false, true } },
	{ "tok_per_s_ratio", "  cluster / resident", "", speed_ratio, { true, true } },
	{ "cluster_ttft_ms", "cluster, first token", "ms", cluster_ttft, { true, false } },
	{ "resident_ttft_ms", "resident, first token", "ms", resident_ttft, { false, true } },
	{ "ttft_ratio", "  cluster / resident", "", ttft_ratio, { true, true } },
	{ "main_ms", "t_main, of a layer", "ms", main_ms, { true, false } },
	{ "worker_ms", "t_worker, of a layer", "ms", worker_ms, { true, false } },
	{ "window_1_slot_ms", "window with 1 slot (Eq. 1)", "ms", window_1_ms, { true, false } },
	{ "window_2_slots_ms", "window with 2 slots or more", "ms", window_2_ms, { true, false } },
	{ "load_ms", "load of an expert, prefill's too", "ms", load_ms, { true, false } },
	{ "stalled_share", "expert uses that waited for a load", "share", stalled_share, { true, false } },
	{ "stall_time_share", "decode time that they waited", "share", stall_time_share, { true, false } },
	{ "weights_gbps", "resident, weights read", "GB/s", weights_gbps, { false, true } },
	{ "membw_gbps", "memory, read meanwhile", "GB/s", membw_gbps, { false, true } },
	{ "share", "  weights / memory", "", membw_share, { false, true } },
};

static bool measured(const struct decode_bench *b, const struct decode_figure *f)
{
	for (int s = 0; s < N_SIDES; s++)
		if (f->side[s] && b->engine[s] == NULL)
			return false;
	return true;
}

/* Medians, and the spread between the runs. A ratio is taken run by run, then summarised. */
static int report_figures(const struct decode_bench *b, struct od_report *r, struct od_err *err)
{
	static const struct od_column columns[] = {
		{ "figure", "figure", 0 }, { "unit", "unit", 0 }, { "median", "median", 3 },
		{ "min", "min", 3 },	   { "max", "max", 3 },
	};
	struct od_table *t = od_report_table(r, "figures", NULL, columns, 5);
	double *x = calloc(b->opt.runs, sizeof(*x));

	if (x == NULL)
		return od_fail(err, OD_ERR_NOMEM, "figures of %llu runs", (unsigned long long)b->opt.runs);
	for (size_t k = 0; k < sizeof(figures) / sizeof(figures[0]); k++) {
		const struct decode_figure *f = &figures[k];
		struct od_stats s;
		size_t n = 0;

		if (!measured(b, f))
			continue;
		for (size_t i = 0; i < b->opt.runs; i++) {
			double v = f->of(b, &b->run[i]);

			if (!isnan(v))
				x[n++] = v;
		}
		od_stats_of(x, n, &s);
		od_table_row(t, (struct od_cell[]){ OD_TEXT(f->label), OD_TEXT(f->unit), OD_REAL(s.median),
						    OD_REAL(s.min), OD_REAL(s.max) });
		od_report_fact(r, f->key, NULL, OD_REAL(s.median), 0, NULL);
	}
	free(x);
	return OD_OK;
}

static void report_setting(const struct decode_bench *b, struct od_report *r)
{
	const struct decode_options *o = &b->opt;
	enum side s = b->engine[CLUSTER] != NULL ? CLUSTER : RESIDENT;
	const struct od_pack *p = odm_engine_pack(b->engine[s]);
	enum od_form form;
	uint64_t other = 0;

	decode_report_engine(r, o, b->engine[s], "tokens of a run");
	if (b->engine[CLUSTER] != NULL) {
		decode_report_cluster(r, o, &b->run[0].figures[CLUSTER]);
		od_report_fact(r, "worker_rows_in_all", NULL, OD_INT(b->run[o->runs - 1].rows_in_all), 0, NULL);
	}
	for (size_t i = 0; i < o->runs; i++)
		other += !b->run[i].same_tokens;
	if (b->engine[CLUSTER] != NULL && b->engine[RESIDENT] != NULL)
		od_report_fact(r, "runs_with_other_tokens", "runs where the two texts differ", OD_INT(other), 0, NULL);
	if (b->engine[RESIDENT] == NULL)
		return;
	form = odm_engine_form(b->engine[RESIDENT]);
	od_report_fact(r, "resident_form", "experts in memory", OD_TEXT(od_form_names[form]), 0, NULL);
	od_report_fact(r, "weight_bytes_per_token", "weights that a token reads", OD_BYTES(b->weight_bytes), 0, NULL);
	od_report_fact(r, "resident_bytes", "weights in memory",
		       OD_BYTES(od_dense_need_bytes(p, OD_DENSE_ALL) + od_experts_need_bytes(p, form)), 0, NULL);
	od_report_fact(r, "memory_reads", "memory is read by", OD_TEXT(od_membw_loads(b->membw)), 0, NULL);
}

static struct od_cell speed_cell(const struct decode_bench *b, figure_fn *of, const struct decode_run *r, enum side s)
{
	return b->engine[s] != NULL ? OD_REAL(of(b, r)) : OD_NONE;
}

static void report_runs(const struct decode_bench *b, struct od_report *r)
{
	static const struct od_column columns[] = {
		{ "prompt", "", 0 },	      { "prompt_tokens", "", 0 },      { "cluster_tok_per_s", "", 0 },
		{ "cluster_ttft_ms", "", 0 }, { "resident_tok_per_s", "", 0 }, { "resident_ttft_ms", "", 0 },
		{ "membw_gbps", "", 0 },
	};
	struct od_table *t = od_report_detail(r, "by_run", columns, sizeof(columns) / sizeof(columns[0]));

	for (size_t i = 0; i < b->opt.runs; i++) {
		const struct decode_run *u = &b->run[i];

		od_table_row(t, (struct od_cell[]){
					OD_TEXT(u->prompt->name),
					OD_INT(u->prompt->n_ids),
					speed_cell(b, cluster_speed, u, CLUSTER),
					speed_cell(b, cluster_ttft, u, CLUSTER),
					speed_cell(b, resident_speed, u, RESIDENT),
					speed_cell(b, resident_ttft, u, RESIDENT),
					speed_cell(b, membw_gbps, u, RESIDENT),
				});
	}
}

static void report_cluster_runs(const struct decode_bench *b, struct od_report *r)
{
	static const struct od_column columns[] = {
		{ "decode_s", "", 0 },
		{ "decode_layers", "", 0 },
		{ "experts_s", "", 0 },
		{ "expert_uses", "", 0 },
		{ "predicted_uses", "", 0 },
		{ "recalled_uses", "", 0 },
		{ "stalls", "", 0 },
		{ "stall_s", "", 0 },
		{ "loads", "", 0 },
		{ "decode_loads", "", 0 },
		{ "loaded_bytes", "", 0 },
		{ "load_s", "", 0 },
		{ "tokens", "", 0 },
		{ "drafted_tokens", "", 0 },
		{ "accepted_tokens", "", 0 },
		{ "main_ms", "", 0 },
		{ "worker_ms", "", 0 },
		{ "window_1_slot_ms", "", 0 },
		{ "window_2_slots_ms", "", 0 },
	};
	struct od_table *t = od_report_detail(r, "cluster_by_run", columns, sizeof(columns) / sizeof(columns[0]));

	for (size_t i = 0; i < b->opt.runs; i++) {
		const struct decode_run *u = &b->run[i];
		const uint64_t *c = u->figures[CLUSTER].c;

		od_table_row(t, (struct od_cell[]){
					OD_REAL(od_seconds(c[OD_C_DECODE_NS])),
					OD_INT(c[OD_C_DECODE_LAYERS]),
					OD_REAL(od_seconds(c[OD_C_EXPERTS_NS])),
					OD_INT(c[OD_C_EXPERT_USES]),
					OD_INT(c[OD_C_PREDICTED_USES]),
					OD_INT(c[OD_C_RECALLED_USES]),
					OD_INT(c[OD_C_STALLS]),
					OD_REAL(od_seconds(c[OD_C_STALL_NS])),
					OD_INT(c[OD_C_LOADS]),
					OD_INT(c[OD_C_DECODE_LOADS]),
					OD_INT(c[OD_C_LOADED_BYTES]),
					OD_REAL(od_seconds(c[OD_C_LOAD_NS])),
					OD_INT(c[OD_C_TOKENS]),
					OD_INT(c[OD_C_DRAFTED]),
					OD_INT(c[OD_C_ACCEPTED]),
					OD_REAL(main_ms(b, u)),
					OD_REAL(worker_ms(b, u)),
					OD_REAL(window_1_ms(b, u)),
					OD_REAL(window_2_ms(b, u)),
				});
	}
}

/* How often draft tokens were right, beside how often they should have been. */
static void report_margins(const struct decode_bench *b, struct od_report *r)
{
	static const struct od_column columns[] = {
		{ "margin_below", "", 0 },
		{ "tokens", "", 0 },
		{ "right", "", 0 },
		{ "expected", "", 0 },
	};
	struct od_table *t = od_report_detail(r, "drafts_by_margin", columns, sizeof(columns) / sizeof(columns[0]));

	for (size_t i = 0; i < MARGINS; i++)
		od_table_row(t, (struct od_cell[]){ i + 1 < MARGINS ? OD_REAL(margin_limit(i)) : OD_NONE,
						    OD_INT(b->margin[i].n), OD_INT(b->margin[i].right),
						    OD_REAL(b->margin[i].expected) });
}

static int report(const struct decode_bench *b, struct od_err *err)
{
	struct od_report *r;
	int rc = od_report_new(&r, "Decoding speed", err);

	if (rc != OD_OK)
		return rc;
	report_setting(b, r);
	rc = report_figures(b, r, err);
	report_runs(b, r);
	if (b->engine[CLUSTER] != NULL)
		report_cluster_runs(b, r);
	if (b->engine[CLUSTER] != NULL)
		report_margins(b, r);
	if (rc == OD_OK)
		rc = od_report_print(r, stdout, b->opt.json, err);
	od_report_free(r);
	return rc;
}

/* --- setting up --- */

static int open_engines(struct decode_bench *b, struct od_err *err)
{
	struct odm_main_opts eo = b->opt.engine.opts;
	int rc = OD_OK;

	if (eo.mode != ODM_RESIDENT) /* first: it starts processes, best while this one has a single thread */
		rc = odm_main_node_open(&b->node[CLUSTER], &eo, err);
	if (rc == OD_OK && (eo.mode == ODM_RESIDENT || b->opt.baseline == BASELINE_RESIDENT)) {
		eo.mode = ODM_RESIDENT;
		rc = odm_main_node_open(&b->node[RESIDENT], &eo, err);
	}
	for (size_t i = 0; i < sizeof(b->node) / sizeof(b->node[0]); i++)
		b->engine[i] = odm_main_node_engine(b->node[i]);
	return rc;
}

static int run(struct decode_bench *b, struct od_err *err)
{
	const struct decode_options *o = &b->opt;
	struct odm_engine *any;
	int rc = decode_load_prompts(&b->prompts, o, o->runs, 1, err);

	if (rc != OD_OK)
		return rc;
	b->run = calloc(o->runs, sizeof(*b->run));
	if (b->run == NULL)
		return od_fail(err, OD_ERR_NOMEM, "figures of %llu runs", (unsigned long long)o->runs);
	rc = open_engines(b, err);
	if (rc != OD_OK)
		return rc;
	any = b->engine[CLUSTER] != NULL ? b->engine[CLUSTER] : b->engine[RESIDENT];
	b->weight_bytes = token_weight_bytes(odm_engine_pack(any), odm_engine_form(any));
	rc = decode_make_prompts(&b->prompts, o, o->runs, any, err);
	if (rc == OD_OK && b->engine[RESIDENT] != NULL)
		rc = decode_open_membw(&b->membw, o, b->engine[RESIDENT], err);
	if (rc == OD_OK)
		rc = measure_all(b, err);
	return rc == OD_OK ? report(b, err) : rc;
}

int od_bench_decode(int argc, char **argv, struct od_err *err)
{
	struct decode_bench b = {
		.opt = { .tokens = DEFAULT_TOKENS, .runs = DEFAULT_RUNS, .temperature = -1, .seed = 1, .baseline = -1 },
	};
	int rc = parse(&b.opt, argc, argv, err);

	if (rc != OD_OK || b.opt.help)
		return rc;
	rc = check(&b.opt, err);
	if (rc != OD_OK)
		return rc;
	if (b.opt.parallel != NULL)
		return parallel_bench(&b.opt, err);
	rc = run(&b, err);
	od_membw_close(b.membw);
	odm_main_node_close(b.node[CLUSTER]);
	odm_main_node_close(b.node[RESIDENT]);
	od_prompts_fini(&b.prompts);
	free(b.run);
	return rc;
}

/* od-bench residency: one machine that keeps a part of the experts, at several budgets, beside the same model with all
 * of them in memory and beside what other policies would read.
 *
 * A round reads the disk past the page cache with as many threads as the store has, then opens an engine for each
 * budget, lets it write one text to fill its cache, and measures a second one. The routes of both texts, as steps with
 * the experts that their rows chose, are replayed with LRFU, LRU, LFU and Belady's rule in the same memory. */
#include "main-node/node/main_node.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/pack/pack.h"
#include "common/residency/read_mode.h"
#include "common/residency/residency.h"
#include "deploy/plan/disk_rate.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_list.h"
#include "tests/bench/live/decode_common.h"
#include "tests/bench/report/bench_stats.h"
#include "tests/bench/sim/cache_rule.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_TOKENS 64
#define DEFAULT_RUNS 3
#define DEFAULT_PROMPT_TOKENS 16
#define DEFAULT_BUDGETS "10,20,40,60,80,100"
#define MAX_TOKENS 1000000

/* Experts that the rows of a step chose in a layer, one after the other. */
struct use {
	uint64_t step;
	uint32_t m, expert;
};

struct routes {
	struct use *use; /* [n] */
	size_t n, room, measured; /* measured: the first of the second text */
	uint64_t *step; /* [n_moe][n_experts]: the step that last used it, + 1 */
	uint64_t now;
	bool failed;
};

/* One budget in one round. */
struct residency_run {
	double tok_per_s, ttft_ms, hits; /* hits: share of expert uses */
	uint64_t bytes, kept_bytes; /* read for the text; budget */
	double stall_share, read_gbps; /* both while it decodes */
};

struct residency_bench {
	struct decode_options opt;
	const char *budgets;
	uint64_t budget[OD_LIST_MAX]; /* percent */
	size_t n_budgets;
	struct od_prompts prompts;
	struct routes routes;
	struct residency_run *run; /* [runs][n_budgets] */
	double *resident; /* [runs]: tokens a second */
	double *disk_gbps; /* [runs] */
	double *x; /* [runs], to sort in */
	uint64_t *lrfu, *lru, *lfu, *belady; /* [n_budgets]: bytes that they read in the last round */
	uint32_t n_moe, n_experts, top_k;
	char *pack; /* where it is */
	uint64_t all_bytes, expert_bytes, stored_bytes; /* all experts in memory; one there, and on disk */
	int32_t *first; /* [tokens]: the resident text */
	uint64_t other; /* texts that were another one */
};

static const char *const without[] = { "workers",    "local",	    "resident",	  "memory", "mixed",
				       "group-size", "align-token", "align-kv",	  "key",    "peers",
				       "insecure",   "worker-arg",  "shadow-arg", NULL };

static int parse(struct residency_bench *b, int argc, char **argv, struct od_err *err)
{
	struct decode_options *o = &b->opt;
	const struct od_arg own[] = {
		{ .kind = OD_ARG_TITLE, .help = "Measure" },
		{ "budgets", OD_ARG_STRING, &b->budgets, "LIST",
		  "memory for kept experts, percent of what all take; default " DEFAULT_BUDGETS, 0, 0, NULL },
		{ "prompts", OD_ARG_STRING, &o->prompts, "FILE",
		  "a JSON object a line with \"text\" or \"ids\"; runs use them in turn", 0, 0, NULL },
		{ "prompt-tokens", OD_ARG_UINT, &o->prompt_tokens, "N",
		  "without --prompts: random prompts of N tokens; default 16", 1, MAX_TOKENS, NULL },
		{ "tokens", OD_ARG_UINT, &o->tokens, "N", "tokens of a text; default 64", 2, MAX_TOKENS, NULL },
		{ "runs", OD_ARG_UINT, &o->runs, "N", "rounds of all budgets; default 3", 1, 1e5, NULL },
		{ "temperature", OD_ARG_REAL, &o->temperature, "T", "of sampling; default 0: greedy", 0, 1000, NULL },
		{ "seed", OD_ARG_UINT, &o->seed, "N", "seed of random prompts and of sampling; default 1", 0, 0, NULL },
		{ "read-mode", OD_ARG_CHOICE, &o->engine.opts.engine.read_mode, "NAME",
		  "auto, buffered, or direct: past the page cache, which else holds what does not fit", 0, 0,
		  od_read_mode_names },
		{ "json", OD_ARG_FLAG, &o->json, NULL, "print JSON, with every run", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "print this text", 0, 0, NULL },
	};

	odm_engine_args_defaults(&o->engine);
	return odm_engine_args_parse(
		&o->engine, without, own, sizeof(own) / sizeof(own[0]), argc, argv, &o->help,
		"Usage: od-bench residency --pack PACK [OPTIONS]\n\n"
		"Measures od-main --memory: tokens per second, hits and bytes read, by the memory that experts get.\n"
		"Example: od-bench residency --pack PACK --budgets 10,25,50,100\n",
		err);
}

static int check(struct residency_bench *b, struct od_err *err)
{
	struct decode_options *o = &b->opt;
	int rc = odm_engine_args_finish(&o->engine, err);

	if (rc == OD_OK)
		rc = od_list_numbers("budgets", b->budgets, 1, 1000, b->budget, &b->n_budgets, err);
	if (rc == OD_OK && o->prompts != NULL && o->prompt_tokens > 0)
		rc = od_fail(err, OD_ERR_ARG, "--prompts and --prompt-tokens exclude each other");
	if (rc != OD_OK)
		return rc;
	if (o->prompts == NULL && o->prompt_tokens == 0)
		o->prompt_tokens = DEFAULT_PROMPT_TOKENS;
	o->engine.opts.engine.quiet = true;
	o->engine.opts.engine.prefix_cache_mib = 0; /* the second text's prompt is computed */
	return OD_OK;
}

/* ---- Routes ---- */

static void begin_step(void *arg, const struct odm_step *step, const struct odm_part *part)
{
	(void)step;
	(void)part;
	((struct residency_bench *)arg)->routes.now++;
}

static void note_use(struct routes *r, uint32_t m, uint32_t expert)
{
	if (r->n == r->room) {
		const size_t room = 2 * r->room + 1024;
		struct use *use = realloc(r->use, room * sizeof(*use));

		r->failed = r->failed || use == NULL;
		if (use == NULL)
			return;
		r->use = use;
		r->room = room;
	}
	r->use[r->n++] = (struct use){ r->now + 1, m, expert };
}

static void note_route(void *arg, enum odm_phase phase, uint32_t position, uint32_t m, const uint16_t *experts,
		       const float *weights, float margin)
{
	struct residency_bench *b = arg;
	struct routes *r = &b->routes;

	(void)phase;
	(void)position;
	(void)weights;
	(void)margin;
	for (uint32_t i = 0; i < b->top_k; i++) {
		uint64_t *last = &r->step[(size_t)m * b->n_experts + experts[i]];

		if (*last == r->now)
			continue;
		*last = r->now;
		note_use(r, m, experts[i]);
	}
}

/* next[i]: when the expert of use i is used again. */
static int find_next(const struct residency_bench *b, uint64_t *next, struct od_err *err)
{
	const struct routes *r = &b->routes;
	const size_t all = (size_t)b->n_moe * b->n_experts;
	uint64_t *at = malloc(all * sizeof(*at));

	if (at == NULL)
		return od_fail(err, OD_ERR_NOMEM, "replay");
	for (size_t i = 0; i < all; i++)
		at[i] = CACHE_NEVER;
	for (size_t i = r->n; i-- > 0;) {
		uint64_t *of = &at[(size_t)r->use[i].m * b->n_experts + r->use[i].expert];

		next[i] = *of;
		*of = i;
	}
	free(at);
	return OD_OK;
}

/* Bytes that the rule reads for the second text with so much memory for experts. */
static int replay(const struct residency_bench *b, enum cache_rule rule, uint64_t budget_bytes, const uint64_t *next,
		  uint64_t *bytes, struct od_err *err)
{
	const struct routes *r = &b->routes;
	const struct sim_cache_opts o = { .n_moe = b->n_moe,
					  .n_experts = b->n_experts,
					  .budget_bytes = budget_bytes,
					  .expert_bytes = b->expert_bytes,
					  .state = SIM_CACHE_F,
					  .favour_recent = b->opt.engine.opts.engine.cache_prior };
	struct sim_cache *c;
	int rc = cache_rule_new(&c, rule, &o, 1, err);

	*bytes = 0;
	for (size_t i = 0; rc == OD_OK && i < r->n; i++) {
		const struct use *u = &r->use[i];

		if (i >= r->measured && sim_cache_look(c, u->m, u->expert) == SIM_CACHE_NONE)
			*bytes += b->stored_bytes;
		if (rule == CACHE_BELADY)
			cache_rule_foretell(c, next[i]);
		if (rule == CACHE_LRFU)
			cache_rule_step(c, u->step);
		(void)sim_cache_use(c, u->m, u->expert);
	}
	sim_cache_free(c);
	return rc;
}

static int replay_all(struct residency_bench *b, struct od_err *err)
{
	uint64_t *next = malloc((b->routes.n + 1) * sizeof(*next));
	int rc = next != NULL && !b->routes.failed ? find_next(b, next, err) :
						     od_fail(err, OD_ERR_NOMEM, "routes of %zu uses", b->routes.n);

	for (size_t k = 0; rc == OD_OK && k < b->n_budgets; k++) {
		const uint64_t budget = b->all_bytes * b->budget[k] / 100 + b->top_k * b->expert_bytes;

		rc = replay(b, CACHE_LRFU, budget, next, &b->lrfu[k], err);
		if (rc == OD_OK)
			rc = replay(b, CACHE_LRU, budget, next, &b->lru[k], err);
		if (rc == OD_OK)
			rc = replay(b, CACHE_LFU, budget, next, &b->lfu[k], err);
		if (rc == OD_OK)
			rc = replay(b, CACHE_BELADY, budget, next, &b->belady[k], err);
	}
	free(next);
	return rc;
}

/* ---- Measuring ---- */

static int generate(struct residency_bench *b, struct odm_engine *e, size_t i, bool record, struct odm_result *r,
		    struct od_err *err)
{
	const struct od_prompt *q = &b->prompts.prompt[i % b->prompts.n];
	struct odm_request req = {
		.prompt = q->ids, .n_prompt = q->n_ids, .max_tokens = b->opt.tokens, .ignore_eos = true
	};

	if (record)
		req.observer = (struct odm_observer){ .arg = b, .step = begin_step, .route = note_route };
	od_sampler_defaults(&req.sampling);
	req.sampling.temperature = b->opt.temperature;
	req.sampling.seed = b->opt.seed + i;
	return odm_generate(e, &req, r, err);
}

/* Two texts: the second one is measured. */
static int two_texts(struct residency_bench *b, struct odm_engine *e, size_t run, bool record, struct odm_result *r,
		     struct od_err *err)
{
	int rc = generate(b, e, 2 * run, record, r, err);

	odm_result_fini(r);
	if (record)
		b->routes.measured = b->routes.n;
	return rc == OD_OK ? generate(b, e, 2 * run + 1, record, r, err) : rc;
}

static double rate(const struct odm_result *r)
{
	return odm_figures_tok_per_s(&r->figures);
}

static void learn_sizes(struct residency_bench *b, const struct odm_engine *e)
{
	const struct od_pack *p = odm_engine_pack(e);
	const struct od_config *c = od_pack_config(p);

	b->n_moe = c->n_moe;
	b->n_experts = c->n_experts;
	b->top_k = c->top_k;
	b->stored_bytes = od_pack_expert_stored_bytes(p);
}

/* Prompts, and memory for routes, which need an engine. */
static int prepare(struct residency_bench *b, const struct odm_engine *e, struct od_err *err)
{
	if (b->pack != NULL)
		return OD_OK;
	learn_sizes(b, e);
	b->pack = strdup(od_pack_dir(odm_engine_pack(e)));
	b->routes.step = calloc((size_t)b->n_moe * b->n_experts, sizeof(*b->routes.step));
	if (b->pack == NULL || b->routes.step == NULL)
		return od_fail(err, OD_ERR_NOMEM, "routes");
	return decode_make_prompts(&b->prompts, &b->opt, 2 * b->opt.runs, e, err);
}

static int measure_resident(struct residency_bench *b, size_t run, struct od_err *err)
{
	struct odm_main_opts eo = b->opt.engine.opts;
	struct odm_main_node *node;
	struct odm_result r = { 0 };
	int rc;

	eo.mode = ODM_RESIDENT;
	eo.cluster.predictor = ODM_PREDICTOR_AUTO;
	rc = odm_main_node_open(&node, &eo, err);
	if (rc == OD_OK)
		rc = prepare(b, odm_main_node_engine(node), err);
	b->routes.n = 0;
	if (rc == OD_OK)
		rc = two_texts(b, odm_main_node_engine(node), run, true, &r, err);
	if (rc == OD_OK) {
		b->resident[run] = rate(&r);
		memcpy(b->first, r.tokens, b->opt.tokens * sizeof(*b->first));
	}
	odm_result_fini(&r);
	odm_main_node_close(node);
	return rc;
}

static int measure_budget(struct residency_bench *b, size_t run, size_t k, struct od_err *err)
{
	struct residency_run *u = &b->run[run * b->n_budgets + k];
	struct odm_main_opts eo = b->opt.engine.opts;
	struct odm_main_node *node;
	struct odm_result r = { 0 };
	const uint64_t *c = r.figures.c;
	int rc;

	eo.mode = ODM_TIERED;
	eo.engine.expert_bytes = b->all_bytes * b->budget[k] / 100;
	rc = odm_main_node_open(&node, &eo, err);
	if (rc == OD_OK)
		rc = two_texts(b, odm_main_node_engine(node), run, false, &r, err);
	if (rc == OD_OK) {
		const double uses = (double)c[OD_C_CACHE_USES], decode_s = od_seconds(c[OD_C_DECODE_NS]);

		b->other += memcmp(b->first, r.tokens, b->opt.tokens * sizeof(*b->first)) != 0;
		*u = (struct residency_run){ .tok_per_s = rate(&r),
					     .ttft_ms = od_seconds(c[OD_C_TTFT_NS]) * 1e3,
					     .hits = uses > 0 ? (double)c[OD_C_CACHE_HITS] / uses : 1,
					     .bytes = c[OD_C_BEGUN_LOADS] * b->stored_bytes,
					     .kept_bytes = eo.engine.expert_bytes,
					     .stall_share = od_seconds(c[OD_C_STALL_NS]) / decode_s,
					     .read_gbps = (double)(c[OD_C_DECODE_LOADS] * b->stored_bytes) / 1e9 /
							  decode_s };
	}
	odm_result_fini(&r);
	odm_main_node_close(node);
	return rc == OD_OK ? rc : od_fail_within(err, "budget %llu%%", (unsigned long long)b->budget[k]);
}

/* Memory of all experts in the form that a part of them is kept in. */
static int learn_memory(struct residency_bench *b, struct od_err *err)
{
	struct odm_main_opts eo = b->opt.engine.opts;
	struct odm_main_node *node;
	int rc;

	eo.mode = ODM_TIERED;
	eo.engine.expert_bytes = 1;
	rc = odm_main_node_open(&node, &eo, err);
	if (rc == OD_OK) {
		const struct odm_engine *e = odm_main_node_engine(node);
		struct od_residency_sizes sizes;

		learn_sizes(b, e);
		b->opt.engine.opts.engine.form = odm_engine_form(e);
		rc = od_residency_measure(&sizes, odm_engine_pack(e), odm_engine_device(e), odm_engine_form(e), err);
		for (uint32_t m = 0; rc == OD_OK && m < b->n_moe; m++)
			b->all_bytes += b->n_experts * sizes.slot_bytes[m];
		b->expert_bytes = b->all_bytes / b->n_moe / b->n_experts;
		od_residency_sizes_fini(&sizes);
	}
	odm_main_node_close(node);
	return rc;
}

static int measure_all(struct residency_bench *b, struct od_err *err)
{
	const bool progress = !b->opt.json && isatty(STDERR_FILENO);
	int rc = learn_memory(b, err);

	for (size_t run = 0; rc == OD_OK && run < b->opt.runs; run++) {
		rc = measure_resident(b, run, err);
		if (rc == OD_OK)
			rc = odp_disk_rate(b->pack, &b->disk_gbps[run], err);
		for (size_t k = 0; rc == OD_OK && k < b->n_budgets; k++) {
			if (progress)
				fprintf(stderr, "\rround %zu of %llu, %3llu%%", run + 1,
					(unsigned long long)b->opt.runs, (unsigned long long)b->budget[k]);
			rc = measure_budget(b, run, k, err);
		}
		if (rc == OD_OK)
			rc = replay_all(b, err);
	}
	if (progress)
		fputc('\n', stderr);
	return rc;
}

/* ---- Reporting ---- */

typedef double figure_fn(const struct residency_bench *b, size_t run, size_t k);

static const struct residency_run *run_of(const struct residency_bench *b, size_t run, size_t k)
{
	return &b->run[run * b->n_budgets + k];
}

static double tok_per_s(const struct residency_bench *b, size_t run, size_t k)
{
	return run_of(b, run, k)->tok_per_s;
}

static double to_resident(const struct residency_bench *b, size_t run, size_t k)
{
	return run_of(b, run, k)->tok_per_s / b->resident[run];
}

static double ttft_ms(const struct residency_bench *b, size_t run, size_t k)
{
	return run_of(b, run, k)->ttft_ms;
}

static double hits(const struct residency_bench *b, size_t run, size_t k)
{
	return 100 * run_of(b, run, k)->hits;
}

static double stalled(const struct residency_bench *b, size_t run, size_t k)
{
	return 100 * run_of(b, run, k)->stall_share;
}

static double disk_share(const struct residency_bench *b, size_t run, size_t k)
{
	return run_of(b, run, k)->read_gbps / b->disk_gbps[run];
}

static double bytes_per_token(const struct residency_bench *b, size_t run, size_t k)
{
	return (double)run_of(b, run, k)->bytes / (double)b->opt.tokens;
}

/* The best of the policies that know no future, of this memory. */
static double online_bytes(const struct residency_bench *b, size_t k)
{
	const uint64_t older = b->lru[k] < b->lfu[k] ? b->lru[k] : b->lfu[k];

	return (double)(older < b->lrfu[k] ? older : b->lrfu[k]);
}

/* The resident rate, or what the disk's rate allows with the bytes of that policy. */
static double to_bound(const struct residency_bench *b, size_t run, size_t k)
{
	const double by_disk = b->disk_gbps[run] * 1e9 / (online_bytes(b, k) / (double)b->opt.tokens);

	return run_of(b, run, k)->tok_per_s / fmin(b->resident[run], by_disk);
}

static double median(const struct residency_bench *b, size_t k, figure_fn *of)
{
	struct od_stats s;
	size_t n = 0;

	for (size_t run = 0; run < b->opt.runs; run++) {
		const double v = of(b, run, k);

		if (!isnan(v))
			b->x[n++] = v;
	}
	od_stats_of(b->x, n, &s);
	return n > 0 ? s.median : NAN;
}

static double resident_rate(const struct residency_bench *b, size_t run, size_t k)
{
	(void)k;
	return b->resident[run];
}

static double disk_rate(const struct residency_bench *b, size_t run, size_t k)
{
	(void)k;
	return b->disk_gbps[run];
}

static void report_budgets(const struct residency_bench *b, struct od_report *r)
{
	static const struct od_column columns[] = {
		{ "budget", "budget, %", 0 },
		{ "kept_bytes", "memory", 0 },
		{ "tok_per_s", "tok/s", 1 },
		{ "to_resident", "/ resident", 2 },
		{ "to_bound", "/ bound", 2 },
		{ "ttft_ms", "first token, ms", 0 },
		{ "hits", "hits, %", 1 },
		{ "stalled", "stalled, %", 0 },
		{ "bytes_per_token", "read a token", 0 },
		{ "disk_share", "/ disk", 2 },
		{ "bytes", "/ online", 2 },
		{ "lrfu_bytes", "LRFU", 2 },
		{ "lru_bytes", "LRU", 2 },
		{ "lfu_bytes", "LFU", 2 },
		{ "belady_bytes", "Belady", 2 },
	};
	struct od_table *t = od_report_table(
		r, "by_budget",
		"Medians. bound: resident, or the disk with the bytes of online, the best of LRFU, LRU and LFU; LRFU, LRU, "
		"LFU, Belady: bytes over those (last round)",
		columns, sizeof(columns) / sizeof(columns[0]));

	for (size_t k = 0; k < b->n_budgets; k++) {
		const double online = online_bytes(b, k);
		const bool any = online > 0;

		od_table_row(t, (struct od_cell[]){
					OD_INT(b->budget[k]),
					OD_BYTES(run_of(b, 0, k)->kept_bytes),
					OD_REAL(median(b, k, tok_per_s)),
					OD_REAL(median(b, k, to_resident)),
					OD_REAL(median(b, k, to_bound)),
					OD_REAL(median(b, k, ttft_ms)),
					OD_REAL(median(b, k, hits)),
					OD_REAL(median(b, k, stalled)),
					OD_BYTES(median(b, k, bytes_per_token)),
					OD_REAL(median(b, k, disk_share)),
					any ? OD_REAL((double)run_of(b, b->opt.runs - 1, k)->bytes / online) : OD_NONE,
					any ? OD_REAL((double)b->lrfu[k] / online) : OD_NONE,
					any ? OD_REAL((double)b->lru[k] / online) : OD_NONE,
					any ? OD_REAL((double)b->lfu[k] / online) : OD_NONE,
					any ? OD_REAL((double)b->belady[k] / online) : OD_NONE,
				});
	}
}

static int report(const struct residency_bench *b, struct od_err *err)
{
	struct od_report *r;
	int rc = od_report_new(&r, "A part of the experts in memory", err);

	if (rc != OD_OK)
		return rc;
	od_report_fact(r, "pack", "pack", OD_TEXT(b->pack), 0, NULL);
	od_report_fact(r, "tokens", "tokens of a text", OD_INT(b->opt.tokens), 0, NULL);
	od_report_fact(r, "runs", "rounds", OD_INT(b->opt.runs), 0, NULL);
	od_report_fact(r, "routing", "routing",
		       OD_TEXT(b->opt.engine.routing != NULL ? b->opt.engine.routing : "router"), 0, NULL);
	od_report_fact(r, "form", "experts in memory", OD_TEXT(od_form_names[b->opt.engine.opts.engine.form]), 0, NULL);
	od_report_fact(r, "all_bytes", "all of them", OD_BYTES(b->all_bytes), 0, NULL);
	od_report_fact(r, "expert_bytes", "one of them", OD_BYTES(b->expert_bytes), 0, NULL);
	od_report_fact(r, "resident_tok_per_s", "resident", OD_REAL(median(b, 0, resident_rate)), 1, "tok/s");
	od_report_fact(r, "disk_gbps", "disk, past the page cache", OD_REAL(median(b, 0, disk_rate)), 2, "GB/s");
	od_report_fact(r, "texts_with_other_tokens", "texts that differ", OD_INT(b->other), 0, NULL);
	report_budgets(b, r);
	rc = od_report_print(r, stdout, b->opt.json, err);
	od_report_free(r);
	return rc;
}

/* ---- The whole ---- */

static int allocate(struct residency_bench *b, struct od_err *err)
{
	const size_t runs = b->opt.runs;

	b->run = calloc(runs * b->n_budgets, sizeof(*b->run));
	b->resident = calloc(runs, sizeof(*b->resident));
	b->disk_gbps = calloc(runs, sizeof(*b->disk_gbps));
	b->x = calloc(runs, sizeof(*b->x));
	b->lrfu = calloc(b->n_budgets, sizeof(*b->lrfu));
	b->lru = calloc(b->n_budgets, sizeof(*b->lru));
	b->lfu = calloc(b->n_budgets, sizeof(*b->lfu));
	b->belady = calloc(b->n_budgets, sizeof(*b->belady));
	b->first = calloc(b->opt.tokens, sizeof(*b->first));
	if (b->run == NULL || b->resident == NULL || b->disk_gbps == NULL || b->x == NULL || b->lrfu == NULL ||
	    b->lru == NULL || b->lfu == NULL || b->belady == NULL || b->first == NULL)
		return od_fail(err, OD_ERR_NOMEM, "figures of %zu rounds", runs);
	return OD_OK;
}

static int run(struct residency_bench *b, struct od_err *err)
{
	int rc = allocate(b, err);

	if (rc == OD_OK)
		rc = decode_load_prompts(&b->prompts, &b->opt, 2 * b->opt.runs, 1, err);
	if (rc == OD_OK)
		rc = measure_all(b, err);
	return rc == OD_OK ? report(b, err) : rc;
}

int od_bench_residency(int argc, char **argv, struct od_err *err)
{
	struct residency_bench b = {
		.opt = { .tokens = DEFAULT_TOKENS, .runs = DEFAULT_RUNS, .seed = 1, .baseline = -1 },
		.budgets = DEFAULT_BUDGETS,
	};
	int rc = parse(&b, argc, argv, err);

	if (rc != OD_OK || b.opt.help)
		return rc;
	rc = check(&b, err);
	if (rc == OD_OK)
		rc = run(&b, err);
	od_prompts_fini(&b.prompts);
	free(b.routes.use);
	free(b.routes.step);
	free(b.run);
	free(b.resident);
	free(b.disk_gbps);
	free(b.x);
	free(b.lrfu);
	free(b.lru);
	free(b.lfu);
	free(b.belady);
	free(b.first);
	free(b.pack);
	return rc;
}

/* od-bench ablate: the gain from prediction and from each kind of alignment, on a live cluster (OD-MoE section 4.2).
 *
 * The raw speed of ten processes on a few cores is meaningless. So loads and computation are paced by a clock
 * (od-worker --load-time, --run-time), and the settings are compared by their use of that time. Every prompt runs in
 * every setting before the next prompt begins, each time on a fresh cluster, in a shuffled order, so that other load on
 * the machine affects all settings equally. */
#include "common/base/clock.h"
#include "common/pack/shadow/shadow_load.h"
#include "main-node/node/engine_args.h"
#include "main-node/node/main_node.h"
#include "tests/bench/bench.h"
#include "tests/bench/live/ablate.h"
#include "tests/bench/live/child_args.h"
#include "tests/bench/live/recall_progress.h"
#include "tests/bench/live/rivals.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_WORKERS 8
#define DEFAULT_TOKENS 256
#define DEFAULT_RUN_MS 3
#define DEFAULT_LOAD_SHARE 0.5
#define CALIBRATION_TOKENS 32
#define MAX_TOKENS 1e6
#define DEPARTURE_LATE 0 /* in child_departure_names: the paper's */

enum figure_choice { FIGURE_8, FIGURE_9, FIGURE_10, FIGURE_ALL };
static const char *const figure_names[] = { "8", "9", "10", "all", NULL };

struct ablate_options {
	struct odm_engine_args engine;
	const char *prompts;
	uint64_t limit, tokens, slots;
	double load_ms, load_share; /* negative: not given */
	double run_ms;
	int figure, precision, departure; /* the shadow's: indices into their names */
	bool json, help;
};

struct ablate_bench {
	struct ablate_options opt;
	struct ablate a;
	struct od_pack *pack;
	struct od_prompts prompts;
	struct recall_progress progress; /* in tokens */
	uint64_t tokens; /* decoded in this run */
};

/* A run starts its own cluster, and who predicts and what is aligned is what runs differ in. */
static const char *const without[] = { "workers",      "resident",	"predictor",  "align-token", "align-kv",
				       "trace",	       "worker-arg",	"shadow-arg", "draft",	     "routing",
				       "routing-keep", "routing-cache", NULL };

static int parse(struct ablate_options *o, int argc, char **argv, struct od_err *err)
{
	struct odm_engine_args *a = &o->engine;
	const struct od_arg own[] = {
		{ .kind = OD_ARG_TITLE, .help = "Measure" },
		{ "figure", OD_ARG_CHOICE, &o->figure, "N",
		  "figure of OD-MoE. 8 (default): cases 1 to 6; 9: token and KV periods "
		  "1 to 16; 10: KV periods 1 to 32 at two load times; all",
		  0, 0, figure_names },
		{ "prompts", OD_ARG_STRING, &o->prompts, "FILE",
		  "a JSON object a line with \"text\" or \"ids\" (tests/bench/prompts.jsonl)", 0, 0, NULL },
		{ "limit", OD_ARG_UINT, &o->limit, "N", "only the first N prompts", 1, 0, NULL },
		{ "tokens", OD_ARG_UINT, &o->tokens, "N", "tokens to generate at most; default 256", 2, MAX_TOKENS,
		  NULL },
		{ "load-time", OD_ARG_REAL, &o->load_ms, "MS",
		  "each load takes at least MS milliseconds; default: by --load-share", 0, 60000, NULL },
		{ "load-share", OD_ARG_REAL, &o->load_share, "X",
		  "load time as X times the window (Eq. 1), which is measured first with "
		  "unpaced loads; default 0.5",
		  0, 100, NULL },
		{ "json", OD_ARG_FLAG, &o->json, NULL, "print JSON, with every run", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "print this text", 0, 0, NULL },
		/* Other defaults than elsewhere. */
		{ .kind = OD_ARG_TITLE, .help = "The cluster of every run" },
		{ "local", OD_ARG_UINT, &a->local, "N", "workers, as child processes, with a shadow; default 8", 1, 64,
		  NULL },
		{ "slots", OD_ARG_UINT, &o->slots, "N", "experts that a worker can hold; default 1", 1, 64, NULL },
		{ "threads", OD_ARG_UINT, &a->opts.engine.threads, "N", "compute threads of main; default 1", 1, 1024,
		  NULL },
		{ "run-time", OD_ARG_REAL, &o->run_ms, "MS",
		  "running an expert takes at least MS milliseconds; default 3", 0, 60000, NULL },
		{ "precision", OD_ARG_CHOICE, &o->precision, "P", "the shadow's weights; default int8", 0, 0,
		  od_precision_names },
		{ "departure", OD_ARG_CHOICE, &o->departure, "D",
		  "late (default): the shadow waits for main's token; early: it runs ahead "
		  "on its own token",
		  0, 0, child_departure_names },
		{ "hedge", OD_ARG_REAL, &a->opts.cluster.hedge_percent, "PERCENT",
		  "prefetch likely runners-up of the shadow's predictions, up "
		  "to PERCENT wasted loads per expert use; default 0",
		  0, 400, NULL },
	};

	odm_engine_args_defaults(a);
	a->opts.engine.draft = ODM_DRAFT_OFF;
	a->local = DEFAULT_WORKERS;
	a->opts.engine.threads = 1;
	a->opts.cluster.hedge_percent = 0; /* the paper's shadow, unless asked for */
	return odm_engine_args_parse(
		a, without, own, sizeof(own) / sizeof(own[0]), argc, argv, &o->help,
		"Usage: od-bench ablate --prompts FILE [OPTIONS]\n\n"
		"Measures the shadow and each kind of alignment on a local cluster, restarted for every run.\n"
		"Workers are paced, so that a few cores can stand for ten machines; the default --load-time is half\n"
		"the window. By default the shadow is the paper's: late departure, no hedging. Paced times must be\n"
		"long compared with this machine's own compute time (t_main); otherwise they measure this machine.\n"
		"Example: od-bench ablate --pack PACK --prompts tests/bench/prompts.jsonl --limit 20\n",
		err);
}

static int check(struct ablate_options *o, struct od_err *err)
{
	struct odm_engine_args *a = &o->engine;
	struct odm_main_opts *e = &a->opts;
	int rc;

	if (o->prompts == NULL)
		return od_fail(err, OD_ERR_ARG, "--prompts FILE is missing");
	if (o->load_ms >= 0 && o->load_share >= 0)
		return od_fail(err, OD_ERR_ARG, "--load-time and --load-share exclude each other");
	if (o->load_ms < 0 && o->load_share < 0)
		o->load_share = DEFAULT_LOAD_SHARE;
	rc = odm_engine_args_finish(a, err);
	e->engine.quiet = true;
	e->engine.cancel = od_bench_catch_signals();
	return rc;
}

/* --- measuring --- */

/* In the first layer of every decoded token. */
static void count_token(void *arg, enum odm_phase phase, uint32_t position, uint32_t layer, const uint16_t *experts,
			const float *weights, float margin)
{
	struct ablate_bench *b = arg;

	(void)position, (void)experts, (void)weights, (void)margin;
	if (phase != ODM_DECODE || layer != 0)
		return;
	b->tokens++;
	recall_progress_done(&b->progress, 1);
}

/* A cluster of its own for every run: whatever one leaves behind reaches no other. */
static int generate(struct ablate_bench *b, const struct ablate_setting *s, const struct od_prompt *q, uint64_t tokens,
		    struct odm_result *r, struct od_err *err)
{
	const struct ablate_options *o = &b->opt;
	struct odm_main_opts eo = o->engine.opts;
	struct child_args args = { 0 };
	struct odm_request req = { .prompt = q->ids, .n_prompt = q->n_ids, .max_tokens = tokens };
	struct odm_main_node *node;
	int rc;

	rival_choose(&eo, s->predictor);
	eo.cluster.no_stand_in = true;
	if (s->predictor != ODM_PREDICT_SHADOW)
		eo.cluster.hedge_percent = 0; /* only the shadow's predictions are hedged */
	eo.cluster.align.token_period = (uint32_t)s->align_token;
	eo.cluster.align.kv_period = (uint32_t)s->align_kv;
	child_args_add(&args, &eo.local.worker_args, "--slots=%" PRIu64, o->slots);
	child_args_add(&args, &eo.local.worker_args, "--load-time=%.6f", s->load_time_ms);
	child_args_add(&args, &eo.local.worker_args, "--run-time=%.6f", o->run_ms);
	child_args_add(&args, &eo.local.shadow_args, "--precision=%s", od_precision_names[o->precision]);
	child_args_add(&args, &eo.local.shadow_args, "--departure=%s", child_departure_names[o->departure]);
	od_sampler_defaults(&req.sampling);
	if (b->a.run != NULL) /* not while calibrating */
		req.observer = (struct odm_observer){ .arg = b, .route = count_token };
	*r = (struct odm_result){ 0 };
	b->tokens = 0;
	rc = odm_main_node_open(&node, &eo, err);
	if (rc != OD_OK)
		return rc;
	rc = odm_generate(odm_main_node_engine(node), &req, r, err);
	odm_main_node_close(node);
	return rc == OD_OK ? rc : od_fail_within(err, "%s", q->name);
}

static void note_other_tokens(struct ablate *a, size_t setting, size_t prompt)
{
	const struct ablate_setting *s = &a->setting[setting];

	if (a->n_other_tokens++ == 0)
		snprintf(a->first_other, sizeof(a->first_other),
			 "%s, predictor %s, periods %llu and %llu, load %.2f ms", a->prompts->prompt[prompt].name,
			 rival_names[s->predictor], (unsigned long long)s->align_token, (unsigned long long)s->align_kv,
			 s->load_time_ms);
}

/* Another order for every prompt (Fisher and Yates), so that no setting always follows the same one. */
static void shuffle(size_t *order, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i++)
		order[i] = i;
	for (size_t i = n; i > 1; i--) {
		size_t j, other = order[i - 1];

		seed = seed * 6364136223846793005ull + 1442695040888963407ull; /* Knuth's MMIX */
		j = (size_t)(seed >> 33) % i;
		order[i - 1] = order[j];
		order[j] = other;
	}
}

/* One prompt in every setting. */
static int run_round(struct ablate_bench *b, size_t prompt, struct od_err *err)
{
	struct ablate *a = &b->a;
	struct odm_result first = { 0 };
	size_t order[ABLATE_MAX_SETTINGS];
	int rc = OD_OK;

	shuffle(order, a->n_settings, prompt);
	for (size_t k = 0; rc == OD_OK && k < a->n_settings; k++) {
		size_t i = order[k];
		struct odm_figures *f = &ablate_runs(a, i)[prompt];
		struct odm_result r;

		rc = generate(b, &a->setting[i], &b->prompts.prompt[prompt], b->opt.tokens, &r, err);
		/* texts that ended early count in full */
		recall_progress_done(&b->progress, b->opt.tokens - b->tokens);
		*f = r.figures;
		f->node = NULL; /* freed below */
		f->n_nodes = 0;
		if (rc == OD_OK && k > 0 &&
		    (r.n_tokens != first.n_tokens ||
		     memcmp(r.tokens, first.tokens, r.n_tokens * sizeof(*r.tokens)) != 0))
			note_other_tokens(a, i, prompt);
		if (k == 0)
			first = r;
		else
			odm_result_fini(&r);
	}
	odm_result_fini(&first);
	a->n_done += rc == OD_OK;
	return rc;
}

static int run_rounds(struct ablate_bench *b, struct od_err *err)
{
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < b->prompts.n; i++)
		rc = run_round(b, i, err);
	return rc;
}

/* The window with loads that are not paced, aligned in full: nothing of it depends on the load time. */
static int calibrate(struct ablate_bench *b, struct od_err *err)
{
	const struct ablate_setting s = { .predictor = ODM_PREDICT_SHADOW, .align_token = 1, .align_kv = 1 };
	uint64_t tokens = b->opt.tokens < CALIBRATION_TOKENS ? b->opt.tokens : CALIBRATION_TOKENS;
	struct odm_result r;
	int rc = generate(b, &s, &b->prompts.prompt[0], tokens, &r, err);

	b->a.window_ms = od_seconds(odm_figures_window_ns(&r.figures, r.figures.c[OD_C_SLOTS])) * 1e3;
	if (rc == OD_OK && b->a.window_ms <= 0)
		rc = od_fail(err, OD_ERR_ARG,
			     "--load-share: no window could be measured: %s gave %zu tokens; "
			     "use --load-time",
			     b->prompts.prompt[0].name, r.n_tokens);
	odm_result_fini(&r);
	return rc;
}

/* --- life --- */

/* Prompts may need the pack's tokenizer. */
static int open_prompts(struct ablate_bench *b, struct od_err *err)
{
	int rc = od_pack_open(&b->pack, b->opt.engine.opts.engine.pack, err);

	if (rc == OD_OK)
		rc = od_prompts_load(&b->prompts, b->opt.prompts, b->opt.limit, err);
	if (rc == OD_OK)
		rc = od_prompts_encode_by_file(&b->prompts, od_pack_tokenizer_path(b->pack), err);
	return rc;
}

/* After the calibration: the load time is one of the settings. */
static int open_runs(struct ablate_bench *b, struct od_err *err)
{
	const struct ablate_options *o = &b->opt;
	struct ablate *a = &b->a;
	bool figures[ABLATE_FIGURES];

	for (int i = 0; i < ABLATE_FIGURES; i++)
		figures[i] = o->figure == FIGURE_ALL || o->figure == i;
	a->load_time_ms = o->load_share >= 0 ? o->load_share * a->window_ms : o->load_ms;
	ablate_plan(a, figures, a->load_time_ms);
	a->run = calloc(a->n_settings * b->prompts.n, sizeof(*a->run));
	if (a->run == NULL)
		return od_fail(err, OD_ERR_NOMEM, "figures of %zu prompts in %zu settings", b->prompts.n,
			       a->n_settings);
	return OD_OK;
}

static void describe(struct ablate_bench *b)
{
	const struct odm_main_opts *e = &b->opt.engine.opts;
	const struct odm_figures *f = &b->a.run[0];
	struct ablate *a = &b->a;

	a->max_tokens = b->opt.tokens;
	a->run_time_ms = b->opt.run_ms;
	a->workers = (uint32_t)f->c[OD_C_WORKERS];
	a->groups = (uint32_t)f->c[OD_C_GROUPS];
	a->slots = (uint32_t)f->c[OD_C_SLOTS];
	a->precision = od_precision_names[b->opt.precision];
	a->departure = child_departure_names[b->opt.departure];
	a->hedge_percent = e->cluster.hedge_percent;
	a->fingerprint = od_pack_fingerprint(b->pack);
}

static int report(struct ablate_bench *b, struct od_err *err)
{
	const struct ablate *a = &b->a;
	int rc;

	describe(b);
	rc = ablate_report(a, b->opt.json, err);
	if (rc == OD_OK && a->n_other_tokens > 0)
		rc = od_fail(err, OD_ERR_INTERNAL,
			     "%zu runs wrote other tokens than the first one of their prompt, "
			     "which must never happen; the first: %s",
			     a->n_other_tokens, a->first_other);
	return rc;
}

static int run(struct ablate_bench *b, struct od_err *err)
{
	struct od_err why = { 0 };
	int rc = open_prompts(b, err), ran;

	if (rc == OD_OK && b->opt.load_share >= 0)
		rc = calibrate(b, err);
	if (rc == OD_OK)
		rc = open_runs(b, err);
	if (rc != OD_OK)
		return rc;
	recall_progress_begin(&b->progress, isatty(STDERR_FILENO), b->prompts.n * b->a.n_settings * b->opt.tokens);
	ran = run_rounds(b, &why);
	recall_progress_end(&b->progress);
	if (b->a.n_done > 0) /* complete parts are worth as much when the rest is missing */
		rc = report(b, err);
	if (rc != OD_OK || ran == OD_OK)
		return rc;
	return od_fail(err, why.code, "after %zu of %zu prompts: %s", b->a.n_done, b->prompts.n, why.msg);
}

int od_bench_ablate(int argc, char **argv, struct od_err *err)
{
	struct ablate_bench b = {
		.opt = { .tokens = DEFAULT_TOKENS,
			 .slots = 1,
			 .load_ms = -1,
			 .load_share = -1,
			 .run_ms = DEFAULT_RUN_MS,
			 .precision = OD_PRECISION_INT8 - 1,
			 .departure = DEPARTURE_LATE },
		.a.window_ms = NAN,
	};
	int rc = parse(&b.opt, argc, argv, err);

	if (rc != OD_OK || b.opt.help)
		return rc;
	rc = check(&b.opt, err);
	b.a.prompts = &b.prompts;
	if (rc == OD_OK)
		rc = run(&b, err);
	free(b.a.run);
	od_prompts_fini(&b.prompts);
	od_pack_close(b.pack);
	return rc;
}

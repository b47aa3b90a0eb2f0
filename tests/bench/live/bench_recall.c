/* od-bench recall: the share of the routers' experts that was predicted (OD-MoE section 3.2, Eq. 2, 3).
 *
 * Text is generated greedily, as in the paper, until the model ends it. Without a cluster all runs in this process
 * (recall_run.h); with --local or --workers it is live (recall_live.h). */
#include "main-node/node/engine_args.h"
#include "tests/bench/bench.h"
#include "tests/bench/live/bench_prompts.h"
#include "tests/bench/live/child_args.h"
#include "tests/bench/live/recall_live.h"
#include "tests/bench/live/recall_run.h"
#include "tests/bench/live/recall_sweep.h"
#include "tests/bench/live/rivals.h"
#include "tests/bench/report/recall_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_TOKENS 256
#define MAX_TOKENS 1e6
#define MAX_SIM_MS 60000

struct recall_options {
	struct odm_engine_args engine;
	const char *prompts, *precision, *dense_precision, *predictor, *align, *dump;
	int sweep; /* index into recall_sweep_names, or -1 */
	int departure; /* the shadow's; index into its names, or -1 */
	uint64_t limit, tokens;
	struct recall_served_opts sim;
	bool json, help, served;
};

/* ---- The command line ---- */

static const char usage[] =
	"Usage: od-bench recall --prompts FILE [--local N | --workers FILE] [OPTIONS]\n"
	"Generates greedily, compares predicted with routed experts. Without a cluster: in this process.\n"
	"Example: od-bench recall --pack PACK --prompts tests/bench/prompts.jsonl --precision int8,bf16\n";

/* --align sets both periods; --resident has no cluster; own options set the shadow's arguments. */
static const char *const without[] = { "align-token", "align-kv", "resident", "shadow-arg", "draft", NULL };

static int parse(struct recall_options *o, int argc, char **argv, struct od_err *err)
{
	const struct od_arg own[] = {
		{ .kind = OD_ARG_TITLE,
		  .help = "Measure (on a cluster: one entry for --precision, --align and --predictor)" },
		{ "prompts", OD_ARG_STRING, &o->prompts, "FILE",
		  "a JSON object a line with \"text\" or \"ids\" (tests/bench/prompts.jsonl)", 0, 0, NULL },
		{ "limit", OD_ARG_UINT, &o->limit, "N", "only the first N prompts", 1, 0, NULL },
		{ "tokens", OD_ARG_UINT, &o->tokens, "N", "tokens to generate at most; default 256", 2, MAX_TOKENS,
		  NULL },
		{ "precision", OD_ARG_STRING, &o->precision, "LIST",
		  "shadow's weights (default: int8); on a cluster only with --local", 0, 0, NULL },
		{ "dense-precision", OD_ARG_STRING, &o->dense_precision, "LIST",
		  "attention's weights, e.g. same,bf16 (default: same as --precision)", 0, 0, NULL },
		{ "departure", OD_ARG_CHOICE, &o->departure, "D",
		  "early (default): shadow runs ahead; late: it waits for main's token", 0, 0, child_departure_names },
		{ "align", OD_ARG_STRING, &o->align, "LIST",
		  "T<i>_KV<j>: token every i steps, KV every j; 0: no (default: T1_KV1)", 0, 0, NULL },
		{ "predictor", OD_ARG_STRING, &o->predictor, "LIST",
		  "shadow (default), next-gate, multi-gate, popularity, history, "
		  "trajectory, random",
		  0, 0, NULL },
		{ "sweep", OD_ARG_CHOICE, &o->sweep, "NAME",
		  "OD-MoE's fig3 (recall by token index), fig6 (alignment periods), "
		  "table1 (predictors) or all; --precision: the pack's",
		  0, 0, recall_sweep_names },
		{ "dump", OD_ARG_STRING, &o->dump, "FILE",
		  "no cluster: JSON lines of each row and layer, true and predicted", 0, 0, NULL },
		{ "json", OD_ARG_FLAG, &o->json, NULL, "print JSON, with every token index and every prompt", 0, 0,
		  NULL },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "print this text", 0, 0, NULL },
		{ .kind = OD_ARG_TITLE,
		  .help = "Expert uses served in time, on a simulated cluster (without a real one)" },
		{ "served", OD_ARG_FLAG, &o->served, NULL,
		  "share in time, extra loads: late and early departure, hedges", 0, 0, NULL },
		{ "sim-hedge", OD_ARG_STRING, &o->sim.hedge, "LIST",
		  "hedge budgets, percent of wasted loads per use (default: 2,5,10)", 0, 0, NULL },
		{ "sim-workers", OD_ARG_UINT, &o->sim.workers, "N", "workers, in groups of top-k (default: 8)", 1, 64,
		  NULL },
		{ "sim-slots", OD_ARG_UINT, &o->sim.slots, "N", "slots of each worker (default: 2)", 1, 64, NULL },
		{ "sim-load", OD_ARG_REAL, &o->sim.load, "SHARE",
		  "load time over the window of OD-MoE Eq. 1 for one slot (default: 0.5)", 0.001, 100, NULL },
		{ "sim-shadow", OD_ARG_REAL, &o->sim.shadow_ms, "MS", "time of a layer on the shadow (default: 1)",
		  0.001, MAX_SIM_MS, NULL },
	};

	odm_engine_args_defaults(&o->engine);
	o->engine.opts.engine.draft = ODM_DRAFT_OFF; /* recall of plain decoding */
	recall_served_defaults(&o->sim);
	return odm_engine_args_parse(&o->engine, without, own, sizeof(own) / sizeof(own[0]), argc, argv, &o->help,
				     usage, err);
}

static int parse_predictors(const struct recall_options *o, int out[OD_LIST_MAX], size_t *n, struct od_err *err)
{
	int rc = od_list_choices("predictor", o->predictor != NULL ? o->predictor : "shadow", rival_names, out, n, err);

	if (rc == OD_OK)
		for (size_t i = 0; i < *n; i++) {
			if (out[i] == ODM_PREDICT_NONE)
				return od_fail(err, OD_ERR_ARG, "--predictor none has no recall; name a predictor");
		}
	return rc;
}

static int check_served(const struct recall_options *o, struct od_err *err)
{
	struct recall_served_opts defaults;

	recall_served_defaults(&defaults);
	if (!o->served && memcmp(&o->sim, &defaults, sizeof(defaults)) != 0)
		return od_fail(err, OD_ERR_ARG,
			       "--sim-...: about the simulated cluster of --served, which was not asked for");
	if (o->served && o->departure >= 0)
		return od_fail(err, OD_ERR_ARG, "--served shows both departures: leave out --departure");
	return o->served ? recall_served_check(&o->sim, err) : OD_OK;
}

/* ---- Live ---- */

static int choose_align(struct recall_options *o, struct od_err *err)
{
	struct recall_align list[OD_LIST_MAX];
	size_t n;
	int rc;

	if (o->align == NULL)
		return OD_OK;
	rc = recall_parse_align("align", o->align, list, &n, err);
	if (rc == OD_OK && n != 1)
		rc = od_fail(err, OD_ERR_ARG, "--align: a cluster has one; found \"%s\"", o->align);
	if (rc != OD_OK)
		return rc;
	o->engine.align_token = list[0].token;
	o->engine.align_kv = list[0].kv;
	return OD_OK;
}

/* A list that must have one item, or none was given: then -1. */
static int parse_one(const char *option, const char *text, const char *const *choices, int *out, struct od_err *err)
{
	int list[OD_LIST_MAX];
	size_t n;
	int rc;

	*out = -1;
	if (text == NULL)
		return OD_OK;
	rc = od_list_choices(option, text, choices, list, &n, err);
	if (rc == OD_OK && n != 1)
		rc = od_fail(err, OD_ERR_ARG, "--%s: a cluster has one; found \"%s\"", option, text);
	if (rc == OD_OK)
		*out = list[0];
	return rc;
}

/* The first option about what the shadow is, or NULL. */
static const char *shadow_kind(const struct recall_options *o)
{
	if (o->precision != NULL)
		return "precision";
	if (o->dense_precision != NULL)
		return "dense-precision";
	return o->departure >= 0 ? "departure" : NULL;
}

/* The first option that only the shadow obeys, or NULL. */
static const char *shadow_only(const struct recall_options *o)
{
	if (shadow_kind(o) != NULL)
		return shadow_kind(o);
	return o->align != NULL ? "align" : o->served ? "served" : NULL;
}

static int check_heard(const struct recall_options *o, const int *predictor, size_t n, struct od_err *err)
{
	const char *unheard = shadow_only(o);

	for (size_t i = 0; i < n; i++) {
		if (predictor[i] == ODM_PREDICT_SHADOW)
			return OD_OK;
	}
	return unheard == NULL ? OD_OK :
				 od_fail(err, OD_ERR_ARG,
					 "--%s needs the shadow, which --predictor %s does not name; "
					 "remove one of the two",
					 unheard, o->predictor);
}

/* Arguments for the shadow of --local; *precision is an index, or -1. */
static int choose_shadow(struct recall_options *o, struct child_args *a, int *precision, struct od_err *err)
{
	struct od_arg_list *args = &o->engine.opts.local.shadow_args;
	int dense = -1, rc;

	if (o->engine.local == 0 && shadow_kind(o) != NULL)
		return od_fail(err, OD_ERR_ARG, "--%s is for a shadow that --local starts", shadow_kind(o));
	rc = parse_one("precision", o->precision, od_precision_names, precision, err);
	if (rc == OD_OK && o->dense_precision != NULL && strcmp(o->dense_precision, "same") != 0)
		rc = parse_one("dense-precision", o->dense_precision, od_precision_names, &dense, err);
	if (rc != OD_OK)
		return rc;
	if (*precision >= 0)
		child_args_add(a, args, "--precision=%s", od_precision_names[*precision]);
	if (dense >= 0)
		child_args_add(a, args, "--dense-precision=%s", od_precision_names[dense]);
	if (o->departure >= 0)
		child_args_add(a, args, "--departure=%s", child_departure_names[o->departure]);
	return OD_OK;
}

static int check_live(struct recall_options *o, struct child_args *a, int *precision, struct od_err *err)
{
	struct odm_main_opts *e = &o->engine.opts;
	int rc, predictors[OD_LIST_MAX];
	size_t n;
	const char *alone = o->dump != NULL ? "dump" : o->sweep >= 0 ? "sweep" : o->served ? "served" : NULL;

	if (alone != NULL)
		return od_fail(err, OD_ERR_ARG, "--%s is not for a cluster: leave out --local and --workers", alone);
	*precision = -1;
	rc = check_served(o, err);
	if (rc == OD_OK)
		rc = parse_predictors(o, predictors, &n, err);
	if (rc == OD_OK && n != 1)
		rc = od_fail(err, OD_ERR_ARG, "--predictor: a cluster has one; found \"%s\"", o->predictor);
	if (rc == OD_OK)
		rc = check_heard(o, predictors, n, err);
	if (rc == OD_OK)
		rc = choose_shadow(o, a, precision, err);
	if (rc == OD_OK)
		rc = choose_align(o, err);
	if (rc != OD_OK)
		return rc;
	/* Said aloud, so that a cluster without a shadow is refused at the start and by name. */
	rival_choose(e, predictors[0]);
	e->engine.quiet = o->json;
	return odm_engine_args_finish(&o->engine, err);
}

/* ---- In one process ---- */

/* An option that only a cluster obeys, or NULL. */
static const char *cluster_only(const struct odm_main_opts *e)
{
	struct odm_main_opts defaults;

	odm_main_opts_defaults(&defaults);
	if (e->local.worker_args.n > 0)
		return "worker-arg";
	if (e->cluster.group_size > 0)
		return "group-size";
	if (e->engine.mixed)
		return "mixed";
	if (e->cluster.hedge_percent != defaults.cluster.hedge_percent)
		return "hedge";
	if (e->keys.key != NULL || e->keys.peers != NULL || e->keys.insecure)
		return e->keys.insecure ? "insecure" : e->keys.key != NULL ? "key" : "peers";
	return e->trace != NULL ? "trace" : NULL;
}

/* Lists the quantised precisions that the pack has, for a sweep. */
static int precisions_of_pack(const char *dir, int out[OD_LIST_MAX], size_t *n, struct od_err *err)
{
	struct od_pack *p;
	int rc = od_pack_open(&p, dir, err);

	*n = 0;
	for (int i = 0; rc == OD_OK && od_precision_names[i] != NULL; i++) {
		const enum od_precision precision = (enum od_precision)(i + 1);
		const struct od_shadow_choice choice = { .experts = precision, .dense = precision };
		uint64_t bytes;

		if (precision == OD_PRECISION_BF16)
			continue;
		rc = od_shadow_need_bytes(p, &choice, &bytes, err);
		if (rc == OD_OK)
			out[(*n)++] = i;
		else if (rc == OD_ERR_MISSING)
			rc = OD_OK;
	}
	if (rc == OD_OK && *n == 0)
		rc = od_fail(err, OD_ERR_MISSING, "pack %s has no shadow: od-pack shadow %s int8,nf4 makes two",
			     od_pack_dir(p), od_pack_dir(p));
	od_pack_close(p);
	return rc;
}

static int list_precisions(const struct recall_options *o, int out[OD_LIST_MAX], size_t *n, struct od_err *err)
{
	if (o->precision == NULL && o->sweep >= 0)
		return precisions_of_pack(o->engine.opts.engine.pack, out, n, err);
	return od_list_choices("precision", o->precision != NULL ? o->precision : "int8", od_precision_names, out, n,
			       err);
}

/* Every precision of the experts with every one of attention. */
static int list_choices(const struct recall_options *o, struct od_shadow_choice choice[RECALL_CONFIGS_MAX], size_t *n,
			struct od_err *err)
{
	int experts[OD_LIST_MAX], dense[OD_LIST_MAX];
	const char *dense_names[OD_N_PRECISIONS + 2] = { "same" };
	size_t n_experts, n_dense = 0;
	int rc = list_precisions(o, experts, &n_experts, err);

	*n = 0;
	memcpy(dense_names + 1, od_precision_names, OD_N_PRECISIONS * sizeof(*dense_names));
	if (rc == OD_OK)
		rc = od_list_choices("dense-precision", o->dense_precision != NULL ? o->dense_precision : "same",
				     dense_names, dense, &n_dense, err);
	if (rc == OD_OK)
		for (size_t i = 0; i < n_experts; i++) {
			for (size_t k = 0; k < n_dense; k++)
				choice[(*n)++] = (struct od_shadow_choice){
					.experts = (enum od_precision)(experts[i] + 1),
					.dense = (enum od_precision)(dense[k] > 0 ? dense[k] : experts[i] + 1),
					.act = OD_ACT_F32, /* so that figures do not depend on the CPU */
				};
		}
	return rc;
}

static int list_configs(const struct recall_options *o, struct recall_configs *c, struct od_err *err)
{
	int predictor[OD_LIST_MAX];
	size_t n_choice, n_align, n_predictor;
	struct od_shadow_choice choice[RECALL_CONFIGS_MAX];
	struct recall_align align[OD_LIST_MAX];
	int rc = list_choices(o, choice, &n_choice, err);

	if (rc == OD_OK && o->sweep >= 0)
		return recall_sweep_add(recall_sweep_set(o->sweep), choice, n_choice, c, err);
	if (rc == OD_OK)
		rc = recall_parse_align("align", o->align != NULL ? o->align : "T1_KV1", align, &n_align, err);
	if (rc == OD_OK)
		rc = parse_predictors(o, predictor, &n_predictor, err);
	if (rc == OD_OK)
		rc = check_heard(o, predictor, n_predictor, err);
	for (size_t i = 0; rc == OD_OK && i < n_predictor; i++) {
		if (predictor[i] != ODM_PREDICT_SHADOW) {
			rc = recall_add_predictor(c, rival_names[predictor[i]], err);
			continue;
		}
		for (size_t p = 0; rc == OD_OK && p < n_choice; p++) {
			for (size_t a = 0; rc == OD_OK && a < n_align; a++)
				rc = recall_add_shadow(c, &choice[p], align[a], err);
		}
	}
	return rc;
}

static int check_alone(struct recall_options *o, struct recall_configs *c, struct od_err *err)
{
	const char *useless = cluster_only(&o->engine.opts);
	int rc;

	if (useless != NULL)
		return od_fail(err, OD_ERR_ARG, "--%s is for a cluster: --local N or --workers FILE", useless);
	if (o->sweep >= 0 && (o->align != NULL || o->predictor != NULL))
		return od_fail(err, OD_ERR_ARG,
			       "--sweep sets the alignments and predictors: remove --align and "
			       "--predictor");
	o->engine.opts.engine.quiet = o->json;
	rc = odm_engine_args_routing(&o->engine, err);
	if (rc == OD_OK)
		rc = check_served(o, err);
	if (rc == OD_OK)
		rc = list_configs(o, c, err);
	return rc;
}

static void report_setting(const struct recall_run *r, struct od_report *to)
{
	char routing[OD_ROUTING_CHARS];

	od_report_fact(to, "profile", "profile", OD_TEXT(od_profile_names[r->opt.profile - 1]), 0, NULL);
	od_report_fact(to, "departure", "departure", OD_TEXT(r->opt.early ? "early" : "late"), 0, NULL);
	od_report_fact(to, "threads", "threads", OD_INT(r->opt.threads), 0, NULL);
	od_report_fact(to, "routing", "routing", OD_TEXT(od_config_routing(od_pack_config(r->pack), routing)), 0, NULL);
	if (r->configs->n == 1)
		od_report_fact(to, "configuration", "configuration", OD_TEXT(r->configs->config[0].name), 0, NULL);
	od_report_fact(to, "fingerprint", "pack", OD_TEXT(od_pack_fingerprint(r->pack)), 0, NULL);
}

static int report(const struct recall_run *r, const struct recall_options *o, struct od_err *err)
{
	const unsigned sweep = recall_sweep_set(o->sweep);
	const struct od_config *c = od_pack_config(r->pack);
	const char **name = calloc(r->configs->n, sizeof(*name)), **group = calloc(r->configs->n, sizeof(*group));
	const char **finish = calloc(r->prompts->n, sizeof(*finish));
	const struct recall_view v = {
		.n_configs = r->configs->n,
		.name = name,
		.group = group,
		.counts = r->counts,
		.prompts = r->prompts,
		.finish = finish,
		.n_moe = c->n_moe,
		.top_k = c->top_k,
		.max_tokens = r->opt.max_tokens,
	};
	struct od_report *to = NULL;
	int rc = OD_OK;

	if (name == NULL || group == NULL || finish == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "report");
	if (rc == OD_OK)
		for (size_t i = 0; i < r->configs->n; i++) {
			const struct recall_config *one = &r->configs->config[i];

			name[i] = one->name;
			group[i] = one->group;
		}
	if (rc == OD_OK)
		for (size_t i = 0; i < r->prompts->n; i++)
			finish[i] = r->result[i].finish;
	if (rc == OD_OK)
		rc = od_report_new(&to, "Recall of expert predictions", err);
	if (rc == OD_OK) {
		report_setting(r, to);
		rc = recall_report(&v, to, err);
	}
	if (rc == OD_OK) {
		recall_sweep_report(sweep, r->configs, &v, to);
		if (o->served)
			recall_served_report(&r->served, r->configs, to);
		rc = od_report_print(to, stdout, o->json, err);
	}
	od_report_free(to);
	free(name);
	free(group);
	free(finish);
	return rc;
}

static int run_alone(const struct recall_options *o, struct recall_configs *configs, struct od_prompts *prompts,
		     struct od_err *err)
{
	const struct odm_main_opts *e = &o->engine.opts;
	struct recall_run r = {
		.opt = {
			.pack = e->engine.pack,
			.device = e->engine.device,
			.cpu = e->engine.cpu,
			.profile = (enum od_profile)(o->engine.profile + 1),
			.threads = e->engine.threads,
			.ctx_tokens = e->engine.ctx_tokens,
			.prefill_rows = (uint32_t)e->engine.prefill_rows,
			.max_tokens = (uint32_t)o->tokens,
			.early = o->departure != 0,
			.progress = isatty(STDERR_FILENO),
			.dump = o->dump,
			.served = o->served ? &o->sim : NULL,
			.routing = &e->engine,
		},
		.configs = configs,
		.prompts = prompts,
	};
	int rc = recall_run_open(&r, err);

	if (rc == OD_OK)
		rc = recall_run_all(&r, err);
	if (rc == OD_OK)
		rc = report(&r, o, err);
	recall_run_close(&r);
	return rc;
}

/* ---- Both ---- */

static int run(struct recall_options *o, struct recall_configs *configs, struct od_err *err)
{
	const bool live = o->engine.local > 0 || o->engine.opts.cluster.hosts_path != NULL;
	struct od_prompts prompts = { 0 };
	struct child_args args = { 0 };
	int precision, rc = live ? check_live(o, &args, &precision, err) : check_alone(o, configs, err);

	if (rc == OD_OK && o->prompts == NULL)
		rc = od_fail(err, OD_ERR_ARG, "--prompts FILE is missing");
	if (rc == OD_OK)
		rc = od_prompts_load(&prompts, o->prompts, o->limit, err);
	if (rc == OD_OK)
		rc = live ? recall_live(&o->engine.opts, precision, &prompts, (uint32_t)o->tokens, o->json, err) :
			    run_alone(o, configs, &prompts, err);
	od_prompts_fini(&prompts);
	return rc;
}

int od_bench_recall(int argc, char **argv, struct od_err *err)
{
	struct recall_options o = { .tokens = DEFAULT_TOKENS, .sweep = -1, .departure = -1 };
	struct recall_configs *configs;
	int rc = parse(&o, argc, argv, err);

	if (rc != OD_OK || o.help)
		return rc;
	configs = calloc(1, sizeof(*configs));
	if (configs == NULL)
		return od_fail(err, OD_ERR_NOMEM, "configurations");
	rc = run(&o, configs, err);
	free(configs);
	return rc;
}

/* od-bench cache --live: the gain from caches on the workers, on a live local cluster (ZipMoE, Fig. 8 to 10: TPOT, TTFT
 * and throughput by memory).
 *
 * Loads are paced by a clock, so that a few cores can simulate several machines; the time of a load is proportional to
 * its uncached bytes. Every setting has its own cluster, which runs all prompts one after another and records its
 * routes. The replay of these routes gives the expected figures of the same cache. */
#include "common/base/clock.h"
#include "common/compute/device.h"
#include "common/compute/open_device.h"
#include "main-node/node/engine_args.h"
#include "main-node/node/main_node.h"
#include "tests/bench/bench.h"
#include "tests/bench/live/bench_prompts.h"
#include "tests/bench/live/cache_live.h"
#include "tests/bench/live/child_args.h"
#include "tests/bench/live/recall_progress.h"
#include "tests/bench/live/route_record.h"
#include "tests/bench/report/bench_stats.h"
#include "common/residency/cache_costs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_BUDGETS "10%,20%,40%"
#define DEFAULT_POLICIES "rank,lru"
#define DEFAULT_TOKENS "128"
#define DEFAULT_LOAD_MS 5
#define USUAL_CHECK_GBPS 50.0 /* checks of planes; beside paced loads both are nothing */
#define USUAL_INFLATE_GBPS 3.5

struct cache_live_options {
	struct odm_engine_args engine;
	const char *prompts, *budgets, *policies, *tokens;
	uint64_t limit, slots;
	double load_ms;
	bool live, json, help;
};

struct live_bench {
	struct cache_live_options opt;
	struct cache_live l;
	struct od_pack *pack;
	enum od_form form;
	struct od_prompts prompts;
	uint64_t length[OD_LIST_MAX];
	int policy[OD_LIST_MAX]; /* enum od_cache_policy */
	size_t n_lengths, n_policies;
	struct odm_result *first; /* [n_lengths][n_prompts] what all others must write, too */
	struct recall_progress progress;
};

/* ---- The command line ---- */

static const char *const without[] = { "workers", "resident", "trace", "worker-arg", "draft", NULL };

static int parse(struct cache_live_options *o, int argc, char **argv, struct od_err *err)
{
	struct odm_engine_args *a = &o->engine;
	const struct od_arg own[] = {
		{ .kind = OD_ARG_TITLE, .help = "Measure" },
		{ "live", OD_ARG_FLAG, &o->live, NULL, "run a cluster; do not replay routes", 0, 0, NULL },
		{ "prompts", OD_ARG_STRING, &o->prompts, "FILE",
		  "a JSON object a line with \"text\" or \"ids\" (tests/bench/prompts.jsonl)", 0, 0, NULL },
		{ "limit", OD_ARG_UINT, &o->limit, "N", "only the first N prompts", 1, 0, NULL },
		{ "tokens", OD_ARG_STRING, &o->tokens, "LIST",
		  "lengths of the texts in tokens; default " DEFAULT_TOKENS, 0, 0, NULL },
		{ "budget", OD_ARG_STRING, &o->budgets, "LIST",
		  "cache per worker: sizes (900MiB), or shares (20%) of all experts "
		  "as published over the workers, in whole MiB; default " DEFAULT_BUDGETS,
		  0, 0, NULL },
		{ "policies", OD_ARG_STRING, &o->policies, "LIST", "of rank, lru, lfu; default " DEFAULT_POLICIES, 0, 0,
		  NULL },
		{ "json", OD_ARG_FLAG, &o->json, NULL, "print JSON", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "print this text", 0, 0, NULL },
		/* Other defaults than elsewhere. */
		{ .kind = OD_ARG_TITLE, .help = "The cluster of every setting" },
		{ "local", OD_ARG_UINT, &a->local, "N", "workers, as child processes; default 4", 1, 64, NULL },
		{ "slots", OD_ARG_UINT, &o->slots, "N", "experts that a worker can hold; default 1", 1, 64, NULL },
		{ "threads", OD_ARG_UINT, &a->opts.engine.threads, "N", "compute threads of main; default 1", 1, 1024,
		  NULL },
		{ "load-time", OD_ARG_REAL, &o->load_ms, "MS", "each load takes at least MS milliseconds; default 5", 0,
		  60000, NULL },
	};

	odm_engine_args_defaults(a);
	a->opts.engine.draft = ODM_DRAFT_OFF;
	a->local = 4;
	a->opts.engine.threads = o->slots = 1;
	o->load_ms = DEFAULT_LOAD_MS;
	return odm_engine_args_parse(
		a, without, own, sizeof(own) / sizeof(own[0]), argc, argv, &o->help,
		"Usage: od-bench cache --live --prompts FILE [OPTIONS]\n\n"
		"Measures expert caches on the workers of a local cluster, restarted for every setting: time to first\n"
		"token, time per token, bytes read, and the same figures from a replay of the same routes. One\n"
		"sequence at a time; for more see od-bench cache --batch.\n"
		"Example: od-bench cache --live --pack PACK --prompts tests/bench/prompts.jsonl --predictor none\n",
		err);
}

static int parse_lists(struct live_bench *b, struct od_err *err)
{
	const struct od_config *cfg = od_pack_config(b->pack);
	const double published = (double)od_pack_expert_raw_bytes(b->pack) * cfg->n_moe * cfg->n_experts;
	int rc = cache_budgets_parse(&b->l.budgets, b->opt.budgets, published / (double)b->opt.engine.local, 1u << 20,
				     err);

	if (rc == OD_OK)
		rc = od_list_choices("policies", b->opt.policies, od_cache_policy_names, b->policy, &b->n_policies,
				     err);
	if (rc == OD_OK)
		rc = od_list_numbers("tokens", b->opt.tokens, 2, UINT32_MAX, b->length, &b->n_lengths, err);
	return rc;
}

static int check(struct cache_live_options *o, struct od_err *err)
{
	if (o->prompts == NULL)
		return od_fail(err, OD_ERR_ARG, "--prompts FILE is missing");
	o->engine.opts.engine.quiet = true;
	o->engine.opts.engine.cancel = od_bench_catch_signals();
	return odm_engine_args_finish(&o->engine, err);
}

/* ---- A setting ---- */

/* As the workers have it: their experts' sizes, the pace of their loads, their groups. */
static struct cache_world world_of(const struct live_bench *b, const struct cache_routes *routes)
{
	const struct od_pack_expert *x = od_pack_expert(b->pack, 0, 0);
	const double gbps = b->form == OD_FORM_PLANES ? USUAL_CHECK_GBPS : USUAL_INFLATE_GBPS;
	const struct od_expert_costs costs = {
		.read_ns = (uint64_t)(b->l.load_ms * OD_NS_PER_MS),
		.finish_ns = (uint64_t)(x->n_shards * (double)x->shard[0].e.raw_bytes / gbps),
		.n_inflaters = 1,
	};

	return (struct cache_world){
		.routes = routes,
		.groups = odm_groups_make(b->l.workers, (uint32_t)b->opt.engine.opts.cluster.group_size, routes->top_k,
					  routes->n_moe),
		.sizes = b->l.sizes,
		.full_is_stored = b->form == OD_FORM_PLANES,
		.cost = od_expert_cache_cost(b->pack, &costs),
	};
}

static int replay(const struct live_bench *b, struct cache_live_run *r, const char *path, struct od_err *err)
{
	/* Bytes that slots hold for the cache. */
	const uint64_t slots = b->form == OD_FORM_PLAIN ? b->l.slots * b->l.sizes.bytes[OD_CACHE_C] : 0;
	const struct cache_setup setup = {
		.rule = r->budget != NULL ? (enum cache_rule)r->policy : CACHE_LRU,
		.planned = true,
		.state = OD_CACHE_F,
		.budget_bytes = r->budget != NULL && r->budget->bytes > slots ? r->budget->bytes - slots : 0,
	};
	struct cache_routes routes;
	struct cache_world w;
	int rc = cache_routes_load(&routes, path, 1, err);

	if (rc != OD_OK)
		return rc;
	w = world_of(b, &routes);
	rc = cache_world_open(&w, err);
	if (rc == OD_OK)
		rc = cache_replay(&w, &setup, &r->replay, err);
	cache_world_close(&w);
	cache_routes_fini(&routes);
	return rc;
}

/* All prompts must be written as the first setting of this length wrote them. */
static int check_text(struct live_bench *b, size_t length, size_t prompt, struct odm_result *r, struct od_err *err)
{
	struct odm_result *first = &b->first[length * b->prompts.n + prompt];

	if (first->tokens == NULL) {
		*first = *r;
		*r = (struct odm_result){ 0 };
		return OD_OK;
	}
	if (r->n_tokens == first->n_tokens && memcmp(r->tokens, first->tokens, r->n_tokens * sizeof(*r->tokens)) == 0)
		return OD_OK;
	return od_fail(err, OD_ERR_INTERNAL, "%s: a cache has changed the text, which must never happen",
		       b->prompts.prompt[prompt].name);
}

static int write_texts(struct live_bench *b, struct odm_engine *e, size_t length, struct cache_live_run *run,
		       struct route_record *record, struct od_err *err)
{
	double *ttft = calloc(2 * b->prompts.n, sizeof(*ttft)), *tpot = ttft + b->prompts.n, all_ns = 0;
	int rc = ttft != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "prompts");
	struct od_stats stats;
	uint64_t tokens = 0;

	for (size_t i = 0; rc == OD_OK && i < b->prompts.n; i++) {
		const struct od_prompt *q = &b->prompts.prompt[i];
		struct odm_request req = { .prompt = q->ids,
					   .n_prompt = q->n_ids,
					   .max_tokens = run->tokens,
					   .ignore_eos = true,
					   .observer = route_record_observer(record) };
		struct odm_result r = { 0 };
		const uint64_t *c = r.figures.c;

		od_sampler_defaults(&req.sampling);
		rc = odm_generate(e, &req, &r, err);
		ttft[i] = (double)c[OD_C_TTFT_NS] / OD_NS_PER_MS;
		tpot[i] = c[OD_C_TOKENS] > 1 ? (double)c[OD_C_DECODE_NS] / (double)(c[OD_C_TOKENS] - 1) / OD_NS_PER_MS :
					       0;
		all_ns += (double)(c[OD_C_TTFT_NS] + c[OD_C_DECODE_NS]);
		tokens += c[OD_C_TOKENS];
		run->uses += c[OD_C_CACHE_USES];
		for (int s = 0; s < OD_CACHE_STATES; s++)
			run->hits[s] += c[OD_C_CACHE_HITS_F + s];
		b->l.groups = c[OD_C_GROUPS];
		b->l.slots = c[OD_C_SLOTS];
		if (rc == OD_OK)
			rc = check_text(b, length, i, &r, err);
		odm_result_fini(&r);
		recall_progress_done(&b->progress, run->tokens);
	}
	if (rc == OD_OK) {
		od_stats_of(ttft, b->prompts.n, &stats);
		run->ttft_ms = stats.median;
		od_stats_of(tpot, b->prompts.n, &stats);
		run->tpot_ms = stats.median;
		run->tok_per_s = (double)tokens / all_ns * OD_NS_PER_S;
	}
	free(ttft);
	return rc;
}

static int run_setting(struct live_bench *b, size_t length, struct cache_live_run *run, struct od_err *err)
{
	struct odm_main_opts eo = b->opt.engine.opts;
	struct route_record record = { 0 };
	struct child_args args = { 0 };
	struct od_err why;
	char path[] = "/tmp/od-cache-routes-XXXXXX";
	struct odm_main_node *node = NULL;
	int fd = mkstemp(path), rc;

	if (fd < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot make %s", path);
	close(fd);
	child_args_add(&args, &eo.local.worker_args, "--slots=%" PRIu64, b->opt.slots);
	child_args_add(&args, &eo.local.worker_args, "--load-time=%.6f", b->opt.load_ms);
	if (run->budget != NULL) {
		child_args_add(&args, &eo.local.worker_args, "--cache-mib=%" PRIu64, run->budget->bytes >> 20);
		child_args_add(&args, &eo.local.worker_args, "--cache-policy=%s", od_cache_policy_names[run->policy]);
	}
	rc = odm_main_node_open(&node, &eo, err);
	if (rc == OD_OK)
		rc = route_record_open(&record, path, b->pack, err);
	if (rc == OD_OK)
		rc = write_texts(b, odm_main_node_engine(node), length, run, &record, err);
	odm_main_node_close(node);
	if (route_record_close(&record, &why) != OD_OK && rc == OD_OK)
		rc = od_fail(err, why.code, "%s", why.msg);
	if (rc == OD_OK)
		rc = replay(b, run, path, err);
	unlink(path);
	return rc;
}

/* ---- The whole ---- */

static void plan_length(struct live_bench *b, uint64_t tokens)
{
	struct cache_live *l = &b->l;

	l->run[l->n_runs++] = (struct cache_live_run){ .policy = CACHE_LIVE_NONE, .tokens = tokens };
	for (size_t i = 0; i < l->budgets.n; i++) {
		for (size_t k = 0; k < b->n_policies; k++)
			l->run[l->n_runs++] = (struct cache_live_run){ .policy = b->policy[k],
								       .budget = &l->budgets.budget[i],
								       .tokens = tokens };
	}
}

static int open_world(struct live_bench *b, struct od_err *err)
{
	const struct odm_main_opts *o = &b->opt.engine.opts;
	struct od_device *device = NULL;
	int rc = od_pack_open(&b->pack, o->engine.pack, err);

	if (rc == OD_OK)
		rc = od_device_open(&device, NULL, (enum od_cpu)o->engine.cpu, 1, "od-bench", err);
	if (rc == OD_OK)
		rc = od_pack_choose_form(b->pack, device, o->engine.form, &b->form, err);
	od_device_free(device);
	if (rc == OD_OK)
		rc = od_prompts_load(&b->prompts, b->opt.prompts, b->opt.limit, err);
	if (rc == OD_OK)
		rc = od_prompts_encode_by_file(&b->prompts, od_pack_tokenizer_path(b->pack), err);
	return rc;
}

static int plan_runs(struct live_bench *b, struct od_err *err)
{
	struct cache_live *l = &b->l;
	int rc = parse_lists(b, err);

	if (rc != OD_OK)
		return rc;
	l->run = calloc(b->n_lengths * (1 + l->budgets.n * b->n_policies), sizeof(*l->run));
	b->first = calloc(b->n_lengths * b->prompts.n, sizeof(*b->first));
	if (l->run == NULL || b->first == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%zu prompts", b->prompts.n);
	for (size_t i = 0; i < b->n_lengths; i++)
		plan_length(b, b->length[i]);
	return OD_OK;
}

static int describe(struct live_bench *b, struct od_err *err)
{
	const uint32_t n_moe = od_pack_config(b->pack)->n_moe;
	struct od_cache_sizes *layer = calloc(n_moe, sizeof(*layer));
	const struct odm_main_opts *o = &b->opt.engine.opts;
	struct cache_live *l = &b->l;

	l->n_prompts = b->prompts.n;
	l->workers = (uint32_t)b->opt.engine.local;
	l->load_ms = b->opt.load_ms;
	l->predictor = odm_predictor_names[o->cluster.predictor == ODM_PREDICTOR_AUTO ? ODM_PREDICT_SHADOW :
											o->cluster.predictor];
	l->form = od_form_names[b->form];
	l->fingerprint = od_pack_fingerprint(b->pack);
	if (layer == NULL)
		return od_fail(err, OD_ERR_NOMEM, "sizes of %u layers", n_moe);
	od_expert_cache_sizes(b->pack, NULL, b->form, layer);
	l->sizes = od_cache_sizes_mean(layer, n_moe, 1);
	free(layer);
	return OD_OK;
}

static int run(struct live_bench *b, struct od_err *err)
{
	int rc = open_world(b, err);

	if (rc == OD_OK)
		rc = plan_runs(b, err);
	if (rc == OD_OK)
		rc = describe(b, err);
	if (rc != OD_OK)
		return rc;
	recall_progress_begin(&b->progress, isatty(STDERR_FILENO), 0);
	for (size_t i = 0; i < b->l.n_runs; i++)
		b->progress.all += b->l.run[i].tokens * b->prompts.n;
	for (size_t i = 0, length = 0; rc == OD_OK && i < b->l.n_runs; i++) {
		length += i > 0 && b->l.run[i].policy == CACHE_LIVE_NONE;
		rc = run_setting(b, length, &b->l.run[i], err);
	}
	recall_progress_end(&b->progress);
	if (rc == OD_OK)
		rc = cache_live_report(&b->l, b->opt.json, err);
	return rc;
}

int od_bench_cache_live(int argc, char **argv, struct od_err *err)
{
	struct live_bench b = {
		.opt = { .budgets = DEFAULT_BUDGETS, .policies = DEFAULT_POLICIES, .tokens = DEFAULT_TOKENS }
	};
	int rc = parse(&b.opt, argc, argv, err);

	if (rc != OD_OK || b.opt.help)
		return rc;
	rc = check(&b.opt, err);
	if (rc == OD_OK)
		rc = run(&b, err);
	for (size_t i = 0; b.first != NULL && i < b.n_lengths * b.prompts.n; i++)
		odm_result_fini(&b.first[i]);
	free(b.first);
	free(b.l.run);
	od_prompts_fini(&b.prompts);
	od_pack_close(b.pack);
	return rc;
}

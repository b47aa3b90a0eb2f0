/* od-bench routing: perplexity against the misses of a cache, by the way in which experts are chosen ("Mixture of
 * Cache-Conditional Experts", arXiv 2412.00099, sections 2.3, 3 and 4.3). */
#include "common/model/generation_config.h"
#include "main-node/engine/engine.h"
#include "main-node/engine/model.h"
#include "main-node/node/engine_args.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_list.h"
#include "tests/bench/live/bench_prompts.h"
#include "tests/bench/live/recall_progress.h"
#include "tests/bench/live/routing_service.h"
#include "tests/bench/report/bench_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_RUNS 512
#define INTERVAL 1.96 /* standard errors of an interval of 95 % */

struct routing_options {
	struct odm_engine_args engine;
	const char *prompts, *ways, *cache;
	uint64_t limit, join, keep;
	int start; /* index of start_names */
	bool json, help;
};

static const char *const start_names[] = { "empty", "random", NULL };

/* A way to choose experts, with one size of the cache, and what it gave. */
struct routing_run {
	struct route_policy policy;
	bool ours; /* od-main's own cache prior */
	uint32_t cache; /* experts of a layer */
	double *nll; /* [texts]: sums over their tokens */
	struct route_counts counts;
	const struct routing_run *base; /* the router, with the same cache */
};

struct routing {
	const struct routing_options *o;
	struct od_prompts prompts;
	struct routing_run run[MAX_RUNS];
	size_t n_runs;
	uint64_t n_tokens; /* with a probability, of all texts */
	uint64_t cache[OD_LIST_MAX]; /* [n_caches] */
	size_t n_caches;
	uint32_t n_experts, top_k, keep;
	char model[256];
};

static const char *const without[] = {
	"workers",  "local", "resident", "memory",	  "predictor",	  "hedge",	"draft",
	"routing",  "mixed", "trace",	 "routing-cache", "routing-keep", "group-size", "align-token",
	"align-kv", "key",   "peers",	 "insecure",	  "worker-arg",	  "shadow-arg", NULL
};

static int parse(struct routing_options *o, int argc, char **argv, struct od_err *err)
{
	const struct od_arg own[] = {
		{ .kind = OD_ARG_TITLE, .help = "Routing" },
		{ "prompts", OD_ARG_STRING, &o->prompts, "FILE",
		  "texts: a JSON object a line with \"text\" or \"ids\" (tests/bench/prompts.jsonl)", 0, 0, NULL },
		{ "limit", OD_ARG_UINT, &o->limit, "N", "only the first N texts", 1, 1e6, NULL },
		{ "join", OD_ARG_UINT, &o->join, "N", "put the texts together, in order, into such of N tokens", 2, 1e6,
		  NULL },
		{ "cache", OD_ARG_STRING, &o->cache, "LIST", "experts of a layer that are cached (default: half)", 0, 0,
		  NULL },
		{ "start", OD_ARG_CHOICE, &o->start, "NAME",
		  "empty, or random: the cache is full of random experts at the start of each text", 0, 0,
		  start_names },
		{ "keep", OD_ARG_UINT, &o->keep, "J",
		  "experts that are used in any case (default: as od-main's --routing-keep)", 0, OD_MAX_CHOICE, NULL },
		{ "ways", OD_ARG_STRING, &o->ways, "LIST",
		  "NAME:VALUE,...: router, prune, swap, max-rank, cumulative, cache-prior, od-main (default: all, for a "
		  "picture)",
		  0, 0, NULL },
		{ "json", OD_ARG_FLAG, &o->json, NULL, "print the report as JSON", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "print this text", 0, 0, NULL },
	};

	return odm_engine_args_parse(
		&o->engine, without, own, sizeof(own) / sizeof(own[0]), argc, argv, &o->help,
		"Usage: od-bench routing --pack DIR --prompts FILE [OPTIONS]\n\n"
		"Perplexity of texts, and what a cache of each layer misses, for ways to choose experts that prefer cached\n"
		"ones. od-main: its --routing cache-prior, which knows what the text used, not the cache; the others are for\n"
		"comparison. oracle: misses on the same routes of a cache that begins empty and knows the future (Belady).\n"
		"lifetime: rows for which an expert stays in the cache.\n"
		"Example: od-bench routing --pack PACK --prompts tests/bench/prompts.jsonl\n",
		err);
}

/* ---- Ways ---- */

static int add_way(struct routing *r, int way, bool ours, double value, struct od_err *err)
{
	if (r->n_runs + r->n_caches > MAX_RUNS)
		return od_fail(err, OD_ERR_ARG, "expected at most %d ways (--ways) by sizes of the cache (--cache)",
			       MAX_RUNS);
	for (size_t i = 0; i < r->n_caches; i++)
		r->run[r->n_runs++] = (struct routing_run){ .policy = { (enum route_way)way, value, r->keep },
							    .ours = ours,
							    .cache = (uint32_t)r->cache[i],
							    .base = &r->run[i] };
	return OD_OK;
}

/* In the paper's ranges. */
static int add_all(struct routing *r, struct od_err *err)
{
	static const double lambdas[] = { 0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1 };
	int rc = add_way(r, ROUTE_ROUTER, false, 0, err);

	for (size_t i = 0; rc == OD_OK && i < sizeof(lambdas) / sizeof(lambdas[0]); i++)
		rc = add_way(r, ROUTE_ROUTER, true, lambdas[i], err);
	for (size_t i = 1; rc == OD_OK && i < sizeof(lambdas) / sizeof(lambdas[0]); i++)
		rc = add_way(r, ROUTE_CACHE_PRIOR, false, lambdas[i], err);
	for (uint32_t i = 1; rc == OD_OK && i < 10; i++)
		rc = add_way(r, ROUTE_CUMULATIVE, false, i * 0.1, err);
	for (uint32_t i = r->top_k + 1, last = 0; rc == OD_OK && last < r->n_experts; i += (i - r->top_k + 1) / 2) {
		last = i < r->n_experts ? i : r->n_experts;
		rc = add_way(r, ROUTE_MAX_RANK, false, last, err);
	}
	for (uint32_t i = 1; rc == OD_OK && i < r->top_k && i < 9; i++)
		rc = add_way(r, ROUTE_PRUNE, false, i, err);
	for (uint32_t i = 0; rc == OD_OK && i < r->top_k && i < 8; i++)
		rc = add_way(r, ROUTE_SWAP, false, i, err);
	return rc;
}

static int check_way(const struct routing *r, const char *word, int way, bool ours, double value, struct od_err *err)
{
	const bool counts = way == ROUTE_PRUNE || way == ROUTE_SWAP || way == ROUTE_MAX_RANK;
	const double least = way == ROUTE_SWAP ? 0 : 1, most = way == ROUTE_PRUNE ? r->top_k :
							       way == ROUTE_SWAP  ? r->top_k - 1 :
										    r->n_experts;

	if (counts && (value < least || value > most || value != floor(value)))
		return od_fail(err, OD_ERR_ARG, "--ways %s: expected a whole number from %g to %g", word, least, most);
	if (!counts && (way != ROUTE_ROUTER || ours) && !(value >= 0 && value <= 1))
		return od_fail(err, OD_ERR_ARG, "--ways %s: expected 0 to 1", word);
	return OD_OK;
}

static int add_word(struct routing *r, char *word, struct od_err *err)
{
	char *colon = strchr(word, ':');
	const bool ours = strncmp(word, "od-main", 7) == 0 && (word[7] == ':' || word[7] == '\0');
	double value = 0;
	int way = 0, rc = OD_OK;

	if ((colon == NULL) != (strncmp(word, "router", 6) == 0))
		return od_fail(err, OD_ERR_ARG, "--ways %s: expected NAME:VALUE, or router", word);
	if (colon != NULL)
		rc = od_parse_real(colon + 1, 0, 0, &value, err);
	if (rc != OD_OK)
		return od_fail_within(err, "--ways %s", word);
	if (!ours) {
		const size_t n = colon != NULL ? (size_t)(colon - word) : strlen(word);

		while (way < N_ROUTE_WAYS &&
		       (strlen(route_way_names[way]) != n || strncmp(route_way_names[way], word, n) != 0))
			way++;
		if (way == N_ROUTE_WAYS)
			return od_fail(err, OD_ERR_ARG, "--ways: there is no \"%s\"", word);
	}
	rc = check_way(r, word, way, ours, value, err);
	return rc == OD_OK ? add_way(r, way, ours, value, err) : rc;
}

static int add_list(struct routing *r, const char *list, struct od_err *err)
{
	char *copy = strdup(list), *at = copy, *word;
	int rc = copy != NULL ? add_way(r, ROUTE_ROUTER, false, 0, err) : od_fail(err, OD_ERR_NOMEM, "--ways");

	while (rc == OD_OK && (word = strsep(&at, ",")) != NULL)
		rc = add_word(r, word, err);
	free(copy);
	return rc;
}

/* ---- A run ---- */

struct sum {
	size_t n_prompt;
	double nll;
	uint64_t n;
};

static void on_token(void *arg, const struct odm_token *t)
{
	struct sum *s = arg;

	if (t->position >= s->n_prompt || !t->has_logprob)
		return;
	s->nll -= t->logprob;
	s->n++;
}

static int run_text(struct odm_engine *e, const struct od_prompt *q, struct sum *s, struct od_err *err)
{
	struct odm_request req = {
		.prompt = q->ids,
		.n_prompt = q->n_ids,
		.max_tokens = 1,
		.ignore_eos = true,
		.prompt_logprobs = true,
		.observer = { .arg = s, .token = on_token },
	};
	struct odm_result result;
	int rc;

	od_sampler_defaults(&req.sampling);
	rc = odm_generate(e, &req, &result, err);
	odm_result_fini(&result);
	return rc == OD_OK ? rc : od_fail_within(err, "%s", q->name);
}

static int run_texts(struct routing *r, struct routing_run *run, struct odm_engine *e,
		     struct odm_expert_service *service, struct recall_progress *progress, struct od_err *err)
{
	int rc = OD_OK;

	r->n_tokens = 0;
	for (size_t i = 0; rc == OD_OK && i < r->prompts.n; i++) {
		struct sum s = { .n_prompt = r->prompts.prompt[i].n_ids };

		routing_service_begin(service, r->o->start != 0 ? i + 1 : 0);
		rc = run_text(e, &r->prompts.prompt[i], &s, err);
		if (rc == OD_OK)
			rc = routing_service_add_counts(service, &run->counts, err);
		run->nll[i] = s.nll;
		r->n_tokens += s.n;
		recall_progress_done(progress, 1);
	}
	return rc;
}

static int do_run(struct routing *r, struct routing_run *run, struct recall_progress *progress, struct od_err *err)
{
	struct odm_engine_opts o = r->o->engine.opts.engine;
	struct odm_expert_service *service = NULL;
	struct odm_engine *e = NULL;
	struct odm_model *m;
	int rc = odm_model_open(&m, o.pack, err);

	run->nll = calloc(r->prompts.n, sizeof(*run->nll));
	if (rc == OD_OK && run->nll == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "texts");
	o.cache_prior = run->ours;
	o.routing_lambda = run->policy.value;
	o.routing_keep = r->keep;
	o.routing_recent = run->cache;
	if (rc == OD_OK)
		rc = odm_model_load(m, &o, err);
	if (rc == OD_OK)
		rc = routing_service_new(&service, m, &run->policy, run->cache, err);
	if (rc == OD_OK)
		rc = odm_engine_open(&e, m, service, err);
	if (rc == OD_OK)
		rc = run_texts(r, run, e, service, progress, err);
	odm_engine_close(e);
	odm_model_close(m);
	return rc;
}

/* ---- Report ---- */

/* Mean of the differences of a token's log probability, and its standard error, over texts. */
static void compare(const struct routing *r, const struct routing_run *run, double *mean, double *error)
{
	const double n = (double)r->prompts.n, each = (double)r->n_tokens / n;
	double sum = 0, squares = 0;

	for (size_t i = 0; i < r->prompts.n; i++) {
		const double d = (run->nll[i] - run->base->nll[i]) / each;

		sum += d;
		squares += d * d;
	}
	*mean = sum / n;
	*error = n > 1 ? sqrt(fmax(squares / n - *mean * *mean, 0) / (n - 1)) : NAN;
}

static double percent(double log_ratio)
{
	return 100 * (exp(log_ratio) - 1);
}

static void report_run(const struct routing *r, const struct routing_run *run, struct od_table *table)
{
	const struct route_counts *c = &run->counts;
	const double misses = (double)c->n_misses, base = (double)run->base->counts.n_misses;
	double nll = 0, mean, error;

	for (size_t i = 0; i < r->prompts.n; i++)
		nll += run->nll[i];
	compare(r, run, &mean, &error);
	od_table_row(table,
		     (struct od_cell[]){ OD_TEXT(run->ours ? "od-main" : route_way_names[run->policy.way]),
					 OD_REAL(run->policy.value), OD_REAL(exp(nll / (double)r->n_tokens)),
					 OD_REAL(percent(mean)), OD_REAL(percent(mean - INTERVAL * error)),
					 OD_REAL(percent(mean + INTERVAL * error)), OD_REAL(misses / (double)c->n_uses),
					 OD_REAL(100 * (1 - misses / base)),
					 OD_REAL((double)c->n_oracle_misses / (double)c->n_uses),
					 OD_REAL((double)c->stay_rows / (double)c->n_came), OD_INT(run->cache) });
}

static int report(const struct routing *r, struct od_err *err)
{
	static const struct od_column columns[] = {
		{ "way", "way", 0 },
		{ "value", "value", 2 },
		{ "perplexity", "perplexity", 3 },
		{ "change_percent", "change %", 2 },
		{ "change_low", "from", 2 },
		{ "change_high", "to", 2 },
		{ "miss_rate", "miss rate", 4 },
		{ "fewer_misses_percent", "fewer misses %", 1 },
		{ "oracle_miss_rate", "oracle", 4 },
		{ "lifetime", "lifetime", 1 },
		{ "cache", "cache", 0 },
	};
	struct od_report *to;
	struct od_table *table;
	int rc = od_report_new(&to, "Perplexity and misses, by the way in which experts are chosen", err);

	if (rc != OD_OK)
		return rc;
	od_report_fact(to, "model", "model", OD_TEXT(r->model), 0, NULL);
	od_report_fact(to, "texts", "texts", OD_INT(r->prompts.n), 0, NULL);
	od_report_fact(to, "tokens", "tokens", OD_INT(r->n_tokens), 0, NULL);
	od_report_fact(to, "experts", "experts of a layer", OD_INT(r->n_experts), 0, NULL);
	od_report_fact(to, "start", "cache at the start", OD_TEXT(start_names[r->o->start]), 0, NULL);
	od_report_fact(to, "keep", "kept experts", OD_INT(r->keep), 0, NULL);
	table = od_report_table(to, "by_way", NULL, columns, sizeof(columns) / sizeof(columns[0]));
	for (size_t k = 0; k < r->n_caches; k++)
		for (size_t i = k; i < r->n_runs; i += r->n_caches)
			report_run(r, &r->run[i], table);
	rc = od_report_print(to, stdout, r->o->json, err);
	od_report_free(to);
	return rc;
}

/* ---- */

static int look_at_model(struct routing *r, struct od_err *err)
{
	struct od_cache_prior prior;
	struct odm_model *m;
	int32_t bos;
	int rc = odm_model_open(&m, r->o->engine.opts.engine.pack, err);

	if (rc != OD_OK)
		return rc;
	prior = od_config_prior(m->config, 0);
	bos = m->config->bos;
	r->n_experts = m->config->n_experts;
	r->top_k = m->config->top_k;
	r->cache[0] = prior.recent;
	r->n_caches = 1;
	if (r->o->cache != NULL)
		rc = od_list_numbers("cache", r->o->cache, 1, r->n_experts, r->cache, &r->n_caches, err);
	r->keep = r->o->keep != UINT64_MAX ? (uint32_t)r->o->keep : prior.keep;
	snprintf(r->model, sizeof(r->model), "%s", od_pack_dir(m->pack));
	if (rc == OD_OK)
		rc = od_prompts_encode_by_file(&r->prompts, od_pack_tokenizer_path(m->pack), err);
	odm_model_close(m);
	if (rc == OD_OK && r->o->join > 0 && od_prompts_join(&r->prompts, r->o->join, bos, err) != OD_OK)
		rc = od_fail_within(err, "--join");
	if (rc == OD_OK && r->keep > r->top_k)
		rc = od_fail(err, OD_ERR_ARG, "--keep: expected at most %u (top-k), found %u", r->top_k, r->keep);
	return rc;
}

static int measure(struct routing *r, struct od_err *err)
{
	struct recall_progress progress;
	int rc = od_prompts_load(&r->prompts, r->o->prompts, r->o->limit, err);

	if (rc == OD_OK)
		rc = look_at_model(r, err);
	if (rc == OD_OK)
		rc = r->o->ways != NULL ? add_list(r, r->o->ways, err) : add_all(r, err);
	if (rc != OD_OK)
		return rc;
	recall_progress_begin(&progress, isatty(STDERR_FILENO), r->n_runs * r->prompts.n);
	for (size_t i = 0; rc == OD_OK && i < r->n_runs; i++)
		rc = do_run(r, &r->run[i], &progress, err);
	recall_progress_end(&progress);
	if (rc == OD_OK && r->n_tokens == 0)
		rc = od_fail(err, OD_ERR_ARG, "--prompts %s: expected texts of at least two tokens", r->o->prompts);
	return rc == OD_OK ? report(r, err) : rc;
}

int od_bench_routing(int argc, char **argv, struct od_err *err)
{
	struct routing_options o = { .keep = UINT64_MAX };
	struct routing r = { .o = &o };
	int rc;

	odm_engine_args_defaults(&o.engine);
	o.engine.opts.engine.draft = ODM_DRAFT_OFF;
	o.engine.opts.engine.quiet = true;
	o.engine.opts.engine.resident = o.engine.resident = true;
	rc = parse(&o, argc, argv, err);
	if (rc != OD_OK || o.help)
		return rc;
	if (o.prompts == NULL)
		rc = od_fail(err, OD_ERR_ARG, "expected --prompts FILE");
	if (rc == OD_OK)
		rc = odm_engine_args_finish(&o.engine, err);
	if (rc == OD_OK)
		rc = measure(&r, err);
	for (size_t i = 0; i < r.n_runs; i++)
		free(r.run[i].nll);
	od_prompts_fini(&r.prompts);
	return rc;
}

/* od-bench cache --record: records the routers' choices while main's engine generates, for od-bench cache --routes. */
#include "main-node/node/engine_args.h"
#include "main-node/node/main_node.h"
#include "tests/bench/bench.h"
#include "tests/bench/live/bench_prompts.h"
#include "tests/bench/live/recall_progress.h"
#include "tests/bench/live/route_record.h"
#include "tests/bench/report/bench_table.h"

#include <stdio.h>
#include <unistd.h>

#define DEFAULT_TOKENS 256
#define RANDOM_TEMPERATURE 0.8 /* greedy texts of random prompts repeat themselves */

struct options {
	struct odm_engine_args engine;
	const char *record, *prompts;
	uint64_t limit, tokens, prompt_tokens, seed;
	bool json, help;
};

struct recording {
	const struct options *o;
	struct odm_main_node *node;
	struct odm_engine *engine;
	struct od_prompts prompts;
	struct route_record record;
	uint64_t prompt_tokens, tokens;
};

/* Replays do not know of a prior. */
static const char *const without[] = {
	"resident" /* is the default */, "draft", "routing", "routing-keep", "routing-cache", NULL
};

static int parse(struct options *o, int argc, char **argv, struct od_err *err)
{
	const struct od_arg own[] = {
		{ .kind = OD_ARG_TITLE, .help = "Record" },
		{ "record", OD_ARG_STRING, &o->record, "FILE", "file to write the recording to", 0, 0, NULL },
		{ "prompts", OD_ARG_STRING, &o->prompts, "FILE",
		  "a JSON object a line with \"text\" or \"ids\" (tests/bench/prompts.jsonl)", 0, 0, NULL },
		{ "prompt-tokens", OD_ARG_UINT, &o->prompt_tokens, "N",
		  "without --prompts: --limit random prompts of N tokens, whose texts are those of od-bench decode "
		  "--parallel",
		  1, 1e6, NULL },
		{ "seed", OD_ARG_UINT, &o->seed, "N", "seed of random prompts and of sampling; default 1", 0, 0, NULL },
		{ "limit", OD_ARG_UINT, &o->limit, "N", "only the first N prompts", 1, 1e6, NULL },
		{ "tokens", OD_ARG_UINT, &o->tokens, "N", "tokens to generate at most (default: 256)", 2, 1e6, NULL },
		{ "json", OD_ARG_FLAG, &o->json, NULL, "print the summary as JSON", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "print this text", 0, 0, NULL },
	};

	return odm_engine_args_parse(
		&o->engine, without, own, sizeof(own) / sizeof(own[0]), argc, argv, &o->help,
		"Usage: od-bench cache --record FILE --prompts FILE [OPTIONS]\n\n"
		"Generates from each prompt, greedily if it is not random, and records the routed experts, for od-bench\n"
		"cache --routes. All experts are in this process, or on a cluster with --local or --workers; the routes\n"
		"are the same.\n"
		"Example: od-bench cache --record R --pack PACK --prompts tests/bench/prompts.jsonl\n",
		err);
}

static int check(struct options *o, struct od_err *err)
{
	if (o->prompts == NULL && (o->prompt_tokens == 0 || o->limit == 0))
		return od_fail(err, OD_ERR_ARG, "expected --prompts FILE, or --prompt-tokens N and --limit N");
	if (o->prompts != NULL && o->prompt_tokens > 0)
		return od_fail(err, OD_ERR_ARG, "--prompts and --prompt-tokens exclude each other");
	o->engine.resident = o->engine.local == 0 && o->engine.opts.cluster.hosts_path == NULL;
	o->engine.opts.engine.quiet = true;
	return odm_engine_args_finish(&o->engine, err);
}

static int record_prompt(struct recording *r, size_t i, struct od_err *err)
{
	const struct od_prompt *q = &r->prompts.prompt[i];
	const bool random = r->o->prompts == NULL;
	struct odm_request req = {
		.prompt = q->ids,
		.n_prompt = q->n_ids,
		.max_tokens = r->o->tokens,
		.ignore_eos = random,
		.observer = route_record_observer(&r->record),
	};
	struct odm_result result;
	int rc;

	od_sampler_defaults(&req.sampling);
	if (random)
		req.sampling.temperature = RANDOM_TEMPERATURE;
	req.sampling.seed = r->o->seed + i;
	rc = odm_generate(r->engine, &req, &result, err);
	r->prompt_tokens += q->n_ids;
	r->tokens += result.n_tokens;
	odm_result_fini(&result);
	return rc == OD_OK ? rc : od_fail_within(err, "%s", q->name);
}

/* Prompts of a file are read before the engine is opened, and encoded after it. */
static int open_prompts(struct recording *r, struct od_err *err)
{
	const struct options *o = r->o;
	const struct od_config *c;
	int rc = o->prompts != NULL ? od_prompts_load(&r->prompts, o->prompts, o->limit, err) : OD_OK;

	if (rc == OD_OK)
		rc = odm_main_node_open(&r->node, &o->engine.opts, err);
	if (rc != OD_OK)
		return rc;
	r->engine = odm_main_node_engine(r->node);
	if (o->prompts != NULL)
		return od_prompts_encode(&r->prompts, odm_engine_tokenizer(r->engine), err);
	c = od_pack_config(odm_engine_pack(r->engine));
	return od_prompts_random(&r->prompts, o->limit, o->prompt_tokens, c->vocab, c->bos, o->seed, err);
}

static int record(struct recording *r, struct od_err *err)
{
	struct recall_progress progress;
	int rc = open_prompts(r, err);

	if (rc == OD_OK)
		rc = route_record_open(&r->record, r->o->record, odm_engine_pack(r->engine), err);
	if (rc != OD_OK)
		return rc;
	recall_progress_begin(&progress, isatty(STDERR_FILENO), r->prompts.n);
	for (size_t i = 0; rc == OD_OK && i < r->prompts.n; i++) {
		rc = record_prompt(r, i, err);
		recall_progress_done(&progress, 1);
	}
	recall_progress_end(&progress);
	return rc;
}

static int report(const struct recording *r, struct od_err *err)
{
	struct od_report *to;
	int rc = od_report_new(&to, "Recorded routes", err);

	if (rc != OD_OK)
		return rc;
	od_report_fact(to, "routes", "recording", OD_TEXT(r->o->record), 0, NULL);
	od_report_fact(to, "prompts", "prompts", OD_INT(r->prompts.n), 0, NULL);
	od_report_fact(to, "prompt_tokens", "their tokens", OD_INT(r->prompt_tokens), 0, NULL);
	od_report_fact(to, "tokens", "generated tokens", OD_INT(r->tokens), 0, NULL);
	od_report_fact(to, "fingerprint", "pack", OD_TEXT(od_pack_fingerprint(odm_engine_pack(r->engine))), 0, NULL);
	rc = od_report_print(to, stdout, r->o->json, err);
	od_report_free(to);
	return rc;
}

int od_bench_cache_record(int argc, char **argv, struct od_err *err)
{
	struct options o = { .tokens = DEFAULT_TOKENS, .seed = 1 };
	struct recording r = { .o = &o };
	struct od_err why;
	int rc;

	odm_engine_args_defaults(&o.engine);
	o.engine.opts.engine.draft = ODM_DRAFT_OFF;
	rc = parse(&o, argc, argv, err);
	if (rc != OD_OK || o.help)
		return rc;
	rc = check(&o, err);
	if (rc == OD_OK)
		rc = record(&r, err);
	if (route_record_close(&r.record, &why) != OD_OK && rc == OD_OK)
		rc = od_fail(err, why.code, "%s", why.msg);
	if (rc == OD_OK)
		rc = report(&r, err);
	odm_main_node_close(r.node);
	od_prompts_fini(&r.prompts);
	return rc;
}

/* od-bench recall: how many of the experts that a live cluster used had been predicted (OD-MoE section 3.2).
 *
 * Text is generated greedily, as in the paper, and ends where the model ends it. Rows whose prediction was late
 * count like the others: whether it was right and whether it was in time are two questions. Rows that never got one
 * are no part of the recall but are counted. */
#include "main-node/engine_args.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_prompts.h"
#include "tests/bench/bench_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_TOKENS 256
#define MAX_TOKENS 1e6

struct options {
	struct odm_engine_args engine;
	const char *prompts;
	uint64_t limit, tokens;
	bool json, help;
};

/* What one prompt gave. */
struct outcome {
	const char *finish;
	size_t tokens;
	struct od_recall_cell all;
	uint64_t expert_uses, late_rows, in_time_rows, missing_rows;
};

struct recall_bench {
	struct options opt;
	struct odm_engine *engine;
	struct od_prompts prompts;
	struct outcome *outcome;  /* [prompts.n] */
	struct od_recall sum, own; /* of all prompts, of the one that runs */
	uint32_t workers, groups, slots;
};

static int parse(struct options *o, int argc, char **argv, struct od_err *err)
{
	const struct od_arg own[] = {
		{ .kind = OD_ARG_TITLE, .help = "What to measure" },
		{ "prompts", OD_ARG_STRING, &o->prompts, "FILE", "prompts, a JSON object a line with \"text\" or "
		  "\"ids\"; ours: tests/bench/prompts.jsonl", 0, 0, NULL },
		{ "limit", OD_ARG_UINT, &o->limit, "N", "only the first N prompts", 1, 0, NULL },
		{ "tokens", OD_ARG_UINT, &o->tokens, "N", "tokens to generate at most; default 256", 2, MAX_TOKENS,
		  NULL },
		{ "json", OD_ARG_FLAG, &o->json, NULL, "as JSON, with every token index and every prompt", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "this text", 0, 0, NULL },
	};

	odm_engine_args_defaults(&o->engine);
	return odm_engine_args_parse(&o->engine, own, sizeof(own) / sizeof(own[0]), argc, argv, &o->help,
		"Usage: od-bench recall --local N | --workers FILE --prompts FILE [OPTIONS]\n\n"
		"Generates text greedily on a cluster and compares what was predicted with what the routers chose.\n"
		"Example: od-bench recall --pack PACK --local 4 --prompts tests/bench/prompts.jsonl\n", err);
}

static int check(struct options *o, struct od_err *err)
{
	struct odm_engine_opts *e = &o->engine.opts;
	int rc = odm_engine_args_finish(&o->engine, err);

	if (rc != OD_OK)
		return rc;
	if (e->mode == ODM_RESIDENT)
		return od_fail(err, OD_ERR_ARG, "recall needs a cluster, which predicts: --local N or --workers FILE "
			       "instead of --resident");
	if (e->predictor == ODM_PREDICT_NONE)
		return od_fail(err, OD_ERR_ARG, "--predictor none: a cluster that predicts nothing has no recall");
	if (o->prompts == NULL)
		return od_fail(err, OD_ERR_ARG, "--prompts FILE is missing");
	/* Said aloud, so that a cluster without a shadow is refused at the start and by name. */
	if (e->predictor == ODM_PREDICTOR_AUTO)
		e->predictor = ODM_PREDICT_SHADOW;
	e->quiet = o->json;
	return OD_OK;
}

static int run_prompt(struct recall_bench *b, size_t i, struct od_err *err)
{
	const struct od_prompt *q = &b->prompts.prompt[i];
	struct outcome *out = &b->outcome[i];
	struct odm_request req = {
		.prompt = q->ids,
		.n_prompt = q->n_ids,
		.max_tokens = b->opt.tokens,
		.recall = &b->own,
	};
	struct odm_result r;
	int rc;

	od_sampler_defaults(&req.sampling);
	od_recall_reset(&b->own);
	rc = odm_generate(b->engine, &req, &r, err);
	*out = (struct outcome){
		.finish = odm_finish_name(r.finish),
		.tokens = r.n_tokens,
		.all = b->own.all,
		.expert_uses = r.figures.expert_uses,
		.late_rows = b->own.late_rows,
		.in_time_rows = b->own.in_time_rows,
		.missing_rows = r.figures.missing_predictions,
	};
	b->workers = r.figures.workers;
	b->groups = r.figures.groups;
	b->slots = r.figures.slots;
	od_recall_merge(&b->sum, &b->own);
	odm_result_fini(&r);
	return rc == OD_OK ? rc : od_fail_within(err, "%s", q->name);
}

static int run_prompts(struct recall_bench *b, struct od_err *err)
{
	bool progress = !b->opt.json && isatty(STDERR_FILENO);
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < b->prompts.n; i++) {
		if (progress)
			fprintf(stderr, "\rprompt %zu of %zu", i + 1, b->prompts.n);
		rc = run_prompt(b, i, err);
	}
	if (progress)
		fputc('\n', stderr);
	return rc;
}

/* Mean and deviation (of a sample) of the prompts' own recalls; NaN without enough prompts that have one. */
static void over_prompts(const struct recall_bench *b, double *mean, double *sd)
{
	double sum = 0, squares = 0;
	size_t n = 0;

	for (size_t i = 0; i < b->prompts.n; i++) {
		if (b->outcome[i].all.uses == 0)
			continue;
		sum += od_recall_rate(&b->outcome[i].all);
		n++;
	}
	*mean = n > 0 ? sum / (double)n : NAN;
	for (size_t i = 0; i < b->prompts.n; i++) {
		double d = od_recall_rate(&b->outcome[i].all) - *mean;

		squares += b->outcome[i].all.uses > 0 ? d * d : 0;
	}
	*sd = n > 1 ? sqrt(squares / (double)(n - 1)) : NAN;
}

static struct od_cell rate_cell(const struct od_recall_cell *c)
{
	return c->uses > 0 ? OD_REAL(od_recall_rate(c)) : OD_NONE;
}

static void report_setting(const struct recall_bench *b, struct od_report *r)
{
	const struct odm_engine_opts *e = &b->opt.engine.opts;
	bool ours = e->mode == ODM_LOCAL && e->predictor == ODM_PREDICT_SHADOW; /* else its command line says */

	od_report_fact(r, "predictor", "predictor", OD_TEXT(odm_predictor_names[e->predictor]), 0, NULL);
	if (ours)
		od_report_fact(r, "shadow_precision", "shadow's precision",
			       OD_TEXT(e->precision < 0 ? "default" : od_precision_names[e->precision]), 0, NULL);
	od_report_fact(r, "profile", "profile", OD_TEXT(od_profile_names[e->profile - 1]), 0, NULL);
	od_report_fact(r, "workers", "workers", OD_INT(b->workers), 0, NULL);
	od_report_fact(r, "groups", "groups", OD_INT(b->groups), 0, NULL);
	od_report_fact(r, "slots", "slots of a worker", OD_INT(b->slots), 0, NULL);
	od_report_fact(r, "fingerprint", "pack", OD_TEXT(od_pack_fingerprint(odm_engine_pack(b->engine))), 0, NULL);
}

static void report_totals(const struct recall_bench *b, struct od_report *r)
{
	const struct od_recall *s = &b->sum;
	struct od_recall_cell every = { .recalled = s->all.recalled };
	uint64_t tokens = 0, missing = 0;
	double mean, sd;

	for (size_t i = 0; i < b->prompts.n; i++) {
		tokens += b->outcome[i].tokens;
		missing += b->outcome[i].missing_rows;
		every.uses += b->outcome[i].expert_uses;
	}
	over_prompts(b, &mean, &sd);
	od_report_fact(r, "prompts", "prompts", OD_INT(b->prompts.n), 0, NULL);
	od_report_fact(r, "tokens", "tokens generated", OD_INT(tokens), 0, NULL);
	od_report_fact(r, "recall", "recall (Eq. 3)", rate_cell(&s->all), 5, NULL);
	od_report_fact(r, "recall_sd", "  deviation over prompts", OD_REAL(sd), 5, NULL);
	od_report_fact(r, "recall_mean", "  mean over prompts", OD_REAL(mean), 5, NULL);
	od_report_fact(r, "predicted_uses", "expert uses with a prediction", OD_INT(s->all.uses), 0, NULL);
	od_report_fact(r, "recalled_uses", "  of those predicted", OD_INT(s->all.recalled), 0, NULL);
	od_report_fact(r, "expert_uses", "expert uses", OD_INT(every.uses), 0, NULL);
	od_report_fact(r, "recall_of_all_uses", "recall, missing ones as wrong", rate_cell(&every), 5, NULL);
	od_report_fact(r, "in_time_rows", "rows predicted in time", OD_INT(s->in_time_rows), 0, NULL);
	od_report_fact(r, "late_rows", "rows predicted late", OD_INT(s->late_rows), 0, NULL);
	od_report_fact(r, "missing_rows", "rows never predicted", OD_INT(missing), 0, NULL);
}

static void report_layers(const struct recall_bench *b, struct od_report *r)
{
	static const struct od_column columns[] = {
		{ "layer", "layer", 0 }, { "uses", "uses", 0 }, { "recalled", "recalled", 0 }, { "recall", "recall", 5 },
	};
	struct od_table *t = od_report_table(r, "by_layer", "By layer", columns, 4);

	for (uint32_t m = 0; m < b->sum.n_layers; m++) {
		const struct od_recall_cell *c = &b->sum.layer[m];

		od_table_row(t, (struct od_cell[]){ OD_INT(m), OD_INT(c->uses), OD_INT(c->recalled), rate_cell(c) });
	}
}

/* Index n is the pass of the n-th generated token (OD-MoE's iteration n), which chooses token n + 1. A person gets
 * 1, 2, 3 to 4, 5 to 8, ...: drift shows on a scale of doublings. */
static void report_indices(const struct recall_bench *b, struct od_report *r)
{
	static const struct od_column columns[] = {
		{ "from", "token", 0 }, { "to", "to", 0 }, { "uses", "uses", 0 }, { "recalled", "recalled", 0 },
		{ "recall", "recall", 5 },
	};
	static const struct od_column every_column[] = {
		{ "index", "token", 0 }, { "uses", "uses", 0 }, { "recalled", "recalled", 0 }, { "recall", "recall", 5 },
	};
	const struct od_recall *s = &b->sum;
	struct od_table *t = od_report_table(r, "by_token", "By index of the generated token", columns, 5);
	struct od_table *d = od_report_detail(r, "by_token_index", every_column, 4);

	for (uint32_t from = 1, to = 1; from <= s->n_tokens; from = to + 1, to *= 2) {
		uint32_t end = to < s->n_tokens ? to : s->n_tokens;
		struct od_recall_cell c = { 0 };

		for (uint32_t n = from; n <= end; n++) {
			const struct od_recall_cell *one = &s->token[n - 1];

			c.uses += one->uses;
			c.recalled += one->recalled;
			if (one->uses > 0)
				od_table_row(d, (struct od_cell[]){ OD_INT(n), OD_INT(one->uses), OD_INT(one->recalled),
								    rate_cell(one) });
		}
		if (c.uses > 0)
			od_table_row(t, (struct od_cell[]){ OD_INT(from), OD_INT(end), OD_INT(c.uses), OD_INT(c.recalled),
							    rate_cell(&c) });
	}
}

static void report_prompts(const struct recall_bench *b, struct od_report *r)
{
	static const struct od_column columns[] = {
		{ "name", "prompt", 0 }, { "prompt_tokens", "prompt tokens", 0 }, { "tokens", "tokens", 0 },
		{ "finish", "finish", 0 }, { "recall", "recall", 5 }, { "predicted_uses", "predicted", 0 },
		{ "recalled_uses", "recalled", 0 }, { "expert_uses", "uses", 0 }, { "in_time_rows", "in time", 0 },
		{ "late_rows", "late", 0 }, { "missing_rows", "missing", 0 },
	};
	struct od_table *t = od_report_detail(r, "by_prompt", columns, sizeof(columns) / sizeof(columns[0]));

	for (size_t i = 0; i < b->prompts.n; i++) {
		const struct od_prompt *q = &b->prompts.prompt[i];
		const struct outcome *o = &b->outcome[i];

		od_table_row(t, (struct od_cell[]){
			OD_TEXT(q->name), OD_INT(q->n_ids), OD_INT(o->tokens), OD_TEXT(o->finish), rate_cell(&o->all),
			OD_INT(o->all.uses), OD_INT(o->all.recalled), OD_INT(o->expert_uses), OD_INT(o->in_time_rows),
			OD_INT(o->late_rows), OD_INT(o->missing_rows),
		});
	}
}

static int report(const struct recall_bench *b, struct od_err *err)
{
	struct od_report *r;
	int rc = od_report_new(&r, "Recall of expert predictions", err);

	if (rc != OD_OK)
		return rc;
	report_setting(b, r);
	report_totals(b, r);
	report_layers(b, r);
	report_indices(b, r);
	report_prompts(b, r);
	rc = od_report_print(r, stdout, b->opt.json, err);
	od_report_free(r);
	return rc;
}

static int run(struct recall_bench *b, struct od_err *err)
{
	const struct options *o = &b->opt;
	uint32_t n_layers, n_tokens = (uint32_t)o->tokens;
	int rc;

	rc = od_prompts_load(&b->prompts, o->prompts, o->limit, err);
	if (rc != OD_OK)
		return rc;
	b->outcome = calloc(b->prompts.n, sizeof(*b->outcome));
	if (b->outcome == NULL)
		return od_fail(err, OD_ERR_NOMEM, "results of %zu prompts", b->prompts.n);
	rc = odm_engine_open(&b->engine, &o->engine.opts, err);
	if (rc != OD_OK)
		return rc;
	rc = od_prompts_encode(&b->prompts, odm_engine_tokenizer(b->engine), err);
	n_layers = od_pack_config(odm_engine_pack(b->engine))->n_layers;
	if (rc == OD_OK)
		rc = od_recall_init(&b->sum, n_layers, n_tokens, err);
	if (rc == OD_OK)
		rc = od_recall_init(&b->own, n_layers, n_tokens, err);
	if (rc == OD_OK)
		rc = run_prompts(b, err);
	return rc == OD_OK ? report(b, err) : rc;
}

int od_bench_recall(int argc, char **argv, struct od_err *err)
{
	struct recall_bench b = { .opt.tokens = DEFAULT_TOKENS };
	int rc = parse(&b.opt, argc, argv, err);

	if (rc != OD_OK || b.opt.help)
		return rc;
	rc = check(&b.opt, err);
	if (rc == OD_OK)
		rc = run(&b, err);
	odm_engine_close(b.engine);
	od_recall_fini(&b.sum);
	od_recall_fini(&b.own);
	od_prompts_fini(&b.prompts);
	free(b.outcome);
	return rc;
}

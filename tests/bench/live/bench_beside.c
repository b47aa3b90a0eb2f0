/* od-bench decode --parallel N --prefill-beside TOKENS: decodes N texts during the prefill of a prompt.
 *
 * A round: decode steps of the texts alone; texts and prompt together, from the prompt's submission to its first token;
 * the texts alone again, so that the growing context affects both; then the prompt alone. */
#include "main-node/node/main_node.h"
#include "tests/bench/live/bench_parallel.h"

#include "common/base/clock.h"
#include "tests/bench/live/parallel_texts.h"
#include "tests/bench/report/bench_stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct beside_phase {
	uint64_t steps, ns, longest_ns; /* decode steps of all texts; longest: between the begins of two */
};

struct beside_round {
	struct beside_phase alone, beside;
	uint64_t ttft_beside_ns, ttft_alone_ns; /* the prompt's */
};

struct beside_bench {
	const struct decode_options *opt;
	uint64_t n; /* texts */
	struct odm_main_node *node;
	struct odm_engine *engine;
	struct od_prompts prompts, beside;
	struct parallel_texts texts;
	struct beside_round *round; /* [runs] */
	double *x; /* [runs], to sort in */
	struct odm_figures setting; /* one prompt's, without nodes */
};

/* ---- Measuring ---- */

/* The texts should last as long as the round. */
static int check_alive(struct beside_bench *b, struct od_err *err)
{
	int rc;

	if (parallel_texts_done(&b->texts) == 0)
		return OD_OK;
	rc = parallel_texts_take(&b->texts, err);
	if (rc != OD_OK)
		return rc;
	return od_fail(err, OD_ERR_ARG,
		       "a text reached the end of its context of %u before the round ended; raise --ctx-size, "
		       "or lower --tokens or --prefill-beside",
		       odm_engine_ctx(b->engine));
}

/* Adds so many decode steps, and their time, to the phase. */
static int add_steps(struct beside_bench *b, uint64_t steps, struct beside_phase *p, struct od_err *err)
{
	struct parallel_texts *t = &b->texts;
	const uint64_t begin = od_now_ns();
	int rc = OD_OK;

	t->steps = t->longest_ns = 0;
	while (rc == OD_OK && t->steps < steps) {
		parallel_texts_work(t);
		rc = check_alive(b, err);
	}
	p->ns += od_now_ns() - begin;
	p->steps += t->steps;
	p->longest_ns = t->longest_ns > p->longest_ns ? t->longest_ns : p->longest_ns;
	return rc;
}

static int submit_texts(struct beside_bench *b, size_t run, struct od_err *err)
{
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < b->n; i++) {
		const size_t k = run * b->n + i;
		struct od_sampler_opts sampling;

		od_sampler_defaults(&sampling);
		sampling.temperature = b->opt->temperature;
		sampling.seed = b->opt->seed + k;
		rc = parallel_texts_add(&b->texts, &b->prompts.prompt[k % b->prompts.n], 0, &sampling, err);
	}
	return rc;
}

static struct odm_request prompt_request(const struct beside_bench *b, size_t run)
{
	struct odm_request req = {
		.prompt = b->beside.prompt[run].ids,
		.n_prompt = b->beside.prompt[run].n_ids,
		.max_tokens = 1,
		.ignore_eos = true,
	};

	od_sampler_defaults(&req.sampling);
	return req;
}

/* From submission to the first token, and on to the begin of the next decode step, which the last layers may have
 * delayed. */
static int prefill_beside(struct beside_bench *b, size_t run, struct beside_round *r, struct od_err *err)
{
	const struct odm_request req = prompt_request(b, run);
	struct parallel_texts *t = &b->texts;
	struct odm_sequence *q;
	struct odm_result result;
	struct od_err why;
	int rc = odm_engine_submit(b->engine, &req, &q, err), taken;

	if (rc != OD_OK)
		return rc;
	t->steps = t->longest_ns = 0;
	while (rc == OD_OK && !odm_sequence_done(q)) {
		parallel_texts_work(t);
		rc = check_alive(b, err);
	}
	odm_sequence_cancel(q);
	while (!odm_sequence_done(q))
		odm_engine_work(b->engine);
	taken = odm_sequence_take(q, &result, &why);
	r->beside.steps = t->steps;
	r->beside.ns = r->ttft_beside_ns = result.figures.c[OD_C_TTFT_NS];
	odm_result_fini(&result);
	if (rc == OD_OK && taken != OD_OK)
		*err = why;
	if (rc != OD_OK || taken != OD_OK)
		return rc != OD_OK ? rc : taken;
	while (rc == OD_OK && !parallel_texts_work(t))
		rc = check_alive(b, err);
	r->beside.longest_ns = t->longest_ns;
	return rc;
}

static int prefill_alone(struct beside_bench *b, size_t run, struct beside_round *r, struct od_err *err)
{
	const struct odm_request req = prompt_request(b, run);
	struct odm_result result;
	const int rc = odm_generate(b->engine, &req, &result, err);

	r->ttft_alone_ns = result.figures.c[OD_C_TTFT_NS];
	b->setting = result.figures;
	b->setting.node = NULL; /* freed below */
	b->setting.n_nodes = 0;
	odm_result_fini(&result);
	return rc;
}

/* tokens: decode steps of the texts alone. *r: zeroed. */
static int measure(struct beside_bench *b, struct beside_round *r, size_t run, uint64_t tokens, struct od_err *err)
{
	struct beside_phase begin = { 0 };
	int rc = submit_texts(b, run, err);

	if (rc == OD_OK)
		rc = add_steps(b, 1, &begin, err); /* now every text has its first token */
	if (rc == OD_OK)
		rc = add_steps(b, tokens / 2, &r->alone, err);
	if (rc == OD_OK)
		rc = prefill_beside(b, run, r, err);
	if (rc == OD_OK)
		rc = add_steps(b, tokens - tokens / 2, &r->alone, err);
	parallel_texts_clear(&b->texts);
	return rc == OD_OK ? prefill_alone(b, run, r, err) : rc;
}

static int measure_all(struct beside_bench *b, struct od_err *err)
{
	const uint64_t tokens = b->opt->tokens;
	const bool progress = !b->opt->json && isatty(STDERR_FILENO);
	struct beside_round ignored = { 0 };
	int rc = measure(b, &ignored, 0, tokens < DECODE_WARM_UP_TOKENS ? tokens : DECODE_WARM_UP_TOKENS, err);

	for (size_t run = 0; rc == OD_OK && run < b->opt->runs; run++) {
		if (progress)
			fprintf(stderr, "\rround %zu of %llu", run + 1, (unsigned long long)b->opt->runs);
		rc = measure(b, &b->round[run], run, tokens, err);
	}
	if (progress)
		fputc('\n', stderr);
	return rc;
}

/* ---- Reporting ---- */

typedef double figure_fn(const struct beside_bench *b, const struct beside_round *r);

static double per_s(const struct beside_bench *b, const struct beside_phase *p)
{
	return (double)(p->steps * b->n) / od_seconds(p->ns);
}

static double ms(uint64_t ns)
{
	return od_seconds(ns) * 1e3;
}

static double alone_speed(const struct beside_bench *b, const struct beside_round *r)
{
	return per_s(b, &r->alone);
}

static double beside_speed(const struct beside_bench *b, const struct beside_round *r)
{
	return per_s(b, &r->beside);
}

static double speed_ratio(const struct beside_bench *b, const struct beside_round *r)
{
	return beside_speed(b, r) / alone_speed(b, r);
}

static double alone_longest(const struct beside_bench *b, const struct beside_round *r)
{
	(void)b;
	return ms(r->alone.longest_ns);
}

static double beside_longest(const struct beside_bench *b, const struct beside_round *r)
{
	(void)b;
	return ms(r->beside.longest_ns);
}

static double ttft_alone(const struct beside_bench *b, const struct beside_round *r)
{
	(void)b;
	return ms(r->ttft_alone_ns);
}

static double ttft_beside(const struct beside_bench *b, const struct beside_round *r)
{
	(void)b;
	return ms(r->ttft_beside_ns);
}

static double ttft_ratio(const struct beside_bench *b, const struct beside_round *r)
{
	return ttft_beside(b, r) / ttft_alone(b, r);
}

static const struct beside_figure {
	const char *key, *label, *unit;
	figure_fn *of;
} figures[] = {
	{ "alone_tok_per_s", "texts alone", "tok/s", alone_speed },
	{ "beside_tok_per_s", "texts during the prefill", "tok/s", beside_speed },
	{ "tok_per_s_ratio", "  during it / alone", "", speed_ratio },
	{ "alone_longest_ms", "longest step, texts alone", "ms", alone_longest },
	{ "beside_longest_ms", "longest step, during the prefill", "ms", beside_longest },
	{ "ttft_alone_ms", "the prompt's first token, alone", "ms", ttft_alone },
	{ "ttft_beside_ms", "the prompt's first token, with texts", "ms", ttft_beside },
	{ "ttft_ratio", "  with texts / alone", "", ttft_ratio },
};
#define N_FIGURES (sizeof(figures) / sizeof(figures[0]))

static void report_figures(const struct beside_bench *b, struct od_report *r)
{
	static const struct od_column columns[] = {
		{ "figure", "figure", 0 }, { "unit", "unit", 0 }, { "median", "median", 3 },
		{ "low", "from", 3 },	   { "high", "to", 3 },
	};
	struct od_table *t = od_report_table(r, "figures",
					     "Medians of the rounds; from, to: their 95 % interval (below 6 "
					     "rounds: least, most)",
					     columns, 5);

	for (size_t k = 0; k < N_FIGURES; k++) {
		struct od_stats s;

		for (size_t i = 0; i < b->opt->runs; i++)
			b->x[i] = figures[k].of(b, &b->round[i]);
		od_stats_of(b->x, b->opt->runs, &s);
		od_table_row(t, (struct od_cell[]){ OD_TEXT(figures[k].label), OD_TEXT(figures[k].unit),
						    OD_REAL(s.median), OD_REAL(s.ci_low), OD_REAL(s.ci_high) });
		od_report_fact(r, figures[k].key, NULL, OD_REAL(s.median), 0, NULL);
	}
}

static void report_rounds(const struct beside_bench *b, struct od_report *r)
{
	static const struct od_column columns[] = {
		{ "alone_steps", "", 0 },     { "alone_s", "", 0 },	     { "beside_steps", "", 0 },
		{ "beside_s", "", 0 },	      { "alone_tok_per_s", "", 0 },  { "beside_tok_per_s", "", 0 },
		{ "tok_per_s_ratio", "", 0 }, { "alone_longest_ms", "", 0 }, { "beside_longest_ms", "", 0 },
		{ "ttft_alone_ms", "", 0 },   { "ttft_beside_ms", "", 0 },   { "ttft_ratio", "", 0 },
	};
	struct od_table *t = od_report_detail(r, "by_round", columns, sizeof(columns) / sizeof(columns[0]));

	for (size_t i = 0; i < b->opt->runs; i++) {
		const struct beside_round *u = &b->round[i];
		struct od_cell cells[4 + N_FIGURES] = {
			OD_INT(u->alone.steps),
			OD_REAL(od_seconds(u->alone.ns)),
			OD_INT(u->beside.steps),
			OD_REAL(od_seconds(u->beside.ns)),
		};

		_Static_assert(sizeof(columns) / sizeof(columns[0]) == 4 + N_FIGURES, "figures in their order");
		for (size_t k = 0; k < N_FIGURES; k++)
			cells[4 + k] = OD_REAL(figures[k].of(b, u));
		od_table_row(t, cells);
	}
}

static int report(const struct beside_bench *b, struct od_err *err)
{
	struct od_report *r;
	int rc = od_report_new(&r, "Decoding during a prefill", err);

	if (rc != OD_OK)
		return rc;
	decode_report_engine(r, b->opt, b->engine, "steps of the texts alone");
	if (b->opt->engine.opts.mode != ODM_RESIDENT)
		decode_report_cluster(r, b->opt, &b->setting);
	od_report_fact(r, "parallel", "texts", OD_INT(b->n), 0, NULL);
	od_report_fact(r, "beside_tokens", "tokens of the prompt", OD_INT(b->opt->prefill_beside), 0, NULL);
	report_figures(b, r);
	report_rounds(b, r);
	rc = od_report_print(r, stdout, b->opt->json, err);
	od_report_free(r);
	return rc;
}

/* ---- The whole ---- */

static int open_engine(struct beside_bench *b, struct od_err *err)
{
	struct odm_main_opts eo = b->opt->engine.opts;
	int rc;

	eo.engine.parallel = b->n + 1; /* the prompt needs a place, too */
	eo.engine.draft = ODM_DRAFT_OFF; /* tokens are counted by steps */
	rc = odm_main_node_open(&b->node, &eo, err);
	b->engine = odm_main_node_engine(b->node);
	return rc == OD_OK ? parallel_texts_init(&b->texts, b->engine, b->n, false, err) : rc;
}

static int make_prompts(struct beside_bench *b, struct od_err *err)
{
	const struct decode_options *o = b->opt;
	const struct od_config *c = od_pack_config(odm_engine_pack(b->engine));
	const int rc = decode_make_prompts(&b->prompts, o, o->runs * b->n, b->engine, err);

	if (rc != OD_OK)
		return rc;
	/* Another seed than the texts': prompts that begin alike would share state. */
	return od_prompts_random(&b->beside, o->runs, o->prefill_beside, c->vocab, c->bos, o->seed + 1, err);
}

static int run(struct beside_bench *b, struct od_err *err)
{
	const struct decode_options *o = b->opt;
	int rc = od_parse_u64(o->parallel, 1, ODM_MAX_PARALLEL - 1, &b->n, err);

	if (rc != OD_OK)
		return od_fail_within(err, "--parallel with --prefill-beside");
	b->round = calloc(o->runs, sizeof(*b->round));
	b->x = calloc(o->runs, sizeof(*b->x));
	if (b->round == NULL || b->x == NULL)
		return od_fail(err, OD_ERR_NOMEM, "figures of %llu rounds", (unsigned long long)o->runs);
	rc = decode_load_prompts(&b->prompts, o, o->runs * b->n, b->n, err);
	if (rc == OD_OK)
		rc = open_engine(b, err);
	if (rc == OD_OK)
		rc = make_prompts(b, err);
	if (rc == OD_OK)
		rc = measure_all(b, err);
	return rc == OD_OK ? report(b, err) : rc;
}

int beside_bench(const struct decode_options *o, struct od_err *err)
{
	struct beside_bench b = { .opt = o };
	const int rc = run(&b, err);

	parallel_texts_fini(&b.texts);
	odm_main_node_close(b.node);
	od_prompts_fini(&b.prompts);
	od_prompts_fini(&b.beside);
	free(b.round);
	free(b.x);
	return rc;
}

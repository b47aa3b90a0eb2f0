/* bench_conform.c - od-bench conform: the engine against an independent implementation's tokens, routes and logits. */
#include "common/text/tok_decode.h"
#include "main-node/node/engine_args.h"
#include "main-node/node/main_node.h"
#include "tests/bench/bench.h"
#include "tests/bench/report/bench_table.h"
#include "tests/conform/golden_compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct conform_options {
	struct odm_engine_args engine;
	const char *golden;
	struct golden_tolerance tolerance;
	bool json, help;
};

struct conform {
	const struct conform_options *opt;
	struct golden *golden;
	struct odm_main_node *node;
	struct odm_engine *engine;
	struct golden_verdict *verdict; /* [n_entries] */
};

/* Results that the observer collects while a prompt runs. */
struct conform_watch {
	struct golden_run run;
	struct golden_logits *logits, *decode_logits; /* NULL: the prompt has none */
	int rc; /* result of reading them */
	struct od_err err;
};

static void on_route(void *arg, enum odm_phase phase, uint32_t position, uint32_t m, const uint16_t *experts,
		     const float *weights, float margin)
{
	struct conform_watch *w = arg;

	(void)phase;
	(void)margin;
	golden_run_route(&w->run, position, m, experts, weights);
}

static void compare_row(struct conform_watch *w, struct golden_logits *l, size_t row, struct golden_worst *worst,
			const float *found)
{
	const float *expected;

	if (l == NULL || w->rc != OD_OK)
		return;
	w->rc = golden_logits_row(l, row, &expected, &w->err);
	if (w->rc == OD_OK)
		golden_run_logits(&w->run, &worst[row], expected, found);
}

static void on_logits(void *arg, enum odm_phase phase, uint32_t position, const float *logits)
{
	struct conform_watch *w = arg;
	const struct golden_entry *e = w->run.e;

	(void)phase;
	if (position < e->n_prompt)
		compare_row(w, w->logits, position, w->run.worst, logits);
	if (position + 1 >= e->n_prompt && position + 1 - e->n_prompt < e->n_greedy)
		compare_row(w, w->decode_logits, position + 1 - e->n_prompt, w->run.decode_worst, logits);
}

/* The reference's text must become the reference's ids. */
static void check_encoding(const struct od_tokenizer *t, const struct golden_entry *e, struct golden_verdict *v)
{
	struct od_err err;
	int32_t *ids;
	size_t n, i = 0;

	if (t == NULL || e->prompt_text.bytes == NULL)
		return;
	if (od_tokenizer_encode(t, e->prompt_text.bytes, e->prompt_text.len,
				OD_ENCODE_ADD_SPECIAL | OD_ENCODE_PARSE_SPECIAL, &ids, &n, &err) != OD_OK) {
		golden_fails(v, "prompt_text cannot be encoded: %s", err.msg);
		return;
	}
	while (i < n && i < e->n_prompt && ids[i] == e->prompt[i])
		i++;
	if (i < n && i < e->n_prompt)
		golden_fails(v, "prompt_text, encoded: token %zu: expected id %d, found %d", i, e->prompt[i], ids[i]);
	else if (n != e->n_prompt)
		golden_fails(v, "prompt_text, encoded: expected %zu tokens, found %zu, alike as far as both go",
			     e->n_prompt, n);
	free(ids);
}

static bool same_text(const struct golden_text *a, const char *text, size_t len)
{
	return text != NULL && a->len == len && memcmp(a->bytes, text, len) == 0;
}

/* The ids are the reference's by now. Their text depends on who asks: in the prompt's context, as od-main shows it,
 * or decoded alone, where a SentencePiece tokeniser drops the first space, with or without the </s> at the end. The
 * form does not say which, so each is right. */
static void check_text(const struct od_tokenizer *t, const struct golden_entry *e, const struct odm_result *r,
		       struct golden_verdict *v)
{
	const struct golden_text *want = &e->greedy_text;
	bool same;
	size_t i = 0;

	if (t == NULL || want->bytes == NULL)
		return;
	same = same_text(want, r->text, r->text_len);
	for (int skip_special = 0; !same && skip_special < 2; skip_special++) {
		struct od_err err;
		size_t len;
		char *text;

		if (od_tokenizer_decode(t, e->greedy, e->n_greedy, skip_special, &text, &len, &err) != OD_OK)
			break;
		same = same_text(want, text, len);
		free(text);
	}
	if (same)
		return;
	while (i < want->len && i < r->text_len && want->bytes[i] == r->text[i])
		i++;
	golden_fails(v, "greedy_text: expected %zu bytes, found %zu; the first difference is at byte %zu", want->len,
		     r->text_len, i);
}

static int generate(const struct conform *c, const struct golden_entry *e, struct conform_watch *w,
		    struct golden_verdict *v, struct od_err *err)
{
	struct odm_request req = {
		.prompt = e->prompt,
		.n_prompt = e->n_prompt,
		.max_tokens = e->n_greedy > 0 ? e->n_greedy : 1, /* 0 would be: as many as fit */
		.ignore_eos = e->passes_eos,
		.observer = { .arg = w, .route = on_route },
	};
	struct odm_result r;
	int rc;

	if (w->logits != NULL || w->decode_logits != NULL)
		req.observer.logits = on_logits;
	od_sampler_defaults(&req.sampling);
	rc = odm_generate(c->engine, &req, &r, err);
	if (rc != OD_OK) {
		golden_fails(v, "it did not run to its end: %s", err->msg);
	} else if (w->rc != OD_OK) {
		golden_fails(v, "its logits could not be read: %s", w->err.msg);
	} else {
		w->run.tokens = r.tokens;
		w->run.n_tokens = r.n_tokens;
		w->run.stopped_at_eos = r.finish == ODM_FINISH_EOS;
		w->run.finish = odm_finish_name(r.finish);
		golden_compare(&w->run, &c->opt->tolerance, v);
	}
	if (v->result == GOLDEN_CONFORMS && e->n_greedy > 0)
		check_text(odm_engine_tokenizer(c->engine), e, &r, v);
	odm_result_fini(&r);
	return rc;
}

/* v: initialised. OD_OK whatever the verdict is; an error when the engine cannot go on. */
static int run_entry(const struct conform *c, const struct golden_entry *e, struct golden_verdict *v,
		     struct od_err *err)
{
	struct conform_watch w = { .rc = OD_OK };
	int rc;

	if (e->n_positions > odm_engine_ctx(c->engine)) {
		golden_fails(v, "its %zu tokens of prompt and %zu generated ones need a context of %zu, there are %u",
			     e->n_prompt, e->n_greedy, e->n_positions, odm_engine_ctx(c->engine));
		return OD_OK;
	}
	check_encoding(odm_engine_tokenizer(c->engine), e, v);
	if (v->result == GOLDEN_FAILS)
		return OD_OK;
	rc = golden_run_init(&w.run, c->golden, e, err);
	if (rc == OD_OK && e->logits_path != NULL)
		rc = golden_logits_open(&w.logits, e->logits_path, e->n_prompt, c->golden->vocab, err);
	if (rc == OD_OK && e->decode_logits_path != NULL)
		rc = golden_logits_open(&w.decode_logits, e->decode_logits_path, e->n_greedy, c->golden->vocab, err);
	if (rc == OD_OK)
		rc = generate(c, e, &w, v, err);
	else
		golden_fails(v, "%s", err->msg);
	golden_logits_close(w.logits);
	golden_logits_close(w.decode_logits);
	golden_run_fini(&w.run);
	/* The other prompts can still run, unless there is nobody left to run them. */
	return rc == OD_ERR_UNREACHABLE ? rc : OD_OK;
}

static void add_prompts(const struct conform *c, struct od_report *r)
{
	static const struct od_column columns[] = {
		{ "name", "prompt", 0 },
		{ "prompt_tokens", "tokens", 0 },
		{ "greedy_tokens", "generated", 0 },
		{ "tokens_compared", "equal", 0 },
		{ "max_logit_error", "logit error", 8 },
		{ "max_weight_error", "weight error", 8 },
		{ "rank_ties", "rank ties", 0 },
		{ "ties", "ties", 0 },
		{ "result", "result", 0 },
	};
	struct od_table *t = od_report_table(r, "prompts", NULL, columns, sizeof(columns) / sizeof(columns[0]));

	for (size_t i = 0; i < c->golden->n_entries; i++) {
		const struct golden_entry *e = &c->golden->entry[i];
		const struct golden_verdict *v = &c->verdict[i];

		od_table_row(t, (struct od_cell[]){ OD_TEXT(e->name), OD_INT(e->n_prompt), OD_INT(e->n_greedy),
						    OD_INT(v->n_tokens), OD_REAL(v->max_logit_error),
						    OD_REAL(v->max_weight_error), OD_INT(v->n_rank_ties),
						    OD_INT(v->result == GOLDEN_TIE),
						    OD_TEXT(golden_result_names[v->result]) });
	}
}

static void add_differences(const struct conform *c, struct od_report *r)
{
	static const struct od_column columns[] = { { "name", "prompt", 0 },
						    { "kind", "kind", 0 },
						    { "where", "first difference of its kind", 0 } };
	struct od_table *t = NULL;

	for (size_t i = 0; i < c->golden->n_entries; i++) {
		const struct golden_verdict *v = &c->verdict[i];
		const struct golden_entry *e = &c->golden->entry[i];

		if (t == NULL && (v->rank_tie[0] != '\0' || v->difference[0] != '\0'))
			t = od_report_table(r, "differences", NULL, columns, sizeof(columns) / sizeof(columns[0]));
		if (v->rank_tie[0] != '\0')
			od_table_row(t,
				     (struct od_cell[]){ OD_TEXT(e->name), OD_TEXT("rank tie"), OD_TEXT(v->rank_tie) });
		if (v->difference[0] != '\0')
			od_table_row(t, (struct od_cell[]){ OD_TEXT(e->name),
							    OD_TEXT(v->result == GOLDEN_TIE ? "tie" : "failure"),
							    OD_TEXT(v->difference) });
	}
}

/* Returns how many prompts fail. */
static size_t add_summary(const struct conform *c, struct od_report *r)
{
	size_t n[3] = { 0 }; /* by result */
	size_t all = c->golden->n_entries, rank_ties = 0;
	double worst = NAN;
	char summary[96];

	for (size_t i = 0; i < all; i++) {
		n[c->verdict[i].result]++;
		rank_ties += c->verdict[i].n_rank_ties;
		worst = fmax(worst, c->verdict[i].max_logit_error);
	}
	snprintf(summary, sizeof(summary), "%zu of %zu prompts conform, %zu of them up to a tie", all - n[GOLDEN_FAILS],
		 all, n[GOLDEN_TIE]);
	od_report_fact(r, "n_prompts", "prompts", OD_INT(all), 0, NULL);
	od_report_fact(r, "n_conform", "conform", OD_INT(n[GOLDEN_CONFORMS]), 0, NULL);
	od_report_fact(r, "n_tie", "conform up to a tie", OD_INT(n[GOLDEN_TIE]), 0, NULL);
	od_report_fact(r, "n_fail", "fail", OD_INT(n[GOLDEN_FAILS]), 0, NULL);
	od_report_fact(r, "n_rank_ties", "rank ties", OD_INT(rank_ties), 0, NULL);
	od_report_fact(r, "max_logit_error", "largest logit error", OD_REAL(worst), 8, NULL);
	if (c->opt->tolerance.absolute >= 0)
		od_report_fact(r, "tolerance", "tolerance", OD_REAL(c->opt->tolerance.absolute), 8, NULL);
	if (c->opt->tolerance.relative >= 0)
		od_report_fact(r, "relative_tolerance", "relative tolerance", OD_REAL(c->opt->tolerance.relative), 8,
			       NULL);
	od_report_fact(r, "summary", "summary", OD_TEXT(summary), 0, NULL);
	return n[GOLDEN_FAILS];
}

static int report(const struct conform *c, struct od_err *err)
{
	const struct conform_options *o = c->opt;
	const struct odm_main_opts *engine = &o->engine.opts;
	struct od_report *r;
	size_t failed;
	int rc = od_report_new(&r, "Conformance with an independent implementation", err);

	if (rc != OD_OK)
		return rc;
	od_report_fact(r, "golden", "golden outputs", OD_TEXT(o->golden), 0, NULL);
	od_report_fact(r, "pack", "pack", OD_TEXT(od_pack_dir(odm_engine_pack(c->engine))), 0, NULL);
	od_report_fact(r, "profile", "profile", OD_TEXT(od_profile_names[engine->engine.profile - 1]), 0, NULL);
	od_report_fact(r, "cpu", "kernels", OD_TEXT(od_cpu_names[engine->engine.cpu]), 0, NULL);
	add_prompts(c, r);
	add_differences(c, r);
	failed = add_summary(c, r);
	rc = od_report_print(r, stdout, o->json, err);
	od_report_free(r);
	if (rc == OD_OK && failed > 0)
		rc = od_fail(err, OD_ERR_MISMATCH, "%zu of %zu prompts do not conform to %s", failed,
			     c->golden->n_entries, o->golden);
	return rc;
}

static int run_entries(struct conform *c, struct od_err *err)
{
	int rc = OD_OK;

	for (size_t i = 0; i < c->golden->n_entries; i++) {
		golden_verdict_init(&c->verdict[i]);
		if (rc == OD_OK)
			rc = run_entry(c, &c->golden->entry[i], &c->verdict[i], err);
		else
			golden_fails(&c->verdict[i], "not run: the one before it ended everything");
	}
	return report(c, err);
}

/* The folder is read against the model's shapes, and read before the weights are. */
static int load_golden(struct conform *c, struct odm_main_opts *engine, struct od_err *err)
{
	const struct od_config *cfg;
	struct od_pack *pack;
	int rc = od_pack_open(&pack, engine->engine.pack, err);

	if (rc != OD_OK)
		return rc;
	cfg = od_pack_config(pack);
	rc = golden_load(&c->golden, c->opt->golden, cfg, err);
	/* The context that the longest prompt needs, as far as the model goes. */
	if (rc == OD_OK)
		for (size_t i = 0; c->opt->engine.opts.engine.ctx_tokens == 0 && i < c->golden->n_entries; i++) {
			size_t need = c->golden->entry[i].n_positions;

			need = need < cfg->ctx_max ? need : cfg->ctx_max;
			engine->engine.ctx_tokens = need > engine->engine.ctx_tokens ? need : engine->engine.ctx_tokens;
		}
	od_pack_close(pack);
	return rc;
}

static int run(const struct conform_options *o, struct od_err *err)
{
	struct odm_main_opts engine = o->engine.opts;
	struct conform c = { .opt = o };
	int rc = load_golden(&c, &engine, err);

	if (rc != OD_OK)
		return rc;
	c.verdict = calloc(c.golden->n_entries, sizeof(*c.verdict));
	rc = c.verdict == NULL ? od_fail(err, OD_ERR_NOMEM, "verdicts") : odm_main_node_open(&c.node, &engine, err);
	c.engine = odm_main_node_engine(c.node);
	if (rc == OD_OK)
		rc = run_entries(&c, err);
	odm_main_node_close(c.node);
	golden_free(c.golden);
	free(c.verdict);
	return rc;
}

static int parse(struct conform_options *o, int argc, char **argv, struct od_err *err)
{
	const struct od_arg own[] = {
		{ NULL, OD_ARG_TITLE, NULL, NULL, "Compare", 0, 0, NULL },
		{ "golden", OD_ARG_STRING, &o->golden, "DIR", "folder with golden.json and its logits files", 0, 0,
		  NULL },
		{ "tolerance", OD_ARG_REAL, &o->tolerance.absolute, "X",
		  "accepted logit difference (default: the golden file's, else 2e-4)", 0, 0, NULL },
		{ "relative-tolerance", OD_ARG_REAL, &o->tolerance.relative, "X",
		  "the same relative to the row's largest logit; also for router weights, "
		  "where the default is 1e-4",
		  0, 0, NULL },
		{ "json", OD_ARG_FLAG, &o->json, NULL, "print the report as JSON", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "print this text", 0, 0, NULL },
	};
	int rc = odm_engine_args_parse(
		&o->engine, NULL, own, sizeof(own) / sizeof(own[0]), argc, argv, &o->help,
		"Usage: od-bench conform --golden DIR --resident | --local N | --workers FILE [OPTIONS]\n\n"
		"Generates greedily from each prompt of DIR and compares tokens, routes, router weights and logits\n"
		"with the results of an independent implementation in DIR, as far as DIR has them. A difference\n"
		"where the reference's choice was nearly a tie is accepted and ends that prompt's comparison.\n"
		"Exit status 0: every prompt conforms.\n"
		"Example: od-bench conform --golden tests/golden/talebook --pack PACK --resident\n",
		err);

	if (rc != OD_OK || o->help)
		return rc;
	if (o->golden == NULL)
		return od_fail(err, OD_ERR_ARG, "--golden is missing: the folder to compare with; see --help");
	o->engine.opts.engine.quiet = true;
	return odm_engine_args_finish(&o->engine, err);
}

int od_bench_conform(int argc, char **argv, struct od_err *err)
{
	struct conform_options o = { .tolerance = { .absolute = -1, .relative = -1 } };
	int rc;

	odm_engine_args_defaults(&o.engine);
	rc = parse(&o, argc, argv, err);
	return rc != OD_OK || o.help ? rc : run(&o, err);
}

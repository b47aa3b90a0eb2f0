/* od-bench decode --parallel LIST: one engine decodes N texts at once, for each N of the list, in turns.
 *
 * Decoding is timed while all texts of a number are in decode: from the moment the last one has its first token to the
 * moment the first one ends. In resident mode the memory bandwidth is read between these steps, outside their time: the
 * floor is the time that memory would take for the dense weights once a step, and for each expert once that any of the
 * texts chose. */
#include "main-node/node/main_node.h"
#include "tests/bench/live/bench_parallel.h"

#include "common/base/clock.h"
#include "common/pack/load/dense_load.h"
#include "tests/bench/bench_list.h"
#include "tests/bench/live/parallel_texts.h"
#include "tests/bench/report/bench_stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READING_SHARE 10 /* reading memory takes about a tenth of the time */

/* One number of texts, in one round. */
struct parallel_round {
	uint64_t steps, ns; /* decode steps of all texts together, without readings of memory */
	uint64_t step_tokens; /* tokens of these steps */
	uint64_t tokens, wall_ns; /* everything, from the first submission to the last token, without readings */
	uint64_t experts; /* resident: different ones of a step, summed over layers and steps */
	struct od_membw_sum membw;
	uint64_t drafted, accepted;
	uint64_t c[OD_N_COUNTERS]; /* sums over all steps of the round, on a cluster */
	double *ttft_ms; /* [number of texts], least first */
};

struct parallel_bench {
	const struct decode_options *opt;
	uint64_t number[OD_LIST_MAX];
	size_t n_numbers, most, least; /* least: its index */
	struct odm_main_node *node;
	struct odm_engine *engine;
	struct od_prompts prompts;
	struct od_membw *membw; /* NULL on a cluster */
	uint64_t read_ns, reading_ns; /* when memory was last read, and how long it took */
	struct parallel_texts texts;
	struct parallel_round *round; /* [runs][n_numbers] */
	double *ttft_ms; /* [runs][n_numbers][most], behind the rounds' pointers */
	double *x; /* to sort in: [runs * most] */
	int32_t *first; /* [most][tokens]: what the round's texts were when they were first written */
	bool *written; /* [most]: first is known */
	uint64_t other; /* texts that were another one among others */
	struct odm_figures setting; /* one text's, without nodes */
	uint64_t before[OD_N_COUNTERS]; /* main's, until the last round */
	uint64_t dense_bytes, expert_bytes;
};

/* ---- The command line ---- */

static int parse_numbers(struct parallel_bench *b, struct od_err *err)
{
	int rc = od_list_numbers("parallel", b->opt->parallel, 1, ODM_MAX_PARALLEL, b->number, &b->n_numbers, err);

	for (size_t i = 0; rc == OD_OK && i < b->n_numbers; i++) {
		b->most = b->number[i] > b->most ? b->number[i] : b->most;
		b->least = b->number[i] < b->number[b->least] ? i : b->least;
	}
	return rc;
}

/* ---- Measuring ---- */

/* Neighbours in time of the steps, which see the same machine; the first one after a round's first step. */
static void read_memory(struct parallel_bench *b, struct parallel_round *r)
{
	const uint64_t begin = od_now_ns();

	if (b->membw == NULL || begin - b->read_ns < READING_SHARE * b->reading_ns)
		return;
	od_membw_add(b->membw, &r->membw);
	b->read_ns = od_now_ns();
	b->reading_ns = b->read_ns - begin;
}

static int submit(struct parallel_bench *b, size_t run, size_t n, uint64_t tokens, struct od_err *err)
{
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < n; i++) {
		const size_t k = run * b->most + i;
		struct od_sampler_opts sampling;

		od_sampler_defaults(&sampling);
		sampling.temperature = b->opt->temperature;
		sampling.seed = b->opt->seed + k;
		rc = parallel_texts_add(&b->texts, &b->prompts.prompt[k % b->prompts.n], tokens, &sampling, err);
	}
	return rc;
}

/* The times of a round, by those of its texts. */
static void note_times(const struct parallel_bench *b, struct parallel_round *r)
{
	const struct parallel_texts *t = &b->texts;
	uint64_t all_begun = 0, one_ended = UINT64_MAX, last = 0;

	for (size_t i = 0; i < t->n; i++) {
		const uint64_t *c = t->text[i].r.figures.c;
		const uint64_t first = t->text[i].submitted_ns + c[OD_C_TTFT_NS], end = first + c[OD_C_DECODE_NS];

		all_begun = first > all_begun ? first : all_begun;
		one_ended = end < one_ended ? end : one_ended;
		last = end > last ? end : last;
		r->ttft_ms[i] = od_seconds(c[OD_C_TTFT_NS]) * 1e3;
		r->tokens += t->text[i].r.n_tokens;
		r->drafted += c[OD_C_DRAFTED];
		r->accepted += c[OD_C_ACCEPTED];
	}
	od_stats_sort(r->ttft_ms, t->n);
	r->steps = t->steps;
	r->step_tokens = parallel_texts_joint_tokens(t);
	r->experts = t->experts;
	r->wall_ns = last - t->text[0].submitted_ns - (uint64_t)r->membw.ns;
	if (one_ended > all_begun)
		r->ns = one_ended - all_begun - (uint64_t)r->membw.ns;
}

/* A text has the figures of each step that it took part in; the round's are what main counted until its last text
 * ended. */
static void note_counters(struct parallel_bench *b, struct parallel_round *r)
{
	uint64_t now[OD_N_COUNTERS] = { 0 };

	for (size_t i = 0; i < b->texts.n; i++) {
		const struct odm_figures *f = &b->texts.text[i].r.figures;

		if (f->n_nodes > 0)
			for (size_t k = 0; k < OD_N_COUNTERS; k++) /* node 0: main */
				now[k] = f->node[0].c[k] > now[k] ? f->node[0].c[k] : now[k];
	}
	od_counters_since(r->c, now, b->before);
	memcpy(b->before, now, sizeof(now));
}

/* No text depends on how many others there are. */
static void compare_texts(struct parallel_bench *b)
{
	const size_t tokens = b->opt->tokens;

	for (size_t i = 0; i < b->texts.n; i++) {
		const struct odm_result *r = &b->texts.text[i].r;

		if (b->written[i])
			b->other += r->n_tokens != tokens ||
				    memcmp(b->first + i * tokens, r->tokens, tokens * sizeof(*b->first)) != 0;
		else if (r->n_tokens == tokens)
			memcpy(b->first + i * tokens, r->tokens, tokens * sizeof(*b->first));
		b->written[i] = true;
	}
}

/* r: zeroed but for the room of ttft_ms. */
static int write_texts(struct parallel_bench *b, struct parallel_round *r, size_t run, size_t n, uint64_t tokens,
		       struct od_err *err)
{
	struct parallel_texts *t = &b->texts;
	int rc = submit(b, run, n, tokens, err);

	b->read_ns = 0;
	while (rc == OD_OK && parallel_texts_done(t) < n) {
		const bool joint = parallel_texts_work(t);

		if (joint && parallel_texts_done(t) == 0)
			read_memory(b, r); /* the next step has a row of every text, too */
	}
	if (rc == OD_OK)
		rc = parallel_texts_take(t, err);
	if (rc == OD_OK) {
		note_times(b, r);
		note_counters(b, r);
	}
	return rc == OD_OK ? rc : od_fail_within(err, "%zu texts at once", n);
}

static int measure(struct parallel_bench *b, size_t run, size_t k, struct od_err *err)
{
	struct parallel_round *r = &b->round[run * b->n_numbers + k];
	const size_t n = b->number[k];
	int rc = write_texts(b, r, run, n, b->opt->tokens, err);

	if (rc == OD_OK) {
		compare_texts(b);
		b->setting = b->texts.text[0].r.figures;
		b->setting.node = NULL; /* freed below */
		b->setting.n_nodes = 0;
	}
	parallel_texts_clear(&b->texts);
	if (rc == OD_OK && (r->steps == 0 || r->ns == 0))
		rc = od_fail(err, OD_ERR_ARG,
			     "%zu texts were never in one decode step: the first one ended too early, or "
			     "memory has no room for all; raise --tokens or lower --ctx-size",
			     n);
	return rc;
}

/* Fault pages in, fill connections, wake the cores. */
static int warm_up(struct parallel_bench *b, struct od_err *err)
{
	const uint64_t tokens = b->opt->tokens < DECODE_WARM_UP_TOKENS ? b->opt->tokens : DECODE_WARM_UP_TOKENS;
	int rc = OD_OK;

	for (size_t k = 0; rc == OD_OK && k < b->n_numbers; k++) {
		struct parallel_round ignored = { .ttft_ms = b->x };

		rc = write_texts(b, &ignored, 0, b->number[k], tokens, err);
		parallel_texts_clear(&b->texts);
	}
	return rc;
}

static int measure_all(struct parallel_bench *b, struct od_err *err)
{
	const bool progress = !b->opt->json && isatty(STDERR_FILENO);
	int rc = warm_up(b, err);

	for (size_t run = 0; rc == OD_OK && run < b->opt->runs; run++) {
		memset(b->written, 0, b->most * sizeof(*b->written));
		for (size_t k = 0; rc == OD_OK && k < b->n_numbers; k++) {
			if (progress)
				fprintf(stderr, "\rround %zu of %llu, %4llu at once", run + 1,
					(unsigned long long)b->opt->runs, (unsigned long long)b->number[k]);
			rc = measure(b, run, k, err);
		}
	}
	if (progress)
		fputc('\n', stderr);
	return rc;
}

/* ---- Reporting ---- */

typedef double figure_fn(const struct parallel_bench *b, size_t run, size_t k);

static const struct parallel_round *round_of(const struct parallel_bench *b, size_t run, size_t k)
{
	return &b->round[run * b->n_numbers + k];
}

static double per_s(const struct parallel_bench *b, size_t run, size_t k)
{
	const struct parallel_round *r = round_of(b, run, k);

	return (double)r->step_tokens / od_seconds(r->ns);
}

static double wall_per_s(const struct parallel_bench *b, size_t run, size_t k)
{
	const struct parallel_round *r = round_of(b, run, k);

	return (double)r->tokens / od_seconds(r->wall_ns);
}

static double ratio_to_least(const struct parallel_bench *b, size_t run, size_t k)
{
	return per_s(b, run, k) / per_s(b, run, b->least);
}

/* Tokens of each text in a step. */
static double tokens_of_step(const struct parallel_bench *b, size_t run, size_t k)
{
	const struct parallel_round *r = round_of(b, run, k);

	return (double)r->step_tokens / (double)(r->steps * b->number[k]);
}

/* Tokens that decode steps gave: the first one of a text is its prompt's. */
static double decoded(const struct parallel_bench *b, size_t run, size_t k)
{
	return (double)(round_of(b, run, k)->tokens - b->number[k]);
}

static double drafted_per_token(const struct parallel_bench *b, size_t run, size_t k)
{
	return (double)round_of(b, run, k)->drafted / decoded(b, run, k);
}

static double accepted_per_token(const struct parallel_bench *b, size_t run, size_t k)
{
	return (double)round_of(b, run, k)->accepted / decoded(b, run, k);
}

static double loads_per_token(const struct parallel_bench *b, size_t run, size_t k)
{
	return (double)round_of(b, run, k)->c[OD_C_DECODE_LOADS] / decoded(b, run, k);
}

static double experts_of_layer(const struct parallel_bench *b, size_t run, size_t k)
{
	const struct parallel_round *r = round_of(b, run, k);

	return (double)r->experts / (double)r->steps / od_pack_config(odm_engine_pack(b->engine))->n_moe;
}

static double membw_gbps(const struct parallel_bench *b, size_t run, size_t k)
{
	return od_membw_gbps(&round_of(b, run, k)->membw);
}

static double step_bytes(const struct parallel_bench *b, size_t run, size_t k)
{
	const struct parallel_round *r = round_of(b, run, k);

	return (double)b->dense_bytes + (double)r->experts / (double)r->steps * (double)b->expert_bytes;
}

static double floor_s(const struct parallel_bench *b, size_t run, size_t k)
{
	const struct parallel_round *r = round_of(b, run, k);

	return step_bytes(b, run, k) * (double)r->steps / membw_gbps(b, run, k) * 1e-9;
}

static double floor_share(const struct parallel_bench *b, size_t run, size_t k)
{
	return floor_s(b, run, k) / od_seconds(round_of(b, run, k)->ns);
}

static struct od_stats stats_of(const struct parallel_bench *b, size_t k, figure_fn *of)
{
	struct od_stats s;
	size_t n = 0;

	for (size_t run = 0; run < b->opt->runs; run++) {
		const double v = of(b, run, k);

		if (!isnan(v))
			b->x[n++] = v;
	}
	od_stats_of(b->x, n, &s);
	return s;
}

/* Statistics over all texts of all rounds. */
static struct od_stats stats_of_ttft(const struct parallel_bench *b, size_t k)
{
	struct od_stats s;
	size_t n = 0;

	for (size_t run = 0; run < b->opt->runs; run++)
		for (size_t i = 0; i < b->number[k]; i++)
			b->x[n++] = round_of(b, run, k)->ttft_ms[i];
	od_stats_of(b->x, n, &s);
	return s;
}

static void report_setting(const struct parallel_bench *b, struct od_report *r)
{
	const struct od_pack *p = odm_engine_pack(b->engine);

	decode_report_engine(r, b->opt, b->engine, "tokens of a text");
	if (b->membw == NULL) {
		decode_report_cluster(r, b->opt, &b->setting);
		/* warm-up included */
		od_report_fact(r, "worker_rows_in_all", NULL, OD_INT(b->before[OD_C_WORKER_ROWS]), 0, NULL);
	}
	od_report_fact(r, "texts_with_other_tokens", "texts that others changed", OD_INT(b->other), 0, NULL);
	if (b->membw == NULL)
		return;
	od_report_fact(r, "resident_form", "experts in memory", OD_TEXT(od_form_names[odm_engine_form(b->engine)]), 0,
		       NULL);
	od_report_fact(r, "dense_bytes", "dense weights", OD_BYTES(b->dense_bytes), 0, NULL);
	od_report_fact(r, "expert_bytes", "an expert", OD_BYTES(b->expert_bytes), 0, NULL);
	od_report_fact(r, "experts", "experts of a layer", OD_INT(od_pack_config(p)->n_experts), 0, NULL);
}

static void report_numbers(const struct parallel_bench *b, struct od_report *r)
{
	static const struct od_column columns[] = {
		{ "parallel", "texts", 0 },
		{ "tok_per_s", "tok/s", 1 },
		{ "ratio", "ratio", 3 },
		{ "ratio_low", "from", 3 },
		{ "ratio_high", "to", 3 },
		{ "wall_tok_per_s", "in all, tok/s", 1 },
		{ "ttft_ms", "first token, ms", 1 },
		{ "ttft_most_ms", "at most", 1 },
		{ "tokens_per_step", "tokens a step", 2 },
		{ "drafted_per_token", "drafted a token", 2 },
		{ "accepted_per_token", "accepted", 2 },
		{ "loads_per_token", "loads a token", 1 },
		{ "experts_per_layer", "experts a layer", 2 },
		{ "membw_gbps", "memory, GB/s", 1 },
		{ "share", "floor / time", 3 },
		{ "share_low", "from", 3 },
		{ "share_high", "to", 3 },
	};
	const bool resident = b->membw != NULL;
	struct od_table *t = od_report_table(r, "by_number",
					     "Medians of the rounds; ratio: to the fewest texts; from, to: "
					     "95 % interval of a median (below 6 rounds: least, most)",
					     columns, sizeof(columns) / sizeof(columns[0]) - (resident ? 0 : 5));

	for (size_t k = 0; k < b->n_numbers; k++) {
		const struct od_stats ratio = stats_of(b, k, ratio_to_least), ttft = stats_of_ttft(b, k);
		const struct od_stats share = stats_of(b, k, floor_share);

		od_table_row(t, (struct od_cell[]){
					OD_INT(b->number[k]),
					OD_REAL(stats_of(b, k, per_s).median),
					OD_REAL(ratio.median),
					OD_REAL(ratio.ci_low),
					OD_REAL(ratio.ci_high),
					OD_REAL(stats_of(b, k, wall_per_s).median),
					OD_REAL(ttft.median),
					OD_REAL(ttft.max),
					OD_REAL(stats_of(b, k, tokens_of_step).median),
					OD_REAL(stats_of(b, k, drafted_per_token).median),
					OD_REAL(stats_of(b, k, accepted_per_token).median),
					resident ? OD_NONE : OD_REAL(stats_of(b, k, loads_per_token).median),
					OD_REAL(stats_of(b, k, experts_of_layer).median),
					OD_REAL(stats_of(b, k, membw_gbps).median),
					OD_REAL(share.median),
					OD_REAL(share.ci_low),
					OD_REAL(share.ci_high),
				});
	}
}

static void report_rounds(const struct parallel_bench *b, struct od_report *r)
{
	static const struct od_column columns[] = {
		{ "round", "", 0 },	 { "parallel", "", 0 },
		{ "steps", "", 0 },	 { "step_tokens", "", 0 },
		{ "steps_s", "", 0 },	 { "tok_per_s", "", 0 },
		{ "ratio", "", 0 },	 { "tokens", "", 0 },
		{ "wall_s", "", 0 },	 { "wall_tok_per_s", "", 0 },
		{ "ttft_ms", "", 0 },	 { "ttft_most_ms", "", 0 },
		{ "experts", "", 0 },	 { "experts_per_layer", "", 0 },
		{ "step_bytes", "", 0 }, { "membw_gbps", "", 0 },
		{ "floor_s", "", 0 },	 { "share", "", 0 },
	};
	const size_t n_columns = sizeof(columns) / sizeof(columns[0]) - (b->membw != NULL ? 0 : 6);
	struct od_table *t = od_report_detail(r, "by_round", columns, n_columns);

	for (size_t run = 0; run < b->opt->runs; run++)
		for (size_t k = 0; k < b->n_numbers; k++) {
			const struct parallel_round *u = round_of(b, run, k);

			od_table_row(t, (struct od_cell[]){
						OD_INT(run),
						OD_INT(b->number[k]),
						OD_INT(u->steps),
						OD_INT(u->step_tokens),
						OD_REAL(od_seconds(u->ns)),
						OD_REAL(per_s(b, run, k)),
						OD_REAL(ratio_to_least(b, run, k)),
						OD_INT(u->tokens),
						OD_REAL(od_seconds(u->wall_ns)),
						OD_REAL(wall_per_s(b, run, k)),
						OD_REAL(od_stats_percentile(u->ttft_ms, b->number[k], 0.5)),
						OD_REAL(u->ttft_ms[b->number[k] - 1]),
						OD_INT(u->experts),
						OD_REAL(experts_of_layer(b, run, k)),
						OD_REAL(step_bytes(b, run, k)),
						OD_REAL(membw_gbps(b, run, k)),
						OD_REAL(floor_s(b, run, k)),
						OD_REAL(floor_share(b, run, k)),
					});
		}
}

static void report_cluster_rounds(const struct parallel_bench *b, struct od_report *r)
{
	static const struct od_column columns[] = {
		{ "round", "", 0 },	     { "parallel", "", 0 },	   { "tokens", "", 0 },
		{ "drafted_tokens", "", 0 }, { "accepted_tokens", "", 0 }, { "decode_layers", "", 0 },
		{ "experts_s", "", 0 },	     { "expert_uses", "", 0 },	   { "worker_rows", "", 0 },
		{ "stalls", "", 0 },	     { "stall_s", "", 0 },	   { "loads", "", 0 },
		{ "decode_loads", "", 0 },   { "loaded_bytes", "", 0 },	   { "load_s", "", 0 },
	};
	struct od_table *t = od_report_detail(r, "cluster_by_round", columns, sizeof(columns) / sizeof(columns[0]));

	for (size_t run = 0; run < b->opt->runs; run++)
		for (size_t k = 0; k < b->n_numbers; k++) {
			const struct parallel_round *u = round_of(b, run, k);
			const uint64_t *c = u->c;

			od_table_row(t, (struct od_cell[]){
						OD_INT(run),
						OD_INT(b->number[k]),
						OD_INT(u->tokens),
						OD_INT(u->drafted),
						OD_INT(u->accepted),
						OD_INT(c[OD_C_DECODE_LAYERS]),
						OD_REAL(od_seconds(c[OD_C_EXPERTS_NS])),
						OD_INT(c[OD_C_EXPERT_USES]),
						OD_INT(c[OD_C_WORKER_ROWS]),
						OD_INT(c[OD_C_STALLS]),
						OD_REAL(od_seconds(c[OD_C_STALL_NS])),
						OD_INT(c[OD_C_LOADS]),
						OD_INT(c[OD_C_DECODE_LOADS]),
						OD_INT(c[OD_C_LOADED_BYTES]),
						OD_REAL(od_seconds(c[OD_C_LOAD_NS])),
					});
		}
}

static int report(const struct parallel_bench *b, struct od_err *err)
{
	struct od_report *r;
	int rc = od_report_new(&r, "Decoding several texts at once", err);

	if (rc != OD_OK)
		return rc;
	report_setting(b, r);
	report_numbers(b, r);
	report_rounds(b, r);
	if (b->membw == NULL)
		report_cluster_rounds(b, r);
	rc = od_report_print(r, stdout, b->opt->json, err);
	od_report_free(r);
	return rc;
}

/* ---- The whole ---- */

static int open_engine(struct parallel_bench *b, struct od_err *err)
{
	struct odm_main_opts eo = b->opt->engine.opts;
	const struct od_pack *p;
	int rc;

	eo.engine.parallel = b->most;
	rc = odm_main_node_open(&b->node, &eo, err);
	b->engine = odm_main_node_engine(b->node);
	if (rc != OD_OK)
		return rc;
	p = odm_engine_pack(b->engine);
	b->dense_bytes = od_dense_token_bytes(p);
	b->expert_bytes = decode_expert_bytes(p, odm_engine_form(b->engine));
	if (eo.mode == ODM_RESIDENT)
		rc = decode_open_membw(&b->membw, b->opt, b->engine, err);
	return rc == OD_OK ? parallel_texts_init(&b->texts, b->engine, b->most, eo.mode == ODM_RESIDENT, err) : rc;
}

static int allocate(struct parallel_bench *b, struct od_err *err)
{
	const size_t n = b->opt->runs * b->n_numbers;

	b->round = calloc(n, sizeof(*b->round));
	b->ttft_ms = calloc(n * b->most, sizeof(*b->ttft_ms));
	b->x = calloc(b->opt->runs * b->most, sizeof(*b->x));
	b->first = calloc(b->most * b->opt->tokens, sizeof(*b->first));
	b->written = calloc(b->most, sizeof(*b->written));
	if (b->round == NULL || b->ttft_ms == NULL || b->x == NULL || b->first == NULL || b->written == NULL)
		return od_fail(err, OD_ERR_NOMEM, "figures of %llu rounds", (unsigned long long)b->opt->runs);
	for (size_t i = 0; i < n; i++)
		b->round[i].ttft_ms = b->ttft_ms + i * b->most;
	return OD_OK;
}

static int run(struct parallel_bench *b, struct od_err *err)
{
	int rc = parse_numbers(b, err);
	const size_t n_prompts = b->opt->runs * b->most;

	if (rc == OD_OK)
		rc = decode_load_prompts(&b->prompts, b->opt, n_prompts, b->most, err);
	if (rc == OD_OK)
		rc = allocate(b, err);
	if (rc == OD_OK)
		rc = open_engine(b, err);
	if (rc == OD_OK)
		rc = decode_make_prompts(&b->prompts, b->opt, n_prompts, b->engine, err);
	if (rc == OD_OK)
		rc = measure_all(b, err);
	return rc == OD_OK ? report(b, err) : rc;
}

int parallel_bench(const struct decode_options *o, struct od_err *err)
{
	struct parallel_bench b = { .opt = o };
	const int rc = run(&b, err);

	parallel_texts_fini(&b.texts);
	od_membw_close(b.membw);
	odm_main_node_close(b.node);
	od_prompts_fini(&b.prompts);
	free(b.round);
	free(b.ttft_ms);
	free(b.x);
	free(b.first);
	free(b.written);
	return rc;
}

/* od-bench texts: N clients of one machine whose memory is shared by experts and the KV cache of their texts.
 *
 * Each client has one text in the engine at a time, waiting or running, and submits the next when it ends. The first
 * texts, and the first of any number of clients, are cancelled after numbers of tokens that are spread evenly, so that
 * later the texts that run are in all parts of their time. Measured is from the
 * moment the first texts have all ended until as many others have as was asked for. With --grow all clients begin at
 * once and have one text each, so that its KV cache grows from nothing, and the time until the last one ends is
 * measured, in parts. A budget is divided between experts and KV cache in the ways that --splits lists (FluxMoE, arXiv
 * 2604.02715, sections 4.3 and 6). */
#include "main-node/engine/engine_report.h"
#include "main-node/node/main_node.h"

#include "common/base/args.h"
#include "common/base/clock.h"
#include "common/pack/pack.h"
#include "common/residency/residency.h"
#include "deploy/plan/disk_rate.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_list.h"
#include "tests/bench/live/decode_common.h"
#include "tests/bench/report/bench_stats.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_TOKENS 256
#define DEFAULT_RUNS 3
#define DEFAULT_PROMPT_TOKENS 16
#define DEFAULT_BUDGETS "110"
#define DEFAULT_TEXTS "1,4,16"
#define DEFAULT_SPLITS "moving"
#define MAX_TOKENS 1000000
#define GROW_PARTS 10

/* A way to divide a budget. */
struct split {
	int form; /* enum od_form; OD_FORM_AUTO: moving, as od-main does */
	unsigned experts_percent; /* share of the budget; 0: all experts, the rest is for texts */
};

/* With --grow, a part of the time that all texts take. */
struct texts_part {
	double tok_per_s, gap_ms[2]; /* between two tokens of a text: median, most */
};

/* One budget, number of texts and split in one round. */
struct texts_run {
	bool there; /* false: the budget is too small for it */
	double tok_per_s, running, read_bytes; /* running: texts in a decode step, mean; read_bytes: a token */
	double gap_ms[3]; /* between two tokens of a text: median, 99th percentile, most */
	double ttft_ms; /* median */
	uint64_t expert_bytes, state_bytes;
	struct texts_part part[GROW_PARTS];
};

struct client {
	struct texts_bench *b;
	struct odm_sequence *sequence; /* NULL: none */
	uint64_t n; /* texts that it has submitted */
	uint64_t left; /* tokens until the text is cancelled; 0: it is not */
	uint64_t last_ns; /* when its text's last token came; 0: none has */
};

struct texts_bench {
	struct decode_options opt;
	const char *budgets, *numbers, *split_names;
	double rounds; /* texts of each client that are measured */
	bool grow;
	uint64_t budget[OD_LIST_MAX], number[OD_LIST_MAX], most; /* percent; texts */
	size_t n_budgets, n_numbers, n_splits;
	struct split split[OD_LIST_MAX];
	const char *split_name[OD_LIST_MAX];
	char *split_room;
	struct od_prompts prompts;
	struct texts_run *run; /* [runs][n_budgets][n_numbers][n_splits] */
	double *disk_gbps, *x; /* [runs] */
	uint64_t all_bytes[OD_N_FORMS]; /* all experts in memory; 0: the pack has no such form */
	uint64_t page_bytes, stored_bytes;
	char *pack;
	/* The run under way. */
	struct odm_engine *engine;
	struct client *client; /* [most] */
	bool measuring;
	uint64_t tokens, begin_ns;
	double *gap_ms, *ttft_ms; /* [n_gaps], [n_ttfts] */
	double *at_ms; /* [n_ats]: of each gap's end, from begin_ns */
	size_t n_gaps, gaps_room, n_ttfts, ttfts_room, n_ats, ats_room;
	bool failed; /* no memory for these */
};

static const char *const without[] = { "workers",    "local",	    "resident",	  "memory",	   "mixed",
				       "group-size", "align-token", "align-kv",	  "key",	   "peers",
				       "insecure",   "worker-arg",  "shadow-arg", "resident-form", NULL };

/* ---- The command line ---- */

static int parse(struct texts_bench *b, int argc, char **argv, struct od_err *err)
{
	struct decode_options *o = &b->opt;
	const struct od_arg own[] = {
		{ .kind = OD_ARG_TITLE, .help = "Measure" },
		{ "budgets", OD_ARG_STRING, &b->budgets, "LIST",
		  "memory of experts and texts, percent of what all experts take as BF16; default " DEFAULT_BUDGETS, 0,
		  0, NULL },
		{ "texts", OD_ARG_STRING, &b->numbers, "LIST", "clients with a text each; default " DEFAULT_TEXTS, 0, 0,
		  NULL },
		{ "splits", OD_ARG_STRING, &b->split_names, "LIST",
		  "bf16, planes: all experts in this form, the rest is for texts; bf16:N, planes:N: N percent of the budget "
		  "for experts; moving: as od-main does, which lends experts what texts do not use; default " DEFAULT_SPLITS,
		  0, 0, NULL },
		{ "prompt-tokens", OD_ARG_UINT, &o->prompt_tokens, "N", "tokens of a prompt; default 16", 1, MAX_TOKENS,
		  NULL },
		{ "tokens", OD_ARG_UINT, &o->tokens, "N", "tokens of a text; default 256", 2, MAX_TOKENS, NULL },
		{ "each", OD_ARG_REAL, &b->rounds, "N", "texts of a client that are measured, mean; default 1", 0.01,
		  1000, NULL },
		{ "grow", OD_ARG_FLAG, &b->grow, NULL,
		  "one text for each client, all begun at once, and how their speed changes as they grow", 0, 0, NULL },
		{ "runs", OD_ARG_UINT, &o->runs, "N", "rounds of all; default 3", 1, 1e5, NULL },
		{ "seed", OD_ARG_UINT, &o->seed, "N", "seed of prompts and of sampling; default 1", 0, 0, NULL },
		{ "read-mode", OD_ARG_CHOICE, &o->engine.opts.engine.read_mode, "NAME",
		  "auto, buffered, or direct: past the page cache, which else holds what does not fit", 0, 0,
		  od_read_mode_names },
		{ "json", OD_ARG_FLAG, &o->json, NULL, "print JSON, with every run", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "print this text", 0, 0, NULL },
	};

	odm_engine_args_defaults(&o->engine);
	return odm_engine_args_parse(
		&o->engine, without, own, sizeof(own) / sizeof(own[0]), argc, argv, &o->help,
		"Usage: od-bench texts --pack PACK [OPTIONS]\n\n"
		"Measures many texts on one machine, by how a budget is divided between experts and KV cache.\n"
		"Example: od-bench texts --pack PACK --budgets 60,110 --texts 4,16 --splits bf16,planes,planes:50\n",
		err);
}

static int parse_split(struct split *s, const char *name, struct od_err *err)
{
	const char *colon = strchr(name, ':');
	const size_t len = colon != NULL ? (size_t)(colon - name) : strlen(name);

	if (strcmp(name, "moving") == 0) {
		*s = (struct split){ .form = OD_FORM_AUTO };
		return OD_OK;
	}
	for (int i = 0; i < OD_N_FORMS; i++) {
		char *end = NULL;

		if (strlen(od_form_names[i]) != len || strncmp(od_form_names[i], name, len) != 0)
			continue;
		*s = (struct split){ .form = i };
		if (colon == NULL)
			return OD_OK;
		s->experts_percent = (unsigned)strtoul(colon + 1, &end, 10);
		if (end != colon + 1 && *end == '\0' && s->experts_percent >= 1 && s->experts_percent <= 99)
			return OD_OK;
	}
	return od_fail(err, OD_ERR_ARG,
		       "--splits: expected moving, bf16, planes, bf16:N or planes:N (N from 1 to 99), found \"%s\"",
		       name);
}

static int parse_splits(struct texts_bench *b, struct od_err *err)
{
	char *save = NULL;
	int rc = OD_OK;

	b->split_room = strdup(b->split_names);
	if (b->split_room == NULL)
		return od_fail(err, OD_ERR_NOMEM, "--splits");
	for (char *name = strtok_r(b->split_room, ",", &save); rc == OD_OK && name != NULL;
	     name = strtok_r(NULL, ",", &save)) {
		if (b->n_splits == OD_LIST_MAX)
			return od_fail(err, OD_ERR_ARG, "--splits: expected at most %u", OD_LIST_MAX);
		b->split_name[b->n_splits] = name;
		rc = parse_split(&b->split[b->n_splits++], name, err);
	}
	return rc == OD_OK && b->n_splits == 0 ? od_fail(err, OD_ERR_ARG, "--splits: expected at least one") : rc;
}

static int check(struct texts_bench *b, struct od_err *err)
{
	struct decode_options *o = &b->opt;
	int rc = odm_engine_args_finish(&o->engine, err);

	if (rc == OD_OK)
		rc = od_list_numbers("budgets", b->budgets, 1, 1000, b->budget, &b->n_budgets, err);
	if (rc == OD_OK)
		rc = od_list_numbers("texts", b->numbers, 1, ODM_MAX_PARALLEL, b->number, &b->n_numbers, err);
	if (rc == OD_OK)
		rc = parse_splits(b, err);
	if (rc == OD_OK && b->grow && b->rounds != 1)
		rc = od_fail(err, OD_ERR_ARG, "--grow: each client has one text; expected no --each");
	if (rc != OD_OK)
		return rc;
	for (size_t i = 0; i < b->n_numbers; i++)
		b->most = b->number[i] > b->most ? b->number[i] : b->most;
	if (o->prompt_tokens == 0)
		o->prompt_tokens = DEFAULT_PROMPT_TOKENS;
	o->engine.opts.engine.quiet = true;
	o->engine.opts.engine.prefix_cache_mib = 0;
	o->engine.opts.engine.ctx_tokens = o->prompt_tokens + o->tokens;
	o->engine.opts.mode = ODM_TIERED;
	return OD_OK;
}

/* ---- The clients ---- */

static void add(struct texts_bench *b, double **x, size_t *n, size_t *room, double v)
{
	if (*n == *room) {
		const size_t more = 2 * *room + 1024;
		double *y = realloc(*x, more * sizeof(*y));

		b->failed = b->failed || y == NULL;
		if (y == NULL)
			return;
		*x = y;
		*room = more;
	}
	(*x)[(*n)++] = v;
}

static void on_token(void *arg, const struct odm_token *t)
{
	struct client *c = arg;
	struct texts_bench *b = c->b;
	const uint64_t now_ns = od_now_ns();

	(void)t;
	if (c->left > 0 && --c->left == 0)
		odm_sequence_cancel(c->sequence);
	if (b->measuring) {
		b->tokens++;
		if (c->last_ns > 0) {
			add(b, &b->gap_ms, &b->n_gaps, &b->gaps_room, (double)(now_ns - c->last_ns) / OD_NS_PER_MS);
			add(b, &b->at_ms, &b->n_ats, &b->ats_room, (double)(now_ns - b->begin_ns) / OD_NS_PER_MS);
		}
	}
	c->last_ns = now_ns;
}

/* In (0, 1], evenly spread for any number of clients: multiples of the golden ratio. */
static double part_of_first(size_t i)
{
	const double x = 0.6180339887498949 * (double)(i + 1);

	return x - floor(x);
}

static int submit(struct client *c, size_t i, size_t n, struct od_err *err)
{
	struct texts_bench *b = c->b;
	const struct od_prompt *p = &b->prompts.prompt[(i + c->n * n) % b->prompts.n];
	struct odm_request req = {
		.prompt = p->ids,
		.n_prompt = p->n_ids,
		.max_tokens = b->opt.tokens,
		.ignore_eos = true,
		.observer = { .arg = c, .token = on_token },
	};

	od_sampler_defaults(&req.sampling);
	req.sampling.temperature = b->opt.temperature;
	req.sampling.seed = b->opt.seed + i + c->n * n;
	/* The first text ends earlier, but allows as many tokens as the others, so that no shorter ones are
	 * expected. */
	c->left = c->n > 0 || b->grow || n == 1 ? 0 : (uint64_t)ceil((double)b->opt.tokens * part_of_first(i));
	c->n++;
	c->last_ns = 0;
	return odm_engine_submit(b->engine, &req, &c->sequence, err);
}

/* Texts of the n clients that have ended are taken, and the next ones submitted. *ended: their number is added. */
static int turn(struct texts_bench *b, size_t n, uint64_t *ended, struct od_err *err)
{
	int rc = OD_OK;

	odm_engine_work(b->engine);
	for (size_t i = 0; rc == OD_OK && i < n; i++) {
		struct client *c = &b->client[i];
		struct odm_result r;

		if (c->sequence == NULL || !odm_sequence_done(c->sequence))
			continue;
		rc = odm_sequence_take(c->sequence, &r, err);
		if (rc == OD_ERR_CANCELLED)
			rc = OD_OK;
		c->sequence = NULL;
		if (b->measuring)
			add(b, &b->ttft_ms, &b->n_ttfts, &b->ttfts_room,
			    (double)r.figures.c[OD_C_TTFT_NS] / OD_NS_PER_MS);
		odm_result_fini(&r);
		++*ended;
		if (rc == OD_OK && !b->grow)
			rc = submit(c, i, n, err);
	}
	return rc;
}

static void cancel_all(struct texts_bench *b, size_t n)
{
	struct od_err ignored;

	for (size_t i = 0; i < n; i++)
		if (b->client[i].sequence != NULL)
			odm_sequence_cancel(b->client[i].sequence);
	while (odm_engine_work(b->engine))
		;
	for (size_t i = 0; i < n; i++) {
		struct odm_result r = { 0 };

		if (b->client[i].sequence == NULL)
			continue;
		if (odm_sequence_take(b->client[i].sequence, &r, &ignored) != OD_OK) {
			/* it was cancelled */
		}
		odm_result_fini(&r);
		b->client[i].sequence = NULL;
	}
}

/* Before gaps are sorted. */
static void note_parts(struct texts_bench *b, struct texts_run *u, double s)
{
	double *gaps = malloc(b->n_gaps * sizeof(*gaps));

	b->failed = b->failed || gaps == NULL;
	for (size_t part = 0; gaps != NULL && part < GROW_PARTS; part++) {
		const double from = 1e3 * s * (double)part / GROW_PARTS, to = 1e3 * s * (double)(part + 1) / GROW_PARTS;
		size_t n = 0;

		for (size_t i = 0; i < b->n_gaps; i++)
			if (b->at_ms[i] >= from && b->at_ms[i] < to)
				gaps[n++] = b->gap_ms[i];
		od_stats_sort(gaps, n);
		u->part[part] =
			(struct texts_part){ (double)n * GROW_PARTS / s,
					     { od_stats_percentile(gaps, n, 0.5), od_stats_percentile(gaps, n, 1) } };
	}
	free(gaps);
}

static void note(struct texts_bench *b, struct texts_run *u, double s, const struct odm_report *before,
		 const struct odm_report *after)
{
	uint64_t c[OD_N_COUNTERS], steps = 0;

	od_counters_since(c, after->c, before->c);
	for (int i = 0; i < ODM_BATCH_BUCKETS; i++)
		steps += after->batch[i] - before->batch[i];
	if (b->grow)
		note_parts(b, u, s);
	od_stats_sort(b->gap_ms, b->n_gaps);
	od_stats_sort(b->ttft_ms, b->n_ttfts);
	u->there = true;
	u->tok_per_s = (double)b->tokens / s;
	u->running = (double)(after->decode_texts - before->decode_texts) / (double)steps;
	u->read_bytes = (double)c[OD_C_LOADED_BYTES] / (double)b->tokens;
	u->gap_ms[0] = od_stats_percentile(b->gap_ms, b->n_gaps, 0.5);
	u->gap_ms[1] = od_stats_percentile(b->gap_ms, b->n_gaps, 0.99);
	u->gap_ms[2] = od_stats_percentile(b->gap_ms, b->n_gaps, 1);
	u->ttft_ms = od_stats_percentile(b->ttft_ms, b->n_ttfts, 0.5);
}

static void report_now(struct texts_bench *b, struct odm_report *r)
{
	odm_engine_report_make(b->engine, true); /* the last one may be half a second old */
	odm_engine_get_report(b->engine, r);
}

static int run_clients(struct texts_bench *b, size_t n, struct texts_run *u, struct od_err *err)
{
	const uint64_t before_it = b->grow ? 0 : n, measured = b->grow ? n : (uint64_t)ceil((double)n * b->rounds);
	struct odm_report before, after;
	uint64_t ended = 0;
	int rc = OD_OK;

	b->measuring = false;
	b->tokens = b->n_gaps = b->n_ats = b->n_ttfts = 0;
	for (size_t i = 0; rc == OD_OK && i < n; i++) {
		b->client[i] = (struct client){ .b = b };
		rc = submit(&b->client[i], i, n, err);
	}
	while (rc == OD_OK && ended < before_it + measured) {
		if (!b->measuring && ended >= before_it) {
			b->measuring = true;
			report_now(b, &before);
			b->begin_ns = od_now_ns();
		}
		rc = turn(b, n, &ended, err);
	}
	report_now(b, &after);
	if (rc == OD_OK)
		note(b, u, od_seconds(od_now_ns() - b->begin_ns), &before, &after);
	cancel_all(b, n);
	return rc;
}

/* ---- Measuring ---- */

/* The budget's bytes for experts and for texts. False: it is too small. */
static bool divide(const struct texts_bench *b, size_t budget, const struct split *s, struct texts_run *u)
{
	const uint64_t all = b->all_bytes[OD_FORM_PLAIN] * b->budget[budget] / 100;

	if (s->form == OD_FORM_AUTO) {
		u->expert_bytes = u->state_bytes = all;
		return all / b->page_bytes * OD_KV_PAGE >= b->opt.prompt_tokens + b->opt.tokens;
	}
	u->expert_bytes = s->experts_percent > 0 ? all * s->experts_percent / 100 : b->all_bytes[s->form];
	if (b->all_bytes[s->form] == 0 || u->expert_bytes > all)
		return false;
	u->state_bytes = all - u->expert_bytes;
	return u->state_bytes / b->page_bytes * OD_KV_PAGE >= b->opt.prompt_tokens + b->opt.tokens;
}

static int measure_one(struct texts_bench *b, struct texts_run *u, size_t budget, size_t number, size_t split,
		       struct od_err *err)
{
	struct odm_main_opts eo = b->opt.engine.opts;
	struct odm_main_node *node;
	int rc;

	if (!divide(b, budget, &b->split[split], u))
		return OD_OK;
	eo.engine.form = b->split[split].form;
	eo.engine.parallel = b->number[number];
	if (b->split[split].form == OD_FORM_AUTO) {
		eo.engine.shared_bytes = u->expert_bytes;
	} else {
		eo.engine.expert_bytes = u->expert_bytes;
		eo.engine.state_bytes = u->state_bytes;
	}
	rc = odm_main_node_open(&node, &eo, err);
	if (rc == OD_OK) {
		b->engine = odm_main_node_engine(node);
		if (b->prompts.n == 0)
			rc = decode_make_prompts(&b->prompts, &b->opt, b->most, b->engine, err);
	}
	if (rc == OD_OK)
		rc = run_clients(b, b->number[number], u, err);
	odm_main_node_close(node);
	if (rc == OD_OK && b->failed)
		rc = od_fail(err, OD_ERR_NOMEM, "times of tokens");
	return rc == OD_OK ? rc :
			     od_fail_within(err, "budget %llu%%, %llu texts, %s", (unsigned long long)b->budget[budget],
					    (unsigned long long)b->number[number], b->split_name[split]);
}

static struct texts_run *run_of(const struct texts_bench *b, size_t run, size_t budget, size_t number, size_t split)
{
	return &b->run[((run * b->n_budgets + budget) * b->n_numbers + number) * b->n_splits + split];
}

/* Memory of all experts in each form, and of a page. */
static int learn_sizes(struct texts_bench *b, struct od_err *err)
{
	struct odm_main_opts eo = b->opt.engine.opts;
	struct odm_main_node *node;
	int rc;

	eo.engine.expert_bytes = 1;
	rc = odm_main_node_open(&node, &eo, err);
	if (rc == OD_OK) {
		const struct odm_engine *e = odm_main_node_engine(node);
		const struct od_pack *p = odm_engine_pack(e);
		const struct od_config *c = od_pack_config(p);

		b->pack = strdup(od_pack_dir(p));
		b->stored_bytes = od_pack_expert_stored_bytes(p);
		b->page_bytes = od_state_pool_bytes(c, eo.engine.profile, 1, 0) -
				od_state_pool_bytes(c, eo.engine.profile, 0, 0);
		for (int f = 0; rc == OD_OK && f < OD_N_FORMS; f++) {
			struct od_residency_sizes sizes;

			if (od_pack_can_form(p, (enum od_form)f, NULL) != OD_OK)
				continue;
			rc = od_residency_measure(&sizes, p, odm_engine_device(e), (enum od_form)f, err);
			for (uint32_t m = 0; rc == OD_OK && m < c->n_moe; m++)
				b->all_bytes[f] += c->n_experts * sizes.slot_bytes[m];
			od_residency_sizes_fini(&sizes);
		}
		if (rc == OD_OK && b->pack == NULL)
			rc = od_fail(err, OD_ERR_NOMEM, "sizes");
	}
	odm_main_node_close(node);
	return rc;
}

static int measure_all(struct texts_bench *b, struct od_err *err)
{
	const bool progress = !b->opt.json && isatty(STDERR_FILENO);
	int rc = learn_sizes(b, err);

	for (size_t run = 0; rc == OD_OK && run < b->opt.runs; run++) {
		rc = odp_disk_rate(b->pack, &b->disk_gbps[run], err);
		for (size_t i = 0; rc == OD_OK && i < b->n_budgets * b->n_numbers * b->n_splits; i++) {
			const size_t budget = i / b->n_splits / b->n_numbers, number = i / b->n_splits % b->n_numbers,
				     split = i % b->n_splits;

			if (progress)
				fprintf(stderr, "\rround %zu of %llu, %llu%%, %llu texts, %s        ", run + 1,
					(unsigned long long)b->opt.runs, (unsigned long long)b->budget[budget],
					(unsigned long long)b->number[number], b->split_name[split]);
			rc = measure_one(b, run_of(b, run, budget, number, split), budget, number, split, err);
		}
	}
	if (progress)
		fputc('\n', stderr);
	return rc;
}

/* ---- Reporting ---- */

static double median(const struct texts_bench *b, size_t budget, size_t number, size_t split, size_t offset)
{
	struct od_stats s;

	for (size_t run = 0; run < b->opt.runs; run++)
		memcpy(&b->x[run], (const char *)run_of(b, run, budget, number, split) + offset, sizeof(double));
	od_stats_of(b->x, b->opt.runs, &s);
	return s.median;
}

#define MEDIAN(field) median(b, budget, number, split, offsetof(struct texts_run, field))

static void report_row(const struct texts_bench *b, struct od_table *t, size_t budget, size_t number, size_t split)
{
	const struct texts_run *u = run_of(b, 0, budget, number, split);

	if (!u->there)
		return;
	od_table_row(t, (struct od_cell[]){
				OD_INT(b->budget[budget]),
				OD_INT(b->number[number]),
				OD_TEXT(b->split_name[split]),
				OD_BYTES(u->expert_bytes),
				OD_BYTES(u->state_bytes),
				OD_REAL(MEDIAN(tok_per_s)),
				OD_REAL(MEDIAN(running)),
				OD_BYTES(MEDIAN(read_bytes)),
				OD_REAL(MEDIAN(gap_ms[0])),
				OD_REAL(MEDIAN(gap_ms[1])),
				OD_REAL(MEDIAN(gap_ms[2])),
				OD_REAL(MEDIAN(ttft_ms)),
			});
}

/* Parts are shown for the first round alone. */
static void report_parts(const struct texts_bench *b, struct od_report *r)
{
	static const struct od_column columns[] = {
		{ "budget", "budget, %", 0 }, { "texts", "texts", 0 },	   { "split", "split", 0 },
		{ "part", "tenth", 0 },	      { "tok_per_s", "tok/s", 1 }, { "gap_ms_median", "gap, ms", 1 },
		{ "gap_ms_most", "most", 1 },
	};
	struct od_table *t = od_report_table(r, "by_part", "By tenths of the time that all texts take, first round",
					     columns, sizeof(columns) / sizeof(columns[0]));

	for (size_t i = 0; i < b->n_budgets * b->n_numbers * b->n_splits * GROW_PARTS; i++) {
		const size_t row = i / GROW_PARTS, split = row % b->n_splits, number = row / b->n_splits % b->n_numbers,
			     budget = row / b->n_splits / b->n_numbers;
		const struct texts_run *u = run_of(b, 0, budget, number, split);
		const struct texts_part *p = &u->part[i % GROW_PARTS];

		if (u->there)
			od_table_row(t, (struct od_cell[]){ OD_INT(b->budget[budget]), OD_INT(b->number[number]),
							    OD_TEXT(b->split_name[split]), OD_INT(i % GROW_PARTS + 1),
							    OD_REAL(p->tok_per_s), OD_REAL(p->gap_ms[0]),
							    OD_REAL(p->gap_ms[1]) });
	}
}

static int report(const struct texts_bench *b, struct od_err *err)
{
	static const struct od_column columns[] = {
		{ "budget", "budget, %", 0 },	   { "texts", "texts", 0 },
		{ "split", "split", 0 },	   { "expert_bytes", "experts", 0 },
		{ "state_bytes", "KV cache", 0 },  { "tok_per_s", "tok/s", 1 },
		{ "running", "running", 1 },	   { "read_bytes", "read a token", 0 },
		{ "gap_ms_median", "gap, ms", 1 }, { "gap_ms_p99", "99 %", 1 },
		{ "gap_ms_most", "most", 1 },	   { "ttft_ms", "first token, ms", 0 },
	};
	struct od_stats disk;
	struct od_report *r;
	struct od_table *t;
	int rc = od_report_new(&r, "Many texts and their experts in one budget", err);

	if (rc != OD_OK)
		return rc;
	memcpy(b->x, b->disk_gbps, b->opt.runs * sizeof(*b->x));
	od_stats_of(b->x, b->opt.runs, &disk);
	od_report_fact(r, "pack", "pack", OD_TEXT(b->pack), 0, NULL);
	od_report_fact(r, "tokens", "tokens of a text", OD_INT(b->opt.tokens), 0, NULL);
	od_report_fact(r, "prompt_tokens", "of its prompt", OD_INT(b->opt.prompt_tokens), 0, NULL);
	od_report_fact(r, "runs", "rounds", OD_INT(b->opt.runs), 0, NULL);
	od_report_fact(r, "routing", "routing",
		       OD_TEXT(b->opt.engine.routing != NULL ? b->opt.engine.routing : "router"), 0, NULL);
	od_report_fact(r, "plain_bytes", "experts as BF16", OD_BYTES(b->all_bytes[OD_FORM_PLAIN]), 0, NULL);
	od_report_fact(r, "planes_bytes", "experts as planes", OD_BYTES(b->all_bytes[OD_FORM_PLANES]), 0, NULL);
	od_report_fact(r, "text_bytes", "KV cache of a text",
		       OD_BYTES(b->page_bytes * od_state_pages((uint32_t)(b->opt.prompt_tokens + b->opt.tokens))), 0,
		       NULL);
	od_report_fact(r, "disk_gbps", "disk, past the page cache", OD_REAL(disk.median), 2, "GB/s");
	t = od_report_table(r, "by_split", "Medians of the rounds; gap: between two tokens of a text", columns,
			    sizeof(columns) / sizeof(columns[0]));
	for (size_t i = 0; i < b->n_budgets * b->n_numbers * b->n_splits; i++)
		report_row(b, t, i / b->n_splits / b->n_numbers, i / b->n_splits % b->n_numbers, i % b->n_splits);
	if (b->grow)
		report_parts(b, r);
	rc = od_report_print(r, stdout, b->opt.json, err);
	od_report_free(r);
	return rc;
}

/* ---- The whole ---- */

static int run(struct texts_bench *b, struct od_err *err)
{
	int rc;

	b->run = calloc(b->opt.runs * b->n_budgets * b->n_numbers * b->n_splits, sizeof(*b->run));
	b->disk_gbps = calloc(b->opt.runs, sizeof(*b->disk_gbps));
	b->x = calloc(b->opt.runs, sizeof(*b->x));
	b->client = calloc(b->most, sizeof(*b->client));
	if (b->run == NULL || b->disk_gbps == NULL || b->x == NULL || b->client == NULL)
		return od_fail(err, OD_ERR_NOMEM, "figures");
	rc = measure_all(b, err);
	return rc == OD_OK ? report(b, err) : rc;
}

int od_bench_texts(int argc, char **argv, struct od_err *err)
{
	struct texts_bench b = {
		.opt = { .tokens = DEFAULT_TOKENS,
			 .runs = DEFAULT_RUNS,
			 .seed = 1,
			 .baseline = -1,
			 .temperature = 0.8 },
		.budgets = DEFAULT_BUDGETS,
		.numbers = DEFAULT_TEXTS,
		.split_names = DEFAULT_SPLITS,
		.rounds = 1,
	};
	int rc = parse(&b, argc, argv, err);

	if (rc != OD_OK || b.opt.help)
		return rc;
	rc = check(&b, err);
	if (rc == OD_OK)
		rc = run(&b, err);
	od_prompts_fini(&b.prompts);
	free(b.run);
	free(b.disk_gbps);
	free(b.x);
	free(b.client);
	free(b.gap_ms);
	free(b.at_ms);
	free(b.ttft_ms);
	free(b.pack);
	free(b.split_room);
	return rc;
}

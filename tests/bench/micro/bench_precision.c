/* od-bench precision: how fast the shadow's precisions decode, side by side in one process.
 *
 * Every precision has its weights in memory and all take turns, a short run each, so that a ratio compares neighbours
 * in time; medians are over runs. All are given the same tokens, those that the first one chooses, and so do the same
 * work: left to themselves they would soon write other texts. The memory bandwidth is read once in every token,
 * outside its time. */
#include "common/base/clock.h"
#include "common/base/pool.h"
#include "common/compute/device.h"
#include "common/compute/open_device.h"
#include "common/model/resident.h"
#include "common/model/sampler.h"
#include "common/pack/shadow/shadow_load.h"
#include "tests/bench/bench.h"
#include "tests/bench/live/bench_prompts.h"
#include "tests/bench/live/recall_models.h"
#include "tests/bench/micro/bandwidth.h"
#include "tests/bench/report/bench_stats.h"
#include "tests/bench/report/bench_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_TOKENS 32
#define DEFAULT_RUNS 7
#define DEFAULT_PROMPT_TOKENS 16
#define DEFAULT_TEMPERATURE 0.8 /* for random prompts, as in od-bench decode */
#define WARM_UP_TOKENS 4
#define MAX_TOKENS 1e6
#define PREFILL_ROWS 256
#define MAX_VARIANTS (2 * OD_N_PRECISIONS)
#define MAX_STORES (OD_N_PRECISIONS + 1) /* BF16 in both forms */

static const char *const activation_names[] = { "f32", "int8", NULL }; /* index enum od_activations */

struct precision_options {
	const char *pack, *precision, *activations, *forms, *prompts;
	uint64_t prompt_tokens, tokens, runs, threads, seed;
	double temperature; /* negative: not given */
	int dense_precision, cpu, profile;
	bool json, help;
};

struct turn {
	double decode_ns;
	struct od_membw_sum membw;
	size_t n_same; /* tokens that this variant would have chosen too */
};

/* One line of the table: a precision with a kind of activations. */
struct precision_variant {
	struct od_shadow_choice choice;
	char name[OD_SHADOW_CHOICE_CHARS];
	const struct od_shadow_store *store;
	/* The store's matrices again, with this variant's activations. */
	struct od_dense dense;
	struct od_expert *experts;
	struct od_forward *forward;
	struct od_expert_runner *runner;
	uint64_t token_bytes; /* weights that a token reads */
	struct turn *turn; /* [opt.runs] */
};

struct precision_bench {
	struct precision_options opt;
	struct od_pack *pack;
	const struct od_config *config;
	struct od_device *device;
	struct od_state_pool *state;
	struct od_membw *membw;
	struct od_prompts prompts;
	struct od_seq_state *seq;
	struct od_sampler *sampler;
	struct od_shadow_store *store[MAX_STORES]; /* index store_of */
	struct precision_variant variant[MAX_VARIANTS];
	size_t n_variants;
	int32_t *token; /* [opt.tokens] of the current run */
	int32_t *best; /* [opt.tokens]: what the first variant found likeliest */
	float *logits; /* [vocab] of the last step; the forward pass's */
};

/* --- the command line --- */

static const char usage_text[] =
	"Measures the decode speed of each shadow precision: all resident here, in turns, on the same tokens.\n"
	"Example: od-bench precision --pack PACK --precision bf16,int8,nf4 --activations f32,int8";

static int parse(struct precision_options *o, int argc, char **argv, struct od_err *err)
{
	const struct od_arg table[] = {
		{ .kind = OD_ARG_TITLE, .help = "Measure" },
		{ "pack", OD_ARG_STRING, &o->pack, "MODEL",
		  "the model: a pack, a GGUF file, or a name of od-pack list (default: $OD_PACK, else /var/lib/od-moe/pack, else the only model of that list)",
		  0, 0, NULL },
		{ "precision", OD_ARG_STRING, &o->precision, "LIST",
		  "of bf16, int8, fp16, nf4; the first is the baseline; "
		  "default bf16,int8,nf4",
		  0, 0, NULL },
		{ "dense-precision", OD_ARG_CHOICE, &o->dense_precision, "NAME",
		  "attention's weights, not for bf16 (default: as the experts)", 0, 0, od_precision_names },
		{ "activations", OD_ARG_STRING, &o->activations, "LIST",
		  "of f32, int8: activations for int8 and nf4 weights; default f32", 0, 0, NULL },
		{ "resident-form", OD_ARG_STRING, &o->forms, "LIST",
		  "of bf16, planes: form of bf16 experts in memory, as published or as "
		  "stored (compressed); default bf16",
		  0, 0, NULL },
		{ "prompts", OD_ARG_STRING, &o->prompts, "FILE",
		  "a JSON object a line with \"text\" or \"ids\"; runs use them in turn", 0, 0, NULL },
		{ "prompt-tokens", OD_ARG_UINT, &o->prompt_tokens, "N",
		  "without --prompts: random prompts of N tokens; default 16", 1, MAX_TOKENS, NULL },
		{ "tokens", OD_ARG_UINT, &o->tokens, "N", "tokens per run, past the end of text too; default 32", 2,
		  MAX_TOKENS, NULL },
		{ "runs", OD_ARG_UINT, &o->runs, "N", "measured runs; default 7, after a short warm-up", 1, 1e5, NULL },
		{ "temperature", OD_ARG_REAL, &o->temperature, "T",
		  "of the baseline, which chooses the tokens; default: 0.8 with random "
		  "prompts, else 0",
		  0, 1000, NULL },
		{ "seed", OD_ARG_UINT, &o->seed, "N", "seed of random prompts and of sampling; default 1", 0, 0, NULL },
		{ .kind = OD_ARG_TITLE, .help = "Compute" },
		{ "profile", OD_ARG_CHOICE, &o->profile, "f32|bf16",
		  "main's numeric profile, also the shadow's; default f32", 0, 0, od_profile_names },
		{ "threads", OD_ARG_UINT, &o->threads, "N", "compute threads; default: one per CPU", 1, 1024, NULL },
		{ "cpu", OD_ARG_CHOICE, &o->cpu, "NAME", "force a kernel set (default: auto)", 0, 0, od_cpu_names },
		{ "json", OD_ARG_FLAG, &o->json, NULL, "print JSON, with every run", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "print this text", 0, 0, NULL },
	};

	return od_bench_options(table, sizeof(table) / sizeof(table[0]), argc, argv, &o->help, "precision [OPTIONS]",
				usage_text, err);
}

static bool is_quantised(enum od_precision p)
{
	return p != OD_PRECISION_BF16 && p != OD_PRECISION_FP16;
}

static int add_variant(struct precision_bench *b, const struct od_shadow_choice *c, struct od_err *err)
{
	struct precision_variant *v = &b->variant[b->n_variants++];

	v->choice = *c;
	od_shadow_choice_text(c, v->name);
	if (c->form == OD_FORM_PLAIN)
		return OD_OK;
	snprintf(v->name, sizeof(v->name), "%s", od_form_names[c->form]);
	return od_pack_can_form(b->pack, c->form, err);
}

/* Unquantised weights meet rows as they are: one variant, whatever the activations; experts in BF16 one for each
 * form. */
static int plan(struct precision_bench *b, struct od_err *err)
{
	const struct precision_options *o = &b->opt;
	int precision[OD_LIST_MAX], act[OD_LIST_MAX], form[OD_LIST_MAX];
	size_t n_precision, n_act, n_form;
	int rc = od_list_choices("precision", o->precision != NULL ? o->precision : "bf16,int8,nf4", od_precision_names,
				 precision, &n_precision, err);

	if (rc == OD_OK)
		rc = od_list_choices("activations", o->activations != NULL ? o->activations : "f32", activation_names,
				     act, &n_act, err);
	if (rc == OD_OK)
		rc = od_list_choices("resident-form", o->forms != NULL ? o->forms : "bf16", od_form_names, form,
				     &n_form, err);
	if (rc != OD_OK)
		return rc;
	for (size_t i = 0; i < n_precision; i++) {
		struct od_shadow_choice c = { .experts = (enum od_precision)(precision[i] + 1) };

		c.dense = o->dense_precision < 0 || c.experts == OD_PRECISION_BF16 ?
				  c.experts :
				  (enum od_precision)(o->dense_precision + 1);
		for (size_t k = 0; c.experts == OD_PRECISION_BF16 && rc == OD_OK && k < n_form; k++) {
			c.form = (enum od_form)form[k];
			rc = add_variant(b, &c, err);
		}
		for (size_t k = 0; c.experts != OD_PRECISION_BF16 && rc == OD_OK && k < n_act; k++) {
			c.act = (enum od_activations)act[k];
			if (!is_quantised(c.experts) && !is_quantised(c.dense)) {
				if (k > 0)
					break;
				c.act = OD_ACT_F32;
			}
			rc = add_variant(b, &c, err);
		}
	}
	return rc;
}

/* --- the models --- */

static uint64_t mat_bytes(const struct od_weight *w)
{
	const struct od_scales scales = { .group = w->scales.group };
	uint64_t groups = w->dtype == OD_NF4 ? od_quant_groups(w->n_in) : 1;
	uint64_t bytes = w->n_out * od_row_bytes(w->dtype, w->n_in);

	if (w->scales.at.buf != NULL)
		bytes += w->n_out * od_scale_groups(&scales, w->n_in) * od_dtype_bytes(w->scales.dtype) +
			 (w->scales.divisor.buf != NULL ? sizeof(float) : 0);
	else if (w->scale.buf != NULL)
		bytes += w->n_out * groups * sizeof(float);
	return bytes;
}

/* Vectors are f32: [n_out]. */
static uint64_t dense_bytes(const struct od_weight *w)
{
	return w->data.buf == NULL ? 0 : w->n_in == 0 ? w->n_out * sizeof(float) : mat_bytes(w);
}

/* Every matrix once (of the embedding one row, of the experts top-k) and the norms. */
static uint64_t token_bytes(const struct precision_variant *v, const struct od_pack *p, const struct od_config *c)
{
	uint64_t sum = mat_bytes(&v->dense.head) + od_row_bytes(v->dense.embed.dtype, c->hidden);

	sum += c->hidden * sizeof(float);
	for (uint32_t l = 0; l < c->n_layers; l++)
		for (int role = 0; role < OD_N_ROLES; role++)
			sum += dense_bytes(&v->dense.layer[l].w[role]);
	for (uint32_t i = 0; i < c->n_moe; i++) {
		const struct od_expert *e = &v->experts[(size_t)i * c->n_experts]; /* all have the same shape */

		if (v->choice.form == OD_FORM_PLAIN)
			for (int m = 0; m < OD_N_EXPERT_MATS; m++)
				sum += c->top_k * mat_bytes(&e->mat[m]);
		if (v->choice.form == OD_FORM_PLANES)
			sum += c->top_k * od_pack_expert_stored_bytes(p);
	}
	return sum;
}

static size_t store_of(const struct od_shadow_choice *c)
{
	return c->form == OD_FORM_PLANES ? OD_N_PRECISIONS : (size_t)c->experts - 1;
}

/* Each precision once; variants that differ in activations only share it. */
static int load(struct precision_bench *b, struct od_err *err)
{
	struct od_shadow_choice wanted[MAX_STORES];
	size_t n = 0;
	int rc;

	for (size_t i = 0; i < b->n_variants; i++)
		if (i == 0 || store_of(&b->variant[i].choice) != store_of(&wanted[n - 1]))
			wanted[n++] = b->variant[i].choice;
	rc = recall_models_fit(b->pack, wanted, n, 0, "try a shorter --precision", err);
	for (size_t i = 0; rc == OD_OK && i < n; i++)
		rc = od_shadow_load(&b->store[store_of(&wanted[i])], b->pack, b->device, &wanted[i],
				    (unsigned)b->opt.threads, NULL, NULL, err);
	for (size_t i = 0; i < b->n_variants; i++)
		b->variant[i].store = b->store[store_of(&b->variant[i].choice)];
	return rc;
}

static int open_variant(struct precision_bench *b, struct precision_variant *v, struct od_err *err)
{
	const struct od_config *c = b->config;
	size_t n_experts = (size_t)c->n_moe * c->n_experts;
	struct od_forward_opts fo = { .config = c,
				      .dense = &v->dense,
				      .device = b->device,
				      .state = b->state,
				      .profile = (enum od_profile)(b->opt.profile + 1),
				      .max_rows = PREFILL_ROWS };
	int rc;

	v->dense = *od_shadow_dense(v->store);
	v->dense.layer = malloc(c->n_layers * sizeof(*v->dense.layer));
	v->experts = malloc(n_experts * sizeof(*v->experts));
	v->turn = calloc(b->opt.runs, sizeof(*v->turn));
	if (v->dense.layer == NULL || v->experts == NULL || v->turn == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s model", v->name);
	memcpy(v->dense.layer, od_shadow_dense(v->store)->layer, c->n_layers * sizeof(*v->dense.layer));
	memcpy(v->experts, od_shadow_experts(v->store), n_experts * sizeof(*v->experts));
	for (uint32_t l = 0; l < c->n_layers; l++)
		for (int role = 0; role < OD_N_ROLES; role++)
			v->dense.layer[l].w[role].act = v->choice.act;
	for (size_t i = 0; i < n_experts; i++)
		for (int m = 0; m < OD_N_EXPERT_MATS; m++)
			v->experts[i].mat[m].act = v->choice.act;
	v->token_bytes = token_bytes(v, b->pack, c);
	rc = od_forward_new(&v->forward, &fo, err);
	return rc == OD_OK ? od_resident_new(&v->runner, &fo, v->experts, err) : rc;
}

/* --- measuring --- */

static int step(struct precision_bench *b, struct precision_variant *v, const struct od_row *rows, size_t n,
		bool logits, struct od_err *err)
{
	int rc = od_forward_begin(v->forward, 1, rows, n, err);

	while (rc == OD_OK && !od_forward_done(v->forward)) {
		od_forward_attention(v->forward);
		if (od_forward_routed(v->forward))
			rc = od_forward_experts(v->forward, v->runner, err);
	}
	if (rc == OD_OK && logits)
		rc = od_forward_logits(v->forward, &(uint32_t){ (uint32_t)n - 1 }, 1, &b->logits, err);
	return rc == OD_OK ? od_forward_end(v->forward, NULL, err) : rc;
}

static int prefill(struct precision_bench *b, struct precision_variant *v, const struct od_prompt *q,
		   struct od_err *err)
{
	struct od_row rows[PREFILL_ROWS];
	int rc = OD_OK;

	od_seq_state_set_length(b->seq, 0);
	for (size_t at = 0, n; rc == OD_OK && at < q->n_ids; at += n) {
		n = q->n_ids - at < PREFILL_ROWS ? q->n_ids - at : PREFILL_ROWS;
		for (size_t i = 0; i < n; i++)
			rows[i] = (struct od_row){ b->seq, (uint32_t)(at + i), q->ids[at + i] };
		rc = step(b, v, rows, n, at + n == q->n_ids, err);
	}
	return rc;
}

static int32_t likeliest(const float *logits, uint32_t vocab)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < vocab; i++)
		if (logits[i] > logits[best])
			best = i;
	return (int32_t)best;
}

/* From the logits to token i: the first variant's choice, which the others are compared with. */
static int choose(struct precision_bench *b, const struct precision_variant *v, size_t i, struct turn *t,
		  struct od_err *err)
{
	int32_t best = likeliest(b->logits, b->config->vocab);

	if (v != b->variant) {
		t->n_same += best == b->best[i];
		return OD_OK;
	}
	t->n_same++;
	b->best[i] = best;
	b->token[i] = od_sampler_sample(b->sampler, b->logits, NULL);
	return od_sampler_accept(b->sampler, &b->token[i], 1) == OD_OK ? OD_OK :
									 od_fail(err, OD_ERR_NOMEM, "tokens of a run");
}

static int take_turn(struct precision_bench *b, struct precision_variant *v, const struct od_prompt *q, size_t tokens,
		     struct turn *t, struct od_err *err)
{
	int rc;

	*t = (struct turn){ 0 };
	if (v == b->variant) {
		rc = od_sampler_replay(b->sampler, q->ids, q->n_ids, 0);
		if (rc != OD_OK)
			return od_fail(err, rc, "tokens of %s", q->name);
	}
	rc = prefill(b, v, q, err);
	if (rc == OD_OK)
		rc = choose(b, v, 0, t, err);
	for (size_t i = 1; rc == OD_OK && i < tokens; i++) {
		const struct od_row row = { b->seq, (uint32_t)(q->n_ids + i - 1), b->token[i - 1] };
		uint64_t start;

		od_membw_add(b->membw, &t->membw);
		start = od_now_ns();
		rc = step(b, v, &row, 1, true, err);
		t->decode_ns += (double)(od_now_ns() - start);
		if (rc == OD_OK)
			rc = choose(b, v, i, t, err);
	}
	return rc == OD_OK ? rc : od_fail_within(err, "%s, %s", v->name, q->name);
}

static int measure(struct precision_bench *b, struct od_err *err)
{
	const size_t tokens = b->opt.tokens;
	bool progress = !b->opt.json && isatty(STDERR_FILENO);
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < b->n_variants; i++)
		rc = take_turn(b, &b->variant[i], b->prompts.prompt, tokens < WARM_UP_TOKENS ? tokens : WARM_UP_TOKENS,
			       b->variant[i].turn, err);
	for (size_t run = 0; rc == OD_OK && run < b->opt.runs; run++) {
		if (progress)
			fprintf(stderr, "\rrun %zu of %llu", run + 1, (unsigned long long)b->opt.runs);
		for (size_t i = 0; rc == OD_OK && i < b->n_variants; i++)
			rc = take_turn(b, &b->variant[i], &b->prompts.prompt[run % b->prompts.n], tokens,
				       &b->variant[i].turn[run], err);
	}
	if (progress)
		fputc('\n', stderr);
	return rc;
}

/* --- reporting --- */

static double tok_per_s(const struct precision_bench *b, const struct precision_variant *v, size_t run)
{
	return (double)(b->opt.tokens - 1) / v->turn[run].decode_ns * 1e9;
}

static double ratio(const struct precision_bench *b, const struct precision_variant *v, size_t run)
{
	return tok_per_s(b, v, run) / tok_per_s(b, b->variant, run);
}

static double weights_gbps(const struct precision_bench *b, const struct precision_variant *v, size_t run)
{
	return (double)v->token_bytes * tok_per_s(b, v, run) * 1e-9;
}

static double membw_gbps(const struct precision_bench *b, const struct precision_variant *v, size_t run)
{
	(void)b;
	return od_membw_gbps(&v->turn[run].membw);
}

static double share(const struct precision_bench *b, const struct precision_variant *v, size_t run)
{
	return weights_gbps(b, v, run) / membw_gbps(b, v, run);
}

static double same(const struct precision_bench *b, const struct precision_variant *v, size_t run)
{
	return (double)v->turn[run].n_same / (double)b->opt.tokens;
}

typedef double figure_fn(const struct precision_bench *b, const struct precision_variant *v, size_t run);

static struct od_stats summary(const struct precision_bench *b, const struct precision_variant *v, figure_fn *of,
			       double *scratch)
{
	struct od_stats s;

	for (size_t run = 0; run < b->opt.runs; run++)
		scratch[run] = of(b, v, run);
	od_stats_of(scratch, b->opt.runs, &s);
	return s;
}

static void report_table(const struct precision_bench *b, struct od_report *r, double *scratch)
{
	static const struct od_column columns[] = {
		{ "precision", "precision", 0 },
		{ "activations", "activations", 0 },
		{ "bytes_per_token", "weights/token", 0 },
		{ "tok_per_s", "tok/s", 1 },
		{ "tok_per_s_min", "min", 1 },
		{ "tok_per_s_max", "max", 1 },
		{ "ratio", "ratio", 2 },
		{ "ratio_ci95_low", "95 % from", 2 },
		{ "ratio_ci95_high", "to", 2 },
		{ "weights_gbps", "GB/s", 1 },
		{ "membw_gbps", "memory", 1 },
		{ "share", "share", 2 },
		{ "same_tokens", "same tokens", 3 },
	};
	struct od_table *t = od_report_table(r, "precisions", NULL, columns, sizeof(columns) / sizeof(columns[0]));
	const bool sure = b->opt.runs >= OD_STATS_CI_MIN;

	for (size_t i = 0; i < b->n_variants; i++) {
		const struct precision_variant *v = &b->variant[i];
		struct od_stats speed = summary(b, v, tok_per_s, scratch), to_first = summary(b, v, ratio, scratch);

		od_table_row(t, (struct od_cell[]){
					OD_TEXT(v->name),
					OD_TEXT(activation_names[v->choice.act]),
					OD_BYTES(v->token_bytes),
					OD_REAL(speed.median),
					OD_REAL(speed.min),
					OD_REAL(speed.max),
					OD_REAL(to_first.median),
					sure ? OD_REAL(to_first.ci_low) : OD_NONE,
					sure ? OD_REAL(to_first.ci_high) : OD_NONE,
					OD_REAL(summary(b, v, weights_gbps, scratch).median),
					OD_REAL(summary(b, v, membw_gbps, scratch).median),
					OD_REAL(summary(b, v, share, scratch).median),
					OD_REAL(summary(b, v, same, scratch).mean),
				});
	}
}

static void report_runs(const struct precision_bench *b, struct od_report *r)
{
	static const struct od_column columns[] = {
		{ "run", "", 0 },	  { "prompt", "", 0 },	  { "prompt_tokens", "", 0 }, { "precision", "", 0 },
		{ "activations", "", 0 }, { "tok_per_s", "", 0 }, { "membw_gbps", "", 0 },    { "same_tokens", "", 0 },
	};
	struct od_table *t = od_report_detail(r, "by_run", columns, sizeof(columns) / sizeof(columns[0]));

	for (size_t run = 0; run < b->opt.runs; run++) {
		const struct od_prompt *q = &b->prompts.prompt[run % b->prompts.n];

		for (size_t i = 0; i < b->n_variants; i++) {
			const struct precision_variant *v = &b->variant[i];

			od_table_row(t, (struct od_cell[]){
						OD_INT(run),
						OD_TEXT(q->name),
						OD_INT(q->n_ids),
						OD_TEXT(v->name),
						OD_TEXT(activation_names[v->choice.act]),
						OD_REAL(tok_per_s(b, v, run)),
						OD_REAL(membw_gbps(b, v, run)),
						OD_REAL(same(b, v, run)),
					});
		}
	}
}

static int report(const struct precision_bench *b, struct od_err *err)
{
	const struct precision_options *o = &b->opt;
	double *scratch = calloc(o->runs, sizeof(*scratch));
	struct od_report *r;
	int rc;

	if (scratch == NULL)
		return od_fail(err, OD_ERR_NOMEM, "figures of %llu runs", (unsigned long long)o->runs);
	rc = od_report_new(&r, "Decoding speed of the shadow's precisions", err);
	if (rc == OD_OK) {
		od_report_fact(r, "fingerprint", "pack", OD_TEXT(od_pack_fingerprint(b->pack)), 0, NULL);
		od_report_fact(r, "profile", "profile", OD_TEXT(od_profile_names[o->profile]), 0, NULL);
		od_report_fact(r, "kernels", "kernels",
			       OD_TEXT(od_device_kernels(b->device, (enum od_profile)(o->profile + 1))), 0, NULL);
		od_report_fact(r, "threads", "threads", OD_INT(o->threads), 0, NULL);
		od_report_fact(r, "runs", "runs", OD_INT(o->runs), 0, NULL);
		od_report_fact(r, "tokens", "tokens of a run", OD_INT(o->tokens), 0, NULL);
		od_report_fact(r, "temperature", "temperature", OD_REAL(o->temperature), 1, NULL);
		od_report_fact(r, "baseline", "ratios are to", OD_TEXT(b->variant[0].name), 0, NULL);
		od_report_fact(r, "cache_bytes", "last-level cache", OD_BYTES(od_cache_bytes()), 0, NULL);
		report_table(b, r, scratch);
		report_runs(b, r);
		rc = od_report_print(r, stdout, o->json, err);
		od_report_free(r);
	}
	free(scratch);
	return rc;
}

/* --- setting up --- */

static int make_prompts(struct precision_bench *b, struct od_err *err)
{
	struct precision_options *o = &b->opt;
	int rc;

	if (o->prompts != NULL && o->prompt_tokens > 0)
		return od_fail(err, OD_ERR_ARG, "--prompts and --prompt-tokens exclude each other");
	if (o->temperature < 0)
		o->temperature = o->prompts == NULL ? DEFAULT_TEMPERATURE : 0;
	if (o->prompts == NULL)
		return od_prompts_random(&b->prompts, o->runs,
					 o->prompt_tokens > 0 ? o->prompt_tokens : DEFAULT_PROMPT_TOKENS,
					 b->config->vocab, b->config->bos, o->seed, err);
	rc = od_prompts_load(&b->prompts, o->prompts, o->runs, err);
	return rc == OD_OK ? od_prompts_encode_by_file(&b->prompts, od_pack_tokenizer_path(b->pack), err) : rc;
}

/* A sequence for the longest prompt, used by all variants one after the other. */
static int open_sequence(struct precision_bench *b, struct od_err *err)
{
	struct od_sampler_opts so;
	uint64_t ctx = 0;
	int rc;

	for (size_t i = 0; i < b->prompts.n; i++) {
		const struct od_prompt *q = &b->prompts.prompt[i];

		if (q->n_ids == 0)
			return od_fail(err, OD_ERR_ARG,
				       "%s: the prompt is empty, and the tokenizer puts no BOS in front of it",
				       q->name);
		ctx = q->n_ids > ctx ? q->n_ids : ctx;
	}
	ctx += b->opt.tokens;
	if (ctx > UINT32_MAX)
		return od_fail(err, OD_ERR_ARG, "prompt and --tokens are %llu tokens together",
			       (unsigned long long)ctx);
	rc = od_state_pool_new(&b->state, b->device, b->config, (enum od_profile)(b->opt.profile + 1), (uint32_t)ctx, 1,
			       od_state_pages((uint32_t)ctx), err);
	if (rc == OD_OK)
		rc = od_seq_state_new(&b->seq, b->state, err);
	if (rc == OD_OK) {
		/* The factors of long RoPE cost the same: no text changes them midway here. */
		od_seq_state_set_long(b->seq, ctx > od_config_short_ctx(b->config));
		rc = od_seq_state_promise(b->seq, (uint32_t)ctx);
	}
	od_sampler_defaults(&so);
	so.temperature = b->opt.temperature;
	so.seed = b->opt.seed;
	if (rc == OD_OK)
		rc = od_sampler_new(&b->sampler, &so, b->config->vocab, err);
	b->token = calloc(b->opt.tokens, sizeof(*b->token));
	b->best = calloc(b->opt.tokens, sizeof(*b->best));
	if (rc == OD_OK && (b->token == NULL || b->best == NULL))
		rc = od_fail(err, OD_ERR_NOMEM, "tokens of a run");
	return rc;
}

static int run(struct precision_bench *b, struct od_err *err)
{
	int rc = od_pack_open(&b->pack, b->opt.pack, err);

	if (rc == OD_OK)
		rc = plan(b, err);
	if (rc != OD_OK)
		return rc;
	b->config = od_pack_config(b->pack);
	rc = od_device_open(&b->device, NULL, (enum od_cpu)b->opt.cpu, (unsigned)b->opt.threads, "od-compute", err);
	if (rc == OD_OK)
		rc = make_prompts(b, err);
	if (rc == OD_OK)
		rc = open_sequence(b, err);
	if (rc == OD_OK)
		rc = load(b, err);
	for (size_t i = 0; rc == OD_OK && i < b->n_variants; i++)
		rc = open_variant(b, &b->variant[i], err);
	if (rc == OD_OK)
		rc = od_membw_open(&b->membw, od_membw_bytes(), (unsigned)b->opt.threads, NULL, err);
	if (rc == OD_OK)
		rc = measure(b, err);
	return rc == OD_OK ? report(b, err) : rc;
}

static void finish(struct precision_bench *b)
{
	for (size_t i = 0; i < b->n_variants; i++) {
		struct precision_variant *v = &b->variant[i];

		od_forward_free(v->forward);
		od_resident_free(v->runner);
		free(v->dense.layer);
		free(v->experts);
		free(v->turn);
	}
	for (size_t i = 0; i < MAX_STORES; i++)
		od_shadow_free(b->store[i]);
	od_membw_close(b->membw);
	od_seq_state_free(b->seq);
	od_state_pool_free(b->state);
	od_device_free(b->device);
	od_sampler_free(b->sampler);
	od_prompts_fini(&b->prompts);
	od_pack_close(b->pack);
	free(b->token);
	free(b->best);
}

int od_bench_precision(int argc, char **argv, struct od_err *err)
{
	struct precision_bench b = {
		.opt = { .tokens = DEFAULT_TOKENS,
			 .runs = DEFAULT_RUNS,
			 .threads = od_cpu_count(),
			 .temperature = -1,
			 .seed = 1,
			 .dense_precision = -1 },
	};
	int rc = parse(&b.opt, argc, argv, err);

	if (rc != OD_OK || b.opt.help)
		return rc;
	rc = run(&b, err);
	finish(&b);
	return rc;
}

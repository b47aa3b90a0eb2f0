/* Many texts at once: whoever joins, ends, fails or is given up, every text is the one that its prompt gets alone;
 * texts that begin alike share state; state is promised and waited for.
 *
 * "Alone" is an engine for one text, which the golden cases and the drafts' test hold. Workers and a shadow are the
 * real daemons, which the Makefile puts beside this program. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/pack/write/pack_write.h"
#include "common/pack/load/dense_load.h"
#include "common/pack/shadow/shadow_load.h"
#include "main-node/engine/engine_internal.h"
#include "main-node/engine/engine_report.h"
#include "tests/unit/opened_engine.h"
#include "tests/unit/device_util.h"
#include "tests/unit/random.h"
#include "tests/unit/temp_dir.h"

#define N 24 /* texts */
#define MAX_PROMPT 90
#define MAX_TOKENS 30
#define VOCAB 296
#define CTX 128

static uint64_t seed = 1;

/* ---- Requests ---- */

struct batch_watch {
	size_t pieces, leave_after; /* 0: never */
};

struct batch_text {
	int32_t prompt[MAX_PROMPT];
	struct odm_request req;
	struct batch_watch watch;
	struct odm_result alone, r;
	struct odm_sequence *sequence;
	unsigned works; /* since it was given up */
	int code;
	struct od_err err;
};

static const char *const stops[] = { "e", "th" };

static size_t draft(void *arg, const int32_t *text, size_t n, int32_t *out, size_t max)
{
	(void)arg;
	for (size_t i = 0; i < max; i++) /* seldom right */
		out[i] = text[(n * 7 + i) % n];
	return max;
}

static bool watch_text(void *arg, const char *piece, size_t len)
{
	struct batch_watch *w = arg;

	(void)piece, (void)len;
	return ++w->pieces != w->leave_after;
}

static void draw_text(struct batch_text *t, size_t most_prompt)
{
	struct odm_request *r = &t->req;

	*t = (struct batch_text){ 0 };
	r->prompt = t->prompt;
	r->n_prompt = 1 + random_below(&seed, most_prompt);
	for (size_t i = 0; i < r->n_prompt; i++)
		t->prompt[i] = (int32_t)random_below(&seed, VOCAB);
	r->max_tokens = 1 + random_below(&seed, MAX_TOKENS);
	r->ignore_eos = random_below(&seed, 2) > 0;
	od_sampler_defaults(&r->sampling);
	if (random_below(&seed, 3) > 0) {
		r->sampling.temperature = 1.3;
		r->sampling.seed = random_below(&seed, 1000);
		r->sampling.repetition_penalty = random_below(&seed, 2) > 0 ? 1.2 : 1;
	}
	if (random_below(&seed, 3) == 0) {
		r->sampling.dry.multiplier = 1;
		r->sampling.dry.allowed_length = 1;
		r->sampling.xtc_probability = 0.5;
		r->sampling.xtc_threshold = 0.02;
		r->sampling.typical_p = random_below(&seed, 2) > 0 ? 0.9 : 1;
		r->sampling.dynatemp_range = random_below(&seed, 2) > 0 ? 0.5 : 0;
		r->sampling.top_n_sigma = random_below(&seed, 2) > 0 ? 2 : -1;
		r->min_tokens = random_below(&seed, 2);
	}
	if (random_below(&seed, 3) == 0) {
		r->stop = stops;
		r->n_stop = 2;
	}
	if (random_below(&seed, 3) == 0)
		r->drafter.draft = draft;
}

static void draw_texts(struct batch_text t[N])
{
	for (size_t i = 0; i < N; i++)
		draw_text(&t[i], MAX_PROMPT);
}

static void free_texts(struct batch_text t[N])
{
	for (size_t i = 0; i < N; i++) {
		odm_result_fini(&t[i].alone);
		odm_result_fini(&t[i].r);
	}
}

/* ---- Engines ---- */

static void pack_checkpoint(const char *checkpoint, const char *pack)
{
	struct od_err err;
	const struct od_pack_job job = { .checkpoint = checkpoint,
					 .pack = pack,
					 .codec = OD_CODEC_PLANES,
					 .n_threads = 1,
					 .shadows = OD_SHADOW_BIT(OD_PRECISION_INT8) };

	if (access(pack, F_OK) != 0 && od_pack_write(&job, &err) != OD_OK)
		fail_msg("%s", err.msg);
}

static struct odm_engine *open_pack(const char *pack, uint64_t parallel, struct odm_main_opts *o)
{
	struct odm_engine *e;
	struct od_err err;

	o->engine.pack = pack;
	o->engine.parallel = parallel;
	o->engine.threads = 1;
	o->engine.quiet = true;
	if (opened_engine_open(&e, o, &err) != OD_OK)
		fail_msg("%s", err.msg);
	return e;
}

static struct odm_engine *open_engine(const char *family, uint64_t parallel, struct odm_main_opts *o)
{
	char checkpoint[128], pack[128];

	snprintf(checkpoint, sizeof(checkpoint), "tests/golden/families/%s", family);
	snprintf(pack, sizeof(pack), "%s/%s", temp_dir, family);
	pack_checkpoint(checkpoint, pack);
	return open_pack(pack, parallel, o);
}

static struct odm_main_opts resident(enum od_profile profile)
{
	struct odm_main_opts o;

	odm_main_opts_defaults(&o);
	o.mode = ODM_RESIDENT;
	o.engine.profile = profile;
	return o;
}

static void run_alone(struct batch_text *t, struct odm_engine *e)
{
	struct od_err err;

	if (odm_generate(e, &t->req, &t->alone, &err) != OD_OK)
		fail_msg("%s", err.msg);
}

static void submit(struct batch_text *t, struct odm_engine *e)
{
	if (odm_engine_submit(e, &t->req, &t->sequence, &t->err) != OD_OK)
		fail_msg("%s", t->err.msg);
}

static void take(struct batch_text *t)
{
	if (t->sequence == NULL || !odm_sequence_done(t->sequence))
		return;
	t->code = odm_sequence_take(t->sequence, &t->r, &t->err);
	t->sequence = NULL;
}

static void assert_as_alone(const struct batch_text *t, size_t i)
{
	const struct odm_result *a = &t->alone, *b = &t->r;

	if (t->code != OD_OK)
		fail_msg("text %zu: %s", i, t->err.msg);
	if (a->n_tokens != b->n_tokens || memcmp(a->tokens, b->tokens, a->n_tokens * sizeof(*a->tokens)) != 0 ||
	    a->finish != b->finish || a->text_len != b->text_len || memcmp(a->text, b->text, a->text_len) != 0)
		fail_msg("text %zu of %zu prompt tokens: %zu tokens, %s, \"%s\"; alone %zu, %s, \"%s\"", i,
			 t->req.n_prompt, b->n_tokens, odm_finish_name(b->finish), b->text, a->n_tokens,
			 odm_finish_name(a->finish), a->text);
	assert_int_equal(b->figures.c[OD_C_TOKENS], b->n_tokens);
	assert_int_equal(b->figures.c[OD_C_PROMPT_TOKENS], t->req.n_prompt);
}

/* All texts, submitted now and then; on_work(t, e) after each piece of work. */
static void run_together(struct batch_text t[N], struct odm_engine *e,
			 void (*on_work)(struct batch_text t[N], struct odm_engine *e))
{
	size_t next = 0;
	bool more = true;

	while (more || next < N) {
		for (size_t some = random_below(&seed, 4); some > 0 && next < N; some--)
			submit(&t[next++], e);
		more = odm_engine_work(e);
		if (on_work != NULL)
			on_work(t, e);
		for (size_t i = 0; i < next; i++)
			take(&t[i]);
	}
	for (size_t i = 0; i < N; i++)
		assert_null(t[i].sequence);
	assert_int_equal(od_state_pool_free_pages(e->model->state), e->model->n_pages);
}

/* ---- Tokens ---- */

static void try_engine(const char *family, struct odm_main_opts o, struct batch_text t[N], uint64_t parallel,
		       size_t rows)
{
	struct odm_engine *e;

	o.engine.prefill_rows = rows;
	e = open_engine(family, parallel, &o);
	run_together(t, e, NULL);
	for (size_t i = 0; i < N; i++) {
		assert_as_alone(&t[i], i);
		odm_result_fini(&t[i].r);
	}
	assert_int_equal(opened_engine_close(e), OD_OK);
}

static void texts_do_not_depend_on_others(void **state)
{
	static const char *const families[] = { "mixtral_top3", "deepseek_v2_lite", "qwen2_moe_norm" };
	static struct batch_text t[N];

	(void)state;
	for (size_t i = 0; i < 2 * sizeof(families) / sizeof(families[0]); i++) {
		struct odm_main_opts o = resident(i & 1 ? OD_PROFILE_BF16 : OD_PROFILE_F32);
		struct odm_engine *e = open_engine(families[i / 2], 1, &o);

		draw_texts(t);
		for (size_t j = 0; j < N; j++)
			run_alone(&t[j], e);
		assert_int_equal(opened_engine_close(e), OD_OK);
		try_engine(families[i / 2], o, t, 2, 256);
		try_engine(families[i / 2], o, t, 5, 7);
		try_engine(families[i / 2], o, t, 16, 256);
		free_texts(t);
	}
}

static void nor_on_a_cluster(void **state)
{
	static struct batch_text t[N];
	struct odm_main_opts o = resident(OD_PROFILE_F32);
	struct odm_engine *e = open_engine("mixtral_top3", 1, &o);

	(void)state;
	draw_texts(t);
	for (size_t j = 0; j < N; j++)
		run_alone(&t[j], e);
	assert_int_equal(opened_engine_close(e), OD_OK);
	o.mode = ODM_LOCAL;
	o.local.workers = 3;
	try_engine("mixtral_top3", o, t, 8, 64); /* with a shadow */
	o.cluster.predictor = ODM_PREDICT_OWN;
	try_engine("mixtral_top3", o, t, 8, 16);
	free_texts(t);
}

static uint64_t seen_prompt_tokens;

static void see_prompt_tokens(struct batch_text t[N], struct odm_engine *e)
{
	struct odm_report r;

	(void)t;
	odm_engine_report_make(e, true);
	odm_engine_get_report(e, &r);
	assert_true(r.c[OD_C_PROMPT_TOKENS] >= seen_prompt_tokens);
	seen_prompt_tokens = r.c[OD_C_PROMPT_TOKENS];
}

/* Texts that outgrow the original context of long RoPE begin anew; what is counted of them never falls. */
static void nor_when_they_begin_anew(void **state)
{
	static struct batch_text t[N];
	struct odm_main_opts o = resident(OD_PROFILE_F32);
	struct odm_engine *e = open_engine("phimoe_crossing", 1, &o);
	const uint32_t short_ctx = od_config_short_ctx(e->model->config);
	unsigned crossed = 0;

	(void)state;
	for (size_t i = 0; i < N; i++) {
		draw_text(&t[i], short_ctx);
		run_alone(&t[i], e);
		crossed += t[i].req.n_prompt + t[i].alone.n_tokens > short_ctx + 1;
	}
	assert_true(crossed > N / 3);
	assert_int_equal(opened_engine_close(e), OD_OK);
	o.engine.prefill_rows = 5;
	e = open_engine("phimoe_crossing", 6, &o);
	seen_prompt_tokens = 0;
	run_together(t, e, see_prompt_tokens);
	for (size_t i = 0; i < N; i++)
		assert_as_alone(&t[i], i);
	assert_int_equal(opened_engine_close(e), OD_OK);
	free_texts(t);
}

/* ---- Shared prefixes ---- */

static size_t common(const struct batch_text *a, const struct batch_text *b)
{
	const size_t most = a->req.n_prompt < b->req.n_prompt ? a->req.n_prompt : b->req.n_prompt;
	size_t n = 0;

	while (n < most && a->prompt[n] == b->prompt[n])
		n++;
	return n;
}

/* Prompts that begin alike, of more than a page; all are there at once, so each shares what it can. */
static void prefixes_are_shared(void **state)
{
	static struct batch_text t[N];
	struct odm_main_opts o = resident(OD_PROFILE_F32);
	struct odm_engine *e;
	size_t sum = 0;

	(void)state;
	for (size_t i = 0; i < N; i++) {
		draw_text(&t[i], MAX_PROMPT);
		if (i % 3 > 0) {
			t[i].req.n_prompt = MAX_PROMPT - random_below(&seed, 30); /* some have a page, some less */
			for (size_t j = 0; j < t[i].req.n_prompt; j++)
				t[i].prompt[j] = j < 70 ? (int32_t)(i % 3 + j) : (int32_t)random_below(&seed, VOCAB);
		}
	}
	e = open_engine("olmoe_plain", 1, &o);
	for (size_t i = 0; i < N; i++) {
		run_alone(&t[i], e);
		assert_int_equal(t[i].alone.figures.c[OD_C_SHARED_TOKENS], 0);
	}
	assert_int_equal(opened_engine_close(e), OD_OK);
	o.engine.prefill_rows = 20;
	e = open_engine("olmoe_plain", N, &o);
	for (size_t i = 0; i < N; i++) {
		t[i].req.max_tokens = t[i].alone.n_tokens;
		submit(&t[i], e);
	}
	while (odm_engine_work(e))
		;
	for (size_t i = 0; i < N; i++) {
		size_t most = 0;

		take(&t[i]);
		for (size_t j = 0; j < i; j++)
			most = common(&t[i], &t[j]) > most ? common(&t[i], &t[j]) : most;
		most = most < t[i].req.n_prompt - 1 ? most : t[i].req.n_prompt - 1;
		assert_true(t[i].r.figures.c[OD_C_SHARED_TOKENS] == 0 ||
			    t[i].r.figures.c[OD_C_SHARED_TOKENS] == most / OD_KV_PAGE * OD_KV_PAGE);
		sum += t[i].r.figures.c[OD_C_SHARED_TOKENS];
		assert_int_equal(t[i].r.n_tokens, t[i].alone.n_tokens);
		assert_memory_equal(t[i].r.tokens, t[i].alone.tokens, t[i].r.n_tokens * sizeof(int32_t));
	}
	assert_true(sum >= 5 * OD_KV_PAGE);
	assert_int_equal(od_state_pool_free_pages(e->model->state), e->model->n_pages);
	assert_int_equal(opened_engine_close(e), OD_OK);
	free_texts(t);
}

/* ---- Ended texts ---- */

static void see_token(void *arg, const struct odm_token *t)
{
	(void)arg, (void)t;
}

/* The cold answer, whatever is there; `shared` tokens are. */
static void ask(struct odm_engine *cold, struct odm_engine *e, const struct odm_request *req, uint64_t shared)
{
	struct odm_result a, b;
	struct od_err err;

	if (odm_generate(cold, req, &a, &err) != OD_OK || odm_generate(e, req, &b, &err) != OD_OK)
		fail_msg("%s", err.msg);
	assert_int_equal(a.n_tokens, b.n_tokens);
	assert_memory_equal(a.tokens, b.tokens, a.n_tokens * sizeof(*a.tokens));
	assert_int_equal(a.figures.c[OD_C_SHARED_TOKENS], 0);
	assert_int_equal(b.figures.c[OD_C_SHARED_TOKENS], shared);
	assert_int_equal(od_state_pool_free_pages(e->model->state), e->model->n_pages);
	odm_result_fini(&a);
	odm_result_fini(&b);
}

/* An ended text leaves whole pages of prompt and answer for the next one, until there is no room. */
static void try_ended(const char *family, enum od_profile profile)
{
	static int32_t prompt[CTX];
	struct odm_main_opts o = resident(profile);
	struct odm_engine *cold = open_engine(family, 1, &o), *e;
	struct odm_request r = {
		.prompt = prompt, .n_prompt = 60, .max_tokens = 10, .ignore_eos = true, .logprobs = -1
	};
	struct odm_result first;
	struct od_err err;

	od_sampler_defaults(&r.sampling);
	o.engine.prefix_cache_mib = 1; /* texts of two pages are no more */
	e = open_engine(family, 2, &o);
	assert_true(e->model->cache_pages >= 2);
	for (size_t i = 0; i < CTX; i++)
		prompt[i] = (int32_t)random_below(&seed, VOCAB);
	ask(cold, e, &r, 0);
	ask(cold, e, &r, 0); /* 60 tokens are no page */
	if (odm_generate(cold, &r, &first, &err) != OD_OK)
		fail_msg("%s", err.msg);
	memcpy(prompt + 60, first.tokens, 10 * sizeof(*prompt)); /* a follow-up turn */
	odm_result_fini(&first);
	r.n_prompt = 64;
	ask(cold, e, &r, 0); /* the last token is computed */
	r.n_prompt = 80;
	ask(cold, e, &r, OD_KV_PAGE);
	r.prompt_logprobs = true; /* rows that are not computed have none */
	r.logprobs = 0;
	r.observer.token = see_token;
	ask(cold, e, &r, 0);
	r.prompt_logprobs_from = OD_KV_PAGE; /* by the row before it */
	ask(cold, e, &r, 0);
	r.prompt_logprobs_from = OD_KV_PAGE + 1;
	ask(cold, e, &r, OD_KV_PAGE);
	r = (struct odm_request){
		.prompt = prompt, .n_prompt = 80, .max_tokens = 40, .logprobs = -1, .sampling = r.sampling
	};
	r.sampling.temperature = 1;
	ask(cold, e, &r, OD_KV_PAGE);
	prompt[63]++;
	ask(cold, e, &r, 0);
	assert_int_equal(opened_engine_close(cold), OD_OK);
	assert_int_equal(opened_engine_close(e), OD_OK);
}

static void ended_texts_are_of_use(void **state)
{
	(void)state;
	try_ended("qwen2_moe_norm", OD_PROFILE_F32);
	try_ended("deepseek_v2_lite", OD_PROFILE_BF16);
	try_ended("qwen3_moe_window", OD_PROFILE_BF16);
}

/* Random texts that begin alike, again and again, resident and with a shadow. */
static void nor_on_what_was_before(void **state)
{
	static struct batch_text t[N];
	struct odm_main_opts o = resident(OD_PROFILE_F32);
	struct odm_engine *e = open_engine("mixtral_top3", 1, &o);

	(void)state;
	draw_texts(t);
	for (size_t i = 0; i < N; i++) {
		t[i].req.n_prompt = 66 + random_below(&seed, MAX_PROMPT - 66);
		for (size_t j = 0; j < 70; j++)
			t[i].prompt[j] = (int32_t)(i % 4 + j);
		run_alone(&t[i], e);
	}
	assert_int_equal(opened_engine_close(e), OD_OK);
	for (uint32_t mib = 1; mib <= 2; mib++) {
		uint64_t shared = 0;

		o.mode = mib == 1 ? ODM_RESIDENT : ODM_LOCAL;
		o.local.workers = 2;
		o.engine.prefix_cache_mib = mib;
		e = open_engine("mixtral_top3", 3, &o);
		for (int round = 0; round < 2; round++) {
			run_together(t, e, NULL);
			for (size_t i = 0; i < N; i++) {
				assert_as_alone(&t[i], i);
				shared += t[i].r.figures.c[OD_C_SHARED_TOKENS];
				odm_result_fini(&t[i].r);
			}
		}
		assert_true(shared >= N * OD_KV_PAGE);
		assert_true(od_state_pool_idle_pages(e->model->state) > 0);
		assert_int_equal(opened_engine_close(e), OD_OK);
	}
	free_texts(t);
}

/* A text that outgrows the original context of long RoPE, and begins anew: what was loaded for it before counts,
 * too. */
static void loads_count_when_it_begins_anew(void **state)
{
	static const int32_t prompt[] = { 5, 6, 7, 8 };
	struct odm_main_opts o = resident(OD_PROFILE_F32);
	struct odm_request r = {
		.prompt = prompt, .n_prompt = 4, .max_tokens = 40, .ignore_eos = true, .logprobs = -1
	};
	struct odm_result a;
	struct odm_engine *e;
	struct od_err err;

	(void)state;
	od_sampler_defaults(&r.sampling);
	o.mode = ODM_LOCAL;
	o.local.workers = 2;
	o.cluster.predictor = ODM_PREDICT_NONE;
	e = open_engine("phimoe_crossing", 1, &o);
	if (odm_generate(e, &r, &a, &err) != OD_OK)
		fail_msg("%s", err.msg);
	assert_true(a.figures.c[OD_C_LOADS] > 0);
	assert_true(a.figures.c[OD_C_BEGUN_LOADS] >= a.figures.c[OD_C_LOADS]);
	odm_result_fini(&a);
	assert_int_equal(opened_engine_close(e), OD_OK);
}

/* ---- Ends before the end ---- */

static bool gives_up(size_t i)
{
	return i % 5 == 2;
}

/* One ends with the layers that are under way. */
static void give_some_up(struct batch_text t[N], struct odm_engine *e)
{
	for (size_t i = 0; i < N; i++) {
		if (t[i].sequence == NULL || odm_sequence_done(t[i].sequence))
			continue;
		if (t[i].works > 0)
			assert_true(t[i].works++ < e->model->config->n_layers + 2);
		if (!gives_up(i) || t[i].works > 0 || random_below(&seed, 4) > 0)
			continue;
		odm_sequence_cancel(t[i].sequence);
		t[i].works = 1;
	}
}

static void the_others_go_on(void **state)
{
	static struct batch_text t[N];
	struct odm_main_opts o = resident(OD_PROFILE_F32);
	struct odm_engine *e = open_engine("qwen3_moe_plain", 1, &o);
	unsigned cancelled = 0, left = 0;

	(void)state;
	draw_texts(t);
	for (size_t i = 0; i < N; i++) {
		run_alone(&t[i], e);
		if (i % 5 == 3) {
			t[i].watch.leave_after = 1 + random_below(&seed, 5);
			t[i].req.observer = (struct odm_observer){ .arg = &t[i].watch, .text = watch_text };
		}
	}
	assert_int_equal(opened_engine_close(e), OD_OK);
	o.engine.prefill_rows = 8;
	e = open_engine("qwen3_moe_plain", 9, &o);
	run_together(t, e, give_some_up);
	for (size_t i = 0; i < N; i++) {
		if (gives_up(i) && t[i].code != OD_OK) {
			assert_int_equal(t[i].code, OD_ERR_CANCELLED);
			assert_int_equal(t[i].r.finish, ODM_FINISH_CANCELLED);
			assert_true(t[i].r.n_tokens <= t[i].alone.n_tokens);
			assert_memory_equal(t[i].r.tokens, t[i].alone.tokens, t[i].r.n_tokens * sizeof(int32_t));
			cancelled++;
		} else if (t[i].r.finish == ODM_FINISH_CANCELLED) {
			assert_int_equal(t[i].watch.pieces, t[i].watch.leave_after);
			left++;
		} else {
			assert_as_alone(&t[i], i);
		}
	}
	assert_true(cancelled > 1 && left > 1);
	assert_int_equal(opened_engine_close(e), OD_OK);
	free_texts(t);
}

/* One token's embedding is no number: a text with it fails, with a reason, and no other. */
static void what_is_no_number_fails_alone(void **state)
{
	static struct batch_text t[N];
	struct odm_main_opts o = resident(OD_PROFILE_F32);
	struct odm_engine *e = open_engine("mixtral_top3", 8, &o);
	const struct od_weight *embed = &od_dense_get(e->model->dense)->embed;
	const int32_t bad = 11;
	unsigned failed = 0;

	(void)state;
	draw_texts(t);
	for (size_t i = 0; i < N; i++) {
		t[i].req.sampling.temperature = 0;
		run_alone(&t[i], e);
	}
	for (size_t i = 0; i < N; i++)
		if (i % 6 == 1)
			t[i].prompt[t[i].req.n_prompt - 1] = bad;
	assert_true(embed->dtype == OD_BF16 || embed->dtype == OD_F16 || embed->dtype == OD_F32);
	{
		const size_t bytes = od_dtype_bytes(embed->dtype) * embed->n_in;
		uint8_t *row = malloc(bytes);

		memset(row, 0xff, bytes); /* in all three it is no number */
		put_at(e->model->device, od_ref_at(embed->data, (uint64_t)bad * bytes), row, bytes);
		free(row);
	}
	run_together(t, e, NULL);
	for (size_t i = 0; i < N; i++) {
		bool has = false;

		for (size_t j = 0; j < t[i].req.n_prompt + t[i].alone.n_tokens; j++)
			has = has || (j < t[i].req.n_prompt ? t[i].prompt[j] :
							      t[i].alone.tokens[j - t[i].req.n_prompt]) == bad;
		if (!has && !embed->data.buf) /* tied heads: never here */
			continue;
		if (!has) {
			assert_as_alone(&t[i], i);
			continue;
		}
		if (t[i].code == OD_OK)
			continue; /* it wrote the token itself, as its last one */
		assert_int_equal(t[i].r.finish, ODM_FINISH_ERROR);
		assert_non_null(strstr(t[i].err.msg, "not all numbers"));
		failed++;
	}
	assert_true(failed >= N / 6);
	assert_int_equal(opened_engine_close(e), OD_OK);
	free_texts(t);
}

/* Fills the embedding of a token, or reads it. */
static void use_embedding(struct odm_engine *e, int32_t token, uint8_t *row, bool put)
{
	const struct od_weight *embed = &od_dense_get(e->model->dense)->embed;
	const size_t bytes = od_dtype_bytes(embed->dtype) * embed->n_in;
	const struct od_ref at = od_ref_at(embed->data, (uint64_t)token * bytes);

	if (put)
		put_at(e->model->device, at, row, bytes);
	else
		get_at(e->model->device, row, at, bytes);
}

/* Makes a copy in temp_dir of a family's checkpoint with a context twice as long: links, and a configuration. */
static void make_long(const char *family)
{
	static const char *const files[] = { "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
					     "model.safetensors.index.json", "tokenizer.json" };
	char from[512], to[512], config[1 << 14] = { 0 }, *ctx, *here = getcwd(NULL, 0);
	FILE *f;

	assert_non_null(here);
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		snprintf(from, sizeof(from), "%s/tests/golden/families/%s/%s", here, family, files[i]);
		assert_int_equal(symlink(from, temp_path(files[i])), 0);
	}
	free(here);
	snprintf(from, sizeof(from), "tests/golden/families/%s/config.json", family);
	snprintf(to, sizeof(to), "%s", temp_path("config.json"));
	f = fopen(from, "r");
	assert_non_null(f);
	assert_true(fread(config, 1, sizeof(config) - 1, f) > 0 && feof(f));
	fclose(f);
	ctx = strstr(config, "\"max_position_embeddings\": 128");
	assert_non_null(ctx);
	memcpy(strstr(ctx, "128"), "256", 3);
	f = fopen(to, "w");
	assert_non_null(f);
	assert_true(fputs(config, f) >= 0 && fclose(f) == 0);
}

/* Texts with recurrent state that part behind one prompt, one after the other: from the second on, each begins at the
 * snapshot before the first token that is seen, though the first text went on into the next page. */
static void fixed_state_is_shared_up_to_a_seen_part(void **state)
{
	static int32_t prompt[150];
	struct odm_main_opts o = resident(OD_PROFILE_F32);
	struct odm_engine *e, *cold;
	char pack[128];
	struct odm_request r = { .prompt = prompt,
				 .max_tokens = 1,
				 .prompt_logprobs = true,
				 .prompt_logprobs_from = OD_KV_PAGE + 10,
				 .observer.token = see_token };

	(void)state;
	make_long("qwen3_next_plain");
	od_sampler_defaults(&r.sampling);
	snprintf(pack, sizeof(pack), "%s/long.pack", temp_dir);
	pack_checkpoint(temp_dir, pack);
	cold = open_pack(pack, 1, &o);
	o.engine.prefix_cache_mib = o.engine.snapshot_mib = 8;
	e = open_pack(pack, 1, &o);
	for (size_t i = 0; i < sizeof(prompt) / sizeof(prompt[0]); i++)
		prompt[i] = (int32_t)random_below(&seed, VOCAB);
	for (size_t n = 0; n < 3; n++) {
		prompt[OD_KV_PAGE + 11] = (int32_t)n;
		r.n_prompt = n == 0 ? 150 : OD_KV_PAGE + 20;
		ask(cold, e, &r, n == 0 ? 0 : OD_KV_PAGE);
	}
	assert_int_equal(opened_engine_close(e), OD_OK);
	assert_int_equal(opened_engine_close(cold), OD_OK);
}

/* A text with recurrent state fails because of damaged memory, which is then repaired: no later text may begin with its
 * rows. */
static void nor_does_it_leave_rows(void **state)
{
	static int32_t prompt[100];
	static uint8_t good[1 << 12], bad[1 << 12];
	struct odm_main_opts o = resident(OD_PROFILE_F32);
	struct odm_engine *e, *cold = open_engine("qwen3_next_plain", 1, &o);
	struct odm_request r = {
		.prompt = prompt, .n_prompt = 100, .max_tokens = 10, .ignore_eos = true, .logprobs = -1
	};
	struct odm_result first;
	struct od_err err;

	(void)state;
	od_sampler_defaults(&r.sampling);
	o.engine.prefix_cache_mib = o.engine.snapshot_mib = 8;
	e = open_engine("qwen3_next_plain", 2, &o);
	for (size_t i = 0; i < r.n_prompt; i++)
		prompt[i] = (int32_t)(12 + random_below(&seed, 200));
	prompt[20] = 11;
	memset(bad, 0xff, sizeof(bad));
	use_embedding(e, 11, good, false);
	use_embedding(e, 11, bad, true);
	if (odm_generate(e, &r, &first, &err) != OD_ERR_CORRUPT)
		fail_msg("%s", err.msg);
	odm_result_fini(&first);
	use_embedding(e, 11, good, true);
	ask(cold, e, &r, 0);
	ask(cold, e, &r, OD_KV_PAGE);
	assert_int_equal(opened_engine_close(e), OD_OK);
	assert_int_equal(opened_engine_close(cold), OD_OK);
}

/* ---- Memory ---- */

static uint32_t least_free;

static void see_pages(struct batch_text t[N], struct odm_engine *e)
{
	const uint32_t pages = od_state_pool_free_pages(e->model->state);

	(void)t;
	least_free = pages < least_free ? pages : least_free;
}

static void state_is_waited_for(void **state)
{
	static struct batch_text t[N];
	struct odm_main_opts o = resident(OD_PROFILE_F32);
	struct odm_engine *e = open_engine("qwen3_moe_step", 1, &o);
	struct odm_sequence *q;
	struct odm_request large;
	struct od_err err;
	uint64_t page;

	(void)state;
	draw_texts(t);
	for (size_t i = 0; i < N; i++)
		run_alone(&t[i], e);
	page = od_state_pool_bytes(e->model->config, o.engine.profile, 2, 1) -
	       od_state_pool_bytes(e->model->config, o.engine.profile, 1, 1);
	assert_int_equal(opened_engine_close(e), OD_OK);

	o.engine.state_bytes = 3 * page; /* 16 may run; one or two of them fit */
	e = open_engine("qwen3_moe_step", 16, &o);
	assert_int_equal(e->model->n_pages, 3);
	least_free = UINT32_MAX;
	run_together(t, e, see_pages);
	assert_int_equal(least_free, 0);
	for (size_t i = 0; i < N; i++)
		assert_as_alone(&t[i], i);
	assert_int_equal(opened_engine_close(e), OD_OK);

	o.engine.state_bytes = page;
	e = open_engine("qwen3_moe_step", 16, &o);
	large = t[0].req;
	large.max_tokens = OD_KV_PAGE - large.n_prompt % OD_KV_PAGE + OD_KV_PAGE;
	assert_int_equal(odm_engine_submit(e, &large, &q, &err), OD_ERR_NOMEM);
	assert_null(q);
	assert_non_null(strstr(err.msg, "--state-memory"));
	large.n_prompt = 5;
	large.max_tokens = OD_KV_PAGE - 4; /* the last token takes no place */
	assert_int_equal(odm_engine_submit(e, &large, &q, &err), OD_OK);
	assert_int_equal(opened_engine_close(e), OD_OK); /* one that waits goes with it */
	free_texts(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(texts_do_not_depend_on_others),
		cmocka_unit_test(nor_on_a_cluster),
		cmocka_unit_test(nor_when_they_begin_anew),
		cmocka_unit_test(prefixes_are_shared),
		cmocka_unit_test(ended_texts_are_of_use),
		cmocka_unit_test(nor_on_what_was_before),
		cmocka_unit_test(loads_count_when_it_begins_anew),
		cmocka_unit_test(the_others_go_on),
		cmocka_unit_test(what_is_no_number_fails_alone),
		cmocka_unit_test(nor_does_it_leave_rows),
		cmocka_unit_test(fixed_state_is_shared_up_to_a_seen_part),
		cmocka_unit_test(state_is_waited_for),
	};

	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}

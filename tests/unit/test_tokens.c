/* A reader gets each of a text's tokens once, in order, with its log probability by the raw logits, which are seen
 * beside and worked out by hand; with and without drafts, alone and among others, here and on three workers. Also the
 * queue, a prompt's progress and the engine's load. */
#include <math.h>
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
#include "common/pack/shadow/shadow_load.h"
#include "main-node/engine/engine_internal.h"
#include "tests/unit/opened_engine.h"
#include "tests/unit/random.h"
#include "tests/unit/temp_dir.h"

#define N 8 /* texts */
#define MAX_PROMPT 90
#define MAX_TOKENS 30
#define VOCAB 296
#define CTX 128

static uint64_t seed = 1;

static const int32_t ends[] = { 288, 5, VOCAB, 5 }; /* a request's: the model has one of them */
static const int32_t all_ends[] = { 287, 288, 5 }; /* with those of generation_config.json */

/* ---- Texts ---- */

struct told {
	struct odm_token t; /* its top is the one below */
	struct od_logprob top[ODM_MAX_LOGPROBS];
};

struct tokens_text {
	int32_t prompt[MAX_PROMPT];
	struct odm_request req;
	struct od_logit_bias bias[3];
	struct told told[CTX], alone[CTX];
	size_t n_told, n_alone;
	float (*logits)[VOCAB]; /* [CTX]: by position */
	uint32_t done[CTX]; /* progress */
	size_t n_done;
	struct odm_sequence *sequence;
	struct odm_result r, r_alone;
};

static void on_token(void *arg, const struct odm_token *t)
{
	struct tokens_text *x = arg;
	struct told *to = &x->told[x->n_told++];

	assert_true(x->n_told <= CTX);
	to->t = *t;
	to->t.top = to->top;
	memcpy(to->top, t->top, t->n_top * sizeof(*t->top));
}

static void on_logits(void *arg, enum odm_phase phase, uint32_t position, const float *logits)
{
	struct tokens_text *x = arg;

	(void)phase;
	memcpy(x->logits[position], logits, sizeof(x->logits[position]));
}

static void on_progress(void *arg, uint32_t done, uint32_t n_prompt)
{
	struct tokens_text *x = arg;

	assert_int_equal(n_prompt, x->req.n_prompt);
	assert_true(x->n_done < CTX);
	x->done[x->n_done++] = done;
}

/* Mostly right: it knows the text. */
static size_t draft(void *arg, const int32_t *text, size_t n, int32_t *out, size_t max)
{
	const struct tokens_text *x = arg;

	(void)text;
	for (size_t i = 0; i < max; i++) {
		const size_t at = n - x->req.n_prompt + i;

		out[i] = at < x->r_alone.n_tokens ? x->r_alone.tokens[at] : 3;
		if ((n + i) % 5 == 0)
			out[i] = (out[i] + 1) % VOCAB;
	}
	return max;
}

static void draw_text(struct tokens_text *x, size_t i)
{
	struct odm_request *r = &x->req;

	*x = (struct tokens_text){ .bias = { { 7, -100 }, { 8, 2.5f }, { (int32_t)i + 20, -3 } } };
	r->prompt = x->prompt;
	r->n_prompt = i == 0 ? 1 : 1 + random_below(&seed, MAX_PROMPT);
	for (size_t k = 0; k < r->n_prompt; k++)
		x->prompt[k] = (int32_t)random_below(&seed, VOCAB);
	r->max_tokens = 1 + random_below(&seed, MAX_TOKENS);
	od_sampler_defaults(&r->sampling);
	if (i % 3 > 0) {
		r->sampling.temperature = 1.3;
		r->sampling.seed = i;
		r->sampling.frequency_penalty = 0.4;
		r->sampling.presence_penalty = i % 2 > 0 ? 0.3 : 0;
	}
	if (i % 2 > 0) {
		r->sampling.logit_bias = x->bias;
		r->sampling.n_logit_bias = 3;
	}
	r->logprobs = (int)(i % 4 == 0 ? ODM_MAX_LOGPROBS : i % 4);
	r->prompt_logprobs = i != 3;
	r->observer = (struct odm_observer){ .arg = x, .token = on_token, .progress = on_progress };
	r->end = ends;
	r->n_ends = sizeof(ends) / sizeof(ends[0]);
}

static void free_texts(struct tokens_text x[N])
{
	for (size_t i = 0; i < N; i++) {
		odm_result_fini(&x[i].r);
		odm_result_fini(&x[i].r_alone);
		free(x[i].logits);
	}
}

/* ---- Engines ---- */

static struct odm_engine *open_engine(uint64_t parallel, uint64_t rows, uint32_t workers)
{
	char pack[128];
	struct odm_main_opts o;
	struct odm_engine *e;
	struct od_err err;

	snprintf(pack, sizeof(pack), "%s/pack", temp_dir);
	const struct od_pack_job job = { .checkpoint = "tests/golden/families/mixtral_top3",
					 .pack = pack,
					 .codec = OD_CODEC_PLANES,
					 .n_threads = 1,
					 .shadows = OD_SHADOW_BIT(OD_PRECISION_INT8) };

	if (access(pack, F_OK) != 0 && od_pack_write(&job, &err) != OD_OK)
		fail_msg("%s", err.msg);
	odm_main_opts_defaults(&o);
	o.engine.pack = pack;
	o.mode = workers > 0 ? ODM_LOCAL : ODM_RESIDENT;
	o.local.workers = workers;
	o.engine.parallel = parallel;
	o.engine.prefill_rows = rows;
	o.engine.threads = 1;
	o.engine.quiet = true;
	if (workers == 0)
		o.engine.draft = ODM_DRAFT_LOOKUP; /* the request's own are used */
	if (opened_engine_open(&e, &o, &err) != OD_OK)
		fail_msg("%s", err.msg);
	assert_int_equal(e->model->config->vocab, VOCAB);
	return e;
}

static void take(struct tokens_text *x)
{
	struct od_err err;

	if (odm_sequence_take(x->sequence, &x->r, &err) != OD_OK)
		fail_msg("%s", err.msg);
	x->sequence = NULL;
}

static void submit(struct odm_engine *e, struct tokens_text *x)
{
	struct od_err err;

	x->n_told = x->n_done = 0;
	if (odm_engine_submit(e, &x->req, &x->sequence, &err) != OD_OK)
		fail_msg("%s", err.msg);
}

static void run(struct odm_engine *e, struct tokens_text x[N])
{
	for (size_t i = 0; i < N; i++)
		submit(e, &x[i]);
	while (odm_engine_work(e))
		;
	for (size_t i = 0; i < N; i++)
		take(&x[i]);
}

/* ---- By hand ---- */

static long double logprob_by_hand(const float logits[VOCAB], int32_t token)
{
	long double best = logits[0], sum = 0;

	for (size_t i = 1; i < VOCAB; i++)
		best = fmaxl(best, logits[i]);
	for (size_t i = 0; i < VOCAB; i++)
		sum += expl(logits[i] - best);
	return logits[token] - best - logl(sum);
}

/* The most probable one of those that are not in the list yet; of equals the first. */
static int32_t next_best(const float logits[VOCAB], const struct od_logprob *list, size_t n)
{
	int32_t best = -1;

	for (int32_t i = 0; i < VOCAB; i++) {
		bool there = false;

		for (size_t k = 0; k < n; k++)
			there = there || list[k].token == i;
		if (!there && (best < 0 || logits[i] > logits[best]))
			best = i;
	}
	return best;
}

static uint32_t rank_by_hand(const float logits[VOCAB], int32_t token)
{
	uint32_t before = 0;

	for (int32_t i = 0; i < VOCAB; i++)
		before += i != token && (logits[i] > logits[token] || (logits[i] == logits[token] && i < token));
	return before + 1;
}

static long double end_by_hand(const float logits[VOCAB])
{
	long double p = 0;

	for (size_t i = 0; i < 3; i++)
		p += expl(logprob_by_hand(logits, all_ends[i]));
	return logl(p);
}

static void check_told(const struct tokens_text *x)
{
	const size_t first = x->req.prompt_logprobs ? 0 : x->req.n_prompt;

	assert_int_equal(x->n_told, x->req.n_prompt - first + x->r.n_tokens);
	for (size_t i = 0; i < x->n_told; i++) {
		const struct odm_token *t = &x->told[i].t;
		const size_t at = first + i;
		const float *logits = at > 0 ? x->logits[at - 1] : NULL;

		assert_int_equal(t->position, at);
		assert_int_equal(t->token, at < x->req.n_prompt ? x->prompt[at] : x->r.tokens[at - x->req.n_prompt]);
		assert_int_equal(t->has_logprob, at > 0);
		if (at == 0)
			continue;
		assert_true(fabsl(t->logprob - logprob_by_hand(logits, t->token)) < 1e-12L);
		assert_int_equal(t->rank, rank_by_hand(logits, t->token));
		assert_true(fabsl(t->end_logprob - end_by_hand(logits)) < 1e-12L);
		assert_int_equal(t->n_top, x->req.logprobs);
		for (size_t k = 0; k < t->n_top; k++) {
			assert_int_equal(t->top[k].token, next_best(logits, t->top, k));
			assert_true(fabsl(t->top[k].logprob - logprob_by_hand(logits, t->top[k].token)) < 1e-12L);
		}
	}
}

static void check_as_alone(const struct tokens_text *x)
{
	assert_int_equal(x->r.n_tokens, x->r_alone.n_tokens);
	assert_int_equal(x->n_told, x->n_alone);
	for (size_t i = 0; i < x->n_told; i++) {
		const struct told *a = &x->alone[i], *b = &x->told[i];

		assert_true(a->t.token == b->t.token && a->t.position == b->t.position &&
			    a->t.has_logprob == b->t.has_logprob);
		assert_true(a->t.logprob == b->t.logprob && a->t.n_top == b->t.n_top);
		for (size_t k = 0; k < a->t.n_top; k++)
			assert_true(a->top[k].token == b->top[k].token && a->top[k].logprob == b->top[k].logprob);
	}
	assert_true(x->n_done >= 2 && x->done[0] == 0 && x->done[x->n_done - 1] == x->req.n_prompt);
	for (size_t i = 1; i < x->n_done; i++)
		assert_true(x->done[i] > x->done[i - 1]);
}

/* ---- Tests ---- */

static void draw_alone(struct tokens_text x[N])
{
	struct odm_engine *e = open_engine(1, 256, 0);

	for (size_t i = 0; i < N; i++) {
		draw_text(&x[i], i);
		x[i].logits = calloc(CTX, sizeof(*x[i].logits));
		assert_non_null(x[i].logits);
		x[i].req.observer.logits = on_logits;
	}
	run(e, x);
	assert_int_equal(opened_engine_close(e), OD_OK);
	for (size_t i = 0; i < N; i++) {
		check_told(&x[i]);
		x[i].req.observer.logits = NULL;
		x[i].r_alone = x[i].r;
		x[i].r = (struct odm_result){ 0 };
		memcpy(x[i].alone, x[i].told, sizeof(x[i].alone));
		x[i].n_alone = x[i].n_told;
	}
}

static void everywhere_as_by_hand(void **state)
{
	static const struct {
		uint64_t parallel, rows;
		uint32_t workers;
		bool drafts;
	} set[] = { { 1, 7, 0, false }, { 4, 256, 0, false }, { 1, 256, 0, true },
		    { 4, 40, 0, true }, { 1, 64, 3, false },  { 4, 7, 3, true } };
	static struct tokens_text x[N];

	(void)state;
	draw_alone(x);
	for (size_t s = 0; s < sizeof(set) / sizeof(set[0]); s++) {
		struct odm_engine *e = open_engine(set[s].parallel, set[s].rows, set[s].workers);
		uint64_t drafted = 0, accepted = 0;

		for (size_t i = 0; i < N; i++)
			x[i].req.drafter =
				set[s].drafts ? (struct odm_drafter){ draft, &x[i] } : (struct odm_drafter){ 0 };
		run(e, x);
		for (size_t i = 0; i < N; i++) {
			check_as_alone(&x[i]);
			drafted += x[i].r.figures.c[OD_C_DRAFTED];
			accepted += x[i].r.figures.c[OD_C_ACCEPTED];
			odm_result_fini(&x[i].r);
		}
		if (set[s].drafts)
			assert_true(accepted > 10 && drafted > accepted + 10);
		assert_int_equal(opened_engine_close(e), OD_OK);
	}
	free_texts(x);
}

/* Without log probabilities the tokens still come. */
static void without_logprobs(void **state)
{
	static struct tokens_text x;
	struct odm_engine *e = open_engine(1, 256, 0);

	(void)state;
	draw_text(&x, 2);
	x.req.logprobs = -1;
	x.req.prompt_logprobs = false;
	submit(e, &x);
	assert_null(x.sequence->raw);
	while (odm_engine_work(e))
		;
	take(&x);
	assert_int_equal(x.n_told, x.r.n_tokens);
	for (size_t i = 0; i < x.n_told; i++) {
		assert_int_equal(x.told[i].t.token, x.r.tokens[i]);
		assert_true(!x.told[i].t.has_logprob && x.told[i].t.n_top == 0);
	}
	x.req.observer.token = NULL; /* nor is anything worked out when no one listens */
	x.req.logprobs = 3;
	odm_result_fini(&x.r);
	submit(e, &x);
	assert_null(x.sequence->raw);
	while (odm_engine_work(e))
		;
	take(&x);
	odm_result_fini(&x.r);
	assert_int_equal(opened_engine_close(e), OD_OK);
}

/* Prompts of which the first page is the same: one whose rows are wanted computes them all; others share. */
static void a_seen_prompt_is_not_shared(void **state)
{
	static struct tokens_text x[N];
	struct odm_engine *e = open_engine(N, 256, 0);
	unsigned shared = 0;

	(void)state;
	for (size_t i = 0; i < N; i++) {
		draw_text(&x[i], i);
		x[i].req.n_prompt = MAX_PROMPT;
		for (size_t k = 0; k < MAX_PROMPT; k++)
			x[i].prompt[k] = (int32_t)(k < 70 ? k : k + i);
		x[i].req.prompt_logprobs = i % 2 > 0;
	}
	run(e, x);
	for (size_t i = 0; i < N; i++) {
		const uint64_t tokens = x[i].r.figures.c[OD_C_SHARED_TOKENS];

		assert_int_equal(x[i].n_told, (i % 2 > 0 ? MAX_PROMPT : 0) + x[i].r.n_tokens);
		assert_int_equal(x[i].done[0], tokens);
		assert_int_equal(x[i].done[x[i].n_done - 1], MAX_PROMPT);
		assert_true(i % 2 == 0 || tokens == 0);
		shared += tokens > 0;
	}
	assert_true(shared >= 2);
	free_texts(x);
	assert_int_equal(opened_engine_close(e), OD_OK);
}

/* Prompts that are seen from a token on share what is before it, and their tokens have the log probabilities that
 * they have when all are seen. */
static void what_is_before_a_seen_part_is_shared(void **state)
{
	static const size_t from[] = { 0, 1, OD_KV_PAGE, OD_KV_PAGE + 1, MAX_PROMPT - 1 };
	static struct tokens_text x[N];
	static struct told all[N][CTX];
	struct odm_engine *e = open_engine(N, 256, 0);

	(void)state;
	for (size_t f = 0; f < sizeof(from) / sizeof(from[0]); f++) {
		unsigned shared = 0;

		for (size_t i = 0; i < N; i++) {
			draw_text(&x[i], 2);
			x[i].req.n_prompt = MAX_PROMPT;
			for (size_t k = 0; k < MAX_PROMPT; k++)
				x[i].prompt[k] = (int32_t)(k < 70 ? k : k + i);
			x[i].req.max_tokens = 4;
			x[i].req.prompt_logprobs_from = from[f];
		}
		run(e, x);
		for (size_t i = 0; i < N; i++) {
			const uint64_t tokens = x[i].r.figures.c[OD_C_SHARED_TOKENS];

			assert_int_equal(x[i].n_told, MAX_PROMPT - from[f] + x[i].r.n_tokens);
			assert_int_equal(x[i].told[0].t.position, from[f]);
			assert_true(tokens == 0 || (tokens == OD_KV_PAGE && from[f] > OD_KV_PAGE));
			shared += tokens > 0;
			if (f == 0)
				memcpy(all[i], x[i].told, sizeof(all[i]));
			for (size_t k = 0; k < x[i].n_told; k++) {
				const struct told *a = &all[i][from[f] + k], *b = &x[i].told[k];

				assert_true(a->t.token == b->t.token && a->t.logprob == b->t.logprob);
			}
			odm_result_fini(&x[i].r);
		}
		assert_int_equal(shared, from[f] > OD_KV_PAGE ? N - 1 : 0);
	}
	assert_int_equal(opened_engine_close(e), OD_OK);
}

/* Texts that wait before it; -1: it does not wait. */
static int position_of(const struct odm_sequence *q)
{
	int before = 0;

	if (q->phase != ODM_WAITING)
		return -1;
	for (const struct odm_sequence *other = q->engine->batch.first; other != q; other = other->next)
		before += other->phase == ODM_WAITING;
	return before;
}

struct texts_load {
	size_t running, waiting; /* texts */
	uint32_t free_pages; /* pages of the KV cache, neither used nor promised to a running text */
};

static struct texts_load load_of(const struct odm_engine *e)
{
	struct texts_load l = { .free_pages = od_state_pool_free_pages(e->model->state) };

	for (const struct odm_sequence *q = e->batch.first; q != NULL; q = q->next) {
		l.waiting += q->phase == ODM_WAITING;
		l.running += q->phase != ODM_WAITING;
	}
	return l;
}

/* Positions follow the order of arrival, whoever leaves. */
static void the_queue(void **state)
{
	static struct tokens_text x[N];
	struct odm_engine *e = open_engine(2, 256, 0);
	struct texts_load l;
	const uint32_t pages = e->model->n_pages;
	unsigned most = 0;
	bool more = true;

	(void)state;
	l = load_of(e);
	assert_true(l.running == 0 && l.waiting == 0 && l.free_pages == pages);
	for (size_t i = 0; i < N; i++) {
		draw_text(&x[i], i);
		submit(e, &x[i]);
		assert_int_equal(position_of(x[i].sequence), i);
	}
	l = load_of(e);
	assert_true(l.running == 0 && l.waiting == N && l.free_pages == pages);
	odm_sequence_cancel(x[4].sequence);
	while (more) {
		size_t running = 0, waiting = 0;

		more = odm_engine_work(e);
		for (size_t i = 0; i < N; i++) {
			const int position = position_of(x[i].sequence);

			if (odm_sequence_done(x[i].sequence)) {
				assert_int_equal(position, -1);
				continue;
			}
			if (x[i].n_done > 0) {
				assert_int_equal(position, -1);
				running++;
				continue;
			}
			assert_int_equal(position, waiting);
			waiting++;
		}
		l = load_of(e);
		assert_true(l.running == running && l.waiting == waiting);
		assert_int_equal(l.free_pages == pages, running == 0);
		most = running > most ? (unsigned)running : most;
	}
	assert_int_equal(most, 2);
	for (size_t i = 0; i < N; i++) {
		struct od_err err;

		assert_int_equal(odm_sequence_take(x[i].sequence, &x[i].r, &err), i == 4 ? OD_ERR_CANCELLED : OD_OK);
	}
	assert_true(x[4].n_done == 0 && x[4].n_told == 0);
	free_texts(x);
	assert_int_equal(opened_engine_close(e), OD_OK);
}

static void refuses(void **state)
{
	static struct tokens_text x;
	struct odm_engine *e = open_engine(1, 256, 0);
	struct odm_sequence *q;
	struct od_err err;

	(void)state;
	draw_text(&x, 1);
	x.req.logprobs = ODM_MAX_LOGPROBS + 1;
	assert_int_equal(odm_engine_submit(e, &x.req, &q, &err), OD_ERR_RANGE);
	assert_non_null(strstr(err.msg, "logprobs: expected -1 to 20, found 21"));
	x.req.logprobs = -2;
	assert_int_equal(odm_engine_submit(e, &x.req, &q, &err), OD_ERR_RANGE);
	x.req.logprobs = -1;
	assert_int_equal(odm_engine_submit(e, &x.req, &q, &err), OD_ERR_ARG);
	assert_non_null(strstr(err.msg, "prompt_logprobs"));
	x.req.logprobs = 0;
	x.req.prompt_logprobs_from = x.req.n_prompt;
	assert_int_equal(odm_engine_submit(e, &x.req, &q, &err), OD_ERR_RANGE);
	assert_non_null(strstr(err.msg, "prompt_logprobs_from"));
	x.req.prompt_logprobs_from = 0;
	x.req.prompt_logprobs = false;
	x.bias[1].token = VOCAB;
	assert_int_equal(odm_engine_submit(e, &x.req, &q, &err), OD_ERR_ARG);
	assert_non_null(strstr(err.msg, "logit_bias: expected tokens of 0 to 295, found 296"));
	assert_null(q);
	assert_int_equal(opened_engine_close(e), OD_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(everywhere_as_by_hand),
		cmocka_unit_test(without_logprobs),
		cmocka_unit_test(a_seen_prompt_is_not_shared),
		cmocka_unit_test(what_is_before_a_seen_part_is_shared),
		cmocka_unit_test(the_queue),
		cmocka_unit_test(refuses),
	};

	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}

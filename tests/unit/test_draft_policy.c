/* The policy of draft lengths on simulated clusters: what it learns is what was simulated, it is nearly as fast as the
 * best fixed length, and never much slower than plain decoding. The simulation knows the true probabilities and times;
 * the policy does not. Times are simulated. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "main-node/engine/draft_policy.h"
#include "tests/unit/random.h"

#define TOKENS 6000 /* tokens of each text */
#define MAX_TEXTS 8
#define FIRST 16 /* steps with drafts */
#define RUNS 20

struct draft_policy_world {
	const char *name;
	double a, b; /* parameters of P(right | margin) */
	double right; /* at least 0: P(right), whatever the margin */
	double step, row, experts; /* ns: a step, each row of it, each expert beyond `hidden` */
	double hidden; /* experts of a step that loads hide */
	double first, more; /* different experts of the first row, of each further one */
	double token; /* ns that the shadow needs for a row */
	double noise; /* a step's time varies by it, relative */
	double tokens; /* tokens of each text; 0: TOKENS */
	/* a step of drafting mode takes longer, relative: the shadow's work on the same cores */
	double mode;
	size_t texts[2]; /* the number of texts changes between these; 0: always one text */
};

static const struct draft_policy_world worlds[] = {
	{ .name = "fast shadow, sure",
	  .a = 3,
	  .b = 2,
	  .right = -1,
	  .step = 30e6,
	  .row = 1e6,
	  .first = 24,
	  .more = 10,
	  .token = 5e6 },
	{ .name = "shadow of 1.5",
	  .a = 2,
	  .b = 2,
	  .right = -1,
	  .step = 30e6,
	  .row = 1e6,
	  .first = 24,
	  .more = 10,
	  .token = 20e6 },
	{ .name = "loads limit",
	  .a = 1,
	  .b = 2,
	  .right = -1,
	  .step = 10e6,
	  .row = 1e6,
	  .experts = 0.5e6,
	  .first = 24,
	  .more = 16,
	  .token = 5e6 },
	{ .name = "loads hidden",
	  .a = 1,
	  .b = 2,
	  .right = -1,
	  .step = 20e6,
	  .row = 0.5e6,
	  .experts = 1e6,
	  .hidden = 60,
	  .first = 24,
	  .more = 12,
	  .token = 4e6 },
	{ .name = "half right",
	  .a = 0,
	  .b = 1,
	  .right = 0.5,
	  .step = 30e6,
	  .row = 3e6,
	  .first = 24,
	  .more = 10,
	  .token = 5e6 },
	{ .name = "rows cost all",
	  .a = 2,
	  .b = 1,
	  .right = -1,
	  .step = 1e6,
	  .row = 20e6,
	  .first = 24,
	  .more = 10,
	  .token = 5e6 },
	{ .name = "noise",
	  .a = 1,
	  .b = 2,
	  .right = -1,
	  .step = 30e6,
	  .row = 2e6,
	  .first = 24,
	  .more = 10,
	  .token = 6e6,
	  .noise = 0.2,
	  .tokens = 30000 },
	{ .name = "never right", .right = 0, .step = 30e6, .row = 1e6, .first = 24, .more = 10, .token = 5e6 },
	{ .name = "slow shadow",
	  .a = 3,
	  .b = 2,
	  .right = -1,
	  .step = 30e6,
	  .row = 1e6,
	  .first = 24,
	  .more = 10,
	  .token = 60e6 },
};

/* Texts that come and go. */
static const struct draft_policy_world changing[] = {
	{ .name = "1 text, 6 texts",
	  .a = 3,
	  .b = 2,
	  .right = -1,
	  .step = 30e6,
	  .row = 10e6,
	  .first = 24,
	  .more = 10,
	  .token = 1e6,
	  .texts = { 1, 6 } },
	{ .name = "4 texts, 2 texts",
	  .a = 2,
	  .b = 2,
	  .right = -1,
	  .step = 10e6,
	  .row = 6e6,
	  .first = 24,
	  .more = 10,
	  .token = 1e6,
	  .texts = { 4, 2 } },
	{ .name = "6 texts, a busy shadow",
	  .a = 3,
	  .b = 2,
	  .right = -1,
	  .step = 1e6,
	  .row = 10e6,
	  .first = 24,
	  .more = 10,
	  .token = 1e6,
	  .mode = 0.3,
	  .texts = { 6, 1 } },
};

struct draft_policy_run {
	double ns;
	uint64_t tokens, rows, steps, plain_steps;
	uint64_t first_tokens; /* counted in the first FIRST steps in drafting mode */
};

static double uniform(uint64_t *seed)
{
	return (double)random_below(seed, 1u << 30) / (1u << 30);
}

static double truly_right(const struct draft_policy_world *w, float margin)
{
	return w->right >= 0 ? w->right : 1 / (1 + exp(-(w->a + w->b * log1p(margin))));
}

static double wait_of(const struct draft_policy_world *w, double experts)
{
	return w->experts * fmax(experts - w->hidden, 0);
}

static double time_of(const struct draft_policy_world *w, size_t rows, double experts, bool drafting, uint64_t *seed)
{
	return (w->step + w->row * (double)rows) * (1 + w->noise * (2 * uniform(seed) - 1)) *
		       (1 + (drafting ? w->mode : 0)) +
	       wait_of(w, experts);
}

/* The texts of a world, which come and go. */
struct life {
	double tokens, next; /* each text's so far; when their number changes */
	size_t which; /* index into w->texts */
	uint64_t seed;
};

static size_t texts_of(const struct draft_policy_world *w, struct life *l)
{
	if (w->texts[0] == 0)
		return 1;
	while (l->tokens >= l->next) {
		l->next += 20 + (double)random_below(&l->seed, 180);
		l->which ^= 1;
	}
	return w->texts[l->which];
}

/* The shadow's draft: margins, and how much of it is right. */
struct draft_policy_shadow {
	float margin[2 * ODM_MAX_DRAFT + 2];
	size_t n, right;
	double ns; /* time that it has had for the next token */
};

static void run_shadow(const struct draft_policy_world *w, struct draft_policy_shadow *s, double ns, size_t most,
		       uint64_t *seed)
{
	for (s->ns += ns; s->n < most && s->ns >= w->token; s->ns -= w->token) {
		s->margin[s->n] = (float)(-3 * log(1 - uniform(seed)));
		if (s->right == s->n && uniform(seed) < truly_right(w, s->margin[s->n]))
			s->right++;
		s->n++;
	}
	if (s->n >= most)
		s->ns = 0;
}

/* kept tokens stood; behind a wrong one the shadow begins anew. */
static void correct_shadow(struct draft_policy_shadow *s, size_t verified, size_t kept)
{
	if (kept < verified || s->right < kept + 1) { /* the next token is the shadow's guess, too */
		*s = (struct draft_policy_shadow){ .ns = s->ns };
		return;
	}
	for (size_t i = kept + 1; i < s->n; i++)
		s->margin[i - kept - 1] = s->margin[i];
	s->n -= kept + 1;
	s->right -= kept + 1;
}

/* Drafts of the n texts, as long as the policy wants them. */
static struct odm_draft_step draft(const struct draft_policy_world *w, struct odm_draft_policy *p,
				   const struct draft_policy_shadow *s, size_t n, bool on, struct odm_draft *d)
{
	struct odm_draft_step step = { .texts = n, .rows = n };
	struct odm_draft *list[MAX_TEXTS];

	for (size_t t = 0; t < n; t++) {
		list[t] = &d[t];
		d[t] = (struct odm_draft){ 0 };
		for (size_t i = 0; i <= ODM_MAX_DRAFT; i++)
			d[t].experts[i] = (uint32_t)(w->first + w->more * (double)i);
		for (size_t i = 0; on && i < s[t].n && i < ODM_MAX_DRAFT; i++)
			d[t].margin[d[t].n++] = s[t].margin[i];
	}
	odm_draft_policy_cut(p, list, n, n * ODM_MAX_DRAFT);
	for (size_t t = 0; t < n; t++) {
		step.rows += d[t].n;
		step.experts += d[t].experts[d[t].n];
	}
	return step;
}

static void add_step(struct draft_policy_run *r, const struct odm_draft_step *step, bool on)
{
	r->ns += (double)step->ns;
	r->tokens += step->tokens;
	r->rows += step->rows;
	if (on && r->steps - r->plain_steps < FIRST)
		r->first_tokens += step->tokens;
	r->steps++;
	r->plain_steps += !on;
}

/* plain: never a draft. */
static struct draft_policy_run simulate(const struct draft_policy_world *w, struct odm_draft_policy *p, bool plain,
					uint64_t seed)
{
	struct draft_policy_shadow s[MAX_TEXTS] = { 0 };
	struct odm_draft d[MAX_TEXTS];
	struct life life = { .seed = seed };
	struct draft_policy_run r = { 0 };
	size_t before = 0;

	while (life.tokens < (w->tokens > 0 ? w->tokens : TOKENS)) {
		const bool on = !plain && odm_draft_policy_on(p);
		const size_t n = texts_of(w, &life);
		struct odm_draft_step step;

		for (; before < n; before++)
			s[before] = (struct draft_policy_shadow){ 0 };
		before = n;
		step = draft(w, p, s, n, on, d);
		step.ns = (uint64_t)time_of(w, step.rows, step.experts, on, &seed);
		step.wait_ns = (uint64_t)wait_of(w, step.experts);
		for (size_t t = 0; t < n; t++) {
			const size_t kept = s[t].right < d[t].n ? s[t].right : d[t].n;

			run_shadow(w, &s[t], (double)step.ns / (double)n,
				   d[t].n + (plain ? 1 : odm_draft_policy_ahead(p)), &seed);
			for (size_t i = 0; i <= kept && i < d[t].n; i++)
				odm_draft_policy_learn(p, d[t].margin[i], i < kept);
			correct_shadow(&s[t], d[t].n, kept);
			step.tokens += 1 + kept;
		}
		odm_draft_policy_timed(p, &step);
		add_step(&r, &step, on);
		life.tokens += (double)step.tokens / (double)n;
	}
	return r;
}

/* Tokens of a step in drafting mode. */
static double drafted_step(const struct draft_policy_run *r)
{
	return (double)(r->tokens - r->plain_steps) / (double)(r->steps - r->plain_steps);
}

static double rate(const struct draft_policy_run *r)
{
	return 1e9 * (double)r->tokens / r->ns;
}

static void try_world(const struct draft_policy_world *w, uint64_t seed)
{
	struct odm_draft_policy p;
	struct draft_policy_run chosen, plain;
	double best = 0;
	uint32_t best_at = 0;

	odm_draft_policy_init(&p, 0);
	plain = simulate(w, &p, true, seed);
	for (uint32_t n = 1; n <= ODM_MAX_DRAFT; n++) {
		struct draft_policy_run fixed;

		odm_draft_policy_init(&p, n);
		fixed = simulate(w, &p, false, seed);
		if (rate(&fixed) > best) {
			best = rate(&fixed);
			best_at = n;
		}
	}
	odm_draft_policy_init(&p, 0);
	chosen = simulate(w, &p, false, seed);
	print_message(
		"%-18s plain %6.1f, best fixed %2u: %6.1f, chosen %6.1f tok/s (%.3f of the best, %.3f of plain), %.2f rows a "
		"token, %.0f %% plain steps\n",
		w->name, rate(&plain), best_at, best, rate(&chosen), rate(&chosen) / fmax(best, rate(&plain)),
		rate(&chosen) / rate(&plain), (double)chosen.rows / (double)chosen.tokens,
		100.0 * (double)chosen.plain_steps / (double)chosen.steps);
	assert_true(rate(&chosen) >= 0.95 * best);
	assert_true(rate(&chosen) >= 0.97 * rate(&plain));
	if (w->right == 0)
		assert_true((double)chosen.rows <= 1.05 * (double)chosen.tokens);
}

static void test_lengths(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++)
		for (uint64_t seed = 1; seed <= 3; seed++)
			try_world(&worlds[i], seed);
}

static void test_changes(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(changing) / sizeof(changing[0]); i++)
		for (uint64_t seed = 1; seed <= 8; seed++)
			try_world(&changing[i], seed);
}

static void test_right(void **state)
{
	const struct draft_policy_world w = { .a = -1, .b = 2, .right = -1 };
	struct odm_draft_policy p;
	uint64_t seed = 3;

	(void)state;
	odm_draft_policy_init(&p, 0);
	for (int i = 0; i < 20000; i++) {
		const float margin = (float)(-3 * log(1 - uniform(&seed)));

		odm_draft_policy_learn(&p, margin, uniform(&seed) < truly_right(&w, margin));
	}
	for (float margin = 0; margin < 12; margin += 0.5f)
		assert_true(fabs(odm_draft_policy_right(&p, margin) - truly_right(&w, margin)) < 0.12);
	assert_true(odm_draft_policy_right(&p, INFINITY) > 0.9);
}

/* Prefetching follows the same probabilities. A run with drafts of a fixed length needs all of their rows. */
static void test_outlook(void **state)
{
	const struct draft_policy_world w = { .a = -1, .b = 2, .right = -1 };
	struct odm_draft_policy p;
	struct odm_outlook o;
	uint64_t seed = 4;

	(void)state;
	odm_draft_policy_init(&p, 0);
	for (int i = 0; i < 20000; i++) {
		const float margin = (float)(-3 * log(1 - uniform(&seed)));

		odm_draft_policy_learn(&p, margin, uniform(&seed) < truly_right(&w, margin));
	}
	o = odm_draft_policy_outlook(&p);
	for (float margin = 0; margin < 12; margin += 0.5f)
		assert_true(fabs(odm_outlook_right(o.right, margin) - truly_right(&w, margin)) < 0.12);
	assert_true(o.least > 0 && o.least <= 0.5);
	odm_draft_policy_init(&p, 4);
	assert_true(odm_draft_policy_outlook(&p).least == 0);
}

/* A shadow that is away, or cannot run ahead, for as long as may be: what is learnt meanwhile spoils nothing. */
static void test_long_absence(void **state)
{
	const struct draft_policy_world *w = &worlds[0];
	struct odm_draft_policy p;
	struct draft_policy_run before, after;

	(void)state;
	odm_draft_policy_init(&p, 0);
	before = simulate(w, &p, false, 1);
	for (uint64_t steps = 0; steps < 100000; steps++) {
		struct odm_draft d = { .experts = { (uint32_t)w->first } }, *list = &d;

		odm_draft_policy_cut(&p, &list, 1, ODM_MAX_DRAFT);
		odm_draft_policy_timed(&p,
				       &(struct odm_draft_step){ .texts = 1,
								 .rows = 1,
								 .tokens = 1,
								 .experts = w->first,
								 .ns = (uint64_t)(w->step + w->row) + steps % 1000 });
	}
	after = simulate(w, &p, false, 1);
	assert_true(rate(&after) > 0.8 * rate(&before)); /* the next trial is up to 1024 steps away */
}

/* A text that the shadow half knows, then one that it does not know: much was learnt, and drafts are off. On a text
 * that it knows well they are soon nearly as long as if nothing had been learnt before. */
static void test_better_text(void **state)
{
	static const double half[] = { 0.4, 0.45, 0.5, 0.6 };
	struct draft_policy_world w = { .step = 20e6, .row = 10e6, .first = 24, .more = 10, .token = 4e6 };
	double first = 0, ratio = 0;

	(void)state;
	for (uint64_t i = 0; i < RUNS; i++) {
		struct odm_draft_policy p, fresh;
		struct draft_policy_run bad, good, best;

		odm_draft_policy_init(&p, 0);
		odm_draft_policy_init(&fresh, 0);
		w.right = half[i % 4];
		simulate(&w, &p, false, i);
		w.right = 0.1;
		bad = simulate(&w, &p, false, i);
		w.right = 0.98;
		good = simulate(&w, &p, false, i);
		best = simulate(&w, &fresh, false, i);
		assert_true((double)bad.rows <= 1.05 * (double)bad.tokens);
		first += (double)good.first_tokens / FIRST / RUNS;
		ratio += drafted_step(&good) / drafted_step(&best) / RUNS;
	}
	print_message(
		"a better text: %.2f tokens in each of the first %d steps with drafts, %.3f of what a new policy drafts\n",
		first, FIRST, ratio);
	assert_true(first > 2.3);
	assert_true(ratio > 0.9);
}

/* Times that no clock gives, and waits longer than their step. */
static void test_strange_times(void **state)
{
	static const uint64_t ns[] = { 0, 1, UINT64_MAX, 30000000 };
	struct odm_draft_policy p;
	struct draft_policy_run r, plain;

	(void)state;
	odm_draft_policy_init(&p, 0);
	plain = simulate(&worlds[0], &p, true, 1);
	odm_draft_policy_init(&p, 0);
	for (size_t i = 0; i < 400; i++)
		odm_draft_policy_timed(&p, &(struct odm_draft_step){ .texts = 1 + i % 3,
								     .rows = 1 + i % 5,
								     .tokens = 1,
								     .experts = 24,
								     .ns = ns[i % 4],
								     .wait_ns = ns[i / 4 % 4] });
	r = simulate(&worlds[0], &p, false, 1);
	for (size_t i = 0; i < ODM_TIME_TERMS; i++)
		assert_true(isfinite(p.work.w[i]) && isfinite(p.wait.w[i]));
	assert_true(rate(&r) > 0.97 * rate(&plain));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lengths),	      cmocka_unit_test(test_changes),
		cmocka_unit_test(test_right),	      cmocka_unit_test(test_outlook),
		cmocka_unit_test(test_long_absence),  cmocka_unit_test(test_better_text),
		cmocka_unit_test(test_strange_times),
	};

	return cmocka_run_group_tests_name("draft_policy", tests, NULL, NULL);
}

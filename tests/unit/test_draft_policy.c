/* The policy of draft lengths on simulated clusters: what it learns is what was simulated, it is nearly as fast as the best fixed
 * length, and never much slower than plain decoding. The simulation knows the true probabilities and times; the policy does not.
 * Times are simulated. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "main-node/engine/draft_policy.h"
#include "tests/unit/random.h"

#define TOKENS 6000u

struct world {
	const char *name;
	double a, b;		   /* of P(right | margin) */
	double right;		   /* at least 0: P(right), whatever the margin */
	double step, row, experts; /* ns: a step, each row of it, each expert beyond `hidden` */
	double hidden;		   /* experts of a step that loads hide */
	double first, more;	   /* different experts of the first row, of each further one */
	double token;		   /* ns that the shadow needs for a row */
	double noise;		   /* of a step's time, relative */
};

static const struct world worlds[] = {
	{ .name = "fast shadow, sure", .a = 3, .b = 2, .right = -1, .step = 30e6, .row = 1e6, .first = 24, .more = 10, .token = 5e6 },
	{ .name = "shadow of 1.5", .a = 2, .b = 2, .right = -1, .step = 30e6, .row = 1e6, .first = 24, .more = 10, .token = 20e6 },
	{ .name = "loads limit", .a = 1, .b = 2, .right = -1, .step = 10e6, .row = 1e6, .experts = 0.5e6, .first = 24, .more = 16,
	  .token = 5e6 },
	{ .name = "loads hidden", .a = 1, .b = 2, .right = -1, .step = 20e6, .row = 0.5e6, .experts = 1e6, .hidden = 60, .first = 24,
	  .more = 12, .token = 4e6 },
	{ .name = "half right", .a = 0, .b = 1, .right = 0.5, .step = 30e6, .row = 3e6, .first = 24, .more = 10, .token = 5e6 },
	{ .name = "rows cost all", .a = 2, .b = 1, .right = -1, .step = 1e6, .row = 20e6, .first = 24, .more = 10, .token = 5e6 },
	{ .name = "noise", .a = 1, .b = 2, .right = -1, .step = 30e6, .row = 2e6, .first = 24, .more = 10, .token = 6e6, .noise = 0.2 },
	{ .name = "never right", .right = 0, .step = 30e6, .row = 1e6, .first = 24, .more = 10, .token = 5e6 },
	{ .name = "slow shadow", .a = 3, .b = 2, .right = -1, .step = 30e6, .row = 1e6, .first = 24, .more = 10, .token = 60e6 },
};

struct run {
	double ns;
	uint64_t tokens, rows, steps, drafted, plain_steps;
};

static double uniform(uint64_t *seed)
{
	return (double)random_below(seed, 1u << 30) / (1u << 30);
}

static double truly_right(const struct world *w, float margin)
{
	return w->right >= 0 ? w->right : 1 / (1 + exp(-(w->a + w->b * log1p(margin))));
}

static double wait_of(const struct world *w, double experts)
{
	return w->experts * fmax(experts - w->hidden, 0);
}

static double time_of(const struct world *w, size_t rows, double experts, uint64_t *seed)
{
	return (w->step + w->row * (double)rows) * (1 + w->noise * (2 * uniform(seed) - 1)) + wait_of(w, experts);
}

/* The shadow's draft: margins, and how much of it is right. */
struct shadow {
	float margin[2 * ODM_MAX_DRAFT + 2];
	size_t n, right;
	double ns; /* that it has had for the next token */
};

static void run_shadow(const struct world *w, struct shadow *s, double ns, size_t most, uint64_t *seed)
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
static void correct_shadow(struct shadow *s, size_t verified, size_t kept)
{
	if (kept < verified || s->right < kept + 1) { /* the next token is the shadow's guess, too */
		*s = (struct shadow){ .ns = s->ns };
		return;
	}
	for (size_t i = kept + 1; i < s->n; i++)
		s->margin[i - kept - 1] = s->margin[i];
	s->n -= kept + 1;
	s->right -= kept + 1;
}

/* plain: never a draft. */
static struct run simulate(const struct world *w, struct odm_draft_policy *p, bool plain, uint64_t seed)
{
	struct shadow s = { 0 };
	struct run r = { 0 };

	while (r.tokens < TOKENS) {
		struct odm_draft d = { 0 }, *list = &d;
		const bool on = !plain && odm_draft_policy_on(p);
		size_t kept;
		double ns;

		for (size_t i = 0; i <= ODM_MAX_DRAFT; i++)
			d.experts[i] = (uint32_t)(w->first + w->more * (double)i);
		for (size_t i = 0; on && i < s.n && i < ODM_MAX_DRAFT; i++)
			d.margin[d.n++] = s.margin[i];
		odm_draft_policy_cut(p, &list, 1, ODM_MAX_DRAFT);
		kept = s.right < d.n ? s.right : d.n;
		ns = time_of(w, 1 + d.n, d.experts[d.n], &seed);
		run_shadow(w, &s, ns, d.n + (plain ? 1 : odm_draft_policy_ahead(p)), &seed);
		for (size_t i = 0; i <= kept && i < d.n; i++)
			odm_draft_policy_learn(p, d.margin[i], i < kept);
		odm_draft_policy_timed(p, &(struct odm_draft_step){ .texts = 1, .rows = 1 + d.n, .tokens = 1 + kept,
								     .experts = d.experts[d.n], .ns = (uint64_t)ns,
								     .wait_ns = (uint64_t)wait_of(w, d.experts[d.n]) });
		correct_shadow(&s, d.n, kept);
		r.ns += ns;
		r.tokens += 1 + kept;
		r.rows += 1 + d.n;
		r.drafted += d.n;
		r.steps++;
		r.plain_steps += !on;
	}
	return r;
}

static double rate(const struct run *r)
{
	return 1e9 * (double)r->tokens / r->ns;
}

static void try_world(const struct world *w, uint64_t seed)
{
	struct odm_draft_policy p;
	struct run chosen, plain;
	double best = 0;
	uint32_t best_at = 0;

	odm_draft_policy_init(&p, 0);
	plain = simulate(w, &p, true, seed);
	for (uint32_t n = 1; n <= ODM_MAX_DRAFT; n++) {
		struct run fixed;

		odm_draft_policy_init(&p, n);
		fixed = simulate(w, &p, false, seed);
		if (rate(&fixed) > best) {
			best = rate(&fixed);
			best_at = n;
		}
	}
	odm_draft_policy_init(&p, 0);
	chosen = simulate(w, &p, false, seed);
	print_message("%-18s plain %6.1f, best fixed %2u: %6.1f, chosen %6.1f tok/s (%.3f of the best, %.3f of plain), %.2f rows a "
		      "token, %.0f %% plain steps\n", w->name, rate(&plain), best_at, best, rate(&chosen),
		      rate(&chosen) / fmax(best, rate(&plain)), rate(&chosen) / rate(&plain),
		      (double)chosen.rows / (double)chosen.tokens, 100.0 * (double)chosen.plain_steps / (double)chosen.steps);
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

static void test_right(void **state)
{
	const struct world w = { .a = -1, .b = 2, .right = -1 };
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

/* A shadow that is away, or cannot run ahead, for as long as may be: what is learnt meanwhile spoils nothing. */
static void test_long_absence(void **state)
{
	const struct world *w = &worlds[0];
	struct odm_draft_policy p;
	struct run before, after;

	(void)state;
	odm_draft_policy_init(&p, 0);
	before = simulate(w, &p, false, 1);
	for (uint64_t steps = 0; steps < 100000; steps++) {
		struct odm_draft d = { .experts = { (uint32_t)w->first } }, *list = &d;

		odm_draft_policy_cut(&p, &list, 1, ODM_MAX_DRAFT);
		odm_draft_policy_timed(&p, &(struct odm_draft_step){ .texts = 1, .rows = 1, .tokens = 1, .experts = w->first,
								     .ns = (uint64_t)(w->step + w->row) + steps % 1000 });
	}
	after = simulate(w, &p, false, 1);
	assert_true(rate(&after) > 0.8 * rate(&before)); /* the next trial is up to 1024 steps away */
}

/* Times that no clock gives, and waits longer than their step. */
static void test_strange_times(void **state)
{
	static const uint64_t ns[] = { 0, 1, UINT64_MAX, 30000000 };
	struct odm_draft_policy p;
	struct run r, plain;

	(void)state;
	odm_draft_policy_init(&p, 0);
	plain = simulate(&worlds[0], &p, true, 1);
	odm_draft_policy_init(&p, 0);
	for (size_t i = 0; i < 400; i++)
		odm_draft_policy_timed(&p, &(struct odm_draft_step){ .texts = 1 + i % 3, .rows = 1 + i % 5, .tokens = 1, .experts = 24,
								     .ns = ns[i % 4], .wait_ns = ns[i / 4 % 4] });
	r = simulate(&worlds[0], &p, false, 1);
	for (size_t i = 0; i < ODM_TIME_TERMS; i++)
		assert_true(isfinite(p.work.w[i]) && isfinite(p.wait.w[i]));
	assert_true(rate(&r) > 0.97 * rate(&plain));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lengths),
		cmocka_unit_test(test_right),
		cmocka_unit_test(test_long_absence),
		cmocka_unit_test(test_strange_times),
	};

	return cmocka_run_group_tests_name("draft_policy", tests, NULL, NULL);
}

/* The earlier token that went the same way: against a search in double over all that is kept, from an empty store to
 * one that has had to forget; and by hand. */
#include "tests/unit/predictor_world.h"

#include <math.h>
#include <string.h>

#define LAYERS 6
#define EXPERTS 9
#define TOP_K 2
#define HIDDEN 16
#define VOCAB 30
#define STORE 1024 /* tokens that it keeps */
#define AHEAD 3
#define CLOSE 1e-5

static const struct pw_shape shape = { LAYERS, EXPERTS, TOP_K, HIDDEN, VOCAB, 1100, false, false };

struct way {
	int32_t token;
	bool whole; /* all its layers are known */
	double p[LAYERS][EXPERTS];
};

struct plain { /* a store by definition; the newest is the last */
	struct way way[8000];
	size_t n;
};

static double cosine(const double *a, const double *b, size_t n)
{
	double ab = 0, aa = 0, bb = 0;

	for (size_t i = 0; i < n; i++) {
		ab += a[i] * b[i];
		aa += a[i] * a[i];
		bb += b[i] * b[i];
	}
	return ab / sqrt(aa * bb);
}

static double alike(const struct predictor_world *w, int32_t a, int32_t b)
{
	double x[HIDDEN], y[HIDDEN];

	for (size_t i = 0; i < HIDDEN; i++) {
		x[i] = w->embed[(size_t)a * HIDDEN + i];
		y[i] = w->embed[(size_t)b * HIDDEN + i];
	}
	return a == b ? 2 : cosine(x, y, HIDDEN);
}

/* The experts of layers [m, m + AHEAD) that must be said when `now` is known up to m; false: too close to call. */
static bool expected(const struct plain *p, const struct predictor_world *w, const struct way *now, uint32_t m,
		     const struct way **match)
{
	double of_best = -1, second = -1;

	*match = NULL;
	for (size_t i = p->n < STORE ? 0 : p->n - STORE; i < p->n; i++) {
		double like;

		if (!p->way[i].whole)
			continue;
		like = m == 0 ? alike(w, now->token, p->way[i].token) :
				cosine(&now->p[0][0], &p->way[i].p[0][0], m * EXPERTS);

		if (like >= of_best) { /* the newest of equal ones */
			second = m == 0 && p->way[i].token == now->token ? second : of_best;
			of_best = like;
			*match = &p->way[i];
		} else if (like > second) {
			second = like;
		}
	}
	return *match != NULL && of_best - second > CLOSE;
}

static unsigned check_said(const struct plain *p, const struct predictor_world *w, const struct way *now, size_t row,
			   uint32_t m)
{
	const struct way *match;
	unsigned checked = 0;

	if (!expected(p, w, now, m, &match))
		return 0;
	for (uint32_t at = m; at < LAYERS && at < m + AHEAD; at++) {
		const struct pw_said *s = pw_word(w, row, at);
		uint16_t expert[TOP_K];

		assert_non_null(s);
		for (size_t i = 0; i < s->p.n; i++)
			assert_true(fabs(s->probability[i] - match->p[at][s->expert[i]]) < 1e-5);
		if (pw_best(match->p[at], EXPERTS, TOP_K, expert)) {
			assert_true(pw_same_set(expert, s->expert, TOP_K));
			checked++;
		}
	}
	return checked;
}

/* stop: the layer before which the step is given up; LAYERS: never. */
static unsigned run_step(struct predictor_world *w, struct plain *p, bool prompt, size_t n_rows, uint32_t stop)
{
	static struct way now[1100];
	unsigned checked = 0;

	pw_begin(w, prompt, n_rows, NULL);
	for (size_t r = 0; r < n_rows; r++)
		now[r].token = w->step.row[r].token;
	for (uint32_t m = 0; m <= LAYERS; m++) {
		for (size_t r = 0; r < n_rows && !prompt; r++)
			checked += check_said(p, w, &now[r], r, m);
		pw_forget(w);
		if (m == stop)
			break;
		pw_draw_rows(w);
		for (size_t r = 0; r < n_rows; r++) {
			for (size_t e = 0; e < EXPERTS; e++)
				now[r].p[m][e] = w->rows[r].probability[e];
		}
		pw_routed(w, m);
	}
	for (size_t r = 0; r < n_rows && stop == LAYERS; r++) {
		p->way[p->n] = now[r];
		p->way[p->n++].whole = true;
	}
	return checked;
}

/* A prompt's step, and whole steps of another between its layers: the prompt's tokens are older, and are no match
 * before its last layer. */
static unsigned run_prompt_with_steps_between(struct predictor_world *w, struct plain *p, size_t n_rows, size_t between)
{
	const size_t first = p->n;
	struct od_predict_step prompt;
	unsigned checked = 0;

	pw_begin(w, true, n_rows, NULL);
	prompt = w->step;
	for (size_t r = 0; r < n_rows; r++)
		p->way[p->n++] = (struct way){ .token = w->step.row[r].token };
	for (uint32_t m = 0; m < LAYERS; m++) {
		for (size_t i = 0; i < between; i++)
			checked += run_step(w, p, false, 1 + pw_draw(w, 4),
					    m + 1 < LAYERS && pw_draw(w, 5) == 0 ? m : LAYERS);
		w->step = prompt;
		pw_draw_rows(w);
		for (size_t r = 0; r < n_rows; r++)
			for (size_t e = 0; e < EXPERTS; e++)
				p->way[first + r].p[m][e] = w->rows[r].probability[e];
		pw_routed(w, m);
	}
	for (size_t r = 0; r < n_rows; r++)
		p->way[first + r].whole = true;
	return checked;
}

static void steps_between_the_layers_of_a_prompt(void **state)
{
	static struct plain p;
	struct predictor_world w;
	unsigned checked = 0;

	(void)state;
	pw_open(&w, "trajectory", shape);
	run_step(&w, &p, true, 200, LAYERS);
	for (size_t i = 0; i < 12; i++) {
		checked += run_prompt_with_steps_between(&w, &p, 1 + pw_draw(&w, 120), 1 + i % 3);
		run_step(&w, &p, true, 3, LAYERS / 2); /* a prompt that is given up */
	}
	assert_true(p.n > STORE);
	assert_true(checked > 1500);
	/* One that needs more than the store has: the steps between take entries of its own. */
	checked += run_prompt_with_steps_between(&w, &p, STORE + 50, 2);
	assert_true(run_step(&w, &p, false, 3, LAYERS) > 30);
	pw_close(&w);
}

static void search(bool in_file)
{
	static struct plain p;
	struct pw_shape of = shape;
	struct predictor_world w;
	unsigned checked = 0;

	p.n = 0;
	of.in_file = in_file;
	pw_open(&w, "trajectory", of);
	pw_begin(&w, false, 1, NULL);
	assert_int_equal(w.n_said, 0); /* nothing is known */
	run_step(&w, &p, true, 5, LAYERS);
	for (int i = 0; i < 30; i++)
		checked += run_step(&w, &p, false, 1 + pw_draw(&w, 4), i % 7 == 3 ? (uint32_t)i % LAYERS : LAYERS);
	run_step(&w, &p, true, 990, LAYERS);
	for (int i = 0; i < 40; i++)
		checked += run_step(&w, &p, false, 1 + pw_draw(&w, 4), i % 7 == 3 ? (uint32_t)i % LAYERS : LAYERS);
	assert_true(p.n > STORE);
	assert_true(checked > 1500); /* about 2000 in all */
	assert_true((w.n_read > 1000) == in_file);
	pw_close(&w);
}

static void against_a_plain_search(void **state)
{
	(void)state;
	search(false);
	search(true);
}

/* A step of one row that goes one way, through expert first of every layer. */
static void go(struct predictor_world *w, bool prompt, int32_t token, uint16_t first, uint32_t layers)
{
	pw_begin(w, prompt, 1, &token);
	for (uint32_t m = 0; m < layers; m++) {
		for (size_t e = 0; e < EXPERTS; e++)
			w->probability[e] = e == first ? 0.6f : 0.05f;
		pw_routed(w, m);
	}
}

static void by_hand(void **state)
{
	struct predictor_world w;

	(void)state;
	pw_open(&w, "trajectory", shape);
	go(&w, true, 3, 5, LAYERS);
	go(&w, true, 4, 6, LAYERS);
	go(&w, true, 3, 7, LAYERS);
	go(&w, true, 4, 8, LAYERS - 1); /* given up: it did not happen */
	pw_forget(&w);
	go(&w, false, 4, 5, 0);
	assert_int_equal(w.n_said, AHEAD);
	assert_int_equal(pw_word(&w, 0, 2)->expert[0], 6);
	go(&w, false, 3, 5, 0);
	assert_int_equal(pw_word(&w, 0, 0)->expert[0], 7); /* the newest of the same token */
	pw_forget(&w);
	go(&w, false, 3, 5, 1);
	assert_int_equal(pw_word(&w, 0, 0)->expert[0], 7);
	assert_int_equal(pw_word(&w, 0, 1)->expert[0], 5); /* now its way is known */
	assert_int_equal(pw_word(&w, 0, 3)->expert[0], 5);
	assert_null(pw_word(&w, 0, 4));
	assert_true(fabsf(pw_word(&w, 0, 1)->probability[0] - 0.6f) < 1e-6f);
	pw_close(&w);
}

static void a_prompt_longer_than_the_store(void **state)
{
	static struct plain p;
	struct predictor_world w;

	(void)state;
	pw_open(&w, "trajectory", shape);
	run_step(&w, &p, true, 20, LAYERS);
	run_step(&w, &p, true, 1100, LAYERS);
	assert_true(run_step(&w, &p, false, 3, LAYERS) > 30);
	assert_true(run_step(&w, &p, false, 3, LAYERS) > 30);
	pw_close(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(against_a_plain_search),
		cmocka_unit_test(steps_between_the_layers_of_a_prompt),
		cmocka_unit_test(by_hand),
		cmocka_unit_test(a_prompt_longer_than_the_store),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

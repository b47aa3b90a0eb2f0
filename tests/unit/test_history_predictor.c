/* The most similar earlier sequence: against a search in double over whole matrices, from an empty store to one that
 * has had to forget; and by hand. */
#include "tests/unit/predictor_world.h"

#include <math.h>
#include <string.h>

#define LAYERS 4
#define EXPERTS 10
#define TOP_K 2
#define STORE 128 /* sequences that it keeps */
#define SEQUENCES 150
#define CLOSE 1e-5

static const struct pw_shape shape = { LAYERS, EXPERTS, TOP_K, 8, 5, 12, false, false };

struct matrix {
	double n[LAYERS][EXPERTS];
};

struct plain { /* a store by definition */
	struct matrix now[PW_MAX_SEQUENCES], over[STORE]; /* now: by sequence mod PW_MAX_SEQUENCES */
	size_t n_over;
};

static double cosine(const double *a, const double *b)
{
	double ab = 0, aa = 0, bb = 0;

	for (size_t e = 0; e < EXPERTS; e++) {
		ab += a[e] * b[e];
		aa += a[e] * a[e];
		bb += b[e] * b[e];
	}
	return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}

/* STORE: there is none. *clear: no other is as near. */
static size_t most_alike(const struct plain *p, const struct matrix *now, bool *clear)
{
	size_t best = STORE;
	double of_best = -1, second = -1;

	for (size_t i = 0; i < p->n_over; i++) {
		double like = 0;

		for (size_t m = 0; m < LAYERS; m++)
			like += cosine(now->n[m], p->over[i].n[m]);
		if (like > of_best) {
			second = of_best;
			of_best = like;
			best = i;
		} else if (like > second) {
			second = like;
		}
	}
	*clear = best == STORE || of_best - second > CLOSE;
	return best;
}

static void add_share(double *score, const double *n)
{
	double all = 0;

	for (size_t e = 0; e < EXPERTS; e++)
		all += n[e];
	for (size_t e = 0; e < EXPERTS && all > 0; e++)
		score[e] += n[e] / all;
}

/* The expected prediction for layer m now; false when it is too close to call. */
static bool expected(const struct plain *p, const struct matrix *now, size_t m, uint16_t *expert)
{
	double score[EXPERTS] = { 0 };
	bool clear;
	size_t match = most_alike(p, now, &clear);

	add_share(score, now->n[m]);
	if (match < STORE)
		add_share(score, p->over[match].n[m]);
	return clear && pw_best(score, EXPERTS, TOP_K, expert);
}

static void count(struct plain *p, const struct predictor_world *w, uint32_t m)
{
	for (size_t r = 0; r < w->step.n_rows; r++) {
		for (size_t i = 0; i < TOP_K; i++)
			p->now[w->step.row[r].sequence % PW_MAX_SEQUENCES].n[m][w->rows[r].expert[i]]++;
	}
}

static void end_sequence(struct plain *p, uint64_t sequence)
{
	struct matrix *now = &p->now[sequence % PW_MAX_SEQUENCES];
	bool clear = true;
	size_t at = p->n_over < STORE ? p->n_over++ : most_alike(p, now, &clear);

	assert_true(clear); /* else the two stores may part; another seed helps */
	p->over[at] = *now;
	*now = (struct matrix){ 0 };
}

/* A kind of sequence prefers some experts. */
static void draw_rows(struct predictor_world *w, uint32_t kind, uint32_t m)
{
	pw_draw_rows(w);
	for (size_t r = 0; r < w->step.n_rows; r++)
		w->probability[r * EXPERTS + (kind * 7 + m * 3) % EXPERTS] += 0.3f;
}

/* Runs the layers of the step that has begun. */
static unsigned run_layers(struct predictor_world *w, struct plain *p, uint32_t kind)
{
	unsigned checked = 0;

	for (uint32_t m = 0; m < LAYERS; m++) {
		for (size_t r = 0; r < w->step.n_rows && !w->step.prompt; r++) {
			const struct pw_said *s = pw_word(w, r, m);
			uint16_t expert[TOP_K];

			if (w->row[r].quiet)
				assert_null(s);
			if (w->row[r].quiet || !expected(p, &p->now[w->row[r].sequence % PW_MAX_SEQUENCES], m, expert))
				continue;
			assert_non_null(s);
			assert_true(pw_same_set(expert, s->expert, TOP_K));
			checked++;
		}
		draw_rows(w, kind, m);
		pw_routed(w, m);
		count(p, w, m);
	}
	pw_forget(w);
	return checked;
}

static unsigned run_step(struct predictor_world *w, struct plain *p, uint32_t kind, bool prompt, size_t n_rows)
{
	pw_begin(w, prompt, n_rows, NULL);
	return run_layers(w, p, kind);
}

static void against_a_plain_search(void **state)
{
	static struct plain p;
	struct predictor_world w;
	unsigned checked = 0;

	(void)state;
	pw_open(&w, "history", shape);
	for (uint32_t s = 1; s <= SEQUENCES; s++) {
		uint32_t kind = pw_draw(&w, 40);

		w.sequence = s;
		od_predictor_begin_sequence(w.predictor, s);
		run_step(&w, &p, kind, true, 4 + pw_draw(&w, 8));
		for (int step = 0; step < 4; step++)
			checked += run_step(&w, &p, kind, false, 1 + pw_draw(&w, 3));
		od_predictor_end_sequence(w.predictor, s);
		end_sequence(&p, s);
	}
	assert_int_equal(p.n_over, STORE);
	assert_true(checked > 2000); /* about 4800 in all; shares are often equal */
	pw_close(&w);
}

/* Steps with rows of several sequences, which begin and end at any time. */
static void side_by_side(void **state)
{
	static struct plain p;
	struct predictor_world w;
	uint64_t open[PW_MAX_SEQUENCES] = { 0 }, last = 0; /* open: by sequence mod PW_MAX_SEQUENCES */
	unsigned checked = 0;

	(void)state;
	pw_open(&w, "history", shape);
	od_predictor_end_sequence(w.predictor, 99); /* one that never began */
	for (int step = 0; step < 400; step++) {
		const size_t at = pw_draw(&w, PW_MAX_SEQUENCES);
		struct od_predict_row row[12];
		size_t n = 0;

		if (open[at] != 0 && pw_draw(&w, 3) == 0) {
			od_predictor_end_sequence(w.predictor, open[at]);
			end_sequence(&p, open[at]);
			open[at] = 0;
		} else if (open[at] == 0) {
			open[at] = last += PW_MAX_SEQUENCES;
			open[at] += at;
			od_predictor_begin_sequence(w.predictor, open[at]);
		}
		for (size_t i = PW_MAX_SEQUENCES; i-- > 0;)
			for (uint32_t k = 1 + pw_draw(&w, 3), j = 0; open[i] != 0 && j < k; j++)
				row[n++] = (struct od_predict_row){ .sequence = open[i],
								    .position = 17 + j,
								    .quiet = pw_draw(&w, 4) == 0 };
		pw_begin_rows(&w, pw_draw(&w, 4) == 0, n, row);
		checked += run_layers(&w, &p, pw_draw(&w, 40));
	}
	assert_true(p.n_over > 40 && p.n_over < STORE);
	assert_true(checked > 1000);
	pw_close(&w);
}

static void route(struct predictor_world *w, uint32_t m, uint16_t first, uint16_t second)
{
	for (size_t e = 0; e < EXPERTS; e++)
		w->probability[e] = 0.01f;
	w->probability[first] = 0.6f;
	w->probability[second] = 0.3f;
	pw_routed(w, m);
}

static void decode(struct predictor_world *w, const uint16_t way[LAYERS][TOP_K])
{
	pw_begin(w, false, 1, NULL);
	for (uint32_t m = 0; m < LAYERS; m++)
		route(w, m, way[m][0], way[m][1]);
}

static void by_hand(void **state)
{
	static const uint16_t a[LAYERS][TOP_K] = { { 0, 1 }, { 0, 1 }, { 0, 1 }, { 0, 1 } };
	static const uint16_t b[LAYERS][TOP_K] = { { 2, 3 }, { 4, 5 }, { 6, 7 }, { 8, 9 } };
	struct predictor_world w;
	const struct pw_said *s;

	(void)state;
	pw_open(&w, "history", shape);
	od_predictor_begin_sequence(w.predictor, 1);
	od_predictor_end_sequence(w.predictor, 1); /* nothing happened: not worth keeping */
	od_predictor_begin_sequence(w.predictor, w.sequence = 2);
	decode(&w, a);
	assert_int_equal(w.n_said, 0); /* nothing is known */
	od_predictor_end_sequence(w.predictor, 2);
	od_predictor_begin_sequence(w.predictor, w.sequence = 3);
	decode(&w, b);
	assert_int_equal(w.n_said, LAYERS); /* the only one there is, before layer 0; no better match after that */
	assert_true(pw_same_set(pw_word(&w, 0, 3)->expert, a[3], TOP_K));
	od_predictor_end_sequence(w.predictor, 3);
	pw_forget(&w);
	od_predictor_begin_sequence(w.predictor, w.sequence = 4);
	pw_begin(&w, false, 1, NULL);
	assert_true(pw_same_set(pw_word(&w, 0, 2)->expert, a[2], TOP_K)); /* equally unlike: the oldest */
	pw_forget(&w);
	route(&w, 0, 2, 9);
	assert_int_equal(w.n_said, LAYERS - 1); /* now it is like b: what is left is said again */
	assert_true(pw_same_set(pw_word(&w, 0, 1)->expert, b[1], TOP_K));
	assert_true(pw_same_set(pw_word(&w, 0, 3)->expert, b[3], TOP_K));
	pw_begin(&w, false, 1, NULL); /* the step before did not end */
	s = pw_word(&w, 0, 0);
	assert_int_equal(s->expert[0], 2); /* half of its own, half of b's */
	assert_true(fabsf(s->probability[0] - 0.5f) < 1e-6f);
	assert_true(fabsf(s->probability[1] - 0.25f) < 1e-6f);
	pw_close(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(against_a_plain_search),
		cmocka_unit_test(side_by_side),
		cmocka_unit_test(by_hand),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

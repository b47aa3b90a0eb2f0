/* Main's own predictors: the list of them, those that ask the next layers' routers against a plain computation in
 * double, popularity by hand, and shapes at their edges. */
#include "tests/bench/live/rivals.h"
#include "tests/unit/predictor_world.h"

#include <math.h>
#include <string.h>

static const struct pw_shape usual = {
	.n_moe = 7, .n_experts = 10, .top_k = 2, .hidden = 24, .vocab = 50, .max_rows = 3
};

static void kinds(void **state)
{
	static const char *const own[] = { OD_PREDICTOR_NAMES };
	struct predictor_world w;

	(void)state;
	for (size_t i = 0; i < RIVALS; i++) {
		pw_open(&w, rival_kinds[i].name, usual);
		pw_close(&w);
		assert_string_equal(rival_names[ODM_PREDICT_OWN + i], rival_kinds[i].name);
	}
	assert_int_equal(sizeof(own) / sizeof(own[0]), OD_N_PREDICTORS);
	for (size_t i = 0; i < OD_N_PREDICTORS; i++) {
		assert_string_equal(od_predictor_kinds[i].name, own[i]);
		assert_ptr_equal(od_predictor_kinds[i].make, rival_kind(own[i])->make);
	}
	assert_null(rival_kind("oracle"));
	od_predictor_free(NULL);
}

/* Computes router `at` on the row, normed as layer `at` norms it: the softmax of logits, or of sigmoids with biases. */
static void ask_router(const struct predictor_world *w, uint32_t at, const float *row, double *probability)
{
	double squares = 0, sum = 0;

	for (size_t i = 0; i < w->cfg.hidden; i++)
		squares += (double)row[i] * row[i];
	for (size_t e = 0; e < w->cfg.n_experts; e++) {
		double logit = 0;

		for (size_t i = 0; i < w->cfg.hidden; i++)
			logit += row[i] / sqrt(squares / w->cfg.hidden + 1e-5) * w->norm[at][i] *
				 w->router[at][e * w->cfg.hidden + i];
		probability[e] = exp(w->bias[at] == NULL ? logit : 1 / (1 + exp(-logit)) + (double)w->bias[at][e]);
		sum += probability[e];
	}
	for (size_t e = 0; e < w->cfg.n_experts; e++)
		probability[e] /= sum;
}

static void expect_gates(const char *kind, struct pw_shape shape, uint32_t ahead)
{
	/* Two sequences; the second row is quiet until layer 3. */
	static const struct od_predict_row rows[] = {
		{ .sequence = 9, .position = 5, .token = 3 },
		{ .sequence = 9, .position = 6, .token = 3, .quiet = true },
		{ .sequence = 4, .position = 5, .token = 8 },
	};
	struct predictor_world w;
	unsigned checked = 0;

	pw_open(&w, kind, shape);
	pw_begin_rows(&w, false, 3, rows);
	assert_int_equal(w.n_said, 0); /* before layer 0 there is nothing to ask with */
	for (uint32_t m = 0; m < w.cfg.n_moe; m++) {
		uint32_t left = w.cfg.n_moe - 1 - m;

		w.row[1].quiet = m < 3;
		pw_forget(&w);
		pw_draw_rows(&w);
		pw_routed(&w, m);
		assert_int_equal(w.n_said, (m < 3 ? 2 : 3) * (left < ahead ? left : ahead));
		for (size_t i = 0; i < w.n_said; i++) {
			const struct pw_said *s = &w.said[i];
			uint16_t best[2];
			double p[10];

			ask_router(&w, s->p.m, w.rows[s->row].residual, p);
			assert_int_equal(s->p.n, 8); /* top-k and six runners-up */
			for (size_t j = 0; j < s->p.n; j++)
				assert_true(fabs(s->probability[j] - p[s->expert[j]]) < 1e-4);
			if (!pw_best(p, 10, 2, best))
				continue;
			assert_true(pw_same_set(best, s->expert, 2));
			checked++;
		}
	}
	assert_true(checked >= 12);
	for (size_t r = 0; r < 3; r++)
		w.row[r].quiet = true;
	pw_forget(&w);
	pw_routed(&w, 2);
	assert_int_equal(w.n_said, 0); /* nobody asks */
	pw_begin(&w, true, 2, NULL);
	for (uint32_t m = 0; m < w.cfg.n_moe; m++)
		pw_routed(&w, m);
	assert_int_equal(w.n_said, 0); /* prompts need no predictions */
	pw_close(&w);
}

static void gates_ask_the_next_routers(void **state)
{
	struct pw_shape sigmoid = usual;

	(void)state;
	sigmoid.sigmoid = true;
	expect_gates("next-gate", usual, 1);
	expect_gates("multi-gate", usual, 4);
	expect_gates("next-gate", sigmoid, 1);
	expect_gates("multi-gate", sigmoid, 4);
}

static void route(struct predictor_world *w, size_t row, uint16_t first, uint16_t second)
{
	float *p = w->probability + row * w->cfg.n_experts;

	for (size_t e = 0; e < w->cfg.n_experts; e++)
		p[e] = 0.01f;
	p[first] = 0.6f;
	p[second] = 0.3f;
}

static void popularity_counts(void **state)
{
	struct predictor_world w;
	const struct pw_said *s;

	(void)state;
	pw_open(&w, "popularity", usual);
	pw_begin(&w, false, 1, NULL);
	assert_int_equal(w.n_said, 0); /* nothing is known */
	route(&w, 0, 7, 3);
	pw_routed(&w, 0);
	pw_begin(&w, true, 2, NULL); /* the prompt of another sequence counts too */
	route(&w, 0, 3, 8);
	route(&w, 1, 9, 3);
	pw_routed(&w, 0);
	route(&w, 0, 0, 1);
	route(&w, 1, 0, 2);
	pw_routed(&w, 1);
	assert_int_equal(w.n_said, 0);
	pw_begin(&w, false, 2, NULL);
	assert_int_equal(w.n_said, 4); /* two layers are known, for two rows */
	s = pw_word(&w, 1, 0);
	assert_int_equal(s->expert[0], 3); /* 3 of 6 uses */
	assert_true(s->probability[0] == 0.5f);
	assert_int_equal(s->expert[1], 7); /* 7, 8, 9 have one each: the lowest */
	assert_int_equal(s->expert[2], 8);
	assert_true(s->probability[4] == 0);
	s = pw_word(&w, 0, 1);
	assert_int_equal(s->expert[0], 0);
	assert_true(s->probability[0] == 0.5f && s->probability[1] == 0.25f);
	assert_null(pw_word(&w, 0, 2));
	pw_forget(&w);
	for (uint32_t m = 0; m < w.cfg.n_moe; m++)
		pw_routed(&w, m);
	assert_int_equal(w.n_said, 0); /* the step brings nothing new */
	pw_close(&w);
}

static void random_draws_for_each_row(void **state)
{
	struct predictor_world w;
	unsigned different = 0;

	(void)state;
	pw_open(&w, "random", usual);
	pw_begin(&w, true, 2, NULL);
	assert_int_equal(w.n_said, 0);
	pw_begin(&w, false, 3, NULL);
	assert_int_equal(w.n_said, 3 * w.cfg.n_moe);
	for (uint32_t m = 0; m < w.cfg.n_moe; m++) {
		const struct pw_said *s = pw_word(&w, 0, m);

		assert_int_equal(s->p.n, 2);
		assert_null(s->p.probability); /* nobody could tell */
		different += !pw_same_set(s->expert, pw_word(&w, 1, m)->expert, 2);
	}
	assert_true(different > 3);
	pw_close(&w);
}

/* Two of a kind that see the same say the same, in every shape. */
static void run_steps(struct predictor_world *w)
{
	for (uint64_t sequence = 1; sequence < 4; sequence++) {
		w->sequence = sequence;
		od_predictor_begin_sequence(w->predictor, sequence);
		for (int step = 0; step < 6; step++) {
			size_t n = step == 0 ? w->max_rows : 1 + pw_draw(w, (uint32_t)w->max_rows);

			pw_begin(w, step == 0, n, NULL);
			for (uint32_t m = 0; m < w->cfg.n_moe; m++) {
				pw_draw_rows(w);
				pw_routed(w, m);
			}
		}
		od_predictor_end_sequence(w->predictor, sequence);
	}
}

static void every_shape(void **state)
{
	static const struct pw_shape shapes[] = {
		{ 5, 8, 2, 16, 10, 4, false, false }, { 3, 1, 1, 8, 2, 1, false, false }, /* one expert */
		{ 1, 6, 3, 8, 5, 2, false, false }, /* one layer */
		{ 4, 5, 5, 8, 5, 2, false, false }, /* all experts, always */
		{ 2, 60, 16, 8, 5, 3, false, false }, /* top-k and runners-up at their most */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		for (size_t k = 0; k < RIVALS; k++) {
			struct predictor_world a, b;

			pw_open(&a, rival_kinds[k].name, shapes[i]);
			pw_open(&b, rival_kinds[k].name, shapes[i]);
			run_steps(&a);
			run_steps(&b);
			assert_int_equal(a.n_said, b.n_said);
			assert_true(a.n_said > 0 || shapes[i].n_moe == 1);
			for (size_t j = 0; j < a.n_said; j++) {
				assert_memory_equal(a.said[j].expert, b.said[j].expert, sizeof(a.said[j].expert));
				assert_memory_equal(a.said[j].probability, b.said[j].probability,
						    sizeof(a.said[j].probability));
			}
			pw_close(&a);
			pw_close(&b);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kinds),
		cmocka_unit_test(gates_ask_the_next_routers),
		cmocka_unit_test(popularity_counts),
		cmocka_unit_test(random_draws_for_each_row),
		cmocka_unit_test(every_shape),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

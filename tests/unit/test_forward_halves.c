/* Rows that go through the layers in two halves give the bits of rows that go together. */
#include "tests/unit/forward_world.h"

/* Up to the next submitted layer, or the end. */
static void advance(struct engine *e, unsigned half, const struct od_row *rows, size_t first, size_t end,
		    struct result **r)
{
	struct od_err err = { 0 };

	od_forward_turn_to(e->forward, half);
	if (od_forward_routed(e->forward))
		must(od_forward_collect(e->forward, e->runner, &err), &err);
	while (!od_forward_done(e->forward) && !od_forward_routed(e->forward))
		od_forward_attention(e->forward);
	if (!od_forward_routed(e->forward))
		return;
	must(od_forward_fetch(e->forward, OD_FETCH_ROUTES, &err), &err);
	for (size_t i = first; i < end; i++)
		note_routes(e, i, rows[i].position, r[i]);
	must(od_forward_submit(e->forward, e->runner, &err), &err);
}

static void run_halves(struct engine *e, const struct od_row *rows, size_t n, size_t n_first, struct result **r)
{
	struct od_err err = { 0 };

	must(od_forward_begin(e->forward, 7, rows, n, &err), &err);
	od_forward_halve(e->forward, n_first);
	while (od_forward_turn_to(e->forward, 0), !od_forward_done(e->forward)) {
		advance(e, 0, rows, 0, n_first, r);
		advance(e, 1, rows, n_first, n, r);
	}
	for (size_t i = 0; i < n; i++)
		note_logits(e, i, rows[i].position, r[i]);
	must(od_forward_end(e->forward, NULL, &err), &err);
}

/* A step of a text's prompt, or of two texts', cut anywhere. */
static void check_cut(struct engine *e, size_t n_texts, size_t n_first, const struct result *whole)
{
	const size_t n = e->t->n_prompt;
	struct od_seq_state *seq[2];
	struct od_row rows[MAX_ROWS];
	struct result *r[MAX_ROWS], of[2];

	for (size_t s = 0; s < n_texts; s++) {
		seq[s] = new_seq(e);
		result_new(&of[s], e->t);
		for (size_t i = 0; i < n; i++) {
			rows[s * n + i] = (struct od_row){ seq[s], (uint32_t)i, e->t->prompt[i] };
			r[s * n + i] = &of[s];
		}
	}
	run_halves(e, rows, n_texts * n, n_first, r);
	for (size_t s = 0; s < n_texts; s++) {
		same(e->t, whole, &of[s], "halves");
		assert_int_equal(od_seq_state_length(seq[s]), n);
		result_free(&of[s]);
		od_seq_state_free(seq[s]);
	}
}

static void test_halves(void **state)
{
	size_t n_run = 0;

	(void)state;
	for (size_t i = 0; i < case_count(); i++) {
		struct tiny_model t;
		struct result whole;
		struct elsewhere w;
		struct engine e;

		load_case(&t, i);
		run_prompt(&t, 1, OD_CPU_AUTO, MAX_ROWS, &whole);
		engine_open(&e, &t, 1, OD_CPU_AUTO);
		elsewhere_open(&w, &t);
		for (int away = 0; away < 2 && od_state_pool_fixed_bytes(e.state) == 0; away++) {
			e.runner = away ? &w.runner : e.resident;
			check_cut(&e, 1, 1, &whole);
			check_cut(&e, 1, t.n_prompt / 2, &whole);
			check_cut(&e, 1, t.n_prompt - 1, &whole);
			if (2 * t.n_prompt <= MAX_ROWS) /* the cut lies in the second text */
				check_cut(&e, 2, t.n_prompt + 3, &whole);
			n_run++;
		}
		elsewhere_close(&w);
		engine_close(&e);
		result_free(&whole);
		tiny_unload(&t);
	}
	assert_true(n_run > case_count()); /* more than half of the models have no fixed state */
}

/* A step that was given up between its halves leaves nothing behind. */
static void test_given_up(void **state)
{
	struct od_row rows[MAX_ROWS];
	struct result whole, again, *r[MAX_ROWS];
	struct od_seq_state *seq;
	struct tiny_model t;
	struct engine e;

	(void)state;
	tiny_load_named(&t, "grouped_queries");
	run_prompt(&t, 1, OD_CPU_AUTO, MAX_ROWS, &whole);
	engine_open(&e, &t, 1, OD_CPU_AUTO);
	result_new(&again, &t);
	seq = new_seq(&e);
	for (size_t i = 0; i < t.n_prompt; i++) {
		rows[i] = (struct od_row){ seq, (uint32_t)i, t.prompt[i] };
		r[i] = &again;
	}
	assert_int_equal(od_forward_begin(e.forward, 6, rows, t.n_prompt, NULL), OD_OK);
	od_forward_halve(e.forward, 3);
	advance(&e, 0, rows, 0, 3, r);
	od_forward_turn_to(e.forward, 1);
	run_forward_step(&e, rows, t.n_prompt, r);
	same(&t, &whole, &again, "after a step that was given up");
	od_seq_state_free(seq);
	engine_close(&e);
	result_free(&whole);
	result_free(&again);
	tiny_unload(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_halves),
		cmocka_unit_test(test_given_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

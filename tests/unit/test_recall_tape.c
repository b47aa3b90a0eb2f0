/* Predictions of a prompt as a simulation gets them. */
#include "tests/bench/sim/recall_tape.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 2u
#define STEPS 3u

static const struct od_config config = { .n_moe = LAYERS, .n_experts = 4, .top_k = 2 };

static void say(struct recall_tape *t, uint32_t step, uint32_t m, int32_t assumed, uint16_t a, int32_t token,
		bool early)
{
	const uint16_t expert[] = { a, 3 };
	const float probability[] = { 0.75f, 0.25f };
	const struct od_prediction p = {
		.m = m, .token = assumed, .n = 2, .expert = expert, .probability = probability
	};

	recall_tape_add(t, step, &p, token, early);
}

static void guesses_and_their_steps(void **state)
{
	int32_t token[] = { 0, 5, 6, 7 };
	const struct recall_recording rec = { .n_prompt = 1, .n_steps = STEPS, .token = token };
	struct served_trace r;
	struct recall_tape t;
	struct od_err err;

	(void)state;
	assert_int_equal(recall_tape_init(&t, LAYERS, STEPS, &err), OD_OK);
	recall_tape_clear(&t);
	say(&t, 0, 0, 5, 1, 5, false); /* no guess */
	say(&t, 0, 1, 5, 2, 5, false);
	say(&t, 1, 0, 6, 0, 6, true); /* a right one */
	say(&t, 1, 1, 6, 1, 6, false); /* it went on with this one */
	say(&t, 2, 0, 9, 2, 7, true); /* a wrong one */
	say(&t, 2, 0, 7, 1, 7, false);
	say(&t, 9, 0, 7, 1, 7, false); /* beyond the tape */
	r = recall_tape_trace(&t, &rec, &config);
	assert_int_equal(r.n_steps, STEPS);
	assert_ptr_equal(r.token, token + 1);
	assert_int_equal(r.guess[0], -1);
	assert_int_equal(r.guess[1], 6);
	assert_int_equal(r.guess[2], 9);
	assert_int_equal(r.shadow[0].expert[0], 1);
	assert_int_equal(r.shadow[1].expert[0], 2);
	assert_true(r.shadow[1].probability[1] == 0.25f);
	assert_int_equal(r.shadow[2].expert[0], 0);
	assert_int_equal(r.shadow[4].expert[0], 1);
	assert_int_equal(r.ahead[4].expert[0], 2);
	assert_int_equal(r.ahead[2].n, 0);
	assert_int_equal(r.shadow[5].n, 0);
	recall_tape_clear(&t);
	assert_int_equal(r.shadow[0].n + r.ahead[4].n, 0);
	assert_int_equal(r.guess[2], -1);
	recall_tape_fini(&t);
	recall_tape_fini(&t);
}

/* A step whose token was left to the shadow: what it had said ahead is what it says. */
static void any_token_is_right(void **state)
{
	struct recall_tape t;
	struct od_err err;

	(void)state;
	assert_int_equal(recall_tape_init(&t, LAYERS, STEPS, &err), OD_OK);
	recall_tape_clear(&t);
	say(&t, 1, 0, 9, 2, 6, true);
	recall_tape_any(&t, 1, 6);
	recall_tape_any(&t, 2, 6); /* nothing was said of it */
	assert_int_equal(t.guess[1], 6);
	assert_int_equal(t.guess[2], -1);
	assert_int_equal(t.shadow[LAYERS].expert[0], 2);
	recall_tape_fini(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(guesses_and_their_steps),
		cmocka_unit_test(any_token_is_right),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

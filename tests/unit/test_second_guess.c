/* Second guesses: which token, how far behind, and what its first layers make of it, against main's own logits and the
 * judge's passes; and a run that goes on as if there had been none. */
#include "tests/unit/emulator_world.h"

#include "shadow-node/second_guess.h"

#include <math.h>
#include <string.h>

/* Of the row that main has just run. */
static void best_two(struct world *w, int32_t *best, int32_t *second, double *gap)
{
	float logits[VOCAB];

	od_forward_logits(w->main_pass.forward, 0, logits);
	*best = logits[1] > logits[0];
	*second = !*best;
	for (int32_t i = 2; i < (int32_t)VOCAB; i++) {
		if (logits[i] > logits[*best]) {
			*second = *best;
			*best = i;
		} else if (logits[i] > logits[*second]) {
			*second = i;
		}
	}
	*gap = (double)logits[*best] - (double)logits[*second];
}

static void told_when_near(void **state)
{
	unsigned near = 0, far = 0;

	(void)state;
	for (uint64_t life = 0; life < 6; life++) {
		struct world w;

		open_world(&w, OD_PROFILE_F32, true, true, 31 + life);
		w.second_guesses = true;
		open_sequence(&w, &w.seq[0]);
		while (begin_step(&w, true)) {
			const struct sent_step *next = &w.sent[w.step + 1];
			int32_t best, second;
			double gap;

			best_two(&w, &best, &second, &gap);
			while (send_layer(&w))
				settle(&w);
			settle(&w);
			assert_predicted(&w, w.step);
			for (uint32_t l = 0; l < LAYERS && od_seq_state_length(w.seq[0].state) < CTX; l++)
				assert_int_equal(next->second.known[l], gap < ODS_SECOND_MAX_GAP && l < ODS_SECOND_LAYERS);
			near += next->second.known[0];
			far += !next->second.known[0];
			if (next->second.known[0]) {
				assert_int_equal(next->second.token, second);
				assert_true(fabs((double)next->second.gap - gap) < 1e-6);
			}
			w.seq[0].next = chance(40) ? second : best;
		}
		assert_int_equal(w.seconds, LAYERS * ods_emulator_stats(w.emulator)->second_guesses);
		close_world(&w);
	}
	assert_true(near > 30 && far > 30);
}

/* Nobody asked, or there is no running ahead. */
static void not_told(void **state)
{
	(void)state;
	for (int which = 0; which < 2; which++) {
		struct world w;

		open_world(&w, OD_PROFILE_F32, true, which == 0, 33);
		w.second_guesses = which == 1;
		open_sequence(&w, &w.seq[0]);
		while (begin_step(&w, true)) {
			int32_t best;
			double gap;

			best_two(&w, &best, &w.seq[0].next, &gap);
			while (send_layer(&w))
				settle(&w);
			settle(&w);
		}
		assert_true(w.step > 20);
		assert_int_equal(w.seconds, 0);
		close_world(&w);
	}
}

/* While there is something to do for the run itself, it comes first: work() does one piece. */
static void the_guess_goes_first(void **state)
{
	unsigned seconds = 0;
	struct world w;

	(void)state;
	open_world(&w, OD_PROFILE_F32, true, true, 32);
	w.second_guesses = true;
	open_sequence(&w, &w.seq[0]);
	while (begin_step(&w, true)) {
		struct sent_step *t = &w.sent[w.step + 1];
		int32_t best, second;
		double gap;

		best_two(&w, &best, &second, &gap);
		w.seq[0].next = chance(40) ? second : best;
		while (send_layer(&w))
			;
		while (deliver(&w))
			;
		while (!t->guess[0].known[LAYERS - 1] && work(&w))
			assert_false(t->second.known[0]);
		settle(&w);
		seconds += t->second.known[0];
	}
	assert_true(seconds > 3);
	close_world(&w);
}

/* Until one is half way; false: the text ends. */
static bool half_way(struct world *w)
{
	while (begin_step(w, true)) {
		const struct sent_step *t = &w->sent[w->step + 1];
		int32_t second;
		double gap;

		best_two(w, &w->seq[0].next, &second, &gap);
		settle(w);
		send_layer(w);
		send_layer(w);
		while (deliver(w)) /* the guess will wait before layer 2 */
			;
		while (!t->second.known[0] && work(w))
			;
		if (t->second.known[0])
			return true;
		while (send_layer(w))
			;
		settle(w);
	}
	return false;
}

/* The step begins, with its guess or with another token, or the sequence is cut or over: nothing more is said. */
static void nothing_is_said_of_a_known_token(void **state)
{
	(void)state;
	for (int which = 0; which < 4; which++) {
		struct message m = { .kind = OD__HEADER__BODY_SEQ_CLOSE };
		struct world w;
		unsigned seconds;

		open_world(&w, OD_PROFILE_F32, true, true, 40);
		w.second_guesses = true;
		open_sequence(&w, &w.seq[0]);
		assert_true(half_way(&w));
		seconds = w.seconds;
		m.sequence = w.seq[0].id;
		if (which < 2) {
			w.seq[0].next = which == 0 ? w.seq[0].next : (w.seq[0].next + 1) % (int32_t)VOCAB;
			assert_true(begin_step(&w, true));
		} else {
			m.kind = which == 2 ? m.kind : OD__HEADER__BODY_SEQ_TRUNCATE;
			m.n = od_seq_state_length(w.seq[0].state);
			assert_int_equal(hand_over(&w, &m), OD_OK);
		}
		do {
			deliver(&w);
			while (work(&w))
				;
		} while (w.n_queued > 0);
		assert_int_equal(w.seconds, seconds);
		close_world(&w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(told_when_near), cmocka_unit_test(not_told), cmocka_unit_test(the_guess_goes_first),
		cmocka_unit_test(nothing_is_said_of_a_known_token),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

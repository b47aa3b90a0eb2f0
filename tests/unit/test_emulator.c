/* The emulator against a main that is simulated here, going on at random relative speeds. What a prediction must be is
 * worked out from main's own keys and values by a third forward pass, row by row. */
#include "tests/unit/emulator_world.h"

#include <stdlib.h>
#include <string.h>

/* One range a layer: prompts here are short. */
static unsigned prompt_asks(const struct world *w)
{
	return w->sent[1].row[0].position > 0 ? LAYERS : 0;
}

/* Everything in its own time: each step is predicted whole, and early departure guesses the next one. */
static void in_step(bool early, bool same_weights, bool state_follows, enum od_profile profile)
{
	struct world w;
	unsigned n = 0, right = 0;

	open_world(&w, profile, same_weights, early, 99);
	open_sequence(&w, &w.seq[0]);
	while (begin_step(&w, true)) {
		if (!state_follows)
			w.queue[w.head].due = w.due = false;
		n++;
		while (send_layer(&w))
			settle(&w);
		settle(&w);
		assert_predicted(&w, w.step);
		assert_int_equal(w.asks, prompt_asks(&w));
	}
	right = (unsigned)w.counters[OD_C_SHADOW_CONFIRMED];
	assert_true(n > 20);
	assert_int_equal(w.counters[OD_C_SHADOW_STEPS], n);
	assert_int_equal(w.counters[OD_C_SHADOW_OVERTAKEN], 0);
	if (early) {
		assert_true(right > (same_weights ? n / 2 : 0) && right < n); /* main's draws cannot be foreseen */
		assert_true(w.guesses > LAYERS * n / 2);
		assert_int_equal(w.counters[OD_C_SHADOW_CONFIRMED] + w.counters[OD_C_SHADOW_MISTAKEN], n - 1);
	} else {
		assert_int_equal(w.guesses, 0);
		assert_int_equal(right, 0);
		assert_int_equal(w.checked, LAYERS * n);
	}
	close_world(&w);
}

static void test_late(void **state)
{
	(void)state;
	in_step(false, true, true, OD_PROFILE_F32);
	in_step(false, false, true, OD_PROFILE_BF16);
}

static void test_early(void **state)
{
	(void)state;
	in_step(true, true, true, OD_PROFILE_F32);
	in_step(true, true, false, OD_PROFILE_F32);
	in_step(true, true, true, OD_PROFILE_BF16);
	in_step(true, false, true, OD_PROFILE_F32);
}

/* With the same weights and greedy tokens the guess is always right, and it is out before main's STEP. */
static void test_credit(void **state)
{
	struct world w;
	unsigned n = 0;

	(void)state;
	open_world(&w, OD_PROFILE_BF16, true, true, 5);
	open_sequence(&w, &w.seq[0]);
	for (; n < 12; n++) {
		const float *logits;
		uint32_t best = 0;

		assert_true(begin_step(&w, true));
		logits = logits_of(&w.main_pass, 0);
		for (uint32_t i = 1; i < VOCAB; i++)
			if (logits[i] > logits[best])
				best = i;
		w.seq[0].next = (int32_t)best;
		assert_int_equal(w.guesses, n * LAYERS);
		settle(&w);
		assert_int_equal(w.guesses, n * LAYERS); /* waits for the rows of layer 0 */
		for (uint32_t l = 0; l < LAYERS; l++) {
			send_layer(&w);
			settle(&w);
			assert_int_equal(w.guesses, n * LAYERS + l + 1);
		}
	}
	assert_int_equal(w.counters[OD_C_SHADOW_CONFIRMED], n - 1);
	close_world(&w);
}

/* A slow shadow: the next STEP comes first. State is due, so the old step is left, and the newest is predicted. */
static void test_overtaken(void **state)
{
	struct world w;

	(void)state;
	open_world(&w, OD_PROFILE_F32, false, true, 11);
	open_sequence(&w, &w.seq[0]);
	for (int i = 0; i < 10; i++) {
		begin_step(&w, true);
		while (send_layer(&w))
			;
		while (deliver(&w))
			;
		work(&w); /* asks for three layers, then one piece each */
		assert_int_equal(w.sent[w.step].predicted[0][0], i > 0); /* the old one is left at once */
		while (deliver(&w)) /* the answers */
			;
	}
	settle(&w);
	assert_predicted(&w, w.step);
	assert_int_equal(w.counters[OD_C_SHADOW_OVERTAKEN], 8);
	close_world(&w);
}

/* A prompt's rows are all there before the first prediction, and then it is for the newest STEP. */
static void test_prompt_first(void **state)
{
	struct world w;

	(void)state;
	open_world(&w, OD_PROFILE_BF16, true, true, 21);
	open_sequence(&w, &w.seq[0]);
	w.lose = 100;
	w.lose_asks = true;
	for (int i = 0; i < 3; i++) {
		begin_step(&w, true);
		w.due = false;
		w.queue[w.head].due = false;
		while (work(&w) || deliver(&w))
			;
		w.now += 2 * ODS_ASK_AGAIN_NS;
	}
	assert_int_equal(w.asks, (1 + 2 + 2) * LAYERS); /* again, a second later, and a row that was lost meanwhile */
	work(&w);
	w.lose = 0;
	for (uint32_t l = 0; l + 1 < LAYERS; l++) {
		push_state(&w, &w.seq[0], l, 0, w.sent[w.step].row[0].position, 0);
		while (deliver(&w))
			;
	}
	w.lose = 100;
	work(&w);
	assert_int_equal(w.checked, 0);
	w.lose = 0;
	settle(&w);
	assert_predicted(&w, w.step);
	assert_int_equal(w.checked - w.guesses, LAYERS);
	close_world(&w);
}

/* A STEP that takes back the position of the one under way, without a word before. */
static void test_taken_back(void **state)
{
	struct world w;

	(void)state;
	open_world(&w, OD_PROFILE_F32, true, true, 22);
	open_sequence(&w, &w.seq[0]);
	begin_step(&w, true);
	w.queue[w.head].due = w.due = false;
	while (!w.sent[w.step].predicted[0][1])
		if (!work(&w))
			deliver(&w);
	od_seq_state_set_length(w.seq[0].state, w.sent[w.step].row[0].position);
	w.seq[0].next = (w.sent[w.step].row[0].token + 1) % (int32_t)VOCAB;
	begin_step(&w, true);
	w.queue[w.head].due = w.due = false;
	deliver(&w);
	work(&w);
	assert_true(w.sent[w.step].predicted[0][0]);
	settle(&w);
	assert_predicted(&w, w.step);
	close_world(&w);
}

/* The conversation goes on with another prompt: no STEP tells of it, and the guess must leave nothing behind. */
static void test_second_prompt(void **state)
{
	struct world w;

	(void)state;
	open_world(&w, OD_PROFILE_F32, true, true, 23);
	open_sequence(&w, &w.seq[0]);
	for (int i = 0; i < 4; i++) {
		begin_step(&w, true);
		while (send_layer(&w))
			;
		settle(&w);
		prefill(&w, &w.seq[0]);
	}
	assert_int_equal(w.guesses, 4 * LAYERS);
	assert_predicted(&w, w.step);
	close_world(&w);
}

/* No room for another sequence: it sits out, the others do not notice. */
static void test_too_many_sequences(void **state)
{
	struct message *m;
	struct world w;

	(void)state;
	open_world(&w, OD_PROFILE_F32, true, false, 24);
	for (uint32_t i = 0; i < w.n_seqs; i++)
		open_sequence(&w, &w.seq[i]);
	begin_step(&w, true);
	while (send_layer(&w))
		;
	settle(&w);
	assert_predicted(&w, w.step);
	for (int at = 0; at < 3; at++) { /* before, between and behind the others' rows */
		struct od_err err;
		bool did;

		begin_step(&w, true);
		m = &w.queue[w.head];
		assert_int_equal(m->n_rows, 3);
		memmove(&m->rows[at + 1], &m->rows[at], (3 - at) * sizeof(m->rows[0]));
		m->rows[at] = (Od__StepRow)OD__STEP_ROW__INIT;
		m->rows[at].sequence = 4711;
		m->rows[at].position = 5;
		m->rows[at].state_rows = 1;
		m->n_rows = 4;
		while (send_layer(&w))
			;
		settle(&w);
		assert_predicted(&w, w.step);
		assert_int_equal(ods_emulator_work(w.emulator, w.now, &did, &err), OD_OK);
	}
	m = &w.queue[0];
	memset(m, 0, offsetof(struct message, k));
	m->kind = OD__HEADER__BODY_SEQ_CLOSE;
	m->sequence = 4711;
	assert_int_equal(hand_over(&w, m), OD_ERR_BUSY);
	m->sequence = w.seq[1].id; /* makes room */
	w.seq[1].open = false;
	assert_int_equal(hand_over(&w, m), OD_OK);
	open_sequence(&w, &w.seq[1]);
	begin_step(&w, true);
	while (send_layer(&w))
		;
	settle(&w);
	assert_predicted(&w, w.step);
	close_world(&w);
}

/* Without state the overtaken step is finished for its rows, unseen; what could not be is asked for. */
static void test_own_rows(void **state)
{
	struct world w;
	unsigned asks;

	(void)state;
	open_world(&w, OD_PROFILE_F32, true, false, 12);
	open_sequence(&w, &w.seq[0]);
	begin_step(&w, true);
	w.due = false;
	w.queue[w.head].due = false;
	settle(&w);
	assert_predicted(&w, w.step);
	asks = w.asks;
	for (int i = 0; i < 8; i++) {
		begin_step(&w, true);
		w.queue[w.head].due = false;
		deliver(&w);
		work(&w);
		work(&w);
		/* The step is under way in layer 1: overtake it. */
		begin_step(&w, true);
		w.queue[w.head].due = false;
		deliver(&w);
		settle(&w);
		assert_false(w.sent[w.step - 1].predicted[0][2]);
		assert_predicted(&w, w.step);
	}
	assert_int_equal(w.asks, asks); /* own rows were enough */
	begin_step(&w, true);
	begin_step(&w, true);
	begin_step(&w, true);
	for (size_t i = 0; i < w.n_queued; i++)
		w.queue[w.head + i].due = false;
	while (deliver(&w))
		;
	settle(&w);
	assert_predicted(&w, w.step);
	assert_int_equal(w.asks, asks + LAYERS); /* two steps that were never begun, one range a layer */
	close_world(&w);
}

/* Without state the shadow is a model that goes on by itself from main's prompt, with main's tokens. */
static void test_unaligned(void **state)
{
	struct od_seq_state *alone;
	uint16_t route[LAYERS * TOP_K];
	struct world w;
	uint32_t length;

	(void)state;
	open_world(&w, OD_PROFILE_F32, false, false, 13);
	w.judge = false;
	open_sequence(&w, &w.seq[0]);
	alone = w.judge_state;
	length = od_seq_state_length(w.seq[0].state);
	copy_rows(w.judge_pass.device, alone, w.main_pass.device, w.seq[0].state, LAYERS, 0, length);
	od_seq_state_set_length(alone, length);
	while (begin_step(&w, true)) {
		const struct sent_step *t = &w.sent[w.step];
		struct od_row row = { alone, t->row[0].position, t->row[0].token };

		w.queue[w.head].due = false;
		settle(&w);
		assert_predicted(&w, w.step);
		run_pass(&w.judge_pass, &row, 1, route);
		end_pass(&w.judge_pass);
		for (uint32_t l = 0; l < LAYERS; l++)
			assert_memory_equal(t->said[l][0], route + l * TOP_K, TOP_K * sizeof(*route));
	}
	assert_true(w.counters[OD_C_SHADOW_PREDICTIONS] > 20 * LAYERS);
	close_world(&w);
}

/* A range that is asked for may lie on more than one page. */
static void test_pages(void **state)
{
	struct world w;

	(void)state;
	open_world(&w, OD_PROFILE_BF16, false, false, 31);
	open_sequence(&w, &w.seq[0]);
	while (od_seq_state_length(w.seq[0].state) <= OD_KV_PAGE)
		prefill(&w, &w.seq[0]);
	while (begin_step(&w, true)) {
		while (send_layer(&w))
			;
		settle(&w);
		assert_predicted(&w, w.step);
	}
	assert_int_equal(w.asks, LAYERS);
	assert_int_equal(w.checked, LAYERS * w.step);
	close_world(&w);
}

/* The host waits once for a layer's predictions and once for each STATE; early departure needs a run's logits too.
 * Main's rows that are there before ours are kept without a wait. */
static void test_waits(void **state)
{
	(void)state;
	for (int early = 0; early < 2; early++) {
		struct world w;

		open_world(&w, OD_PROFILE_F32, false, early, 32);
		w.judge = false; /* it waits, too, on the same device */
		open_sequence(&w, &w.seq[0]);
		for (int i = 0; i < 4; i++) {
			uint64_t before = od_device_waits(w.shadow_model.device),
				 layers = w.counters[OD_C_SHADOW_PREDICTIONS];

			begin_step(&w, true);
			while (i % 2 && send_layer(&w))
				;
			while (i % 2 && deliver(&w))
				;
			do
				settle(&w);
			while (send_layer(&w));
			assert_predicted(&w, w.step);
			layers = w.counters[OD_C_SHADOW_PREDICTIONS] - layers;
			assert_int_equal(layers % LAYERS, 0);
			assert_true(early ? layers > 0 : layers == LAYERS);
			if (i > 0) /* without the prompt's rows */
				assert_int_equal(od_device_waits(w.shadow_model.device) - before,
						 LAYERS + layers + (early ? layers / LAYERS : 0));
		}
		close_world(&w);
	}
}

/* ---- A paced shadow ---- */

#define LAYER_NS 1000u

/* All that can be done now; the messages that there are, too. Then the emulator waits until `until`. */
static void work_until(struct world *w, unsigned predicts, uint64_t until)
{
	while (deliver(w) || work(w))
		;
	assert_int_equal(w->predicts, predicts);
	assert_int_equal(ods_emulator_deadline(w->emulator), until);
}

static void open_paced(struct world *w, uint32_t n_seqs)
{
	open_paced_world(w, OD_PROFILE_F32, true, true, 41, n_seqs, LAYER_NS);
	w->now = 77 * LAYER_NS;
	for (uint32_t i = 0; i < n_seqs; i++)
		open_sequence(w, &w->seq[i]);
	begin_step(w, true);
	assert_int_equal(w->sent[w->step].n_rows, n_seqs);
	w->queue[w->head].due = w->due = false; /* nothing but the time is waited for */
	deliver(w);
	work(w); /* asks for the prompts, which do not begin the time */
}

/* A layer begins when the time of the one before has passed, with any number of rows; so does the next run. The last
 * layer comes no earlier than the sum, and late calls do not add up. */
static void test_paced(void **state)
{
	(void)state;
	for (uint32_t n_seqs = 1; n_seqs <= 8; n_seqs += 7) {
		struct world w;
		uint64_t begin;

		open_paced(&w, n_seqs);
		begin = w.now;
		for (uint32_t l = 0; l < 2 * LAYERS; l++) { /* the step, then the row ahead */
			work_until(&w, l + 1, begin + (l + 1) * LAYER_NS);
			w.now = begin + (l + 1) * LAYER_NS - 1;
			assert_false(work(&w));
			w.now += 1 + draw(LAYER_NS / 2);
		}
		assert_predicted(&w, 1);
		while (work(&w))
			;
		assert_int_equal(w.guesses, n_seqs * LAYERS);
		assert_int_equal(ods_emulator_deadline(w.emulator), UINT64_MAX); /* idle */
		close_world(&w);
	}
}

/* Messages are taken while a layer's time passes. A layer that waited for main has its whole time from then on. */
static void test_paced_messages(void **state)
{
	struct world w;
	uint64_t begin;

	(void)state;
	open_paced(&w, 1);
	w.now += LAYERS * LAYER_NS;
	settle(&w);
	assert_int_equal(w.predicts, 2 * LAYERS);
	w.seq[0].next = w.seq[0].guess.token; /* confirms the row ahead */
	begin_step(&w, true); /* state follows: the next row ahead waits for it in each layer */
	w.now += 5 * LAYER_NS;
	settle(&w);
	assert_int_equal(w.predicts, 2 * LAYERS);
	begin = w.now += 3 * LAYER_NS / 2;
	send_layer(&w);
	work_until(&w, 2 * LAYERS + 1, begin + LAYER_NS);
	w.now = begin + LAYER_NS / 2;
	send_layer(&w);
	assert_true(deliver(&w));
	work_until(&w, 2 * LAYERS + 1, begin + LAYER_NS);
	w.now = begin + LAYER_NS;
	work_until(&w, 2 * LAYERS + 2, begin + 2 * LAYER_NS);
	close_world(&w);
}

/* ---- A device that fails ---- */

static bool deliver_failing(struct world *w, unsigned *failed)
{
	int rc;

	if (w->n_queued == 0)
		return false;
	rc = hand_over(w, &w->queue[w->head]);
	*failed += rc == OD_ERR_RANGE;
	/* OD_ERR_PROTOCOL: rows of a request that the failure has ended. */
	assert_true(rc == OD_OK || rc == OD_ERR_RANGE || rc == OD_ERR_PROTOCOL);
	w->head = (w->head + 1) % QUEUE;
	w->n_queued--;
	return true;
}

/* settle() with errors: how many there were. */
static unsigned settle_failing(struct world *w)
{
	unsigned failed = 0;

	for (int i = 0; i < 10000; i++) {
		struct od_err err;
		bool did;
		int rc = ods_emulator_work(w->emulator, w->now, &did, &err);

		failed += rc != OD_OK;
		assert_true(rc == OD_OK || (!did && strstr(err.msg, "found 65534") != NULL));
		if (deliver_failing(w, &failed) || did || rc != OD_OK)
			continue;
		if (ods_emulator_deadline(w->emulator) == UINT64_MAX)
			return failed;
		w->now = ods_emulator_deadline(w->emulator);
	}
	fail_msg("the emulator never comes to rest");
	return failed;
}

/* Whenever work fails it is reported once and costs a step; after it all rows are asked for again, and all is right. */
static void test_work_fails(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 4 * LAYERS + 2; i++) {
		struct world w;
		struct failure f;
		unsigned failed, asks;

		open_world(&w, OD_PROFILE_F32, false, i % 2, 33 + i);
		open_failure(&f, &w.shadow_model);
		open_sequence(&w, &w.seq[0]);
		begin_step(&w, true);
		while (send_layer(&w))
			;
		settle(&w);
		assert_predicted(&w, w.step);
		begin_step(&w, true);
		while (send_layer(&w))
			;
		while (deliver(&w))
			;
		for (unsigned piece = 0; piece < i / 2; piece++)
			work(&w);
		asks = w.asks;
		fail_device(&f);
		failed = settle_failing(&w);
		for (int more = 0; more < 2; more++) {
			begin_step(&w, true);
			while (send_layer(&w))
				;
			failed += settle_failing(&w);
		}
		assert_int_equal(failed, 1);
		assert_int_equal(w.asks, asks + LAYERS);
		assert_predicted(&w, w.step);
		close_failure(&f);
		close_world(&w);
	}
}

/* A STATE may be what waits. */
static void test_state_fails(void **state)
{
	struct failure f;
	struct world w;

	(void)state;
	open_world(&w, OD_PROFILE_F32, false, false, 34);
	open_failure(&f, &w.shadow_model);
	open_sequence(&w, &w.seq[0]);
	begin_step(&w, true);
	while (send_layer(&w))
		;
	settle(&w);
	begin_step(&w, true);
	deliver(&w);
	send_layer(&w);
	work(&w);
	fail_device(&f);
	assert_int_equal(hand_over(&w, &w.queue[w.head]), OD_ERR_RANGE);
	assert_false(work(&w)); /* the step is given up */
	while (send_layer(&w))
		;
	settle(&w);
	assert_true(w.sent[w.step].predicted[0][0]);
	assert_false(w.sent[w.step].predicted[0][1]);
	begin_step(&w, true);
	while (send_layer(&w))
		;
	settle(&w);
	assert_predicted(&w, w.step);
	close_failure(&f);
	close_world(&w);
}

/* One random life: any speed, losses, doubles, several sequences and rows, truncation and closing. */
static void random_life(uint64_t from_seed, enum od_profile profile, bool same_weights, bool early, bool own_rows)
{
	struct world w;
	uint32_t speed;

	open_world(&w, profile, same_weights, early, from_seed);
	w.own_rows = own_rows;
	w.lose = draw(3) * 7;
	w.twice = draw(2) * 10;
	w.lose_asks = true;
	speed = 5 + draw(90);
	open_sequence(&w, &w.seq[0]);
	for (int i = 0; i < 600; i++) {
		w.now += draw((uint32_t)(ODS_ASK_AGAIN_NS / 16));
		if (chance(speed)) {
			work(&w);
			continue;
		}
		if (chance(50) && deliver(&w))
			continue;
		if (!send_layer(&w) && chance(15))
			disturb(&w);
		else if (w.layer == LAYERS)
			begin_step(&w, false);
	}
	w.lose = w.twice = 0;
	while (send_layer(&w))
		;
	settle(&w);
	if (begin_step(&w, false)) {
		while (send_layer(&w))
			;
		settle(&w);
		assert_predicted(&w, w.step);
	}
	close_world(&w);
}

static void test_random_lives(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 120; i++)
		random_life(1000 + i, i & 1 ? OD_PROFILE_BF16 : OD_PROFILE_F32, (i & 2) != 0, (i & 4) != 0,
			    (i & 2) != 0 && (i & 8) != 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_late),	      cmocka_unit_test(test_early),
		cmocka_unit_test(test_credit),	      cmocka_unit_test(test_overtaken),
		cmocka_unit_test(test_own_rows),      cmocka_unit_test(test_unaligned),
		cmocka_unit_test(test_prompt_first),  cmocka_unit_test(test_taken_back),
		cmocka_unit_test(test_second_prompt), cmocka_unit_test(test_too_many_sequences),
		cmocka_unit_test(test_pages),	      cmocka_unit_test(test_waits),
		cmocka_unit_test(test_paced),	      cmocka_unit_test(test_paced_messages),
		cmocka_unit_test(test_work_fails),    cmocka_unit_test(test_state_fails),
		cmocka_unit_test(test_random_lives),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The emulator with many sequences: each must be told the same of as if it were alone, whatever the others do; what is
 * said of it must be the same bits. */
#include "tests/unit/emulator_cast.h"

#include <string.h>

/* ---- The same as alone ---- */

/* The shadow has chosen a token for main before: from then on it does so at once. */
static void warm_up(struct cast *c)
{
	c->unaligned = true;
	enter(c, &c->actor[0], 2);
	while (c->all.counters[OD_C_SHADOW_CHOSEN] == 0)
		step_both(c, 100, 100);
	leave(c, &c->actor[0]);
}

static void disturb_one(struct cast *c)
{
	struct actor *a = &c->actor[draw(c->n)];
	const struct actor *from = &c->actor[draw(c->n)];

	if (a->id == 0 && from->id != 0 && c->aligned && from->length >= OD_KV_PAGE)
		enter_behind(c, a, 1 + draw(9), from, OD_KV_PAGE);
	else if (a->id == 0)
		enter(c, a, 1 + draw(chance(40) ? 74 : 9));
	else if (chance(25))
		leave(c, a);
	else if (chance(40))
		truncate_to(c, a, 1 + draw(a->length));
	else
		add_prompt(c, a, 1 + draw(5));
}

/* In lockstep: whatever is said, everybody has all the time there is before the next message. What is said of each
 * sequence is the same, to the bit, in the same order, and between the same steps. */
static uint64_t lockstep_life(uint64_t from_seed)
{
	struct cast c;
	uint64_t said;

	open_cast(&c, 2 + (uint32_t)from_seed % 15, from_seed & 1, from_seed & 2 ? OD_PROFILE_BF16 : OD_PROFILE_F32,
		  from_seed, 0);
	c.drafts = (from_seed & 4) != 0;
	c.aligned = (from_seed & 8) != 0;
	if (from_seed & 16)
		warm_up(&c);
	for (uint32_t i = 0; i < c.n; i += 2)
		enter(&c, &c.actor[i], 1 + draw(9));
	for (int i = 0; i < 40; i++) {
		for (uint32_t j = 0; j < c.n; j++)
			if (chance(8))
				disturb_one(&c);
		assert_same(&c);
		step_both(&c, 70, 60);
		assert_same(&c);
	}
	said = c.all.counters[OD_C_SHADOW_PREDICTIONS];
	assert_int_equal(c.all.counters[OD_C_SHADOW_OVERTAKEN], 0);
	close_cast(&c);
	return said;
}

static void test_lockstep(void **state)
{
	uint64_t said = 0;

	(void)state;
	for (uint64_t i = 0; i < 96; i++)
		said += lockstep_life(2000 + i);
	assert_true(said > 96 * 300);
}

/* At any speed, with losses: what is said is what would be said alone, though less of it. */
static void assert_among(const struct cast *c)
{
	for (uint32_t i = 0; i < c->n; i++) {
		const struct actor *a = &c->actor[i];

		for (size_t j = 0; a->id != 0 && j < a->n_many; j++) {
			size_t k = a->n_one;

			while (k > 0 && memcmp(&a->one[k - 1], &a->many[j], sizeof(a->many[j])) != 0)
				k--;
			if (k == 0)
				fail_msg("sequence %llu, position %u, layer %u: not what is said when it is alone",
					 (unsigned long long)a->id, a->many[j].position, a->many[j].m);
		}
	}
}

static void work_some(struct cast *c, uint32_t most)
{
	for (uint32_t i = draw(most + 1); i > 0; i--) {
		struct od_err err;
		bool did;

		if (ods_emulator_work(c->all.e, c->now, &did, &err) != OD_OK)
			fail_msg("%s", err.msg);
		if (chance(50))
			answer(c, &c->all);
	}
	c->now += draw((uint32_t)(ODS_ASK_AGAIN_NS / 8));
}

/* Checks the predictions for the newest rows of each. */
static void assert_all_said(const struct cast *c)
{
	for (uint32_t i = 0; i < c->n; i++) {
		const struct actor *a = &c->actor[i];
		unsigned said = 0;

		if (a->id == 0 || a->rows == 0)
			continue;
		for (size_t j = 0; j < a->n_many; j++)
			if (a->many[j].position == a->length && a->many[j].token == a->token[a->length])
				said |= 1u << a->many[j].m;
		assert_int_equal(said, (1u << LAYERS) - 1);
	}
}

static void random_life(uint64_t from_seed)
{
	const uint32_t n = 2 + (uint32_t)from_seed % 15, n_pages = from_seed % 5 == 0 ? 2 + n / 2 : 0;
	struct cast c;
	uint32_t pace;

	open_cast(&c, n, from_seed & 1, from_seed & 2 ? OD_PROFILE_BF16 : OD_PROFILE_F32, from_seed, n_pages);
	c.aligned = c.all.late = true;
	c.lose = draw(3) * 5;
	c.lose_step = draw(2) * 5;
	pace = 1 + draw(12);
	for (int i = 0; i < 50; i++) {
		for (uint32_t j = 0; j < c.n; j++)
			if (chance(10))
				disturb_one(&c);
		work_some(&c, pace);
		if (!choose_step(&c, 70, 60))
			continue;
		begin_both(&c);
		for (uint32_t l = 0; l < LAYERS; l++) {
			work_some(&c, pace);
			layer_both(&c, l);
		}
		end_both(&c);
		assert_among(&c);
	}
	c.lose = c.lose_step = 0;
	drain(&c, &c.all);
	while (ods_emulator_deadline(c.all.e) != UINT64_MAX) {
		c.now = ods_emulator_deadline(c.all.e);
		drain(&c, &c.all);
	}
	c.all.late = false;
	if (choose_step(&c, 100, 60)) {
		begin_both(&c);
		for (uint32_t l = 0; l < LAYERS; l++)
			layer_both(&c, l);
		if (n_pages == 0) /* else some may sit out */
			assert_all_said(&c);
	}
	assert_among(&c);
	close_cast(&c);
}

static void test_random(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 120; i++)
		random_life(7000 + i);
}

/* ---- One of them ---- */

static void enter_all(struct cast *c, uint32_t prompt)
{
	for (uint32_t i = 0; i < c->n; i++)
		enter(c, &c->actor[i], prompt);
	step_both(c, 100, 100);
}

/* How often a row was said of, at all layers. */
static size_t times_said(const struct actor *a, uint32_t position, int32_t token)
{
	size_t n = 0;

	for (size_t i = 0; i < a->n_many; i++)
		n += a->many[i].position == position && a->many[i].token == token;
	return n;
}

/* A wrong guess of one voids no row of another: each row is run once, and that of the wrong guess twice, be the run
 * through or under way when main's word comes. */
static void wrong_guess(uint32_t n, unsigned pieces)
{
	struct cast c;

	open_cast(&c, n, true, OD_PROFILE_F32, 50 + n, 0);
	c.aligned = true;
	enter_all(&c, 4);
	for (uint32_t wrong = 0; wrong < n && c.actor[0].length + 2 < CTX; wrong++) {
		const uint64_t confirmed = c.all.counters[OD_C_SHADOW_CONFIRMED],
			       mistaken = c.all.counters[OD_C_SHADOW_MISTAKEN];
		struct actor *a = &c.actor[wrong];
		int32_t guess;

		/* a step whose guesses are right, after which the run ahead does not come to its end */
		if (pieces > 0) {
			assert_true(choose_step(&c, 100, 100));
			begin_both(&c);
			c.all.late = true;
			for (uint32_t l = 0; l < LAYERS; l++)
				layer_both(&c, l);
			for (unsigned i = 0; i < pieces; i++) {
				struct od_err err;
				bool did;

				assert_int_equal(ods_emulator_work(c.all.e, c.now, &did, &err), OD_OK);
			}
			end_both(&c);
		}
		assert_true(choose_step(&c, 100, 100));
		guess = a->token[a->length];
		a->token[a->length] = (guess + 1) % (int32_t)VOCAB;
		begin_both(&c);
		c.all.late = false;
		drain(&c, &c.all);
		assert_int_equal(c.all.counters[OD_C_SHADOW_MISTAKEN], mistaken + 1);
		assert_int_equal(c.all.counters[OD_C_SHADOW_CONFIRMED], confirmed + (pieces > 0 ? n : 0) + n - 1);
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(
				times_said(&c.actor[i], c.actor[i].length, c.actor[i].token[c.actor[i].length]),
				LAYERS);
		for (uint32_t l = 0; l < LAYERS; l++)
			layer_both(&c, l);
		end_both(&c);
		assert_among(&c);
	}
	assert_int_equal(c.all.counters[OD_C_SHADOW_OVERTAKEN], 0);
	close_cast(&c);
}

static void test_wrong_guess(void **state)
{
	(void)state;
	for (uint32_t n = 2; n <= 16; n += 7)
		for (unsigned pieces = 0; pieces < 2 * LAYERS; pieces++)
			wrong_guess(n, pieces);
}

/* The run of all sequences says what it has to say of a layer at once: main gets one message. */
static void test_one_run(void **state)
{
	struct world w;

	(void)state;
	open_large_world(&w, OD_PROFILE_F32, true, false, 3, 16);
	for (uint32_t i = 0; i < 16; i++)
		open_sequence(&w, &w.seq[i]);
	for (int i = 0; i < 5; i++) {
		const uint64_t waits = od_device_waits(w.shadow_model.device);
		const unsigned before = w.predicts;

		w.judge = i == 0; /* it waits, too */
		begin_step(&w, true);
		settle(&w);
		assert_predicted(&w, w.step);
		if (i > 0) {
			assert_int_equal(w.predicts - before, LAYERS);
			assert_int_equal(od_device_waits(w.shadow_model.device) - waits, LAYERS);
		}
		while (send_layer(&w))
			;
		settle(&w);
	}
	close_world(&w);
}

static void assert_others_same(const struct cast *c, const struct actor *but)
{
	for (uint32_t i = 0; i < c->n; i++) {
		const struct actor *a = &c->actor[i];

		if (a == but)
			continue;
		assert_int_equal(a->n_one, a->n_many);
		assert_memory_equal(a->one, a->many, a->n_one * sizeof(a->one[0]));
	}
}

/* The rows of one layer of one sequence are lost, and what it asks for is not answered: no other is told of less or
 * later, though no time passes. Only of the last layer nothing tells that it is lost before the next STEP. rests: it
 * has no rows in later steps. */
static void lacks_rows(uint32_t layer, bool early, bool rests)
{
	const struct actor *sick;
	struct cast c;
	size_t before;

	open_cast(&c, 5, early, OD_PROFILE_BF16, 60 + layer, 0);
	c.aligned = true;
	sick = &c.actor[layer];
	enter_all(&c, 7);
	step_both(&c, 100, 70);
	assert_same(&c);
	before = sick->n_many;
	c.deaf = sick;
	c.deaf_layer = layer;
	for (int i = 0; i < 6; i++) {
		assert_true(choose_step(&c, 100, layer + 1 < LAYERS ? 70 : 100));
		if (rests && i > 0)
			c.actor[layer].rows = 0;
		begin_both(&c);
		assert_others_same(&c, sick);
		for (uint32_t l = 0; l < LAYERS; l++)
			layer_both(&c, l);
		end_both(&c);
		if (layer + 1 < LAYERS)
			assert_others_same(&c, sick);
	}
	assert_true(sick->n_many < before + 3 * LAYERS && c.now == 0); /* the last row before that, and one ahead */
	c.deaf = NULL;
	c.now = 2 * ODS_ASK_AGAIN_NS;
	step_both(&c, 100, 70);
	step_both(&c, 100, 70);
	assert_others_same(&c, sick);
	assert_int_equal(times_said(sick, sick->length - 1, sick->token[sick->length - 1]), LAYERS);
	assert_among(&c);
	close_cast(&c);
}

static void test_lacks_rows(void **state)
{
	(void)state;
	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		lacks_rows(layer, false, false);
		lacks_rows(layer, true, false);
		lacks_rows(layer, true, true);
	}
}

/* One that the steps of another keep busy all the time computes a prompt all the same. */
static void test_busy(void **state)
{
	const struct actor own = { .own_state = true };
	const uint32_t prompt = 40;
	struct cast c;

	(void)state;
	open_cast(&c, 2, false, OD_PROFILE_F32, 77, 0);
	c.aligned = true;
	enter(&c, &c.actor[0], 5);
	step_both(&c, 100, 100);
	c.all.late = true;
	enter_behind(&c, &c.actor[1], prompt, &own, 0);
	for (int i = 0; i < 30; i++) {
		assert_true(choose_step(&c, 100, 100));
		c.actor[1].rows = 0;
		begin_both(&c);
		for (unsigned j = 0; j < 2 * LAYERS; j++) { /* attention and experts: as much as the step takes */
			struct od_err err;
			bool did;

			must(ods_emulator_work(c.all.e, c.now, &did, &err), &err);
			assert_true(did);
		}
		for (uint32_t l = 0; l < LAYERS; l++)
			layer_both(&c, l);
		end_both(&c);
	}
	assert_true(c.all.counters[OD_C_SHADOW_FILLED] >= prompt);
	close_cast(&c);
}

/* ---- Memory ---- */

/* Three pages: one text of two, one that would need its second sits out until the other ends. */
static void test_few_pages(void **state)
{
	struct actor *a, *b;
	struct cast c;
	size_t before;

	(void)state;
	open_cast(&c, 2, true, OD_PROFILE_F32, 70, 3);
	c.aligned = true;
	a = &c.actor[0];
	b = &c.actor[1];
	enter(&c, a, 66);
	enter(&c, b, 60);
	while (b->length < OD_KV_PAGE)
		step_both(&c, 100, 80);
	step_both(&c, 100, 80);
	before = b->n_many;
	assert_int_equal(times_said(b, OD_KV_PAGE - 1, b->token[OD_KV_PAGE - 1]), LAYERS);
	for (int i = 0; i < 3; i++) {
		step_both(&c, 100, 80);
		assert_others_same(&c, b);
	}
	assert_int_equal(b->n_many, before);
	assert_true(b->n_one > before);
	leave(&c, a);
	step_both(&c, 100, 80); /* tokens that were not taken meanwhile are asked for */
	assert_int_equal(times_said(b, b->length - 1, b->token[b->length - 1]), LAYERS);
	for (int i = 0; i < 3; i++)
		step_both(&c, 100, 80);
	assert_int_equal(times_said(b, b->length - 1, b->token[b->length - 1]), LAYERS);
	assert_among(&c);
	close_cast(&c);
}

/* Whatever ends and begins while a run goes on, there is memory for as many sequences as were agreed. */
static void test_indices(void **state)
{
	struct cast c;

	(void)state;
	open_cast(&c, 3, true, OD_PROFILE_F32, 80, 0);
	c.aligned = true;
	enter_all(&c, 3);
	for (int round = 0; round < 8; round++) {
		assert_true(choose_step(&c, 100, 50));
		begin_both(&c);
		c.all.late = true; /* a run is under way */
		for (uint32_t l = 0; l < LAYERS; l++)
			layer_both(&c, l);
		end_both(&c);
		for (int again = 0; again < 3; again++) /* all but one end, and others begin and end */
			for (uint32_t i = 0; i < 2; i++) {
				leave(&c, &c.actor[i]);
				enter(&c, &c.actor[i], 3);
			}
		c.all.late = false;
		step_both(&c, 100, 50);
		for (uint32_t i = 0; i < 3; i++)
			assert_int_equal(
				times_said(&c.actor[i], c.actor[i].length - 1, c.actor[i].token[c.actor[i].length - 1]),
				LAYERS);
		assert_among(&c);
	}
	close_cast(&c);
}

/* ---- Shared prefixes ---- */

/* Predictions equal those without sharing; shared rows are asked for once. */
static void shared_prefix(bool early, uint32_t n, bool known)
{
	struct cast c;
	unsigned asked;

	open_cast(&c, n, early, OD_PROFILE_F32, 90 + n, 0);
	c.aligned = true;
	enter(&c, &c.actor[0], 66);
	if (known) /* else its rows are missing when they are shared */
		step_both(&c, 100, 100);
	for (uint32_t i = 1; i < n; i++)
		enter_behind(&c, &c.actor[i], 4, &c.actor[0], OD_KV_PAGE);
	asked = c.all.asked_rows;
	for (int i = 0; i < 4; i++) {
		step_both(&c, 100, 60);
		assert_same(&c);
	}
	/* Asked for: rows behind the page, and the first one's prompt, if it was missing. */
	assert_int_equal(c.all.asked_rows - asked, LAYERS * (4 * (n - 1) + (known ? 0 : 66)));
	close_cast(&c);
}

static void test_shared_prefix(void **state)
{
	(void)state;
	for (uint32_t n = 2; n <= 5; n++)
		for (int i = 0; i < 4; i++)
			shared_prefix(i & 1, n, i & 2);
}

/* The page that is shared ends with a prompt of which nothing told, where the shadow had guessed that a step would
 * come. */
static void test_guess_in_shared_page(void **state)
{
	(void)state;
	for (int under_way = 0; under_way < 2; under_way++) {
		struct cast c;

		open_cast(&c, 2, true, OD_PROFILE_F32, 97, 0);
		c.aligned = true;
		enter(&c, &c.actor[0], 61);
		step_both(&c, 100, 100);
		assert_int_equal(c.actor[0].one[c.actor[0].n_one - 1].position, 62);
		if (under_way) { /* the guess */
			assert_true(choose_step(&c, 100, 0));
			begin_both(&c);
			c.all.late = true;
			for (uint32_t l = 0; l < LAYERS; l++)
				layer_both(&c, l);
			end_both(&c);
		}
		add_prompt(&c, &c.actor[0], 3);
		enter_behind(&c, &c.actor[1], 2, &c.actor[0], OD_KV_PAGE);
		c.all.late = false;
		drain(&c, &c.all);
		step_both(&c, 100, 50);
		step_both(&c, 100, 50);
		assert_among(&c);
		for (uint32_t i = 0; i < 2; i++)
			assert_int_equal(
				times_said(&c.actor[i], c.actor[i].length - 1, c.actor[i].token[c.actor[i].length - 1]),
				LAYERS);
		close_cast(&c);
	}
}

/* One of two goes on otherwise within the page, be a run under way or not: the other notices nothing. */
static void parted(uint32_t which, unsigned pieces)
{
	struct cast c;

	open_cast(&c, 4, true, OD_PROFILE_F32, 98, 0);
	c.aligned = true;
	enter(&c, &c.actor[0], 62);
	enter(&c, &c.actor[3], 5); /* without it the run would be over */
	step_both(&c, 100, 100);
	c.all.late = pieces > 0;
	assert_true(choose_step(&c, 100, 0));
	begin_both(&c);
	for (uint32_t l = 0; l < LAYERS; l++)
		layer_both(&c, l);
	end_both(&c);
	for (unsigned i = 1; i < pieces; i++) {
		struct od_err err;
		bool did;

		assert_int_equal(ods_emulator_work(c.all.e, c.now, &did, &err), OD_OK);
	}
	enter_behind(&c, &c.actor[1], 3, &c.actor[0], OD_KV_PAGE);
	truncate_to(&c, &c.actor[which], 30);
	enter_behind(&c, &c.actor[2], 3, &c.actor[1 - which], OD_KV_PAGE);
	c.all.late = false;
	for (int i = 0; i < 4; i++) {
		step_both(&c, 100, 50);
		assert_among(&c);
		for (uint32_t j = 0; j < 4; j++)
			assert_true(times_said(&c.actor[j], c.actor[j].length - 1,
					       c.actor[j].token[c.actor[j].length - 1]) >= LAYERS);
	}
	leave(&c, &c.actor[1 - which]);
	step_both(&c, 100, 50);
	assert_among(&c);
	close_cast(&c);
}

static void test_parted(void **state)
{
	(void)state;
	for (uint32_t which = 0; which < 2; which++)
		for (unsigned pieces = 0; pieces < 3 * LAYERS; pieces++)
			parted(which, pieces);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lockstep),      cmocka_unit_test(test_random),
		cmocka_unit_test(test_wrong_guess),   cmocka_unit_test(test_one_run),
		cmocka_unit_test(test_lacks_rows),    cmocka_unit_test(test_busy),
		cmocka_unit_test(test_few_pages),     cmocka_unit_test(test_indices),
		cmocka_unit_test(test_shared_prefix), cmocka_unit_test(test_guess_in_shared_page),
		cmocka_unit_test(test_parted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

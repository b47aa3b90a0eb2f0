/* Counts on the board of od-bench recall: worked out by hand. */
#include "tests/bench/live/recall_board.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 2u
#define FIRST 1u /* position of the first decode step */

static const struct od_config config = { .n_moe = LAYERS, .n_experts = 4, .top_k = 2 };
static struct od_prompt prompt = { .name = (char *)"a \"name\"" };
/* One prompt token, two decode steps; every router chooses 1, 2. */
static int32_t token[] = { 5, 6, 7, 8 };
static uint16_t expert[] = { 0, 0, 0, 0, 1, 2, 1, 2, 1, 2, 1, 2 };
static float probability[24] = { [8] = 0.125f, 0.5f, 0.25f, 0.125f };
static float margin[] = { 0, 0, 0.125f, 0.5f, 0.5f, 0.5f };
static struct recall_recording rec = { .prompt = &prompt,
				       .n_prompt = 1,
				       .n_tokens = 3,
				       .n_steps = 2,
				       .token = token,
				       .expert = expert,
				       .probability = probability,
				       .margin = margin };

struct fixture {
	struct recall_counts counts;
	struct recall_board board;
};

static void open_board(struct fixture *f)
{
	memset(f, 0, sizeof(*f));
	assert_int_equal(recall_counts_init(&f->counts, LAYERS, 4, NULL), OD_OK);
	f->board = (struct recall_board){ .rec = &rec, .config = &config, .counts = &f->counts, .name = "one" };
	assert_int_equal(recall_board_open(&f->board, NULL), OD_OK);
}

static void close_board(struct fixture *f)
{
	recall_board_close(&f->board);
	recall_counts_fini(&f->counts);
}

static void say(struct fixture *f, uint32_t position, uint32_t m, int32_t assumed, uint16_t a, uint16_t b, uint16_t c)
{
	const uint16_t said[] = { a, b, c };
	const float p[] = { 0.5f, 0.25f, 0.125f };
	const struct od_prediction x = {
		.position = position, .m = m, .token = assumed, .expert = said, .probability = p, .n = 3
	};

	recall_board_add(&f->board, &x);
}

static void run_step(struct fixture *f, bool any_token)
{
	recall_board_begin_step(&f->board, any_token);
	for (uint32_t m = 0; m < LAYERS; m++)
		recall_board_routed(&f->board);
}

static void assert_cell(struct od_recall_cell c, uint64_t uses, uint64_t recalled)
{
	assert_int_equal(c.uses, uses);
	assert_int_equal(c.recalled, recalled);
}

static void the_last_word_counts_and_every_word_for_its_lead(void **state)
{
	struct fixture f;

	(void)state;
	open_board(&f);
	say(&f, FIRST, 1, 6, 3, 0, 1); /* two ahead, nothing right: the third is a runner-up */
	recall_board_begin_step(&f.board, false);
	recall_board_routed(&f.board); /* layer 0: nobody said anything */
	say(&f, FIRST, 1, 6, 2, 3, 1); /* one ahead, one right */
	say(&f, FIRST + 1, 0, 7, 1, 2, 3); /* two ahead, of the next step */
	recall_board_routed(&f.board);
	say(&f, FIRST, 0, 6, 1, 2, 3); /* late, for both */
	say(&f, FIRST, 1, 6, 1, 2, 3);
	run_step(&f, false);
	assert_cell(f.counts.recall.all, 4, 3);
	assert_cell(f.counts.recall.layer[0], 2, 2);
	assert_cell(f.counts.recall.layer[1], 2, 1);
	assert_cell(f.counts.recall.token[0], 2, 1);
	assert_cell(f.counts.recall.token[1], 2, 2);
	assert_int_equal(f.counts.missing_rows, 2);
	assert_int_equal(f.counts.expert_uses, 8);
	assert_cell(f.counts.lead[0], 4, 4);
	assert_cell(f.counts.lead[1], 2, 1);
	assert_cell(f.counts.lead[2], 4, 2);
	assert_cell(f.counts.rank[0], 2, 1);
	assert_cell(f.counts.rank[1], 2, 2);
	assert_cell(f.counts.margin[recall_margin_bucket(0.5)], 4, 3);
	assert_int_equal(f.counts.tokens, 3);
	assert_int_equal(f.counts.steps, 2);
	close_board(&f);
}

static void words_for_another_token_are_void(void **state)
{
	struct fixture f;

	(void)state;
	open_board(&f);
	say(&f, FIRST, 0, 6, 1, 2, 3); /* a guess, right */
	run_step(&f, false);
	say(&f, FIRST + 1, 0, 6, 1, 2, 3); /* a guess, wrong */
	say(&f, FIRST + 1, 1, 6, 1, 2, 3);
	say(&f, FIRST + 2, 0, 8, 1, 2, 3); /* no such step */
	say(&f, FIRST - 1, 0, 5, 1, 2, 3);
	recall_board_begin_step(&f.board, false);
	say(&f, FIRST + 1, 0, 7, 1, 2, 3); /* no guess: the token is known by now */
	recall_board_routed(&f.board);
	recall_board_routed(&f.board);
	assert_int_equal(f.counts.guesses, 2);
	assert_int_equal(f.counts.wrong_guesses, 1);
	assert_cell(f.counts.recall.all, 4, 4);
	assert_int_equal(f.counts.missing_rows, 2);
	assert_cell(f.counts.lead[1], 4, 4);
	assert_cell(f.counts.lead[2], 0, 0);
	close_board(&f);
}

static void they_count_where_the_token_is_left_to_the_shadow(void **state)
{
	struct fixture f;

	(void)state;
	open_board(&f);
	say(&f, FIRST, 0, 9, 1, 0, 3);
	say(&f, FIRST + 1, 0, 9, 1, 2, 3); /* belongs to the next step, where the row is not */
	run_step(&f, true);
	assert_int_equal(f.counts.wrong_guesses, 2);
	assert_cell(f.counts.recall.all, 2, 1);
	run_step(&f, false);
	assert_cell(f.counts.recall.all, 2, 1);
	assert_cell(f.counts.lead[1], 2, 1);
	assert_cell(f.counts.lead[LAYERS + 1], 0, 0);
	close_board(&f);
}

static void a_row_is_a_line_of_the_dump(void **state)
{
	const float strange[] = { NAN, 0.25f, INFINITY }; /* JSON knows neither */
	const struct od_prediction x = { .position = FIRST,
					 .m = 1,
					 .token = 6,
					 .expert = (const uint16_t[]){ 3, 1, 0 },
					 .probability = strange,
					 .n = 3 };
	struct od_strbuf dump = { 0 };
	struct fixture f;
	char *text;
	size_t len;

	(void)state;
	open_board(&f);
	f.board.dump = &dump;
	say(&f, FIRST, 0, 6, 2, 0, 1);
	recall_board_add(&f.board, &x);
	run_step(&f, false);
	text = od_strbuf_take(&dump, &len);
	assert_string_equal(
		text,
		"{\"configuration\": \"one\", \"prompt\": \"a \\\"name\\\"\", \"index\": 1, \"layer\": 0, \"position\": 1, "
		"\"token\": 6, \"margin\": 0.125, \"used\": [1, 2], \"probabilities\": [0.125, 0.5, 0.25, 0.125], "
		"\"assumed_token\": 6, \"lead\": 1, \"predicted\": [2, 0, 1], "
		"\"predicted_probabilities\": [0.5, 0.25, 0.125]}\n"
		"{\"configuration\": \"one\", \"prompt\": \"a \\\"name\\\"\", \"index\": 1, \"layer\": 1, \"position\": 1, "
		"\"token\": 6, \"margin\": 0.5, \"used\": [1, 2], \"probabilities\": [0, 0, 0, 0], "
		"\"assumed_token\": 6, \"lead\": 2, \"predicted\": [3, 1, 0], "
		"\"predicted_probabilities\": [null, 0.25, null]}\n");
	free(text);
	close_board(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_last_word_counts_and_every_word_for_its_lead),
		cmocka_unit_test(words_for_another_token_are_void),
		cmocka_unit_test(they_count_where_the_token_is_left_to_the_shadow),
		cmocka_unit_test(a_row_is_a_line_of_the_dump),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

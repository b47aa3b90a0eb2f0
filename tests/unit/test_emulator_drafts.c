/* The emulator as a drafter: it runs several rows ahead of main, which verifies rows of its own choice and keeps some.
 * The mirror judges every prediction, every row that it stands on and every token. */
#include "shadow-node/emulator_messages.h"
#include "tests/unit/emulator_mirror.h"

#include <stdlib.h>
#include <string.h>

#include "shadow-node/emulator_internal.h"

#define DRAFT 16u /* rows behind the first one of a sequence in a STEP */

struct emulator_drafts_stage { /* one sequence, unless a test opens more */
	struct world w;
	struct mirror m;
	struct sequence *s;
};

static struct emulator_drafts_stage *open_stage(enum od_profile profile, bool same_weights, uint64_t from_seed)
{
	struct emulator_drafts_stage *g = calloc(1, sizeof(*g));

	assert_non_null(g);
	open_world(&g->w, profile, same_weights, true, from_seed);
	open_mirror(&g->m, &g->w);
	g->m.once = true;
	g->s = &g->w.seq[0];
	open_sequence(&g->w, g->s);
	return g;
}

static void close_stage(struct emulator_drafts_stage *g)
{
	close_mirror(&g->m);
	close_world(&g->w);
	free(g);
}

static uint32_t length_of(const struct emulator_drafts_stage *g)
{
	return od_seq_state_length(g->s->state);
}

static int32_t other(int32_t token)
{
	return (token + 1) % (int32_t)VOCAB;
}

/* A step of the sequence with these tokens. */
static void begin_rows(struct emulator_drafts_stage *g, const int32_t *token, uint32_t n, uint32_t ahead)
{
	struct sent_step *t = next_step(&g->w);
	const uint32_t begin = length_of(g);

	for (uint32_t i = 0; i < n; i++)
		put_row(t, 0, begin + i, token[i]);
	t->row[0].ahead = ahead;
	run_step(&g->w, t);
}

/* The shadow's choices from the position on; wrong: main has another token in this row (UINT32_MAX: in none), and any
 * behind it. */
static uint32_t draft_of(const struct emulator_drafts_stage *g, uint32_t n, uint32_t wrong, int32_t *token)
{
	const uint32_t begin = length_of(g);
	uint8_t text[CTX];

	memcpy(text, g->s->text, sizeof(text));
	for (uint32_t i = 0; i < n; i++) {
		token[i] = choice_of(&g->m, 0, text, begin + i);
		if (token[i] < 0 && i <= wrong)
			return i;
		if (i == wrong)
			token[i] = other(token[i]);
		else if (token[i] < 0)
			token[i] = (int32_t)draw(VOCAB);
		text[begin + i] = (uint8_t)token[i];
	}
	return n;
}

/* A plain step; the shadow has all the time it wants, but gets no rows of it. */
static void begin_plain(struct emulator_drafts_stage *g, uint32_t ahead)
{
	begin_rows(g, &g->s->next, 1, ahead);
	settle(&g->w);
}

static void finish_step(struct emulator_drafts_stage *g)
{
	while (send_layer(&g->w))
		;
}

/* ---- Ahead ---- */

static void open_sampled(struct emulator_drafts_stage *g)
{
	Od__Header h = OD__HEADER__INIT;
	Od__SeqOpen open = OD__SEQ_OPEN__INIT;
	struct od_msg m = { .header = &h };
	struct od_err err;

	g->m.prompt_tokens = open.prompt_tokens = length_of(g);
	g->m.sampling.temperature = open.temperature = 0.9;
	g->m.sampling.seed = open.seed = 77;
	g->m.sampling.top_p = open.top_p = 1;
	g->m.sampling.min_p = open.min_p = 0;
	g->m.sampling.top_k = open.top_k = 0;
	open.repetition_penalty = 1;
	open.sequence = g->s->id;
	h.body_case = OD__HEADER__BODY_SEQ_OPEN;
	h.seq_open = &open;
	must(ods_emulator_message(g->w.emulator, &m, 0, &err), &err);
}

/* As many rows as the STEP allows, before any of main's rows has come; each is one run. */
static void test_ahead(void **state)
{
	(void)state;
	for (uint32_t n = 0; n <= DRAFT + 1; n++)
		for (int sampled = 0; sampled < 2; sampled++) {
			struct emulator_drafts_stage *g =
				open_stage(sampled ? OD_PROFILE_BF16 : OD_PROFILE_F32, false, 40 + n);
			const uint32_t begin = length_of(g);
			int32_t token;

			if (sampled)
				open_sampled(g);
			begin_plain(g, n);
			assert_int_equal(g->m.runs, n == 1 ? 1 : 1 + n); /* a single one waits for main's rows */
			assert_int_equal(g->m.ahead, g->m.runs - 1);
			for (uint32_t i = 0; i < g->m.runs; i++)
				assert_true(is_said(&g->m, 0, g->m.text[0], begin + i));
			finish_step(g);
			settle(&g->w);
			assert_int_equal(g->m.runs, 1 + n);
			assert_int_equal(g->w.predicts, LAYERS * (1 + n));
			assert_all_said(&g->m);
			if (n == 0) /* no token is needed, none is chosen */
				assert_int_equal(g->w.emulator->sequence[0]->token[begin + 1], -1);
			if (n > 0) {
				token = g->m.text[0][begin + 1]; /* is right */
				begin_rows(g, &token, 1, 0); /* and no more from here on */
				settle(&g->w);
				assert_int_equal(g->m.runs, 1 + n);
				assert_int_equal(g->w.counters[OD_C_SHADOW_CONFIRMED], 1);
			}
			close_stage(g);
		}
}

/* Nothing is run behind the context's end. */
static void test_end_of_context(void **state)
{
	(void)state;
	for (uint32_t left = 1; left < 5; left++) {
		struct emulator_drafts_stage *g = open_stage(OD_PROFILE_F32, false, 50);

		while (length_of(g) < CTX - left) {
			begin_plain(g, 0);
			finish_step(g);
			settle(&g->w);
		}
		g->m.runs = 0;
		begin_plain(g, DRAFT);
		assert_int_equal(g->m.runs, left);
		assert_all_said(&g->m);
		close_stage(g);
	}
}

/* A shadow that leaves late drafts nothing. */
static void test_late(void **state)
{
	struct emulator_drafts_stage *g = open_stage(OD_PROFILE_F32, false, 51);

	(void)state;
	g->w.emulator->o.early = false;
	begin_plain(g, DRAFT);
	finish_step(g);
	settle(&g->w);
	assert_int_equal(g->m.runs, 1);
	assert_int_equal(g->m.ahead, 0);
	close_stage(g);
}

/* ---- Main's word about them ---- */

/* n of the rows ahead come in the next STEP, be the last ones under way: none is run or said again, and the others go
 * on. */
static void confirmed(uint32_t n, uint32_t pieces, enum od_profile profile)
{
	struct emulator_drafts_stage *g = open_stage(profile, false, 60 + n);
	const struct ods_sequence *q;
	int32_t token[DRAFT + 1];
	uint32_t run;

	begin_rows(g, &g->s->next, 1, 8);
	finish_step(g);
	while (deliver(&g->w))
		;
	if (pieces == 0)
		settle(&g->w);
	while (g->m.runs < 5) /* whatever pieces says */
		assert_true(work(&g->w) || deliver(&g->w));
	for (uint32_t i = 0; i < pieces; i++)
		work(&g->w);
	n = draft_of(g, n, UINT32_MAX, token);
	assert_true(n > 0);
	q = g->w.emulator->sequence[0];
	run = n < q->next - q->stepped ? n : q->next - q->stepped; /* the last token's row may not have begun */
	assert_true(run + 1 >= n);
	begin_rows(g, token, n, 8);
	while (deliver(&g->w))
		;
	settle(&g->w);
	assert_int_equal(g->m.runs, 1 + n + 8);
	assert_int_equal(g->w.counters[OD_C_SHADOW_CONFIRMED], run);
	assert_int_equal(g->w.counters[OD_C_SHADOW_MISTAKEN], 0);
	assert_int_equal(g->w.counters[OD_C_SHADOW_OVERTAKEN], 0);
	assert_all_said(&g->m);
	close_stage(g);
}

static void test_confirmed(void **state)
{
	(void)state;
	for (uint32_t n = 1; n <= 8; n++)
		for (uint32_t pieces = 0; pieces < 2 * LAYERS + 2; pieces++)
			confirmed(n, pieces, pieces & 1 ? OD_PROFILE_BF16 : OD_PROFILE_F32);
}

/* Rows of a STEP behind those that were run ahead: one run of all, and then ahead of them. */
static void test_longer_step(void **state)
{
	(void)state;
	for (uint32_t known = 0; known <= 3; known++) {
		struct emulator_drafts_stage *g = open_stage(OD_PROFILE_F32, false, 70 + known);
		int32_t token[DRAFT + 1];

		begin_plain(g, 3);
		finish_step(g);
		settle(&g->w);
		assert_int_equal(draft_of(g, 7, known, token), 7);
		g->m.runs = 0;
		begin_rows(g, token, 7, 4);
		settle(&g->w);
		assert_int_equal(g->m.runs, 1 + 4);
		assert_int_equal(g->w.counters[OD_C_SHADOW_CONFIRMED], known);
		assert_int_equal(g->w.counters[OD_C_SHADOW_MISTAKEN], 3 - known);
		assert_all_said(&g->m);
		close_stage(g);
	}
}

/* Main keeps `kept` of the rows that it verifies, the shadow's own ones but for row `wrong`, and goes on with another
 * token than the shadow's: the shadow's rows from there on go, whatever it is doing, told of it before the STEP or by
 * the STEP. */
static void undone(uint32_t kept, uint32_t wrong, bool tell, uint32_t pieces)
{
	struct emulator_drafts_stage *g = open_stage(OD_PROFILE_F32, false, 80 + kept);
	int32_t token[DRAFT + 1];
	uint32_t begin;

	begin_plain(g, 8);
	finish_step(g);
	settle(&g->w);
	assert_int_equal(draft_of(g, 5, wrong, token), 5);
	begin_rows(g, token, 5, 8);
	while (deliver(&g->w))
		;
	for (uint32_t i = 0; i < pieces; i++)
		work(&g->w);
	finish_step(g);
	while (deliver(&g->w))
		;
	keep_rows(&g->w, g->s, kept, tell);
	begin = length_of(g);
	assert_int_equal(begin, g->w.sent[g->w.step].row[0].position + kept);
	do
		g->s->next = other(g->s->next);
	while (g->s->next == g->m.text[0][begin] || (kept < 5 && g->s->next == token[kept]));
	unsay(&g->m, 0, begin);
	begin_rows(g, &g->s->next, 1, 8);
	while (deliver(&g->w))
		;
	settle(&g->w);
	assert_all_said(&g->m);
	finish_step(g);
	settle(&g->w);
	assert_all_said(&g->m);
	assert_int_equal(g->m.text[0][begin], g->s->text[begin]);
	if (pieces == 0) /* none of the second STEP's rows behind the wrong one was run */
		assert_int_equal(g->w.counters[OD_C_SHADOW_MISTAKEN], wrong < 5 ? 8 - wrong : 8 - 5);
	close_stage(g);
}

static void test_undone(void **state)
{
	(void)state;
	for (uint32_t kept = 1; kept <= 5; kept++)
		for (uint32_t wrong = 0; wrong <= 5; wrong++)
			for (uint32_t pieces = 0; pieces < 5 * LAYERS; pieces += 1 + pieces) {
				undone(kept, wrong, false, pieces);
				undone(kept, wrong, true, pieces);
			}
}

/* A slow shadow: main's next STEP, with a draft that the shadow does not know, comes while the last one's rows run. */
static void test_overtaken(void **state)
{
	(void)state;
	for (uint32_t pieces = 0; pieces < 3 * LAYERS; pieces++) {
		struct emulator_drafts_stage *g = open_stage(OD_PROFILE_F32, false, 90 + pieces);

		begin_plain(g, 8);
		finish_step(g);
		settle(&g->w);
		for (int i = 0; i < 5; i++) {
			int32_t token[DRAFT + 1] = { g->s->next };
			const uint32_t n = 1 + draw(6);

			for (uint32_t j = 1; j < n; j++) /* looked up somewhere */
				token[j] = (int32_t)draw(VOCAB);
			begin_rows(g, token, n, 8);
			while (deliver(&g->w))
				;
			for (uint32_t j = 0; j < pieces; j++)
				work(&g->w);
			finish_step(g);
			while (deliver(&g->w))
				;
			if (n > 1) {
				keep_rows(&g->w, g->s, 1 + draw(n), true);
				unsay(&g->m, 0, length_of(g));
			}
		}
		if (pieces > 0 && pieces < 2 * LAYERS)
			assert_true(g->w.counters[OD_C_SHADOW_OVERTAKEN] > 0);
		begin_plain(g, 8);
		assert_all_said(&g->m);
		close_stage(g);
	}
}

/* ---- Main's rows ---- */

/* They come at any time while the shadow runs ahead: they go over its own ones, and what runs later stands on them. */
static void true_rows(uint32_t n, uint32_t before, uint32_t between)
{
	struct emulator_drafts_stage *g = open_stage(n & 1 ? OD_PROFILE_BF16 : OD_PROFILE_F32, false, 100 + n);
	int32_t token[DRAFT + 1];
	const struct ods_sequence *q;
	uint32_t end;

	begin_plain(g, 6);
	finish_step(g);
	settle(&g->w);
	n = draft_of(g, n, 6, token); /* the shadow has no own rows yet for those behind */
	g->m.mixed = 0;
	begin_rows(g, token, n, DRAFT);
	end = length_of(g);
	while (deliver(&g->w))
		;
	for (uint32_t i = 0; i < before; i++)
		work(&g->w);
	while (send_layer(&g->w)) {
		while (deliver(&g->w))
			;
		for (uint32_t i = 0; i < between; i++)
			work(&g->w);
	}
	settle(&g->w);
	assert_all_said(&g->m);
	q = g->w.emulator->sequence[0];
	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t p = 0; p < CTX; p++)
			assert_int_equal(ods_align_is_true(q->align, l, p), p < end);
	check_true_rows(&g->m); /* the bits */
	assert_true(g->m.mixed > 0);
	close_stage(g);
}

static void test_true_rows(void **state)
{
	(void)state;
	for (uint32_t n = 1; n <= 10; n++)
		for (uint32_t before = 0; before < 5 * LAYERS; before += 4)
			for (uint32_t between = 0; between < 3; between++)
				true_rows(n, before, between);
}

/* A row of main's is lost while the shadow has done so many pieces of its runs ahead. It goes on; the next STEP says
 * that the row will not come. So it is asked for, and then the row that was under way is run again, and nothing
 * else. */
static void lost_row(uint32_t layer, uint32_t pieces)
{
	struct emulator_drafts_stage *g = open_stage(OD_PROFILE_F32, false, 110 + layer);
	const struct ods_sequence *q;
	int32_t token[4];
	unsigned asks;

	begin_plain(g, 0);
	finish_step(g);
	settle(&g->w);
	q = g->w.emulator->sequence[0];
	begin_rows(g, &g->s->next, 1, 8);
	while (deliver(&g->w))
		;
	for (uint32_t i = 0; i < 2 * LAYERS + pieces; i++)
		work(&g->w);
	for (uint32_t l = 0; send_layer(&g->w); l++) {
		g->w.lose = l == layer ? 100 : 0;
		while (deliver(&g->w))
			;
	}
	g->w.lose = 0;
	assert_false(ods_align_is_true(q->align, layer, length_of(g) - 1));
	asks = g->w.asks;
	g->m.once = false;
	assert_int_equal(draft_of(g, 1, UINT32_MAX, token), 1);
	begin_rows(g, token, 1, 8);
	while (deliver(&g->w))
		;
	settle(&g->w);
	assert_all_said(&g->m);
	assert_int_equal(g->w.asks, asks + 1);
	assert_true(ods_align_is_true(q->align, layer, length_of(g) - 2));
	assert_in_range(g->m.runs, 2 + 9, 2 + 9 + 1);
	close_stage(g);
}

static void test_lost_row(void **state)
{
	(void)state;
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		for (uint32_t pieces = 0; pieces < 9 * 2 * LAYERS; pieces += 2)
			lost_row(layer, pieces);
}

/* Alignment every second step. The shadow has not run the first of them, whose row comes with the second: there is
 * nothing else to stand on, so it waits for it, in each layer. */
static void test_due_before(void **state)
{
	struct emulator_drafts_stage *g = open_stage(OD_PROFILE_F32, false, 120);
	uint32_t begin;

	(void)state;
	begin_plain(g, 8);
	finish_step(g);
	settle(&g->w);
	g->s->next = other(g->m.text[0][length_of(g)]);
	begin_rows(g, &g->s->next, 1, 8);
	g->w.queue[g->w.head].due = false;
	while (deliver(&g->w))
		;
	begin = length_of(g);
	begin_rows(g, &g->s->next, 1, 8);
	g->w.queue[g->w.head].rows[0].state_rows = 2;
	g->m.runs = 0;
	while (deliver(&g->w))
		;
	settle(&g->w);
	assert_int_equal(g->m.runs, 0);
	for (uint32_t l = 0; l < LAYERS; l++) {
		push_state(&g->w, g->s, l, begin - 1, 2, g->w.step);
		settle(&g->w);
		assert_int_equal(g->m.runs, l + 1 < LAYERS ? 1 : 1 + 8);
		assert_int_equal(g->m.cell[0][begin].said, (2u << l) - 1);
	}
	assert_all_said(&g->m);
	close_stage(g);
}

/* ---- Any life ---- */

/* A step with drafts of any kind, of some sequences. */
static void begin_any_step(struct emulator_drafts_stage *g)
{
	struct sent_step *t = next_step(&g->w);

	for (uint32_t i = 0; i < g->w.n_seqs; i++) {
		const struct sequence *s = &g->w.seq[i];
		const uint32_t begin = od_seq_state_length(s->state), kind = draw(3);
		const size_t first = t->n_rows;
		uint8_t text[CTX];
		uint32_t n = chance(20) ? 1 : 1 + draw(DRAFT + 1);

		n = n < STEP_ROWS - t->n_rows ? n : STEP_ROWS - (uint32_t)t->n_rows;
		n = n < CTX - begin ? n : CTX - begin;
		if (!s->open || n == 0 || chance(10))
			continue;
		memcpy(text, s->text, sizeof(text));
		for (uint32_t j = 0; j < n; j++) {
			int32_t token = j == 0 ? s->next : choice_of(&g->m, i, text, begin + j);

			if (j > 0 && token < 0 && kind == 0)
				break; /* the shadow's draft ends */
			if (j > 0 && (token < 0 || kind == 2 || chance(5)))
				token = (int32_t)draw(VOCAB);
			put_row(t, i, begin + j, token);
			text[begin + j] = (uint8_t)token;
		}
		t->row[first].ahead = draw(DRAFT + 2);
	}
	if (t->n_rows > 0)
		run_step(&g->w, t);
}

/* How many rows main keeps: those that it would have chosen, or, if any may be kept, so many. */
static uint32_t kept_rows(const struct sent_step *t, size_t first, uint32_t n, bool any)
{
	uint32_t kept = 1;

	if (any && chance(30))
		return 1 + draw(n);
	while (kept < n && t->row[first + kept].token == t->choice[first + kept - 1])
		kept++;
	return kept;
}

static void end_any_step(struct emulator_drafts_stage *g)
{
	const struct sent_step *t = &g->w.sent[g->w.step % MAX_STEPS];

	for (size_t r = 0, n; r < t->n_rows; r += n) {
		const uint32_t seq = t->row[r].seq;
		struct sequence *s = &g->w.seq[seq];
		uint32_t kept;

		for (n = 1; r + n < t->n_rows && t->row[r + n].seq == seq; n++)
			;
		kept = kept_rows(t, r, (uint32_t)n, !g->m.once);
		if (kept == n)
			continue;
		s->went_back = !chance(60);
		keep_rows(&g->w, s, kept, !s->went_back);
		unsay(&g->m, seq, t->row[r].position + kept);
	}
}

/* Something happens to a sequence between two steps. */
static void disturb_any(struct emulator_drafts_stage *g)
{
	uint32_t length[MAX_SEQS];
	uint64_t id[MAX_SEQS];

	for (uint32_t i = 0; i < g->w.n_seqs; i++) {
		length[i] = od_seq_state_length(g->w.seq[i].state);
		id[i] = g->w.seq[i].id;
	}
	disturb(&g->w);
	for (uint32_t i = 0; i < g->w.n_seqs; i++)
		if (g->w.seq[i].id != id[i])
			unsay(&g->m, i, 0);
		else if (od_seq_state_length(g->w.seq[i].state) < length[i])
			unsay(&g->m, i, od_seq_state_length(g->w.seq[i].state));
}

/* Counts over all lives. */
struct emulator_drafts_sums {
	uint64_t steps, ahead, confirmed, mistaken, overtaken, mixed;
};

static void add_sums(struct emulator_drafts_sums *sum, const struct emulator_drafts_stage *g)
{
	sum->steps += g->w.step;
	sum->ahead += g->m.ahead;
	sum->mixed += g->m.mixed;
	sum->confirmed += g->w.counters[OD_C_SHADOW_CONFIRMED];
	sum->mistaken += g->w.counters[OD_C_SHADOW_MISTAKEN];
	sum->overtaken += g->w.counters[OD_C_SHADOW_OVERTAKEN];
}

static void random_life(uint64_t from_seed, struct emulator_drafts_sums *sum)
{
	struct emulator_drafts_stage *g =
		open_stage(from_seed & 1 ? OD_PROFILE_BF16 : OD_PROFILE_F32, (from_seed & 2) != 0, from_seed);
	bool ended = true;
	uint32_t speed;

	g->w.own_rows = g->m.unseen = (from_seed & 12) == 12;
	g->m.once = (from_seed & 12) == 4; /* else rows that are lost, or undone for no reason, run again */
	g->w.lose = g->m.once ? 0 : draw(3) * 7;
	g->w.twice = draw(2) * 10;
	g->w.lose_asks = true;
	speed = 5 + draw(90);
	for (int i = 0; i < 600; i++) {
		g->w.now += draw((uint32_t)(ODS_ASK_AGAIN_NS / 16));
		if (chance(speed)) {
			work(&g->w);
			continue;
		}
		if (chance(50) && deliver(&g->w)) {
			check_true_rows(&g->m);
			continue;
		}
		if (send_layer(&g->w))
			continue;
		if (!ended)
			end_any_step(g);
		ended = true;
		if (chance(15)) {
			disturb_any(g);
			continue;
		}
		begin_any_step(g);
		ended = g->w.layer == LAYERS;
	}
	g->w.lose = g->w.twice = 0;
	finish_step(g);
	if (!ended)
		end_any_step(g);
	settle(&g->w);
	g->w.layer = LAYERS;
	begin_any_step(g);
	if (g->w.layer < LAYERS) {
		settle(&g->w);
		finish_step(g);
		settle(&g->w);
		assert_all_said(&g->m);
		check_true_rows(&g->m);
	}
	add_sums(sum, g);
	close_stage(g);
}

static void test_random_lives(void **state)
{
	struct emulator_drafts_sums s = { 0 };

	(void)state;
	for (uint64_t i = 0; i < 160; i++)
		random_life(3000 + i, &s);
	/* The lives are as varied as they should be. */
	assert_true(s.steps > 160 * 20 && s.ahead > s.steps && s.mixed > s.steps);
	assert_true(s.confirmed > 2 * 160 && s.mistaken > s.steps / 2 && s.overtaken > 2 * 160);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ahead),	     cmocka_unit_test(test_end_of_context),
		cmocka_unit_test(test_late),	     cmocka_unit_test(test_confirmed),
		cmocka_unit_test(test_longer_step),  cmocka_unit_test(test_undone),
		cmocka_unit_test(test_overtaken),    cmocka_unit_test(test_true_rows),
		cmocka_unit_test(test_lost_row),     cmocka_unit_test(test_due_before),
		cmocka_unit_test(test_random_lives),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

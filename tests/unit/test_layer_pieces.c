/* A layer's work cut into pieces: every (row, rank) exactly once, on the worker that the rules name. */
#include "main-node/cluster/layer_pieces.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/alike_workers.h"

#define MAX_ROWS 40
#define MAX_WORKERS 9

static uint32_t rng_state;

static uint32_t rng(uint32_t below)
{
	rng_state = rng_state * 1664525u + 1013904223u;
	return (rng_state >> 8) % below;
}

/* Different experts within a row, as a router chooses. */
static void choose(uint16_t *expert, size_t rows, uint32_t k, uint32_t n_experts)
{
	for (size_t r = 0; r < rows; r++) {
		for (uint32_t i = 0; i < k; i++) {
			bool again = true;

			while (again) {
				expert[r * k + i] = (uint16_t)rng(n_experts);
				again = false;
				for (uint32_t j = 0; j < i; j++)
					again = again || expert[r * k + j] == expert[r * k + i];
			}
		}
	}
}

/* Every pair of the call is in exactly one piece, of its own expert; rows within a piece ascend. */
static void check_cover(const struct odm_pieces *p, const struct od_moe_call *call, uint32_t k)
{
	uint8_t seen[MAX_ROWS * OD_MAX_TOP_K] = { 0 };
	size_t total = 0;

	for (size_t i = 0; i < p->n; i++) {
		const struct odm_piece *q = &p->piece[i];

		assert_true(q->count > 0);
		assert_int_equal(q->state, ODM_PIECE_TODO);
		for (uint32_t j = 0; j < q->count; j++) {
			uint32_t pair = p->order[q->first + j];

			assert_int_equal(call->expert[pair], q->expert);
			assert_true(j == 0 || pair > p->order[q->first + j - 1]);
			assert_int_equal(seen[pair]++, 0);
			total++;
		}
	}
	assert_int_equal(total, call->n_rows * k);
}

/* As experts with so many rows are dealt. */
static void check_workers(const struct odm_pieces *p, const struct od_moe_call *call, const struct odm_groups *g)
{
	uint32_t scratch[ODM_DEAL_SCRATCH(64, MAX_WORKERS)], worker[64], of[64] = { 0 }, rows[64] = { 0 };

	for (size_t i = 0; i < p->n_chosen; i++)
		for (size_t j = 0; j < p->n; j++)
			rows[i] += p->piece[j].expert == p->chosen[i] ? p->piece[j].count : 0;
	odm_deal(g, call->step, call->m, p->chosen, rows, p->n_chosen, NULL, NULL, worker, scratch);
	for (size_t i = 0; i < p->n_chosen; i++)
		of[p->chosen[i]] = worker[i];
	for (size_t i = 0; i < p->n; i++)
		assert_int_equal(p->piece[i].worker, of[p->piece[i].expert]);
}

static uint32_t on_its_way_to(void *arg, uint16_t expert)
{
	(void)arg;
	return expert % 2;
}

static void random_calls(void **state)
{
	(void)state;
	for (uint32_t seed = 0; seed < 300; seed++) {
		uint16_t expert[MAX_ROWS * 4];
		uint32_t k, n_experts, n_workers, batch, last_of[64] = { 0 };
		bool begun[64] = { false };
		struct od_config cfg = { 0 };
		struct odm_pieces p;
		struct odm_groups g;
		struct od_moe_call call;
		struct od_err err;

		rng_state = seed;
		k = 1 + rng(4);
		n_experts = k + rng(20);
		n_workers = 1 + rng(MAX_WORKERS);
		batch = 1 + rng(MAX_ROWS);
		cfg.n_experts = n_experts;
		cfg.top_k = k;
		call = (struct od_moe_call){
			.step = 1 + rng(9), .m = rng(12), .n_rows = 1 + rng(MAX_ROWS), .expert = expert
		};
		choose(expert, call.n_rows, k, n_experts);
		g = odm_groups_make(n_workers, 1 + rng(3), k, 12);
		g.times = alike_workers(n_workers);
		assert_int_equal(odm_pieces_init(&p, &cfg, MAX_ROWS, MAX_WORKERS, &err), OD_OK);

		odm_pieces_deal(&p, &call, &g, NULL, NULL);
		odm_pieces_cut(&p, &call, MAX_ROWS);
		check_cover(&p, &call, k);
		check_workers(&p, &call, &g);
		assert_int_equal(p.n, p.n_chosen); /* one piece an expert */
		for (size_t i = 0; i < p.n; i++)
			assert_true(p.piece[i].last);

		odm_pieces_deal(&p, &call, &g, NULL, NULL);
		odm_pieces_cut(&p, &call, batch);
		check_cover(&p, &call, k);
		check_workers(&p, &call, &g);
		for (size_t i = 0; i < p.n; i++) {
			const struct odm_piece *q = &p.piece[i];

			/* Batches of rows, one after the other, so that those of a batch go into one RUN. */
			for (uint32_t j = 0; j < q->count; j++)
				assert_int_equal(p.order[q->first + j] / k / batch, q->batch);
			assert_true(i == 0 || q->batch >= p.piece[i - 1].batch);
			assert_int_equal(last_of[q->expert], 0); /* the last is the last */
			last_of[q->expert] += q->last;
			assert_int_equal(q->first_of, !begun[q->expert]);
			begun[q->expert] = true;
		}
		for (size_t i = 0; i < p.n_chosen; i++)
			assert_int_equal(last_of[p.chosen[i]], 1);
		odm_pieces_fini(&p);
	}
}

static void a_first_half_keeps_its_experts(void **state)
{
	const uint16_t expert[] = { 0, 2, 0, 1 };
	const struct od_moe_call call = { .step = 1, .n_rows = 2, .expert = expert };
	struct odm_groups g = odm_groups_make(2, 2, 2, 12);
	const struct od_config cfg = { .n_experts = 4, .top_k = 2 };
	struct odm_pieces p;
	struct od_err err;

	(void)state;
	g.times = alike_workers(2);
	assert_int_equal(odm_pieces_init(&p, &cfg, 2, 2, &err), OD_OK);
	odm_pieces_deal(&p, &call, &g, NULL, NULL);
	odm_pieces_cut(&p, &call, 2);
	assert_int_equal(p.n, 3);
	for (size_t i = 0; i < p.n; i++)
		assert_true(p.piece[i].last && p.piece[i].work == &p);
	odm_pieces_keep(&p);
	for (size_t i = 0; i < p.n; i++)
		assert_false(p.piece[i].last);
	assert_ptr_equal(p.call, &call);
	odm_pieces_end(&p);
	assert_null(p.call);
	assert_int_equal(p.n + p.n_done, 0);
	odm_pieces_fini(&p);
}

static void what_is_next_open_and_owed(void **state)
{
	const uint16_t expert[] = { 0, 2, 0, 1, 2, 1, 0, 3, 0, 2 }; /* five rows, top-2 */
	const struct od_moe_call call = { .step = 1, .m = 0, .n_rows = 5, .expert = expert };
	struct odm_groups g = odm_groups_make(2, 2, 2, 12);
	const struct od_config cfg = { .n_experts = 4, .top_k = 2 };
	struct odm_piece *next[4];
	struct odm_pieces p;
	struct od_err err;
	bool more;

	(void)state;
	g.times = alike_workers(2);
	assert_int_equal(odm_pieces_init(&p, &cfg, 5, 2, &err), OD_OK);
	odm_pieces_deal(&p, &call, &g, on_its_way_to, NULL); /* worker 0 has experts 0 and 2 */
	odm_pieces_cut(&p, &call, 3); /* rows 0 to 2: experts 0, 1, 2; rows 3, 4: 0, 2, 3 */
	assert_int_equal(p.n, 6);
	assert_int_equal(odm_pieces_next(&p, 0, 1, next, &more), 1);
	assert_true(more);
	assert_int_equal(odm_pieces_next(&p, 0, 4, next, &more), 2); /* the second batch is another RUN */
	assert_true(more);
	assert_true(next[0]->expert == 0 && next[0]->count == 2 && !next[0]->last);
	assert_true(next[1]->expert == 2 && next[1]->count == 2 && !next[1]->last);
	next[0]->state = next[1]->state = ODM_PIECE_SENT;
	next[0]->request = next[1]->request = 7;
	assert_ptr_equal(odm_pieces_find(&p, next[0]->worker, 7, 0), next[0]);
	assert_null(odm_pieces_find(&p, next[0]->worker, 7, 1));
	assert_null(odm_pieces_find(&p, next[0]->worker, 8, 0));
	next[1]->state = ODM_PIECE_DONE;
	assert_true(odm_pieces_open(&p, 7));
	assert_true(odm_pieces_asked(&p, 7));
	assert_false(odm_pieces_asked(&p, 8));
	assert_false(odm_pieces_asked(&p, 0)); /* pieces that were never sent */
	assert_false(odm_pieces_open(&p, 8));
	next[0]->state = ODM_PIECE_DONE;
	assert_false(odm_pieces_open(&p, 7));
	assert_true(odm_pieces_asked(&p, 7)); /* answered */
	assert_null(odm_pieces_find(&p, next[0]->worker, 7, 0)); /* a second answer */
	assert_int_equal(odm_pieces_next(&p, 0, 4, next, &more), 2);
	assert_false(more);
	assert_true(next[0]->expert == 0 && next[0]->count == 2 && next[0]->last);
	assert_true(next[1]->expert == 2 && next[1]->count == 1 && next[1]->last);
	assert_false(odm_pieces_owed(&p, 0)); /* not sent yet */
	next[0]->state = next[1]->state = ODM_PIECE_SENT;
	assert_true(odm_pieces_owed(&p, 0));
	assert_int_equal(odm_pieces_most_rows(&p, 0), 2);
	next[0]->state = next[1]->state = ODM_PIECE_DONE;
	assert_false(odm_pieces_owed(&p, 0));
	assert_false(odm_pieces_owed(&p, 1));
	odm_pieces_fini(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_calls),
		cmocka_unit_test(a_first_half_keeps_its_experts),
		cmocka_unit_test(what_is_next_open_and_owed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

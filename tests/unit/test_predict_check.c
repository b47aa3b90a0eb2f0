/* Main's checks of a PREDICT: everything at its bounds and one beyond; and what of it reaches the table. */
#include "main-node/predict/predict_check.h"

#include "main-node/predict/prediction_drafts.h"
#include "main-node/predict/prediction_wants.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define LAYERS 3
#define EXPERTS 30
#define TOP_K 2
#define VOCAB 50
#define ROWS 4
#define MOST (TOP_K + OD_MAX_RUNNERS_UP)

static const struct od_config config = { .n_moe = LAYERS, .n_experts = EXPERTS, .top_k = TOP_K, .vocab = VOCAB };

/* A PREDICT of three rows that is right; tests spoil one thing of it. */
struct good_predict {
	Od__Predict p;
	Od__PredictRow row[ROWS + 1], *list[ROWS + 1];
	uint32_t expert[ROWS + 1][OD_MAX_CANDIDATES + 1];
	float probability[ROWS + 1][OD_MAX_CANDIDATES + 1];
	struct od_err err;
};

static void init_predict(struct good_predict *g)
{
	od__predict__init(&g->p);
	g->p.rows = g->list;
	g->p.n_rows = 3;
	g->p.m = LAYERS - 1;
	for (uint32_t i = 0; i < ROWS + 1; i++) {
		od__predict_row__init(&g->row[i]);
		g->list[i] = &g->row[i];
		g->row[i].sequence = 1;
		g->row[i].position = 7 + i;
		g->row[i].token = i == 0 ? VOCAB - 1 : 0;
		g->row[i].experts = g->expert[i];
		g->row[i].probabilities = g->probability[i];
		g->row[i].n_experts = g->row[i].n_probabilities = i == 0 ? MOST : TOP_K;
		for (uint32_t k = 0; k < OD_MAX_CANDIDATES + 1; k++) {
			g->expert[i][k] = EXPERTS - 1 - k;
			g->probability[i][k] = 1.f / (float)(k + 2);
		}
	}
}

static void assert_predict(struct good_predict *g, int rc, const char *why)
{
	assert_int_equal(odm_check_predict(&g->p, &config, ROWS, &g->err), rc);
	if (rc != OD_OK)
		assert_string_equal(g->err.msg, why);
}

static void rows_are_counted(void **state)
{
	struct good_predict g;

	(void)state;
	init_predict(&g);
	for (size_t n = 1; n <= ROWS; n++) {
		g.p.n_rows = n;
		assert_predict(&g, OD_OK, NULL);
	}
	g.p.n_rows = 0;
	assert_predict(&g, OD_ERR_RANGE, "rows: expected 1 to 4, found 0");
	g.p.n_rows = ROWS + 1;
	assert_predict(&g, OD_ERR_RANGE, "rows: expected 1 to 4, found 5");
}

/* One bad row, whichever it is. */
static void every_number_is_checked(void **state)
{
	struct good_predict g;

	(void)state;
	for (uint32_t i = 0; i < 3; i++) {
		init_predict(&g);
		g.row[i].token = VOCAB;
		assert_predict(&g, OD_ERR_RANGE, "token 50; expected 0 to 49");
		g.row[i].token = -1;
		assert_predict(&g, OD_ERR_RANGE, "token -1; expected 0 to 49");
		init_predict(&g);
		g.row[i].n_experts = g.row[i].n_probabilities = TOP_K;
		g.row[i].n_probabilities--;
		assert_predict(&g, OD_ERR_SHAPE, "probabilities: expected one for each of 2 experts, found 1");
		g.row[i].n_probabilities += 2;
		assert_predict(&g, OD_ERR_SHAPE, "probabilities: expected one for each of 2 experts, found 3");
		init_predict(&g);
		g.row[i].n_experts = g.row[i].n_probabilities = TOP_K - 1;
		assert_predict(&g, OD_ERR_RANGE, "1 experts; expected 2 to 22");
		g.row[i].n_experts = g.row[i].n_probabilities = OD_MAX_CANDIDATES + 1;
		assert_predict(&g, OD_ERR_RANGE, "23 experts; expected 2 to 22");
		init_predict(&g);
		g.expert[i][1] = EXPERTS;
		assert_predict(&g, OD_ERR_RANGE, "expert 30, number 1 of its list; expected 0 to 29, each once");
		g.expert[i][1] = EXPERTS - 1;
		assert_predict(&g, OD_ERR_RANGE, "expert 29, number 1 of its list; expected 0 to 29, each once");
		g.expert[i][1] = UINT16_MAX + 1; /* as 16 bits it would be expert 0 */
		assert_predict(&g, OD_ERR_RANGE, "expert 65535, number 1 of its list; expected 0 to 29, each once");
	}
	init_predict(&g);
	g.p.m = LAYERS;
	assert_predict(&g, OD_ERR_RANGE, "MoE layer 3; expected 0 to 2");
}

/* A step with the sequence's row at position 7 begins; then the PREDICT arrives. */
static struct odm_predictions *make_table(const struct good_predict *g, bool wants)
{
	const struct odm_predictions_opts o = { .n_moe = LAYERS,
						.n_experts = EXPERTS,
						.top_k = TOP_K,
						.max_sequences = 1,
						.max_rows = ROWS,
						.max_draft = 3,
						.max_tokens = 10 };
	const struct odm_predicted_row row = {
		.sequence = 1, .position = 7, .prompt_tokens = 7, .token = VOCAB - 1, .ahead = ROWS
	};
	struct odm_predictions *table;
	struct od_err err;

	assert_int_equal(odm_predictions_new(&table, &o, &err), OD_OK);
	odm_predictions_begin(table, 1, 2, &row, 1, true);
	assert_int_equal(odm_add_predict(table, &g->p), wants);
	return table;
}

static void its_rows_are_in_the_table(void **state)
{
	uint16_t expert[EXPERTS], before[EXPERTS];
	uint32_t worker[EXPERTS], worker_before[EXPERTS];
	struct odm_want w = {
		.expert = expert, .expert_before = before, .worker = worker, .worker_before = worker_before
	};
	struct odm_predictions *table;
	struct good_predict g;

	(void)state;
	init_predict(&g);
	table = make_table(&g, true);
	assert_true(odm_predictions_take_want(table, &w));
	assert_int_equal(w.step, 1);
	assert_int_equal(w.m, LAYERS - 1);
	assert_int_equal(w.n, TOP_K);
	assert_int_equal(expert[0], EXPERTS - 1);
	assert_int_equal(expert[1], EXPERTS - 2);
	odm_predictions_free(table);
	g.row[0].position = g.row[1].position = g.row[2].position = 3; /* before the sequence's row */
	odm_predictions_free(make_table(&g, false));
}

/* A margin is compared with bounds: one that is no number, or negative, is the least. */
static void a_margin_is_a_number(void **state)
{
	static const float margin[] = { 2.5f, -1, NAN, INFINITY };
	static const float is[] = { 2.5f, 0, 0, INFINITY };

	(void)state;
	for (size_t i = 0; i < 4; i++) {
		struct odm_predictions *table;
		struct good_predict g;
		int32_t token[ROWS];
		float found[ROWS];

		init_predict(&g);
		g.row[2].token = 33;
		g.row[2].margin = margin[i];
		table = make_table(&g, true);
		assert_in_range(odm_predictions_draft(table, 1, 8, 0, token, found, ROWS), 1, ROWS);
		assert_int_equal(token[0], 33);
		assert_true(found[0] == is[i]);
		odm_predictions_free(table);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows_are_counted),
		cmocka_unit_test(every_number_is_checked),
		cmocka_unit_test(its_rows_are_in_the_table),
		cmocka_unit_test(a_margin_is_a_number),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* One expert against plain double arithmetic, and the resident runner against one expert at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/model/expert_ffn.h"
#include "common/model/resident.h"
#include "tests/unit/tiny_model.h"

#define ROWS 9

struct bench {
	struct tiny_model t;
	const struct od_backend *be;
	struct od_pool *pool;
	float *x, *y; /* [ROWS][hidden] */
	void *scratch;
};

static void setup(struct bench *b, const char *name, enum od_profile profile, unsigned threads)
{
	size_t n;

	tiny_load_named(&b->t, name);
	b->t.profile = profile;
	assert_int_equal(od_backend_cpu(&b->be, OD_CPU_AUTO, profile, NULL), OD_OK);
	assert_int_equal(od_pool_new(&b->pool, threads, "test", NULL), OD_OK);
	n = ROWS * b->t.cfg.hidden;
	b->x = od_alloc_array(n, sizeof(float));
	b->y = od_alloc_array(n, sizeof(float));
	b->scratch = od_alloc(od_expert_ffn_scratch_bytes(&b->t.cfg, ROWS));
	assert_true(b->x != NULL && b->y != NULL && b->scratch != NULL);
	for (size_t i = 0; i < n; i++)
		b->x[i] = od_bf16_f32(od_f32_bf16((float)tiny_draw(3, 99, i, 1000) / 300.0f));
}

static void teardown(struct bench *b)
{
	od_free(b->x);
	od_free(b->y);
	od_free(b->scratch);
	od_pool_free(b->pool);
	tiny_unload(&b->t);
}

static double weight_at(const struct od_mat *w, size_t o, size_t i)
{
	size_t at = o * w->n_in + i;

	switch (w->dtype) {
	case OD_BF16: return (double)od_bf16_f32(((const uint16_t *)w->data)[at]);
	case OD_F16: return (double)od_f16_f32(((const uint16_t *)w->data)[at]);
	case OD_F32: return (double)((const float *)w->data)[at];
	case OD_INT8: return (double)((const int8_t *)w->data)[at] * (double)w->scale[o];
	case OD_NF4:
	case OD_F8_E4M3:
	case OD_F8_E5M2:
	case OD_U4B8:
	case OD_U8B128:
	case OD_F4_E2M1:
	case OD_F8_E8M0: break; /* not made here */
	}
	return 0;
}

static double project(const struct od_mat *w, size_t o, const double *x)
{
	double sum = 0;

	for (size_t i = 0; i < w->n_in; i++)
		sum += weight_at(w, o, i) * x[i];
	return sum;
}

static void reference(const struct od_expert *e, const float *x, double *y)
{
	const struct od_mat *gate = &e->mat[OD_MAT_GATE], *up = &e->mat[OD_MAT_UP], *down = &e->mat[OD_MAT_DOWN];
	double in[64], mid[64];

	assert_true(gate->n_in <= 64 && gate->n_out <= 64);
	for (size_t i = 0; i < gate->n_in; i++)
		in[i] = (double)x[i];
	for (size_t o = 0; o < gate->n_out; o++) {
		double g = project(gate, o, in);

		mid[o] = g / (1 + exp(-g)) * project(up, o, in);
	}
	for (size_t o = 0; o < down->n_out; o++)
		y[o] = project(down, o, mid);
}

/* Largest error over largest value. */
static double ffn_error(struct bench *b, const struct od_expert *e)
{
	size_t hidden = b->t.cfg.hidden;
	double worst = 0, largest = 0, y[64];

	od_expert_ffn(b->be, b->pool, b->t.profile, &b->t.cfg, e, b->x, ROWS, b->y, b->scratch);
	for (size_t r = 0; r < ROWS; r++) {
		reference(e, b->x + r * hidden, y);
		for (size_t i = 0; i < hidden; i++) {
			double d = fabs(y[i] - (double)b->y[r * hidden + i]);

			worst = d > worst || isnan(d) ? d : worst;
			largest = fabs(y[i]) > largest ? fabs(y[i]) : largest;
		}
	}
	assert_true(largest > 0.1);
	return worst / largest;
}

static void test_formats(void **state)
{
	/* BF16, F16, F32, INT8 experts. */
	static const char *const cases[] = { "grouped_queries", "wide_heads_window_tied", "all_experts", "quantised" };

	(void)state;
	for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
		struct bench b;

		setup(&b, cases[c], OD_PROFILE_F32, 1);
		for (uint32_t e = 0; e < b.t.cfg.n_experts; e++)
			assert_true(ffn_error(&b, &b.t.experts[e]) < 1e-5);
		teardown(&b);
	}
}

static void test_profile_bf16_rounds_outputs(void **state)
{
	struct bench b;
	double error;

	(void)state;
	setup(&b, "grouped_queries", OD_PROFILE_BF16, 1);
	error = ffn_error(&b, &b.t.experts[1]);
	assert_true(error < 0x1p-8 && error > 1e-5);
	for (size_t i = 0; i < ROWS * b.t.cfg.hidden; i++)
		assert_int_equal(od_f32_bits(b.y[i]) & 0xffff, 0);
	teardown(&b);
}

/* Batches and threads leave every bit as it is. */
static void test_rows_are_independent(void **state)
{
	static const enum od_profile profiles[] = { OD_PROFILE_F32, OD_PROFILE_BF16 };

	(void)state;
	for (size_t p = 0; p < 2; p++) {
		struct bench b, many;
		float one[64];

		setup(&b, "grouped_queries", profiles[p], 1);
		setup(&many, "grouped_queries", profiles[p], 3);
		(void)ffn_error(&b, &b.t.experts[2]);
		(void)ffn_error(&many, &many.t.experts[2]);
		assert_memory_equal(b.y, many.y, ROWS * b.t.cfg.hidden * sizeof(float));
		for (size_t r = 0; r < ROWS; r++) {
			od_expert_ffn(b.be, NULL, profiles[p], &b.t.cfg, &b.t.experts[2], b.x + r * b.t.cfg.hidden, 1,
				      one, b.scratch);
			assert_memory_equal(one, b.y + r * b.t.cfg.hidden, b.t.cfg.hidden * sizeof(float));
		}
		teardown(&many);
		teardown(&b);
	}
}

static void test_scratch_overflow(void **state)
{
	struct od_config cfg = { .hidden = 8, .intermediate = 1u << 20 };

	(void)state;
	assert_true(od_expert_ffn_scratch_bytes(&cfg, 3) >= 2 * 3 * (size_t)(1u << 20) * sizeof(float));
	assert_null(od_alloc(od_expert_ffn_scratch_bytes(&cfg, SIZE_MAX / 2)));
}

static void resident_setup(struct bench *b, struct od_expert_runner **runner)
{
	struct od_forward_opts opts;
	struct od_err err;

	setup(b, "top3_mixed_formats", OD_PROFILE_F32, 2);
	opts = (struct od_forward_opts){ .config = &b->t.cfg, .dense = &b->t.dense, .backend = b->be, .pool = b->pool,
					 .profile = b->t.profile, .max_rows = ROWS };
	assert_int_equal(od_resident_new(runner, &opts, b->t.experts, &err), OD_OK);
}

/* Each (row, rank) gets its own expert's output, whatever else is in the call. */
static void test_resident(void **state)
{
	struct od_expert_runner *runner;
	struct bench b;
	uint16_t expert[ROWS][3];
	size_t hidden;
	float *y, one[64];

	(void)state;
	resident_setup(&b, &runner);
	hidden = b.t.cfg.hidden;
	y = od_alloc_array(ROWS * 3 * hidden, sizeof(float));
	for (uint32_t m = 0; m < b.t.cfg.n_layers; m++) {
		struct od_moe_call call = { .m = m, .n_rows = ROWS, .x = b.x, .expert = &expert[0][0], .y = y };

		for (size_t r = 0; r < ROWS; r++) /* expert 7 for all rows, expert 0 for one, 6 for none */
			for (size_t k = 0; k < 3; k++)
				expert[r][k] = (uint16_t)(k == r % 3 ? 7 : r == 4 && k == 2 ? 0 : 1 + (r + k + m) % 5);
		assert_int_equal(runner->run(runner, &call, NULL), OD_OK);
		for (size_t r = 0; r < ROWS; r++) {
			for (size_t k = 0; k < 3; k++) {
				od_expert_ffn(b.be, NULL, b.t.profile, &b.t.cfg,
					      &b.t.experts[m * b.t.cfg.n_experts + expert[r][k]], b.x + r * hidden, 1,
					      one, b.scratch);
				assert_memory_equal(one, y + (r * 3 + k) * hidden, hidden * sizeof(float));
			}
		}
	}
	od_free(y);
	od_resident_free(runner);
	teardown(&b);
}

static void test_resident_refuses(void **state)
{
	struct od_expert_runner *runner;
	struct bench b;
	uint16_t expert[] = { 0, 1, 2, 3, 8, 5 }, twice[] = { 4, 4, 4 };
	float y[6 * 64];
	struct od_moe_call call = { .n_rows = 2, .expert = expert, .y = y };
	struct od_err err;

	(void)state;
	resident_setup(&b, &runner);
	call.x = b.x;
	assert_int_equal(runner->run(runner, &call, &err), OD_ERR_RANGE);
	assert_non_null(strstr(err.msg, "0 to 7, found 8"));
	expert[4] = 7;
	assert_int_equal(runner->run(runner, &call, &err), OD_OK);
	call.m = b.t.cfg.n_layers;
	assert_int_equal(runner->run(runner, &call, &err), OD_ERR_RANGE);
	call.m = 0;
	call.n_rows = ROWS + 1;
	assert_int_equal(runner->run(runner, &call, &err), OD_ERR_RANGE);
	call.n_rows = 1;
	call.expert = twice;
	assert_int_equal(runner->run(runner, &call, &err), OD_ERR_RANGE);
	assert_non_null(strstr(err.msg, "expert 4 twice"));
	od_resident_free(runner);
	teardown(&b);
}

static int close_file(void **state)
{
	(void)state;
	tiny_close();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_formats),
		cmocka_unit_test(test_profile_bf16_rounds_outputs),
		cmocka_unit_test(test_rows_are_independent),
		cmocka_unit_test(test_scratch_overflow),
		cmocka_unit_test(test_resident),
		cmocka_unit_test(test_resident_refuses),
	};

	return cmocka_run_group_tests(tests, NULL, close_file);
}

/* A worker's checks of a RUN, WANT or CLOSE: everything at its bounds and one beyond. */
#include "worker-node/run_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define HIDDEN 24
#define MAX_ROWS 6

static const struct odw_run_limits limits = { 3, 70, HIDDEN, MAX_ROWS, OD_PROFILE_F32 };

/* A RUN of two experts that is right; tests spoil one thing of it. */
struct good {
	Od__Run run;
	Od__RunExpert expert[2];
	Od__RunExpert *list[2];
	uint32_t rows[2][MAX_ROWS + 1];
	size_t n_frames, bytes;
	struct odw_run_limits limits;
	struct od_err err;
};

static void init_good(struct good *g)
{
	*g = (struct good){ .n_frames = 1, .bytes = MAX_ROWS * HIDDEN * 4, .limits = limits };
	od__run__init(&g->run);
	g->run.m = 2;
	g->run.n_rows = MAX_ROWS;
	g->run.experts = g->list;
	g->run.n_experts = 2;
	for (uint32_t i = 0; i < 2; i++) {
		od__run_expert__init(&g->expert[i]);
		for (uint32_t r = 0; r < MAX_ROWS; r++)
			g->rows[i][r] = MAX_ROWS - 1 - r;
		g->expert[i].expert = i == 0 ? 69 : 5;
		g->expert[i].rows = g->rows[i];
		g->expert[i].n_rows = i == 0 ? MAX_ROWS : 1;
		g->list[i] = &g->expert[i];
	}
}

static int check(struct good *g)
{
	memset(&g->err, 0, sizeof(g->err));
	return odw_check_run(&g->run, &g->limits, g->n_frames, g->bytes, &g->err);
}

/* The good one with one thing spoiled; uses the caller's g. */
#define BAD(code, text, ...) \
	do { \
		init_good(&g); \
		__VA_ARGS__; \
		assert_int_equal(check(&g), code); \
		if (strstr(g.err.msg, text) == NULL) \
			fail_msg("\"%s\" does not say \"%s\"", g.err.msg, text); \
	} while (0)

static void runs_at_their_bounds(void **state)
{
	struct good g;

	(void)state;
	init_good(&g);
	assert_int_equal(check(&g), OD_OK);
	g.limits.profile = OD_PROFILE_BF16;
	g.bytes = MAX_ROWS * HIDDEN * 2;
	assert_int_equal(check(&g), OD_OK);
	g.expert[0].expert = 5; /* and 64 + 5 is not 5 */
	g.expert[1].expert = 69;
	assert_int_equal(check(&g), OD_OK);

	BAD(OD_ERR_RANGE, "less than 3, found 3", g.run.m = 3);
	BAD(OD_ERR_RANGE, "less than 3, found 4294967295", g.run.m = UINT32_MAX);
	BAD(OD_ERR_SHAPE, "1 to 6, found 0", g.run.n_rows = 0);
	BAD(OD_ERR_SHAPE, "1 to 6, found 7", g.run.n_rows = 7; g.bytes = 7 * HIDDEN * 4);
	BAD(OD_ERR_SHAPE, "found 4294967295", g.run.n_rows = UINT32_MAX);
	BAD(OD_ERR_SHAPE, "found 1 of 575", g.bytes--);
	BAD(OD_ERR_SHAPE, "576", g.bytes++);
	BAD(OD_ERR_SHAPE, "288", g.limits.profile = OD_PROFILE_BF16);
	BAD(OD_ERR_SHAPE, "found 0 of", g.n_frames = 0; g.bytes = 0);
	BAD(OD_ERR_SHAPE, "found 2 of", g.n_frames = 2);
	BAD(OD_ERR_SHAPE, "found none", g.run.n_experts = 0);
	BAD(OD_ERR_RANGE, "less than 70, found 70", g.expert[1].expert = 70);
	BAD(OD_ERR_RANGE, "less than 70, found 4294967295", g.expert[0].expert = UINT32_MAX);
	BAD(OD_ERR_RANGE, "expert 69: expected once", g.expert[1].expert = 69);
	BAD(OD_ERR_SHAPE, "expert 5: expected 1 to 6 rows, found 0", g.expert[1].n_rows = 0);
	BAD(OD_ERR_SHAPE, "found 7", g.expert[0].n_rows = 7);
	BAD(OD_ERR_RANGE, "row 3: expected less than 6, found 6", g.rows[0][3] = 6);
	BAD(OD_ERR_RANGE, "row 5", g.rows[0][5] = UINT32_MAX);
}

static void wants_and_closes_at_their_bounds(void **state)
{
	uint32_t experts[3] = { 0, 69, 64 };
	Od__Want want = OD__WANT__INIT;
	Od__Close close = OD__CLOSE__INIT;
	struct od_err err;

	(void)state;
	want.m = 2;
	want.experts = experts;
	want.n_experts = 3;
	assert_int_equal(odw_check_want(&want, &limits, &err), OD_OK);
	experts[2] = 0;
	assert_int_equal(odw_check_want(&want, &limits, &err), OD_ERR_RANGE);
	experts[2] = 70;
	assert_int_equal(odw_check_want(&want, &limits, &err), OD_ERR_RANGE);
	want.n_experts = 0;
	assert_int_equal(odw_check_want(&want, &limits, &err), OD_OK);
	want.m = 3;
	assert_int_equal(odw_check_want(&want, &limits, &err), OD_ERR_RANGE);
	close.m = 2;
	assert_int_equal(odw_check_close(&close, &limits, &err), OD_OK);
	close.m = 3;
	assert_int_equal(odw_check_close(&close, &limits, &err), OD_ERR_RANGE);
}

static void rows_of_a_run_are_bounded(void **state)
{
	(void)state;
	assert_int_equal(odw_max_rows(4096, OD_PROFILE_F32), 512); /* Mixtral: 8 MiB of 16 KiB each */
	assert_int_equal(odw_max_rows(4096, OD_PROFILE_BF16), 1024);
	assert_int_equal(odw_max_rows(256, OD_PROFILE_F32), OD_MAX_RUN_ROWS);
	assert_int_equal(odw_max_rows(1u << 24, OD_PROFILE_F32), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(runs_at_their_bounds),
		cmocka_unit_test(wants_and_closes_at_their_bounds),
		cmocka_unit_test(rows_of_a_run_are_bounded),
	};

	return cmocka_run_group_tests_name("run_check", tests, NULL, NULL);
}

/* Main's checks of a RESULT: everything at its bounds and one beyond. */
#include "main-node/cluster/result_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define N_EXPERTS 70
#define ROW_BYTES 24

/* A RESULT of three experts, the second of which failed, that is right; tests spoil one thing of it. */
struct good {
	Od__Result result;
	Od__ExpertResult x[3], *list[3];
	size_t n_frames, bytes;
	struct od_err err;
};

static void init_good(struct good *g)
{
	*g = (struct good){ .n_frames = 1, .bytes = 6 * ROW_BYTES };
	od__result__init(&g->result);
	g->result.experts = g->list;
	g->result.n_experts = 3;
	for (uint32_t i = 0; i < 3; i++) {
		od__expert_result__init(&g->x[i]);
		g->list[i] = &g->x[i];
		g->x[i].expert = i == 0 ? N_EXPERTS - 1 : i;
		g->x[i].rows = i == 0 ? 1 : 5;
	}
	g->x[1].code = OD_ERR_CORRUPT;
	g->x[1].rows = 0;
}

static int check(struct good *g)
{
	memset(&g->err, 0, sizeof(g->err));
	return odm_check_result(&g->result, N_EXPERTS, ROW_BYTES, g->n_frames, g->bytes, &g->err);
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

static void good_results_are_good(void **state)
{
	struct good g;

	(void)state;
	init_good(&g);
	assert_int_equal(check(&g), OD_OK);
	g.result.n_experts = 2;
	g.bytes = ROW_BYTES;
	assert_int_equal(check(&g), OD_OK);
	g.list[0] = &g.x[1]; /* failed ones alone have no frame */
	g.result.n_experts = 1;
	g.n_frames = g.bytes = 0;
	assert_int_equal(check(&g), OD_OK);
}

static void experts_exist_and_are_named_once(void **state)
{
	struct good g;

	(void)state;
	BAD(OD_ERR_SHAPE, "at least 1", g.result.n_experts = 0; g.n_frames = g.bytes = 0);
	BAD(OD_ERR_RANGE, "less than 70, found 70", g.x[0].expert = N_EXPERTS);
	BAD(OD_ERR_RANGE, "found 4294967295", g.x[2].expert = UINT32_MAX);
	BAD(OD_ERR_RANGE, "expert 69: expected once, found twice", g.x[2].expert = N_EXPERTS - 1);
	BAD(OD_ERR_RANGE, "expert 1: expected once, found twice", g.x[2].expert = 1);
	/* a failed one is answered, too */
	BAD(OD_ERR_RANGE, "expert 2: expected once, found twice", g.x[1].expert = 2);
}

static void rows_agree_with_codes_and_frames(void **state)
{
	struct good g;

	(void)state;
	BAD(OD_ERR_SHAPE, "expert 1: found 1 rows with code", g.x[1].rows = 1; g.bytes += ROW_BYTES);
	BAD(OD_ERR_SHAPE, "expert 69: found 0 rows with code 0", g.x[0].rows = 0; g.bytes -= ROW_BYTES);
	BAD(OD_ERR_SHAPE, "expert 2: found 5 rows with code 1", g.x[2].code = 1);
	BAD(OD_ERR_SHAPE, "expert 2: expected 6 rows of 24 bytes, found 5", g.x[2].rows++);
	BAD(OD_ERR_SHAPE, "expert 69: expected 4294967295 rows", g.x[0].rows = UINT32_MAX);
	BAD(OD_ERR_SHAPE, "there are 24 bytes", g.x[2].rows--);
	BAD(OD_ERR_SHAPE, "expert 2: expected 5 rows of 24 bytes, found 4", g.bytes--);
	BAD(OD_ERR_SHAPE, "there are 1 bytes", g.bytes++);
	BAD(OD_ERR_SHAPE, "frames: expected 1, found 2", g.n_frames = 2);
	BAD(OD_ERR_SHAPE, "found 0", g.n_frames = g.bytes = 0);
	/* Sums that wrap. */
	BAD(OD_ERR_SHAPE, "expert 2: expected 4294967295 rows", g.x[0].rows = 6; g.x[2].rows = UINT32_MAX);
	/* A frame though all have failed. */
	BAD(OD_ERR_SHAPE, "frames: expected 0, found 1", g.list[0] = &g.x[1]; g.result.n_experts = 1; g.bytes = 0);
	BAD(OD_ERR_SHAPE, "there are 24 bytes", g.list[0] = &g.x[1]; g.result.n_experts = 1; g.bytes = ROW_BYTES);
}

static bool numbers(const void *x, size_t n, bool bf16)
{
	uint8_t at[72]; /* at every alignment */
	bool first = false;

	for (size_t i = 0; i < 8; i++) {
		bool good;

		memset(at, 0xff, sizeof(at)); /* around it: NaN */
		memcpy(at + i, x, n);
		good = odm_all_plausible(at + i, n, bf16);
		assert_true(i == 0 || good == first);
		first = good;
	}
	return first;
}

/* By the bits of IEEE 754: 0x7f800000 is infinity, more is NaN, 0x7f7fffff the greatest number, 0x5b800000 is 2^56. */
static void numbers_are_told_from_others(void **state)
{
	static const uint32_t good[] = { 0, 0x80000000, 1, 0x807fffff, 0x3f800000, 0x5b7fffff, 0xdb7fffff, 0x00800000 };
	static const uint32_t bad[] = { 0x7f800000, 0xff800000, 0x7f800001, 0x7fc00000, 0xffffffff, 0x7fffffff,
					0x5b800000, 0xdb800000, 0x7f7fffff, 0xff7fffff, 0x7f61b1e6 /* 3e38 */ };

	(void)state;
	for (size_t n = 1; n <= 8; n++) {
		for (size_t at = 0; at < n; at++) {
			uint32_t x[8];
			uint16_t half[8];

			memcpy(x, good, sizeof(x));
			for (size_t i = 0; i < n; i++)
				half[i] = (uint16_t)(good[i] >> 16);
			assert_true(numbers(x, n * sizeof(*x), false));
			assert_true(numbers(half, n * sizeof(*half), true));
			for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
				x[at] = bad[i];
				half[at] = (uint16_t)(bad[i] >> 16);
				assert_false(numbers(x, n * sizeof(*x), false));
				assert_false(numbers(half, n * sizeof(*half), true));
			}
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(good_results_are_good),
		cmocka_unit_test(experts_exist_and_are_named_once),
		cmocka_unit_test(rows_agree_with_codes_and_frames),
		cmocka_unit_test(numbers_are_told_from_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

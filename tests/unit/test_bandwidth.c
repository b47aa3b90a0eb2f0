/* Speed is not tested. Opening checks the sum of all words against a closed form, for every kind of loads. */
#include "tests/bench/micro/bandwidth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void check_loads(const char *loads)
{
	struct od_err err = { 0 };
	struct od_membw *m;
	int rc = od_membw_open(&m, (3u << 20) + 12345, 3, loads, &err);

	if (rc == OD_ERR_UNSUPPORTED)
		skip();
	if (rc != OD_OK)
		fail_msg("%s", err.msg);
	assert_string_equal(od_membw_loads(m), loads);
	for (int i = 0; i < 5; i++)
		assert_true(od_membw_read(m) > 0);
	od_membw_close(m);
}

static void scalar_loads_read_everything(void **state)
{
	(void)state;
	check_loads("scalar");
}

static void avx2_loads_read_everything(void **state)
{
	(void)state;
	check_loads("avx2");
}

static void avx512_loads_read_everything(void **state)
{
	(void)state;
	check_loads("avx512");
}

/* More than one reading to a round. */
static void large_buffers_are_read_in_turn(void **state)
{
	struct od_membw *m;

	(void)state;
	assert_int_equal(od_membw_open(&m, 130u << 20, 2, NULL, NULL), OD_OK);
	for (int i = 0; i < 3; i++)
		assert_true(od_membw_read(m) > 0);
	od_membw_close(m);
}

static void refusals_say_why(void **state)
{
	struct od_err err = { 0 };
	struct od_membw *m;

	(void)state;
	assert_int_equal(od_membw_open(&m, 1000, 1, NULL, &err), OD_ERR_ARG);
	assert_null(m);
	assert_non_null(strstr(err.msg, "found 1000"));
	assert_int_equal(od_membw_open(&m, 1u << 20, 1, "mmx", &err), OD_ERR_ARG);
	assert_non_null(strstr(err.msg, "expected avx512, avx2 or scalar, found \"mmx\""));
	assert_int_equal(od_membw_open(&m, UINT64_MAX / 2, 1, NULL, &err), OD_ERR_NOMEM);
	assert_non_null(strstr(err.msg, "free"));
	assert_null(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(scalar_loads_read_everything),
		cmocka_unit_test(avx2_loads_read_everything),
		cmocka_unit_test(avx512_loads_read_everything),
		cmocka_unit_test(large_buffers_are_read_in_turn),
		cmocka_unit_test(refusals_say_why),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

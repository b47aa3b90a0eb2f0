/* How many experts fit into a worker's memory, and what it says when none does. */
#include "worker-node/memory_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "common/residency/schedule.h"

#define MIB (1u << 20)

static void number_follows_from_the_limit(void **state)
{
	/* Mixtral-8x7B: three matrices of 4096 x 14336 in BF16 under 1 GB. */
	const uint64_t mixtral = 3ull * 4096 * 14336 * 2;
	struct od_err err;
	unsigned n;

	(void)state;
	assert_int_equal(odw_fit_slots(&n, 1000000000, 64 * MIB, mixtral, 0, &err), OD_OK);
	assert_int_equal(n, 2);
	assert_int_equal(odw_fit_slots(&n, 64 * MIB + 10 * MIB, 64 * MIB, MIB, 0, &err), OD_OK);
	assert_int_equal(n, 10);
	assert_int_equal(odw_fit_slots(&n, 64 * MIB + 10 * MIB - 1, 64 * MIB, MIB, 0, &err), OD_OK);
	assert_int_equal(n, 9);
	assert_int_equal(odw_fit_slots(&n, 1000000000, 64 * MIB, MIB, 3, &err), OD_OK);
	assert_int_equal(n, 3);
	assert_int_equal(odw_fit_slots(&n, 1ull << 40, 64 * MIB, MIB, 0, &err), OD_OK);
	assert_int_equal(n, 64);
	assert_int_equal(odw_fit_slots(&n, 1ull << 40, 64 * MIB, MIB, OD_MAX_SLOTS, &err), OD_OK);
	assert_int_equal(n, OD_MAX_SLOTS);
}

static void too_little_names_the_bytes_needed(void **state)
{
	struct od_err err;
	unsigned n = 7;

	(void)state;
	assert_int_equal(odw_fit_slots(&n, 65 * MIB - 1, 64 * MIB, MIB, 0, &err), OD_ERR_NOMEM);
	assert_int_equal(n, 0);
	assert_non_null(strstr(err.msg, "68157440")); /* 65 MiB */
	assert_non_null(strstr(err.msg, "68157439"));
	assert_int_equal(odw_fit_slots(&n, 68157440, 64 * MIB, MIB, 0, &err), OD_OK);
	assert_int_equal(n, 1);
	assert_int_equal(odw_fit_slots(&n, 68157440, 64 * MIB, MIB, 2, &err), OD_ERR_NOMEM);
	assert_int_equal(odw_fit_slots(&n, 68157440, 64 * MIB, MIB, OD_MAX_SLOTS + 1, &err), OD_ERR_ARG);
	assert_int_equal(odw_fit_slots(&n, UINT64_MAX, 64 * MIB, UINT64_MAX - 5, 0, &err), OD_ERR_RANGE);
	assert_int_equal(odw_fit_slots(&n, UINT64_MAX, 64 * MIB, UINT64_MAX / 4, 5, &err), OD_ERR_RANGE);
}

static void number_follows_from_what_is_free(void **state)
{
	(void)state;
	assert_int_equal(odw_free_slots(10, 64 * MIB + 10 * MIB, 64 * MIB, MIB), 10);
	assert_int_equal(odw_free_slots(10, 64 * MIB + 10 * MIB - 1, 64 * MIB, MIB), 9);
	assert_int_equal(odw_free_slots(10, 64 * MIB + MIB - 1, 64 * MIB, MIB), 1);
	assert_int_equal(odw_free_slots(10, MIB, 64 * MIB, MIB), 1);
	assert_int_equal(odw_free_slots(10, 0, 64 * MIB, MIB), 10);
	assert_int_equal(odw_free_slots(10, UINT64_MAX, 0, 1), 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(number_follows_from_the_limit),
		cmocka_unit_test(too_little_names_the_bytes_needed),
		cmocka_unit_test(number_follows_from_what_is_free),
	};

	return cmocka_run_group_tests_name("memory_plan", tests, NULL, NULL);
}

/* How many experts fit into a worker's memory, and what it says when none does. */
#include "worker-node/slots.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define MIB (1u << 20)

static void number_follows_from_the_limit(void **state)
{
	/* Mixtral-8x7B: three matrices of 4096 x 14336 in BF16 under 1 GB. */
	const uint64_t mixtral = 3ull * 4096 * 14336 * 2;
	struct od_err err;
	unsigned n;

	(void)state;
	assert_int_equal(odw_slots_plan(&n, 1000000000, 64 * MIB, mixtral, 0, &err), OD_OK);
	assert_int_equal(n, 2);
	assert_int_equal(odw_slots_plan(&n, 64 * MIB + 10 * (MIB + 8192), 64 * MIB, MIB, 0, &err), OD_OK);
	assert_int_equal(n, 10);
	assert_int_equal(odw_slots_plan(&n, 64 * MIB + 10 * (MIB + 8192) - 1, 64 * MIB, MIB, 0, &err), OD_OK);
	assert_int_equal(n, 9);
	assert_int_equal(odw_slots_plan(&n, 1000000000, 64 * MIB, MIB, 3, &err), OD_OK);
	assert_int_equal(n, 3);
	assert_int_equal(odw_slots_plan(&n, 1ull << 40, 64 * MIB, MIB, 0, &err), OD_OK);
	assert_int_equal(n, ODW_MAX_SLOTS);
}

static void too_little_names_the_bytes_needed(void **state)
{
	struct od_err err;
	unsigned n = 7;

	(void)state;
	assert_int_equal(odw_slots_plan(&n, 65 * MIB, 64 * MIB, MIB, 0, &err), OD_ERR_NOMEM);
	assert_int_equal(n, 0);
	assert_non_null(strstr(err.msg, "68165632")); /* 65 MiB and two pages */
	assert_non_null(strstr(err.msg, "68157440"));
	assert_int_equal(odw_slots_plan(&n, 68165632, 64 * MIB, MIB, 0, &err), OD_OK);
	assert_int_equal(n, 1);
	assert_int_equal(odw_slots_plan(&n, 68165632, 64 * MIB, MIB, 2, &err), OD_ERR_NOMEM);
	assert_int_equal(odw_slots_plan(&n, 68165632, 64 * MIB, MIB, ODW_MAX_SLOTS + 1, &err), OD_ERR_ARG);
	assert_int_equal(odw_slots_plan(&n, UINT64_MAX, 64 * MIB, UINT64_MAX - 5, 0, &err), OD_ERR_RANGE);
	assert_int_equal(odw_slots_plan(&n, UINT64_MAX, 64 * MIB, UINT64_MAX / 4, 5, &err), OD_ERR_RANGE);
}

static void slots_are_apart(void **state)
{
	struct odw_slots *s;
	struct od_err err;

	(void)state;
	assert_int_equal(odw_slots_new(&s, 3, 5000, &err), OD_OK);
	for (unsigned i = 0; i < 3; i++)
		memset(odw_slots_at(s, i), (int)i + 1, 5000);
	for (unsigned i = 0; i < 3; i++) {
		const unsigned char *b = odw_slots_at(s, i);

		assert_int_equal((uintptr_t)b % 64, 0);
		assert_int_equal(b[0], i + 1);
		assert_int_equal(b[4999], i + 1);
		assert_int_equal(b[5000], 0); /* vector loads may reach behind */
	}
	odw_slots_free(s);
	assert_int_equal(odw_slots_new(&s, 0, 5000, &err), OD_ERR_ARG);
	assert_null(s);
	assert_int_equal(odw_slots_new(&s, ODW_MAX_SLOTS, UINT64_MAX - 10, &err), OD_ERR_NOMEM);
	assert_null(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(number_follows_from_the_limit),
		cmocka_unit_test(too_little_names_the_bytes_needed),
		cmocka_unit_test(slots_are_apart),
	};

	return cmocka_run_group_tests_name("slots", tests, NULL, NULL);
}

/* Numbers of ids: against a list that is searched from its beginning. */
#include "common/base/id_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST 40

static uint64_t seed = 1;

static uint32_t draw(uint32_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 33) % n;
}

static void against_a_list(uint32_t most, uint64_t factor)
{
	uint64_t id[MOST] = { 0 }; /* by number; 0: free */
	struct od_id_table t;
	struct od_err err;
	uint32_t n = 0, refused = 0, removed = 0;

	assert_int_equal(od_id_table_init(&t, most, &err), OD_OK);
	for (int i = 0; i < 20000; i++) {
		const uint64_t x = (1 + draw(3 * most)) * factor;
		uint32_t want = OD_NO_NUMBER, got;

		for (uint32_t k = 0; k < most; k++)
			want = id[k] == x ? k : want;
		assert_int_equal(od_id_table_find(&t, x), want);
		if (draw(2) > 0) {
			od_id_table_remove(&t, x);
			if (want != OD_NO_NUMBER) {
				id[want] = 0;
				n--;
				removed++;
			}
			continue;
		}
		got = od_id_table_add(&t, x);
		if (want == OD_NO_NUMBER && n < most) { /* a free one, whichever */
			assert_true(got < most && id[got] == 0);
			id[got] = x;
			n++;
		} else {
			assert_int_equal(got, want);
			refused += want == OD_NO_NUMBER;
		}
	}
	assert_true(removed > 100 && refused > 100);
	od_id_table_fini(&t);
	od_id_table_fini(&t);
}

static void any_order(void **state)
{
	(void)state;
	against_a_list(1, 1);
	against_a_list(17, 1);
	against_a_list(32, 1);
	against_a_list(MOST, 1);
	against_a_list(17, (uint64_t)1 << 32); /* the low half of the products is all alike */
	against_a_list(16, 0xdeadbeef12345677u);
}

static void edges(void **state)
{
	struct od_id_table t;
	struct od_err err;

	(void)state;
	assert_int_equal(od_id_table_init(&t, 0, &err), OD_OK);
	assert_int_equal(od_id_table_add(&t, 5), OD_NO_NUMBER);
	assert_int_equal(od_id_table_find(&t, 5), OD_NO_NUMBER);
	od_id_table_remove(&t, 5);
	od_id_table_fini(&t);
	assert_int_equal(od_id_table_init(&t, 3, &err), OD_OK);
	assert_int_equal(od_id_table_add(&t, UINT64_MAX), 0);
	assert_int_equal(od_id_table_add(&t, 0), 1);
	assert_int_equal(od_id_table_add(&t, UINT64_MAX), 0);
	od_id_table_fini(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_order),
		cmocka_unit_test(edges),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

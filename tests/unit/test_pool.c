/* The thread pool: every item exactly once, whatever the sizes, and no helper left inside a round that is over. */
#include "common/base/pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_ITEMS 1000

struct counted {
	atomic_int hits[MAX_ITEMS];
	atomic_uint bad_thread;
	unsigned n_threads;
	size_t grain, n;
};

static void count(void *arg, size_t begin, size_t end, unsigned thread)
{
	struct counted *c = arg;

	if (thread >= c->n_threads || end > c->n || begin >= end || begin % c->grain != 0)
		atomic_fetch_add(&c->bad_thread, 1);
	for (size_t i = begin; i < end; i++)
		atomic_fetch_add(&c->hits[i], 1);
}

static void check_round(struct od_pool *p, unsigned n_threads, size_t n, size_t grain)
{
	struct counted *c = calloc(1, sizeof(*c)); /* freed at once: a helper that lingers is a use after free */

	assert_non_null(c);
	c->n_threads = n_threads;
	c->grain = grain;
	c->n = n;
	od_pool_for(p, n, grain, count, c);
	assert_int_equal(atomic_load(&c->bad_thread), 0);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(atomic_load(&c->hits[i]), 1);
	free(c);
}

static void every_item_once(void **state)
{
	struct od_err err;

	(void)state;
	for (unsigned threads = 1; threads <= 5; threads++) {
		struct od_pool *p;

		assert_int_equal(od_pool_new(&p, threads, "test", &err), OD_OK);
		assert_int_equal(od_pool_threads(p), threads);
		for (size_t n = 0; n < 70; n++) {
			for (size_t grain = 1; grain < 9; grain += 3)
				check_round(p, threads, n, grain);
		}
		check_round(p, threads, MAX_ITEMS, 1);
		od_pool_free(p);
	}
}

static void without_a_pool(void **state)
{
	(void)state;
	check_round(NULL, 1, 10, 1);
	assert_int_equal(od_pool_threads(NULL), 1);
	od_pool_free(NULL);
}

static void starts_and_stops(void **state)
{
	struct od_err err;
	struct od_pool *p;

	(void)state;
	for (int i = 0; i < 50; i++) {
		assert_int_equal(od_pool_new(&p, 3, "test", &err), OD_OK);
		if (i % 2 == 0)
			check_round(p, 3, 20, 1);
		od_pool_free(p);
	}
	assert_int_equal(od_pool_new(&p, 0, "test", &err), OD_ERR_ARG);
	assert_null(p);
	assert_non_null(strstr(err.msg, "1 to 1024"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_item_once),
		cmocka_unit_test(without_a_pool),
		cmocka_unit_test(starts_and_stops),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

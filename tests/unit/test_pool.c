/* The thread pool: every item exactly once, whatever the sizes, and no helper left inside a round that is over. */
#include "common/base/pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* Both threads must be there: each waits for the other inside its item. Now and then the helper is asleep. */
static void meet(void *arg, size_t begin, size_t end, unsigned thread)
{
	atomic_uint *seen = arg;

	(void)begin, (void)end;
	atomic_fetch_or(seen, 1u << thread);
	while (atomic_load(seen) != 3u)
		usleep(10);
}

static void helpers_take_part(void **state)
{
	struct od_err err;
	struct od_pool *p;

	(void)state;
	assert_int_equal(od_pool_new(&p, 2, "test", &err), OD_OK);
	for (int i = 0; i < 60; i++) {
		atomic_uint seen = 0;

		od_pool_for(p, 2, 1, meet, &seen);
		assert_int_equal(atomic_load(&seen), 3);
		if (i % 20 == 0)
			usleep(2000);
	}
	od_pool_free(p);
}

/* Plain writes of the helpers are seen by the caller afterwards, and the caller's by the next round. */
static void square(void *arg, size_t begin, size_t end, unsigned thread)
{
	uint64_t *v = arg;

	(void)thread;
	for (size_t i = begin; i < end; i++)
		v[i] = v[i] * v[i] + i;
}

static void results_are_visible(void **state)
{
	uint64_t v[257], want[257];
	struct od_err err;
	struct od_pool *p;

	(void)state;
	assert_int_equal(od_pool_new(&p, 4, "test", &err), OD_OK);
	for (size_t i = 0; i < 257; i++)
		v[i] = want[i] = i;
	for (int round = 0; round < 1000; round++) {
		od_pool_for(p, 257, round % 7, square, v);
		square(want, 0, 257, 0);
		assert_memory_equal(v, want, sizeof(v));
		if (round % 200 == 0)
			usleep(2000);
	}
	od_pool_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_item_once),     cmocka_unit_test(without_a_pool),
		cmocka_unit_test(starts_and_stops),    cmocka_unit_test(helpers_take_part),
		cmocka_unit_test(results_are_visible),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Whom the store serves next: turns, bounds, and places that come free. */
#include "main-node/store/store_queue.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct odm_store_queue *q;

static int make(void **state)
{
	(void)state;
	q = calloc(1, sizeof(*q));
	return q != NULL ? 0 : -1;
}

static int drop(void **state)
{
	(void)state;
	free(q);
	return 0;
}

static struct od_route route(uint32_t n)
{
	struct od_route r = { .len = 5 };

	memcpy(r.id + 1, &n, sizeof(n));
	return r;
}

static int add(uint32_t worker, uint64_t request, uint32_t bytes)
{
	const struct od_route r = route(worker);

	return odm_store_queue_add(q, &r, &(struct odm_store_request){ .request = request, .bytes = bytes });
}

/* Its number, or 0. */
static uint64_t take(struct odm_store_worker **w)
{
	struct odm_store_request r;

	*w = odm_store_queue_take(q, &r);
	return *w != NULL ? r.request : 0;
}

static void workers_take_turns(void **state)
{
	struct odm_store_worker *w;

	(void)state;
	for (uint64_t i = 0; i < 5; i++)
		assert_int_equal(add(1, 10 + i, 1), OD_OK);
	assert_int_equal(add(2, 20, 1), OD_OK);
	assert_int_equal(add(3, 30, 1), OD_OK);
	assert_int_equal(add(3, 31, 1), OD_OK);
	const uint64_t expected[] = { 10, 20, 30, 11, 31, 12, 13, 14, 0 };

	for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++)
		assert_int_equal(take(&w), expected[i]);
}

static void a_worker_has_so_many_requests(void **state)
{
	(void)state;
	for (int i = 0; i < OD_STORE_MAX_OPEN; i++)
		assert_int_equal(add(1, 1, 1), OD_OK);
	assert_int_equal(add(1, 1, 1), OD_ERR_BUSY);
	assert_int_equal(add(2, 1, 1), OD_OK);
}

static void what_is_on_its_way_is_bounded(void **state)
{
	struct odm_store_worker *first, *w;
	uint64_t n = 0;

	(void)state;
	assert_int_equal(add(1, 1, OD_STORE_PIECE_BYTES), OD_OK);
	assert_int_equal(add(1, 2, 1), OD_OK);
	assert_int_equal(take(&first), 1);
	assert_int_equal(take(&w), 0); /* one piece fills it */
	assert_int_equal(add(2, 3, 1), OD_OK);
	assert_int_equal(take(&w), 3); /* others go on */
	odm_store_queue_done(q, first, OD_STORE_PIECE_BYTES);
	assert_int_equal(take(&w), 2);
	for (uint32_t i = 10; i < 10 + ODM_STORE_WORKERS - 2; i++)
		assert_int_equal(add(i, i, OD_STORE_PIECE_BYTES), OD_OK);
	while (take(&w) != 0)
		n++;
	assert_in_range(n, ODM_STORE_ALL_BYTES / OD_STORE_PIECE_BYTES - 1, ODM_STORE_ALL_BYTES / OD_STORE_PIECE_BYTES);
	assert_true(q->sending <= ODM_STORE_ALL_BYTES);
}

static void places_come_free(void **state)
{
	struct odm_store_worker *w;

	(void)state;
	for (uint32_t i = 0; i < ODM_STORE_WORKERS; i++)
		assert_int_equal(add(i, i + 1, 10), OD_OK);
	assert_int_equal(add(1000, 1, 10), OD_ERR_BUSY);
	assert_int_equal(take(&w), 1);
	assert_int_equal(add(1000, 1, 10), OD_ERR_BUSY); /* its piece is still on its way */
	odm_store_queue_drop(w);
	assert_int_equal(add(1000, 1, 10), OD_ERR_BUSY);
	odm_store_queue_done(q, w, 10);
	assert_int_equal(add(1000, 1000, 10), OD_OK);
	assert_int_equal(add(0, 1, 10), OD_ERR_BUSY); /* who was dropped is a stranger again */
	for (uint32_t i = 0; i < ODM_STORE_WORKERS; i++)
		assert_int_not_equal(take(&w), 0);
	assert_int_equal(take(&w), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(workers_take_turns, make, drop),
		cmocka_unit_test_setup_teardown(a_worker_has_so_many_requests, make, drop),
		cmocka_unit_test_setup_teardown(what_is_on_its_way_is_bounded, make, drop),
		cmocka_unit_test_setup_teardown(places_come_free, make, drop),
	};

	return cmocka_run_group_tests_name("store queue", tests, NULL, NULL);
}

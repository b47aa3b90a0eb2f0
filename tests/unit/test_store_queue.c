/* Whom the store serves next: turns, bounds, and slots that come free. */
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

	(void)state;
	assert_int_equal(add(1, 1, OD_STORE_PIECE_BYTES), OD_OK);
	assert_int_equal(add(1, 2, 1), OD_OK);
	assert_int_equal(take(&first), 1);
	assert_int_equal(take(&w), 0); /* one piece fills it */
	assert_int_equal(add(2, 3, 1), OD_OK);
	assert_int_equal(take(&w), 3); /* others go on */
	odm_store_queue_done(first, OD_STORE_PIECE_BYTES);
	assert_int_equal(take(&w), 2);
	for (uint32_t i = 10; i < 10 + ODM_STORE_WORKERS - 2; i++)
		for (int j = 0; j < OD_STORE_MAX_OPEN; j++)
			assert_int_equal(add(i, i, j == 0 ? OD_STORE_SHARE_BYTES / 2 : 300000), OD_OK);
	while (take(&w) != 0)
		assert_true(odm_store_queue_sending(q) <= ODM_STORE_ALL_BYTES);
	assert_true(odm_store_queue_sending(q) > ODM_STORE_ALL_BYTES / 2);
}

#define SILENT 100u

/* Silent ones ask for as much as they may, in pieces of so many bytes; then somebody comes. */
static void expect_room(uint32_t silent_bytes)
{
	struct odm_store_worker *w;

	for (uint32_t i = 0; i < SILENT; i++) {
		for (int j = 0; j < OD_STORE_MAX_OPEN; j++)
			assert_int_equal(add(i, 1, silent_bytes), OD_OK);
		while (take(&w) != 0)
			;
	}
	for (uint64_t i = 2; i < 50; i++) {
		assert_int_equal(add(1000, i, OD_STORE_SHARE_BYTES), OD_OK);
		assert_int_equal(take(&w), i);
		assert_true(odm_store_queue_sending(q) <= ODM_STORE_ALL_BYTES);
		assert_int_equal(add(1001, i, 1000), OD_OK); /* and another one, beside it */
		odm_store_queue_done(w, OD_STORE_SHARE_BYTES);
		assert_int_equal(take(&w), i);
		odm_store_queue_done(w, 1000);
	}
	assert_int_equal(take(&w), 0);
}

static void silent_workers_hold_up_nobody(void **state)
{
	const uint32_t bytes[] = {
		OD_STORE_PIECE_BYTES, OD_STORE_SHARE_BYTES, 1, 1000, 100000, 700000, 1500000, 2000000
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++) {
		memset(q, 0, sizeof(*q));
		expect_room(bytes[i]);
	}
}

/* Alone a worker has all that it may have; it never takes the last of what is beyond all shares. */
static void nobody_takes_all_the_surplus(void **state)
{
	struct odm_store_worker *first, *w;
	uint64_t n = 0;

	(void)state;
	for (uint64_t i = 1; i <= 3; i++)
		for (int j = 0; j < OD_STORE_MAX_OPEN; j++)
			assert_int_equal(add((uint32_t)i, i, OD_STORE_SHARE_BYTES), OD_OK);
	for (uint64_t i = 0; i < 3; i++)
		assert_int_equal(take(&w), i + 1);
	first = &q->worker[0];
	while (take(&w) != 0)
		n += w == first;
	assert_in_range(n, 1, ODM_STORE_WORKER_BYTES / OD_STORE_SHARE_BYTES - 1);
	assert_int_equal(add(4, 4, OD_STORE_SHARE_BYTES + 100000), OD_OK);
	assert_int_equal(take(&w), 4);
	/* They go on when theirs has left. */
	odm_store_queue_done(first, (n + 1) * OD_STORE_SHARE_BYTES);
	assert_int_equal(take(&w), 1);
}

static void slots_come_free(void **state)
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
	odm_store_queue_done(w, 10);
	assert_int_equal(add(1000, 1000, 10), OD_OK);
	assert_int_equal(add(0, 1, 10), OD_ERR_BUSY); /* a client that was dropped is a stranger again */
	for (uint32_t i = 0; i < ODM_STORE_WORKERS; i++)
		assert_int_not_equal(take(&w), 0);
	assert_int_equal(take(&w), 0);
}

static void one_that_waits_for_the_surplus_keeps_no_slot(void **state)
{
	struct odm_store_worker *w;
	uint32_t served = 0;

	(void)state;
	for (uint32_t i = 0; i < ODM_STORE_WORKERS; i++)
		assert_int_equal(add(i, i + 1, OD_STORE_PIECE_BYTES), OD_OK);
	while (take(&w) != 0)
		served++;
	assert_in_range(served, 1, ODM_STORE_WORKERS - 1);
	for (uint32_t i = 0; i < ODM_STORE_WORKERS - served; i++) {
		assert_int_equal(add(1000 + i, 1000 + i, OD_STORE_SHARE_BYTES), OD_OK);
		assert_int_equal(take(&w), 1000 + i);
	}
	assert_int_equal(add(3000, 1, 1), OD_ERR_BUSY); /* all have something on its way */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(workers_take_turns, make, drop),
		cmocka_unit_test_setup_teardown(a_worker_has_so_many_requests, make, drop),
		cmocka_unit_test_setup_teardown(what_is_on_its_way_is_bounded, make, drop),
		cmocka_unit_test_setup_teardown(silent_workers_hold_up_nobody, make, drop),
		cmocka_unit_test_setup_teardown(nobody_takes_all_the_surplus, make, drop),
		cmocka_unit_test_setup_teardown(slots_come_free, make, drop),
		cmocka_unit_test_setup_teardown(one_that_waits_for_the_surplus_keeps_no_slot, make, drop),
	};

	return cmocka_run_group_tests_name("store queue", tests, NULL, NULL);
}

/* Paced loads, on a clock of the test's own: when each is complete, and which goes first. */
#include "worker-node/load_schedule.h"

#include "common/base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#define SHARDS 2
#define SESSION 5
#define LOAD_NS 1000

static uint64_t clock_ns;

static uint64_t read_clock(void)
{
	return clock_ns;
}

static struct odw_schedule *new_schedule(unsigned n_slots)
{
	const struct odw_schedule_opts opts = { .n_layers = 4, .n_experts = 5, .n_parts = SHARDS, .n_slots = n_slots, .n_stages = SHARDS,
						.load_ns = LOAD_NS, .now_ns = read_clock };
	struct odw_schedule *s;

	assert_int_equal(odw_schedule_new(&s, &opts, NULL), OD_OK);
	odw_schedule_begin(s, SESSION);
	clock_ns = 70000;
	return s;
}

static void want(struct odw_schedule *s, uint32_t m, uint32_t expert)
{
	assert_int_equal(odw_schedule_want(s, SESSION, 1, m, 1, &expert, 1), 0);
}

static void run(struct odw_schedule *s, uint32_t m, struct odw_item *item, uint32_t expert)
{
	*item = (struct odw_item){ .expert = expert, .last = true };
	assert_int_equal(odw_schedule_run(s, SESSION, 1, m, false, item, 1), OD_OK);
}

/* The next job must be this. True: the engine has something to take. */
static bool do_job(struct odw_schedule *s, uint32_t expert, enum odw_load_kind kind)
{
	struct odw_load_job job;

	assert_true(kind == ODW_LOAD_READ ? odw_schedule_next_read(s, &job, false) : odw_schedule_next_finish(s, &job, false));
	assert_int_equal(job.expert, expert);
	assert_int_equal(job.kind, kind);
	return odw_schedule_end_job(s, &job, kind == ODW_LOAD_READ ? 10 : 0, OD_OK, NULL);
}

static void load_bytes(struct odw_schedule *s, uint32_t expert)
{
	for (int i = 0; i < SHARDS; i++)
		assert_false(do_job(s, expert, ODW_LOAD_READ) || do_job(s, expert, ODW_LOAD_FINISH));
}

static void nothing_to_load(struct odw_schedule *s)
{
	struct odw_load_job job;

	assert_false(odw_schedule_next_read(s, &job, false));
	assert_false(odw_schedule_next_finish(s, &job, false));
}

static struct odw_load_figures figures(struct odw_schedule *s)
{
	struct odw_load_figures f;

	odw_schedule_figures(s, &f);
	return f;
}

static void a_load_takes_its_time(void **state)
{
	struct odw_schedule *s = new_schedule(1);
	struct odw_item r;

	(void)state;
	want(s, 0, 3);
	clock_ns += 100; /* it begins with its first shard, not before */
	load_bytes(s, 3);
	nothing_to_load(s);
	run(s, 0, &r, 3);
	assert_false(r.ready);
	clock_ns += LOAD_NS - 1;
	nothing_to_load(s);
	assert_null(odw_schedule_take(s));
	assert_int_equal(odw_schedule_look(s, 0).state, ODW_LOADING);
	clock_ns += 1;
	assert_true(do_job(s, 3, ODW_LOAD_PACE)); /* wakes the engine */
	assert_ptr_equal(odw_schedule_take(s), &r);
	assert_int_equal(r.load_ns, LOAD_NS);
	assert_int_equal(r.loaded_bytes, SHARDS * 10);
	odw_schedule_done(s, &r);
	assert_int_equal(figures(s).loads, 1);
	assert_int_equal(figures(s).load_ns, LOAD_NS);
	odw_schedule_free(s);
}

static void asking_for_something_to_finish_begins_nothing(void **state)
{
	struct odw_schedule *s = new_schedule(1);
	struct odw_load_job job;

	(void)state;
	want(s, 0, 3);
	assert_false(odw_schedule_next_finish(s, &job, false));
	clock_ns += LOAD_NS;
	load_bytes(s, 3);
	nothing_to_load(s); /* its time has only just begun */
	clock_ns += LOAD_NS;
	assert_false(do_job(s, 3, ODW_LOAD_PACE));
	assert_int_equal(figures(s).load_ns, LOAD_NS);
	odw_schedule_free(s);
}

static void slow_bytes_take_longer(void **state)
{
	struct odw_schedule *s = new_schedule(1);
	struct odw_load_job a, b;
	struct odw_item r;

	(void)state;
	run(s, 0, &r, 3);
	assert_true(odw_schedule_next_read(s, &a, false));
	assert_true(odw_schedule_next_read(s, &b, false));
	clock_ns += LOAD_NS;
	assert_false(do_job(s, 3, ODW_LOAD_PACE)); /* has had its time, lacks its bytes */
	nothing_to_load(s);
	clock_ns += 7;
	assert_false(odw_schedule_end_job(s, &a, 1, OD_OK, NULL));
	assert_false(odw_schedule_end_job(s, &b, 1, OD_OK, NULL));
	assert_false(do_job(s, 3, ODW_LOAD_FINISH));
	assert_true(do_job(s, 3, ODW_LOAD_FINISH));
	assert_ptr_equal(odw_schedule_take(s), &r);
	assert_int_equal(r.load_ns, LOAD_NS + 7);
	odw_schedule_done(s, &r);
	odw_schedule_free(s);
}

static void loads_go_one_after_another(void **state)
{
	struct odw_schedule *s = new_schedule(2);

	(void)state;
	want(s, 0, 3);
	want(s, 1, 4);
	load_bytes(s, 3);
	nothing_to_load(s); /* 4 has a slot, but not the path */
	clock_ns += LOAD_NS;
	assert_false(do_job(s, 3, ODW_LOAD_PACE));
	load_bytes(s, 4);
	clock_ns += LOAD_NS - 1;
	nothing_to_load(s);
	clock_ns += 1;
	assert_false(do_job(s, 4, ODW_LOAD_PACE));
	assert_int_equal(figures(s).load_ns, 2 * LOAD_NS);
	odw_schedule_free(s);
}

static void urgent_loads_take_the_path_and_give_it_back(void **state)
{
	struct odw_schedule *s = new_schedule(2);
	struct odw_item r;

	(void)state;
	want(s, 2, 3);
	load_bytes(s, 3);
	clock_ns += 400;
	run(s, 1, &r, 4);
	load_bytes(s, 4);
	clock_ns += LOAD_NS - 1;
	nothing_to_load(s); /* 3's time would have been over long ago */
	clock_ns += 1;
	assert_true(do_job(s, 4, ODW_LOAD_PACE));
	nothing_to_load(s);
	clock_ns += LOAD_NS - 400 - 1;
	nothing_to_load(s);
	clock_ns += 1;
	assert_false(do_job(s, 3, ODW_LOAD_PACE)); /* keeps what it had */
	assert_int_equal(figures(s).loads, 2);
	assert_ptr_equal(odw_schedule_take(s), &r);
	odw_schedule_done(s, &r);
	odw_schedule_close(s, SESSION, 1, 2);
	want(s, 3, 0); /* in the same slots, from nothing */
	load_bytes(s, 0);
	clock_ns += LOAD_NS - 1;
	nothing_to_load(s);
	odw_schedule_free(s);
}

static void cancelled_loads_end_at_once(void **state)
{
	struct odw_schedule *s = new_schedule(1);
	struct odw_item r;

	(void)state;
	want(s, 2, 3);
	load_bytes(s, 3);
	clock_ns += 400;
	run(s, 1, &r, 4); /* takes the slot */
	load_bytes(s, 4);
	assert_int_equal(figures(s).cancelled_loads, 1);
	clock_ns += LOAD_NS - 1;
	nothing_to_load(s); /* and not what the other had */
	clock_ns += 1;
	assert_true(do_job(s, 4, ODW_LOAD_PACE));
	assert_ptr_equal(odw_schedule_take(s), &r);
	odw_schedule_done(s, &r);
	load_bytes(s, 3); /* comes back, and begins anew */
	clock_ns += LOAD_NS - 1;
	nothing_to_load(s);
	odw_schedule_close(s, SESSION, 1, 3);
	clock_ns += LOAD_NS;
	nothing_to_load(s);
	assert_int_equal(odw_schedule_look(s, 0).state, ODW_VOID);
	odw_schedule_free(s);
}

static void failed_loads_do_not_keep_the_path(void **state)
{
	struct odw_schedule *s = new_schedule(1);
	struct od_err why = { OD_ERR_IO, "no such luck" };
	struct odw_load_job a;
	struct odw_item r;

	(void)state;
	run(s, 0, &r, 3);
	assert_true(odw_schedule_next_read(s, &a, false));
	assert_true(odw_schedule_end_job(s, &a, 0, OD_ERR_IO, &why)); /* known at once */
	assert_ptr_equal(odw_schedule_take(s), &r);
	assert_int_equal(r.code, OD_ERR_IO);
	want(s, 1, 4);
	load_bytes(s, 4);
	clock_ns += LOAD_NS;
	assert_false(do_job(s, 4, ODW_LOAD_PACE));
	odw_schedule_free(s);
}

static void waiting_is_progress(void **state)
{
	struct odw_schedule *s = new_schedule(1);
	uint64_t before;

	(void)state;
	want(s, 0, 3);
	load_bytes(s, 3);
	before = figures(s).progress;
	assert_true(figures(s).progress > before);
	assert_true(figures(s).busy);
	clock_ns += LOAD_NS;
	assert_false(do_job(s, 3, ODW_LOAD_PACE));
	before = figures(s).progress;
	assert_int_equal(figures(s).progress, before);
	assert_false(figures(s).busy);
	odw_schedule_end(s, SESSION);
	odw_schedule_free(s);
}

static void the_end_of_a_session_is_the_end_of_its_loads(void **state)
{
	struct odw_schedule *s = new_schedule(1);
	struct odw_item r;
	uint64_t before;

	(void)state;
	run(s, 0, &r, 3);
	load_bytes(s, 3);
	odw_schedule_end(s, SESSION);
	assert_ptr_equal(odw_schedule_take(s), &r);
	before = figures(s).progress;
	assert_int_equal(figures(s).progress, before);
	clock_ns += LOAD_NS;
	nothing_to_load(s);
	odw_schedule_free(s);
}

/* ---- With real threads and the real clock ---- */

#define REAL_LOAD_NS (2 * OD_NS_PER_MS)
#define REAL_LOADS 4

static void *reader_thread(void *arg)
{
	struct odw_load_job job;

	while (odw_schedule_next_read(arg, &job, true))
		(void)!odw_schedule_end_job(arg, &job, 1, OD_OK, NULL);
	return NULL;
}

static void *inflater_thread(void *arg)
{
	struct odw_load_job job;

	while (odw_schedule_next_finish(arg, &job, true))
		(void)!odw_schedule_end_job(arg, &job, 0, OD_OK, NULL);
	return NULL;
}

static void sleeping_loaders_finish_loads(void **state)
{
	const struct odw_schedule_opts opts = { .n_layers = 4, .n_experts = 5, .n_parts = SHARDS, .n_slots = 2, .n_stages = SHARDS,
						.load_ns = REAL_LOAD_NS };
	struct odw_schedule *s;
	struct odw_item r[REAL_LOADS], *got;
	pthread_t loader[2];
	uint64_t begin_ns;

	(void)state;
	assert_int_equal(odw_schedule_new(&s, &opts, NULL), OD_OK);
	odw_schedule_begin(s, SESSION);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&loader[i], NULL, i == 0 ? reader_thread : inflater_thread, s), 0);
	begin_ns = od_now_ns();
	for (uint32_t i = 0; i < REAL_LOADS; i++)
		run(s, i, &r[i], i);
	for (int n = 0; n < REAL_LOADS;) {
		got = odw_schedule_take(s);
		if (got == NULL)
			continue;
		assert_true(got->load_ns >= REAL_LOAD_NS);
		odw_schedule_done(s, got);
		n++;
	}
	assert_true(od_now_ns() - begin_ns >= REAL_LOADS * REAL_LOAD_NS); /* one at a time, though there are two slots */
	odw_schedule_stop(s);
	for (int i = 0; i < 2; i++)
		pthread_join(loader[i], NULL);
	odw_schedule_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_load_takes_its_time),
		cmocka_unit_test(asking_for_something_to_finish_begins_nothing),
		cmocka_unit_test(slow_bytes_take_longer),
		cmocka_unit_test(loads_go_one_after_another),
		cmocka_unit_test(urgent_loads_take_the_path_and_give_it_back),
		cmocka_unit_test(cancelled_loads_end_at_once),
		cmocka_unit_test(failed_loads_do_not_keep_the_path),
		cmocka_unit_test(waiting_is_progress),
		cmocka_unit_test(the_end_of_a_session_is_the_end_of_its_loads),
		cmocka_unit_test(sleeping_loaders_finish_loads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

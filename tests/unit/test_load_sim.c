/* The machine of od-bench order: a schedule worked out by hand, and against load_order_table.py, which plays it tick by
 * tick and finds the optimum among all sequences. */
#include "tests/bench/sim/load_sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/load_order_table.h"

#define N(a) (sizeof(a) / sizeof((a)[0]))

static struct od_load_times play(const struct od_load_task *task, const struct od_load_costs *costs,
				 struct od_load_order *o)
{
	od_load_order_reads(o, task, costs->n_chunks);
	return od_load_sim(task, costs, o);
}

/* u 10, v 2, c 3, K 2, one inflater; expert 0 is missing and runs 5, expert 1 has its SM-chunk and runs 20.
 * 0 then 1: chunks at 2, 4, SM at 14, chunks at 16, 18; inflated at 5, 8, 19, 22; runs 14 to 19 and 22 to 42.
 * 1 then 0 in one block: chunks at 2, 4, 6, 8, SM at 18; inflated at 5, 8, 11, 14; runs 8 to 28 and 28 to 33. */
static void a_schedule_by_hand(void **state)
{
	const struct od_load_costs costs = { 10, 2, 3, 2, 1 };
	const struct od_load_task task[] = { { 0, false, false, 5 }, { 1, false, true, 20 } };
	struct od_load_order fifo = { .n_tasks = 2, .task = { 0, 1 }, .block = { 0, 1 } };
	struct od_load_order better = { .n_tasks = 2, .task = { 1, 0 } };
	struct od_load_times a = play(task, &costs, &fifo), b = play(task, &costs, &better);

	(void)state;
	assert_int_equal(a.read_ns, 18);
	assert_int_equal(a.inflated_ns, 22);
	assert_int_equal(a.done_ns, 42);
	assert_int_equal(b.read_ns, 18);
	assert_int_equal(b.inflated_ns, 14);
	assert_int_equal(b.done_ns, 33);
	/* Expert 1 is ready at 8 at the earliest and 25 remain to be run. */
	assert_int_equal(od_load_optimum(task, 2, &costs, 1000), 33);
	assert_int_equal(od_load_bound(task, 2, &costs), 31); /* 6 for two chunks, 25 */
}

/* One inflater; the second task has its chunks cached, the first one reads: at 0 only cached ones are there. At 4 both
 * are: the first task's goes first though the cached one has waited. */
static void inflaters_take_the_first_that_is_there(void **state)
{
	const struct od_load_costs costs = { 1, 4, 4, 2, 1 };
	const struct od_load_task task[] = { { 0, false, true, 1 }, { 1, true, true, 1 } };
	struct od_load_order o = { .n_tasks = 2, .task = { 0, 1 }, .block = { 0, 1 } };
	struct od_load_times t = play(task, &costs, &o);

	(void)state;
	/* 1's at 0 to 4, 0's to 8, 0's (there at 8) to 12, 1's to 16. 0 runs at 12, 1 at 16. */
	assert_int_equal(t.inflated_ns, 16);
	assert_int_equal(t.done_ns, 17);
}

static void makespans_are_those_of_the_table(void **state)
{
	struct od_load_order o;

	(void)state;
	for (size_t i = 0; i < N(load_order_cases); i++) {
		const struct load_order_case *c = &load_order_cases[i];

		for (int r = 0; r < 3; r++) {
			assert_int_equal(od_load_order(&o, (enum od_load_rule)r, c->task, c->n, &c->costs), OD_OK);
			assert_int_equal(od_load_sim(c->task, &c->costs, &o).done_ns, c->rule[r].done_ns);
		}
	}
}

static void optima_are_those_of_the_table(void **state)
{
	size_t n = 0, n_beaten = 0, n_above = 0;

	(void)state;
	for (size_t i = 0; i < N(load_order_cases); i++) {
		const struct load_order_case *c = &load_order_cases[i];

		if (c->optimum_ns == 0)
			continue;
		assert_int_equal(od_load_optimum(c->task, c->n, &c->costs, UINT64_MAX), c->optimum_ns);
		assert_int_equal(od_load_optimum(c->task, c->n, &c->costs, c->rule[OD_LOAD_FIFO].done_ns),
				 c->optimum_ns);
		assert_true(od_load_bound(c->task, c->n, &c->costs) <= c->optimum_ns);
		n++;
		n_beaten += c->optimum_ns < c->rule[OD_LOAD_FIFO].done_ns;
		n_above += od_load_bound(c->task, c->n, &c->costs) < c->optimum_ns;
	}
	assert_true(n > 20 && n_beaten > 5 && n_above > 5 && n_above < n);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_schedule_by_hand),
		cmocka_unit_test(inflaters_take_the_first_that_is_there),
		cmocka_unit_test(makespans_are_those_of_the_table),
		cmocka_unit_test(optima_are_those_of_the_table),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

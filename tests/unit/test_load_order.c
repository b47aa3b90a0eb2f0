/* Orders of loads: worked out by hand, and against load_order_table.py, which builds blocks by playing every chunk. */
#include "tests/bench/sim/load_order.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/load_order_table.h"

#define N(a) (sizeof(a) / sizeof((a)[0]))
#define SM 0 /* as n_chunks of a read */

static struct od_load_order make(enum od_load_rule rule, const struct od_load_task *task, size_t n,
				 const struct od_load_costs *costs)
{
	struct od_load_order o;

	assert_int_equal(od_load_order(&o, rule, task, n, costs), OD_OK);
	assert_int_equal(o.n_tasks, n);
	return o;
}

static void assert_order(const struct od_load_order *o, const uint16_t *task, const uint16_t *block)
{
	for (size_t i = 0; i < o->n_tasks; i++) {
		assert_int_equal(o->task[i], task[i]);
		assert_int_equal(o->block[i], block[i]);
	}
}

static void assert_reads(const struct od_load_order *o, const struct od_load_read *read, size_t n)
{
	assert_int_equal(o->n_reads, n);
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(o->read[i].task, read[i].task);
		assert_int_equal(o->read[i].n_chunks, read[i].n_chunks);
	}
}

/* u 10, K 2, v 2, c 3, one inflater: it waits for every chunk of the missing expert, so another one's E-chunks cost
 * nothing, and those whose SM-chunk is there already go first. */
static void cached_sm_chunks_go_first_and_e_chunks_before_sm_chunks(void **state)
{
	const struct od_load_costs costs = { 10, 2, 3, 2, 1 };
	const struct od_load_task task[] = { { 7, false, false, 5 }, { 3, false, true, 20 }, { 9, true, true, 4 } };
	struct od_load_order o = make(OD_LOAD_BLOCKS, task, 3, &costs);
	const struct od_load_read reads[] = { { 1, 2 }, { 0, 2 }, { 0, SM } };

	(void)state;
	assert_order(&o, (const uint16_t[]){ 1, 2, 0 }, (const uint16_t[]){ 0, 0, 0 });
	assert_reads(&o, reads, N(reads));
}

/* One inflater, 30 for a chunk that is read in 2: after the first task (reads end at 14, inflating at 62) it has work
 * until long after the next chunk (16). Every task is a block, which is first come first served to the last read. */
static void slow_inflaters_close_every_block(void **state)
{
	const struct od_load_costs costs = { 10, 2, 30, 2, 1 };
	const struct od_load_task task[] = { { 4, false, false, 5 }, { 4, false, false, 5 }, { 4, false, false, 5 } };
	const struct od_load_read reads[] = { { 0, 2 }, { 0, SM }, { 1, 2 }, { 1, SM }, { 2, 2 }, { 2, SM } };
	struct od_load_order blocks = make(OD_LOAD_BLOCKS, task, 3, &costs);
	struct od_load_order fifo = make(OD_LOAD_FIFO, task, 3, &costs);

	(void)state;
	assert_order(&blocks, (const uint16_t[]){ 0, 1, 2 }, (const uint16_t[]){ 0, 1, 2 });
	assert_reads(&blocks, reads, N(reads));
	assert_reads(&fifo, reads, N(reads));
}

/* Where the last of two inflaters is just busy enough: reads of the first block end at 7 (v 1, K 2, u 5). The next two
 * chunks come at 8 and 9; the inflaters end at 1 + c and 2 + c. */
static void a_block_closes_when_every_inflater_has_work_for_one_more_read(void **state)
{
	const struct od_load_task task[] = { { 0, false, false, 2 }, { 1, false, false, 1 } };
	const struct od_load_costs six = { 5, 1, 6, 2, 2 }, seven = { 5, 1, 7, 2, 2 };
	struct od_load_order open = make(OD_LOAD_BLOCKS, task, 2, &six);
	struct od_load_order closed = make(OD_LOAD_BLOCKS, task, 2, &seven);

	(void)state;
	assert_order(&open, (const uint16_t[]){ 0, 1 }, (const uint16_t[]){ 0, 0 });
	assert_order(&closed, (const uint16_t[]){ 0, 1 }, (const uint16_t[]){ 0, 1 });
}

/* One inflater is done with what it began at 2, after the first read: 3 chunks at 2 + 3 c. Reads end at 3 * 2 + 11, the
 * next chunk comes at 19. */
static void the_first_chunk_has_to_come_before_inflating_begins(void **state)
{
	const struct od_load_task task[] = { { 0, false, false, 2 }, { 1, false, false, 1 } };
	const struct od_load_costs five = { 11, 2, 5, 3, 1 }, six = { 11, 2, 6, 3, 1 };
	struct od_load_order open = make(OD_LOAD_BLOCKS, task, 2, &five);
	struct od_load_order closed = make(OD_LOAD_BLOCKS, task, 2, &six);

	(void)state;
	assert_order(&open, (const uint16_t[]){ 0, 1 }, (const uint16_t[]){ 0, 0 });
	assert_order(&closed, (const uint16_t[]){ 0, 1 }, (const uint16_t[]){ 0, 1 });
}

/* Reads of 10, inflating of 1: each chunk read brings 9 of idle time, so the task whose SM-chunk is cached goes behind
 * the missing one that runs longer, and the next such behind it. */
static void what_brings_idle_time_goes_behind_longer_runs(void **state)
{
	const struct od_load_costs costs = { 10, 10, 1, 1, 1 };
	const struct od_load_task shorter[] = { { 0, false, false, 9 }, { 1, false, true, 4 }, { 2, false, true, 3 } };
	const struct od_load_task longer[] = { { 0, false, false, 9 }, { 1, false, true, 12 }, { 2, false, true, 3 } };
	struct od_load_order behind = make(OD_LOAD_BLOCKS, shorter, 3, &costs);
	struct od_load_order before = make(OD_LOAD_BLOCKS, longer, 3, &costs);

	(void)state;
	assert_order(&behind, (const uint16_t[]){ 0, 1, 2 }, (const uint16_t[]){ 0, 0, 0 });
	assert_order(&before, (const uint16_t[]){ 1, 2, 0 }, (const uint16_t[]){ 0, 0, 0 });
}

static void without_type_one_tasks_all_the_others_are_still_ordered(void **state)
{
	const struct od_load_costs costs = { 10, 2, 3, 2, 1 };
	const struct od_load_task task[] = { { 0, true, true, 1 }, { 1, false, true, 2 }, { 2, true, true, 3 } };
	struct od_load_order o = make(OD_LOAD_BLOCKS, task, 3, &costs);

	(void)state;
	assert_order(&o, (const uint16_t[]){ 2, 1, 0 }, o.block);
	assert_reads(&o, &(const struct od_load_read){ 1, 2 }, 1);
}

/* u 10, K 2, v 2, c 3, L 1. Reads of a missing expert take 14, inflating its two chunks 6. Of the experts that run
 * longer than that the quickest to load goes first, of the others the one that runs longest. */
static void johnson_by_hand(void **state)
{
	const struct od_load_costs costs = { 10, 2, 3, 2, 1 };
	const struct od_load_task task[] = {
		{ 0, false, false, 5 }, /* 14 < 5? no */
		{ 1, false, false, 20 }, /* 14 < 20 */
		{ 2, false, false, 9 }, /* no */
		{ 3, true, true, 7 }, /* 6 < 7 */
		{ 4, true, false, 30 }, /* 10 < 30 */
		{ 5, false, true, 30 }, /* 6 < 30, but 4 of reads where expert 3 has none */
	};
	struct od_load_order o = make(OD_LOAD_JOHNSON, task, N(task), &costs);

	(void)state;
	assert_order(&o, (const uint16_t[]){ 3, 5, 4, 1, 2, 0 }, (const uint16_t[]){ 0, 1, 2, 3, 4, 5 });
}

static void blocks_keep_an_expert_together(void **state)
{
	const struct od_load_costs costs = { 10, 2, 3, 2, 1 };
	const struct od_load_task task[] = {
		{ 8, false, false, 5 }, { 2, false, false, 5 }, { 8, false, false, 5 }, { 2, false, false, 5 }
	};
	struct od_load_order o = make(OD_LOAD_BLOCKS, task, 4, &costs);

	(void)state;
	assert_order(&o, (const uint16_t[]){ 0, 2, 1, 3 }, (const uint16_t[]){ 0, 0, 0, 0 });
}

static void johnson_keeps_an_expert_together_and_equals_in_order(void **state)
{
	const struct od_load_costs costs = { 10, 2, 3, 2, 1 };
	const struct od_load_task task[] = {
		{ 8, false, false, 5 }, { 2, false, false, 5 }, { 8, false, false, 5 }, { 2, false, false, 5 }
	};
	struct od_load_order o = make(OD_LOAD_JOHNSON, task, 4, &costs);
	const struct od_load_read reads[] = { { 0, 2 }, { 2, 2 }, { 0, SM }, { 2, SM },
					      { 1, 2 }, { 3, 2 }, { 1, SM }, { 3, SM } };

	(void)state;
	assert_order(&o, (const uint16_t[]){ 0, 2, 1, 3 }, (const uint16_t[]){ 0, 0, 1, 1 });
	assert_reads(&o, reads, N(reads));
}

static void orders_are_those_of_the_table(void **state)
{
	size_t differing = 0;

	(void)state;
	for (size_t i = 0; i < N(load_order_cases); i++) {
		const struct load_order_case *c = &load_order_cases[i];

		for (int r = 0; r < 3; r++) {
			struct od_load_order o = make((enum od_load_rule)r, c->task, c->n, &c->costs);

			assert_order(&o, c->rule[r].task, c->rule[r].block);
		}
		differing += memcmp(c->rule[OD_LOAD_BLOCKS].task, c->rule[OD_LOAD_JOHNSON].task,
				    sizeof(c->rule[0].task)) != 0;
	}
	assert_true(differing > 10);
}

/* One expert that is not cached: whatever the costs, its tensors come in their order. */
static void one_expert_is_served_first_come_first_served(void **state)
{
	const struct od_load_task task[] = { { 6, false, false, 9 }, { 6, false, false, 9 }, { 6, false, false, 9 } };
	static const uint64_t cost[] = { 1, 7, 60 };
	size_t n_blocks[3] = { 0 };

	(void)state;
	for (unsigned i = 0; i < 27 * 16; i++) {
		const struct od_load_costs costs = { cost[i % 3], cost[i / 3 % 3], cost[i / 9 % 3],
						     (uint16_t)(1 + i / 27 % 4), 1 + i / 108 };
		struct od_load_order o = make(OD_LOAD_BLOCKS, task, 3, &costs);

		assert_order(&o, (const uint16_t[]){ 0, 1, 2 }, o.block);
		n_blocks[o.block[2]]++;
		o = make(OD_LOAD_JOHNSON, task, 3, &costs);
		assert_order(&o, (const uint16_t[]){ 0, 1, 2 }, (const uint16_t[]){ 0, 0, 0 });
	}
	assert_true(n_blocks[0] > 0 && n_blocks[2] > 0);
}

/* As many as there can be, of all kinds, at costs at the limit: all of them once, and the sums hold. */
static void the_greatest_set_is_ordered(void **state)
{
	const struct od_load_costs most = { OD_ORDER_COST_NS, OD_ORDER_COST_NS, OD_ORDER_COST_NS, OD_ORDER_CHUNKS,
					    OD_ORDER_INFLATERS };
	struct od_load_task task[OD_ORDER_TASKS];

	(void)state;
	for (size_t i = 0; i < OD_ORDER_TASKS; i++)
		task[i] = (struct od_load_task){ (uint32_t)(i * 7 % 64), i & 1, i & 2, i * 7 % 64 * 1000 };
	for (int r = 0; r < 3; r++) {
		struct od_load_order o = make((enum od_load_rule)r, task, OD_ORDER_TASKS, &most);
		bool seen[OD_ORDER_TASKS] = { false };

		for (size_t i = 0; i < o.n_tasks; i++) {
			assert_false(seen[o.task[i]]);
			seen[o.task[i]] = true;
			assert_true(o.block[i] == 0 ? i == 0 || o.block[i - 1] == 0 : o.block[i] - o.block[i - 1] <= 1);
		}
		assert_int_equal(o.n_reads, OD_ORDER_TASKS);
	}
}

static void what_is_out_of_range_is_refused(void **state)
{
	static struct od_load_task task[OD_ORDER_TASKS + 1];
	const struct od_load_costs good = { 1, 1, 1, 1, 1 };
	struct od_load_order o = { .n_tasks = 1, .n_reads = 1 };
	struct od_load_costs bad[7];

	(void)state;
	for (size_t i = 0; i < N(bad); i++)
		bad[i] = good;
	bad[0].sm_read_ns = bad[1].e_read_ns = bad[2].inflate_ns = OD_ORDER_COST_NS + 1;
	bad[3].n_chunks = 0;
	bad[4].n_chunks = OD_ORDER_CHUNKS + 1;
	bad[5].n_inflaters = 0;
	bad[6].n_inflaters = OD_ORDER_INFLATERS + 1;
	for (size_t i = 0; i < N(bad); i++)
		assert_int_equal(od_load_order(&o, OD_LOAD_BLOCKS, task, 1, &bad[i]), OD_ERR_RANGE);
	assert_int_equal(od_load_order(&o, OD_LOAD_FIFO, task, OD_ORDER_TASKS + 1, &good), OD_ERR_RANGE);
	assert_int_equal(o.n_tasks + o.n_reads, 0);
	for (int r = 0; r < 3; r++)
		assert_int_equal(make((enum od_load_rule)r, task, 0, &good).n_reads, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cached_sm_chunks_go_first_and_e_chunks_before_sm_chunks),
		cmocka_unit_test(slow_inflaters_close_every_block),
		cmocka_unit_test(a_block_closes_when_every_inflater_has_work_for_one_more_read),
		cmocka_unit_test(the_first_chunk_has_to_come_before_inflating_begins),
		cmocka_unit_test(what_brings_idle_time_goes_behind_longer_runs),
		cmocka_unit_test(without_type_one_tasks_all_the_others_are_still_ordered),
		cmocka_unit_test(blocks_keep_an_expert_together),
		cmocka_unit_test(johnson_by_hand),
		cmocka_unit_test(johnson_keeps_an_expert_together_and_equals_in_order),
		cmocka_unit_test(orders_are_those_of_the_table),
		cmocka_unit_test(one_expert_is_served_first_come_first_served),
		cmocka_unit_test(the_greatest_set_is_ordered),
		cmocka_unit_test(what_is_out_of_range_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

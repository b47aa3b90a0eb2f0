/* The order in which experts are pulled, and those that give way: a tiny pack of 2 layers of 3 experts, numbered 0 to
 * 5. */
#include "worker-node/pull/pull_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/pack/pack_internal.h"
#include "common/pack/write/pack_write.h"
#include "common/pack/write/share_write.h"
#include "tests/unit/tiny_files.h"

#define N (TINY_LAYERS * TINY_EXPERTS)
#define NONE UINT64_MAX
#define HEADER 4096u

static struct tiny_files tiny;
static struct od_pack *pack; /* a spool, without experts */
static struct odw_pull_plan plan;

static int setup(void **state)
{
	char dir[128];
	struct od_err err;
	uint32_t n;

	(void)state;
	tiny_files_make(&tiny);
	snprintf(dir, sizeof(dir), "%s/spool", tiny.root);
	const struct od_pack_job job = { .checkpoint = tiny.checkpoint, .pack = tiny.pack, .n_threads = 1 };
	const struct od_share_job share = { .pack = tiny.pack, .dir = dir, .share = "1/1" };

	if (od_pack_write(&job, &err) != OD_OK || od_share_write(&share, &n, &err) != OD_OK)
		return -1;
	return od_pack_open_some(&pack, dir, &err);
}

static int teardown(void **state)
{
	(void)state;
	od_pack_close(pack);
	tiny_files_free(&tiny);
	return 0;
}

static uint64_t bytes_of(uint32_t expert)
{
	return od_pack_expert(pack, expert / TINY_EXPERTS, expert % TINY_EXPERTS)->bytes;
}

static void set(uint32_t expert, bool whole)
{
	od_pack_set_has_expert(pack, expert / TINY_EXPERTS, expert % TINY_EXPERTS, whole);
}

static int done(void **state)
{
	(void)state;
	odw_pull_plan_fini(&plan);
	return 0;
}

static void make(uint64_t limit)
{
	struct od_err err;

	for (uint32_t i = 0; i < N; i++)
		set(i, false);
	assert_int_equal(odw_pull_plan_init(&plan, pack, limit, HEADER, &err), OD_OK);
}

/* The next is this one, and becomes whole. */
static void pull(uint32_t expected)
{
	uint32_t expert = odw_pull_plan_next(&plan, 1);

	assert_int_equal(expert, expected);
	if (expert == ODW_NO_EXPERT)
		return;
	set(expert, true);
	odw_pull_plan_end(&plan, expert, 0);
}

static void share(uint32_t n, uint32_t worker, uint32_t groups)
{
	odw_pull_plan_share(&plan, &(struct od_share){ n, worker, groups });
}

static void its_layers_then_its_prefill(void **state)
{
	(void)state;
	make(NONE);
	pull(ODW_NO_EXPERT); /* it does not know its place */
	share(2, 1, 2);
	assert_int_equal(plan.goal_bytes, bytes_of(3) + bytes_of(4) + bytes_of(5) + bytes_of(1));
	const uint32_t order[] = { 3, 4, 5, 1, ODW_NO_EXPERT };

	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
		pull(order[i]);
}

static void several_at_a_time_and_the_urgent_first(void **state)
{
	(void)state;
	make(NONE);
	share(2, 1, 2);
	assert_int_equal(odw_pull_plan_next(&plan, 1), 3);
	odw_pull_plan_urge(&plan, 1);
	odw_pull_plan_urge(&plan, 1);
	odw_pull_plan_urge(&plan, 3); /* under way */
	assert_true(odw_pull_plan_urgent_waits(&plan));
	assert_int_equal(odw_pull_plan_next(&plan, 1), 1);
	assert_false(odw_pull_plan_urgent_waits(&plan));
	assert_int_equal(odw_pull_plan_next(&plan, 1), 4);
	assert_int_equal(odw_pull_plan_next(&plan, 1), 5);
	pull(ODW_NO_EXPERT);
}

static void what_could_not_be_had_rests(void **state)
{
	(void)state;
	make(NONE);
	share(2, 1, 2);
	assert_int_equal(odw_pull_plan_next(&plan, 10), 3);
	odw_pull_plan_end(&plan, 3, 50);
	assert_int_equal(plan.next_rest_ns, 50);
	odw_pull_plan_urge(&plan, 3); /* in vain */
	pull(4);
	pull(5);
	pull(1);
	assert_int_equal(odw_pull_plan_next(&plan, 49), ODW_NO_EXPERT);
	assert_int_equal(plan.next_rest_ns, 50);
	assert_int_equal(odw_pull_plan_next(&plan, 50), 3);
	set(3, true);
	odw_pull_plan_end(&plan, 3, 0);
	assert_int_equal(odw_pull_plan_next(&plan, 99), ODW_NO_EXPERT);
	assert_int_equal(plan.next_rest_ns, UINT64_MAX);
}

static void what_was_lost_is_pulled_again(void **state)
{
	(void)state;
	make(NONE);
	share(2, 1, 2);
	for (int i = 0; i < 4; i++)
		(void)odw_pull_plan_next(&plan, 1);
	for (uint32_t i = 0; i < N; i++) {
		set(i, plan.active[i]);
		if (plan.active[i])
			odw_pull_plan_end(&plan, i, 0);
	}
	pull(ODW_NO_EXPERT);
	set(4, false);
	odw_pull_plan_lost(&plan, 4);
	pull(4);
	set(0, false); /* not its share */
	odw_pull_plan_lost(&plan, 0);
	pull(ODW_NO_EXPERT);
}

static void a_limit_takes_the_first(void **state)
{
	(void)state;
	make(N * HEADER + bytes_of(3) + bytes_of(4) - 2 * HEADER);
	share(2, 1, 2);
	assert_int_equal(plan.n_goal, 2);
	assert_int_equal(plan.n_too_many, 2);
	pull(3);
	pull(4);
	pull(ODW_NO_EXPERT);
	assert_int_equal(plan.disk_bytes, plan.limit_bytes);
	assert_false(odw_pull_plan_add(&plan, 0));
	assert_true(odw_pull_plan_add(&plan, 3)); /* has its place */
	assert_int_equal(odw_pull_plan_victim(&plan, 3), ODW_NO_EXPERT);
}

static void another_share_takes_the_place_of_the_old(void **state)
{
	uint32_t gone[N] = { 0 };

	(void)state;
	make(N * HEADER + bytes_of(0) + bytes_of(1) + bytes_of(2) - 3 * HEADER);
	share(2, 0, 2); /* layer 0, then 3 and 5, for which there is no room */
	for (uint32_t i = 0; i < 3; i++)
		pull(i);
	pull(ODW_NO_EXPERT);
	share(2, 1, 2);
	for (uint32_t i = 3; i < N; i++) {
		uint32_t victim;

		assert_int_equal(odw_pull_plan_next(&plan, 1), i);
		while ((victim = odw_pull_plan_victim(&plan, i)) != ODW_NO_EXPERT) {
			assert_in_range(victim, 0, 2);
			gone[victim]++;
			set(victim, false);
		}
		assert_true(plan.disk_bytes <= plan.limit_bytes);
		set(i, true);
		odw_pull_plan_end(&plan, i, 0);
	}
	assert_int_equal(gone[0] + gone[1] + gone[2], 3);
	pull(ODW_NO_EXPERT);
}

static void nobodys_expert_joins(void **state)
{
	(void)state;
	make(NONE);
	share(2, 1, 2);
	assert_true(odw_pull_plan_add(&plan, 0));
	assert_true(odw_pull_plan_add(&plan, 0));
	assert_int_equal(plan.n_goal, 5);
	odw_pull_plan_urge(&plan, 0);
	pull(0);
	pull(3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(its_layers_then_its_prefill, done),
		cmocka_unit_test_teardown(several_at_a_time_and_the_urgent_first, done),
		cmocka_unit_test_teardown(what_could_not_be_had_rests, done),
		cmocka_unit_test_teardown(what_was_lost_is_pulled_again, done),
		cmocka_unit_test_teardown(a_limit_takes_the_first, done),
		cmocka_unit_test_teardown(another_share_takes_the_place_of_the_old, done),
		cmocka_unit_test_teardown(nobodys_expert_joins, done),
	};

	return cmocka_run_group_tests_name("pull plan", tests, setup, teardown);
}

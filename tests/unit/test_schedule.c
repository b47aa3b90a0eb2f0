/* The worker's schedule: each rule by itself. */
#include "tests/unit/schedule_world.h"

static void run_takes_the_slot_of_a_want(void **state)
{
	struct od_schedule *s = new_schedule(1);
	struct od_load_job a, job;
	struct od_schedule_item r;

	(void)state;
	WANT(s, 1, 0, 1, 2);
	assert_true(od_schedule_next_read(s, &a, false));
	run(s, 9, 3, true, &r, 4, true); /* later by key, but a RUN */
	assert_true(is(s, 1, 0, 0, OD_SLOT_DRAINING));
	assert_false(od_schedule_next_read(s, &job, false)); /* the cancelled load stops at the shard */
	assert_null(od_schedule_take(s));
	assert_false(put(s, &a, 10));
	assert_int_equal(figures(s).c[OD_C_CANCELLED_LOADS], 1);
	for (int i = 0; i < SHARDS; i++)
		assert_int_equal(load_one(s, &job), 4);
	assert_int_equal(load_one(s, &job), -1);
	compute(s, &r);
	assert_false(r.ready);
	assert_int_equal(r.loaded_bytes, SHARDS * 10);
	assert_int_equal(load_one(s, &job), 2); /* the WANT comes back to its slot */
	od_schedule_free(s);
}

static void run_takes_the_want_with_the_greatest_key(void **state)
{
	struct od_schedule *s = new_schedule(3);
	struct od_schedule_item r[2];

	(void)state;
	WANT(s, 2, 1, 1, 0);
	WANT(s, 1, 3, 1, 3, 1); /* rank decides: 1 is the later one */
	load_all(s);
	WANT(s, 3, 0, 1, 2); /* no room */
	assert_false(is(s, 3, 0, 2, OD_SLOT_LOADING));
	run(s, 1, 0, true, &r[0], 4, true);
	assert_true(is(s, 3, 0, 4, OD_SLOT_LOADING));
	assert_false(is(s, 3, 1, 0, OD_SLOT_RESIDENT)); /* (2, 1) was the greatest */
	run(s, 1, 1, true, &r[1], 4, true);
	assert_false(is(s, 3, 3, 1, OD_SLOT_RESIDENT));
	assert_true(is(s, 3, 3, 3, OD_SLOT_RESIDENT));
	od_schedule_free(s);
}

static void runs_wait_for_runs_and_go_by_key(void **state)
{
	struct od_schedule *s = new_schedule(1);
	struct od_schedule_item r[3];

	(void)state;
	run(s, 5, 2, false, &r[0], 0, true);
	run(s, 5, 3, false, &r[1], 1, true);
	run(s, 4, 3, false, &r[2], 2, true);
	load_all(s);
	compute(s, &r[0]); /* it had the slot already */
	load_all(s);
	compute(s, &r[2]); /* an earlier step */
	assert_null(od_schedule_take(s));
	load_all(s);
	compute(s, &r[1]);
	assert_int_equal(od_schedule_entries(s), 0);
	assert_true(is(s, 1, 0, 0, OD_SLOT_FREE));
	od_schedule_free(s);
}

static void ready_runs_go_before_loading_ones(void **state)
{
	struct od_schedule *s = new_schedule(2);
	struct od_schedule_item r[2];
	struct od_load_job job;

	(void)state;
	WANT(s, 1, 3, 1, 0);
	load_all(s);
	run(s, 1, 1, false, &r[0], 1, true);
	run(s, 1, 3, false, &r[1], 0, true);
	assert_int_equal(load_one(s, &job), 1);
	compute(s, &r[1]);
	assert_true(r[1].ready);
	assert_int_not_equal(r[1].loaded_bytes, 0);
	load_all(s);
	compute(s, &r[0]);
	od_schedule_free(s);
}

static void newest_version_wins(void **state)
{
	struct od_schedule *s = new_schedule(2);
	struct od_load_job job;

	(void)state;
	WANT(s, 1, 0, 5, 0, 1);
	assert_int_equal(load_one(s, &job), 0);
	WANT(s, 1, 0, 4, 2); /* older */
	WANT(s, 1, 0, 5, 3); /* not newer */
	WANT(s, 1, 0, 6, 0, 4); /* 1 goes, 0 stays where it is */
	assert_int_equal(od_schedule_entries(s), 2);
	assert_true(is(s, 2, 0, 4, OD_SLOT_LOADING));
	assert_int_equal(load_one(s, &job), 0);
	assert_int_equal(job.slice, 1); /* not begun again */
	load_all(s);
	assert_int_equal(figures(s).c[OD_C_LOADS], 2);
	assert_int_equal(figures(s).c[OD_C_CANCELLED_LOADS], 0);
	assert_int_equal(od_schedule_want(s, SESSION, 1, 0, 7, NULL, 0, false), 0);
	assert_int_equal(od_schedule_entries(s), 0);
	assert_int_equal(figures(s).c[OD_C_UNUSED_LOADS], 2);
	od_schedule_free(s);
}

static void what_prompts_load_and_do_not_use_is_counted_apart(void **state)
{
	struct od_schedule *s = new_schedule(4);
	struct od_load_job job;

	(void)state;
	WANT(s, 1, 0, 1, 0);
	assert_int_equal(od_schedule_want(s, SESSION, 2, 0, 1, (uint32_t[]){ 1 }, 1, true), 0);
	load_all(s);
	od_schedule_close(s, SESSION, 1, 0);
	assert_int_equal(figures(s).c[OD_C_UNUSED_LOADS], 1);
	assert_int_equal(figures(s).c[OD_C_PROMPT_EXTRA_LOADS], 0);
	assert_int_equal(od_schedule_want(s, SESSION, 2, 1, 1, (uint32_t[]){ 2 }, 1, true), 0);
	assert_int_equal(load_one(s, &job), 2); /* one slice of two */
	od_schedule_close(s, SESSION, 2, 1);
	assert_int_equal(figures(s).c[OD_C_UNUSED_LOADS], 2);
	assert_int_equal(figures(s).c[OD_C_CANCELLED_LOADS], 1);
	assert_int_equal(figures(s).c[OD_C_PROMPT_EXTRA_LOADS], 2);
	od_schedule_free(s);
}

static void closing_voids_wants_whenever_they_come(void **state)
{
	struct od_schedule *s = new_schedule(4);
	struct od_schedule_item r;

	(void)state;
	WANT(s, 1, 0, 1, 0);
	WANT(s, 1, 1, 1, 0, 1);
	WANT(s, 1, 2, 1, 0);
	WANT(s, 2, 0, 1, 0);
	od_schedule_close(s, SESSION, 1, 1);
	assert_int_equal(od_schedule_entries(s), 2); /* (1, 2) and the other step's */
	WANT(s, 1, 1, 9, 3); /* late */
	assert_int_equal(od_schedule_entries(s), 2);
	od_schedule_close(s, SESSION, 1, 0); /* does not open anything again */
	WANT(s, 1, 1, 10, 3);
	assert_int_equal(od_schedule_entries(s), 2);
	WANT(s, 2, 1, 1, 1);
	WANT(s, 2, 2, 1, 2, 3);
	run(s, 2, 2, false, &r, 3, true); /* voids up to layer 1, and its own WANT becomes the RUN */
	assert_int_equal(od_schedule_entries(s), 3);
	WANT(s, 2, 1, 2, 1);
	assert_int_equal(od_schedule_entries(s), 3);
	WANT(s, 2, 2, 2, 2, 4);
	assert_int_equal(od_schedule_entries(s), 4);
	od_schedule_close(s, SESSION, 2, 2);
	assert_int_equal(od_schedule_entries(s), 2); /* (1, 2) and the RUN */
	od_schedule_free(s);
}

static void last_run_of_a_layer_voids_its_wants(void **state)
{
	struct od_schedule *s = new_schedule(2);
	struct od_schedule_item r[2];

	(void)state;
	WANT(s, 1, 0, 1, 0, 1);
	run(s, 1, 0, false, &r[0], 1, false);
	load_all(s);
	compute(s, &r[0]);
	assert_int_equal(od_schedule_entries(s), 2); /* kept, wanted */
	run(s, 1, 0, true, &r[1], 2, false);
	assert_int_equal(od_schedule_entries(s), 1);
	load_all(s);
	compute(s, &r[1]);
	assert_int_equal(od_schedule_entries(s), 0); /* nothing is kept for a closed layer */
	od_schedule_free(s);
}

static void last_frees_and_not_last_keeps(void **state)
{
	struct od_schedule *s = new_schedule(2);
	struct od_schedule_item r[4];

	(void)state;
	run(s, 1, 0, false, &r[0], 0, false);
	load_all(s);
	compute(s, &r[0]);
	assert_true(is(s, 2, 0, 0, OD_SLOT_RESIDENT));
	run(s, 1, 0, false, &r[1], 0, false);
	run(s, 1, 0, false, &r[2], 0, true);
	assert_true(r[1].ready);
	compute(s, &r[1]);
	compute(s, &r[2]);
	assert_int_equal(figures(s).c[OD_C_LOADS], 1);
	assert_int_equal(r[0].loaded_bytes, SHARDS * 10);
	assert_int_equal(r[1].loaded_bytes, 0); /* the first was told */
	assert_int_equal(r[1].load_ns, 0);
	assert_true(is(s, 1, 0, 0, OD_SLOT_FREE));
	run(s, 1, 0, true, &r[3], 0, true); /* self-sufficient */
	assert_false(r[3].ready);
	load_all(s);
	compute(s, &r[3]);
	od_schedule_free(s);
}

/* Reads slices, 10 ns each, of this expert alone. */
static void load_slices(struct od_schedule *s, uint32_t expert, unsigned n)
{
	struct od_load_job job;

	for (unsigned i = 0; i < n; i++) {
		assert_true(od_schedule_next_read(s, &job, false));
		assert_int_equal(job.expert, expert);
		clock_ns += 10;
		(void)put(s, &job, 10);
	}
}

static void a_load_takes_no_longer_for_one_that_went_first(void **state)
{
	struct od_schedule *s = new_schedule(2);
	struct od_schedule_item r[2];

	(void)state;
	clock_ns = 100;
	WANT(s, 1, 0, 1, 0, 1);
	load_slices(s, 0, 1);
	run(s, 1, 0, false, &r[1], 1, true);
	load_slices(s, 1, SHARDS);
	load_slices(s, 0, SHARDS - 1);
	run(s, 1, 0, true, &r[0], 0, true);
	compute(s, &r[0]);
	compute(s, &r[1]);
	assert_int_equal(r[1].load_ns, SHARDS * 10);
	assert_int_equal(r[0].load_ns, SHARDS * 10);
	od_schedule_free(s);
}

static void kept_gives_way_only_when_nothing_else_moves(void **state)
{
	struct od_schedule *s = new_schedule(2);
	struct od_schedule_item r[4];

	(void)state;
	run(s, 1, 0, false, &r[0], 0, false);
	load_all(s);
	compute(s, &r[0]); /* 0 is kept */
	run(s, 1, 0, false, &r[1], 1, false);
	run(s, 1, 0, false, &r[2], 2, true);
	assert_true(is(s, 2, 0, 0, OD_SLOT_RESIDENT)); /* 2 waits for 1, which moves */
	load_all(s);
	compute(s, &r[1]);
	assert_true(is(s, 2, 0, 2, OD_SLOT_LOADING)); /* two kept ones hold all: the greater key goes */
	assert_int_equal(od_schedule_entries(s), 2); /* for good: its next RUN will ask for it */
	assert_true(is(s, 2, 0, 0, OD_SLOT_RESIDENT));
	load_all(s);
	compute(s, &r[2]);
	run(s, 1, 0, true, &r[3], 1, true); /* comes back by itself */
	load_all(s);
	compute(s, &r[3]);
	assert_int_equal(od_schedule_entries(s), 0);
	od_schedule_free(s);
}

static void one_slot_serves_interleaved_batches(void **state)
{
	struct od_schedule *s = new_schedule(1);
	struct od_schedule_item r[4];

	(void)state;
	run(s, 1, 0, false, &r[0], 0, false);
	run(s, 1, 0, false, &r[1], 1, false);
	run(s, 1, 0, false, &r[2], 0, true);
	run(s, 1, 0, true, &r[3], 1, true);
	load_all(s);
	compute(s, &r[0]);
	compute(s, &r[2]);
	load_all(s);
	compute(s, &r[1]);
	compute(s, &r[3]);
	assert_int_equal(figures(s).c[OD_C_LOADS], 2);
	od_schedule_free(s);
}

static void steps_share_a_residency(void **state)
{
	struct od_schedule *s = new_schedule(2);
	struct od_schedule_item r[2];

	(void)state;
	run(s, 1, 0, true, &r[0], 3, true);
	WANT(s, 2, 0, 1, 3);
	load_all(s);
	compute(s, &r[0]);
	assert_true(is(s, 2, 0, 3, OD_SLOT_RESIDENT)); /* step 2 still asks */
	assert_int_equal(od_schedule_entries(s), 1);
	run(s, 2, 0, true, &r[1], 3, true);
	assert_true(r[1].ready);
	compute(s, &r[1]);
	assert_int_equal(figures(s).c[OD_C_LOADS], 1);
	assert_int_equal(figures(s).c[OD_C_UNUSED_LOADS], 0);
	assert_false(is(s, 2, 0, 3, OD_SLOT_RESIDENT)); /* no entry asks for it */
	od_schedule_free(s);
}

static void earlier_layers_displace_wants_of_later_ones(void **state)
{
	struct od_schedule *s = new_schedule(1);

	(void)state;
	WANT(s, 1, 2, 1, 0);
	WANT(s, 1, 3, 1, 1);
	assert_true(is(s, 1, 2, 0, OD_SLOT_LOADING));
	WANT(s, 1, 1, 1, 4, 0);
	assert_true(is(s, 1, 1, 4, OD_SLOT_LOADING));
	WANT(s, 1, 1, 2, 0, 4); /* another order within the layer is no reason */
	assert_true(is(s, 1, 1, 4, OD_SLOT_LOADING));
	od_schedule_free(s);
}

static void loaders_share_the_most_urgent_load(void **state)
{
	struct od_schedule *s = new_schedule(3);
	struct od_load_job a, b, c, d, e;
	struct od_schedule_item r;

	(void)state;
	WANT(s, 1, 0, 1, 0);
	assert_true(od_schedule_next_read(s, &a, false));
	run(s, 7, 2, false, &r, 1, true);
	assert_true(od_schedule_next_read(s, &b, false));
	assert_true(od_schedule_next_read(s, &c, false));
	assert_true(od_schedule_next_read(s, &d, false));
	assert_true(od_schedule_next_read(s, &e, false));
	assert_int_equal(a.expert, 0);
	assert_int_equal(b.expert, 1);
	assert_int_equal(c.expert, 1);
	assert_int_equal(d.expert, 1);
	assert_int_equal(b.slice + c.slice + d.slice, 0 + 1 + 2);
	assert_int_equal(e.expert, 0);
	assert_int_equal(od_schedule_look(s, (unsigned)b.slot).n_users, 3);
	assert_false(put(s, &d, 1));
	assert_false(put(s, &b, 2));
	assert_true(put(s, &c, 4)); /* a RUN can go on */
	compute(s, &r);
	assert_int_equal(r.loaded_bytes, 7);
	od_schedule_free(s);
}

static void reading_goes_no_further_than_the_stages(void **state)
{
	struct od_schedule *s = new_schedule(2);
	struct od_load_job job[STAGES], other;

	(void)state;
	WANT(s, 1, 0, 1, 0, 1);
	for (int i = 0; i < STAGES; i++) {
		assert_true(od_schedule_next_read(s, &job[i], false));
		for (int j = 0; j < i; j++)
			assert_int_not_equal(job[i].stage, job[j].stage);
	}
	assert_false(od_schedule_next_read(s, &other, false)); /* (1) has a shard that no thread took */
	assert_false(od_schedule_next_finish(s, &other, false));
	assert_false(od_schedule_end_job(s, &job[1], 1, OD_OK, NULL));
	assert_false(od_schedule_next_read(s, &other, false)); /* it is still in its stage */
	assert_true(od_schedule_next_finish(s, &other, false));
	assert_true(other.expert == 0 && other.slice == 1 && other.stage == job[1].stage);
	assert_false(od_schedule_next_finish(s, &job[1], false)); /* nothing is finished twice */
	assert_false(od_schedule_next_read(s, &job[1], false));
	assert_false(od_schedule_end_job(s, &other, 0, OD_OK, NULL));
	assert_true(od_schedule_next_read(s, &other, false));
	assert_true(other.expert == 1 && other.slice == SHARDS - 1 && other.stage == 1);
	od_schedule_free(s);
}

static void the_most_urgent_is_finished_first(void **state)
{
	struct od_schedule *s = new_schedule(2);
	struct od_load_job a, b, c, job;
	struct od_schedule_item r;

	(void)state;
	WANT(s, 1, 0, 1, 0);
	assert_true(od_schedule_next_read(s, &a, false) && od_schedule_next_read(s, &job, false));
	run(s, 7, 2, false, &r, 1, true);
	assert_true(od_schedule_next_read(s, &b, false));
	(void)put(s, &job, 1);
	assert_true(od_schedule_next_read(s, &c, false));
	assert_true(c.stage < b.stage); /* the first that is free, so stages are not in the order of slices */
	assert_false(od_schedule_end_job(s, &a, 1, OD_OK, NULL) || od_schedule_end_job(s, &c, 1, OD_OK, NULL) ||
		     od_schedule_end_job(s, &b, 1, OD_OK, NULL));
	assert_true(od_schedule_next_finish(s, &job, false));
	assert_true(job.expert == 1 && job.slice == 0); /* a RUN's, and its first, whatever was read first */
	assert_true(od_schedule_next_finish(s, &job, false));
	assert_true(job.expert == 1 && job.slice == 1);
	assert_true(od_schedule_next_finish(s, &job, false));
	assert_int_equal(job.expert, 0);
	od_schedule_free(s);
}

static void cancelled_loads_leave_their_stages(void **state)
{
	struct od_schedule *s = new_schedule(1);
	struct od_load_job job[SHARDS], other;
	struct od_schedule_item r;

	(void)state;
	for (uint32_t version = 1; version <= STAGES; version++) { /* more than once through all of them */
		WANT(s, 1, 3, 2 * version, 0);
		for (int i = 0; i < SHARDS; i++)
			assert_true(od_schedule_next_read(s, &job[i], false));
		assert_false(od_schedule_end_job(s, &job[0], 1, OD_OK, NULL)); /* waits for an inflater */
		assert_false(od_schedule_end_job(s, &job[1], 1, OD_OK, NULL));
		assert_true(od_schedule_next_finish(s, &other, false));
		assert_int_equal(od_schedule_want(s, SESSION, 1, 3, 2 * version + 1, NULL, 0, false), 0);
		assert_true(is(s, 1, 0, 0, OD_SLOT_DRAINING)); /* somebody reads, somebody inflates */
		assert_false(od_schedule_next_finish(s, &job[0], false));
		assert_false(od_schedule_end_job(s, &other, 0, OD_OK, NULL));
		assert_false(od_schedule_end_job(s, &job[2], 1, OD_OK, NULL));
		assert_true(is(s, 1, 0, 0, OD_SLOT_FREE));
		assert_false(od_schedule_next_finish(s, &other, false));
	}
	run(s, 1, 0, true, &r, 4, true);
	load_all(s);
	compute(s, &r);
	od_schedule_free(s);
}

/* The most rows first; among equals the order is as asked. */
static void most_rows_are_loaded_first(void **state)
{
	static const uint32_t rows[2][4] = { { 3, 3, 3, 3 }, { 1, 70, 29, 70 } };
	static const uint32_t expected[2][4] = { { 0, 1, 2, 3 }, { 1, 3, 2, 0 } };
	struct od_schedule *s = new_schedule(4);
	struct od_load_job job;

	(void)state;
	for (uint64_t step = 0; step < 2; step++) {
		struct od_schedule_item r[4];

		for (uint32_t e = 0; e < 4; e++)
			r[e] = (struct od_schedule_item){
				.expert = e, .rank = 5 + e, .last = true, .n_rows = rows[step][e]
			};
		assert_int_equal(od_schedule_run(s, SESSION, step, 0, true, r, 4), OD_OK);
		for (int i = 0; i < 4; i++) {
			for (int slice = 0; slice < SHARDS; slice++) {
				assert_true(od_schedule_next_read(s, &job, false));
				assert_int_equal(job.expert, expected[step][i]);
				(void)put(s, &job, 10);
			}
		}
		for (int i = 0; i < 4; i++)
			compute(s, &r[expected[step][i]]);
	}
	od_schedule_free(s);
}

/* Ranks that fall are another order than od-main's: it is kept. */
static void falling_ranks_are_kept(void **state)
{
	struct od_schedule_item r[3] = { { .expert = 0, .rank = 9, .last = true, .n_rows = 5 },
					 { .expert = 1, .rank = 8, .last = true, .n_rows = 1 },
					 { .expert = 2, .rank = 7, .last = true, .n_rows = 9 } };
	struct od_schedule *s = new_schedule(3);

	(void)state;
	assert_int_equal(od_schedule_run(s, SESSION, 0, 0, true, r, 3), OD_OK);
	for (uint32_t e = 3; e-- > 0;) {
		struct od_load_job job;

		for (int slice = 0; slice < SHARDS; slice++) {
			assert_true(od_schedule_next_read(s, &job, false));
			assert_int_equal(job.expert, e);
			(void)put(s, &job, 10);
		}
		compute(s, &r[e]);
	}
	od_schedule_free(s);
}

/* Two that are there run first, in their order, however many rows the others have. */
static void residents_need_no_place_in_the_order(void **state)
{
	struct od_schedule *s = new_schedule(3);
	struct od_schedule_item r[5];
	struct od_load_job job;

	(void)state;
	WANT(s, 0, 0, 1, 3, 1);
	load_all(s);
	for (uint32_t e = 0; e < 5; e++) /* the third has the most rows, the first the fewest */
		r[e] = (struct od_schedule_item){
			.expert = e, .rank = 10 + e, .last = true, .n_rows = e == 2 ? 90 : 1 + e
		};
	assert_int_equal(od_schedule_run(s, SESSION, 0, 0, true, r, 5), OD_OK);
	assert_true(od_schedule_next_read(s, &job, false));
	assert_int_equal(job.expert, 2);
	(void)put(s, &job, 10);
	compute(s, &r[1]);
	compute(s, &r[3]);
	load_all(s);
	compute(s, &r[2]);
	load_all(s);
	compute(s, &r[4]);
	compute(s, &r[0]);
	od_schedule_free(s);
}

/* A RUN of n experts, from 0 on, of so many rows each. */
static void run_many(struct od_schedule *s, uint64_t step, struct od_schedule_item *item, size_t n,
		     const uint32_t *n_rows)
{
	for (uint32_t i = 0; i < n; i++)
		item[i] = (struct od_schedule_item){
			.expert = i, .rank = i, .last = true, .n_rows = n_rows[i], .run = item
		};
	assert_int_equal(od_schedule_run(s, SESSION, step, 0, true, item, n), OD_OK);
}

static void what_is_ready_of_a_run_is_taken_together(void **state)
{
	static const uint32_t rows[] = { 2, 2, 1, 3 };
	struct od_schedule *s = new_schedule(4);
	struct od_schedule_item r[4], other[2], *got[4];

	(void)state;
	WANT(s, 1, 0, 1, 0, 2, 3);
	load_all(s);
	run_many(s, 1, r, 4, rows);
	run_many(s, 2, other, 2, rows); /* expert 0 has one copy, and another RUN wants it later */
	got[0] = od_schedule_take(s);
	assert_ptr_equal(got[0], &r[0]);
	assert_int_equal(od_schedule_take_more(s, got, 4, 5), 2); /* expert 1 is not waited for, 3 has too many rows */
	assert_ptr_equal(got[1], &r[2]);
	assert_int_equal(r[2].code, OD_OK);
	assert_true(r[2].slot >= 0 && r[2].slot != r[0].slot);
	assert_int_equal(od_schedule_take_more(s, got, 1, 9), 1);
	od_schedule_done(s, &r[0]);
	assert_int_equal(od_schedule_look(s, (unsigned)r[2].slot).state, OD_SLOT_RESIDENT); /* each by itself */
	assert_int_equal(od_schedule_look(s, (unsigned)r[2].slot).n_users, 1);
	od_schedule_done(s, &r[2]);
	assert_false(is(s, 4, 0, 2, OD_SLOT_RESIDENT));
	load_all(s);
	got[0] = od_schedule_take(s);
	assert_ptr_equal(got[0], &r[3]); /* expert 1 had to be loaded, so it comes last */
	assert_int_equal(od_schedule_take_more(s, got, 4, 1), 1); /* one that is too large for itself goes alone */
	assert_int_equal(od_schedule_take_more(s, got, 4, 5), 2);
	assert_ptr_equal(got[1], &r[1]);
	od_schedule_end(s, SESSION); /* an expert that is being computed keeps its slot */
	assert_int_equal(od_schedule_look(s, (unsigned)r[1].slot).state, OD_SLOT_DRAINING);
	assert_int_equal(od_schedule_look(s, (unsigned)r[3].slot).state, OD_SLOT_DRAINING);
	assert_int_equal(od_schedule_take_more(s, got, 4, 9), 1);
	od_schedule_done(s, &r[1]);
	od_schedule_done(s, &r[3]);
	assert_int_equal(od_schedule_look(s, (unsigned)r[1].slot).state, OD_SLOT_FREE);
	assert_int_equal(od_schedule_look(s, (unsigned)r[3].slot).state, OD_SLOT_FREE);
	od_schedule_free(s);
}

/* Each with its own reason, and nothing good among them, which would hold them up. */
static void what_failed_of_a_run_is_taken_together(void **state)
{
	static const uint32_t rows[] = { 1, 1, 1 };
	struct od_err why[] = { { OD_ERR_CORRUPT, "a checksum" }, { OD_ERR_IO, "a disk" } };
	struct od_schedule *s = new_schedule(3);
	struct od_schedule_item r[3], *got[3];
	struct od_load_job job;

	(void)state;
	WANT(s, 1, 0, 1, 2);
	load_all(s);
	run_many(s, 1, r, 3, rows);
	for (int i = 0; i < 2; i++) {
		assert_true(od_schedule_next_read(s, &job, false));
		assert_int_equal(job.expert, i);
		assert_true(od_schedule_end_job(s, &job, 0, why[i].code, &why[i]));
	}
	got[0] = od_schedule_take(s);
	assert_ptr_equal(got[0], &r[0]);
	assert_int_equal(od_schedule_take_more(s, got, 3, 0), 2);
	assert_ptr_equal(got[1], &r[1]);
	assert_int_equal(r[0].code, OD_ERR_CORRUPT);
	assert_int_equal(r[1].code, OD_ERR_IO);
	assert_string_equal(r[0].reason, "a checksum");
	assert_string_equal(r[1].reason, "a disk");
	compute(s, &r[2]);
	assert_null(od_schedule_take(s));
	od_schedule_free(s);
}

static void failed_loads_answer_runs_and_drop_wants(void **state)
{
	struct od_schedule *s = new_schedule(1);
	struct od_err why = { OD_ERR_CORRUPT, "chunk at 4096: checksum" };
	struct od_load_job a, b;
	struct od_schedule_item r, *got;

	(void)state;
	WANT(s, 2, 0, 1, 0);
	run(s, 1, 0, true, &r, 0, true);
	assert_true(od_schedule_next_read(s, &a, false));
	assert_true(od_schedule_next_read(s, &b, false));
	assert_true(od_schedule_end_job(s, &a, 0, OD_ERR_CORRUPT, &why));
	assert_int_equal(od_schedule_entries(s), 0);
	assert_true(is(s, 1, 0, 0, OD_SLOT_DRAINING)); /* the other thread is still in there */
	got = od_schedule_take(s);
	assert_ptr_equal(got, &r);
	assert_int_equal(got->code, OD_ERR_CORRUPT);
	assert_string_equal(got->reason, why.msg);
	(void)!od_schedule_end_job(s, &b, 0, OD_ERR_CORRUPT, &why);
	assert_true(is(s, 1, 0, 0, OD_SLOT_FREE));
	assert_int_equal(figures(s).c[OD_C_LOADS] + figures(s).c[OD_C_CANCELLED_LOADS], 0);
	run(s, 3, 0, true, &r, 0, true); /* tried anew */
	load_all(s);
	compute(s, &r);
	od_schedule_free(s);
}

static void full_queue_drops_wants_and_refuses_runs(void **state)
{
	struct od_schedule *s = new_schedule(1);
	const uint32_t all[EXPERTS] = { 4, 3, 2, 1, 0 };
	struct od_schedule_item many[EXPERTS], r;
	size_t n_dropped = 0;
	uint64_t step = 0;

	(void)state;
	while (n_dropped == 0) {
		for (uint32_t m = 0; m < LAYERS; m++)
			n_dropped += od_schedule_want(s, SESSION, step, m, 1, all, EXPERTS, false);
		step++;
	}
	assert_int_equal(od_schedule_entries(s), OD_MAX_ENTRIES);
	assert_int_equal(n_dropped, step * LAYERS * EXPERTS - OD_MAX_ENTRIES);
	for (uint32_t i = 0; i < EXPERTS; i++)
		many[i] = (struct od_schedule_item){ .expert = i };
	assert_int_equal(od_schedule_run(s, SESSION, step, 0, true, many, EXPERTS), OD_ERR_BUSY);
	od_schedule_close(s, SESSION, 0, 0);
	assert_int_equal(od_schedule_run(s, SESSION, step, 0, true, many, EXPERTS), OD_OK);
	assert_int_equal(od_schedule_entries(s), OD_MAX_ENTRIES);
	r = (struct od_schedule_item){ .expert = 0 };
	assert_int_equal(od_schedule_run(s, SESSION, step, 0, true, &r, 1), OD_ERR_BUSY);
	od_schedule_free(s);
}

static void session_end_drops_everything(void **state)
{
	struct od_schedule *s = new_schedule(2);
	struct od_schedule_item r[3], *computing;
	struct od_load_job job;

	(void)state;
	run(s, 1, 0, false, &r[0], 0, false);
	load_all(s);
	computing = od_schedule_take(s);
	assert_ptr_equal(computing, &r[0]);
	run(s, 1, 0, false, &r[1], 1, false);
	WANT(s, 1, 1, 1, 2);
	assert_true(od_schedule_next_read(s, &job, false));
	od_schedule_end(s, SESSION + 1); /* not ours */
	assert_int_equal(od_schedule_session(s), SESSION);
	od_schedule_end(s, SESSION);
	assert_int_equal(od_schedule_entries(s), 0);
	assert_int_equal(od_schedule_look(s, 0).state, OD_SLOT_DRAINING); /* the engine and a loader are still there */
	assert_int_equal(od_schedule_look(s, 1).state, OD_SLOT_DRAINING);
	assert_ptr_equal(od_schedule_take(s), &r[1]);
	assert_int_equal(r[1].code, OD_ERR_CANCELLED);
	od_schedule_begin(s, SESSION);
	run(s, 1, 0, true, &r[2], 4, true); /* waits until somebody leaves */
	od_schedule_done(s, computing);
	assert_true(is(s, 2, 0, 4, OD_SLOT_LOADING));
	(void)put(s, &job, 1);
	assert_int_equal(od_schedule_want(s, SESSION + 1, 1, 2, 1, (uint32_t[]){ 1 }, 1, false), 0);
	assert_int_equal(od_schedule_entries(s), 1);
	assert_int_equal(od_schedule_run(s, SESSION + 1, 1, 2, true, &r[1], 1), OD_ERR_CANCELLED);
	load_all(s);
	compute(s, &r[2]);
	od_schedule_free(s);
}

static void progress_and_busy_tell_of_work(void **state)
{
	struct od_schedule *s = new_schedule(1);
	struct od_load_job job;
	uint64_t before;

	(void)state;
	assert_false(figures(s).busy);
	WANT(s, 1, 0, 1, 0);
	assert_true(figures(s).busy);
	before = figures(s).progress;
	load_one(s, &job);
	assert_true(figures(s).progress > before);
	load_all(s);
	assert_false(figures(s).busy); /* resident, nothing to do */
	before = figures(s).progress;
	od_schedule_tick(s);
	assert_int_equal(figures(s).progress, before + 1);
	od_schedule_free(s);
}

/* Time counts while any thread has a job of a load, once however many have. */
static void time_of_loads_is_counted(void **state)
{
	struct od_schedule *s = new_schedule(2);
	struct od_load_job a, b, c;

	(void)state;
	clock_ns = 1000;
	assert_int_equal(figures(s).loading_ns, 0);
	WANT(s, 1, 0, 1, 0, 1);
	clock_ns += 10; /* nothing has begun */
	assert_true(od_schedule_next_read(s, &a, false));
	clock_ns += 100;
	assert_int_equal(figures(s).loading_ns, 100); /* while it is under way */
	assert_true(od_schedule_next_read(s, &b, false));
	clock_ns += 200;
	(void)!od_schedule_end_job(s, &a, 5, OD_OK, NULL);
	clock_ns += 400;
	assert_true(od_schedule_next_finish(s, &c, false));
	(void)!od_schedule_end_job(s, &b, 5, OD_OK, NULL);
	clock_ns += 800;
	(void)!od_schedule_end_job(s, &c, 0, OD_OK, NULL);
	clock_ns += 5000; /* no thread has one */
	assert_int_equal(figures(s).loading_ns, 1500);
	clock_ns = 0;
	od_schedule_free(s);
}

static void every_run_cancels_one_load_at_most(void **state)
{
	struct od_schedule *s = new_schedule(3);
	struct od_load_job job[3];
	struct od_schedule_item r[4];

	(void)state;
	WANT(s, 1, 3, 1, 0, 1, 2);
	for (int i = 0; i < 3; i++)
		assert_int_equal(load_one(s, &job[0]), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(load_one(s, &job[1]), 1);
	assert_true(od_schedule_next_read(s, &job[2], false)); /* 2 is being loaded */
	run(s, 2, 0, true, &r[0], 4, true);
	run(s, 3, 0, true, &r[1], 4, true); /* needs no other slot: it is the same expert */
	assert_int_equal(od_schedule_look(s, (unsigned)job[2].slot).state, OD_SLOT_DRAINING);
	assert_true(is(s, 3, 3, 0, OD_SLOT_RESIDENT));
	assert_true(is(s, 3, 3, 1, OD_SLOT_RESIDENT));
	(void)put(s, &job[2], 1);
	load_all(s);
	compute(s, &r[0]);
	compute(s, &r[1]);
	od_schedule_free(s);
}

static void a_run_of_two_cancels_two_loads(void **state)
{
	struct od_schedule *s = new_schedule(2);
	struct od_load_job job[4];
	struct od_schedule_item r[2] = { { .expert = 3, .last = true }, { .expert = 4, .last = true } };

	(void)state;
	WANT(s, 1, 3, 1, 0, 1);
	for (int i = 0; i < 4; i++)
		assert_true(od_schedule_next_read(s, &job[i], false));
	assert_int_equal(job[3].expert, 1);
	assert_int_equal(od_schedule_run(s, SESSION, 1, 0, true, r, 2), OD_OK);
	assert_int_equal(od_schedule_look(s, 0).state, OD_SLOT_DRAINING);
	assert_int_equal(od_schedule_look(s, 1).state, OD_SLOT_DRAINING);
	for (int i = 0; i < 4; i++)
		(void)put(s, &job[i], 1);
	load_all(s);
	compute(s, &r[0]);
	compute(s, &r[1]);
	od_schedule_free(s);
}

static void kept_stays_while_a_run_is_promised_a_slot(void **state)
{
	struct od_schedule *s = new_schedule(2);
	struct od_load_job job;
	struct od_schedule_item r[3];

	(void)state;
	run(s, 1, 0, false, &r[0], 0, false);
	load_all(s);
	compute(s, &r[0]); /* 0 is kept */
	WANT(s, 1, 1, 1, 1);
	assert_true(od_schedule_next_read(s, &job, false));
	run(s, 1, 0, false, &r[1], 2, true);
	run(s, 1, 0, false, &r[2], 3, true); /* 2 gets the slot that drains, so something moves */
	assert_true(is(s, 2, 0, 0, OD_SLOT_RESIDENT));
	(void)put(s, &job, 1);
	load_all(s);
	compute(s, &r[1]);
	load_all(s);
	compute(s, &r[2]);
	assert_true(is(s, 2, 0, 0, OD_SLOT_RESIDENT));
	od_schedule_free(s);
}

static void room_in_the_queue_comes_back(void **state)
{
	struct od_schedule *s = new_schedule(1);
	struct od_schedule_item r;

	(void)state;
	for (uint32_t i = 0; i < OD_MAX_ENTRIES + 10; i++) {
		run(s, 1, 0, false, &r, 0, i % 2 == 0);
		load_all(s);
		compute(s, &r);
	}
	od_schedule_free(s);
}

/* Slots of 12 bytes: experts take 6, 4, 3 and 12 of them in the four layers. */
static const uint64_t slot_bytes[LAYERS] = { 6, 4, 3, 12 };

static struct od_schedule *schedule_of_bytes(void)
{
	return new_schedule_with(4, &(struct od_schedule_opts){ .slot_bytes = slot_bytes, .slots_bytes = 12 });
}

static void as_many_as_fit_in_bytes(void **state)
{
	struct od_schedule *s = schedule_of_bytes();

	(void)state;
	WANT(s, 1, 0, 1, 0, 1, 2); /* two fit */
	assert_true(is(s, 4, 0, 0, OD_SLOT_LOADING) && is(s, 4, 0, 1, OD_SLOT_LOADING));
	assert_int_equal(od_schedule_look(s, 2).state, OD_SLOT_FREE);
	WANT(s, 1, 0, 2, 0);
	WANT(s, 1, 1, 1, 0, 1); /* one of two: 6 + 4 */
	assert_true(is(s, 4, 1, 0, OD_SLOT_LOADING));
	assert_false(is(s, 4, 1, 1, OD_SLOT_LOADING));
	od_schedule_close(s, SESSION, 1, 0);
	assert_true(is(s, 4, 1, 1, OD_SLOT_LOADING));
	WANT(s, 1, 2, 1, 0, 1, 2); /* one more, of 3: 4 + 4 + 3 */
	assert_true(is(s, 4, 2, 0, OD_SLOT_LOADING));
	od_schedule_close(s, SESSION, 1, 1);
	assert_true(is(s, 4, 2, 0, OD_SLOT_LOADING) && is(s, 4, 2, 1, OD_SLOT_LOADING) &&
		    is(s, 4, 2, 2, OD_SLOT_LOADING));
	od_schedule_free(s);
}

static void a_large_one_displaces_several(void **state)
{
	struct od_schedule *s = schedule_of_bytes();
	struct od_schedule_item item;

	(void)state;
	WANT(s, 2, 2, 1, 0, 1, 2, 3);
	load_all(s);
	WANT(s, 1, 0, 1, 0); /* 6 bytes: the last two of 3 */
	assert_true(is(s, 4, 0, 0, OD_SLOT_LOADING) && is(s, 4, 2, 0, OD_SLOT_RESIDENT) &&
		    is(s, 4, 2, 1, OD_SLOT_RESIDENT));
	assert_false(is(s, 4, 2, 2, OD_SLOT_RESIDENT));
	run(s, 1, 3, false, &item, 0, true); /* all of them */
	assert_true(is(s, 4, 3, 0, OD_SLOT_LOADING));
	assert_int_equal(figures(s).c[OD_C_UNUSED_LOADS], 4);
	load_all(s);
	compute(s, &item);
	od_schedule_free(s);
}

/* Nothing loses its slot for one that would not fit all the same. */
static void what_would_not_help_stays(void **state)
{
	struct od_schedule *s = schedule_of_bytes();
	struct od_schedule_item item[2];

	(void)state;
	run(s, 1, 1, false, &item[0], 0, true);
	WANT(s, 2, 2, 1, 0, 1);
	load_all(s);
	WANT(s, 1, 3, 1, 0); /* 12, and the RUN keeps 4 */
	assert_true(is(s, 4, 2, 0, OD_SLOT_RESIDENT) && is(s, 4, 2, 1, OD_SLOT_RESIDENT));
	run(s, 1, 3, false, &item[1], 0, true);
	assert_true(is(s, 4, 2, 0, OD_SLOT_RESIDENT) && is(s, 4, 2, 1, OD_SLOT_RESIDENT));
	compute(s, &item[0]);
	assert_true(is(s, 4, 3, 0, OD_SLOT_LOADING));
	assert_false(is(s, 4, 2, 0, OD_SLOT_RESIDENT));
	load_all(s);
	compute(s, &item[1]);
	od_schedule_free(s);
}

static void the_largest_has_to_fit(void **state)
{
	const struct od_schedule_opts o = { .n_moe = LAYERS,
					    .n_experts = EXPERTS,
					    .n_slices = SHARDS,
					    .n_slots = 4,
					    .n_stages = STAGES,
					    .slot_bytes = slot_bytes,
					    .slots_bytes = 11 };
	struct od_schedule *s;
	struct od_err err;

	(void)state;
	assert_int_equal(od_schedule_new(&s, &o, &err), OD_ERR_ARG);
	assert_null(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(run_takes_the_slot_of_a_want),
		cmocka_unit_test(run_takes_the_want_with_the_greatest_key),
		cmocka_unit_test(runs_wait_for_runs_and_go_by_key),
		cmocka_unit_test(ready_runs_go_before_loading_ones),
		cmocka_unit_test(newest_version_wins),
		cmocka_unit_test(what_prompts_load_and_do_not_use_is_counted_apart),
		cmocka_unit_test(closing_voids_wants_whenever_they_come),
		cmocka_unit_test(last_run_of_a_layer_voids_its_wants),
		cmocka_unit_test(last_frees_and_not_last_keeps),
		cmocka_unit_test(a_load_takes_no_longer_for_one_that_went_first),
		cmocka_unit_test(kept_gives_way_only_when_nothing_else_moves),
		cmocka_unit_test(one_slot_serves_interleaved_batches),
		cmocka_unit_test(steps_share_a_residency),
		cmocka_unit_test(earlier_layers_displace_wants_of_later_ones),
		cmocka_unit_test(loaders_share_the_most_urgent_load),
		cmocka_unit_test(reading_goes_no_further_than_the_stages),
		cmocka_unit_test(the_most_urgent_is_finished_first),
		cmocka_unit_test(cancelled_loads_leave_their_stages),
		cmocka_unit_test(most_rows_are_loaded_first),
		cmocka_unit_test(falling_ranks_are_kept),
		cmocka_unit_test(residents_need_no_place_in_the_order),
		cmocka_unit_test(what_is_ready_of_a_run_is_taken_together),
		cmocka_unit_test(what_failed_of_a_run_is_taken_together),
		cmocka_unit_test(failed_loads_answer_runs_and_drop_wants),
		cmocka_unit_test(full_queue_drops_wants_and_refuses_runs),
		cmocka_unit_test(session_end_drops_everything),
		cmocka_unit_test(progress_and_busy_tell_of_work),
		cmocka_unit_test(time_of_loads_is_counted),
		cmocka_unit_test(every_run_cancels_one_load_at_most),
		cmocka_unit_test(a_run_of_two_cancels_two_loads),
		cmocka_unit_test(kept_stays_while_a_run_is_promised_a_slot),
		cmocka_unit_test(room_in_the_queue_comes_back),
		cmocka_unit_test(as_many_as_fit_in_bytes),
		cmocka_unit_test(a_large_one_displaces_several),
		cmocka_unit_test(what_would_not_help_stays),
		cmocka_unit_test(the_largest_has_to_fit),
	};

	return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}

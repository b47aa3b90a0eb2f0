/* The worker's schedule: each rule by itself, then random messages against a plain model of who asks for what. */
#include "worker-node/load_schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#define SHARDS 3
#define LAYERS 4
#define EXPERTS 5
#define SESSION 77

static uint64_t clock_ns;

static uint64_t read_clock(void)
{
	return clock_ns;
}

static struct odw_schedule *new_paced_schedule(unsigned n_slots, uint64_t load_ns)
{
	const struct odw_schedule_opts opts = { .n_layers = LAYERS, .n_experts = EXPERTS, .n_shards = SHARDS,
						.n_slots = n_slots, .load_ns = load_ns, .now_ns = read_clock };
	struct odw_schedule *s;
	struct od_err err;

	assert_int_equal(odw_schedule_new(&s, &opts, &err), OD_OK);
	odw_schedule_begin(s, SESSION);
	return s;
}

static struct odw_schedule *new_schedule(unsigned n_slots)
{
	return new_paced_schedule(n_slots, 0);
}

static void want(struct odw_schedule *s, uint64_t step, uint32_t m, uint32_t version, size_t n, const uint32_t *experts)
{
	assert_int_equal(odw_schedule_want(s, SESSION, step, m, version, experts, n), 0);
}
#define WANT(s, step, m, version, ...)                                                                             \
	want(s, step, m, version, sizeof((uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t), (uint32_t[]){ __VA_ARGS__ })

static void run(struct odw_schedule *s, uint64_t step, uint32_t m, bool closes, struct odw_item *item, uint32_t expert,
		bool last)
{
	*item = (struct odw_item){ .expert = expert, .rank = expert, .last = last };
	assert_int_equal(odw_schedule_run(s, SESSION, step, m, closes, item, 1), OD_OK);
}

/* One shard taken and finished: its expert. -1: there was none. */
static int load_one(struct odw_schedule *s, struct odw_shard_job *job)
{
	if (!odw_schedule_next_shard(s, job, false))
		return -1;
	(void)!odw_schedule_finish_shard(s, job, 10, OD_OK, NULL);
	return (int)job->expert;
}

static void load_all(struct odw_schedule *s)
{
	struct odw_shard_job job;

	while (load_one(s, &job) >= 0)
		;
}

/* Is the expert in a slot, in this state? */
static bool is(struct odw_schedule *s, unsigned n_slots, uint32_t m, uint32_t expert, enum odw_slot_state state)
{
	for (unsigned i = 0; i < n_slots; i++) {
		struct odw_slot_view v = odw_schedule_look(s, i);

		if (v.state == state && (state == ODW_VOID || state == ODW_DRAINING || (v.m == m && v.expert == expert)))
			return true;
	}
	return false;
}

static void compute(struct odw_schedule *s, struct odw_item *expected)
{
	struct odw_item *item = odw_schedule_take(s);

	assert_ptr_equal(item, expected);
	assert_int_equal(item->code, OD_OK);
	odw_schedule_done(s, item);
}

static struct odw_load_figures figures(struct odw_schedule *s)
{
	struct odw_load_figures f;

	odw_schedule_figures(s, &f);
	return f;
}

/* ---- The rules ---- */

static void run_takes_the_slot_of_a_want(void **state)
{
	struct odw_schedule *s = new_schedule(1);
	struct odw_shard_job a, job;
	struct odw_item r;

	(void)state;
	WANT(s, 1, 0, 1, 2);
	assert_true(odw_schedule_next_shard(s, &a, false));
	run(s, 9, 3, true, &r, 4, true); /* later by key, but a RUN */
	assert_true(is(s, 1, 0, 0, ODW_DRAINING));
	assert_false(odw_schedule_next_shard(s, &job, false)); /* the cancelled load stops at the shard */
	assert_null(odw_schedule_take(s));
	assert_false(odw_schedule_finish_shard(s, &a, 10, OD_OK, NULL));
	assert_int_equal(figures(s).cancelled_loads, 1);
	for (int i = 0; i < SHARDS; i++)
		assert_int_equal(load_one(s, &job), 4);
	assert_int_equal(load_one(s, &job), -1);
	compute(s, &r);
	assert_false(r.ready);
	assert_int_equal(r.loaded_bytes, SHARDS * 10);
	assert_int_equal(load_one(s, &job), 2); /* the WANT comes back to its slot */
	odw_schedule_free(s);
}

static void run_takes_the_want_with_the_greatest_key(void **state)
{
	struct odw_schedule *s = new_schedule(3);
	struct odw_item r[2];

	(void)state;
	WANT(s, 2, 1, 1, 0);
	WANT(s, 1, 3, 1, 3, 1); /* rank decides: 1 is the later one */
	load_all(s);
	WANT(s, 3, 0, 1, 2); /* no room */
	assert_false(is(s, 3, 0, 2, ODW_LOADING));
	run(s, 1, 0, true, &r[0], 4, true);
	assert_true(is(s, 3, 0, 4, ODW_LOADING));
	assert_false(is(s, 3, 1, 0, ODW_RESIDENT)); /* (2, 1) was the greatest */
	run(s, 1, 1, true, &r[1], 4, true);
	assert_false(is(s, 3, 3, 1, ODW_RESIDENT));
	assert_true(is(s, 3, 3, 3, ODW_RESIDENT));
	odw_schedule_free(s);
}

static void runs_wait_for_runs_and_go_by_key(void **state)
{
	struct odw_schedule *s = new_schedule(1);
	struct odw_item r[3];

	(void)state;
	run(s, 5, 2, false, &r[0], 0, true);
	run(s, 5, 3, false, &r[1], 1, true);
	run(s, 4, 3, false, &r[2], 2, true);
	load_all(s);
	compute(s, &r[0]); /* it had the slot already */
	load_all(s);
	compute(s, &r[2]); /* an earlier step */
	assert_null(odw_schedule_take(s));
	load_all(s);
	compute(s, &r[1]);
	assert_int_equal(odw_schedule_entries(s), 0);
	assert_true(is(s, 1, 0, 0, ODW_VOID));
	odw_schedule_free(s);
}

static void ready_runs_go_before_loading_ones(void **state)
{
	struct odw_schedule *s = new_schedule(2);
	struct odw_item r[2];
	struct odw_shard_job job;

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
	odw_schedule_free(s);
}

static void newest_version_wins(void **state)
{
	struct odw_schedule *s = new_schedule(2);
	struct odw_shard_job job;

	(void)state;
	WANT(s, 1, 0, 5, 0, 1);
	assert_int_equal(load_one(s, &job), 0);
	WANT(s, 1, 0, 4, 2);	 /* older */
	WANT(s, 1, 0, 5, 3);	 /* the same */
	WANT(s, 1, 0, 6, 0, 4);	 /* 1 goes, 0 stays where it is */
	assert_int_equal(odw_schedule_entries(s), 2);
	assert_true(is(s, 2, 0, 4, ODW_LOADING));
	assert_int_equal(load_one(s, &job), 0);
	assert_int_equal(job.shard, 1); /* not begun again */
	load_all(s);
	assert_int_equal(figures(s).loads, 2);
	assert_int_equal(figures(s).cancelled_loads, 0);
	assert_int_equal(odw_schedule_want(s, SESSION, 1, 0, 7, NULL, 0), 0);
	assert_int_equal(odw_schedule_entries(s), 0);
	assert_int_equal(figures(s).unused_loads, 2);
	odw_schedule_free(s);
}

static void closing_voids_wants_whenever_they_come(void **state)
{
	struct odw_schedule *s = new_schedule(4);
	struct odw_item r;

	(void)state;
	WANT(s, 1, 0, 1, 0);
	WANT(s, 1, 1, 1, 0, 1);
	WANT(s, 1, 2, 1, 0);
	WANT(s, 2, 0, 1, 0);
	odw_schedule_close(s, SESSION, 1, 1);
	assert_int_equal(odw_schedule_entries(s), 2); /* (1, 2) and the other step's */
	WANT(s, 1, 1, 9, 3);			      /* late */
	assert_int_equal(odw_schedule_entries(s), 2);
	odw_schedule_close(s, SESSION, 1, 0); /* does not open anything again */
	WANT(s, 1, 1, 10, 3);
	assert_int_equal(odw_schedule_entries(s), 2);
	WANT(s, 2, 1, 1, 1);
	WANT(s, 2, 2, 1, 2, 3);
	run(s, 2, 2, false, &r, 3, true); /* voids up to layer 1, and its own WANT becomes the RUN */
	assert_int_equal(odw_schedule_entries(s), 3);
	WANT(s, 2, 1, 2, 1);
	assert_int_equal(odw_schedule_entries(s), 3);
	WANT(s, 2, 2, 2, 2, 4);
	assert_int_equal(odw_schedule_entries(s), 4);
	odw_schedule_close(s, SESSION, 2, 2);
	assert_int_equal(odw_schedule_entries(s), 2); /* (1, 2) and the RUN */
	odw_schedule_free(s);
}

static void last_run_of_a_layer_voids_its_wants(void **state)
{
	struct odw_schedule *s = new_schedule(2);
	struct odw_item r[2];

	(void)state;
	WANT(s, 1, 0, 1, 0, 1);
	run(s, 1, 0, false, &r[0], 1, false);
	load_all(s);
	compute(s, &r[0]);
	assert_int_equal(odw_schedule_entries(s), 2); /* kept, wanted */
	run(s, 1, 0, true, &r[1], 2, false);
	assert_int_equal(odw_schedule_entries(s), 1);
	load_all(s);
	compute(s, &r[1]);
	assert_int_equal(odw_schedule_entries(s), 0); /* nothing is kept for a closed layer */
	odw_schedule_free(s);
}

static void last_frees_and_not_last_keeps(void **state)
{
	struct odw_schedule *s = new_schedule(2);
	struct odw_item r[4];

	(void)state;
	run(s, 1, 0, false, &r[0], 0, false);
	load_all(s);
	compute(s, &r[0]);
	assert_true(is(s, 2, 0, 0, ODW_RESIDENT));
	run(s, 1, 0, false, &r[1], 0, false);
	run(s, 1, 0, false, &r[2], 0, true);
	assert_true(r[1].ready);
	compute(s, &r[1]);
	compute(s, &r[2]);
	assert_int_equal(figures(s).loads, 1);
	assert_int_equal(r[0].loaded_bytes, SHARDS * 10);
	assert_int_equal(r[1].loaded_bytes, 0); /* the first was told */
	assert_int_equal(r[1].load_ns, 0);
	assert_true(is(s, 1, 0, 0, ODW_VOID));
	run(s, 1, 0, true, &r[3], 0, true); /* self-sufficient */
	assert_false(r[3].ready);
	load_all(s);
	compute(s, &r[3]);
	odw_schedule_free(s);
}

static void kept_gives_way_only_when_nothing_else_moves(void **state)
{
	struct odw_schedule *s = new_schedule(2);
	struct odw_item r[4];

	(void)state;
	run(s, 1, 0, false, &r[0], 0, false);
	load_all(s);
	compute(s, &r[0]); /* 0 is kept */
	run(s, 1, 0, false, &r[1], 1, false);
	run(s, 1, 0, false, &r[2], 2, true);
	assert_true(is(s, 2, 0, 0, ODW_RESIDENT)); /* 2 waits for 1, which moves */
	load_all(s);
	compute(s, &r[1]);
	assert_true(is(s, 2, 0, 2, ODW_LOADING)); /* two kept ones hold all: the greater key goes */
	assert_int_equal(odw_schedule_entries(s), 2); /* for good: its next RUN will ask for it */
	assert_true(is(s, 2, 0, 0, ODW_RESIDENT));
	load_all(s);
	compute(s, &r[2]);
	run(s, 1, 0, true, &r[3], 1, true); /* comes back by itself */
	load_all(s);
	compute(s, &r[3]);
	assert_int_equal(odw_schedule_entries(s), 0);
	odw_schedule_free(s);
}

static void one_slot_serves_interleaved_batches(void **state)
{
	struct odw_schedule *s = new_schedule(1);
	struct odw_item r[4];

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
	assert_int_equal(figures(s).loads, 2);
	odw_schedule_free(s);
}

static void steps_share_a_residency(void **state)
{
	struct odw_schedule *s = new_schedule(2);
	struct odw_item r[2];

	(void)state;
	run(s, 1, 0, true, &r[0], 3, true);
	WANT(s, 2, 0, 1, 3);
	load_all(s);
	compute(s, &r[0]);
	assert_true(is(s, 2, 0, 3, ODW_RESIDENT)); /* step 2 still asks */
	assert_int_equal(odw_schedule_entries(s), 1);
	run(s, 2, 0, true, &r[1], 3, true);
	assert_true(r[1].ready);
	compute(s, &r[1]);
	assert_int_equal(figures(s).loads, 1);
	assert_int_equal(figures(s).unused_loads, 0);
	assert_false(is(s, 2, 0, 3, ODW_RESIDENT)); /* nobody does */
	odw_schedule_free(s);
}

static void earlier_layers_displace_wants_of_later_ones(void **state)
{
	struct odw_schedule *s = new_schedule(1);

	(void)state;
	WANT(s, 1, 2, 1, 0);
	WANT(s, 1, 3, 1, 1);
	assert_true(is(s, 1, 2, 0, ODW_LOADING));
	WANT(s, 1, 1, 1, 4, 0);
	assert_true(is(s, 1, 1, 4, ODW_LOADING));
	WANT(s, 1, 1, 2, 0, 4); /* another order within the layer is no reason */
	assert_true(is(s, 1, 1, 4, ODW_LOADING));
	odw_schedule_free(s);
}

static void loaders_share_the_most_urgent_load(void **state)
{
	struct odw_schedule *s = new_schedule(3);
	struct odw_shard_job a, b, c, d, e;
	struct odw_item r;

	(void)state;
	WANT(s, 1, 0, 1, 0);
	assert_true(odw_schedule_next_shard(s, &a, false));
	run(s, 7, 2, false, &r, 1, true);
	assert_true(odw_schedule_next_shard(s, &b, false));
	assert_true(odw_schedule_next_shard(s, &c, false));
	assert_true(odw_schedule_next_shard(s, &d, false));
	assert_true(odw_schedule_next_shard(s, &e, false));
	assert_int_equal(a.expert, 0);
	assert_int_equal(b.expert, 1);
	assert_int_equal(c.expert, 1);
	assert_int_equal(d.expert, 1);
	assert_int_equal(b.shard + c.shard + d.shard, 0 + 1 + 2);
	assert_int_equal(e.expert, 0);
	assert_int_equal(odw_schedule_look(s, (unsigned)b.slot).n_users, 3);
	assert_false(odw_schedule_finish_shard(s, &d, 1, OD_OK, NULL));
	assert_false(odw_schedule_finish_shard(s, &b, 2, OD_OK, NULL));
	assert_true(odw_schedule_finish_shard(s, &c, 4, OD_OK, NULL)); /* a RUN can go on */
	compute(s, &r);
	assert_int_equal(r.loaded_bytes, 7);
	odw_schedule_free(s);
}

static void failed_loads_answer_runs_and_drop_wants(void **state)
{
	struct odw_schedule *s = new_schedule(1);
	struct od_err why = { OD_ERR_CORRUPT, "chunk at 4096: checksum" };
	struct odw_shard_job a, b;
	struct odw_item r, *got;

	(void)state;
	WANT(s, 2, 0, 1, 0);
	run(s, 1, 0, true, &r, 0, true);
	assert_true(odw_schedule_next_shard(s, &a, false));
	assert_true(odw_schedule_next_shard(s, &b, false));
	assert_true(odw_schedule_finish_shard(s, &a, 0, OD_ERR_CORRUPT, &why));
	assert_int_equal(odw_schedule_entries(s), 0);
	assert_true(is(s, 1, 0, 0, ODW_DRAINING)); /* the other thread is still in there */
	got = odw_schedule_take(s);
	assert_ptr_equal(got, &r);
	assert_int_equal(got->code, OD_ERR_CORRUPT);
	assert_string_equal(got->reason, why.msg);
	(void)!odw_schedule_finish_shard(s, &b, 0, OD_ERR_CORRUPT, &why);
	assert_true(is(s, 1, 0, 0, ODW_VOID));
	assert_int_equal(figures(s).loads + figures(s).cancelled_loads, 0);
	run(s, 3, 0, true, &r, 0, true); /* tried anew */
	load_all(s);
	compute(s, &r);
	odw_schedule_free(s);
}

static void full_queue_drops_wants_and_refuses_runs(void **state)
{
	struct odw_schedule *s = new_schedule(1);
	const uint32_t all[EXPERTS] = { 4, 3, 2, 1, 0 };
	struct odw_item many[EXPERTS], r;
	size_t n_dropped = 0;
	uint64_t step = 0;

	(void)state;
	while (n_dropped == 0) {
		for (uint32_t m = 0; m < LAYERS; m++)
			n_dropped += odw_schedule_want(s, SESSION, step, m, 1, all, EXPERTS);
		step++;
	}
	assert_int_equal(odw_schedule_entries(s), ODW_MAX_ENTRIES);
	assert_int_equal(n_dropped, step * LAYERS * EXPERTS - ODW_MAX_ENTRIES);
	for (uint32_t i = 0; i < EXPERTS; i++)
		many[i] = (struct odw_item){ .expert = i };
	assert_int_equal(odw_schedule_run(s, SESSION, step, 0, true, many, EXPERTS), OD_ERR_BUSY);
	odw_schedule_close(s, SESSION, 0, 0);
	assert_int_equal(odw_schedule_run(s, SESSION, step, 0, true, many, EXPERTS), OD_OK);
	assert_int_equal(odw_schedule_entries(s), ODW_MAX_ENTRIES);
	r = (struct odw_item){ .expert = 0 };
	assert_int_equal(odw_schedule_run(s, SESSION, step, 0, true, &r, 1), OD_ERR_BUSY);
	odw_schedule_free(s);
}

static void session_end_drops_everything(void **state)
{
	struct odw_schedule *s = new_schedule(2);
	struct odw_item r[3], *computing;
	struct odw_shard_job job;

	(void)state;
	run(s, 1, 0, false, &r[0], 0, false);
	load_all(s);
	computing = odw_schedule_take(s);
	assert_ptr_equal(computing, &r[0]);
	run(s, 1, 0, false, &r[1], 1, false);
	WANT(s, 1, 1, 1, 2);
	assert_true(odw_schedule_next_shard(s, &job, false));
	odw_schedule_end(s, SESSION + 1); /* not ours */
	assert_int_equal(odw_schedule_session(s), SESSION);
	odw_schedule_end(s, SESSION);
	assert_int_equal(odw_schedule_entries(s), 0);
	assert_int_equal(odw_schedule_look(s, 0).state, ODW_DRAINING); /* the engine and a loader are still there */
	assert_int_equal(odw_schedule_look(s, 1).state, ODW_DRAINING);
	assert_ptr_equal(odw_schedule_take(s), &r[1]);
	assert_int_equal(r[1].code, OD_ERR_CANCELLED);
	odw_schedule_begin(s, SESSION);
	run(s, 1, 0, true, &r[2], 4, true); /* waits until somebody leaves */
	odw_schedule_done(s, computing);
	assert_true(is(s, 2, 0, 4, ODW_LOADING));
	(void)!odw_schedule_finish_shard(s, &job, 1, OD_OK, NULL);
	assert_int_equal(odw_schedule_want(s, SESSION + 1, 1, 2, 1, (uint32_t[]){ 1 }, 1), 0);
	assert_int_equal(odw_schedule_entries(s), 1);
	assert_int_equal(odw_schedule_run(s, SESSION + 1, 1, 2, true, &r[1], 1), OD_ERR_CANCELLED);
	load_all(s);
	compute(s, &r[2]);
	odw_schedule_free(s);
}

static void progress_and_busy_tell_of_work(void **state)
{
	struct odw_schedule *s = new_schedule(1);
	struct odw_shard_job job;
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
	odw_schedule_tick(s);
	assert_int_equal(figures(s).progress, before + 1);
	odw_schedule_free(s);
}

static void every_run_cancels_one_load_at_most(void **state)
{
	struct odw_schedule *s = new_schedule(3);
	struct odw_shard_job job[3];
	struct odw_item r[4];

	(void)state;
	WANT(s, 1, 3, 1, 0, 1, 2);
	for (int i = 0; i < 3; i++)
		assert_int_equal(load_one(s, &job[0]), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(load_one(s, &job[1]), 1);
	assert_true(odw_schedule_next_shard(s, &job[2], false)); /* 2 is being loaded */
	run(s, 2, 0, true, &r[0], 4, true);
	run(s, 3, 0, true, &r[1], 4, true); /* the same expert: needs no other slot */
	assert_int_equal(odw_schedule_look(s, (unsigned)job[2].slot).state, ODW_DRAINING);
	assert_true(is(s, 3, 3, 0, ODW_RESIDENT));
	assert_true(is(s, 3, 3, 1, ODW_RESIDENT));
	(void)!odw_schedule_finish_shard(s, &job[2], 1, OD_OK, NULL);
	load_all(s);
	compute(s, &r[0]);
	compute(s, &r[1]);
	odw_schedule_free(s);
}

static void a_run_of_two_cancels_two_loads(void **state)
{
	struct odw_schedule *s = new_schedule(2);
	struct odw_shard_job job[4];
	struct odw_item r[2] = { { .expert = 3, .last = true }, { .expert = 4, .last = true } };

	(void)state;
	WANT(s, 1, 3, 1, 0, 1);
	for (int i = 0; i < 4; i++)
		assert_true(odw_schedule_next_shard(s, &job[i], false));
	assert_int_equal(job[3].expert, 1);
	assert_int_equal(odw_schedule_run(s, SESSION, 1, 0, true, r, 2), OD_OK);
	assert_int_equal(odw_schedule_look(s, 0).state, ODW_DRAINING);
	assert_int_equal(odw_schedule_look(s, 1).state, ODW_DRAINING);
	for (int i = 0; i < 4; i++)
		(void)!odw_schedule_finish_shard(s, &job[i], 1, OD_OK, NULL);
	load_all(s);
	compute(s, &r[0]);
	compute(s, &r[1]);
	odw_schedule_free(s);
}

static void kept_stays_while_a_run_is_promised_a_slot(void **state)
{
	struct odw_schedule *s = new_schedule(2);
	struct odw_shard_job job;
	struct odw_item r[3];

	(void)state;
	run(s, 1, 0, false, &r[0], 0, false);
	load_all(s);
	compute(s, &r[0]); /* 0 is kept */
	WANT(s, 1, 1, 1, 1);
	assert_true(odw_schedule_next_shard(s, &job, false));
	run(s, 1, 0, false, &r[1], 2, true);
	run(s, 1, 0, false, &r[2], 3, true); /* 2 gets the slot that drains, so something moves */
	assert_true(is(s, 2, 0, 0, ODW_RESIDENT));
	(void)!odw_schedule_finish_shard(s, &job, 1, OD_OK, NULL);
	load_all(s);
	compute(s, &r[1]);
	load_all(s);
	compute(s, &r[2]);
	assert_true(is(s, 2, 0, 0, ODW_RESIDENT));
	odw_schedule_free(s);
}

static void room_in_the_queue_comes_back(void **state)
{
	struct odw_schedule *s = new_schedule(1);
	struct odw_item r;

	(void)state;
	for (uint32_t i = 0; i < ODW_MAX_ENTRIES + 10; i++) {
		run(s, 1, 0, false, &r, 0, i % 2 == 0);
		load_all(s);
		compute(s, &r);
	}
	odw_schedule_free(s);
}

/* ---- Random messages against a plain model ---- */

#define STEPS 3
#define MAX_ITEMS 400

/* Everything by (step, m, expert), as the rules say it. */
struct model {
	bool wanted[STEPS][LAYERS][EXPERTS], kept[STEPS][LAYERS][EXPERTS];
	int pending[STEPS][LAYERS][EXPERTS]; /* items, the one being computed included */
	uint32_t rank[STEPS][LAYERS][EXPERTS];
	int64_t version[STEPS][LAYERS];
	uint32_t closed_below[STEPS];
};

struct sim {
	struct odw_schedule *s;
	uint64_t session, seed;
	unsigned n_slots, n_loaders;
	uint64_t load_ns; /* paced, or 0 */
	bool has_job[2];
	struct odw_shard_job job[2];
	struct odw_item item[MAX_ITEMS], *computing;
	bool out[MAX_ITEMS]; /* with the schedule */
	size_t n_items;
	struct model mo;
	struct { /* what our loaders put into each slot */
		uint32_t m, expert, shards;
	} content[3];
};

static uint32_t pick(struct sim *x, uint32_t n)
{
	x->seed = x->seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(x->seed >> 33) % n;
}

static bool asked(const struct sim *x, uint32_t m, uint32_t e, bool with_kept)
{
	for (int t = 0; t < STEPS; t++) {
		if (x->mo.wanted[t][m][e] || x->mo.pending[t][m][e] > 0 || (with_kept && x->mo.kept[t][m][e]))
			return true;
	}
	return false;
}

static bool resident(struct sim *x, uint32_t m, uint32_t e)
{
	return is(x->s, x->n_slots, m, e, ODW_RESIDENT);
}

static void check(struct sim *x)
{
	size_t least = 0, most = 0, n = odw_schedule_entries(x->s);

	for (unsigned i = 0; i < x->n_slots; i++) {
		struct odw_slot_view v = odw_schedule_look(x->s, i), w;
		unsigned users = x->computing != NULL && x->computing->slot == (int)i;

		for (int j = 0; j < 2; j++)
			users += x->has_job[j] && x->job[j].slot == (int)i;
		assert_int_equal(v.n_users, users);
		if (v.state == ODW_VOID || v.state == ODW_DRAINING)
			continue;
		assert_true(v.entries > 0);
		assert_true(asked(x, v.m, v.expert, true)); /* nothing is held that nobody asked for */
		for (unsigned j = 0; j < i; j++) {
			w = odw_schedule_look(x->s, j);
			assert_false((w.state == ODW_LOADING || w.state == ODW_RESIDENT) && w.m == v.m && w.expert == v.expert);
		}
	}
	for (int t = 0; t < STEPS; t++) {
		for (int m = 0; m < LAYERS; m++) {
			for (int e = 0; e < EXPERTS; e++) {
				bool sure = x->mo.pending[t][m][e] > 0 || x->mo.wanted[t][m][e];

				least += sure;
				most += sure || x->mo.kept[t][m][e];
			}
		}
	}
	assert_in_range(n, least, most);
}

static void model_close(struct sim *x, uint32_t t, uint32_t below)
{
	if (below > x->mo.closed_below[t])
		x->mo.closed_below[t] = below;
	for (uint32_t m = 0; m < below; m++) {
		memset(x->mo.wanted[t][m], 0, sizeof(x->mo.wanted[t][m]));
		memset(x->mo.kept[t][m], 0, sizeof(x->mo.kept[t][m]));
	}
}

static void do_want(struct sim *x)
{
	uint32_t t = pick(x, STEPS), m = pick(x, LAYERS), version = pick(x, 8), n = pick(x, EXPERTS + 1), list[EXPERTS];
	bool in[EXPERTS] = { false };

	for (uint32_t i = 0; i < n; i++) {
		do
			list[i] = pick(x, EXPERTS);
		while (in[list[i]]);
		in[list[i]] = true;
	}
	assert_int_equal(odw_schedule_want(x->s, x->session, t, m, version, list, n), 0);
	if (m < x->mo.closed_below[t] || version <= x->mo.version[t][m])
		return;
	x->mo.version[t][m] = version;
	for (int e = 0; e < EXPERTS; e++)
		x->mo.wanted[t][m][e] = in[e] && x->mo.pending[t][m][e] == 0 && !x->mo.kept[t][m][e];
}

static void do_run(struct sim *x)
{
	uint32_t t = pick(x, STEPS), m = pick(x, LAYERS), n = 1 + pick(x, 3), first = (uint32_t)x->n_items;
	bool closes = pick(x, 3) == 0;

	if (x->n_items + n > MAX_ITEMS)
		return;
	for (uint32_t i = 0, e = pick(x, EXPERTS); i < n; i++, e = (e + 1) % EXPERTS) {
		if (x->mo.pending[t][m][e] == 0)
			x->mo.rank[t][m][e] = pick(x, 4);
		x->item[x->n_items++] = (struct odw_item){ .expert = e, .rank = x->mo.rank[t][m][e], .last = pick(x, 2) };
		x->mo.pending[t][m][e]++;
		x->mo.wanted[t][m][e] = x->mo.kept[t][m][e] = false;
	}
	assert_int_equal(odw_schedule_run(x->s, x->session, t, m, closes, &x->item[first], n), OD_OK);
	for (size_t i = first; i < x->n_items; i++) {
		x->out[i] = true;
		assert_int_equal(x->item[i].ready, resident(x, m, x->item[i].expert));
	}
	model_close(x, t, closes ? m + 1 : m);
}

static void do_close(struct sim *x)
{
	uint32_t t = pick(x, STEPS), m = pick(x, LAYERS);

	odw_schedule_close(x->s, x->session, t, m);
	model_close(x, t, m + 1);
}

/* Items that failed or were cancelled leave the model when they are taken. */
static void do_end(struct sim *x)
{
	odw_schedule_end(x->s, x->session);
	for (unsigned i = 0; i < x->n_slots; i++) {
		enum odw_slot_state st = odw_schedule_look(x->s, i).state;

		assert_true(st == ODW_VOID || st == ODW_DRAINING);
	}
	memset(&x->mo, 0, sizeof(x->mo));
	memset(x->mo.version, 0xff, sizeof(x->mo.version)); /* -1: none came */
	for (size_t i = 0; i < x->n_items; i++)
		x->item[i].rank = UINT32_MAX; /* of an earlier session */
	odw_schedule_begin(x->s, ++x->session);
}

static void take_shard(struct sim *x, int j)
{
	struct odw_shard_job *job = &x->job[j];
	struct odw_slot_view v;

	x->has_job[j] = odw_schedule_next_shard(x->s, job, false);
	if (!x->has_job[j])
		return;
	v = odw_schedule_look(x->s, (unsigned)job->slot);
	assert_int_equal(v.state, ODW_LOADING);
	assert_true(v.m == job->m && v.expert == job->expert && job->shard < SHARDS + (uint32_t)job->is_pace);
	assert_false(job->is_pace && x->load_ns == 0);
	assert_false(x->computing != NULL && x->computing->slot == job->slot);
	assert_false(x->has_job[!j] && x->job[!j].slot == job->slot && x->job[!j].shard == job->shard);
	if (job->shard == 0) {
		x->content[job->slot].m = job->m;
		x->content[job->slot].expert = job->expert;
		x->content[job->slot].shards = 0;
	}
	assert_true(x->content[job->slot].m == job->m && x->content[job->slot].expert == job->expert);
}

static void put_shard(struct sim *x, int j, int rc)
{
	struct od_err err = { rc, "no such luck" };
	struct odw_shard_job *job = &x->job[j];
	bool counts = odw_schedule_look(x->s, (unsigned)job->slot).state == ODW_LOADING;

	x->has_job[j] = false;
	if (!job->is_pace)
		x->content[job->slot].shards |= 1u << job->shard;
	(void)!odw_schedule_finish_shard(x->s, job, 1, rc, &err);
	if (rc == OD_OK || !counts)
		return;
	for (int t = 0; t < STEPS; t++) {
		x->mo.wanted[t][job->m][job->expert] = x->mo.kept[t][job->m][job->expert] = false;
		x->mo.pending[t][job->m][job->expert] = 0;
	}
}

static bool key_less(const struct odw_item *a, const struct odw_item *b)
{
	if (a->step != b->step)
		return a->step < b->step;
	if (a->m != b->m)
		return a->m < b->m;
	return a->rank != b->rank ? a->rank < b->rank : a->expert < b->expert;
}

/* False: there was nothing to take. */
static bool begin_compute(struct sim *x)
{
	struct odw_item *item = odw_schedule_take(x->s);

	if (item == NULL)
		return false;
	assert_true(x->out[item - x->item]);
	x->out[item - x->item] = false;
	if (item->code != OD_OK) {
		assert_true(item->code == OD_ERR_IO || (item->code == OD_ERR_CANCELLED && item->rank == UINT32_MAX));
		return true;
	}
	assert_true(item->rank != UINT32_MAX);
	assert_int_equal(x->content[item->slot].m, item->m);
	assert_int_equal(x->content[item->slot].expert, item->expert);
	assert_int_equal(x->content[item->slot].shards, (1u << SHARDS) - 1);
	for (size_t i = 0; i < x->n_items; i++) /* nothing that is ready has a smaller key */
		assert_false(x->out[i] && x->item[i].code == OD_OK && x->item[i].rank != UINT32_MAX &&
			     key_less(&x->item[i], item) && resident(x, x->item[i].m, x->item[i].expert));
	x->computing = item;
	return true;
}

static void end_compute(struct sim *x)
{
	struct odw_item *item = x->computing;
	int *pending = &x->mo.pending[item->step][item->m][item->expert];

	x->computing = NULL;
	if (item->rank != UINT32_MAX && --*pending == 0 && !item->last && item->m >= x->mo.closed_below[item->step])
		x->mo.kept[item->step][item->m][item->expert] = true;
	odw_schedule_done(x->s, item);
}

static void random_event(struct sim *x)
{
	uint32_t what = pick(x, 100);
	int j = (int)pick(x, 2);

	clock_ns++;
	if (what < 12)
		do_want(x);
	else if (what < 24)
		do_run(x);
	else if (what < 28)
		do_close(x);
	else if (what < 29)
		do_end(x);
	else if (what < 75 && x->has_job[j])
		put_shard(x, j, pick(x, 60) == 0 ? OD_ERR_IO : OD_OK);
	else if (what < 75 && (unsigned)j < x->n_loaders)
		take_shard(x, j);
	else if (what >= 75 && x->computing != NULL)
		end_compute(x);
	else if (what >= 75)
		(void)begin_compute(x);
}

/* The first (step, m) that wants it; STEPS * LAYERS: none. */
static uint32_t first_layer(const struct sim *x, uint32_t m, uint32_t e)
{
	for (uint32_t t = 0; t < STEPS; t++) {
		if (x->mo.wanted[t][m][e])
			return t * LAYERS + m;
	}
	return STEPS * LAYERS;
}

/* When all is quiet, slots hold the WANTs of the earliest layers, as many as there are. */
static void check_quiet(struct sim *x)
{
	uint32_t worst_in = 0, best_out = STEPS * LAYERS;
	size_t n_in = 0, n_asked = 0;

	for (uint32_t m = 0; m < LAYERS; m++) {
		for (uint32_t e = 0; e < EXPERTS; e++) {
			uint32_t first = first_layer(x, m, e);

			n_asked += asked(x, m, e, false);
			if (resident(x, m, e)) {
				n_in++;
				if (first < STEPS * LAYERS && !asked(x, m, e, true))
					worst_in = first > worst_in ? first : worst_in;
			} else if (first < best_out) {
				best_out = first;
			}
		}
	}
	assert_true(n_in >= (n_asked < x->n_slots ? n_asked : x->n_slots));
	assert_true(worst_in <= best_out);
}

/* Without new messages everything that was asked comes to its end. */
static void settle(struct sim *x)
{
	bool moved = true;

	for (int rounds = 0, idle = 0; idle < 2; rounds++, idle = moved ? 0 : idle + 1) {
		assert_true(rounds < 100000);
		moved = false;
		clock_ns += x->load_ns; /* twice in vain: there is nothing that only waits for its time */
		for (int j = 0; j < 2; j++) {
			if (!x->has_job[j] && x->n_loaders > 0)
				take_shard(x, j);
			if (x->has_job[j]) {
				put_shard(x, j, OD_OK);
				moved = true;
			}
		}
		if (x->computing != NULL) {
			end_compute(x);
			moved = true;
		} else if (begin_compute(x)) {
			moved = true;
		}
		check(x);
	}
	if (x->n_loaders == 0)
		return;
	for (size_t i = 0; i < x->n_items; i++)
		assert_false(x->out[i]);
	check_quiet(x);
	assert_false(figures(x->s).busy);
}

static void random_messages_against_a_model(void **state)
{
	static struct sim x;
	size_t n_run = 0, n_loads = 0, n_cancelled = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 600; seed++) {
		memset(&x, 0, sizeof(x));
		memset(x.mo.version, 0xff, sizeof(x.mo.version));
		x.seed = seed * 0x9e3779b97f4a7c15ull;
		x.n_slots = 1 + (unsigned)(seed % 3);
		x.n_loaders = seed % 10 == 0 ? 0 : 1 + (unsigned)(seed / 3 % 2);
		x.load_ns = seed % 4 == 0 ? 15 : 0;
		x.s = new_paced_schedule(x.n_slots, x.load_ns);
		x.session = SESSION;
		for (int i = 0; i < 300; i++) {
			random_event(&x);
			check(&x);
			if (i % 100 == 99)
				settle(&x);
		}
		n_run += x.n_items;
		n_loads += figures(x.s).loads;
		n_cancelled += figures(x.s).cancelled_loads;
		do_end(&x);
		settle(&x);
		odw_schedule_free(x.s);
	}
	/* The cases were worth their time. */
	assert_true(n_run > 20000 && n_loads > 10000 && n_cancelled > 1000);
}

/* ---- With real threads, for the sanitizer ---- */

static void *loader_thread(void *arg)
{
	struct odw_shard_job job;

	while (odw_schedule_next_shard(arg, &job, true))
		(void)!odw_schedule_finish_shard(arg, &job, 1, OD_OK, NULL);
	return NULL;
}

#define THREAD_RUNS 2000
static void *engine_thread(void *arg)
{
	static struct odw_item item[THREAD_RUNS];
	struct odw_item *got;
	size_t n_sent = 0, n_done = 0;

	while (n_done < THREAD_RUNS) {
		if (n_sent < THREAD_RUNS && n_sent - n_done < 8) {
			item[n_sent] = (struct odw_item){ .expert = n_sent % EXPERTS, .last = n_sent % 3 != 0 };
			assert_int_equal(odw_schedule_run(arg, SESSION, n_sent / 7, n_sent % LAYERS, n_sent % 5 == 0,
							  &item[n_sent], 1),
					 OD_OK);
			n_sent++;
		}
		got = odw_schedule_take(arg);
		if (got == NULL) {
			sched_yield();
			continue;
		}
		assert_int_equal(got->code, OD_OK);
		odw_schedule_done(arg, got);
		n_done++;
	}
	return NULL;
}

static void threads_come_to_an_end(void **state)
{
	struct odw_schedule *s = new_schedule(2);
	pthread_t loader[3], engine;
	uint32_t list[2];

	(void)state;
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&loader[i], NULL, loader_thread, s), 0);
	assert_int_equal(pthread_create(&engine, NULL, engine_thread, s), 0);
	for (uint32_t i = 0; i < THREAD_RUNS; i++) {
		list[0] = i % EXPERTS;
		list[1] = (i + 1) % EXPERTS;
		(void)odw_schedule_want(s, SESSION, i / 7, i % LAYERS, i % 4, list, 2);
		if (i % 9 == 0)
			odw_schedule_close(s, SESSION, i / 8, LAYERS - 1);
		(void)figures(s);
	}
	pthread_join(engine, NULL);
	odw_schedule_stop(s);
	for (int i = 0; i < 3; i++)
		pthread_join(loader[i], NULL);
	odw_schedule_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(run_takes_the_slot_of_a_want),
		cmocka_unit_test(run_takes_the_want_with_the_greatest_key),
		cmocka_unit_test(runs_wait_for_runs_and_go_by_key),
		cmocka_unit_test(ready_runs_go_before_loading_ones),
		cmocka_unit_test(newest_version_wins),
		cmocka_unit_test(closing_voids_wants_whenever_they_come),
		cmocka_unit_test(last_run_of_a_layer_voids_its_wants),
		cmocka_unit_test(last_frees_and_not_last_keeps),
		cmocka_unit_test(kept_gives_way_only_when_nothing_else_moves),
		cmocka_unit_test(one_slot_serves_interleaved_batches),
		cmocka_unit_test(steps_share_a_residency),
		cmocka_unit_test(earlier_layers_displace_wants_of_later_ones),
		cmocka_unit_test(loaders_share_the_most_urgent_load),
		cmocka_unit_test(failed_loads_answer_runs_and_drop_wants),
		cmocka_unit_test(full_queue_drops_wants_and_refuses_runs),
		cmocka_unit_test(session_end_drops_everything),
		cmocka_unit_test(progress_and_busy_tell_of_work),
		cmocka_unit_test(every_run_cancels_one_load_at_most),
		cmocka_unit_test(a_run_of_two_cancels_two_loads),
		cmocka_unit_test(kept_stays_while_a_run_is_promised_a_slot),
		cmocka_unit_test(room_in_the_queue_comes_back),
		cmocka_unit_test(random_messages_against_a_model),
		cmocka_unit_test(threads_come_to_an_end),
	};

	return cmocka_run_group_tests_name("load_schedule", tests, NULL, NULL);
}

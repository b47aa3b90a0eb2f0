/* schedule_world.h - for the tests of the worker's schedule: a small one with a clock of the test's own, and what
 * engine and loaders do with it. */
#ifndef OD_TESTS_SCHEDULE_WORLD_H
#define OD_TESTS_SCHEDULE_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/residency/schedule.h"

#define SHARDS 3
#define STAGES 5
#define LAYERS 4
#define EXPERTS 5
#define SESSION 77

static uint64_t clock_ns;

static inline uint64_t read_clock(void)
{
	return clock_ns;
}

/* more: what else it shall have. */
static inline struct od_schedule *new_schedule_with(unsigned n_slots, const struct od_schedule_opts *more)
{
	struct od_schedule_opts opts = *more;
	struct od_schedule *s;
	struct od_err err;

	opts.n_moe = LAYERS;
	opts.n_experts = EXPERTS;
	opts.n_slices = SHARDS;
	opts.n_slots = n_slots;
	opts.n_stages = STAGES;
	opts.now_ns = read_clock;
	assert_int_equal(od_schedule_new(&s, &opts, &err), OD_OK);
	od_schedule_begin(s, SESSION);
	return s;
}

static inline struct od_schedule *new_schedule(unsigned n_slots)
{
	return new_schedule_with(n_slots, &(struct od_schedule_opts){ 0 });
}

static inline void want(struct od_schedule *s, uint64_t step, uint32_t m, uint32_t version, size_t n,
			const uint32_t *experts)
{
	assert_int_equal(od_schedule_want(s, SESSION, step, m, version, experts, n, false), 0);
}
#define WANT(s, step, m, version, ...) \
	want(s, step, m, version, sizeof((uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t), (uint32_t[]){ __VA_ARGS__ })

static inline void run(struct od_schedule *s, uint64_t step, uint32_t m, bool closes, struct od_schedule_item *item,
		       uint32_t expert, bool last)
{
	*item = (struct od_schedule_item){ .expert = expert, .rank = expert, .last = last };
	assert_int_equal(od_schedule_run(s, SESSION, step, m, closes, item, 1), OD_OK);
}

/* Ends a read, and finishes its data at once. True: the engine has something to take. */
static inline bool put(struct od_schedule *s, const struct od_load_job *read, uint64_t bytes)
{
	struct od_load_job job;
	bool wake = od_schedule_end_job(s, read, bytes, OD_OK, NULL);

	assert_int_equal(read->kind, OD_LOAD_READ);
	if (!od_schedule_next_finish(s, &job, false))
		return wake;
	assert_int_equal(job.kind, OD_LOAD_FINISH);
	assert_true(job.slot == read->slot && job.slice == read->slice && job.stage == read->stage);
	return od_schedule_end_job(s, &job, 0, OD_OK, NULL);
}

/* One shard read and finished: its expert. -1: there was none. */
static inline int load_one(struct od_schedule *s, struct od_load_job *job)
{
	if (!od_schedule_next_read(s, job, false))
		return -1;
	(void)put(s, job, 10);
	return (int)job->expert;
}

static inline void load_all(struct od_schedule *s)
{
	struct od_load_job job;

	while (load_one(s, &job) >= 0)
		;
}

/* Is the expert in a slot, in this state? */
static inline bool is(struct od_schedule *s, unsigned n_slots, uint32_t m, uint32_t expert, enum od_slot_state state)
{
	for (unsigned i = 0; i < n_slots; i++) {
		struct od_slot_view v = od_schedule_look(s, i);

		if (v.state == state &&
		    (state == OD_SLOT_FREE || state == OD_SLOT_DRAINING || (v.m == m && v.expert == expert)))
			return true;
	}
	return false;
}

static inline void compute(struct od_schedule *s, struct od_schedule_item *expected)
{
	struct od_schedule_item *item = od_schedule_take(s);

	assert_ptr_equal(item, expected);
	assert_int_equal(item->code, OD_OK);
	od_schedule_done(s, item);
}

static inline struct od_load_figures figures(struct od_schedule *s)
{
	struct od_load_figures f;

	od_schedule_figures(s, &f);
	return f;
}

#endif

/* A watcher sees of steps only those that begin while it watches and a record is free, whole, in order; nothing
 * is written beyond a record's room. The clock is the test's. */
#include "main-node/step/timeline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define LAYERS 3
#define MOE 2

static uint64_t now_ns;

int clock_gettime(clockid_t id, struct timespec *t)
{
	(void)id;
	t->tv_sec = (time_t)(now_ns / OD_NS_PER_S);
	t->tv_nsec = (long)(now_ns % OD_NS_PER_S);
	return 0;
}

static struct odm_timeline *make(void)
{
	struct odm_timeline *t;
	struct od_err err;

	now_ns = 1000;
	assert_int_equal(odm_timeline_new(&t, LAYERS, MOE, &err), OD_OK);
	return t;
}

static struct odm_timeline_step *begin(struct odm_timeline *t, struct odm_step *s, uint64_t number)
{
	*s = (struct odm_step){ .step = number, .phase = ODM_DECODE, .n_rows = 5, .n_parts = 2 };
	s->record = odm_timeline_begin(t, s);
	return s->record;
}

static void nothing_is_recorded_unwatched(void **state)
{
	struct odm_timeline *t = make();
	struct odm_step s;

	(void)state;
	assert_null(begin(t, &s, 1));
	assert_int_equal(odm_span_begin(&s), 0);
	odm_span_end(&s, ODM_SPAN_HEAD, -1, 0);
	assert_null(odm_timeline_begin(NULL, &s));
	assert_null(odm_timeline_take(t));
	odm_timeline_free(t);
}

static void a_step_is_seen_whole(void **state)
{
	struct odm_timeline *t = make();
	struct odm_timeline_step *r;
	struct odm_step s;
	uint64_t span;

	(void)state;
	odm_timeline_watch(t, true);
	assert_non_null(begin(t, &s, 7));
	assert_null(odm_timeline_take(t)); /* it is not complete */
	now_ns = 1100;
	span = odm_span_begin(&s);
	now_ns = 1150;
	odm_span_end(&s, ODM_SPAN_SEND, 1, span);
	odm_timeline_predicted(s.record, &(struct odm_timeline_prediction){ .m = 1, .came_ns = 900, .right = 3 });
	now_ns = 2000;
	odm_timeline_end(t, s.record, 2);
	r = odm_timeline_take(t);
	assert_ptr_equal(r, s.record);
	assert_null(odm_timeline_take(t));
	assert_int_equal(r->step, 7);
	assert_int_equal(r->phase, ODM_DECODE);
	assert_int_equal(r->begin_ns, 1000);
	assert_int_equal(r->end_ns, 2000);
	assert_int_equal(r->n_rows, 5);
	assert_int_equal(r->n_texts, 2);
	assert_int_equal(r->drafted, 3);
	assert_int_equal(r->accepted, 2);
	assert_int_equal(r->n_spans, 1);
	assert_int_equal(r->span[0].what, ODM_SPAN_SEND);
	assert_int_equal(r->span[0].m, 1);
	assert_int_equal(r->span[0].begin_ns, 1100);
	assert_int_equal(r->span[0].end_ns, 1150);
	assert_int_equal(r->n_predictions, 1);
	assert_int_equal(r->prediction[0].came_ns, 900);
	assert_int_equal(r->n_answers, 0);
	odm_timeline_give(t, r);
	odm_timeline_free(t);
}

static void answers_of_a_worker_in_a_layer_are_one(void **state)
{
	const struct odm_timeline_answer answer[] = {
		{ 4, 0, 100, 200, 10, 0, 50, 1, 0 },
		{ 5, 0, 100, 210, 0, 0, 60, 2, 2 },
		{ 4, 0, 90, 220, 8, 3, 70, 1, 1 },
		{ 4, 1, 300, 400, 0, 0, 80, 1, 1 },
	};
	struct odm_timeline *t = make();
	struct odm_timeline_step *r;
	struct odm_step s;

	(void)state;
	odm_timeline_watch(t, true);
	r = begin(t, &s, 1);
	for (size_t i = 0; i < 4; i++)
		odm_timeline_answered(r, &answer[i]);
	assert_int_equal(r->n_answers, 3);
	assert_int_equal(r->answer[0].member, 4);
	assert_int_equal(r->answer[0].sent_ns, 90);
	assert_int_equal(r->answer[0].answered_ns, 220);
	assert_int_equal(r->answer[0].load_ns, 10);
	assert_int_equal(r->answer[0].wait_ns, 3);
	assert_int_equal(r->answer[0].compute_ns, 120);
	assert_int_equal(r->answer[0].experts, 2);
	assert_int_equal(r->answer[0].ready, 1);
	assert_int_equal(r->answer[1].member, 5);
	assert_int_equal(r->answer[1].experts, 2);
	assert_int_equal(r->answer[2].m, 1);
	odm_timeline_drop(t, r);
	assert_null(odm_timeline_take(t)); /* a step that was given up is not shown */
	odm_timeline_free(t);
}

/* Full records wait; steps that find none are not recorded, and the next ones are when some come back. */
static void a_slow_watcher_misses_steps(void **state)
{
	struct odm_timeline *t = make();
	struct odm_timeline_step *r;
	struct odm_step s;
	uint64_t n = 0;

	(void)state;
	odm_timeline_watch(t, true);
	while (begin(t, &s, n) != NULL) {
		odm_timeline_end(t, s.record, 0);
		n++;
		assert_true(n < 100);
	}
	assert_true(n >= ODM_TIMELINE_STEPS);
	r = odm_timeline_take(t);
	assert_int_equal(r->step, 0);
	assert_null(begin(t, &s, 50)); /* it is still read */
	odm_timeline_give(t, r);
	assert_non_null(begin(t, &s, 51));
	odm_timeline_end(t, s.record, 0);
	for (uint64_t i = 1; i < n; i++) {
		r = odm_timeline_take(t);
		assert_int_equal(r->step, i);
		odm_timeline_give(t, r);
	}
	r = odm_timeline_take(t);
	assert_int_equal(r->step, 51);
	odm_timeline_give(t, r);
	assert_null(odm_timeline_take(t));
	odm_timeline_free(t);
}

/* A later watcher sees nothing of what was recorded before. */
static void another_watcher_begins_anew(void **state)
{
	struct odm_timeline *t = make();
	struct odm_step s;

	(void)state;
	odm_timeline_watch(t, true);
	assert_non_null(begin(t, &s, 1));
	odm_timeline_end(t, s.record, 0);
	odm_timeline_watch(t, false);
	assert_null(begin(t, &s, 2));
	odm_timeline_watch(t, true);
	assert_null(odm_timeline_take(t));
	odm_timeline_free(t);
}

static void too_much_is_left_out(void **state)
{
	struct odm_timeline *t = make();
	struct odm_timeline_step *r;
	struct odm_step s;

	(void)state;
	odm_timeline_watch(t, true);
	r = begin(t, &s, 1);
	for (uint32_t i = 0; i < 1000; i++) {
		odm_span_end(&s, ODM_SPAN_HEAD, i, now_ns);
		odm_timeline_predicted(r, &(struct odm_timeline_prediction){ .m = i });
		odm_timeline_answered(r, &(struct odm_timeline_answer){ .m = i });
	}
	assert_int_equal(r->n_spans, r->most_spans);
	assert_int_equal(r->n_predictions, MOE);
	assert_int_equal(r->n_answers, MOE * ODM_TIMELINE_WORKERS);
	assert_int_equal(r->span[r->n_spans - 1].m, r->n_spans - 1); /* the first ones stay */
	odm_timeline_drop(t, r);
	odm_timeline_free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_recorded_unwatched),
		cmocka_unit_test(a_step_is_seen_whole),
		cmocka_unit_test(answers_of_a_worker_in_a_layer_are_one),
		cmocka_unit_test(a_slow_watcher_misses_steps),
		cmocka_unit_test(another_watcher_begins_anew),
		cmocka_unit_test(too_much_is_left_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

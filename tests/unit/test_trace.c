/* Traces are JSON whatever happened: several threads, odd names, merges of cut files; the clock is the test's. */
#include "common/base/trace.h"

#include "common/base/log.h"

#include "common/base/file.h"

#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/temp_dir.h"

#define NOW_NS 7000000123456ull
#define THREADS 4
#define SPANS 300 /* spans of a thread: more than a stream's buffer holds */

int clock_gettime(clockid_t id, struct timespec *t)
{
	(void)id;
	t->tv_sec = NOW_NS / OD_NS_PER_S;
	t->tv_nsec = NOW_NS % OD_NS_PER_S;
	return 0;
}

static void open_trace(const char *name, const char *process)
{
	struct od_err err;

	if (od_trace_open(name, process, &err) != OD_OK)
		fail_msg("%s", err.msg);
	assert_true(od_trace_on);
}

/* The events of a complete file. */
static json_t *close_and_load(const char *path)
{
	json_error_t why;
	struct od_err err;
	json_t *events;

	if (od_trace_close(&err) != OD_OK)
		fail_msg("%s", err.msg);
	assert_false(od_trace_on);
	events = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
	if (events == NULL)
		fail_msg("%s: line %d: %s", path, why.line, why.text);
	assert_true(json_is_array(events));
	return events;
}

static const char *name_of(const json_t *event)
{
	return json_string_value(json_object_get(event, "name"));
}

/* The name in a process_name or thread_name event. */
static const char *named(const json_t *event)
{
	return json_string_value(json_object_get(json_object_get(event, "args"), "name"));
}

static void no_trace_open(void **state)
{
	struct od_err err;

	(void)state;
	assert_int_equal(od_trace_begin(), 0);
	od_trace_end("work", 5, 1, 2, 3);
	od_trace_span("work", 5, 1, 2, 3);
	assert_int_equal(od_trace_close(&err), OD_OK);
}

static void one_span(void **state)
{
	const char *path = temp_path("one");
	json_t *events, *e, *want;

	(void)state;
	pthread_setname_np(pthread_self(), "a\"b\\c\n\xc3\xa9");
	open_trace(path, "worker \"7\"\t\x80");
	assert_true(od_trace_begin() == NOW_NS);
	od_trace_end("load", NOW_NS - 1500, 12, 3, 0);
	od_trace_end("skipped", 0, 12, 3, 0); /* began while no trace was open */
	od_trace_end("wait", NOW_NS - 2000000, -1, 3, -1);
	od_trace_end("send", NOW_NS, -1, -1, -1);
	events = close_and_load(path);
	assert_int_equal(json_array_size(events), 5);
	assert_string_equal(named(json_array_get(events, 0)), "worker _7___");
	assert_string_equal(named(json_array_get(events, 1)), "a_b_c___");
	e = json_array_get(events, 2);
	want = json_pack("{s:s, s:s, s:f, s:f, s:i, s:i, s:{s:i, s:i, s:i}}", "name", "load", "ph", "X", "ts",
			 7000000121.956, "dur", 1.5, "pid", (int)getpid(), "tid", (int)gettid(), "args", "step", 12,
			 "m", 3, "expert", 0);
	assert_non_null(want);
	assert_true(json_equal(e, want));
	json_decref(want);
	e = json_array_get(events, 3);
	assert_true(json_number_value(json_object_get(e, "dur")) == 2000);
	assert_int_equal(json_object_size(json_object_get(e, "args")), 1);
	assert_int_equal(json_integer_value(json_object_get(json_object_get(e, "args"), "m")), 3);
	e = json_array_get(events, 4);
	assert_true(json_number_value(json_object_get(e, "dur")) == 0);
	assert_int_equal(json_object_size(json_object_get(e, "args")), 0);
	json_decref(events);
}

/* A second trace of the process stands on its own: its threads have names again. */
static const char *about_text(void *arg, char *buf, size_t size)
{
	(void)buf;
	(void)size;
	return arg;
}

/* Spans name what their thread works on, unless it is nothing. */
static void spans_about_a_request(void **state)
{
	static char request[1000] = "r-1,\"r-2\\";
	const struct od_log_about a = { .key = "request", .text = about_text, .arg = request };
	const char *path = temp_path("about");
	json_t *events, *args;

	(void)state;
	open_trace(path, "worker");
	od_log_swap_about(&a);
	od_trace_end("compute", NOW_NS, 5, -1, 2);
	od_trace_end("send", NOW_NS, -1, -1, -1);
	request[0] = '\0';
	od_trace_end("wait", NOW_NS, -1, 3, -1);
	memset(request, 'x', sizeof(request) - 1);
	od_trace_end("long", NOW_NS, -1, 3, -1);
	od_log_swap_about(NULL);
	events = close_and_load(path);
	args = json_object_get(json_array_get(events, 2), "args");
	assert_string_equal(json_string_value(json_object_get(args, "request")), "r-1,_r-2_");
	assert_int_equal(json_object_size(args), 3);
	args = json_object_get(json_array_get(events, 3), "args");
	assert_string_equal(json_string_value(json_object_get(args, "request")), "r-1,_r-2_");
	assert_int_equal(json_object_size(args), 1);
	assert_null(json_object_get(json_object_get(json_array_get(events, 4), "args"), "request"));
	args = json_object_get(json_array_get(events, 5), "args");
	assert_int_equal(json_string_length(json_object_get(args, "request")), 200);
	json_decref(events);
}

static void a_second_trace(void **state)
{
	const char *path = temp_path("second");
	json_t *events;

	(void)state;
	pthread_setname_np(pthread_self(), "again");
	open_trace(path, "main");
	od_trace_end("load", 1, 1, 1, 1);
	events = close_and_load(path);
	assert_int_equal(json_array_size(events), 3);
	assert_string_equal(name_of(json_array_get(events, 1)), "thread_name");
	assert_string_equal(named(json_array_get(events, 1)), "again");
	json_decref(events);
}

static void *busy(void *arg)
{
	int64_t which = (int64_t)(intptr_t)arg;
	char name[16];

	snprintf(name, sizeof(name), "thread %d", (int)which);
	pthread_setname_np(pthread_self(), name);
	for (int64_t i = 0; i < SPANS; i++)
		od_trace_end("work", od_trace_begin(), i, which, i % 3 - 1);
	return NULL;
}

static void several_threads(void **state)
{
	const char *path = temp_path("threads");
	int64_t next[THREADS] = { 0 }, tid[THREADS] = { 0 };
	pthread_t thread[THREADS];
	json_t *events, *e;
	size_t i;

	(void)state;
	open_trace(path, "main");
	for (i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, busy, (void *)(intptr_t)i), 0);
	for (i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	events = close_and_load(path);
	assert_int_equal(json_array_size(events), 1 + THREADS * (1 + SPANS));
	json_array_foreach(events, i, e)
	{
		json_t *args = json_object_get(e, "args");
		int64_t which, id = json_integer_value(json_object_get(e, "tid"));

		if (i == 0)
			continue;
		if (strcmp(name_of(e), "thread_name") == 0) { /* once, in front of the thread's spans */
			which = named(e)[strlen("thread ")] - '0';
			assert_in_range(which, 0, THREADS - 1);
			assert_int_equal(tid[which], 0);
			tid[which] = id;
			continue;
		}
		which = json_integer_value(json_object_get(args, "m"));
		assert_int_equal(id, tid[which]);
		assert_int_equal(json_integer_value(json_object_get(args, "step")), next[which]);
		next[which]++;
	}
	for (i = 0; i < THREADS; i++)
		assert_int_equal(next[i], SPANS);
	json_decref(events);
}

/* The names of the events behind our own first one, after a merge of this text. */
static void merged(const char *text, size_t len, const char *want)
{
	const char *from = temp_path("from");
	char path[300], names[200] = "";
	struct od_err err;
	json_t *events, *e;
	size_t i;

	assert_int_equal(od_file_write_atomic(from, text, len, &err), OD_OK);
	open_trace(temp_path("into"), "main");
	snprintf(path, sizeof(path), "%s/into", temp_dir);
	assert_int_equal(od_trace_merge(temp_path("from"), &err), OD_OK);
	od_trace_span("own", 1, -1, -1, -1);
	events = close_and_load(path);
	json_array_foreach(events, i, e)
	{
		if (strcmp(name_of(e), "thread_name") != 0 && i > 0)
			snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s ", name_of(e));
	}
	assert_string_equal(names, want);
	json_decref(events);
}

static void merges(void **state)
{
	static const char whole[] = "[\n{\"name\":\"a\"},\n{\"name\":\"b\",\"args\":{}},\n{\"name\":\"c\"}\n]\n";
	static char longer[3000];
	size_t len;

	(void)state;
	merged(whole, strlen(whole), "a b c own ");
	merged("", 0, "own ");
	merged("[\n]\n", 4, "own ");
	/* A killed process's file ends anywhere; an event counts when its newline is there. */
	for (size_t cut = 0; cut < strlen(whole); cut++) {
		const char *a = strstr(whole, "},\n"), *b = strstr(a + 1, "},\n"), *c = strstr(b + 1, "}\n");

		merged(whole, cut,
		       cut >= (size_t)(c - whole) + 2 ? "a b c own " :
		       cut >= (size_t)(b - whole) + 3 ? "a b own " :
		       cut >= (size_t)(a - whole) + 3 ? "a own " :
							"own ");
	}
	/* No line of ours is that long, and what is behind its 511th byte is no event even if it looks like one. */
	len = (size_t)snprintf(longer, sizeof(longer), "[\n{\"name\":\"%*s\"},\n{\"name\":\"b\"}\n]\n", 700, "x");
	merged(longer, len, "b own ");
	len = (size_t)snprintf(longer, sizeof(longer), "[\n%*s{\"name\":\"trap\"},\n{\"name\":\"b\"}\n]\n", 511, "x");
	merged(longer, len, "b own ");
}

static void merges_that_cannot_be(void **state)
{
	struct od_err err;

	(void)state;
	open_trace(temp_path("lonely"), "main");
	assert_int_equal(od_trace_merge(temp_path("absent"), &err), OD_ERR_IO);
	assert_non_null(strstr(err.msg, "/absent: No such file or directory"));
	assert_int_equal(od_trace_merge(temp_dir, &err), OD_ERR_IO);
	assert_non_null(strstr(err.msg, "Is a directory"));
	assert_int_equal(od_trace_close(&err), OD_OK);
	assert_int_equal(od_trace_merge(temp_path("lonely"), &err), OD_OK); /* into nothing */
}

static void files_that_cannot_be_written(void **state)
{
	struct od_err err;

	(void)state;
	assert_int_equal(od_trace_open(temp_path("no/folder"), "main", &err), OD_ERR_IO);
	assert_non_null(strstr(err.msg, "cannot write the trace "));
	assert_false(od_trace_on);
	for (int spans = 0; spans < 1000; spans += 999) { /* seen when it is closed, and seen before that */
		open_trace("/dev/full", "main");
		for (int i = 0; i < spans; i++)
			od_trace_span("work", 1, i, -1, -1);
		assert_int_equal(od_trace_close(&err), OD_ERR_IO);
		assert_non_null(strstr(err.msg, "writing the trace /dev/full: "));
		assert_false(od_trace_on);
		assert_int_equal(od_trace_close(&err), OD_OK);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_trace_open),	 cmocka_unit_test(one_span),
		cmocka_unit_test(spans_about_a_request), cmocka_unit_test(a_second_trace),
		cmocka_unit_test(several_threads),	 cmocka_unit_test(merges),
		cmocka_unit_test(merges_that_cannot_be), cmocka_unit_test(files_that_cannot_be_written),
	};

	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}

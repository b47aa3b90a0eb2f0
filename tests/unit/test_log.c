/* Lines on standard error, read back through a file; the clock is the test's. */
#include "common/base/log.h"

#include "common/base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static uint64_t now_ns = 1000 * OD_NS_PER_S;

int clock_gettime(clockid_t id, struct timespec *t)
{
	(void)id;
	t->tv_sec = (time_t)(now_ns / OD_NS_PER_S);
	t->tv_nsec = (long)(now_ns % OD_NS_PER_S);
	return 0;
}

static char said[1 << 16];
static FILE *into;
static int real_stderr;

/* Everything between these two goes to said. */
static void listen_to(void)
{
	into = tmpfile();
	assert_non_null(into);
	real_stderr = dup(STDERR_FILENO);
	dup2(fileno(into), STDERR_FILENO);
}

static size_t stop_listening(void)
{
	size_t n;

	dup2(real_stderr, STDERR_FILENO);
	close(real_stderr);
	rewind(into);
	n = fread(said, 1, sizeof(said) - 1, into);
	said[n] = '\0';
	fclose(into);
	return n;
}

static void levels_and_labels(void **state)
{
	(void)state;
	od_log_init("/usr/local/bin/od-worker", OD_LOG_INFO);
	listen_to();
	od_log(OD_LOG_ERROR, "a %d", 1);
	od_log(OD_LOG_WARN, "b %s", "two");
	od_log(OD_LOG_INFO, "c");
	od_log(OD_LOG_DEBUG, "not said");
	od_log_init("plain", OD_LOG_WARN);
	od_log(OD_LOG_INFO, "not said");
	od_log(OD_LOG_WARN, "said");
	od_log_init("plain", OD_LOG_DEBUG);
	od_log(OD_LOG_DEBUG, "d");
	stop_listening();
	assert_string_equal(said, "od-worker: error: a 1\nod-worker: warning: b two\nod-worker: c\nplain: warning: said\n"
				  "plain: debug: d\n");
}

/* A line is 1023 bytes with its newline. */
static void long_lines(void **state)
{
	char text[3000];

	(void)state;
	od_log_init("p", OD_LOG_INFO);
	for (size_t len = 1000; len < 1040; len++) {
		memset(text, 'x', len);
		text[len] = '\0';
		listen_to();
		od_log(OD_LOG_INFO, "%s", text);
		if (3 + len <= 1022) {
			assert_int_equal(stop_listening(), 3 + len + 1);
			assert_int_equal(strspn(said + 3, "x"), len);
		} else {
			assert_int_equal(stop_listening(), 1023);
			assert_string_equal(said + 1017, "xx...\n");
		}
	}
}

static void a_program_called_anything(void **state)
{
	char name[3000];

	(void)state;
	memset(name, 'n', sizeof(name));
	name[sizeof(name) - 1] = '\0';
	od_log_init(name, OD_LOG_INFO);
	listen_to();
	od_log(OD_LOG_ERROR, "text");
	assert_int_equal(stop_listening(), 64 + strlen(": error: text\n"));
	assert_int_equal(strspn(said, "n"), 64);
}

static void one_event_is_one_line(void **state)
{
	(void)state;
	od_log_init("p", OD_LOG_INFO);
	listen_to();
	od_log(OD_LOG_WARN, "%s", "host\np: error: forged\r\x1b[2J\ttab \x7f ni\xc3\xb1o");
	stop_listening();
	assert_string_equal(said, "p: warning: host?p: error: forged??[2J?tab ? ni\xc3\xb1o\n");
}

static void say(int first, int n)
{
	listen_to();
	for (int i = first; i < first + n; i++)
		od_log_limited(OD_LOG_INFO, "event %d", i);
	stop_listening();
}

/* In any ten seconds, not in each of a row of tens of seconds. */
static void at_most_ten_lines_in_ten_seconds(void **state)
{
	(void)state;
	od_log_init("p", OD_LOG_INFO);
	now_ns = 2000 * OD_NS_PER_S;
	say(0, 4);
	assert_string_equal(said, "p: event 0\np: event 1\np: event 2\np: event 3\n");
	now_ns += 9 * OD_NS_PER_S;
	say(4, 10); /* six more */
	assert_string_equal(said, "p: event 4\np: event 5\np: event 6\np: event 7\np: event 8\np: event 9\n");
	now_ns += OD_NS_PER_S - 1;
	say(14, 1);
	assert_string_equal(said, "");
	now_ns += 1; /* the first four are ten seconds old, the six are one */
	say(15, 7);
	assert_string_equal(said, "p: (5 messages left out) event 15\np: event 16\np: event 17\np: event 18\n");
	now_ns += 9 * OD_NS_PER_S;
	say(22, 1);
	assert_string_equal(said, "p: (3 messages left out) event 22\n");
	now_ns += 100 * OD_NS_PER_S;
	say(23, 12);
	assert_null(strstr(said, "left out"));
	assert_null(strstr(said, "event 33"));
	assert_non_null(strstr(said, "event 32\n"));
}

/* What is not said anyway takes no room from what is, and is not left out. */
static void silent_levels_take_no_permit(void **state)
{
	(void)state;
	now_ns += 1000 * OD_NS_PER_S;
	od_log_init("p", OD_LOG_INFO);
	say(0, 1); /* those left out before */
	now_ns += 10 * OD_NS_PER_S;
	listen_to();
	for (int i = 0; i < 100; i++)
		od_log_limited(OD_LOG_DEBUG, "not said");
	od_log_limited(OD_LOG_ERROR, "first");
	stop_listening();
	assert_string_equal(said, "p: error: first\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(levels_and_labels),
		cmocka_unit_test(long_lines),
		cmocka_unit_test(a_program_called_anything),
		cmocka_unit_test(one_event_is_one_line),
		cmocka_unit_test(at_most_ten_lines_in_ten_seconds),
		cmocka_unit_test(silent_levels_take_no_permit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

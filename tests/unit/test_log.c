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
#include <jansson.h>

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
	assert_string_equal(said,
			    "od-worker: error: a 1\nod-worker: warning: b two\nod-worker: c\nplain: warning: said\n"
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

static void say_at(enum od_log_level level, int first, int n)
{
	listen_to();
	for (int i = first; i < first + n; i++)
		od_log_limited(level, "event %d", i);
	stop_listening();
}

static void say(int first, int n)
{
	say_at(OD_LOG_INFO, first, n);
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

/* A message below the log's level takes no permit from others, and is not counted as left out. */
static void silent_levels_take_no_permit(void **state)
{
	(void)state;
	now_ns += 1000 * OD_NS_PER_S;
	od_log_init("p", OD_LOG_INFO);
	say(0, 1); /* the messages left out before */
	now_ns += 10 * OD_NS_PER_S;
	say_at(OD_LOG_DEBUG, 0, 100);
	assert_string_equal(said, "");
	say_at(OD_LOG_ERROR, 100, 1);
	assert_string_equal(said, "p: error: event 100\n");
}

static void a_flood_of_one_message_hides_no_other(void **state)
{
	(void)state;
	now_ns += 1000 * OD_NS_PER_S;
	od_log_init("p", OD_LOG_INFO);
	say(0, 100);
	listen_to();
	od_log_limited(OD_LOG_WARN, "another");
	stop_listening();
	assert_string_equal(said, "p: warning: another\n");
}

/* ---- Forms ---- */

/* Everything that could begin a line, a field or an escape, and bytes that are no text. */
static const char hostile[] =
	"a\nlevel=error msg=\"x\" b\\\r\t\x1b[2J \xc2\x9b \xff\xc3: \xed\xa0\x80 \xe2\x82\xac ni\xc3\xb1o {}";
static const char harmless[] = "a?level=error msg=\"x\" b\\???[2J ?? ??: ??? \xe2\x82\xac ni\xc3\xb1o {}";

static void fields_as_key_and_value(void **state)
{
	(void)state;
	od_log_init("/bin/od-worker", OD_LOG_INFO);
	od_log_set_format(OD_LOG_KV);
	now_ns = 1700000000 * OD_NS_PER_S + 78900000;
	listen_to();
	OD_LOG_EVENT(OD_LOG_INFO, "ready", od_log_text("model", "tale-book_1.5:x"), od_log_number("ctx", 4096),
		     od_log_number("seconds", 0.125), od_log_text("empty", ""), od_log_text("none", NULL),
		     od_log_text("path", "/a b"), od_log_text("who", "worker=1"));
	od_log(OD_LOG_WARN, "%s", hostile);
	OD_LOG_EVENT(OD_LOG_DEBUG, "not said", od_log_text("a", "b"));
	OD_LOG_EVENT(OD_LOG_ERROR, "x", od_log_text("v", hostile));
	stop_listening();
	assert_string_equal(
		said,
		"ts=2023-11-14T22:13:20.078Z level=info component=od-worker msg=\"ready\" model=tale-book_1.5:x ctx=4096 "
		"seconds=0.125000 empty=\"\" none=\"\" path=\"/a b\" who=\"worker=1\"\n"
		"ts=2023-11-14T22:13:20.078Z level=warning component=od-worker msg=\"a?level=error msg=\\\"x\\\" b\\\\???[2J ?? "
		"??: ??? \xe2\x82\xac ni\xc3\xb1o {}\"\n"
		"ts=2023-11-14T22:13:20.078Z level=error component=od-worker msg=\"x\" v=\"a?level=error msg=\\\"x\\\" b\\\\???[2J ?? "
		"??: ??? \xe2\x82\xac ni\xc3\xb1o {}\"\n");
	od_log_set_format(OD_LOG_TEXT);
}

static void text_has_fields_behind(void **state)
{
	(void)state;
	od_log_init("p", OD_LOG_INFO);
	listen_to();
	OD_LOG_EVENT(OD_LOG_WARN, "cut off", od_log_text("who", "a\nb"), od_log_number("n", 3));
	stop_listening();
	assert_string_equal(said, "p: warning: cut off who=\"a?b\" n=3\n");
}

/* Read by another JSON library. */
static json_t *parse_line(void)
{
	json_error_t error;
	char *end = strchr(said, '\n');
	json_t *o;

	assert_non_null(end);
	assert_int_equal(end[1], '\0');
	o = json_loads(said, JSON_REJECT_DUPLICATES, &error);
	if (o == NULL)
		fail_msg("%s in %s", error.text, said);
	return o;
}

static void lines_are_json(void **state)
{
	static const char *const key[] = { "k", "hostile", "long" };
	char longest[5000];
	json_t *o;

	(void)state;
	memset(longest, '"', sizeof(longest));
	longest[sizeof(longest) - 1] = '\0';
	od_log_init("/bin/od-\"main\\", OD_LOG_INFO);
	od_log_set_format(OD_LOG_JSON);
	for (size_t i = 0; i < 3; i++) {
		listen_to();
		OD_LOG_EVENT(OD_LOG_ERROR, i == 2 ? longest : hostile, od_log_text(key[i], i == 2 ? longest : hostile),
			     od_log_number("n", 17), od_log_number("x", 2.5), od_log_number("no", 0.0 / 0.0));
		stop_listening();
		o = parse_line();
		assert_string_equal(json_string_value(json_object_get(o, "level")), "error");
		assert_string_equal(json_string_value(json_object_get(o, "component")), "od-\"main\\");
		assert_int_equal(json_integer_value(json_object_get(o, "n")), 17);
		assert_true(json_real_value(json_object_get(o, "x")) == 2.5 && json_is_null(json_object_get(o, "no")));
		if (i < 2) {
			assert_string_equal(json_string_value(json_object_get(o, "msg")), harmless);
			assert_string_equal(json_string_value(json_object_get(o, key[i])), harmless);
		} else { /* cut, and still whole */
			assert_int_equal(json_string_length(json_object_get(o, "msg")), 1000);
			assert_int_equal(json_string_length(json_object_get(o, "long")), 200);
		}
		json_decref(o);
	}
	od_log_set_format(OD_LOG_TEXT);
}

/* Every byte string of up to three bytes that begins beyond ASCII, and all single ones: the line stays JSON. */
static void any_bytes_are_json(void **state)
{
	(void)state;
	od_log_init("p", OD_LOG_INFO);
	od_log_set_format(OD_LOG_JSON);
	for (unsigned a = 1; a < 256; a++)
		for (unsigned b = a < 0xc0 ? 0x41 : 0x70; b < (a < 0xc0 ? 0x42u : 256u); b += 5) {
			const char text[] = { (char)a, (char)b, (char)(b ^ 0x2a), 0 };

			listen_to();
			od_log(OD_LOG_INFO, "%s", text);
			stop_listening();
			json_decref(parse_line());
		}
	od_log_set_format(OD_LOG_TEXT);
}

static void many_fields_do_not_overflow(void **state)
{
	struct od_log_field f[101] = { 0 };
	char text[400];

	(void)state;
	memset(text, '\\', sizeof(text));
	text[sizeof(text) - 1] = '\0';
	for (size_t i = 0; i < 100; i++)
		f[i] = od_log_text(i == 0 ? "first" : i == 99 ? "last" : "k", text);
	od_log_set_format(OD_LOG_KV);
	listen_to();
	od_log_event(OD_LOG_ERROR, text, f);
	stop_listening();
	assert_true(strlen(said) < 8193 && said[strlen(said) - 1] == '\n' && said[strlen(said) - 2] == '"');
	assert_non_null(strstr(said, " first="));
	assert_null(strstr(said, " last="));
	od_log_set_format(OD_LOG_TEXT);
}

static const char *about_text(void *arg, char *buf, size_t size)
{
	snprintf(buf, size, "%s", (const char *)arg);
	return buf;
}

static void lines_say_what_the_thread_works_on(void **state)
{
	struct od_log_about a = { .key = "request", .text = about_text, .arg = (void *)(uintptr_t) "r-1,r-2" };
	struct od_log_about none = { .key = "request", .text = about_text, .arg = (void *)(uintptr_t) "" };

	(void)state;
	od_log_init("p", OD_LOG_INFO);
	assert_null(od_log_swap_about(&a));
	listen_to();
	od_log(OD_LOG_INFO, "one");
	OD_LOG_EVENT(OD_LOG_INFO, "two", od_log_text("request", "r-2"), od_log_number("n", 1));
	assert_ptr_equal(od_log_swap_about(&none), &a);
	od_log(OD_LOG_INFO, "three");
	assert_ptr_equal(od_log_swap_about(NULL), &none);
	od_log(OD_LOG_INFO, "four");
	stop_listening();
	assert_string_equal(said, "p: one request=r-1,r-2\np: two request=r-2 n=1\np: three\np: four\n");
}

static void a_limit_of_its_own(void **state)
{
	struct od_log_limit l = OD_LOG_LIMIT_INIT;
	unsigned left_out, n = 0;

	(void)state;
	now_ns += 1000 * OD_NS_PER_S;
	for (int i = 0; i < 15; i++)
		n += od_log_permit(&l, &left_out);
	assert_int_equal(n, 10);
	now_ns += 11 * OD_NS_PER_S;
	assert_true(od_log_permit(&l, &left_out));
	assert_int_equal(left_out, 5);
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
		cmocka_unit_test(a_flood_of_one_message_hides_no_other),
		cmocka_unit_test(fields_as_key_and_value),
		cmocka_unit_test(text_has_fields_behind),
		cmocka_unit_test(lines_are_json),
		cmocka_unit_test(any_bytes_are_json),
		cmocka_unit_test(many_fields_do_not_overflow),
		cmocka_unit_test(lines_say_what_the_thread_works_on),
		cmocka_unit_test(a_limit_of_its_own),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Server-sent events: the examples of WHATWG HTML 9.2.6 and its rules for line ends, in every cut of bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "main-node/terminal/event_reader.h"

/* want: each event as "[data]", each comment as "(text)". */
static const struct {
	const char *stream, *want;
} cases[] = {
	{ "data: YHOO\ndata: +2\ndata: 10\n\n", "[YHOO\n+2\n10]" },
	{ ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
	  "(test stream)[first event][second event][ third event]" },
	{ "data\n\ndata\ndata\n\ndata:", "[][\n]" },
	{ "data:test\n\ndata: test\n\n", "[test][test]" },
	{ "data: a\r\ndata: b\r\n\r\n", "[a\nb]" },
	{ "data: a\r\n\r\ndata: b\r\rdata: c\n\r\n", "[a][b][c]" },
	{ "\xef\xbb\xbf"
	  "data: marked\n\n\xef\xbb\xbf"
	  "data: not at the start\n\n",
	  "[marked]" },
	{ "event: x\nretry: 5\ndata : no\nDATA: no\ndatax: no\n\n", "" },
	{ "data: {\"a\": \"b: c\"}\n\n", "[{\"a\": \"b: c\"}]" },
	{ ":\n:x\n: y\n\n\n\n", "()(x)(y)" },
	{ "data: cut off", "" },
	{ "data: cut off\n", "" },
	{ "\n\n\r\n", "" },
};

static void put(struct od_strbuf *out, const char *open, const char *text, size_t len, const char *close)
{
	od_strbuf_append(out, open, 1);
	od_strbuf_append(out, text, len);
	od_strbuf_append(out, close, 1);
}

static void on_event(void *arg, const char *data, size_t len)
{
	assert_int_equal(data[len], '\0');
	put(arg, "[", data, len, "]");
}

static void on_comment(void *arg, const char *text, size_t len)
{
	put(arg, "(", text, len, ")");
}

/* The stream in pieces that end at a, at b, and at its end. */
static void assert_read(const char *stream, const char *want, size_t a, size_t b)
{
	const size_t end[] = { 0, a, b, strlen(stream) };
	struct od_strbuf found = { 0 };
	struct odm_event_reader r = { .event = on_event, .comment = on_comment, .arg = &found };
	struct od_err err;

	for (size_t i = 0; i < 3; i++) {
		char *piece = malloc(end[i + 1] - end[i] + 1); /* so that a sanitizer sees reads beyond it */

		memcpy(piece, stream + end[i], end[i + 1] - end[i]);
		assert_int_equal(odm_event_reader_feed(&r, piece, end[i + 1] - end[i], &err), OD_OK);
		free(piece);
	}
	od_strbuf_append(&found, "", 0);
	assert_string_equal(found.text, want);
	od_strbuf_fini(&found);
	odm_event_reader_fini(&r);
}

static void examples_in_every_cut(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const size_t len = strlen(cases[i].stream);

		for (size_t a = 0; a <= len; a++)
			for (size_t b = a; b <= len; b++)
				assert_read(cases[i].stream, cases[i].want, a, b);
	}
}

static void no_end_of_a_line_or_an_event(void **state)
{
	struct od_strbuf found = { 0 };
	struct odm_event_reader r = { .event = on_event, .comment = on_comment, .arg = &found };
	char piece[4096];
	struct od_err err;
	size_t n = 0;
	int rc;

	(void)state;
	memset(piece, 'x', sizeof(piece));
	while ((rc = odm_event_reader_feed(&r, piece, sizeof(piece), &err)) == OD_OK)
		assert_true(++n <= ODM_MAX_EVENT_BYTES / sizeof(piece));
	assert_int_equal(rc, OD_ERR_RANGE);
	assert_int_equal(n, ODM_MAX_EVENT_BYTES / sizeof(piece));
	odm_event_reader_fini(&r);
	r = (struct odm_event_reader){ .event = on_event, .comment = on_comment, .arg = &found };
	memcpy(piece, "data:", 5);
	piece[sizeof(piece) - 1] = '\n';
	for (n = 0; (rc = odm_event_reader_feed(&r, piece, sizeof(piece), &err)) == OD_OK; n++)
		assert_true(n <= ODM_MAX_EVENT_BYTES / (sizeof(piece) - 5));
	assert_int_equal(rc, OD_ERR_RANGE);
	assert_non_null(strstr(err.msg, "event"));
	odm_event_reader_fini(&r);
	od_strbuf_fini(&found);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(examples_in_every_cut),
		cmocka_unit_test(no_end_of_a_line_or_an_event),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Raw texts and their meaning, by the table of tests/golden/chat/answers.json, however they are cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "main-node/chat/answer_print.h"
#include "tests/unit/answer_cases.h"

static size_t n_wrong;

static bool same_text(const struct answer_case *c, const json_t *got, const char *key, const char *expected,
		      const char *how)
{
	const char *text = json_string_value(json_object_get(got, key));

	if (text != NULL && strcmp(text, expected) == 0)
		return true;
	print_error("%s, %s: %s: expected\n%s\nfound\n%s\n", c->name, how, key, expected, text);
	return false;
}

static bool same_calls(const struct answer_case *c, const json_t *got, const char *how)
{
	char *text;

	if (json_equal(json_object_get(got, "tool_calls"), c->calls))
		return true;
	text = json_dumps(json_object_get(got, "tool_calls"), JSON_INDENT(1));
	print_error("%s, %s: calls: found\n%s\n", c->name, how, text);
	free(text);
	return false;
}

static void expect(const struct answer_case *c, const json_t *got, const char *how)
{
	const bool calls = same_calls(c, got, how), content = same_text(c, got, "content", c->content, how);

	if (!same_text(c, got, "reasoning", c->reasoning, how) || !calls || !content)
		n_wrong++;
}

static void play(const struct answer_case *c, size_t piece)
{
	const struct odm_answer_opts opts = answer_case_opts(c);
	struct od_err err;
	json_t *got;
	char how[32];

	snprintf(how, sizeof(how), "%zu bytes at a time", piece);
	assert_int_equal(odm_answer_object(&got, &opts, c->text, c->len, piece, &err), OD_OK);
	expect(c, got, how);
	json_decref(got);
}

static void test_whole(void **state)
{
	(void)state;
	for (size_t i = 0; i < answer_cases.n; i++)
		play(&answer_cases.c[i], 0);
	assert_int_equal(n_wrong, 0);
}

static void test_byte_by_byte(void **state)
{
	(void)state;
	for (size_t i = 0; i < answer_cases.n; i++)
		for (size_t piece = 1; piece <= 3; piece++)
			play(&answer_cases.c[i], piece);
	assert_int_equal(n_wrong, 0);
}

/* As odm_answer_object, in the two pieces that meet at `cut`. */
struct answer_heard {
	struct od_strbuf text[2], arguments;
	json_t *calls;
	bool in_call, check_pieces;
	size_t n_pieces; /* pieces of arguments */
};

/* JSON text that may be cut here: neither within a character nor within an escape, of which a pair of surrogates is
 * one. */
static bool json_text_whole(const char *text, size_t len)
{
	size_t i = 0;

	while (i < len) {
		const unsigned char c = (unsigned char)text[i];
		size_t n = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;

		if (c == '\\')
			n = i + 1 < len && text[i + 1] == 'u' ? 6 : 2;
		if (n == 6 && i + 4 <= len &&
		    (strncmp(text + i + 2, "d8", 2) == 0 || strncmp(text + i + 2, "D8", 2) == 0))
			n = 12;
		i += n;
	}
	return i == len;
}

static void hear_content(void *arg, const char *text, size_t len)
{
	od_strbuf_append(&((struct answer_heard *)arg)->text[0], text, len);
}

static void hear_reasoning(void *arg, const char *text, size_t len)
{
	od_strbuf_append(&((struct answer_heard *)arg)->text[1], text, len);
}

static void hear_call(void *arg, const char *name, const char *id)
{
	struct answer_heard *h = arg;

	assert_false(h->in_call);
	h->in_call = true;
	assert_int_equal(json_array_append_new(h->calls, json_pack("{s:s, s:s*}", "name", name, "id", id)), 0);
}

static void hear_arguments(void *arg, const char *text, size_t len)
{
	struct answer_heard *h = arg;

	assert_true(h->in_call && len > 0);
	h->n_pieces++;
	od_strbuf_append(&h->arguments, text, len);
	if (h->check_pieces && !json_text_whole(h->arguments.text, h->arguments.len))
		fail_msg("a piece of arguments ends within a character or an escape: %.*s", (int)h->arguments.len,
			 h->arguments.text);
}

static void hear_call_end(void *arg, bool complete)
{
	struct answer_heard *h = arg;
	json_t *o = json_array_get(h->calls, json_array_size(h->calls) - 1);

	json_t *arguments =
		json_loadb(h->arguments.text, h->arguments.len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);

	assert_true(h->in_call);
	assert_true(!complete || json_is_object(arguments));
	json_decref(arguments);
	h->in_call = false;
	assert_int_equal(
		json_object_set_new(o, "arguments",
				    json_stringn(h->arguments.len > 0 ? h->arguments.text : "", h->arguments.len)),
		0);
	od_strbuf_fini(&h->arguments);
}

/* The first len bytes of the case's text, in the two pieces that meet at `cut`; cut SIZE_MAX: byte by byte. */
static json_t *play_cut(const struct answer_case *c, size_t len, size_t cut, bool early_calls, size_t *n_pieces)
{
	struct odm_answer_opts opts = answer_case_opts(c);
	struct answer_heard h = { .calls = json_array(), .check_pieces = early_calls };
	const struct odm_answer_sink sink = {
		&h, hear_content, hear_reasoning, hear_call, hear_arguments, hear_call_end
	};
	struct odm_answer *a;
	struct od_err err;
	json_t *got;

	opts.early_calls = early_calls;
	assert_int_equal(odm_answer_new(&a, &opts, &sink, &err), OD_OK);
	for (size_t i = 0; cut == SIZE_MAX && i < len; i++)
		assert_int_equal(odm_answer_push(a, c->text + i, 1), OD_OK);
	if (cut != SIZE_MAX) {
		assert_int_equal(odm_answer_push(a, c->text, cut), OD_OK);
		assert_int_equal(odm_answer_push(a, c->text + cut, len - cut), OD_OK);
	}
	h.check_pieces = false; /* the text itself may end anywhere */
	assert_int_equal(odm_answer_finish(a), OD_OK);
	assert_true(odm_answer_over(a));
	assert_false(h.in_call);
	odm_answer_free(a);
	got = json_pack("{s:s%, s:s%, s:o}", "content", h.text[0].len > 0 ? h.text[0].text : "", h.text[0].len,
			"reasoning", h.text[1].len > 0 ? h.text[1].text : "", h.text[1].len, "tool_calls", h.calls);
	assert_non_null(got);
	od_strbuf_fini(&h.text[0]);
	od_strbuf_fini(&h.text[1]);
	*n_pieces = h.n_pieces;
	return got;
}

static void test_every_cut(void **state)
{
	char how[32];

	(void)state;
	for (size_t i = 0; i < answer_cases.n; i++)
		for (size_t cut = 0; cut <= answer_cases.c[i].len; cut++) {
			size_t n_pieces;
			json_t *got = play_cut(&answer_cases.c[i], answer_cases.c[i].len, cut, false, &n_pieces);

			snprintf(how, sizeof(how), "cut at %zu", cut);
			expect(&answer_cases.c[i], got, how);
			json_decref(got);
		}
	assert_int_equal(n_wrong, 0);
}

static size_t calls_of(const json_t *got)
{
	return json_array_size(json_object_get(got, "tool_calls"));
}

static void expect_same(const struct answer_case *c, const json_t *got, const json_t *expected, const char *how)
{
	char *text[2];

	if (json_equal(got, expected))
		return;
	text[0] = json_dumps(expected, JSON_INDENT(1));
	text[1] = json_dumps(got, JSON_INDENT(1));
	print_error("%s, %s: expected\n%s\nfound\n%s\n", c->name, how, text[0], text[1]);
	free(text[0]);
	free(text[1]);
	n_wrong++;
}

/* Calls as they are written, of any beginning of any case: what comes is the same however it is cut, and the same as of
 * complete calls, if no call that was begun turned out to be none. */
static void test_early_calls(void **state)
{
	size_t n_early = 0, n_broken = 0, n_pieces;
	char how[64];

	(void)state;
	for (size_t i = 0; i < answer_cases.n; i++)
		for (size_t len = 0; len <= answer_cases.c[i].len; len++) {
			const struct answer_case *c = &answer_cases.c[i];
			json_t *bytes, *whole;

			if (((unsigned char)c->text[len] & 0xc0) == 0x80) /* within a character */
				continue;
			bytes = play_cut(c, len, SIZE_MAX, true, &n_pieces);
			whole = play_cut(c, len, len, false, &(size_t){ 0 });

			n_early += n_pieces > calls_of(bytes);
			n_broken += calls_of(bytes) > calls_of(whole);
			snprintf(how, sizeof(how), "early calls, %zu bytes", len);
			if (calls_of(bytes) <= calls_of(whole))
				expect_same(c, bytes, whole, how);
			for (size_t cut = len == c->len ? 0 : len; cut <= len; cut++) {
				json_t *got = play_cut(c, len, cut, true, &n_pieces);

				snprintf(how, sizeof(how), "early calls, %zu bytes cut at %zu", len, cut);
				expect_same(c, got, bytes, how);
				json_decref(got);
			}
			json_decref(whole);
			json_decref(bytes);
		}
	assert_int_equal(n_wrong, 0);
	assert_true(n_early > 1000 && n_broken > 1000);
}

/* The beginning of any case is a text, too; nothing of it is lost, and how it comes changes nothing. */
static void test_every_beginning(void **state)
{
	(void)state;
	for (size_t i = 0; i < answer_cases.n; i++)
		for (size_t len = 0; len < answer_cases.c[i].len; len++) {
			const struct odm_answer_opts opts = answer_case_opts(&answer_cases.c[i]);
			struct od_err err;
			json_t *whole, *bytes;

			assert_int_equal(odm_answer_object(&whole, &opts, answer_cases.c[i].text, len, 0, &err), OD_OK);
			assert_int_equal(odm_answer_object(&bytes, &opts, answer_cases.c[i].text, len, 1, &err), OD_OK);
			if (!json_equal(whole, bytes))
				fail_msg("%s: the first %zu bytes", answer_cases.c[i].name, len);
			json_decref(whole);
			json_decref(bytes);
		}
}

/* ---- Stop strings ---- */

/* An answer as a sequence: content and reasoning, each stretch one text, and calls. */
static void note(void *arg, char kind, const char *text, size_t len)
{
	json_t *events = arg, *last = json_array_get(events, json_array_size(events) - 1),
	       *now = json_stringn(text, len);
	const char *before = json_string_value(json_object_get(last, "text"));
	char kinds[2] = { kind, '\0' };

	if (before != NULL && kind != 'n' && strcmp(json_string_value(json_object_get(last, "kind")), kinds) == 0) {
		json_t *both = json_sprintf("%s%.*s", before, (int)len, text);

		json_object_set_new(last, "text", both);
		json_decref(now);
		return;
	}
	json_array_append_new(events, json_pack("{s:s, s:o}", "kind", kinds, "text", now));
}

static void note_content(void *arg, const char *text, size_t len)
{
	note(arg, 'c', text, len);
}

static void note_reasoning(void *arg, const char *text, size_t len)
{
	note(arg, 'r', text, len);
}

static void note_call(void *arg, const char *name, const char *id)
{
	(void)id;
	note(arg, 'n', name, strlen(name));
}

static void note_arguments(void *arg, const char *text, size_t len)
{
	note(arg, 'a', text, len);
}

static void note_end(void *arg, bool complete)
{
	note(arg, 'e', complete ? "1" : "0", 1);
}

/* stop NULL: none. */
static json_t *events_of(const struct answer_case *c, size_t piece, bool early_calls, const char *stop, bool *stopped)
{
	struct odm_answer_opts opts = answer_case_opts(c);
	json_t *events = json_array();
	const struct odm_answer_sink sink = {
		events, note_content, note_reasoning, note_call, note_arguments, note_end
	};
	struct odm_answer *a;
	struct od_err err;
	size_t which;

	opts.early_calls = early_calls;
	opts.stop = &stop;
	opts.n_stop = stop != NULL;
	assert_int_equal(odm_answer_new(&a, &opts, &sink, &err), OD_OK);
	for (size_t i = 0; i < c->len; i += piece)
		assert_int_equal(odm_answer_push(a, c->text + i, piece < c->len - i ? piece : c->len - i), OD_OK);
	assert_int_equal(odm_answer_finish(a), OD_OK);
	*stopped = odm_answer_stopped(a, &which);
	odm_answer_free(a);
	return events;
}

/* Events that remain when the content ends in front of stop, in whichever stretch that is. */
static json_t *cut_at(const json_t *events, const char *stop, bool *stopped)
{
	json_t *left = json_array(), *event;
	size_t i;

	*stopped = false;
	json_array_foreach((json_t *)(uintptr_t)events, i, event)
	{
		const char *text = json_string_value(json_object_get(event, "text")), *at = strstr(text, stop);

		*stopped = strcmp(json_string_value(json_object_get(event, "kind")), "c") == 0 && at != NULL;
		if (*stopped && at > text)
			json_array_append_new(left,
					      json_pack("{s:s, s:s%}", "kind", "c", "text", text, (size_t)(at - text)));
		if (*stopped)
			break;
		json_array_append(left, event);
	}
	return left;
}

/* How many were stopped. */
static size_t try_stop(const struct answer_case *c, const char *stop)
{
	size_t n_stopped = 0;

	for (int early = 0; early < 2; early++) {
		bool ignored, expected_stop;
		json_t *whole = events_of(c, c->len + 1, early, NULL, &ignored),
		       *expected = cut_at(whole, stop, &expected_stop);

		for (size_t piece = 1; piece <= c->len; piece += c->len - 1 + (c->len == 1)) {
			bool stopped;
			json_t *got = events_of(c, piece, early, stop, &stopped);
			char how[64];

			snprintf(how, sizeof(how), "stop \"%s\", early %d, piece %zu", stop, early, piece);
			expect_same(c, got, expected, how);
			if (stopped != expected_stop)
				print_error("%s, %s: stopped %d\n", c->name, how, stopped), n_wrong++;
			n_stopped += stopped;
			json_decref(got);
		}
		json_decref(expected);
		json_decref(whole);
	}
	return n_stopped;
}

static bool begins_character(char c)
{
	return ((unsigned char)c & 0xc0) != 0x80;
}

/* Each short string of each case's text, wherever that stands: in a thought, a tag, a call, the content, or over the
 * edge of two. */
static void test_stop_strings(void **state)
{
	size_t n_stopped = 0;

	(void)state;
	for (size_t i = 0; i < answer_cases.n; i++) {
		const struct answer_case *c = &answer_cases.c[i];

		if (memchr(c->text, 0, c->len) != NULL)
			continue;
		for (size_t at = 0; at < c->len && at < 300; at++)
			for (size_t n = 1; n <= 4 && at + n <= c->len; n += 3) {
				char stop[8] = { 0 };

				memcpy(stop, c->text + at, n);
				if (begins_character(c->text[at]) &&
				    (at + n == c->len || begins_character(c->text[at + n])))
					n_stopped += try_stop(c, stop);
			}
	}
	assert_int_equal(n_wrong, 0);
	assert_true(n_stopped > 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_whole),	    cmocka_unit_test(test_byte_by_byte),
		cmocka_unit_test(test_every_cut),   cmocka_unit_test(test_every_beginning),
		cmocka_unit_test(test_early_calls), cmocka_unit_test(test_stop_strings),
	};

	return cmocka_run_group_tests(tests, answer_cases_setup, answer_cases_teardown);
}

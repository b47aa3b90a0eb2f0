/* Stop strings: what is shown must not depend on how the text arrives in pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/text/stopper.h"

struct scene {
	const char *text;
	const char *stop[4];
	const char *shown;
	bool stopped;
	size_t found; /* index into stop, if stopped */
};

static const struct scene scenes[] = {
	{ "once upon a time", { 0 }, "once upon a time", false, 0 },
	{ "once upon a time", { "upon" }, "once ", true, 0 },
	{ "once upon a time", { "time" }, "once upon a ", true, 0 },
	{ "once upon a time", { "times" }, "once upon a time", false, 0 }, /* waits in vain */
	{ "once upon", { "once" }, "", true, 0 },
	{ "User: hi\nUser: ho", { "\nUser:", "###" }, "User: hi", true, 0 },
	{ "aaaaab", { "aab" }, "aaa", true, 0 }, /* a false start inside itself */
	{ "abcabcabd", { "abcabd" }, "abc", true, 0 },
	{ "xabcd", { "abcde", "bc" }, "xa", true, 1 }, /* the shorter one inside is complete first */
	{ "xabcy", { "bc", "abc" }, "x", true, 1 }, /* both end on one byte: the longer */
	{ "xabcy", { "abc", "bc" }, "x", true, 0 },
	{ "aabaaabaaaa!", { "aabaaaa" }, "aaba", true, 0 }, /* falls back twice */
	{ "a\xe2\x82\xac"
	  "b",
	  { "\xe2\x82\xac" },
	  "a",
	  true,
	  0 },
	{ "a\xe2\x82\xac"
	  "b",
	  { "\xe2\x82\xad" },
	  "a\xe2\x82\xac"
	  "b",
	  false,
	  0 }, /* differs in the last byte */
	{ "\xf0\x9f\x90\xba\xf0\x9f\x90\xba!", { "\xf0\x9f\x90\xba!" }, "\xf0\x9f\x90\xba", true, 0 },
	{ "one\n\ntwo", { "\n\n", "two" }, "one", true, 0 },
	{ "one\n\ntwo", { "three", "two", "\n\n", "\n\n" }, "one", true, 2 },
};

static void play(const struct scene *s, size_t cut_a, size_t cut_b)
{
	size_t len = strlen(s->text), cuts[] = { 0, cut_a, cut_b, len }, n_stop = 0, at = 0, emit_len;
	struct od_stopper *st;
	struct od_err err;
	const char *emit;
	char shown[64];
	bool stopped = false;

	while (n_stop < 4 && s->stop[n_stop] != NULL)
		n_stop++;
	assert_int_equal(od_stopper_new(&st, s->stop, n_stop, &err), OD_OK);
	for (int i = 0; i <= 3; i++) {
		int rc;

		if (i < 3)
			rc = od_stopper_push(st, s->text + cuts[i], cuts[i + 1] - cuts[i], &emit, &emit_len, &stopped);
		else
			rc = od_stopper_flush(st, &emit, &emit_len);
		assert_int_equal(rc, OD_OK);
		assert_true(at + emit_len < sizeof(shown));
		memcpy(shown + at, emit, emit_len);
		at += emit_len;
	}
	shown[at] = 0;
	assert_string_equal(shown, s->shown);
	assert_int_equal(stopped, s->stopped);
	if (stopped)
		assert_int_equal(od_stopper_found(st), s->found);
	od_stopper_free(st);
}

static void every_way_to_cut(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
		size_t len = strlen(scenes[i].text);

		for (size_t a = 0; a <= len; a++)
			for (size_t b = a; b <= len; b++)
				play(&scenes[i], a, b);
	}
}

/* Text that cannot become a stop string any more is shown at once. */
static void holds_back_no_more_than_needed(void **state)
{
	static const char *const stop[] = { "stop", "top!" };
	static const struct {
		const char *piece, *emit;
	} steps[] = { { "no ", "no " }, { "s", "" },  { "to", "" }, { "x", "stox" }, { "st", "" },
		      { "a", "sta" },	{ "to", "" }, { "p", "" },  { "!", "" } };
	struct od_stopper *st;
	struct od_err err;
	const char *emit;
	size_t len;
	bool stopped;

	(void)state;
	assert_int_equal(od_stopper_new(&st, stop, 2, &err), OD_OK);
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		assert_int_equal(od_stopper_push(st, steps[i].piece, strlen(steps[i].piece), &emit, &len, &stopped),
				 OD_OK);
		assert_int_equal(len, strlen(steps[i].emit));
		assert_memory_equal(emit, steps[i].emit, len);
		assert_int_equal(stopped, i == 8);
	}
	assert_int_equal(od_stopper_push(st, "more", 4, &emit, &len, &stopped), OD_OK);
	assert_true(stopped && len == 0);
	assert_int_equal(od_stopper_flush(st, &emit, &len), OD_OK);
	assert_int_equal(len, 0);
	od_stopper_free(st);
}

static void refuses(void **state)
{
	static const char *const empty[] = { "fine", "" }, *const torn[] = { "\xe2\x82" };
	struct od_stopper *st;
	struct od_err err;

	(void)state;
	assert_int_equal(od_stopper_new(&st, empty, 2, &err), OD_ERR_ARG);
	assert_null(st);
	assert_int_equal(od_stopper_new(&st, torn, 1, &err), OD_ERR_ARG);
	assert_int_equal(od_stopper_new(&st, empty, 100000, &err), OD_ERR_ARG);
	od_stopper_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_way_to_cut),
		cmocka_unit_test(holds_back_no_more_than_needed),
		cmocka_unit_test(refuses),
	};

	return cmocka_run_group_tests_name("stopper", tests, NULL, NULL);
}

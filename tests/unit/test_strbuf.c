/* Text that grows, against plain concatenation; a failed append spoils the text, and only that one. */
#include "common/base/strbuf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void nothing_appended(void **state)
{
	struct od_strbuf b = { 0 };
	size_t len = 9;
	char *text = od_strbuf_take(&b, &len);

	(void)state;
	assert_string_equal(text, "");
	assert_int_equal(len, 0);
	free(text);
	od_strbuf_fini(&b);
}

static void grows_over_every_length(void **state)
{
	enum { N = 700 };
	static char want[N * N];
	struct od_strbuf b = { 0 };
	size_t at = 0, len;
	char *text;

	(void)state;
	for (int i = 0; i < N; i++) {
		char piece[N];
		size_t n = (size_t)(i * 37 % 300); /* 0 among them */

		for (size_t j = 0; j < n; j++)
			piece[j] = (char)(i + (int)j * 3); /* NULs too */
		memcpy(want + at, piece, n);
		at += n;
		od_strbuf_append(&b, piece, n);
		assert_int_equal(b.len, at);
		assert_int_equal(b.text[at], 0);
		at += (size_t)snprintf(want + at, N, "<%d:%s>", i, "abc");
		od_strbuf_printf(&b, "<%d:%s>", i, "abc");
		assert_true(b.cap > b.len);
	}
	text = od_strbuf_take(&b, &len);
	assert_int_equal(len, at);
	assert_memory_equal(text, want, at);
	assert_int_equal(text[at], 0);
	free(text);
	assert_null(b.text);
	assert_int_equal(b.cap, 0);
}

static void printf_longer_than_the_room(void **state)
{
	struct od_strbuf b = { 0 };
	char *text;
	size_t len;

	(void)state;
	od_strbuf_append(&b, "x", 1);
	od_strbuf_printf(&b, "%0*d", 10000, 7);
	text = od_strbuf_take(&b, &len);
	assert_int_equal(len, 10001);
	assert_int_equal(strspn(text + 1, "0"), 9999);
	assert_string_equal(text + 10000, "7");
	free(text);
}

static void failure_is_remembered(void **state)
{
	struct od_strbuf b = { 0 };
	char *text;
	size_t len = 9;

	(void)state;
	od_strbuf_append(&b, "abc", 3);
	od_strbuf_append(&b, "abc", SIZE_MAX - 2); /* 3 + this + 1 would be 2 */
	assert_true(b.failed);
	od_strbuf_append(&b, "def", 3);
	od_strbuf_printf(&b, "%d", 5);
	assert_int_equal(b.len, 3);
	assert_null(od_strbuf_take(&b, &len));
	assert_int_equal(len, 0);

	od_strbuf_append(&b, "new", 3); /* the buffer is empty, and good again */
	text = od_strbuf_take(&b, &len);
	assert_string_equal(text, "new");
	assert_int_equal(len, 3);
	free(text);

	od_strbuf_append(&b, "abc", SIZE_MAX / 4 + 1); /* with nothing in it yet */
	assert_null(od_strbuf_take(&b, &len));
}

static void fini_twice(void **state)
{
	struct od_strbuf b = { 0 };

	(void)state;
	od_strbuf_append(&b, "abc", 3);
	od_strbuf_fini(&b);
	od_strbuf_fini(&b);
	assert_null(b.text);
	assert_int_equal(b.len, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_appended),
		cmocka_unit_test(grows_over_every_length),
		cmocka_unit_test(printf_longer_than_the_room),
		cmocka_unit_test(failure_is_remembered),
		cmocka_unit_test(fini_twice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Codes are pinned: they travel on the wire and end up in scripts. Reasons are cut, never overrun. */
#include "common/base/status.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void codes_are_pinned(void **state)
{
	static const enum od_status code[] = {
		OD_OK,		OD_ERR_NOMEM,	  OD_ERR_IO,	  OD_ERR_ARG,	      OD_ERR_FORMAT,
		OD_ERR_CORRUPT, OD_ERR_RANGE,	  OD_ERR_SHAPE,	  OD_ERR_UNSUPPORTED, OD_ERR_MISMATCH,
		OD_ERR_BUSY,	OD_ERR_CANCELLED, OD_ERR_TIMEOUT, OD_ERR_UNREACHABLE, OD_ERR_PROTOCOL,
		OD_ERR_MISSING, OD_ERR_INTERNAL,
	};

	(void)state;
	for (int i = 0; i < 17; i++) {
		assert_int_equal(code[i], -i);
		assert_string_not_equal(od_status_text(-i), "unknown status");
		for (int j = 0; j < i; j++)
			assert_string_not_equal(od_status_text(-i), od_status_text(-j));
	}
	assert_string_equal(od_status_text(1), "unknown status");
	assert_string_equal(od_status_text(-17), "unknown status");
	assert_string_equal(od_status_text(INT32_MIN), "unknown status");
}

static void reasons(void **state)
{
	struct od_err err;

	(void)state;
	assert_int_equal(od_fail(&err, OD_ERR_SHAPE, "%s has %d", "x", 3), OD_ERR_SHAPE);
	assert_int_equal(err.code, OD_ERR_SHAPE);
	assert_string_equal(err.msg, "x has 3");
	assert_int_equal(od_fail_within(&err, "pack %d", 7), OD_ERR_SHAPE);
	assert_string_equal(err.msg, "pack 7: x has 3");
	assert_int_equal(err.code, OD_ERR_SHAPE);
	errno = ENOENT;
	assert_int_equal(od_fail_errno(&err, OD_ERR_IO, "no %s", "way"), OD_ERR_IO);
	assert_string_equal(err.msg, "no way: No such file or directory");
	assert_int_equal(od_fail(NULL, OD_ERR_BUSY, "x"), OD_ERR_BUSY);
	assert_int_equal(od_fail_errno(NULL, OD_ERR_IO, "x"), OD_ERR_IO);
	assert_int_equal(od_fail_within(NULL, "x"), OD_ERR_INTERNAL);
}

static void long_reasons_are_cut(void **state)
{
	struct {
		struct od_err err;
		char guard[3000];
	} e;
	char text[2000];

	(void)state;
	memset(&e, 'g', sizeof(e));
	memset(text, 't', sizeof(text));
	text[sizeof(text) - 1] = '\0';
	assert_int_equal(od_fail(&e.err, OD_ERR_IO, "%s", text), OD_ERR_IO);
	assert_int_equal(strlen(e.err.msg), sizeof(e.err.msg) - 1);
	assert_int_equal(od_fail_within(&e.err, "front"), OD_ERR_IO);
	assert_int_equal(strlen(e.err.msg), sizeof(e.err.msg) - 1);
	assert_memory_equal(e.err.msg, "front: ttt", 10);
	errno = EIO;
	assert_int_equal(od_fail_errno(&e.err, OD_ERR_IO, "%s", text), OD_ERR_IO);
	assert_int_equal(strspn(e.err.msg, "t"), sizeof(e.err.msg) - 1);
	text[sizeof(e.err.msg) - 3] = '\0'; /* the suffix begins within and ends without */
	assert_int_equal(od_fail_errno(&e.err, OD_ERR_IO, "%s", text), OD_ERR_IO);
	assert_int_equal(strlen(e.err.msg), sizeof(e.err.msg) - 1);
	assert_string_equal(e.err.msg + sizeof(e.err.msg) - 3, ": ");
	for (size_t i = 0; i < sizeof(e.guard); i++)
		assert_int_equal(e.guard[i], 'g');
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(codes_are_pinned),
		cmocka_unit_test(reasons),
		cmocka_unit_test(long_reasons_are_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "tests/bench/live/recall_progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define S 1000000000ull

static void assert_text(uint64_t done, uint64_t all, uint64_t elapsed_ns, const char *expected)
{
	char buf[128];

	recall_progress_text(buf, sizeof(buf), done, all, elapsed_ns);
	assert_string_equal(buf, expected);
}

static void the_time_left_is_that_of_what_is_left(void **state)
{
	(void)state;
	assert_text(0, 30, 5 * S, "[------------------------------]   0 %");
	assert_text(10, 30, 40 * S, "[##########--------------------]  33 %, 1:20 left");
	assert_text(29, 30, 58 * S, "[#############################-]  96 %, 0:02 left");
	assert_text(30, 30, 60 * S, "[##############################] 100 %, 0:00 left");
	assert_text(1, 1000, 36 * S, "[------------------------------]   0 %, 599:24 left");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_time_left_is_that_of_what_is_left),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The rate of a download, with its own clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "deploy/rate.h"

#define S UINT64_C(1000000000)
#define MB UINT64_C(1000000)

static void test_a_resumed_download(void **state)
{
	struct odp_rate r = { 0 };
	uint64_t done = 0, now = 5 * S;
	double rate = 0;

	(void)state;
	assert_true(odp_rate_add(&r, now, done) == 0);
	/* 60 GB that are there are read with 300 MB/s, then the line brings 2 MB/s. */
	for (int i = 0; i < 200; i++)
		rate = odp_rate_add(&r, now += S, done += 300 * MB);
	assert_float_equal(rate, 300e6, 1);
	for (int i = 0; i < 31; i++)
		rate = odp_rate_add(&r, now += S, done += 2 * MB);
	assert_float_equal(rate, 2e6, 1);
	/* The connection is away for ten minutes; half a minute later that is forgotten, too. */
	rate = odp_rate_add(&r, now += 600 * S, done += 2 * MB);
	assert_true(rate < 1e5);
	for (int i = 0; i < 31; i++)
		rate = odp_rate_add(&r, now += S, done += 2 * MB);
	assert_float_equal(rate, 2e6, 1);
	/* The part that was there did not belong to the file. */
	assert_true(odp_rate_add(&r, now += S, 5) == 0);
	assert_float_equal(odp_rate_add(&r, now + S, 5 + 3 * MB), 3e6, 1);
}

static void test_time_left(void **state)
{
	static const struct {
		double rate;
		uint64_t bytes;
		const char *text;
	} cases[] = {
		{ 1e6, 0, "0:00" },
		{ 1e6, 59 * MB, "0:59" },
		{ 1e6, 3599 * MB, "59:59" },
		{ 1e6, 3600 * MB, "1:00:00" },
		{ 1e6, 100000 * MB, "27:46:40" },
		{ 1e6, 1000000 * MB, "?" },
		{ 0, 5, "?" },
		{ 1e-9, INT64_MAX, "?" },
	};
	char text[16];

	(void)state;
	odp_rate_text(0, text, sizeof(text));
	assert_string_equal(text, "0 kB/s");
	odp_rate_text(25.4e3, text, sizeof(text));
	assert_string_equal(text, "25 kB/s");
	odp_rate_text(2.54e6, text, sizeof(text));
	assert_string_equal(text, "2.5 MB/s");
	odp_rate_text(1e15, text, sizeof(text));
	assert_string_equal(text, "1000000000 MB/s");
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		odp_rate_left(cases[i].rate, cases[i].bytes, text, sizeof(text));
		assert_string_equal(text, cases[i].text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_resumed_download),
		cmocka_unit_test(test_time_left),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The names that git gives to contents: one of the book Pro Git, the others of Python's hashlib. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/pack/sums.h"
#include "deploy/hub/git_sum.h"

static void expect_sum(const uint8_t *bytes, size_t n, size_t piece, const char *hex)
{
	struct odp_git_sum s;
	uint8_t sum[ODP_GIT_SUM_BYTES];
	char found[2 * ODP_GIT_SUM_BYTES + 1];

	odp_git_sum_init(&s, n);
	for (size_t at = 0; at < n; at += piece)
		odp_git_sum_update(&s, bytes + at, piece < n - at ? piece : n - at);
	odp_git_sum_final(&s, sum);
	od_hex(sum, sizeof(sum), found);
	assert_string_equal(found, hex);
}

static void test_of_known_contents(void **state)
{
	static const struct {
		size_t n;
		const char *hex;
	} cases[] = {
		{ 0, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391" },
		{ 1, "fc2b5693e00bdbea3f74ac60459b1df43c295356" },
		{ 54, "6842576437f7724a8b0b2f35c2ab71c8688f0442" },
		{ 55, "038186c00ebb93085677731203cbb88513d5e02b" },
		{ 56, "c013b05b59e9caf36e73e191bfd526a03485a23d" },
		{ 63, "51d532d8ca26803b6bf2675511a31db230b19c31" },
		{ 64, "35cb9b06ff2d0481a8904db781ce9101997acee9" },
		{ 65, "1090134147ca2b67e90797f415ed684a3cac45d5" },
		{ 119, "230e404e6bfee782cff93264b5c53980464c4737" },
		{ 1000, "d71af1ca89db590b23da93119eac26d725adf093" },
		{ 100000, "d4dea3f0223df5241b578c8c9a75b6d0de0d1b17" },
	};
	uint8_t *bytes = malloc(100000);

	(void)state;
	assert_non_null(bytes);
	expect_sum((const uint8_t *)"test content\n", 13, 13, "d670460b4b4aece5915caf5c68d12f560a9fe3e4");
	for (size_t i = 0; i < 100000; i++)
		bytes[i] = (uint8_t)((i * 7 + 3) % 251);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		for (size_t piece = 1; piece < 200; piece = piece * 3 + 1)
			expect_sum(bytes, cases[i].n, piece, cases[i].hex);
	free(bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_of_known_contents) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}

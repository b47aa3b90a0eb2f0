/* Checked sizes against 128-bit arithmetic; aligned memory with zeros behind it. */
#include "common/base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Around every power of two, where overflows begin. */
static size_t edges(uint64_t *v)
{
	size_t n = 0;

	for (int bit = 0; bit < 64; bit += bit < 2 || bit > 61 ? 1 : 5) {
		for (int d = -1; d <= 1; d++)
			v[n++] = (1ull << bit) + (uint64_t)d;
	}
	v[n++] = UINT64_MAX;
	v[n++] = UINT64_MAX - 1;
	v[n++] = UINT64_MAX / 3;
	v[n++] = UINT64_MAX / 3 + 1;
	return n;
}

static void sums_and_products(void **state)
{
	uint64_t v[128], out;
	size_t n = edges(v), overflows = 0;

	(void)state;
	for (size_t i = 0; i < n; i++) {
		for (size_t j = 0; j < n; j++) {
			unsigned __int128 sum = (unsigned __int128)v[i] + v[j],
					  product = (unsigned __int128)v[i] * v[j];

			out = 7;
			assert_int_equal(od_add(v[i], v[j], &out), sum <= UINT64_MAX);
			assert_true(out == (sum <= UINT64_MAX ? (uint64_t)sum : 0));
			out = 7;
			assert_int_equal(od_mul(v[i], v[j], &out), product <= UINT64_MAX);
			assert_true(out == (product <= UINT64_MAX ? (uint64_t)product : 0));
			overflows += product > UINT64_MAX;
		}
	}
	assert_true(overflows > 100 && overflows < n * n - 100);
}

static void spans(void **state)
{
	uint64_t v[128];
	size_t n = edges(v);

	(void)state;
	for (size_t i = 0; i < n; i++)
		for (size_t j = 0; j < n; j++)
			for (size_t k = 0; k < n; k++)
				assert_int_equal(od_within(v[i], v[j], v[k]), (unsigned __int128)v[i] + v[j] <= v[k]);
}

static void rounding_up(void **state)
{
	(void)state;
	for (uint64_t step = 1; step <= 64; step *= 2) {
		for (uint64_t n = 0; n < 200; n++) {
			uint64_t want = n;

			while (want % step != 0)
				want++;
			assert_int_equal(od_round_up(n, step), want);
		}
	}
	assert_true(od_round_up((1ull << 62) + 1, OD_PAGE_BYTES) == (1ull << 62) + 4096);
}

static void blocks_are_aligned_and_zero(void **state)
{
	static const size_t large[] = { 4096, 65537, 200000, 1 << 20, (1 << 25) + 3 };
	size_t bytes = 0;

	(void)state;
	for (size_t i = 0; i < 600 + sizeof(large) / sizeof(large[0]); i++) {
		bytes = i < 600 ? i : large[i - 600];
		for (int again = 0; again < 2; again++) { /* the second one may get the first one's dirty memory */
			unsigned char *p = od_alloc(bytes);

			assert_non_null(p);
			assert_int_equal((uintptr_t)p % 64, 0);
			for (size_t k = 0; k < bytes + OD_PAD_BYTES; k++) {
				if (p[k] != 0)
					fail_msg("byte %zu of %zu is not zero", k, bytes);
			}
			memset(p, 0xa5, bytes + OD_PAD_BYTES);
			od_free(p);
		}
	}
	od_free(NULL);
}

static void impossible_sizes(void **state)
{
	void *p;

	(void)state;
	/* An allocation takes the bytes, OD_PAD_BYTES, and room to align. */
	assert_null(od_alloc(SIZE_MAX));
	assert_null(od_alloc(SIZE_MAX - OD_PAD_BYTES));
	assert_null(od_alloc(SIZE_MAX - OD_PAD_BYTES - 64));
	assert_null(od_alloc_array(SIZE_MAX / 2, 3));
	assert_null(od_alloc_array(1ull << 32, 1ull << 32)); /* 0 when it wraps */
	assert_null(od_alloc_array(3, SIZE_MAX / 3)); /* fits by itself, but not with its pad */
	p = od_alloc_array(0, SIZE_MAX);
	assert_non_null(p);
	od_free(p);
	p = od_alloc_array(7, 9);
	assert_non_null(p);
	memset(p, 1, 7 * 9 + OD_PAD_BYTES);
	od_free(p);
}

static void memory_of_the_process(void **state)
{
	const size_t bytes = 48u << 20;
	char *p = od_alloc(bytes);

	(void)state;
	memset(p, 1, bytes);
	assert_true(od_peak_rss_bytes() >= bytes);
	od_free(p);
	assert_true(od_peak_rss_bytes() >= bytes); /* a peak stays */
	assert_true(od_available_ram_bytes() > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sums_and_products), cmocka_unit_test(spans),
		cmocka_unit_test(rounding_up),	     cmocka_unit_test(blocks_are_aligned_and_zero),
		cmocka_unit_test(impossible_sizes),  cmocka_unit_test(memory_of_the_process),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

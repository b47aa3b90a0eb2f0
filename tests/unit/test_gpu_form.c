/* The rule for the form of experts on a GPU, for cards of which all numbers are published. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/compute/cuda/gpu_form.h"

static bool likes(unsigned n_sm, uint64_t mhz, uint64_t mb_per_s)
{
	const struct gpu_about about = { .n_sm = n_sm,
					 .clock_hz = mhz * 1000000,
					 .memory_bytes_per_s = mb_per_s * 1000000 };

	return gpu_likes_planes(&about);
}

/* Billions of weights a second. BF16: GB/s / 2. Planes: multiprocessors x GHz x 128 / 48 instructions. */
static void published_cards_have_the_faster_form(void **state)
{
	(void)state;
	assert_false(likes(132, 1980, 4800000)); /* H200: 2400 as BF16; 132 x 1.98 x 128 / 48 = 697 as planes */
	assert_false(likes(108, 1410, 2039000)); /* A100 80 GB: 1020; 108 x 1.41 x 128 / 48 = 406 */
	assert_false(likes(28, 1777, 360000)); /* RTX 3060: 180; 28 x 1.777 x 128 / 48 = 133 */
	assert_false(likes(16, 1300, 204800)); /* Jetson AGX Orin: 102; 16 x 1.3 x 128 / 48 = 55 */
	assert_true(likes(128, 2520, 1008000)); /* RTX 4090: 504; 128 x 2.52 x 128 / 48 = 860 */
	assert_true(likes(58, 2040, 300000)); /* L4: 150; 58 x 2.04 x 128 / 48 = 316 */
}

/* The memory of a card like the RTX 3060 with which both forms are as fast: 2 x 28 x 1.777 x 128 / 48 = 265.4 GB/s. */
static void the_form_changes_where_both_are_as_fast(void **state)
{
	(void)state;
	assert_true(likes(28, 1777, 265300));
	assert_false(likes(28, 1777, 265400));
}

static void what_is_not_known_leaves_bf16(void **state)
{
	(void)state;
	assert_false(likes(128, 2520, 0));
	assert_false(likes(128, 0, 1008000));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(published_cards_have_the_faster_form),
		cmocka_unit_test(the_form_changes_where_both_are_as_fast),
		cmocka_unit_test(what_is_not_known_leaves_bf16),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

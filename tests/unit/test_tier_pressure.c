/* How the cache of experts follows the memory that is free: single decisions, and a run beside a process that takes and
 * gives back. */
#include "main-node/engine/tier_pressure.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define MIB (1ull << 20)

static void single_decisions(void **state)
{
	static const struct {
		struct odm_pressure_look l; /* MiB */
		uint64_t expected;
	} t[] = {
		{ { 1000, 1000, 1000, 300, 256, true }, 1000 }, /* nothing presses */
		{ { 1000, 1000, 1000, 256, 256, false }, 1000 },
		{ { 1000, 1000, 1000, 200, 256, true }, 944 }, /* 56 are missing */
		{ { 1000, 1000, 600, 200, 256, true }, 544 }, /* the unused part first: it frees nothing */
		{ { 1000, 100, 100, 0, 256, true }, 0 },
		{ { 1000, 0, 0, 0, 256, true }, 0 },
		{ { 1000, 500, 500, 600, 256, false }, 500 }, /* it has pressed a moment ago */
		{ { 1000, 500, 500, 356, 256, true }, 550 }, /* half of what is free beyond the reserve */
		{ { 1000, 500, 500, 5000, 256, true }, 625 }, /* at most an eighth of all */
		{ { 1000, 950, 950, 5000, 256, true }, 1000 },
		{ { 1000, 500, 300, 356, 256, true },
		  500 }, /* 200 of the budget are not used yet, and 100 free for it */
		{ { 1000, 500, 450, 356, 256, true }, 525 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct odm_pressure_look l = t[i].l;

		l.most_bytes *= MIB;
		l.now_bytes *= MIB;
		l.kept_bytes *= MIB;
		l.free_bytes *= MIB;
		l.reserve_bytes *= MIB;
		assert_in_range(odm_pressure_decide(&l), t[i].expected * MIB, t[i].expected * MIB + 1);
	}
}

/* Another process takes 20 MiB between two looks, and gives them back later. */
static void beside_another_process(void **state)
{
	enum { MACHINE = 1200, OTHERS = 100, BASE = 200, RESERVE = 256, MOST = 600 };
	struct odm_pressure_look l = { .most_bytes = MOST * MIB,
				       .now_bytes = MOST * MIB,
				       .reserve_bytes = RESERVE * MIB };
	uint64_t kept = MOST * MIB, other = OTHERS * MIB;

	(void)state;
	for (int i = 0; i < 400; i++) {
		const uint64_t used = other + BASE * MIB + kept;

		assert_true(used <= MACHINE * MIB); /* else the kernel ends somebody */
		l.kept_bytes = kept;
		l.free_bytes = MACHINE * MIB - used;
		l.may_grow = i % 20 == 19;
		l.now_bytes = odm_pressure_decide(&l);
		assert_true(l.now_bytes <= MOST * MIB);
		kept = l.now_bytes; /* it fills at once */
		if (i < 30)
			other += 20 * MIB;
		if (i == 60)
			assert_true(kept < 60 * MIB);
		if (i >= 100 && i < 130)
			other -= 20 * MIB;
	}
	assert_int_equal(l.now_bytes, MOST * MIB);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(single_decisions),
		cmocka_unit_test(beside_another_process),
	};

	return cmocka_run_group_tests_name("tier_pressure", tests, NULL, NULL);
}

/* The choice of experts that the CPUs compute in host memory: against the best of all divisions, and by hand. */
#include "main-node/engine/host_rates.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#define MS 1000000u

static struct odm_host_candidate candidate(uint32_t n_rows, double gain)
{
	return (struct odm_host_candidate){ .n_rows = n_rows, .gain = gain };
}

static struct odm_host_rates rates_of(uint64_t load_ns, uint64_t compute_ns)
{
	struct odm_host_rates r = { 0 };

	odm_host_rates_loaded(&r, 1, load_ns);
	odm_host_rates_computed(&r, 1, 1, compute_ns);
	return r;
}

/* How long loads are is learnt first, then how long one expert is on the host: that with the fewest rows. */
static void rates_are_learnt_first(void **state)
{
	struct odm_host_candidate c[] = { candidate(4, 0), candidate(3, 1), candidate(2, -INFINITY) };
	struct odm_host_rates r = { 0 };

	(void)state;
	assert_int_equal(odm_host_rates_choose(&r, c, 3, 0), 0);
	odm_host_rates_loaded(&r, 4, 8 * MS);
	assert_int_equal(odm_host_rates_choose(&r, c, 3, 0), 1);
	assert_true(c[2].on_host && !c[0].on_host && !c[1].on_host);
	odm_host_rates_computed(&r, 1, 2, 3 * MS); /* a load takes 2 */
	assert_int_equal(odm_host_rates_choose(&r, c, 3, 0), 0);
}

/* Rows that were not measured are guessed from those that were. */
static void more_rows_take_longer(void **state)
{
	struct odm_host_rates r = rates_of(7 * MS, MS);
	const uint32_t rows[] = { 1, 2, 3, 4, 7, 8, 64 }; /* 1, 2, 2, 4, 4, 8, 64 ms */

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct odm_host_candidate c = candidate(rows[i], 0);

		assert_int_equal(odm_host_rates_choose(&r, &c, 1, 0), rows[i] < 8);
		r = rates_of(7 * MS, MS); /* without what fades */
	}
	odm_host_rates_computed(&r, 2, 16, 2 * MS); /* 8 rows are as fast as one */
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct odm_host_candidate c = candidate(rows[i], 0);

		assert_int_equal(odm_host_rates_choose(&r, &c, 1, 0), rows[i] < 64);
	}
}

/* A load is worth as many computations as its expert gains, and this one. */
static void what_gains_is_loaded(void **state)
{
	struct odm_host_rates r = rates_of(5 * MS, MS);

	(void)state;
	for (double gain = -3; gain < 8; gain += 0.75) {
		struct odm_host_candidate c = candidate(1, gain);

		assert_int_equal(odm_host_rates_choose(&r, &c, 1, 0), fmax(gain, 0) + 1 < 5);
	}
}

/* With equal rows and without gain no other division ends earlier. */
static void both_end_as_early_as_they_can(void **state)
{
	(void)state;
	for (unsigned load = 1; load < 12; load++)
		for (size_t n = 1; n <= 9; n++)
			for (size_t n_loads = 0; n_loads < 5; n_loads++) {
				struct odm_host_rates r = rates_of(load * MS, 3 * MS);
				struct odm_host_candidate c[9];
				double best = INFINITY, is;
				size_t n_host;

				for (size_t i = 0; i < n; i++)
					c[i] = candidate(1, 0);
				for (size_t k = 0; k <= n; k++)
					best = fmin(best, fmax(3.0 * (double)k, load * (double)(n - k + n_loads)));
				n_host = odm_host_rates_choose(&r, c, n, n_loads);
				is = fmax(3.0 * (double)n_host, load * (double)(n - n_host + n_loads));
				if (load > 3) /* else a load is never worse */
					assert_true(is == best);
				else
					assert_int_equal(n_host, 0);
			}
}

/* A time that was once long is measured again some time: nothing stays as it is because of one slow moment. */
static void old_times_fade(void **state)
{
	struct odm_host_candidate c = candidate(1, 0);
	struct odm_host_rates r = rates_of(MS, 4 * MS);
	int n = 0;

	(void)state;
	while (odm_host_rates_choose(&r, &c, 1, 0) == 0)
		assert_true(++n < 1000);
	assert_true(n > 100);
	r = rates_of(4 * MS, MS);
	for (n = 0; odm_host_rates_choose(&r, &c, 1, 0) == 1; n++)
		assert_true(n < 1000);
	assert_true(n > 100);
	r = rates_of(4 * MS, MS);
	for (n = 0; n < 1000; n++) { /* others are loaded, and measured */
		assert_int_equal(odm_host_rates_choose(&r, &c, 1, 1), 1);
		odm_host_rates_loaded(&r, 1, 4 * MS);
		odm_host_rates_computed(&r, 1, 1, MS);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rates_are_learnt_first), cmocka_unit_test(more_rows_take_longer),
		cmocka_unit_test(what_gains_is_loaded),	  cmocka_unit_test(both_end_as_early_as_they_can),
		cmocka_unit_test(old_times_fade),
	};

	return cmocka_run_group_tests_name("host_rates", tests, NULL, NULL);
}

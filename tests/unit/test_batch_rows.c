/* Batches of a prompt: none where rows travel fast or little is known; else as long on their way as their RUNs take
 * besides. */
#include "main-node/cluster/batch_rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#define ROW 16384.0 /* bytes of a row to its workers */
#define RUN 950e3 /* ns */

/* A layer of so many RUNs, each of 32 KiB and answered with as many; a byte takes this, and the first answers come when
 * all has been sent. */
static void add_layer(struct odm_port_times *p, unsigned n, double byte)
{
	uint64_t sent[64];

	odm_port_begin(p);
	for (unsigned i = 0; i < n; i++)
		sent[i] = odm_port_sent(p, 32768);
	for (unsigned i = 0; i < n; i++)
		odm_port_answered(p, 32768, sent[i], byte * 32768 * (n + i + 1));
	odm_port_end(p);
}

static void a_batch_takes_as_long_as_its_runs(void **state)
{
	struct odm_port_times p = { 0 };

	(void)state;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(odm_batch_rows(&p, ROW, RUN, 128), 128); /* nothing is known yet */
		add_layer(&p, 8, 8);
	}
	/* A gigabit: 128 rows take 16.8 ms, 17 RUNs; a layer has at most 16 batches. */
	assert_int_equal(odm_batch_rows(&p, ROW, RUN, 128), 8);
	assert_int_equal(odm_batch_rows(&p, ROW, 2 * RUN, 128), 16); /* 8.8 batches */
	assert_int_equal(odm_batch_rows(&p, ROW, 8 * RUN, 128), 64); /* 2.2 */
	assert_int_equal(odm_batch_rows(&p, ROW, 9 * RUN, 128), 128); /* 1.96 */
	assert_int_equal(odm_batch_rows(&p, ROW, RUN, 100), 8); /* 13.8: 100 rows in 13 batches */
	assert_int_equal(odm_batch_rows(&p, ROW, RUN, 2048), 128);
	assert_int_equal(odm_batch_rows(&p, ROW, RUN, 1), 1);
	assert_int_equal(odm_batch_rows(&p, ROW, 0, 128), 128); /* a RUN's time is not known */
}

static void whole_where_rows_travel_fast(void **state)
{
	struct odm_port_times p = { 0 };

	(void)state;
	for (int i = 0; i < 40; i++)
		add_layer(&p, 8, 0.8); /* ten gigabits */
	assert_int_equal(odm_batch_rows(&p, ROW, 1000, 2048), 2048);
	/* Answers that waited for a processor do not make it slow; a link that is slow for long does. */
	for (int i = 0; i < 6; i++)
		add_layer(&p, 8, 80);
	assert_int_equal(odm_batch_rows(&p, ROW, RUN, 128), 128);
	add_layer(&p, 8, 80);
	assert_int_equal(odm_batch_rows(&p, ROW, RUN, 128), 8);
	/* Few bytes say nothing. */
	for (int i = 0; i < 40; i++)
		add_layer(&p, 0, 0);
	odm_port_begin(&p);
	odm_port_answered(&p, 1000, odm_port_sent(&p, 1000), 0);
	odm_port_end(&p);
	assert_int_equal(odm_batch_rows(&p, ROW, RUN, 128), 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_batch_takes_as_long_as_its_runs),
		cmocka_unit_test(whole_where_rows_travel_fast),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

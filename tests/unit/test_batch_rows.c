/* Batches of a prompt: none where rows travel fast or little is known; else as many as end first. */
#include "main-node/cluster/batch_rows.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#define ROW 16384.0 /* bytes of a row to its workers */
#define RUN 950e3 /* ns */
#define RUN_BYTES 32768
#define GIGABIT 8.0 /* ns of a byte */

/* A layer of so many RUNs, all sent at once and each answered with as many bytes. A byte takes this, and workers answer
 * when all has been sent. Every second one waits for its load, during which other answers come. */
static void add_layer(struct odm_port_times *p, unsigned n, double byte)
{
	const double wait = 40e6;
	const uint64_t begin = 5000000000;

	odm_port_begin(p);
	for (unsigned i = 0; i < n; i++)
		odm_port_sent(p, RUN_BYTES, begin + i);
	for (unsigned late = 0; late < 2; late++)
		for (unsigned i = 0; i < (n + 1 - late) / 2; i++) {
			const double there = byte * RUN_BYTES * n, back = byte * RUN_BYTES * (i + 1);

			odm_port_answered(p, RUN_BYTES, late * wait + RUN,
					  begin + (uint64_t)(there + late * wait + RUN + back));
		}
	odm_port_end(p);
}

/* When the last of n batches is back: the way there, the worker and the way back take one at a time. */
static double end_of(double way, double run, double work, unsigned n)
{
	double there = 0, worked = 0, back = 0;

	for (unsigned i = 0; i < n; i++) {
		there += way / n;
		worked = fmax(worked, there) + run + work / n;
		back = fmax(back, worked) + way / n;
	}
	return back;
}

/* Two halves of a prompt go through layers one after the other: port, workers and main have one of them at a time each,
 * and main has it between two layers. The time of a layer, after many. */
static double halves_end(double way, double run, double work, double main, unsigned n)
{
	double there = 0, worked = 0, back = 0, ready[2] = { 0, 0 }, first = 0;

	for (unsigned layer = 0; layer < 40; layer++)
		for (unsigned half = 0; half < 2; half++) {
			double b = ready[half];

			for (unsigned i = 0; i < n; i++) {
				there = fmax(there, b) + way / n;
				worked = fmax(worked, there) + run + work / n;
				back = fmax(back, worked) + way / n;
			}
			ready[half] = back + main;
			first = layer == 19 && half == 1 ? back : first;
		}
	return (back - first) / 20;
}

static double time_of(const struct odm_batch_work *w, unsigned n)
{
	const double way = (double)w->n_rows * w->row_bytes * GIGABIT;

	return w->half ? halves_end(way, w->run, w->rows, w->main, n) : end_of(way, w->run, w->rows, n);
}

static unsigned batches_of(size_t rows, size_t batch)
{
	return (unsigned)((rows + batch - 1) / batch);
}

/* The time with so many rows a batch is nearly the best of those that batches of whole rows can have. */
static unsigned check(const struct odm_port_times *p, const struct odm_batch_work *w)
{
	const uint32_t rows = odm_batch_rows(p, w), n = batches_of(w->n_rows, rows);
	double best = INFINITY;

	assert_in_range(rows, 1, w->n_rows);
	for (unsigned i = 1; i <= 16; i++)
		best = fmin(best, time_of(w, batches_of(w->n_rows, batches_of(w->n_rows, i))));
	if (time_of(w, n) > 1.03 * best)
		fail_msg("%zu rows, run %.1f, work %.1f, main %.1f, half %d: %u batches take %.2f, not %.2f", w->n_rows,
			 w->run / RUN, w->rows / RUN, w->main / RUN, w->half, n, time_of(w, n) / RUN, best / RUN);
	return rows;
}

static void as_many_as_end_first(void **state)
{
	static const double runs[] = { 0.2, 1, 3, 9, 18, 40 }, works[] = { 0, 1, 5, 20, 100 };
	static const unsigned rows[] = { 1, 16, 100, 128, 2048 };
	struct odm_batch_work w = { .n_rows = 128, .row_bytes = ROW, .run = RUN };
	unsigned n_whole = 0, n_least = 0;
	struct odm_port_times p = { 0 };

	(void)state;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(odm_batch_rows(&p, &w), 128); /* nothing is known yet */
		add_layer(&p, 8, GIGABIT);
	}
	for (unsigned i = 0; i < 6 * 5 * 5 * 3; i++) {
		unsigned n;

		w = (struct odm_batch_work){ .n_rows = rows[i / 30 % 5],
					     .row_bytes = ROW,
					     .run = RUN * runs[i % 6],
					     .rows = RUN * works[i / 6 % 5],
					     .half = i >= 150,
					     .main = i >= 300 ? 5 * RUN : 0 };
		n = check(&p, &w);
		n_whole += n == w.n_rows && n > 1;
		n_least += n == (w.n_rows + 15) / 16 && n > 1;
	}
	assert_true(n_whole > 10 && n_least > 10);
	w = (struct odm_batch_work){ .n_rows = 128, .row_bytes = ROW };
	assert_int_equal(odm_batch_rows(&p, &w), 128); /* a RUN's time is not known */
}

static void whole_where_rows_travel_fast(void **state)
{
	struct odm_batch_work w = { .n_rows = 2048, .row_bytes = ROW, .run = 1000 };
	struct odm_port_times p = { 0 };

	(void)state;
	for (int i = 0; i < 40; i++)
		add_layer(&p, 8, 0.8); /* ten gigabits */
	assert_int_equal(odm_batch_rows(&p, &w), 2048);
	/* Answers that waited for a processor do not make it slow; a link that is slow for long does. */
	w = (struct odm_batch_work){ .n_rows = 128, .row_bytes = ROW, .run = RUN };
	for (int i = 0; i < 6; i++)
		add_layer(&p, 8, 80);
	assert_int_equal(odm_batch_rows(&p, &w), 128);
	add_layer(&p, 8, 80);
	assert_int_equal(odm_batch_rows(&p, &w), 8);
	/* Few bytes say nothing. */
	for (int i = 0; i < 40; i++)
		add_layer(&p, 1, 0);
	assert_int_equal(odm_batch_rows(&p, &w), 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(as_many_as_end_first),
		cmocka_unit_test(whole_where_rows_travel_fast),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

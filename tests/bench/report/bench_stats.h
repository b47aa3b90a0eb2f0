/* bench_stats.h - summaries of repeated measurements.
 *
 * Medians, not means: on shared cores disturbances only make a measurement slower, sometimes far slower.
 * Thread: any. Owner: the caller; the samples of a summary are sorted in place. */
#ifndef OD_BENCH_STATS_H
#define OD_BENCH_STATS_H

#include <stddef.h>

#define OD_STATS_CI_MIN 6 /* least samples for an interval of 95 % */

struct od_stats {
	size_t n;
	double min, max, mean, median, p10, p90;
	double ci_low, ci_high; /* 95% interval of the median */
};

/* Sorts x[0..n) and summarises it; all figures are NaN for n = 0. No sample may be NaN.
 *
 * The interval contains the true median in at least 95 % of repetitions for any distribution: it runs from the j-th
 * smallest to the j-th largest sample, with the greatest j that the binomial distribution (p = 1/2) allows. With fewer
 * than OD_STATS_CI_MIN samples no such interval exists, and it is min to max. */
void od_stats_of(double *x, size_t n, struct od_stats *out);

void od_stats_sort(double *x, size_t n);
/* Copies x to room [n], which is sorted. */
double od_stats_median(const double *x, size_t n, double *room);

/* The value below which a share p in [0, 1] of the sorted samples lies, linear between neighbours; NaN for
 * n = 0. */
double od_stats_percentile(const double *sorted, size_t n, double p);

#endif

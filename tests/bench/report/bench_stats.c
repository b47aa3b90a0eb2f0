#include "tests/bench/report/bench_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CI_TAIL 0.025 /* on each side */
#define CI_TAIL_SIGMA 1.95996398454005 /* the normal quantile of 1 - CI_TAIL */
#define EXACT_MAX 1000 /* 0.5^n is still a normal double */

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

void od_stats_sort(double *x, size_t n)
{
	qsort(x, n, sizeof(*x), compare);
}

double od_stats_median(const double *x, size_t n, double *room)
{
	memcpy(room, x, n * sizeof(*x));
	od_stats_sort(room, n);
	return od_stats_percentile(room, n, 0.5);
}

double od_stats_percentile(const double *sorted, size_t n, double p)
{
	double at, below;
	size_t i;

	if (n == 0)
		return NAN;
	at = p * (double)(n - 1);
	below = floor(at);
	i = (size_t)below;
	if (i + 1 >= n)
		return sorted[n - 1];
	return sorted[i] + (at - below) * (sorted[i + 1] - sorted[i]);
}

/* The greatest j with P(fewer than j of n fair coins show heads) <= CI_TAIL; 0 when there is none. */
static size_t median_rank(size_t n)
{
	double term, sum = 0;
	size_t j = 0;

	if (n > EXACT_MAX) /* the normal limit, half a rank outwards: never narrower */
		return (size_t)(0.5 * ((double)n - CI_TAIL_SIGMA * sqrt((double)n)));
	term = ldexp(1.0, -(int)n);
	while (sum + term <= CI_TAIL) {
		sum += term;
		term = term * (double)(n - j) / (double)(j + 1);
		j++;
	}
	return j;
}

void od_stats_of(double *x, size_t n, struct od_stats *out)
{
	double sum = 0;
	size_t j;

	*out = (struct od_stats){ n, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN };
	if (n == 0)
		return;
	od_stats_sort(x, n);
	for (size_t i = 0; i < n; i++)
		sum += x[i];
	j = median_rank(n);
	if (j == 0)
		j = 1;
	out->min = x[0];
	out->max = x[n - 1];
	out->mean = sum / (double)n;
	out->median = od_stats_percentile(x, n, 0.5);
	out->p10 = od_stats_percentile(x, n, 0.1);
	out->p90 = od_stats_percentile(x, n, 0.9);
	out->ci_low = x[j - 1];
	out->ci_high = x[n - j];
}

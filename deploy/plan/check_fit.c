#include "deploy/plan/check_fit.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#define NS 1e9
#define MAX_UNKNOWNS 3

static int compare(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double odp_median(double *v, size_t n)
{
	qsort(v, n, sizeof(*v), compare);
	return v[(n - 1) / 2];
}

struct odp_line odp_fit_line(const double *x, const double *y, size_t n)
{
	double slope[ODP_FIT_MAX * (ODP_FIT_MAX - 1) / 2], rest[ODP_FIT_MAX];
	struct odp_line line = { 0 };
	size_t n_slopes = 0;

	for (size_t i = 0; i < n; i++)
		for (size_t j = 0; j < i; j++)
			if (x[i] != x[j])
				slope[n_slopes++] = (y[i] - y[j]) / (x[i] - x[j]);
	if (n_slopes > 0)
		line.slope = odp_median(slope, n_slopes);
	for (size_t i = 0; i < n; i++)
		rest[i] = y[i] - line.slope * x[i];
	line.at_0 = n > 0 ? odp_median(rest, n) : 0;
	return line;
}

double odp_roofline_ns(const struct odp_roofline *f, const struct odp_timed *p)
{
	const double few = p->weights / f->speed, much = p->weights * p->rows / f->many;

	return p->operations * f->fixed_ns + (few > much ? few : much) * NS;
}

void odp_roofline_anchor(struct odp_roofline *f, const struct odp_timed *p)
{
	const double off_ns = p->ns - odp_roofline_ns(f, p);

	f->fixed_ns += off_ns / p->operations;
	if (f->fixed_ns >= 0)
		return;
	f->fixed_ns = 0;
	f->speed = p->weights / p->ns * NS;
	f->many = f->many < f->speed ? f->speed : f->many;
}

/* a x = b [n] by Gauss's elimination; a is symmetric and not negative. False: a is singular. */
static bool solve(double a[MAX_UNKNOWNS][MAX_UNKNOWNS], double *b, size_t n, double *x)
{
	for (size_t i = 0; i < n; i++) {
		if (a[i][i] <= 0)
			return false;
		for (size_t r = i + 1; r < n; r++) {
			const double f = a[r][i] / a[i][i];

			for (size_t c = i; c < n; c++)
				a[r][c] -= f * a[i][c];
			b[r] -= f * b[i];
			if (a[r][r] <= 1e-12 * fabs(f * a[i][r])) /* nothing is left of it but rounding */
				a[r][r] = 0;
		}
	}
	for (size_t i = n; i-- > 0;) {
		x[i] = b[i];
		for (size_t c = i + 1; c < n; c++)
			x[i] -= a[i][c] * x[c];
		x[i] /= a[i][i];
	}
	return true;
}

/* A candidate has some of these: the fixed time, 1 / speed, 1 / many. */
struct unknowns {
	bool fixed, few, much;
};

/* Least squares of relative errors, where points of more than `flat` rows are those that rows count for. */
static bool fit_split(const struct odp_timed *p, size_t n, double flat, struct unknowns u, double x[MAX_UNKNOWNS])
{
	double a[MAX_UNKNOWNS][MAX_UNKNOWNS] = { 0 }, b[MAX_UNKNOWNS] = { 0 }, found[MAX_UNKNOWNS];
	const bool has[MAX_UNKNOWNS] = { u.fixed, u.few, u.much };
	size_t index[MAX_UNKNOWNS], n_unknowns = 0;

	for (size_t k = 0; k < MAX_UNKNOWNS; k++)
		if (has[k])
			index[n_unknowns++] = k;
	for (size_t i = 0; i < n; i++) {
		const bool is_flat = p[i].rows <= flat;
		/* In relative terms, and scaled to sizes near 1. */
		const double all[MAX_UNKNOWNS] = { p[i].operations / p[i].ns * NS,
						   is_flat ? p[i].weights / p[i].ns * NS : 0,
						   is_flat ? 0 : p[i].weights * p[i].rows / p[i].ns * NS };

		for (size_t r = 0; r < n_unknowns; r++) {
			for (size_t c = 0; c < n_unknowns; c++)
				a[r][c] += all[index[r]] * all[index[c]];
			b[r] += all[index[r]];
		}
	}
	if (!solve(a, b, n_unknowns, found))
		return false;
	for (size_t k = 0; k < MAX_UNKNOWNS; k++)
		x[k] = 0;
	for (size_t k = 0; k < n_unknowns; k++)
		x[index[k]] = found[k];
	return true;
}

static double error_of(const struct odp_roofline *f, const struct odp_timed *p, size_t n)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++) {
		const double e = odp_roofline_ns(f, &p[i]) / p[i].ns - 1;

		sum += e * e;
	}
	return sum;
}

/* Keeps it if it is possible, and better than the best so far. */
static void try_split(const struct odp_timed *p, size_t n, double flat, double most_rows, struct unknowns u,
		      struct odp_roofline *best, double *least)
{
	struct odp_roofline f;
	double x[MAX_UNKNOWNS], e;

	if (!fit_split(p, n, flat, u, x) || x[0] < 0)
		return;
	if (!u.few)
		x[1] = x[2]; /* rows count from the first one on */
	if (!u.much)
		x[2] = x[1] / most_rows;
	if (x[1] <= 0 || x[2] <= 0)
		return;
	f = (struct odp_roofline){ .fixed_ns = x[0] * NS, .speed = 1 / x[1], .many = 1 / x[2] };
	e = error_of(&f, p, n);
	if (*least >= 0 && e >= *least)
		return;
	*best = f;
	*least = e;
}

struct odp_roofline odp_fit_roofline(const struct odp_timed *p, size_t n)
{
	struct odp_roofline best = { 0 };
	double least = -1, most_rows = 1, least_rows = p[0].rows;

	for (size_t i = 0; i < n; i++) {
		most_rows = p[i].rows > most_rows ? p[i].rows : most_rows;
		least_rows = p[i].rows < least_rows ? p[i].rows : least_rows;
	}
	for (size_t i = 0; i <= n; i++) {
		const double flat = i < n ? p[i].rows : 0; /* 0: rows count for all */
		const struct unknowns u = { .few = flat >= least_rows, .much = flat < most_rows };

		try_split(p, n, flat, most_rows, u, &best, &least);
		try_split(p, n, flat, most_rows, (struct unknowns){ .fixed = true, .few = u.few, .much = u.much },
			  &best, &least);
	}
	return best;
}

/* check_fit.h - what a machine's measured times say of it: medians, lines and rooflines through points that are not all
 * good.
 *
 * The roofline is plan_machine.h's: a product of W weights with R rows takes max(W / speed, W R / many); beside it each
 * operation has a fixed time.
 * Thread: pure functions. Owner: the caller; plain data. */
#ifndef ODP_CHECK_FIT_H
#define ODP_CHECK_FIT_H

#include <stddef.h>

#define ODP_FIT_MAX 64 /* points of a fit */

/* The lower median of v [n], n at least 1; sorts v. */
double odp_median(double *v, size_t n);

/* A line through points [n], n at most ODP_FIT_MAX: the median of the slopes of all pairs (Theil 1950, Sen 1968), and
 * the median of what is left at 0. Points of one x: slope 0. */
struct odp_line {
	double at_0, slope;
};
struct odp_line odp_fit_line(const double *x, const double *y, size_t n);

/* A measured time: `operations` fixed times, and products of `weights` in all with `rows` rows each. */
struct odp_timed {
	double operations, weights, rows, ns;
};

struct odp_roofline {
	double fixed_ns; /* each operation takes it */
	double speed, many; /* weights, multiply-adds a second */
};

/* The roofline with the least sum of squared relative errors over the points [n], n at least 1. Where they do not show
 * where rows begin to count, many is as if they did behind the point with most rows. */
struct odp_roofline odp_fit_roofline(const struct odp_timed *p, size_t n);
/* Changes the fixed time, or the speed if it must, so that this point's time is met: a point of one row counts most. */
void odp_roofline_anchor(struct odp_roofline *f, const struct odp_timed *p);
double odp_roofline_ns(const struct odp_roofline *f, const struct odp_timed *p);

#endif

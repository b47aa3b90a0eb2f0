/* selection.h - a model of which experts a router chooses together, given only each expert's inclusion probability: the
 * maximum-entropy distribution over sets of k experts (ZipMoE, arXiv 2601.21198, section 3.4 and appendix D, after
 * Chen, Dempster and Liu 1994).
 *
 * It equals drawing each expert i independently with probability q[i] and keeping only draws of exactly k experts. So
 * the hits in a subset follow from the q of that subset (Algorithm 2). The task is to find q for given inclusion
 * probabilities f.
 *
 * The paper uses elementary symmetric polynomials of the weights w = q / (1 - q), which overflow for many experts. Here
 * R(n, C) is P(n of C are drawn), the paper's R(n, C) times the product of (1 - q) over C: the same ratios from numbers
 * between 0 and 1, by additions only. With sum(q) near k, P(k are drawn) is never small.
 *
 * The update printed in appendix D, w <- w * f / R(k, N), has no fixed point unless all f are equal, so it diverges.
 * Chen, Dempster and Liu divide by the inclusion probability g of the current w: w <- w * f / g. That converges: near
 * the solution the error of log w is multiplied by I - diag(1/f) Cov, whose entries are at least 0 (inclusions are
 * negatively correlated) and whose rows sum to 1 (k is fixed). But its diagonal is f, so an expert that is nearly
 * always chosen takes 1 / (1 - f) rounds. With the odds o(f) = f / (1 - f) instead of f the matrix is I - diag(1 / (f
 * (1 - f))) Cov, with diagonal 0. A half step, w <- w * sqrt(o(f) / o(g)), prevents two experts of similar weight from
 * oscillating. Any f then takes about forty rounds to 1e-12.
 *
 * Thread: pure functions. Owner: the caller's arrays. */
#ifndef OD_BENCH_SELECTION_H
#define OD_BENCH_SELECTION_H

#include <stdint.h>

#include "common/base/status.h"

/* Finds q [n] for inclusion probabilities f [n] of sets of k: each from 0 to 1, their sum k; accurate to 1e-9.
 * OD_ERR_RANGE: f is invalid. */
OD_MUST_CHECK int sim_selection_fit(const double *f, uint32_t n, uint32_t k, double *q, struct od_err *err);

/* Algorithm 2: hits[h], the probability that h of the n experts are drawn, for h in 0..max. */
void sim_selection_hits(const double *q, uint32_t n, uint32_t max, double *hits);

/* Scales f [n] to the sum k with no value above 1, for frequencies from sets of different sizes. k <= n. */
void sim_selection_scale(double *f, uint32_t n, uint32_t k);

#endif

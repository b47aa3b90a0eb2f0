/* selection.h - which experts a router chooses together, when all that is known is how often it chooses each: the
 * distribution over sets of k experts that has those inclusion probabilities and else assumes nothing (maximum entropy;
 * ZipMoE, arXiv 2601.21198, section 3.4 and appendix D, after Chen, Dempster and Liu 1994).
 *
 * Such a set arises when expert i is drawn with a probability q[i] of its own, independently of the others, and a draw
 * counts only if it has k experts. So its hits in any part of the experts follow from the q of that part (Algorithm 2),
 * and what remains is to find the q that belong to given inclusion probabilities f.
 *
 * Elementary symmetric polynomials of the weights w = q / (1 - q), in which the paper writes this, overflow for many
 * experts. R(n, C) is here P(n of C are drawn), which is R(n, C) times the product of (1 - q) over C: the same ratios, from
 * numbers between 0 and 1, by additions alone. With sum(q) near k, P(k are drawn) is never small.
 *
 * The printed update of appendix D, w <- w * f / R(k, N), has no fixed point unless all f are equal, so it runs away.
 * Chen, Dempster and Liu divide by the inclusion probability g that the present w give: w <- w * f / g. That converges:
 * near the solution the error of log w is multiplied by I - diag(1/f) Cov, whose entries are at least 0 (two experts of
 * one set exclude each other rather than not) and whose rows add up to 1 (k is fixed). But its diagonal is f, so an
 * expert that is nearly always chosen takes 1 / (1 - f) rounds. With the odds o(f) = f / (1 - f) in place of f the matrix
 * is I - diag(1 / (f (1 - f))) Cov: its diagonal is 0, and half a step, w <- w * sqrt(o(f) / o(g)), keeps two experts of
 * about the same weight from overtaking each other forever. Any f then takes some forty rounds to 1e-12.
 *
 * Thread: pure functions. Owner: the caller's arrays. */
#ifndef OD_CACHE_SELECTION_H
#define OD_CACHE_SELECTION_H

#include <stdint.h>

#include "common/base/status.h"

/* q [n] for the inclusion probabilities f [n] of sets of k: from 0 to 1, their sum k. They are met to 1e-9.
 * OD_ERR_RANGE says what is wrong with f. */
OD_MUST_CHECK int od_selection_fit(const double *f, uint32_t n, uint32_t k, double *q, struct od_err *err);

/* The inclusion probabilities f [n] that q [n] give. OD_ERR_RANGE: no set of k is possible. */
OD_MUST_CHECK int od_selection_inclusion(const double *q, uint32_t n, uint32_t k, double *f, struct od_err *err);

/* Algorithm 2: hits[h], the probability that h of the n experts are drawn, for h in 0..max. */
void od_selection_hits(const double *q, uint32_t n, uint32_t max, double *hits);

/* f [n] scaled so that the sum is k, none above 1: for frequencies whose sets were not all of one size. k <= n. */
void od_selection_scale(double *f, uint32_t n, uint32_t k);

#endif

/* rank.h - the greatest of some scores, in order. Thread: any. */
#ifndef OD_COMPUTE_RANK_H
#define OD_COMPUTE_RANK_H

#include <stddef.h>
#include <stdint.h>

/* The n (at most n_scores, at least 1) indices with the greatest scores, best first; ties go to the lower index. Whatever
 * the scores are, NaN included, the indices differ from each other. */
void od_rank(const float *score, size_t n_scores, uint16_t *index, size_t n);

#endif

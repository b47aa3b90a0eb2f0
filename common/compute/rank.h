/* rank.h - top-n selection by score. Thread: any. */
#ifndef OD_COMPUTE_RANK_H
#define OD_COMPUTE_RANK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* index [n] = the indices of the n greatest of score [n_scores], best first; 1 <= n <= n_scores. Ties go to the lower
 * index. The indices are distinct for any scores, including NaN. */
void od_rank(const float *score, size_t n_scores, uint16_t *index, size_t n);

static inline bool od_is_among(const uint16_t *index, size_t n, uint16_t i)
{
	for (size_t j = 0; j < n; j++)
		if (index[j] == i)
			return true;
	return false;
}

#endif

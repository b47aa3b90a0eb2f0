#include "common/compute/rank.h"

/* Insertion in index order with a strict comparison: ties stay with the lower index, and every NaN comparison is
 * false. */
void od_rank(const float *score, size_t n_scores, uint16_t *index, size_t n)
{
	size_t have = 0;

	for (size_t e = 0; e < n_scores; e++) {
		size_t at = have;

		while (at > 0 && score[e] > score[index[at - 1]])
			at--;
		if (at == n)
			continue;
		have += have < n;
		for (size_t i = have - 1; i > at; i--)
			index[i] = index[i - 1];
		index[at] = (uint16_t)e;
	}
}

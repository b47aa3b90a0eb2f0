/* runs.h - tokens within a repetition of a piece, such as the characters of a string.
 *
 * How many pieces may still come differs at each token of a string whose length is bounded; which tokens fit into so
 * many does not. So the tokens are found once, and sorted by the number of their pieces.
 * Thread: immutable after od_runs_new, any thread. Owner: the caller of new; the vocabulary outlives it. */
#ifndef OD_GRAMMAR_RUNS_H
#define OD_GRAMMAR_RUNS_H

#include "common/grammar/re.h"
#include "common/grammar/vocab.h"

struct od_run_end {
	uint32_t pieces, node;
};

struct od_runs {
	size_t mask_words; /* words of a mask, as in constraint.h */
	uint32_t n_masks;
	uint64_t *mask; /* [n_masks][mask_words] the tokens that begin at most 1, 2, ... pieces */
	struct od_run_token {
		uint32_t pieces;
		int32_t token;
	} * longer; /* [n_longer] those that begin more than n_masks, sorted by pieces */
	size_t n_longer, cap_longer;
	struct od_run_end *end; /* [n_ends] nodes that may begin what follows the run, behind so many whole pieces */
	size_t n_ends, cap_ends;
};

/* one: the piece; rest: what follows the run. OD_ERR_UNSUPPORTED: a piece is not known by its last byte, or too many
 * bytes may follow the run. */
OD_MUST_CHECK int od_runs_new(struct od_runs **out, const struct od_vocab *v, struct od_re_pool *p, uint32_t one,
			      uint32_t rest);
void od_runs_free(struct od_runs *r); /* NULL ok */
size_t od_runs_memory(const struct od_runs *r); /* bytes; NULL ok */
/* Sets mask to the tokens that begin at most max pieces. */
void od_runs_mask(const struct od_runs *r, uint32_t max, uint64_t *mask);

#endif

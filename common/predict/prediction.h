/* prediction.h - one row's experts at one MoE layer, as somebody who has not seen main's router expects them.
 *
 * Whoever predicts says how sure it is: experts stand best first with the router probabilities that they were given,
 * the first top_k are the prediction and the rest its runners-up. Main decides what is loaded.
 * Thread: plain data; pointers are borrowed for the length of a call. */
#ifndef OD_PREDICT_PREDICTION_H
#define OD_PREDICT_PREDICTION_H

#include <stddef.h>
#include <stdint.h>

#include "common/model/config.h"

#define OD_MAX_RUNNERS_UP 6
#define OD_MAX_CANDIDATES (OD_MAX_TOP_K + OD_MAX_RUNNERS_UP)
#define OD_MAX_EARLY 4 /* layers before m from which a predictor looks at m's router early */

/* Whose it is: of whom --predictor names, or of somebody asked beside (main's own, next to a shadow). */
enum od_opinion { OD_FIRST_OPINION, OD_SECOND_OPINION };

struct od_prediction {
	uint64_t step, sequence;
	uint32_t row, position; /* row of the step */
	int32_t token;		/* that it assumes at position */
	uint32_t m;
	size_t n;		  /* top_k at least, OD_MAX_CANDIDATES at most */
	const uint16_t *expert;	  /* [n], all different, best first */
	const float *probability; /* [n], not growing; NULL: the predictor cannot tell */
	/* The same experts' probabilities by m's router, had it been shown the row as it was i + 1 layers before: [n_early][n].
	 * So whoever knows the true row of that layer sees what the predictor's has gone wrong by. NULL: not known. */
	const float *early;
	size_t n_early;
	enum od_opinion opinion;
	uint32_t lead; /* layers from the last router that it had heard to m; m + 1: before layer 0. 0: not known */
};

/* How many experts a prediction names: all of a small model, top-k and some runners-up of a large one. */
static inline size_t od_prediction_candidates(const struct od_config *cfg)
{
	size_t n = cfg->top_k + OD_MAX_RUNNERS_UP;

	return n < cfg->n_experts ? n : cfg->n_experts;
}

#endif

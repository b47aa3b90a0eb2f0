/* recall_rival.h - replays recordings of the true model to one of main's own predictors (common/predict/predictor.h),
 * with the same calls as main. It gets one prompt after another, as in od-main, and keeps what it learns, so the order
 * of the prompts matters.
 *
 * Thread: one at a time, with the device that it was made with. Owner: recall_rival_new's caller. */
#ifndef OD_BENCH_RECALL_RIVAL_H
#define OD_BENCH_RECALL_RIVAL_H

#include "common/model/forward.h"
#include "common/predict/predictor.h"
#include "tests/bench/live/recall_board.h"

struct recall_rival;

/* forward: the true model's, with the max_rows of the recording. */
OD_MUST_CHECK int recall_rival_new(struct recall_rival **out, const struct od_predictor_kind *kind,
				   const struct od_forward_opts *forward, struct od_err *err);
void recall_rival_free(struct recall_rival *r); /* NULL ok */

/* board: open; the recording has residuals. */
void recall_rival_replay(struct recall_rival *r, struct recall_board *board);

#endif

/* recall_board.h - keeps predictions for a recording's decode steps until the true router chooses, as
 * main-node/predict/predictions.h does for a live cluster; then counts them, and optionally dumps them.
 *
 *   open -> [ begin_step -> routed(0) .. routed(n_moe - 1) ] x n_steps -> close, recall_board_add at any time
 *
 * Of several predictions for a row of a layer the last one counts. For recall by lead each one counts; of those that
 * arrived before the step began only the last. A prediction for another token than main's is void, unless the shadow
 * chooses the token of that step.
 * Thread: its owner's. Owner: recall_board_open's caller; recording, counts and dump are borrowed. */
#ifndef OD_BENCH_RECALL_BOARD_H
#define OD_BENCH_RECALL_BOARD_H

#include "common/base/strbuf.h"
#include "common/predict/prediction.h"
#include "tests/bench/live/recall_record.h"
#include "tests/bench/live/recall_stats.h"
#include "tests/bench/sim/recall_tape.h"

struct recall_held;

struct recall_board {
	const struct recall_recording *rec;
	const struct od_config *config;
	struct recall_counts *counts;
	const char *name; /* the configuration's */
	struct od_strbuf *dump; /* NULL: none */
	struct recall_tape *tape; /* NULL: none; cleared */
	/* The board's own. */
	uint32_t step, layer; /* Used by the board only. */
	bool begun, any_token;
	struct recall_held *held; /* [n_steps][n_moe] */
};

/* The public fields are set; counts are of this recording alone. */
OD_MUST_CHECK int recall_board_open(struct recall_board *b, struct od_err *err);
void recall_board_close(struct recall_board *b); /* may be called twice */

void recall_board_add(struct recall_board *b, const struct od_prediction *p);
/* any_token: the shadow chooses the step's token. */
void recall_board_begin_step(struct recall_board *b, bool any_token);
/* The router of the next layer has chosen. */
void recall_board_routed(struct recall_board *b);

#endif

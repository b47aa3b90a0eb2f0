/* recall_shadow.h - replays a recording of the true model to the shadow's own emulator, with main's messages
 * (main-node/cluster/shadow_link.h) in main's order, in memory.
 *
 * There is no clock: after every message the emulator does all its work. So its predictions are bit-identical to those
 * of a shadow that keeps up with main, and their leads are the longest that departure and alignment allow.
 * Thread: the device's; each call creates an emulator. */
#ifndef OD_BENCH_RECALL_SHADOW_H
#define OD_BENCH_RECALL_SHADOW_H

#include "common/model/forward.h"
#include "shadow-node/emulator.h"
#include "tests/bench/live/recall_board.h"
#include "tests/bench/live/recall_config.h"

struct recall_shadow {
	/* with the shadow's dense weights, on the recorder's device; state: created here */
	struct od_forward_opts forward;
	const struct od_expert *experts;
	bool early; /* departure */
	struct recall_align align;
};

/* board: open. The recording's state is not changed except for its length. */
OD_MUST_CHECK int recall_shadow_replay(const struct recall_shadow *s, struct recall_board *board, struct od_err *err);

#endif

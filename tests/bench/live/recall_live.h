/* recall_live.h - od-bench recall on a live cluster: what od-main counts while it generates.
 *
 * Rows whose prediction was late count like the others: whether it was right and whether it was in time are two
 * questions. Rows that never got one are no part of the recall but are counted.
 * Thread: main(). */
#ifndef OD_BENCH_RECALL_LIVE_H
#define OD_BENCH_RECALL_LIVE_H

#include "main-node/engine_args.h"
#include "tests/bench/live/bench_prompts.h"

/* Runs and reports to standard output. Ids of the prompts are made here. precision: what the engine's options tell the
 * shadow of --local, an index into od_precision_names; -1: nothing. */
OD_MUST_CHECK int recall_live(const struct odm_engine_opts *engine, int precision, struct od_prompts *prompts,
			      uint32_t max_tokens, bool json, struct od_err *err);

#endif

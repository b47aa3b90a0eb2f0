/* recall_live.h - od-bench recall on a live cluster: od-main's counters during generation.
 *
 * Late predictions count in the recall like the others: correctness and lateness are separate figures. Rows without a
 * prediction are counted, but are not part of the recall.
 * Thread: main(). */
#ifndef OD_BENCH_RECALL_LIVE_H
#define OD_BENCH_RECALL_LIVE_H

#include "main-node/node/engine_args.h"
#include "tests/bench/live/bench_prompts.h"

/* Runs and reports to standard output. Tokenises the prompts. precision: the one that the engine's options set for the
 * shadow of --local, an index into od_precision_names; -1: none. */
OD_MUST_CHECK int recall_live(const struct odm_main_opts *engine, int precision, struct od_prompts *prompts,
			      uint32_t max_tokens, bool json, struct od_err *err);

#endif

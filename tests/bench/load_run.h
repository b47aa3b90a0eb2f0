/* load_run.h - experts through the worker's own schedule, readers and inflaters, one RUN after another as main would
 * send them, without a network; and the same bytes read by the same readers with nobody behind them.
 *
 * Thread: one at a time; they start and end their own. */
#ifndef OD_BENCH_LOAD_RUN_H
#define OD_BENCH_LOAD_RUN_H

#include "tests/bench/load_source.h"

struct load_case {
	struct load_source *source; /* its experts, in their order */
	struct odw_slots *slots;
	unsigned n_slots, n_readers, n_inflaters;
};

struct load_time {
	uint64_t ns, stored_bytes, weight_bytes; /* read; as published */
	uint64_t read_ns, finish_ns;		 /* of all threads together */
};

OD_MUST_CHECK int load_run(const struct load_case *c, struct load_time *t, struct od_err *err);
OD_MUST_CHECK int load_raw(const struct load_case *c, struct load_time *t, struct od_err *err);

#endif

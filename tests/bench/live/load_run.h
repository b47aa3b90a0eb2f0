/* load_run.h - loads experts through the worker's own schedule, readers and inflaters, without a network: one RUN after
 * another as main would send them; and the same bytes read by the same readers without inflaters.
 *
 * Thread: one at a time; they start and end their own. */
#ifndef OD_BENCH_LOAD_RUN_H
#define OD_BENCH_LOAD_RUN_H

#include "tests/bench/live/load_source.h"

struct load_case {
	struct load_source *source; /* its experts, in their order */
	struct od_device *device;
	struct od_expert_bufs *bufs; /* buffers of the source's form, n_slots of each kind (load_raw: n_readers) */
	unsigned n_slots, n_readers, n_inflaters;
};

struct load_time {
	uint64_t ns, weight_bytes; /* as published */
	uint64_t read_bytes, read_ns, finish_ns; /* all threads together */
};

/* t->ns: until the last expert has been loaded. */
OD_MUST_CHECK int load_run(const struct load_case *c, struct load_time *t, struct od_err *err);
OD_MUST_CHECK int load_raw(const struct load_case *c, struct load_time *t, struct od_err *err);

#endif

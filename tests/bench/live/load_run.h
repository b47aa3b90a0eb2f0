/* load_run.h - loads experts through the worker's own schedule, readers and inflaters, without a network: one RUN after
 * another as main would send them, or all in one RUN; and the same bytes read by the same readers without inflaters.
 *
 * Thread: one at a time; they start and end their own. */
#ifndef OD_BENCH_LOAD_RUN_H
#define OD_BENCH_LOAD_RUN_H

#include "tests/bench/live/load_source.h"
#include "tests/bench/sim/load_order.h"

struct load_case {
	struct load_source *source; /* its experts, in their order */
	struct od_device *device;
	struct odw_bufs
		*bufs; /* of the source's form; of each kind n_slots (load_raw: n_readers), and with pools one more for
				* every two experts */
	unsigned n_slots, n_readers, n_inflaters;
};

struct load_time {
	uint64_t ns, weight_bytes; /* as published */
	struct odw_part_times parts; /* of all threads together */
};

/* The source's experts are of one layer and in one RUN. Expert i runs for run_ns[i], simulated by waiting. */
struct load_together {
	enum od_load_rule rule;
	/* a quarter of the experts is cached in full, a quarter as SM bytes, a quarter as exponents; planes only */
	bool pools;
	struct odw_part_times profile; /* the times that the rule uses; with pools, measured while they are filled */
	const uint64_t *run_ns;
};

/* together NULL: one RUN after another, and only loading takes time. t->ns: until the last one has run. */
OD_MUST_CHECK int load_run(const struct load_case *c, const struct load_together *together, struct load_time *t,
			   struct od_err *err);
OD_MUST_CHECK int load_raw(const struct load_case *c, struct load_time *t, struct od_err *err);

#endif

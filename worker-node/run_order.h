/* run_order.h - the order in which the experts of one RUN are loaded: load_order's, from what reading, finishing and
 * running have cost so far. Experts that load in the same time differ only by their runs, so it is the order of their
 * ranks unless some have many more rows than others (prefill) or are there already.
 *
 * Thread: load_schedule's, under its lock. Owner: the caller; nothing is kept. */
#ifndef ODW_RUN_ORDER_H
#define ODW_RUN_ORDER_H

#include "worker-node/load_schedule.h"

/* Of one expert, with all threads at work on it. */
struct odw_expert_costs {
	uint64_t read_ns, finish_ns; /* finish: one inflater's, for all parts */
	uint32_t n_parts;
	unsigned n_inflaters;
};

/* Gives the items' ranks to them anew, the smallest to the first. resident: [n]. As asked when there is one item, too
 * many, or one whose run_ns is not known. */
void odw_run_order(struct odw_item *item, size_t n, const bool *resident, const struct odw_expert_costs *costs);

#endif

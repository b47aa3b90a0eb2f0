/* run_order.h - the order in which the experts of one RUN are loaded: load_order's, from what reading, finishing and
 * running cost. Experts that load in the same time differ only by their runs, so it is the order of their
 * ranks unless some have many more rows than others (prefill) or are there already.
 *
 * Thread: load_schedule's, under its lock. Owner: the caller; nothing is kept. */
#ifndef ODW_RUN_ORDER_H
#define ODW_RUN_ORDER_H

#include "worker-node/load_schedule.h"

#define ODW_RESIDES (~0u)

/* Gives the items' ranks to them anew, the smallest to the first: those that are resident, then the others in the order
 * of their loads. has [n]: what the cache has of each, of OD_SET_STORED, or ODW_RESIDES. As asked when there is one item,
 * too many, or one whose run_ns is not known. */
void odw_run_order(struct odw_item *item, size_t n, const unsigned *has, const struct odw_expert_costs *costs,
		   enum odw_load_rule rule);

#endif

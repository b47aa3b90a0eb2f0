/* run_order.h - in which order the experts of one RUN are loaded: those that are here go first, the others by Johnson's
 * rule for two machines in a row (1954). The first machine loads: reader or inflaters, whichever an expert keeps busy for
 * longer. The second runs it. So the last of them has run as early as can be, as long as a load keeps its machine to itself.
 *
 * Experts that load in the same time differ only by their runs. So this is the order in which they were asked for, unless
 * some have many more rows than others (prefill), or the cache has a part of them (od-bench order compares rules).
 * Thread: any; nothing is kept. */
#ifndef ODW_RUN_ORDER_H
#define ODW_RUN_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ODW_MAX_ORDERED 192

struct odw_run_load {
	bool resident;		   /* nothing is to be loaded */
	uint64_t read_ns, load_ns; /* on the reader; on reader or inflaters, whichever takes longer */
	uint64_t run_ns;
	uint32_t rank; /* the smallest is loaded first */
};

/* Exchanges ranks. Equal loads keep their order; more than ODW_MAX_ORDERED keep theirs, too. */
void odw_run_order(struct odw_run_load *load, size_t n);

#endif

/* run_order.h - the load order of one RUN's experts: resident ones first, the others by Johnson's rule for a
 * two-machine flow shop (1954). Machine one loads (reader or inflaters, whichever an expert keeps busy longer), machine
 * two runs the expert. This minimises the end of the last run, as long as loads do not share a machine.
 *
 * With equal load times only run times matter. So this is the order of the RUN, unless some experts have many more rows
 * than others (prefill), or are partly cached.
 * Thread: any; a pure function. */
#ifndef ODW_RUN_ORDER_H
#define ODW_RUN_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ODW_MAX_ORDERED 192

struct odw_run_load {
	bool resident; /* no load is needed */
	uint64_t read_ns, load_ns; /* on the reader; on the slower of reader and inflaters */
	uint64_t run_ns;
	uint32_t rank; /* the smallest is loaded first */
};

/* Permutes the ranks. Equal loads keep their order; more than ODW_MAX_ORDERED loads are left unchanged. */
void odw_run_order(struct odw_run_load *load, size_t n);

#endif
